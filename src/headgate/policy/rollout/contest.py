"""Which of two has more of the slow ones? Evidence that grows with every block of requests, looked at any time.

Requests of both versions are taken in blocks, in the order in which they ended, so that what happened to both at once
(a burst, an hour of the day) is the same for both. In each block those are counted that took longer than, say, 99 % did
before: if the versions are alike, as many of them are the canary's as its share of the block says, whatever the
distribution is (Mood's quantile test, block by block). To ask "more than r times as slow?" the canary's times are
divided by r first.

Two kinds of evidence are kept of the same counts:

    Harm   that there are too many: a likelihood ratio against "no more than its share", which grows only if that is
           wrong. However often one looks, it passes 1/α by chance in at most α of the cases (Ville 1939): a canary may
           be watched for days, and rolled back the moment it is sure.
    Fine   that there are too few, so it is not r times as slow: a sum that must pass a line which a sum without drift
           passes in at most α of the cases before a given end (the reflection principle). Less patient, but it needs
           half the requests: for promotion, which has a limit.

Slow requests come in clumps: one stall delays all that a replica has. So the variance is measured from block to block,
and where it is larger than chance alone makes it, both count for less.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import ceil, exp, log, nextafter, sqrt
from typing import Final

from headgate.model.quantile import GRID, Sketch

BLOCK: Final = 400
"""Requests in a block: long enough for most clumps to be within one."""
MOST: Final = 1.5
"""How many times the usual number of slow ones count in one block."""
TILTS: Final = (1.3, 1.8, 3.0, 8.0)
"""How many times its share the canary may have of the slow ones: each is bet on equally."""
_LOGS: Final = tuple(log(tilt) for tilt in TILTS)
AROUND: Final = (0.5, 1.0, 2.0)
"""Parts of requests, relative to the one asked for, that are looked at beside it."""
SETTLED: Final = 5.0
"""Variance that must have been seen before its measured excess is believed by half."""


class BlockVariance:
    """How much larger is the variance from block to block than that of independent draws? At least as large."""

    __slots__ = ("products", "scores", "squares", "variance", "variances")

    def __init__(self) -> None:
        self.scores = 0.0
        self.variance = 0.0
        self.squares = 0.0
        self.products = 0.0
        self.variances = 0.0

    def take(self, score: float, variance: float) -> None:
        self.scores += score
        self.variance += variance
        self.squares += score * score
        self.products += score * variance
        self.variances += variance * variance

    @property
    def factor(self) -> float:
        if not self.variance:
            return 1.0
        drift = self.scores / self.variance  # a real difference is no noise
        noise = self.squares - 2 * drift * self.products + drift * drift * self.variances
        return max(1.0, (SETTLED + noise) / (SETTLED + self.variance))


class Harm:
    """That the canary has more than its share."""

    __slots__ = ("_bets", "_spread")

    def __init__(self) -> None:
        self._bets = [0.0] * len(TILTS)
        self._spread = BlockVariance()

    def take(self, hers: float, of: float, share: float, variance: float) -> None:
        """`of` requests were conspicuous, `hers` of them the canary's, which had `share` of all."""
        weight = 1.0 / self._spread.factor  # of the blocks before: a bet is placed before the draw
        for index, tilt in enumerate(TILTS):
            self._bets[index] += weight * (hers * _LOGS[index] - of * log(1.0 + share * (tilt - 1.0)))
        self._spread.take(hers - of * share, variance)

    @property
    def log_evidence(self) -> float:
        """The logarithm of how many times likelier this is if the canary is worse."""
        return log_mean(self._bets)


class Fine:
    """That it has less than its share."""

    __slots__ = ("_spread",)

    def __init__(self) -> None:
        self._spread = BlockVariance()

    def take(self, score: float, variance: float) -> None:
        self._spread.take(score, variance)

    def z(self, part: float) -> float:
        """How far the sum has come, in standard deviations of what it will have at the end, of which so much is over:
        without drift it is ever beyond z in as many cases as it ends beyond it, twice."""
        spread = self._spread
        return -spread.scores * sqrt(min(1.0, part) / (spread.variance * spread.factor)) if spread.variance else 0.0


