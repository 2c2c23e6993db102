"""Estimates how sure a percentile is: a bootstrap over blocks of time, since consecutive requests are alike.

A burst makes many requests slow at once. Resampling single requests would treat them as independent, and make intervals
far too narrow. So stretches of the run are resampled, as long as its memory lasts (Politis and White's rule, 2004).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headgate.report.results import Floats

RESAMPLES = 1000
MOST_BLOCKS, FEWEST_BLOCKS = 200, 20
MOST_BINS = 2048
BEYOND = 5
"""Values that must lie beyond a percentile for its interval to mean anything: nothing is known beyond the largest."""


@dataclass(frozen=True, slots=True)
class Estimate:
    value: float
    low: float | None = None
    high: float | None = None
    """95 % of resamples lie between; None: there are too few values for an interval."""


def block_count(series: Floats) -> int:
    """Number of equal stretches into which the series can be cut so that each is nearly independent."""
    n = len(series)
    if n <= FEWEST_BLOCKS:
        return n
    _, which, many = np.unique(series, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(many) - many / 2)[which]  # equal values share a rank: they are no trend
    late = (series > np.quantile(series, 0.95)).astype(np.float64)
    length = max(_memory(ranks), _memory(late))
    return int(np.clip(n // max(1.0, length), min(FEWEST_BLOCKS, n), min(MOST_BLOCKS, n)))


def _memory(series: Floats) -> float:
    """The block length that Politis and White (2004, corrected 2009) advise for the series."""
    n = len(series)
    lags = min(n - 1, max(10, math.ceil(math.sqrt(n)) + 5))
    covariance = _autocovariance(series, lags)
    if covariance[0] <= 0:
        return 1.0
    quiet = np.abs(covariance[1:] / covariance[0]) < 2 * math.sqrt(math.log10(n) / n)
    wanted = max(5, math.ceil(math.sqrt(math.log10(n))))
    runs = np.convolve(quiet, np.ones(wanted, np.int64), "valid") == wanted
    cutoff = int(np.argmax(runs)) if runs.any() else lags // 2
    window = max(1, min(2 * cutoff, lags))
    k = np.arange(1, window + 1)
    weight = np.minimum(1.0, 2 * (1 - k / window)) * covariance[1 : window + 1]
    spectrum = covariance[0] + 2 * float(weight.sum())
    slope = 2 * float((k * weight).sum())
    if spectrum <= 0:
        return 1.0
    return float((2 * slope**2 / (4 / 3 * spectrum**2)) ** (1 / 3) * n ** (1 / 3))


def _autocovariance(series: Floats, lags: int) -> Floats:
    centred = series - series.mean()
    size = 1 << (2 * len(series) - 1).bit_length()
    transformed = np.fft.rfft(centred, size)
    found: Floats = np.fft.irfft(np.abs(transformed) ** 2, size)[: lags + 1] / len(series)
    return found


def blocks(n: int, count: int) -> NDArray[np.int64]:
    """The block of each of n values in order."""
    return np.arange(n) * count // max(1, n)


def weights(count: int, rng: np.random.Generator, resamples: int = RESAMPLES) -> NDArray[np.float32]:
    """How often each block is drawn in each resample."""
    drawn = rng.integers(0, count, size=(resamples, count)) + np.arange(resamples)[:, None] * count
    return np.bincount(drawn.ravel(), minlength=resamples * count).reshape(resamples, count).astype(np.float32)


class Resampled:
    """A series that gives quantiles for any weights of its blocks, without sorting again."""

    def __init__(self, values: Floats, block: NDArray[np.int64], count: int) -> None:
        order = np.argsort(values, kind="stable")
        n = len(values)
        ends = _bin_ends(n)
        self._tops = values[order][ends - 1]
        bins = np.searchsorted(ends, np.arange(n), side="right")
        table = np.bincount(block[order] * len(ends) + bins, minlength=count * len(ends))
        self._below = table.reshape(count, len(ends)).cumsum(axis=1).astype(np.float32)

    def quantiles(self, weight: NDArray[np.float32], levels: tuple[float, ...]) -> Floats:
        """One row per resample, one column per level; NaN: only blocks without a value were drawn."""
        below = weight @ self._below
        total = below[:, -1:]
        columns = []
        for level in levels:
            index = (below < level * total - 1e-3).sum(axis=1)
            columns.append(self._tops[np.minimum(index, len(self._tops) - 1)])
        found = np.stack(columns, axis=1)
        found[total[:, 0] == 0] = np.nan  # only blocks without a value were drawn
        return found


def _bin_ends(n: int) -> NDArray[np.int64]:
    """The rank at which each bin ends: every value by itself, or finer bins the nearer to the largest."""
    if n <= MOST_BINS:
        return np.arange(1, n + 1)
    lower = np.linspace(0, n / 2, MOST_BINS // 4)
    upper = n - np.geomspace(n / 2, 1, MOST_BINS * 3 // 4)
    return np.unique(np.concatenate([lower[1:], upper, [n]]).astype(np.int64))


def estimate(values: Floats, levels: tuple[float, ...], rng: np.random.Generator) -> list[Estimate]:
    """Each quantile of a series in order of arrival, with its interval."""
    n = len(values)
    if n == 0:
        return []
    points = np.quantile(values, levels)
    if n < 2 * BEYOND:
        return [Estimate(float(point)) for point in points]
    count = block_count(values)
    drawn = Resampled(values, blocks(n, count), count).quantiles(weights(count, rng), levels)
    low, high = np.nanpercentile(drawn, [2.5, 97.5], axis=0)
    return [
        Estimate(float(point), min(float(low[i]), float(point)), max(float(high[i]), float(point)))
        if n * min(level, 1 - level) >= BEYOND
        else Estimate(float(point))
        for i, (level, point) in enumerate(zip(levels, points, strict=True))
    ]


def share(hits: NDArray[np.bool_], rng: np.random.Generator) -> Estimate:
    """The share of hits, with its interval."""
    n = len(hits)
    if n == 0:
        return Estimate(math.nan)
    value = float(hits.mean())
    if n < 2 * BEYOND:
        return Estimate(value)
    series = hits.astype(np.float64)
    count = block_count(series) if 0 < value < 1 else min(MOST_BLOCKS, n)
    drawn = drawn_shares(series, blocks(n, count), weights(count, rng), count)
    # None of n, or all of n, proves nothing: a rate of three in n would still often go unseen (Wilson).
    low, high = np.percentile(drawn, [2.5, 97.5])
    least, most = _wilson(value, n)
    return Estimate(
        value, min(float(low), value if value < 1 else least), max(float(high), value if value > 0 else most)
    )


def drawn_shares(series: Floats, block: NDArray[np.int64], weight: NDArray[np.float32], count: int) -> Floats:
    hits = np.bincount(block, weights=series, minlength=count)
    sizes = np.bincount(block, minlength=count)
    drawn: Floats = (weight @ hits) / np.maximum(weight @ sizes, 1)
    return drawn


def _wilson(share: float, n: int, z: float = 1.96) -> tuple[float, float]:
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
