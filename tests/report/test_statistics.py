"""How often intervals hold what is true, for distributions whose truth is known."""

from statistics import NormalDist

import numpy as np
import pytest

from headgate.report.statistics import Resampled, block_count, blocks, estimate, share, weights
from tests.report.made import remembering

LEVELS = (0.5, 0.95, 0.99)
TRUE = [float(np.exp(NormalDist().inv_cdf(level))) for level in LEVELS]


def covered(memory: float, n: int, runs: int) -> list[float]:
    rng = np.random.default_rng(5)
    hits = np.zeros(len(LEVELS))
    for _ in range(runs):
        values = rng.lognormal(0, 1, n) if not memory else remembering(rng, n, memory)
        for index, found in enumerate(estimate(values, LEVELS, rng)):
            assert found.low is not None
            assert found.high is not None
            assert found.low <= found.value <= found.high
            hits[index] += found.low <= TRUE[index] <= found.high
    return list(hits / runs)


def test_intervals_of_independent_values_hold_the_truth_19_times_of_20() -> None:
    assert all(0.88 <= found <= 1.0 for found in covered(0.0, 2000, 80))


def test_intervals_of_values_that_remember_hold_it_nearly_as_often() -> None:
    """Drawing single values anew instead of stretches, the median's held it less than half of the time."""
    median, *_ = covered(0.9, 2000, 40)
    assert median >= 0.75


def test_blocks_are_as_long_as_the_memory() -> None:
    rng = np.random.default_rng(1)
    assert block_count(rng.lognormal(0, 1, 4000)) == 200
    assert block_count(remembering(rng, 4000, 0.95)) < 100
    assert block_count(np.ones(4000)) == 200
    assert block_count(np.arange(15.0)) == 15


def test_resampled_quantiles_are_those_of_the_values_drawn() -> None:
    rng = np.random.default_rng(2)
    values = rng.lognormal(0, 1, 5000)
    block = blocks(5000, 50)
    weight = weights(50, rng, 20)
    assert weight.sum(axis=1).tolist() == [50.0] * 20
    found = Resampled(values, block, 50).quantiles(weight, LEVELS)
    for row, times in zip(found, weight, strict=True):
        drawn = np.repeat(values, times.astype(int)[block])
        assert row == pytest.approx(np.quantile(drawn, LEVELS, method="inverted_cdf"), rel=0.02)


def test_a_percentile_with_next_to_nothing_beyond_it_has_no_interval() -> None:
    values = np.random.default_rng(1).lognormal(0, 1, 200)
    median, p95, p99 = estimate(values, LEVELS, np.random.default_rng(0))
    assert median.low is not None
    assert p95.low is not None
    assert p99.low is None
    assert p99.high is None
    assert [found.low for found in estimate(values[:7], LEVELS, np.random.default_rng(0))] == [None] * 3
    assert estimate(values[:0], LEVELS, np.random.default_rng(0)) == []


def test_shares() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(100):
        found = share(rng.random(1000) < 0.9, rng)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.9 <= found.high
    assert 88 <= hits <= 100
    nobody = share(np.zeros(1000, np.bool_), rng)
    assert (nobody.value, nobody.low) == (0.0, 0.0)
    assert nobody.high == pytest.approx(0.0038, abs=0.0005), "not seen is not impossible"
    everybody = share(np.ones(1000, np.bool_), rng)
    assert (everybody.value, everybody.high) == (1.0, 1.0)
    assert everybody.low == pytest.approx(0.9962, abs=0.0005)


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(1).lognormal(0, 1, 500)
    once, again = (estimate(values, LEVELS, np.random.default_rng(9)) for _ in range(2))
    assert once == again
