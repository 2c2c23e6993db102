"""Compares the quality of two versions by scores from 0 to 1, as an operator, a client or a scorer gives them.

Each score of the one version is paired with the mean of the other's scores that came since the pair before, so that
what both were asked at that time is alike. The evidence is what a bet on the difference of each pair would have won:
1 + λ·x for each pair, where x has no mean above zero if the version is as good as is claimed. Such a bet grows only if
the claim is wrong (Waudby-Smith and Ramdas 2024), whatever the scores' distribution: thumbs, stars and means of both
count alike. However often it is read, it passes 1/α by chance in at most α of the cases.

    Harm   against "its mean score is at most `acceptable` below the other's"
    Fine   against "its mean score is `unacceptable` below the other's, or more"

Scores of one conversation are alike. The variance is measured from block to block, and where it exceeds that of
independent pairs, the evidence counts for less.
"""

from math import log, log1p, sqrt
from typing import Final

from headgate.policy.rollout.contest import BlockVariance, log_mean

PAIRS: Final = 25
"""Pairs in a block."""
PARTS: Final = (0.02, 0.05, 0.12, 0.3, 0.6, 0.9)
"""Parts of the largest possible bet that are placed, all equally: which wins most depends on the scores' variance."""


class QualityBet:
    """Evidence against one claim about the difference of the means."""

    __slots__ = ("_bets", "_margin", "_sign", "_stakes")

    def __init__(self, margin: float, *, worse: bool) -> None:
        """`worse`: against "at most `margin` below"; otherwise against "`margin` below, or more"."""
        self._margin = margin
        self._sign = -1.0 if worse else 1.0
        # The least that a pair may be worth is minus this: no bet loses all.
        lowest = max(0.5, 1.0 - self._sign * margin)
        self._stakes = tuple(part / lowest for part in PARTS)
        self._bets = [0.0] * len(PARTS)

    def take(self, differences: list[float], weight: float) -> None:
        """Adds a block of pairs. `weight`: how much the block counts, at most 1."""
        worths = [self._sign * (difference + self._margin) for difference in differences]
        for index, stake in enumerate(self._stakes):
            self._bets[index] += weight * sum([log1p(stake * worth) for worth in worths])

    @property
    def log_evidence(self) -> float:
        return log_mean(self._bets)


class QualityContest:
    """The scores of both versions. Its memory is bounded: one block, and sums."""

    def __init__(self, acceptable: float, unacceptable: float) -> None:
        self.harm = QualityBet(acceptable, worse=True)
        self.fine = QualityBet(unacceptable, worse=False)
        self.counts = {True: 0, False: 0}
        """Scores, by canary (True) and baseline (False)."""
        self._sums = {True: 0.0, False: 0.0}
        self._since = {True: (0, 0.0), False: (0, 0.0)}
        """Number and sum of the scores since the last pair."""
        self._block: list[float] = []
        self._spread = BlockVariance()
        self._pairs = 0
        self._mean = 0.0
        self._squares = 0.0
        """Sum of the squared deviations of all differences from their mean."""

    def mean(self, canary: bool) -> float | None:
        """The version's mean score; None: it has none."""
        count = self.counts[canary]
        return self._sums[canary] / count if count else None

    def take(self, canary: bool, score: float) -> bool:
        """Adds a score. Returns whether a block was completed, so that the evidence changed."""
        self.counts[canary] += 1
        self._sums[canary] += score
        number, total = self._since[canary]
        self._since[canary] = (number + 1, total + score)
        (n, ours), (m, theirs) = self._since[True], self._since[False]
        if not n or not m:
            return False
        self._since = {True: (0, 0.0), False: (0, 0.0)}
        self._block.append(ours / n - theirs / m)
        return len(self._block) >= PAIRS and self.close()

    def close(self) -> bool:
        """Ends the block, because it is full or the canary's share changes. Returns whether it had a pair."""
        block, self._block = self._block, []
        self._since = {True: (0, 0.0), False: (0, 0.0)}
        if not block:
            return False
        weight = 1.0 / self._spread.factor  # from the blocks before: a bet is placed before the draw
        self.harm.take(block, weight)
        self.fine.take(block, weight)
        for difference in block:
            self._pairs += 1
            before = difference - self._mean
            self._mean += before / self._pairs
            self._squares += before * (difference - self._mean)
        deviation = sqrt(self._squares / self._pairs)
        if deviation > 0:
            self._spread.take(sum(block) / deviation, float(len(block)))
        return True

    def proven_fine(self, chance: float) -> bool:
        return self.fine.log_evidence >= log(1 / chance)
