import random

import pytest

from headgate.measure.figures import Figures
from headgate.measure.little import LITTLE_S, Law
from headgate.model.outcome import Outcome
from tests.observe.records import T0, figures, record


def queueing(given: Figures, seconds: int, rate: float, refused: float = 0.0) -> float:
    """Requests that come at random and stay for a random time, as figures see them; the time at the end."""
    rng = random.Random(6)
    arrivals, now = [], T0
    while (now := now + rng.expovariate(rate)) < T0 + seconds:
        arrivals.append((now, now + rng.expovariate(0.5)))
    leaving, place, here, tick = sorted(arrivals, key=lambda passage: passage[1]), 0, 0, T0
    coming = 0
    while tick < T0 + seconds:
        tick += 0.25
        records = []
        while place < len(leaving) and leaving[place][1] <= tick:
            came, left = leaving[place]
            records.append(record(at=came, e2e_s=left - came))
            place += 1
        while coming < len(arrivals) and arrivals[coming][0] <= tick:
            coming += 1
        here = coming - place
        records += [record(outcome=Outcome.WOULD_WAIT_TOO_LONG, e2e_s=0.0) for _ in range(int(refused))]
        given.take(records, tick)
        given.sample("fast", here, tick)
    return tick


@pytest.mark.parametrize("refused", [0.0, 20.0])
def test_littles_law_holds_for_what_is_counted_apart(refused: float) -> None:
    given = figures()
    queueing(given, 400, rate=10.0, refused=refused)
    little = given.little("fast")
    assert little is not None
    assert little.lambda_ == pytest.approx(10, rel=0.1)
    assert little.w == pytest.approx(2.0, rel=0.1)
    assert little.l == pytest.approx(20, rel=0.1)
    assert abs(little.residual) < 0.05


def test_a_counter_that_is_wrong_shows_as_a_residual() -> None:
    law = Law()
    for tick in range(2400):
        law.left += 2
        law.stayed_s += 2 * 1.5
        law.sample(16, T0 + tick / 4)  # but 8 a second for 1.5 s are 12
    little = law.read()
    assert little is not None
    assert little.residual == pytest.approx(0.25, abs=0.01)


def test_littles_law_looks_no_further_back_than_it_says() -> None:
    law = Law()
    for tick in range(int(2 * LITTLE_S)):
        busy = tick > LITTLE_S * 0.9
        law.left += busy
        law.stayed_s += 3.0 * busy
        law.sample(3 * busy, T0 + tick)
    little = law.read()
    assert little is not None
    assert little.l == pytest.approx(3.0, rel=0.02)
    assert little.lambda_ == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("leaving", [1, 4, 12])
def test_arrivals_are_counted_also_while_more_come_than_go_and_while_a_backlog_is_worked_off(leaving: int) -> None:
    """Eight come each second, and as many go as are let: what is still open has come too, and what was open before did
    not come now."""
    law, here = Law(), 1500 if leaving > 8 else 0
    for second in range(int(LITTLE_S)):
        law.sample(here, T0 + second)
        law.left += leaving
        law.stayed_s += leaving * 2.0
        here += 8 - leaving
    little = law.read()
    assert little is not None
    assert little.lambda_ == pytest.approx(8.0, rel=0.01)


def test_an_empty_lane_has_no_law() -> None:
    given = figures()
    assert given.little("fast") is None
    given.sample("fast", 0, T0)
    given.sample("fast", 0, T0 + 1)
    given.sample("never", 0, T0 + 1)
    assert given.little("fast") is None
    assert given.little("never") is None