class Contest:
    """One figure of both versions, at several percentiles."""

    def __init__(
        self,
        percentiles: Sequence[int],
        acceptable: float,
        unacceptable: float | None,
        *,
        floor: float = 0.0,
        block: int = BLOCK,
    ) -> None:
        """`unacceptable` None: only harm is looked for. `floor`: less than this makes no difference to anybody."""
        self.harms = {percentile: Harm() for percentile in percentiles}
        self.fines = {percentile: Fine() for percentile in percentiles} if unacceptable is not None else {}
        self.exposure = 0.0
        """Requests compared, as good as so many pairs of one each."""
        parts = [_part(percentile) for percentile in percentiles]
        around = [part * factor for part in parts for factor in AROUND]
        self._for_harm = Lines(parts, acceptable, floor)
        self._for_fine = Lines(around, unacceptable, floor) if unacceptable is not None else None
        self._floor = floor
        self._block = block
        self._canary: list[float] = []
        self._baseline: list[float] = []
        self._count = 0
        self._buckets: dict[bool, dict[int, int]] = {True: {}, False: {}}

    def sketch(self, canary: bool) -> Sketch:
        """All blocks there were, for people to look at."""
        return Sketch.of(dict(self._buckets[canary]))

    def take(self, canary: bool, value: float) -> bool:
        """Whether a block is complete, so that there is something new to see."""
        (self._canary if canary else self._baseline).append(value)
        self._count += 1
        return self._count >= self._block and self.close()

    def close(self) -> bool:
        """The share of the canary changes, or the block is full."""
        canary, baseline = sorted(self._canary), sorted(self._baseline)
        self._canary, self._baseline, self._count = [], [], 0
        compared = bool(self._for_harm.known and canary and baseline)
        if compared:
            self.exposure += len(canary) * len(baseline) / (len(canary) + len(baseline))
        self._look_for_harm(canary, baseline, compared)
        if self._for_fine is not None:
            self._look_for_fine(self._for_fine, canary, baseline, compared)
        for buckets, values in ((self._buckets[True], canary), (self._buckets[False], baseline)):
            count(buckets, values)
        return compared

    def _look_for_harm(self, canary: list[float], baseline: list[float], compared: bool) -> None:
        lines = self._for_harm
        scaled, merged = lines.side_by_side(canary, baseline)
        if compared:
            total, share = len(merged), len(canary) / len(merged)
            for percentile, harm in self.harms.items():
                line = lines.at(_part(percentile), merged)
                of = line.beyond(merged)
                harm.take(line.beyond(scaled), of, share, _variance(of, total, share))
        lines.learn(merged)

    def _look_for_fine(self, lines: "Lines", canary: list[float], baseline: list[float], compared: bool) -> None:
        scaled, merged = lines.side_by_side(canary, baseline)
        if compared:
            for percentile, fine in self.fines.items():
                part = _part(percentile)
                if lines.known[part].above > self._floor:
                    fine.take(*_smoothed([lines.at(part * factor, merged) for factor in AROUND], scaled, merged))
                else:
                    # All of it is faster than anybody notices: enough that the canary is hardly ever slower than that.
                    n = len(scaled)
                    fine.take(lines.known[part].beyond(scaled) - n * part, n * part * (1.0 - part))
        lines.learn(merged)


class SlowThreshold:
    """Where the slowest begin. Those between are as good as equal: a part of them counts."""

    __slots__ = ("above", "below", "part")

    def __init__(self, below: float, above: float, part: float) -> None:
        self.below = below
        self.above = above
        self.part = part

    def beyond(self, values: list[float]) -> float:
        """How many of these, which are sorted, lie beyond it."""
        above = bisect_right(values, self.above)
        return len(values) - above + self.part * (above - bisect_right(values, self.below))


class Lines:
    """The percentiles of both versions together, the canary `ratio` times as fast as it was: if it is that much slower,
    they are each one's own."""

    def __init__(self, parts: Sequence[float], ratio: float, floor: float) -> None:
        """`parts` of all requests are beyond them."""
        self.known: dict[float, SlowThreshold] = {}
        """From all blocks before."""
        self._parts = parts
        self._ratio = ratio
        self._floor = floor
        self._buckets: dict[int, int] = {}

    def side_by_side(self, canary: list[float], baseline: list[float]) -> tuple[list[float], list[float]]:
        """The canary's, divided, and all, sorted."""
        scaled = [value / self._ratio for value in canary]
        return scaled, sorted(scaled + baseline)  # two runs: merged, not sorted

    def at(self, part: float, merged: list[float]) -> SlowThreshold:
        """In a block with more slow ones than that, only the slowest of them count: a burst is one event, not many."""
        line, most = self.known[part], max(1.0, MOST * len(merged) * part)
        if line.beyond(merged) <= most:
            return line
        last = merged[len(merged) - ceil(most)]
        above = bisect_right(merged, last)
        tied = above - bisect_left(merged, last)
        return SlowThreshold(nextafter(last, 0.0), last, (most - (len(merged) - above)) / tied)

    def learn(self, merged: list[float]) -> None:
        count(self._buckets, merged)
        order, total = sorted(self._buckets, reverse=True), sum(self._buckets.values())
        for part in self._parts:
            left = total * part
            for bucket in order:
                if left < self._buckets[bucket]:
                    self.known[part] = self._line(bucket, left / self._buckets[bucket])
                    break
                left -= self._buckets[bucket]

    def _line(self, bucket: int, part: float) -> SlowThreshold:
        above = GRID.upto(bucket) if bucket else 0.0
        if above <= self._floor:
            return SlowThreshold(self._floor, self._floor, 0.0)
        return SlowThreshold(GRID.upto(bucket - 1) if bucket > 1 else 0.0, above, part)


