"""A simulation and a plan are answered first in one sentence, which says no more than was simulated."""

from dataclasses import replace

import pytest

from headgate.report.results import Results, Rows, Target
from headgate.report.summary import summarise
from headgate.sim.planning.plan import Plan, plan
from headgate.sim.planning.report import as_dict, sentences
from headgate.sim.planning.sentence import compared, planned, simulated
from headgate.sim.planning.trial import ReplicaSplit, Trial
from headgate.sim.slo import Judged, parse
from tests.sim.scene import CONFIG, machine, poisson


def result(ttft_s: float, refused: int = 0, *, promised: bool = True) -> Results:
    rows = Rows()
    for number in range(200):
        rows.add(at_s=number / 20, lane="fast", ttft_s=ttft_s, tpot_s=0.01, e2e_s=1.0, max_gap_s=0.01, output_tokens=9)
    for number in range(refused):
        rows.add(at_s=number / 20, lane="fast", kind="refused", why="503 lane_full", e2e_s=0.001)
    targets = [Target("ttft", 0.5, "fast", 0.95), Target("e2e", 10.0, "fast", 0.99), Target("ttft", 1, "slow", 0.5)]
    return rows.results("made up", source="simulation", promises=targets if promised else [])


def said(found: Results) -> str:
    return simulated(found, summarise(found)).replace("\N{NARROW NO-BREAK SPACE}", " ")


def test_a_simulation_says_whether_all_promises_are_kept_and_which_is_nearest() -> None:
    assert said(result(0.25)) == (
        "All 2 promises are kept at 20.0 requests/s; nearest to its bound is fast TTFT p95, 250 ms, promised 500 ms."
    )
    assert said(result(0.75)) == (
        "1 of 2 promises is missed at 20.0 requests/s, by most fast TTFT p95, 750 ms, promised 500 ms."
    )
    assert said(result(0.25, 50)) == (
        "2 of 2 promises are missed at 25.0 requests/s, by most fast TTFT p95, a refusal, promised 500 ms; "
        "80.0 % are answered."
    )
    assert said(result(0.25, promised=False)).startswith("All 200 requests at 20.0/s were answered; TTFT p99 is 250 ms")


def test_two_runs_are_told_by_their_names() -> None:
    assert compared([("a", "x")]) == ["x"]
    assert compared([("a", "x"), ("what if", "y")]) == ["a: x", "what if: y"]


SLOS = parse(["fast:ttft:p95:0.3", "slow:ttft:p95:0.5", "*:tpot:p95:0.1"], CONFIG)
DRAWS = [poisson(seed, 30.0, 400, prompt=(20, 900)) for seed in (1, 2)]


@pytest.fixture(scope="module")
def answer() -> Plan:
    found = plan(CONFIG, DRAWS, machine(), slos=SLOS, price=2.0, loads=(0.65,))
    assert isinstance(found, Plan)
    return found


def test_a_plan_says_what_to_buy_the_minimum_and_what_a_loss_breaks(answer: Plan) -> None:
    many, least = answer.replicas, answer.least.replicas
    assert many > least > 1
    sentence = planned(answer)
    assert sentence.startswith(
        f"Buy {many}, at least {least}, for {2 * many:.2f} an hour; losing one of {many} breaks "
    )
    assert f", losing one of {least} breaks " in sentence
    assert as_dict(answer)["answer"] == sentence
    assert any(line.startswith(f"one of {least} lost: ") for line in sentences(answer))


def test_the_loss_of_one_of_the_fewest_is_simulated_with_that_many_and_worse_than_of_more(answer: Plan) -> None:
    assert answer.lost is not None
    assert answer.least_lost is not None
    assert (answer.lost.replicas, answer.least_lost.replicas) == (answer.replicas, answer.least.replicas)
    assert answer.least_lost.strain > answer.lost.strain
    assert not answer.least_lost.kept  # one fewer than the fewest misses something, and a death costs besides
    assert "breaks nothing" not in planned(answer).rpartition("losing one of")[2]


def trial(*missed: str) -> Trial:
    judged = tuple(
        Judged(target, 9.0 + number, 10, 0) for number, target in enumerate(parse(missed, CONFIG))
    )  # fmt: skip
    return Trial(replicas=3, judged=judged, turned_away=0.0, simulated=None)  # type: ignore[arg-type]


def test_each_way_a_loss_may_go_has_its_words(answer: Plan) -> None:
    two = trial("fast:ttft:p99:1", "slow:ttft:p95:5")
    few = replace(answer, split=ReplicaSplit(3), least=ReplicaSplit(3), price=None, lost=two, least_lost=two)
    assert planned(few) == "Buy 3, the fewest that keep every promise; losing one of 3 breaks fast TTFT p99 and 1 more."
    one = replace(answer, split=ReplicaSplit(1), least=ReplicaSplit(1), price=None, lost=None, least_lost=None)
    assert planned(one) == "Buy 1, the fewest that keep every promise; losing the only one stops everything."
    fine = replace(answer, split=ReplicaSplit(3), least=ReplicaSplit(1), price=None, lost=trial(), least_lost=None)
    assert planned(fine) == (
        "Buy 3, at least 1; losing one of 3 breaks nothing, losing the only one stops everything."
    )  # fmt: skip
