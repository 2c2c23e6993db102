"""The fewest replicas are the fewest, and what can't be had is answered with why."""

import re
from math import inf

import pytest

from headgate.config.gateway import GatewayConfig, Tenant
from headgate.model.errors import StartupError
from headgate.report.results import Target
from headgate.sim.fleet import fleet_of
from headgate.sim.planning import report as plan_report
from headgate.sim.planning.curve import OPERATING, curve, faster, span_s
from headgate.sim.planning.impossible import Impossible
from headgate.sim.planning.plan import Plan, plan
from headgate.sim.planning.trial import ReplicaSplit, Trials
from headgate.sim.slo import judge_all, parse
from headgate.workload.arrival import Arrival
from tests.sim.scene import CONFIG, machine, poisson

SLOS = parse(["fast:ttft:p95:0.3", "slow:ttft:p95:0.5", "*:tpot:p95:0.1"], CONFIG)
ARRIVALS = poisson(1, 30.0, 600, prompt=(20, 900))
LOADS = (0.2, 0.6, 0.65, 0.7, 1.0)


@pytest.fixture(scope="module")
def answer() -> Plan:
    found = plan(CONFIG, [ARRIVALS], machine(), slos=SLOS, price=2.0, loads=LOADS)
    assert isinstance(found, Plan)
    return found


def test_one_replica_fewer_than_the_fewest_would_miss_something(answer: Plan) -> None:
    trials = Trials(CONFIG, machine(), None, "gateway", lambda text: None)
    least = answer.least.replicas
    assert least > 1
    assert answer.split.own == 0
    assert trials.case(ARRIVALS, ReplicaSplit(least), SLOS, 1).kept
    assert not trials.case(ARRIVALS, ReplicaSplit(least - 1), SLOS, 1).kept


def test_the_answer_is_where_a_fleet_should_be_run_and_keeps_every_slo(answer: Plan) -> None:
    assert answer.replicas > answer.least.replicas
    assert OPERATING[0] - 0.1 <= answer.curve.now <= OPERATING[1]
    assert answer.case.replicas == answer.replicas
    assert answer.case.kept
    assert [one.target for one in answer.case.judged] == list(SLOS)


def test_cost_is_by_the_hour_and_by_the_thousand_tokens(answer: Plan) -> None:
    assert answer.cost_per_hour == 2.0 * answer.replicas
    tokens = sum(arrival.tokens for arrival in ARRIVALS) / span_s(ARRIVALS)
    assert answer.tokens_per_s == pytest.approx(tokens, rel=0.01)
    assert answer.cost_per_1000_tokens == pytest.approx(answer.cost_per_hour / (tokens * 3600) * 1000, rel=0.01)


def test_little_and_the_latency_curve_agree_with_themselves(answer: Plan) -> None:
    assert abs(answer.little.residual) < 0.01
    points = answer.curve.points
    assert [point.load for point in points if point.operating] == [0.6, 0.65, 0.7]
    assert points[0].ttft_s[2] < points[-1].ttft_s[2] / 2
    assert points[0].use < 0.5 * points[-1].use
    assert 0 < answer.curve.now < 1.2
    now = len(ARRIVALS) / span_s(ARRIVALS)
    assert answer.curve.capacity_per_s == pytest.approx(now / answer.curve.now)
    said = plan_report.how(answer)
    assert said.startswith(f"{answer.replicas} shared by all lanes, to be 60.0")
    assert said.endswith(f"full; the fewest that keep every SLO: {answer.least.replicas}")


def test_twice_the_traffic_and_a_lost_replica_are_answered(answer: Plan) -> None:
    assert not answer.twice.kept
    assert answer.twice_split is not None
    assert 1.5 * answer.replicas <= answer.twice_split.replicas <= 3 * answer.replicas
    assert answer.lost is not None
    assert answer.lost.replicas == answer.replicas
    assert max(one.use for one in answer.lost.judged) > max(one.use for one in answer.case.judged)


