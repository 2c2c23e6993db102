import math
import random
from bisect import bisect_right
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.quantile import FINEST, GRID, LEAST_S, MOST_S, ZERO, Grid, Sketch

QS = (0.0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
seconds = st.floats(min_value=0.0, max_value=200_000.0, allow_nan=False)
"""Zeros, and longer than a day too."""


def lognormal(rng: random.Random) -> float:
    return rng.lognormvariate(-1.0, 1.2)


def bimodal(rng: random.Random) -> float:
    return rng.gauss(0.05, 0.003) if rng.random() < 0.97 else rng.gauss(4.0, 0.5)


def constant(rng: random.Random) -> float:
    return 0.25


def wide(rng: random.Random) -> float:
    return float(10 ** rng.uniform(-6, 4.9))


KINDS = (lognormal, bimodal, constant, wide)


def facts(sketch: Sketch) -> tuple[object, ...]:
    return dict(sketch.buckets), sketch.count, sketch.sum, sketch.min, sketch.max


def data(kind: Any, count: int = 20_000) -> list[float]:
    rng = random.Random(7)
    return [kind(rng) for _ in range(count)]


def of(values: list[float], error: float = 0.005) -> Sketch:
    sketch = Sketch(error)
    for value in values:
        sketch.add(value)
    return sketch


def exact(ordered: list[float], q: float) -> float:
    return ordered[math.floor(q * (len(ordered) - 1))]


# -- truth --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_quantiles_are_within_their_error_of_the_exact_ones(kind: Any) -> None:
    values = data(kind)
    sketch, ordered = of(values), sorted(values)
    for q in QS:
        got = sketch.quantile(q)
        assert got is not None
        assert abs(got - exact(ordered, q)) <= 0.00501 * exact(ordered, q), q


@pytest.mark.parametrize("kind", KINDS)
def test_quantiles_agree_with_another_sketch(kind: Any) -> None:
    ddsketch = pytest.importorskip("ddsketch", reason="the second oracle is not installed: pip install ddsketch")
    values = data(kind)
    sketch, other = of(values), ddsketch.DDSketch(relative_accuracy=0.005)
    for value in values:
        other.add(value)
    for q in QS[1:-1]:
        got, expected = sketch.quantile(q), other.get_quantile_value(q)
        assert got is not None
        assert abs(got - expected) <= 0.0101 * expected, q
    assert sketch.count == other.count
    assert sketch.sum == pytest.approx(other.sum)


@given(st.lists(seconds, min_size=1), st.floats(min_value=0, max_value=1))
def test_any_quantile_of_any_durations(values: list[float], q: float) -> None:
    got = of(values).quantile(q)
    assert got is not None
    wanted = exact(sorted(values), q)
    if wanted <= MOST_S:
        assert abs(got - wanted) <= max(0.00501 * wanted, LEAST_S)
    else:
        assert MOST_S * 0.99 <= got <= wanted


@given(st.lists(seconds, min_size=1), seconds)
def test_the_share_within_a_bound_is_that_of_a_bound_at_most_one_bucket_away(values: list[float], bound: float) -> None:
    share = of(values).share(bound)
    assert share is not None
    ordered, reach = sorted(values), max(bound * 1.0101, LEAST_S) if bound * 1.0101 < MOST_S else math.inf
    assert bisect_right(ordered, bound) <= share * len(values) + 1e-6 <= bisect_right(ordered, reach) + 2e-6


def test_the_extremes_and_the_sum_are_exact() -> None:
    values = data(lognormal, 100)
    sketch = of(values)
    assert (sketch.min, sketch.max, sketch.count) == (min(values), max(values), 100)
    assert sketch.sum == pytest.approx(sum(values))
    assert sketch.mean == pytest.approx(sum(values) / 100)
    assert sketch.quantile(0.0) == pytest.approx(min(values), rel=0.01)
    assert sketch.quantile(1.0) == pytest.approx(max(values), rel=0.01)


def test_nothing_added_means_no_answer() -> None:
    sketch = Sketch()
    assert sketch.quantile(0.5) is None
    assert sketch.quantiles((0.5, 0.9)) == [None, None]
    assert sketch.share(1.0) is None
    assert sketch.mean is None


def test_several_quantiles_at_once_are_those_asked_for_one_by_one() -> None:
    sketch = of(data(bimodal, 999))
    assert sketch.quantiles(QS) == [sketch.quantile(q) for q in QS]
    assert sketch.quantiles(QS[::-1]) == sketch.quantiles(QS)[::-1]


def test_a_count_is_as_good_as_adding_that_often() -> None:
    once, often = Sketch(), of([0.5, 0.5, 0.5, 2.0])
    once.add(0.5, 3)
    once.add(2.0)
    assert facts(once) == facts(often)


def test_what_is_not_positive_is_in_the_bucket_of_zero() -> None:
    sketch = of([0.0, -1.0, 1e-9, 5.0])
    assert sketch.buckets[ZERO] == 3
    assert sketch.quantile(0.5) == 0.0
    assert sketch.quantile(1.0) == pytest.approx(5.0, rel=0.005)


def test_buckets_are_bounded_whatever_comes() -> None:
    rng = random.Random(3)
    for error in (0.005, FINEST):
        sketch = of([10 ** rng.uniform(-12, 12) for _ in range(100_000)], error)
        assert len(sketch.buckets) <= 4096
        assert sketch.grid.size <= 4096


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_duration_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Sketch().add(value)


def test_bad_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="once or more"):
        Sketch().add(1.0, 0)
    with pytest.raises(ValueError, match="from 0 to 1"):
        Sketch().quantile(1.5)
    with pytest.raises(ValueError, match=r"0\.0031"):
        Grid(0.0001)


