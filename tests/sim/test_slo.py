import math

import numpy as np
import pytest

from headgate.config.gateway import GatewayConfig
from headgate.model.errors import StartupError
from headgate.model.outcome import Kind
from headgate.report.results import Results, Rows, Target
from headgate.sim.slo import Judged, judge, name, parse, promised, worst


def rows(*made: tuple[float, str, Kind]) -> Results:
    found = Rows()
    for number, (ttft, lane, kind) in enumerate(made):
        found.add(at_s=float(number), lane=lane, kind=kind, ttft_s=ttft if kind == "ok" else None, e2e_s=ttft)
    return found.results("", source="simulation")


def test_a_percentile_is_of_all_who_came_and_whoever_was_refused_is_never_in_time() -> None:
    half = [(0.1 * number, "fast", "ok") for number in range(1, 6)]
    refused = [(0.0, "fast", "refused")] * 4 + [(0.0, "fast", "failed")]
    results = rows(*half, *refused, (9.0, "slow", "ok"), (0.0, "fast", "client"))  # type: ignore[arg-type]
    target = Target("ttft", 0.5, "fast", 0.5)
    assert judge(results, target) == Judged(target, 0.5, 10, 5, 0.1 * 3)
    assert judge(results, target).kept
    assert not judge(results, Target("ttft", 0.4, "fast", 0.5)).kept
    beyond = judge(results, Target("ttft", 1e9, "fast", 0.51))
    assert beyond.value_s == np.inf
    assert not beyond.kept
    assert "a refusal (300 ms over the served)" in str(beyond)


def test_who_came_before_a_moment_can_be_left_out() -> None:
    results = rows((9.0, "fast", "ok"), (1.0, "fast", "ok"), (2.0, "fast", "ok"))
    assert judge(results, Target("ttft", 5.0, "fast", 0.99)).value_s == 9.0
    assert judge(results, Target("ttft", 5.0, "fast", 0.99), since_s=0.5).value_s == 2.0


def test_nobody_misses_a_promise_to_a_lane_that_nobody_is_in() -> None:
    judged = judge(rows((9.0, "fast", "ok")), Target("ttft", 0.1, "batch", 0.99))
    assert judged.kept
    assert judged.count == 0


def test_the_worst_is_what_is_missed_by_most() -> None:
    results = rows((3.0, "fast", "ok"), (4.0, "slow", "ok"))
    judged = [judge(results, Target("ttft", 2.0, "fast", 0.5)), judge(results, Target("ttft", 1.0, "slow", 0.5))]
    assert worst(judged) is judged[1]
    assert worst([]) is None


def test_slos_are_read_from_text() -> None:
    config = GatewayConfig()
    assert parse(["fast:ttft:p99:0.5", "*:e2e:p99.5:30s"], config) == (
        Target("ttft", 0.5, "fast", 0.99),
        Target("e2e", 30.0, None, 0.995),
    )
    assert name(Target("e2e", 30.0, None, 0.999)) == "all lanes e2e p99.9"


@pytest.mark.parametrize(
    "text",
    ["", "fast:ttft:p99", "fast:ttft:99:0.5", "fast:latency:p99:1", "fast:ttft:p100:1", "fast:ttft:p99:0", "x y"],
)
def test_an_slo_that_can_not_be_read_is_answered_with_how_they_look(text: str) -> None:
    with pytest.raises(StartupError, match=r"fast:ttft:p99:0\.5"):
        parse([text], GatewayConfig())


def test_a_lane_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(StartupError, match="no lane 'quick'; there are fast, slow, long, batch"):
        parse(["quick:ttft:p99:1"], GatewayConfig())


def test_what_a_config_promises_is_what_is_watched_live() -> None:
    targets = promised(GatewayConfig())
    assert Target("ttft", 0.5, "fast", 0.95) in targets
    assert Target("gap", 0.2, "slow", 0.99) in targets
    assert Target("e2e", 30.0, "slow", 0.99, up_to_tokens=1000) in targets


def test_the_gap_promise_is_judged_over_all_gaps_and_a_refusal_has_missed_its_own() -> None:
    """A stream of 100 gaps with one of a second has a mean of 30 ms; one in a hundred is still a second."""
    rows = Rows()
    for number in range(50):
        rows.add(at_s=number, lane="fast", ttft_s=0.1, tpot_s=0.03, max_gap_s=1.0, e2e_s=3.1, output_tokens=101)
    target = Target("gap", 0.2, "fast", 0.99)
    assert judge(rows.results("x", source="simulation"), Target("tpot", 0.2, "fast", 0.99)).kept
    found = judge(rows.results("x", source="simulation"), target)
    assert found.value_s == pytest.approx(0.0202, rel=0.01)  # 99 of 100 are not longer than that
    assert judge(rows.results("x", source="simulation"), Target("gap", 0.2, "fast", 0.995)).value_s == 1.0
    for _ in range(2):
        rows.add(at_s=60, lane="fast", kind="refused", why="503 lane_full")
    found = judge(rows.results("x", source="simulation"), target)
    assert (found.value_s, found.count, found.turned_away) == (math.inf, 52, 2)
    nobody = Rows().results("x", source="simulation")
    assert judge(nobody, target).kept


def test_gaps_that_were_measured_one_by_one_are_judged_as_they_are() -> None:
    rows = Rows()
    rows.add(at_s=0, lane="fast", ttft_s=0.1, tpot_s=0.02, e2e_s=1.0, output_tokens=4, gaps=[0.01, 0.02, 0.3])
    assert judge(rows.results("x", source="bench"), Target("gap", 0.2, "fast", 0.99)).value_s == 0.3
    assert judge(rows.results("x", source="bench"), Target("gap", 0.2, "fast", 0.5)).value_s == 0.02


def test_a_promise_for_answers_up_to_a_length_says_nothing_of_longer_ones() -> None:
    rows = Rows()
    rows.add(at_s=0, lane="fast", ttft_s=0.1, e2e_s=5.0, output_tokens=900)
    rows.add(at_s=1, lane="fast", ttft_s=0.1, e2e_s=70.0, output_tokens=4000)
    results = rows.results("x", source="simulation")
    assert judge(results, Target("e2e", 30.0, "fast", 0.99, up_to_tokens=1000)).value_s == 5.0
    assert not judge(results, Target("e2e", 30.0, "fast", 0.99)).kept