def test_a_lane_of_long_prompts_may_be_better_off_by_itself() -> None:
    # Few, and each fills every step of a replica for half a second: whoever shares it is held up.
    short = poisson(3, 15.0, 300, prompt=(20, 100), lane="fast")
    long = [Arrival(1.0 + 2.0 * number, 3900, 2, lane="long") for number in range(9)]
    rest = [Arrival(1.5 + 0.1 * number, 3900, 2, lane="long") for number in range(11)]
    workload = sorted(short + long + rest, key=lambda arrival: arrival.at_s)
    slos = parse(["fast:max_gap:p90:0.03", "long:ttft:p95:9"], CONFIG)
    answer = plan(CONFIG, [workload], machine(context=8192), slos=slos, loads=(0.6,))
    assert isinstance(answer, Plan)
    assert answer.case.kept
    assert answer.split.lane == "long"
    assert answer.split.own == 1
    assert answer.other is None or answer.other.shared > answer.split.replicas


@pytest.mark.parametrize(
    ("slo", "why"),
    [
        ("slow:ttft:p99:0.05", r"slow TTFT p99 within 50.0 ms: even alone .* prompt of \d+ tokens"),
        ("fast:tpot:p50:0.005", "fast TPOT p50 within 5.00 ms: even alone .* how long a step takes"),
        ("*:e2e:p99:0.1", "all lanes e2e p99 within 100 ms: even alone .* tokens one by one"),
    ],
)
def test_an_slo_that_a_lone_request_misses_is_impossible(slo: str, why: str) -> None:
    answer = plan(CONFIG, [ARRIVALS], machine(), slos=parse([slo], CONFIG))
    assert isinstance(answer, Impossible)
    assert re.search(f"no number of replicas keeps {why}", str(answer)), str(answer)


def test_what_no_number_of_replicas_mends_is_answered_with_who_turns_them_away() -> None:
    config = GatewayConfig(anonymous=Tenant(name="anonymous", requests_per_min=200))
    answer = plan(config, [ARRIVALS], machine(), slos=SLOS)
    assert isinstance(answer, Impossible)
    assert answer.judged.value_s == inf
    assert "429 over_limit" in str(answer)


def test_there_must_be_something_to_plan_for() -> None:
    with pytest.raises(StartupError, match="fewer than two requests"):
        plan(CONFIG, [[]], machine())
    with pytest.raises(StartupError, match="no SLO is about a lane of the workload, which has slow, fast"):
        plan(CONFIG, [ARRIVALS], machine(), slos=(Target("ttft", 1.0, "batch", 0.5),))


def test_requests_that_do_not_fit_are_said_to_be_left_out() -> None:
    arrivals = [*ARRIVALS[:300], Arrival(ARRIVALS[300].at_s, 5000, 5)]
    answer = plan(CONFIG, [arrivals], machine(), slos=SLOS, loads=())
    assert isinstance(answer, Plan)
    assert "1 requests do not fit the replicas' context, and were left out" in answer.notes


def test_a_workload_can_be_played_faster_and_again() -> None:
    arrivals = [Arrival(10.0 + number, 10, 1) for number in range(10)]
    assert [arrival.at_s for arrival in faster(arrivals, 2.0)] == [number / 2 for number in range(10)]
    again = faster(arrivals, 1.0, least_s=25.0)
    assert [arrival.at_s for arrival in again] == [float(number) for number in range(25)]
    assert len(faster(arrivals, 1.0, least_s=25.0, most=7)) == 7
    assert span_s(arrivals) == pytest.approx(10.0)


def test_load_is_a_share_of_what_the_fleet_can_do_however_many_replicas() -> None:
    one = curve(CONFIG, ARRIVALS, machine(), fleet_of(machine(), 1), "gateway", loads=(0.5,))
    two = curve(CONFIG, ARRIVALS, machine(), fleet_of(machine(), 2), "gateway", loads=(0.5,))
    assert two.capacity_per_s == pytest.approx(2 * one.capacity_per_s, rel=0.1)
    assert one.points[0].ttft_s[0] == pytest.approx(two.points[0].ttft_s[0], rel=0.3)


def test_trials_are_judged_by_every_workload() -> None:
    calm, busy = poisson(1, 5.0, 200), poisson(2, 60.0, 600)
    trials = Trials(CONFIG, machine(), None, "gateway", lambda text: None)
    alone = trials.fewest([calm], SLOS, 1, "calm")
    both = trials.fewest([calm, busy], SLOS, 1, "both")
    assert isinstance(alone, int)
    assert isinstance(both, int)
    assert alone < both
    assert all(one.kept for one in judge_all(trials.case(busy, ReplicaSplit(both), SLOS, 2).simulated.results, SLOS))
