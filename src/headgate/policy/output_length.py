"""How much will a sequence say? By lane, and by how much it may say.

Those of a burst that end first are those that say least: what the others have said so far counts too, as "at least so
much" (Kaplan and Meier's estimate), and what can't be told yet as all that they may say. Where hardly any has ended,
all that may be said is what is predicted.
"""

from collections import deque
from math import sqrt
from typing import Final

from headgate.model.sequence import Finish, Sequence

UPPER: Final = 0.9
"""A sequence says no more than predicted with this chance."""
UPPER_SPREADS: Final = 1.64
"""Standard deviations above the mean of what many say together, for a chance of 0.95."""
LEAST_ENDED: Final = 8
"""Fewer tell nothing."""
LEAST_STARTED: Final = 256
"""Of each kind, the latest that are remembered; more where more of them run at once."""


class Expected:
    """What sequences of a kind say. Nobody changes it."""

    __slots__ = ("mean", "upper", "variance")

    def __init__(self, mean: float, variance: float, upper: int) -> None:
        self.mean = mean
        self.variance = variance
        self.upper = upper
        """The quantile."""


class _Started:
    __slots__ = ("ended", "said", "sequence")

    def __init__(self, sequence: Sequence) -> None:
        self.sequence: Sequence | None = sequence
        """None: it is over."""
        self.said = 0
        self.ended = False
        """By itself or at its limit, after it had said so much; otherwise it was cancelled then."""


class _Kind:
    """Sequences of one lane that may say about as much."""

    def __init__(self, most: int, limit: int) -> None:
        self.started: deque[_Started] = deque(maxlen=most)
        self.expected: Expected | None = None
        """None: too few have ended."""
        self._limit = limit
        """None of them may say more."""
        self._ended = 0
        """Since it was estimated."""

    def end(self) -> None:
        self._ended += 1
        if self._ended >= min(LEAST_ENDED, len(self.started) // 16):
            self._ended = 0
            self.expected = self._estimate()

    def _estimate(self) -> Expected | None:
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
        left, surviving, mean, square, upper = len(seen), 1.0, 0.0, 0.0, self._limit
        for said, goes_on in seen:
            if not goes_on:
                share = surviving / left
                surviving -= share
                mean += share * said
                square += share * said * said
                if upper == self._limit and surviving <= 1.0 - UPPER + 1e-9:
                    upper = said
            left -= 1
        mean += surviving * self._limit
        square += surviving * self._limit * self._limit
        return Expected(mean, max(0.0, square - mean * mean), upper)


class OutputLength:
    def __init__(self, first_guess: int | None, slots: int) -> None:
        self._first_guess = first_guess
        self._most = max(LEAST_STARTED, 4 * slots)
        self._kinds: dict[tuple[str, int], _Kind] = {}
        """By lane and the power of two that the output's limit is below. Lanes are the engine's own: both are few."""
        self._started: dict[int, _Started] = {}

    def start(self, sequence: Sequence) -> None:
        """It was admitted for the first time."""
        self._started[sequence.id] = one = _Started(sequence)
        self._kind(sequence).started.append(one)

    def end(self, sequence: Sequence) -> None:
        one = self._started.pop(sequence.id, None)
        if one is not None:  # otherwise it was cancelled before it was admitted
            one.sequence, one.said, one.ended = None, sequence.output_len, sequence.finish is not Finish.CANCELLED
            self._kind(sequence).end()

    def of(self, sequence: Sequence) -> int:
        """Tokens that it is predicted to say in all, at most. One that has said more than most do may say twice as
        much."""
        expected = self.expected(sequence)
        guess = self._first_guess if expected is None else expected.upper
        return _beyond(sequence, sequence.max_output if guess is None else guess)

    def among_many(self, sequence: Sequence) -> tuple[int, float]:
        """Its part in what many say together: tokens, and their variance."""
        expected = self.expected(sequence)
        if expected is None:
            return self.of(sequence), 0.0
        said, most = len(sequence.tokens) - sequence.prompt_len, min(expected.upper, sequence.max_output)
        if said < expected.mean:
            return min(sequence.max_output, int(expected.mean) + 1), expected.variance
        if said < most:  # something between the two
            return (said + most) // 2 + 1, (most - said) ** 2 / 12.0
        return _beyond(sequence, expected.upper), 0.0

    def expected(self, sequence: Sequence) -> Expected | None:
        kind = self._kinds.get((sequence.lane, sequence.max_output.bit_length()))
        return None if kind is None else kind.expected

    def _kind(self, sequence: Sequence) -> _Kind:
        bits = sequence.max_output.bit_length()
        kind = self._kinds.get((sequence.lane, bits))
        if kind is None:
            kind = self._kinds[sequence.lane, bits] = _Kind(self._most, (1 << bits) - 1)
        return kind


def _beyond(sequence: Sequence, guess: int) -> int:
    said = len(sequence.tokens) - sequence.prompt_len
    return min(sequence.max_output, guess if said < guess else 2 * said + 1)


class Commitment:
    """Blocks of KV memory that running sequences are predicted to need in the end, by priority."""

    def __init__(self, output: OutputLength, block_tokens: int, longest: int) -> None:
        self._output = output
        self._block_tokens = block_tokens
        self._longest = longest
        self._blocks: dict[int, int] = {}
        self._variance: dict[int, float] = {}

    def add(self, sequence: Sequence) -> None:
        blocks, variance = self._needs(sequence)
        priority = sequence.priority
        self._blocks[priority] = self._blocks.get(priority, 0) + blocks
        self._variance[priority] = self._variance.get(priority, 0.0) + variance

    def with_(self, sequence: Sequence, urgent: int | None = None) -> float:
        """Of all of them and this one, with a chance of 0.95. `urgent`: of those up to this priority alone."""
        blocks, variance = self._needs(sequence)
        for priority, taken in self._blocks.items():
            if urgent is None or priority <= urgent:
                blocks += taken
                variance += self._variance[priority]
        return blocks + UPPER_SPREADS * sqrt(max(0.0, variance))

    def _needs(self, sequence: Sequence) -> tuple[int, float]:
        output, variance = self._output.among_many(sequence)
        tokens = min(self._longest, sequence.prompt_len + output)
        return -(-tokens // self._block_tokens), variance / self._block_tokens**2
