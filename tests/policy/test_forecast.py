"""What is expected of a time of day and week, learned as it went by."""

import json
from math import sin, tau

import pytest

from headgate.policy.scaling.forecast import SLOT_S, WEEK_SLOTS, Forecast, _weighted, clock
from headgate.policy.scaling.pace import ENOUGH_S, Pace

DAY = 86_400.0
MONDAY = 4 * DAY  # 1970-01-05


def office(wall: float) -> float:
    """Busy from nine to five on working days."""
    day, time = int(wall // DAY), wall % DAY
    return 1000.0 if (day + 3) % 7 < 5 and 9 * 3600 <= time < 17 * 3600 else 100.0


def taught(days: int, demand: object = office, begin: float = MONDAY, quantile: float = 0.5) -> Forecast:
    forecast = Forecast(quantile)
    assert callable(demand)
    for step in range(int(days * DAY / 60)):
        wall = begin + 60.0 * step
        forecast.observe(wall, demand(wall - 60))  # since it was last told
    return forecast


def test_nothing_is_known_at_first_and_it_says_so() -> None:
    forecast = Forecast()
    assert forecast.expect(MONDAY, MONDAY + 600) is None
    assert forecast.floor(MONDAY, MONDAY + 600) == 0.0


def test_one_day_of_history_already_says_something_and_how_little_it_is() -> None:
    forecast = taught(1)
    expected = forecast.expect(MONDAY + DAY + 8 * 3600, MONDAY + DAY + 9 * 3600 + 60)
    assert expected is not None
    assert expected.demand == pytest.approx(1000, rel=0.05)
    assert expected.days == 1
    assert "1 day is known" in str(expected)
    assert "Tue 09:00 UTC" in str(expected)


def test_the_peak_is_seen_only_as_far_ahead_as_is_asked() -> None:
    forecast = taught(14)
    monday = MONDAY + 14 * DAY
    assert forecast.floor(monday + 8.5 * 3600, monday + 8.9 * 3600) == pytest.approx(100, rel=0.1)
    assert forecast.floor(monday + 8.9 * 3600, monday + 9.1 * 3600) == pytest.approx(1000, rel=0.1)


def test_a_weekend_is_not_taken_for_a_working_day_once_one_was_seen() -> None:
    forecast = taught(14)
    saturday = MONDAY + 14 * DAY + 5 * DAY + 10 * 3600
    monday = MONDAY + 14 * DAY + 10 * 3600
    assert forecast.floor(monday, monday) == pytest.approx(1000, rel=0.1)
    assert forecast.floor(saturday, saturday) == pytest.approx(100, rel=0.1)


def test_one_odd_day_moves_little() -> None:
    def odd(wall: float) -> float:
        return 50_000.0 if int((wall - MONDAY) // DAY) == 9 else 0.0 if int((wall - MONDAY) // DAY) == 8 else 500.0

    forecast = taught(15, odd)
    noon = MONDAY + 15 * DAY + 12 * 3600
    assert forecast.floor(noon, noon) == pytest.approx(500, rel=0.1)


def test_a_day_that_is_busier_than_usual_lifts_what_is_expected_of_the_rest_of_it() -> None:
    forecast = taught(7, lambda wall: 400.0)
    before = forecast.floor(MONDAY + 7 * DAY, MONDAY + 7 * DAY)
    for step in range(180):
        forecast.observe(MONDAY + 7 * DAY + 60.0 * step, 520.0)
    later = MONDAY + 7 * DAY + 4 * 3600
    assert before == pytest.approx(400)
    assert 440 < forecast.floor(later, later) <= 400 * 1.5


def test_a_pause_in_watching_is_not_taken_for_a_pause_in_demand() -> None:
    forecast = Forecast()
    for step in range(600):
        if not 100 <= step < 460:  # from 01:40 to 07:40 nobody watched
            forecast.observe(MONDAY + 60.0 * step, 300.0)
    assert forecast.expect(MONDAY + DAY + 3600, MONDAY + DAY + 3600) is not None
    assert forecast.expect(MONDAY + DAY + 4 * 3600, MONDAY + DAY + 4 * 3600) is None
    assert forecast.floor(MONDAY + DAY + 9 * 3600, MONDAY + DAY + 9 * 3600) == pytest.approx(300)


def test_a_slot_watched_only_for_a_moment_does_not_count() -> None:
    forecast = Forecast()
    for second in (0, 60, 120):
        forecast.observe(MONDAY + second, 900.0)
    forecast.observe(MONDAY + 3600, 100.0)
    assert forecast.slots == 0


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -1.0])
def test_odd_numbers_and_a_clock_that_is_set_back_teach_nothing(odd: float) -> None:
    forecast = taught(1)
    forecast.observe(MONDAY + DAY, 100.0)
    known = forecast.slots
    forecast.observe(MONDAY + DAY + 60, odd)
    forecast.observe(odd, 100.0)
    forecast.observe(MONDAY + DAY + 300, 100.0)
    forecast.observe(MONDAY + DAY + 200, 100.0)
    assert forecast.slots == known
    assert forecast.floor(MONDAY - DAY, MONDAY - DAY) == 0.0  # what was seen later is not known earlier


