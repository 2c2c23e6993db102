"""Compares the slow requests of two versions. The evidence grows with every block of requests and may be read at any
time.

Requests of both versions are taken in blocks, in the order in which they ended, so that an event that hits both at once
(a burst, an hour of the day) hits both alike. Each block counts the requests that took longer than, say, 99 % did
before: if the versions are alike, the canary's part of them equals its share of the block, whatever the distribution
(Mood's quantile test, block by block). To test "more than r times as slow" the canary's times are divided by r first.

Two kinds of evidence come from the same counts:

    Harm   that the canary has too many: a likelihood ratio against "no more than its share", which grows only if that
           is wrong. However often it is read, it passes 1/α by chance in at most α of the cases (Ville 1939): a canary
           may be watched for days, and rolled back as soon as the evidence suffices.
    Fine   that the canary has too few to be r times as slow: a sum that must pass a line which a sum without drift
           passes in at most α of the cases before a given end (the reflection principle). It needs that end, but half
           the requests: right for promotion, which has a limit.

Slow requests come in clumps: one stall delays everything at a replica. So the variance is measured from block to block,
and where it exceeds chance, both kinds of evidence count for less.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import ceil, exp, log, nextafter, sqrt
from typing import Final

from headgate.model.quantile import GRID, Sketch

BLOCK: Final = 400
"""Requests in a block: enough for most clumps to lie within one."""
MOST: Final = 1.5
"""Multiple of the usual number of slow requests that counts in one block, at most."""
TILTS: Final = (1.3, 1.8, 3.0, 8.0)
"""Multiples of its share that the canary may have of the slow requests: the evidence bets on each equally."""
_LOGS: Final = tuple(log(tilt) for tilt in TILTS)
AROUND: Final = (0.5, 1.0, 2.0)
"""Tail sizes considered beside the one asked for, relative to it."""
SETTLED: Final = 5.0
"""Variance that must have been seen before a measured excess counts by half."""


class BlockVariance:
    """The ratio of the variance from block to block to that of independent draws, at least 1."""

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
    """Evidence that the canary has more than its share of the slow requests."""

    __slots__ = ("_bets", "_spread")

    def __init__(self) -> None:
        self._bets = [0.0] * len(TILTS)
        self._spread = BlockVariance()

    def take(self, hers: float, of: float, share: float, variance: float) -> None:
        """Adds a block: `of` requests were slow, `hers` of them the canary's, which had `share` of all requests."""
        weight = 1.0 / self._spread.factor  # from the blocks before: a bet is placed before the draw
        for index, tilt in enumerate(TILTS):
            self._bets[index] += weight * (hers * _LOGS[index] - of * log(1.0 + share * (tilt - 1.0)))
        self._spread.take(hers - of * share, variance)

    @property
    def log_evidence(self) -> float:
        """The logarithm of the likelihood ratio between "the canary is worse" and "it is not"."""
        return log_mean(self._bets)


class Fine:
    """Evidence that the canary has less than its share of the slow requests."""

    __slots__ = ("_spread",)

    def __init__(self) -> None:
        self._spread = BlockVariance()

    def take(self, score: float, variance: float) -> None:
        self._spread.take(score, variance)

    def z(self, part: float) -> float:
        """The sum in standard deviations of its value at the end, where `part` of all requests have been seen. Without
        drift the sum passes z at some time in twice as many cases as it ends beyond z."""
        spread = self._spread
        return -spread.scores * sqrt(min(1.0, part) / (spread.variance * spread.factor)) if spread.variance else 0.0


class Contest:
    """One figure of both versions, compared at several percentiles."""

    def __init__(
        self,
        percentiles: Sequence[int],
        acceptable: float,
        unacceptable: float | None,
        *,
        floor: float = 0.0,
        block: int = BLOCK,
    ) -> None:
        """`unacceptable`: None: only harm is looked for. `floor`: durations below it make no difference to a client."""
        self.harms = {percentile: Harm() for percentile in percentiles}
        self.fines = {percentile: Fine() for percentile in percentiles} if unacceptable is not None else {}
        self.exposure = 0.0
        """Requests compared, as the equivalent number of pairs of one each."""
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
        """The version's durations in all closed blocks, for people."""
        return Sketch.of(dict(self._buckets[canary]))

    def take(self, canary: bool, value: float) -> bool:
        """Adds a duration. Returns whether a block was completed and compared, so that the evidence changed."""
        (self._canary if canary else self._baseline).append(value)
        self._count += 1
        return self._count >= self._block and self.close()

    def close(self) -> bool:
        """Ends the block, because it is full or the canary's share changes. Returns whether it was compared."""
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
                    # The whole tail is below what a client notices: it suffices that the canary is hardly ever slower
                    # than the floor.
                    n = len(scaled)
                    fine.take(lines.known[part].beyond(scaled) - n * part, n * part * (1.0 - part))
        lines.learn(merged)


