"""How much will a sequence say? By lane, and by how much it may say.

Those of a burst that end first are those that say least: what the others have said so far counts too, as "at least so
much" (Kaplan and Meier's estimate), and what can't be told yet as all that they may say. Where hardly any has ended,
all that may be said is what is predicted.
"""

from collections import deque
from typing import Final

from headgate.model.sequence import Finish, Sequence

UPPER: Final = 0.9
"""A sequence says no more than predicted with this chance."""
LEAST_ENDED: Final = 8
"""Fewer tell nothing."""
LEAST_STARTED: Final = 256
"""Of each kind, the latest that are remembered; more where more of them run at once."""
UNSEEN: Final = 4
"""Sequences that nobody saw and that say all they may: what few have told is not taken for certain."""
LATE_COSTS: Final = 4
"""One that says more than predicted counts against so many that did not. In a steady lane one of ten does."""
CELLS: Final = 7
"""A kind's limit is divided by two to this power."""


class ExpectedLength:
    """What sequences of a kind say. Nobody changes it."""

    __slots__ = ("shift", "surviving", "upper")

    def __init__(self, surviving: list[float], shift: int, upper: int) -> None:
        self.surviving = surviving
        """The share that says more than 0, 1, 2 … times two to the power of `shift` tokens."""
        self.shift = shift
        self.upper = upper
        """The quantile."""


class _Started:
    __slots__ = ("ended", "said", "sequence")

    def __init__(self, sequence: Sequence) -> None:
        self.sequence: Sequence | None = sequence
        """None: it is over."""
        self.said = 0
        self.ended = False
        """By itself, after it had said so much; otherwise it was cancelled or cut then."""


class LengthClass:
    """Sequences of one lane that may say about as much."""

    def __init__(self, most: int, bits: int) -> None:
        self.started: deque[_Started] = deque(maxlen=most)
        self.expected: ExpectedLength | None = None
        """None: too few have ended."""
        self.running = 0
        self.trusted = 0
        """How many at once may be counted by what is expected. Those that come at once say alike: what 300 said one
        after the other tells little of 300 that come together. So it grows as TCP's window does."""
        self._limit = (1 << bits) - 1
        """None of them may say more."""
        self._shift = max(0, bits - CELLS)
        self._ended = 0
        """Since it was estimated."""

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
        """One for each that ended in time while about as many ran; fewer where there were never so many."""
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
        """By lane and the power of two that the output's limit is below. Lanes are the engine's own: both are few."""
        self._started: dict[int, _Started] = {}

    def start(self, sequence: Sequence) -> None:
        """It was admitted for the first time."""
        self._started[sequence.id] = one = _Started(sequence)
        self.kind(sequence).start(one)

    def end(self, sequence: Sequence) -> None:
        one = self._started.pop(sequence.id, None)
        if one is not None:  # otherwise it was cancelled before it was admitted
            one.sequence, one.said, one.ended = None, sequence.output_len, sequence.finish is Finish.STOP
            self.kind(sequence).end(one)

    def of(self, sequence: Sequence) -> int:
        """Tokens that it is predicted to say in all, at most. One that has said more than most do may say twice as
        much."""
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