def test_a_day_says_nothing_of_itself() -> None:
    """The clock was set back by an hour, to a time that was watched before."""
    forecast = taught(1)
    assert forecast.expect(MONDAY + 10 * 3600, MONDAY + 10 * 3600) is None
    assert forecast.expect(MONDAY + DAY + 10 * 3600, MONDAY + DAY + 10 * 3600) is not None


def test_what_was_learned_survives_a_restart_even_in_the_middle_of_a_slot() -> None:
    forecast = taught(8)
    forecast.pace.observe(650.0, 1.0, 1.0, 1000.0)
    kept = json.loads(json.dumps(forecast.to_dict()))
    again = Forecast.from_dict(kept)
    for step in range(600):
        wall = MONDAY + 8 * DAY + 60.0 * step
        forecast.observe(wall, 200.0)
        again.observe(wall, 200.0)
    for hour in range(72):
        wall = MONDAY + 9 * DAY + hour * 3600.0
        assert again.floor(wall, wall) == pytest.approx(forecast.floor(wall, wall), rel=1e-3)
    assert again.pace.tokens_per_s == 650.0
    assert again.pace.known


def test_it_stays_small_however_long_it_learns() -> None:
    def wave(wall: float) -> float:
        return 12_345.678 * (2 + sin(tau * wall / DAY))

    forecast = Forecast()
    for slot in range(12 * WEEK_SLOTS):
        for part in (0.0, 300.0, 599.0):
            forecast.observe(MONDAY + slot * SLOT_S + part, wave(MONDAY + slot * SLOT_S))
    assert forecast.slots == WEEK_SLOTS
    assert len(json.dumps(forecast.to_dict())) < 150_000


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"version": 99},
        {"version": 1, "slot_s": 3600},
        {"version": 1, "slot_s": 600},
        {"version": 1, "slot_s": 600, "level": 0, "pace": [1, 2], "under_way": [0, 0, 0, 0], "seen": {"9999": []}},
        {"version": 1, "slot_s": 600, "level": 0, "pace": [1, 2], "under_way": [0, 0, 0, 0], "seen": {"1": [[1, "x"]]}},
        {"version": 1, "slot_s": 600, "level": float("nan"), "pace": [1, 2], "under_way": [0, 0, 0, 0], "seen": {}},
        {"version": 1, "slot_s": 600, "level": 0, "pace": [-1, 2], "under_way": [0, 0, 0, 0], "seen": {}},
        {"version": 1, "slot_s": 600, "level": 0, "pace": [1], "under_way": [0, 0, 0, 0], "seen": {}},
        {"version": 1, "slot_s": 600, "level": 0, "pace": [1, 2], "under_way": [0], "seen": {}},
        {"version": 1, "slot_s": 600, "level": 0, "pace": [1, 2], "under_way": [0, 0, 0, 0], "seen": [1]},
    ],
)
def test_what_cannot_be_read_is_refused_and_not_guessed(data: object) -> None:
    with pytest.raises(ValueError, match=r"forecast|slot|number|pace|unpack|convert"):
        Forecast.from_dict(data)


def test_a_quantile_that_falls_between_two_days_is_the_lower_one() -> None:
    assert _weighted([(8.0, 1.0), (2.0, 1.0)], 0.5) == 2.0
    assert _weighted([(8.0, 1.0), (2.0, 1.0)], 0.51) == 8.0
    assert _weighted([(8.0, 0.1), (2.0, 0.1), (5.0, 0.1)], 2 / 3) == 5.0, "rounding does not move it"


def test_a_quantile_is_a_share() -> None:
    with pytest.raises(ValueError, match="quantile"):
        Forecast(0.0)


def test_times_are_told_for_people() -> None:
    assert clock(MONDAY) == "Mon 00:00 UTC"
    assert clock(MONDAY + 6 * DAY + 23 * 3600 + 59 * 60) == "Sun 23:59 UTC"


# -- what a replica carries -------------------------------------------------------------------------------------


def test_what_a_replica_carries_is_learned_near_the_target_only() -> None:
    idle, pace = Pace(), Pace()
    idle.observe(100.0, 4, 0.2, 10_000.0)  # it says nothing of a full one
    assert not idle.known
    pace.observe(4000.0, 4, 1.0, ENOUGH_S)
    assert pace.known
    assert pace.tokens_per_s == pytest.approx(1000)
    assert not Pace(0.0, ENOUGH_S).known  # nothing was carried


def test_it_follows_when_requests_become_others() -> None:
    pace = Pace()
    for _ in range(1000):
        pace.observe(4000.0, 4, 1.0, 10.0)
    for _ in range(1000):
        pace.observe(4000.0, 8, 1.0, 10.0)
    assert pace.tokens_per_s == pytest.approx(500, rel=0.1)


def test_the_nearer_to_the_target_the_more_it_counts() -> None:
    pace = Pace()
    pace.observe(1000.0, 1, 1.0, 600.0)
    pace.observe(1000.0, 1, 0.5, 600.0)  # says 2000
    assert 1000 < pace.tokens_per_s < 1400