class SlowThreshold:
    """The threshold above which a request is slow. Values between `below` and `above` are practically equal: `part` of
    them counts."""

    __slots__ = ("above", "below", "part")

    def __init__(self, below: float, above: float, part: float) -> None:
        self.below = below
        self.above = above
        self.part = part

    def beyond(self, values: list[float]) -> float:
        """The number of these sorted values that lie beyond the threshold."""
        above = bisect_right(values, self.above)
        return len(values) - above + self.part * (above - bisect_right(values, self.below))


class Lines:
    """The percentiles of both versions together, with the canary's times divided by `ratio`: if the canary is exactly
    that much slower, they are also each version's own percentiles."""

    def __init__(self, parts: Sequence[float], ratio: float, floor: float) -> None:
        """`parts`: shares of all requests that lie beyond the thresholds."""
        self.known: dict[float, SlowThreshold] = {}
        """The thresholds by tail share, from all blocks before."""
        self._parts = parts
        self._ratio = ratio
        self._floor = floor
        self._buckets: dict[int, int] = {}

    def side_by_side(self, canary: list[float], baseline: list[float]) -> tuple[list[float], list[float]]:
        """The canary's times, divided by the ratio, and all times; both sorted."""
        scaled = [value / self._ratio for value in canary]
        return scaled, sorted(scaled + baseline)  # two sorted runs, which sorted() merges

    def at(self, part: float, merged: list[float]) -> SlowThreshold:
        """The threshold for this block. Where the block has too many slow requests, only the slowest count: a burst is
        one event."""
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
    """The number by which the canary's slow requests exceed its share, and the variance of that number by chance. The
    thresholds a little further in and out count too, each weighted by how few requests it leaves: where both versions
    have the same tail, all three agree, and together have less noise."""
    total, share = len(merged), len(scaled) / len(merged)
    weights = [1 / (len(AROUND) * factor) for factor in AROUND]
    of = [line.beyond(merged) for line in lines]
    score = sum([w * (line.beyond(scaled) - n * share) for w, line, n in zip(weights, lines, of, strict=True)])
    whole = sum([w * n for w, n in zip(weights, of, strict=True)])
    both = zip(weights, of, strict=True)
    squares = sum([w * v * min(n, m) for w, n in both for v, m in zip(weights, of, strict=True)])  # tails are nested
    return score, share * (1.0 - share) * (squares - whole * whole / total) * total / (total - 1)


def count(buckets: dict[int, int], values: list[float]) -> None:
    for bucket in map(GRID.index, values):
        buckets[bucket] = buckets.get(bucket, 0) + 1


def _variance(of: float, total: int, share: float) -> float:
    """Variance of the canary's count, if `of` requests are drawn at random from all."""
    return of * share * (1.0 - share) * (total - of) / (total - 1)


class Failures:
    """Evidence about failures: every failure counts."""

    def __init__(self, acceptable: float, block: int) -> None:
        self.harm = Harm()
        self.spread = BlockVariance()
        self.counts = {True: [0, 0], False: [0, 0]}
        """Requests and failed requests, by canary (True) and baseline (False)."""
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
        # The canary's requests may fail `acceptable` times as often as the others, which is a larger share of the
        # failures.
        share = self._acceptable * requests / (self._acceptable * requests + others)
        of, total = failed + others_failed, requests + others
        plain = requests / total
        variance = of * plain * (1 - plain) * (total - of) / max(1, total - 1)
        self.harm.take(failed, of, share, variance)
        self.spread.take(failed - of * plain, variance)
        return True

    def worst_difference(self, z: float) -> float:
        """Upper bound on the canary's extra failure rate (Agresti and Caffo's interval: one failure and one success are
        added to each version, so that no failure in a few requests is no proof)."""
        (n, failed), (m, others) = self.counts[True], self.counts[False]
        p, q = (failed + 1) / (n + 2), (others + 1) / (m + 2)
        error = sqrt(self.spread.factor * (p * (1 - p) / (n + 2) + q * (1 - q) / (m + 2)))
        return p - q + z * error


def log_mean(logs: Sequence[float]) -> float:
    most = max(logs)
    return most + log(sum([exp(one - most) for one in logs]) / len(logs))
