from bisect import bisect_left
from itertools import pairwise

import pytest

from headgate.measure.timeline import BANDS, SLICE_S
from headgate.model.outcome import Outcome
from tests.observe.records import T0, figures, record


def test_the_timeline_has_ten_minutes_in_slices_of_ten_seconds() -> None:
    given = figures()
    now = T0
    while now < T0 + 900:
        now += 0.5
        slow = T0 + 700 <= now < T0 + 760
        given.take([record(ttft_s=2.0 if slow else 0.2, e2e_s=3.0, queue_s=0.01, tpot_s=0.02)], now)
        given.take([record(outcome=Outcome.LANE_FULL), record(outcome=Outcome.REPLICA_FAILED)], now)
    slices = given.timeline("fast", now)
    assert len(slices) == 60
    assert all(later.at - earlier.at == pytest.approx(SLICE_S) for earlier, later in pairwise(slices))
    assert slices[-1].at <= now < slices[-1].at + SLICE_S
    for one in slices[:-1]:
        assert (one.requests, one.failed, one.refused) == (60, 20, 20)
        assert one.e2e[2] == pytest.approx(3.0, rel=0.01)
        assert one.tpot[0] == pytest.approx(0.02, rel=0.01)
        assert one.queue[1] == pytest.approx(0.01, rel=0.01)
        assert sum(one.heat) == 20
        assert one.heat_e2e[bisect_left(BANDS, 3.0)] == 20
    slow_ones = [one.at for one in slices if one.ttft[0] == pytest.approx(2.0, rel=0.01)]
    assert 5 <= len(slow_ones) <= 6
    assert T0 + 694 < slow_ones[0] < T0 + 706
    assert given.timeline("never", now) == []


def test_a_slice_in_which_nothing_happened_says_so() -> None:
    given = figures()
    (only,) = given.timeline("fast", T0)
    assert (only.requests, only.ttft, sum(only.heat)) == (0, (None, None, None), 0)
    given.take([record(ttft_s=0.2)], T0 + 0.1)
    assert given.timeline("fast", T0 + 0.1)[-1].requests == 1
    assert given.timeline("fast", T0 + 50)[-1].requests == 0
    assert sum(one.requests for one in given.timeline("fast", T0 + 50)) == 1


@pytest.mark.parametrize(("name", "most", "step_s"), [("1h", 60, 60.0), ("24h", 96, 900.0)])
def test_an_hour_and_a_day_are_kept_in_longer_slices(name: str, most: int, step_s: float) -> None:
    given = figures()
    now = T0
    while now < T0 + 1.2 * most * step_s:
        now += 5.0
        slow = T0 + 50 * step_s <= now < T0 + 52 * step_s
        given.take([record(ttft_s=2.0 if slow else 0.2), record(outcome=Outcome.REPLICA_FAILED)], now)
    slices = given.timeline("fast", now, name)
    assert len(slices) == most
    assert all(later.at - earlier.at == pytest.approx(step_s) for earlier, later in pairwise(slices))
    assert slices[-1].at <= now < slices[-1].at + step_s
    for one in slices[:-1]:
        assert one.requests == pytest.approx(2 * step_s / 5)
        assert one.failed == sum(one.heat) == one.requests / 2
    assert sum(one.requests for one in slices) == pytest.approx(2 * (now - slices[0].at) / 5, abs=4)
    slow_ones = [one for one in slices if one.ttft[2] == pytest.approx(2.0, rel=0.01)]
    assert 2 <= len(slow_ones) <= 3
    assert T0 + 49 * step_s < slow_ones[0].at < T0 + 51 * step_s


def test_after_more_than_an_hour_of_silence_no_slice_tells_of_the_time_before() -> None:
    given = figures()
    given.take([record(ttft_s=0.2)], T0 + 1)
    given.take([record(ttft_s=0.2)], T0 + 8000)
    assert sum(one.requests for one in given.timeline("fast", T0 + 8000, "24h")) == 1
