"""Defines one pass through the model: first the moves in the KV cache, then the tokens to compute.

A Step is the whole message from the Batcher to its runner: a real model, a scripted one in a test, or a step-time model
in the simulator.
"""

from dataclasses import dataclass

from headgate.model.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Trim:
    """Keep the first `length` tokens of a slot and drop the rest."""

    slot: int
    length: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the first `length` tokens of slot `source` into `slot`. The source keeps its tokens."""

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
    """Copy the first `length` tokens of a blob into `slot`. The blob stays."""

    blob: int
    slot: int
    length: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Free a blob's host memory."""

    blob: int


Move = Trim | Copy | Save | Restore | Drop


def moved_tokens(moves: tuple[Move, ...]) -> tuple[int, int, int]:
    """Tokens that the moves save to host memory, load from it, and copy between slots."""
    saved = loaded = copied = 0
    for move in moves:
        if isinstance(move, Save):
            saved += move.length
        elif isinstance(move, Restore):
            loaded += move.length
        elif isinstance(move, Copy):
            copied += move.length
    return saved, loaded, copied


class Row:
    """One sequence's part of a step: `count` of its tokens from position `start`, then `draft`, guessed next tokens
    that the same pass verifies. Never changed once made."""

    # No dataclass: one is made for every sequence and step, and in the compiled copy its fields are read directly.
    __slots__ = ("count", "draft", "samples", "sequence", "slot", "start")

    def __init__(
        self, sequence: Sequence, slot: int, start: int, count: int, samples: bool, draft: tuple[int, ...] = ()
    ) -> None:
        self.sequence = sequence
        self.slot = slot
        self.start = start
        self.count = count
        self.samples = samples
        """False for a prefill chunk that does not end the prompt: no token is drawn."""
        self.draft = draft

    @property
    def width(self) -> int:
        return self.count + len(self.draft)


class Step:
    __slots__ = ("moves", "repeat", "rows")

    def __init__(self, moves: tuple[Move, ...], rows: tuple[Row, ...], repeat: int = 1) -> None:
        self.moves = moves
        """Carried out in this order before anything is computed."""
        self.rows = rows
        """In ascending slot order, each slot at most once. Empty where the step has only moves."""
        self.repeat = repeat
        """Steps that may run without a decision in between: this one and up to `repeat - 1` identical ones, if nothing
        arrives, is cancelled or stops early. A simulator runs them as one."""

    @property
    def tokens(self) -> int:
        return sum(row.width for row in self.rows)