def _part(percentile: int) -> float:
    return (100 - percentile) / 100


def _smoothed(lines: list[SlowThreshold], scaled: list[float], merged: list[float]) -> tuple[float, float]:
    """How many more of those beyond a percentile are the canary's than its share, and the variance of that by chance.
    Lines a little further in and out are asked too, each counting by how few it leaves: where the tail of one version
    is as that of the other, all three say the same, and together with less noise."""
    total, share = len(merged), len(scaled) / len(merged)
    weights = [1 / (len(AROUND) * factor) for factor in AROUND]
    of = [line.beyond(merged) for line in lines]
    score = sum([w * (line.beyond(scaled) - n * share) for w, line, n in zip(weights, lines, of, strict=True)])
    whole = sum([w * n for w, n in zip(weights, of, strict=True)])
    both = zip(weights, of, strict=True)
    squares = sum([w * v * min(n, m) for w, n in both for v, m in zip(weights, of, strict=True)])  # one is in the other
    return score, share * (1.0 - share) * (squares - whole * whole / total) * total / (total - 1)


def count(buckets: dict[int, int], values: list[float]) -> None:
    for bucket in map(GRID.index, values):
        buckets[bucket] = buckets.get(bucket, 0) + 1


def _variance(of: float, total: int, share: float) -> float:
    """Of how many are the canary's, if `of` are drawn from all without looking."""
    return of * share * (1.0 - share) * (total - of) / (total - 1)


class Failures:
    """The same for what went wrong: every failure is conspicuous."""

    def __init__(self, acceptable: float, block: int) -> None:
        self.harm = Harm()
        self.spread = BlockVariance()
        self.counts = {True: [0, 0], False: [0, 0]}
        """Of canary and baseline: requests, and those that failed."""
        self._acceptable = acceptable
        self._block = block
        self._now = {True: [0, 0], False: [0, 0]}

    def take(self, canary: bool, failed: bool) -> bool:
        ours = self._now[canary]
        ours[0] += 1
        ours[1] += failed
        return self._now[True][0] + self._now[False][0] >= self._block and self.close()

    def close(self) -> bool:
        (requests, failed), (others, others_failed) = self._now[True], self._now[False]
        self._now = {True: [0, 0], False: [0, 0]}
        for canary, seen in ((True, (requests, failed)), (False, (others, others_failed))):
            self.counts[canary][0] += seen[0]
            self.counts[canary][1] += seen[1]
        if not requests or not others:
            return False
        # Each of its requests may fail so many times as often as the others': that is a larger share of failures.
        share = self._acceptable * requests / (self._acceptable * requests + others)
        of, total = failed + others_failed, requests + others
        plain = requests / total
        variance = of * plain * (1 - plain) * (total - of) / max(1, total - 1)
        self.harm.take(failed, of, share, variance)
        self.spread.take(failed - of * plain, variance)
        return True

    def worst_difference(self, z: float) -> float:
        """How many more of its requests may fail, at most (Agresti and Caffo's interval: one failure and one success
        are added to each, so that none in a few is no proof)."""
        (n, failed), (m, others) = self.counts[True], self.counts[False]
        p, q = (failed + 1) / (n + 2), (others + 1) / (m + 2)
        error = sqrt(self.spread.factor * (p * (1 - p) / (n + 2) + q * (1 - q) / (m + 2)))
        return p - q + z * error


def log_mean(logs: Sequence[float]) -> float:
    most = max(logs)
    return most + log(sum([exp(one - most) for one in logs]) / len(logs))
