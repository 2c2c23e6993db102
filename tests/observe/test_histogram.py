import math
import random
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

import pytest

from headgate.measure.edges import MOST_EDGES, edges
from headgate.measure.windows import E2E, QUEUE, TPOT, TTFT
from headgate.metrics.histogram import Histogram
from headgate.model.lane import LANES, Lane
from headgate.model.quantile import GRID


def test_edges_are_those_of_the_conventions_and_around_every_promise() -> None:
    ttft, tpot, e2e, queue, gap, answer = (of.values for of in edges(LANES.values()))
    conventions = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
    assert conventions <= set(ttft)
    assert {0.4, 0.45, 0.5, 0.55, 0.625, 1.6, 1.8, 2.0, 2.2, 2.5, 300.0, 375.0} <= set(ttft)
    assert {0.01, 2.5, 0.064, 0.072, 0.08, 0.088, 0.1} <= set(tpot)
    assert {0.01, 2.5, 0.16, 0.18, 0.2, 0.22, 0.25, 0.4, 2.0} <= set(gap)
    assert {0.01, 0.02, 81.92, 4.0, 4.5, 5.0, 5.5, 6.25, 24.0, 27.0, 30.0, 33.0, 37.5} <= set(e2e)
    assert {0.32, 0.36, 0.4, 0.44, 0.5} <= set(queue)
    assert {0.01, 2.5, 0.16, 0.18, 0.2, 0.22, 0.25, 0.4, 2.0} <= set(answer)
    for of in (ttft, tpot, e2e, queue, gap, answer):
        assert list(of) == sorted(set(of))


def test_many_lanes_have_an_edge_at_their_bounds_and_no_more_than_fit() -> None:
    rng = random.Random(4)
    lanes = [replace(LANES["fast"], ttft_target_s=round(rng.uniform(0.1, 50), 3)) for _ in range(40)]
    ttft = edges(lanes)[TTFT].values
    assert len(ttft) <= MOST_EDGES
    assert {lane.ttft_target_s for lane in lanes} <= set(ttft)
    assert all(len(of.values) <= MOST_EDGES for of in edges(lanes * 10))


def near(edge: float) -> Iterator[float]:
    yield edge
    yield math.nextafter(edge, 0)
    yield math.nextafter(edge, math.inf)
    for share in (0.985, 0.995, 0.9999, 1.0001, 1.005, 1.015):
        yield edge * share


@pytest.mark.parametrize("figure", [TTFT, TPOT, E2E, QUEUE])
def test_a_histogram_counts_exactly_also_close_to_its_edges(figure: int) -> None:
    rng = random.Random(5)
    odd = Lane(
        name="odd", priority=0, ttft_target_s=86_000, gap_target_s=2e-6, wait_bound_s=5e-7, weight=1, e2e_p99_s=80_000
    )  # fmt: skip
    of = edges([*LANES.values(), odd])[figure]
    values = [value for edge in of.values for value in near(edge)]
    values += [0.0, 1e-7, 1e-6, 86_400.0, 90_000.0, 1e6] + [rng.lognormvariate(-1, 2) for _ in range(5000)]
    histogram, expected = Histogram(of), [0] * (len(of.values) + 1)
    for value in values:
        histogram.see(value, GRID.index(value))
        histogram.count(GRID.index(value), 1)
        expected[bisect_left(of.values, value)] += 1
    assert histogram.numbers == expected
    assert histogram.sum == pytest.approx(sum(values))
    assert sum(place == -1 for place in of.places) <= 3 * len(of.values)
