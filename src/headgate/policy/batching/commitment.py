"""Predicts the maximum KV memory that the running sequences will need.

Each sequence grows by a token per step until it ends. The memory that all of them hold some steps from now is the sum
of what each would hold then, times the probability that it still runs: sequences with short outputs have ended when the
others are long. The largest such sum has to fit.
"""

from math import sqrt
from typing import Final

from headgate.model.sequence import Sequence
from headgate.policy.batching.output_length import LengthClass, OutputLength

SPREADS: Final = 1.64
"""Standard deviations above the mean of the blocks that many sequences hold together, for a probability of 0.95."""
FIRST: Final = 64
"""Tokens of the first span of the future."""
WIDER: Final = 2.0**0.5
"""Each span ends this many times as far from now as the one before it."""
ANY: Final = 1 << 30
"""Less urgent than every priority."""


def spans(longest: int) -> list[int]:
    """Returns where the spans end, in tokens from now; the first is where they begin."""
    ends, at = [0], float(FIRST)
    while ends[-1] < longest:
        ends.append(min(longest, int(at)))
        at *= WIDER
    return ends


class _Future:
    """The memory that one sequence will hold. Within a span, its size counts as at the span's end, and its probability
    to run on as at the span's beginning."""

    __slots__ = ("_block_tokens", "_have", "_here", "_said", "_shift", "_surviving", "left")

    def __init__(self, have: int, said: int, left: int, block_tokens: int, kind: LengthClass | None) -> None:
        """`kind`: the class whose expected length applies; None: the sequence generates its maximum."""
        self._block_tokens = block_tokens
        self.left = left
        """Tokens that the sequence may still generate."""
        self._have = have
        self._said = said
        expected = None if kind is None else kind.expected
        self._surviving: list[float] | None = None
        self._shift = 0
        self._here = 1.0
        if expected is not None:
            self._surviving, self._shift = expected.surviving, expected.shift
            self._here = expected.surviving[said >> expected.shift]

    def blocks(self, end: int) -> float:
        return float(-(-(self._have + min(end, self.left)) // self._block_tokens))

    def share(self, begin: int) -> float:
        """Returns the probability that the sequence generates more than `begin` further tokens."""
        if self._surviving is None:
            return 1.0
        return self._surviving[(self._said + begin) >> self._shift] / self._here


class _Held:
    """Blocks held within each span of the future: their mean and its variance."""

    __slots__ = ("mean", "peak", "variance")

    def __init__(self, count: int) -> None:
        self.mean = [0.0] * count
        self.variance = [0.0] * count
        self.peak = -1
        """The span with the most blocks; −1: not computed yet."""

    def add(self, future: _Future, ends: list[int]) -> None:
        mean, variance, begin = self.mean, self.variance, 0
        for index in range(len(mean)):
            if begin >= future.left:
                break
            end = ends[index + 1]
            blocks, share = future.blocks(end), future.share(begin)
            mean[index] += blocks * share
            variance[index] += blocks * blocks * share * (1.0 - share)
            begin = end
        self.peak = -1

    def include(self, other: "_Held") -> None:
        for index in range(len(self.mean)):
            self.mean[index] += other.mean[index]
            self.variance[index] += other.variance[index]
        self.peak = -1

    def most(self) -> float:
        """Returns the blocks that suffice with a probability of 0.95."""
        found = [mean + SPREADS * sqrt(variance) for mean, variance in zip(self.mean, self.variance, strict=True)]
        most = max(found)
        self.peak = found.index(most)
        return most


class Commitment:
    """The predicted memory need of running sequences, by priority. Of each length class only the first `trusted` added
    count by their expected length, the others by their maximum."""

    def __init__(self, output: OutputLength, block_tokens: int, longest: int) -> None:
        self._output = output
        self._block_tokens = block_tokens
        self._longest = longest
        self._ends = spans(longest)
        self._held: dict[int, _Held] = {}
        self._up_to: dict[int, _Held] = {}
        """The needs of all priorities up to one, computed when asked for."""
        self._counts: dict[LengthClass, int] = {}

    def add(self, sequence: Sequence) -> None:
        kind, future = self._output.kind(sequence), self._future(sequence)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        held = self._held.get(sequence.priority)
        if held is None:
            held = self._held[sequence.priority] = _Held(len(self._ends) - 1)
        held.add(future, self._ends)
        for priority, together in self._up_to.items():
            if sequence.priority <= priority:
                together.add(future, self._ends)

    def needs(self, sequence: Sequence, urgent: int = ANY) -> float:
        """Returns the blocks that all of them and this sequence need. `urgent`: count only those up to this
        priority."""
        held = _Held(len(self._ends) - 1)
        held.add(self._future(sequence), self._ends)
        held.include(self._together(urgent))
        return held.most()

    def exceeds(self, sequence: Sequence, blocks: float, urgent: int = ANY) -> bool:
        """True if they and this sequence need more than these blocks."""
        together = self._together(urgent)
        if together.peak < 0:
            together.most()
        # The span that needs most without the sequence mostly needs most with it; checking it first is cheap, and this
        # is asked for every waiting sequence at every step.
        at, future, mean, variance = together.peak, self._future(sequence), 0.0, 0.0
        if self._ends[at] < future.left:
            held, share = future.blocks(self._ends[at + 1]), future.share(self._ends[at])
            mean, variance = held * share, held * held * share * (1.0 - share)
        if together.mean[at] + mean + SPREADS * sqrt(together.variance[at] + variance) > blocks:
            return True
        return self.needs(sequence, urgent) > blocks

    def _together(self, urgent: int) -> _Held:
        together = self._up_to.get(urgent)
        if together is None:
            together = self._up_to[urgent] = _Held(len(self._ends) - 1)
            for priority, held in self._held.items():
                if priority <= urgent:
                    together.include(held)
        return together

    def _future(self, sequence: Sequence) -> _Future:
        have, output = len(sequence.tokens), self._output
        said, kind = have - sequence.prompt_len, output.kind(sequence)
        left = min(sequence.max_output - said, self._longest - have)
        if kind.expected is None and output.first_guess is not None:
            left = min(left, output.of(sequence) - said)
        trusted = kind.expected is not None and self._counts.get(kind, 0) < kind.trusted
        return _Future(have, said, max(1, left), self._block_tokens, kind if trusted else None)
