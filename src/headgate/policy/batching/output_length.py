"""Predicts the output length of a sequence, by its lane and its output limit.

The sequences of a burst that end first are the shortest: so the tokens that the others have generated so far count too,
as a lower bound (Kaplan and Meier's estimate), and the length beyond what is known counts as the limit. Where hardly
any sequence has ended, the prediction is the limit.
"""

from collections import deque
from typing import Final

from headgate.model.sequence import Finish, Sequence

UPPER: Final = 0.9
"""Probability that a sequence generates no more than predicted."""
LEAST_ENDED: Final = 8
"""Minimum ended sequences from which to predict."""
LEAST_STARTED: Final = 256
"""Minimum of the latest sequences of each class that are remembered; four times the slots where that is more."""
UNSEEN: Final = 4
"""Imaginary sequences that reach their limit, added to those seen: a prediction from few sequences is not certain."""
LATE_COSTS: Final = 4
"""A sequence longer than predicted takes away the trust that this many others earned. In a steady lane one of ten is
longer."""
CELLS: Final = 7
"""A class's limit is divided into two to this power cells."""


class ExpectedLength:
    """The expected output length of a class. Never changed once made."""

    __slots__ = ("shift", "surviving", "upper")

    def __init__(self, surviving: list[float], shift: int, upper: int) -> None:
        self.surviving = surviving
        """The share of sequences longer than 0, 1, 2 … times two to the power of `shift` tokens."""
        self.shift = shift
        self.upper = upper
        """The UPPER quantile of the length, in tokens."""


class _Started:
    __slots__ = ("ended", "said", "sequence")

    def __init__(self, sequence: Sequence) -> None:
        self.sequence: Sequence | None = sequence
        """None: the sequence is over."""
        self.said = 0
        self.ended = False
        """The sequence ended by itself after `said` tokens; False: it was cancelled or cut off then."""


class LengthClass:
    """Sequences of one lane with about the same output limit."""

    def __init__(self, most: int, bits: int) -> None:
        self.started: deque[_Started] = deque(maxlen=most)
        self.expected: ExpectedLength | None = None
        """None: too few have ended."""
        self.running = 0
        self.trusted = 0
        """Concurrent sequences that may be counted by their expected length; others count by their limit. Sequences
        that come at once have similar lengths: 300 lengths seen one after the other tell little of 300 that come
        together. So this number grows as TCP's window does."""
        self._limit = (1 << bits) - 1
        """Maximum tokens that any sequence of the class may generate."""
        self._shift = max(0, bits - CELLS)
        self._ended = 0
        """Sequences ended since the last estimate."""

    def start(self, one: _Started) -> None:
        self.started.append(one)
        self.running += 1

    def end(self, one: _Started) -> None:
        if one.ended:
            self._vouch(one.said)
        self.running -= 1
        self._ended += 1
        if self._ended >= min(LEAST_ENDED, len(self.started) // 16):
            self._ended = 0
            self.expected = self._estimate()

    def _vouch(self, said: int) -> None:
        """Raises `trusted` by one for a sequence that ended in time while at least half as many ran; lowers it by one
        if fewer ran, and by LATE_COSTS for a sequence longer than predicted."""
        if self.expected is not None and said > self.expected.upper:
            self.trusted = max(0, self.trusted - LATE_COSTS)
        elif 2 * self.running >= self.trusted:
            self.trusted += 1
        else:
            self.trusted -= 1

    def _estimate(self) -> ExpectedLength | None:
        seen, ended = [], 0
        for one in self.started:
            if one.sequence is not None:
                seen.append((one.sequence.output_len, True))
            else:
                seen.append((one.said, not one.ended))
                ended += one.ended
        if ended < LEAST_ENDED:
            return None
        seen.sort()
        left, surviving, upper = len(seen) + UNSEEN, 1.0, self._limit
        table: list[float] = []
        shift = self._shift
        for said, goes_on in seen:
            if not goes_on:
                while len(table) << shift < said:
                    table.append(surviving)
                surviving -= surviving / left
                if upper == self._limit and surviving <= 1.0 - UPPER + 1e-9:
                    upper = said
            left -= 1
        while len(table) << shift <= self._limit:
            table.append(surviving)
        return ExpectedLength(table, shift, upper)


class OutputLength:
    def __init__(self, first_guess: int | None, slots: int) -> None:
        self.first_guess = first_guess
        self._most = max(LEAST_STARTED, 4 * slots)
        self._kinds: dict[tuple[str, int], LengthClass] = {}
        """Classes by lane and the power of two that the output limit is below. Lanes are the engine's own: both are
        few."""
        self._started: dict[int, _Started] = {}

    def start(self, sequence: Sequence) -> None:
        """Notes a sequence that was admitted for the first time."""
        self._started[sequence.id] = one = _Started(sequence)
        self.kind(sequence).start(one)

    def end(self, sequence: Sequence) -> None:
        one = self._started.pop(sequence.id, None)
        if one is not None:  # otherwise it was cancelled before it was admitted
            one.sequence, one.said, one.ended = None, sequence.output_len, sequence.finish is Finish.STOP
            self.kind(sequence).end(one)

    def of(self, sequence: Sequence) -> int:
        """Returns the maximum output tokens predicted for a sequence. For one that is longer than predicted already, it
        is twice its length."""
        expected = self.kind(sequence).expected
        guess = self.first_guess if expected is None else expected.upper
        said = len(sequence.tokens) - sequence.prompt_len
        if guess is None:
            return sequence.max_output
        return min(sequence.max_output, guess if said < guess else 2 * said + 1)

    def kind(self, sequence: Sequence) -> LengthClass:
        bits = sequence.max_output.bit_length()
        kind = self._kinds.get((sequence.lane, bits))
        if kind is None:
            kind = self._kinds[sequence.lane, bits] = LengthClass(self._most, bits)
        return kind