def test_no_bucket_holds_what_its_neighbours_do() -> None:
    for index in range(1, GRID.size - 1):
        last = GRID.upto(index)
        assert GRID.index(last * (1 - 1e-9)) == index
        assert GRID.index(last * (1 + 1e-9)) == min(index + 1, GRID.size - 1)
        assert last / GRID.growth < GRID.values[index] < last


# -- adding up ----------------------------------------------------------------------------------------------


@given(st.lists(seconds), st.lists(seconds), st.lists(seconds))
def test_merging_in_any_order_is_adding_everything(a: list[float], b: list[float], c: list[float]) -> None:
    left, right = of(a), of(b)
    left.merge(of(b))
    left.merge(of(c))
    right.merge(of(c))
    whole = of(a)
    whole.merge(right)
    everything = of(a + b + c)
    for merged in (left, whole):
        assert merged.buckets == everything.buckets
        assert (merged.count, merged.min, merged.max) == (everything.count, everything.min, everything.max)
        assert merged.sum == pytest.approx(everything.sum)


def test_merging_changes_only_the_one_it_is_merged_into() -> None:
    left, right = of([1.0]), of([1.0, 2.0])
    left.merge(right)
    left.add(1.0)
    assert facts(right) == facts(of([1.0, 2.0]))


def test_sketches_of_different_error_are_not_added_up() -> None:
    with pytest.raises(ValueError, match=r"0\.01"):
        Sketch().merge(Sketch(0.01))


def test_a_copy_goes_its_own_way() -> None:
    sketch = of([1.0, 2.0], 0.01)
    copy = sketch.copy()
    copy.add(3.0)
    assert (sketch.count, copy.count) == (2, 3)
    assert copy.grid.error == 0.01


def test_a_sketch_of_counted_buckets_answers_as_the_original() -> None:
    sketch = of(data(lognormal, 500))
    again = Sketch.of(dict(sketch.buckets))
    assert again.count == sketch.count
    assert again.sum == pytest.approx(sketch.sum, rel=0.005)
    for q in QS:
        assert again.quantile(q) == pytest.approx(sketch.quantile(q), rel=0.0051)
    assert Sketch.of({}).quantile(0.5) is None
    assert Sketch.of({}).sum == 0.0


def test_a_sketch_of_counted_buckets_can_be_added_to() -> None:
    sketch = Sketch.of(dict(of([1.0]).buckets))
    whole = of([2.0])
    whole.merge(sketch)
    sketch.add(2.0)
    assert sketch.sum == pytest.approx(3.0, rel=0.005)
    assert whole.sum == pytest.approx(3.0, rel=0.005)
    assert sketch.quantile(1.0) == pytest.approx(2.0, rel=0.005)
    assert whole.quantile(0.0) == pytest.approx(1.0, rel=0.005)


def test_those_that_never_came_back_are_beyond_every_bound() -> None:
    sketch = Sketch()
    for _ in range(60):
        sketch.add(0.1)
    assert sketch.quantiles((0.5, 0.95), 40) == [pytest.approx(0.1, rel=0.01), inf]
    assert sketch.quantiles((0.5,), 80) == [inf]
    assert sketch.share(0.2, 40) == pytest.approx(0.6)
    assert Sketch().quantiles((0.5,), 3) == [inf]
    assert Sketch().share(1.0, 3) == 0.0


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=50), st.integers(1, 50), st.floats(0, 1))
def test_with_some_beyond_it_is_the_quantile_of_all_with_those_last(values: list[float], more: int, q: float) -> None:
    some, everything = Sketch(), Sketch()
    for value in values:
        some.add(value)
        everything.add(value)
    everything.add(86_000.0, more)
    (found,), (expected,) = some.quantiles((q,), more), everything.quantiles((q,))
    assert found == (inf if expected == pytest.approx(86_000.0, rel=0.01) else pytest.approx(expected, rel=0.01))
