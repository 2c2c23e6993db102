"""One pass through the model: what to move in the KV cache first, then what to compute.

A Step is the whole message from the Batcher to whatever runs it: a real model, a scripted one in a
test, a step-time model in the simulator.
"""

from dataclasses import dataclass

from headgate.model.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Trim:
    """Keep the first `length` tokens of a slot, forget the rest."""

    slot: int
    length: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Make `slot` hold the first `length` tokens of `source`, another slot, which keeps its own."""

    source: int
    slot: int
    length: int


@dataclass(frozen=True, slots=True)
class Save:
    """Copy a slot's first `length` tokens to host memory under the name `blob`."""

    slot: int
    blob: int
    length: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Make `slot` hold the first `length` tokens of a blob. The blob stays."""

    blob: int
    slot: int
    length: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Free a blob's host memory."""

    blob: int


Move = Trim | Copy | Save | Restore | Drop


class Row:
    """One sequence's part of a step: `count` of its tokens from position `start`, then `draft`, guesses
    at what comes next, to be verified in the same pass. Nobody changes it."""

    # No dataclass: one is made for every sequence and step, and where it is compiled its fields are read directly.
    __slots__ = ("count", "draft", "samples", "sequence", "slot", "start")

    def __init__(
        self, sequence: Sequence, slot: int, start: int, count: int, samples: bool, draft: tuple[int, ...] = ()
    ) -> None:
        self.sequence = sequence
        self.slot = slot
        self.start = start
        self.count = count
        self.samples = samples
        """False for a prefill chunk that does not end the prompt: nothing is drawn."""
        self.draft = draft

    @property
    def width(self) -> int:
        return self.count + len(self.draft)


class Step:
    __slots__ = ("moves", "repeat", "rows")

    def __init__(self, moves: tuple[Move, ...], rows: tuple[Row, ...], repeat: int = 1) -> None:
        self.moves = moves
        """To be carried out in this order before anything is computed."""
        self.rows = rows
        """In ascending slot order; each slot at most once. May be empty when there are only moves."""
        self.repeat = repeat
        """This step and up to `repeat - 1` identical ones may follow with no decision in between, if nothing
        arrives, is cancelled or stops early. A simulator runs them as one."""

    @property
    def tokens(self) -> int:
        return sum(row.width for row in self.rows)
