"""A pool that scales itself in virtual time: the live Scaler, replicas that start, park, drain and go."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from headgate.config.fleet import FleetConfig
from headgate.config.gateway import GatewayConfig
from headgate.config.scale import ScaleConfig
from headgate.model.errors import StartupError
from headgate.policy.scaling.forecast import Forecast
from headgate.policy.scaling.scale import Activate, Drain, Park, Scaler, Start
from headgate.report.results import Target
from headgate.sim.fleet import SimGroup
from headgate.sim.planning.command import SimulateOptions, WorkloadOptions
from headgate.sim.run import Level
from headgate.sim.scaling.autoscale import MONDAY, Outcomes, Scaled, autoscale, learn
from headgate.sim.scaling.command import ScaleOptions, run_scaled
from headgate.sim.scaling.compare import BOTH, NEITHER, VARIANTS, Setting, hours, one, with_foresight
from headgate.sim.scaling.oracle import TRIES, Schedule, levels
from headgate.workload.arrival import Arrival
from tests.sim.scene import CONFIG, machine

MEMBER = SimGroup(profile=machine(), slots=4, cold_start_s=60.0)
SCALE = ScaleConfig(min=1, max=12, forecast=False)


def steady(rate: float, begin_s: float, end_s: float) -> list[Arrival]:
    """100 tokens in, 100 out: about 1.1 s each."""
    count = int(rate * (end_s - begin_s))
    return [Arrival(begin_s + number / rate, 100, 100) for number in range(count)]


STEP = [*steady(3.0, 0.0, 400.0), *steady(9.0, 400.0, 900.0), *steady(1.5, 900.0, 2400.0)]
"""A burst to three times, and then next to nothing for long enough to shrink."""


def scaled(scale: ScaleConfig = SCALE, forecast: Forecast | None = None, at_first: int = 2) -> Scaled:
    return Scaled(
        member=MEMBER, scaler=Scaler(scale, forecast), at_first=at_first, parked_at_first=scale.warm, wall_s=MONDAY
    )


def run_step(scale: ScaleConfig = SCALE, level: Level = "gateway", seed: int = 1) -> Outcomes:
    return autoscale(CONFIG, STEP, scaled(scale), seed, level)


def late(outcomes: Outcomes, begin_s: float, end_s: float) -> float:
    """Share of those who came then that were refused, or waited longer than a second."""
    results = outcomes.simulated.results
    mine = (results.at_s >= begin_s) & (results.at_s < end_s)
    return float((mine & ((results.kind != 0) | (results.ttft_s > 1.0))).sum() / mine.sum())


@pytest.fixture(scope="module")
def cold() -> Outcomes:
    return run_step()


@pytest.fixture(scope="module")
def warm() -> Outcomes:
    return run_step(replace(SCALE, warm=3))


def test_it_grows_for_a_burst_and_shrinks_after_it(cold: Outcomes) -> None:
    serving = {sample.at_s: sample.serving for sample in cold.samples}
    assert serving[360.0] <= 2
    assert serving[780.0] >= 4
    assert cold.samples[-1].serving <= 2
    results = cold.simulated.results
    assert len(results) == len(STEP)
    assert (results.kind[results.at_s > 600] == 0).all()  # nobody is cut off by those that go


def test_what_is_started_is_there_after_its_cold_start_and_not_before(cold: Outcomes) -> None:
    started = next(at for at, decision in cold.decisions if any(isinstance(one, Start) for one in decision.actions))
    taken = next(at for at, decision in cold.decisions if any(isinstance(one, Activate) for one in decision.actions))
    assert (
        400 <= started <= 480
    )  # a refused request has no first token that could be late: occupancy tells, in two starts
    assert 60 <= taken - started <= 66


def test_a_warm_pool_takes_the_burst_that_a_cold_start_lets_wait(cold: Outcomes, warm: Outcomes) -> None:
    assert late(cold, 400, 470) > 0.2
    assert late(warm, 405, 470) < 0.02
    assert warm.replica_hours > cold.replica_hours  # and is paid for
    first = next(decision for at, decision in warm.decisions if at >= 400)
    assert sum(isinstance(action, Activate) for action in first.actions) >= 1
    assert min(sample.parked for sample in warm.samples if 400 < sample.at_s < 450) == 0  # all are borrowed
    assert min(sample.parked for sample in warm.samples if 700 < sample.at_s < 900) >= 2  # and replaced


def test_one_that_goes_is_parked_or_drained_and_then_costs_nothing(cold: Outcomes, warm: Outcomes) -> None:
    actions = [action for _, decision in cold.decisions for action in decision.actions]
    assert sum(isinstance(action, Drain) for action in actions) >= 2
    assert any(isinstance(action, Park) for _, decision in warm.decisions for action in decision.actions)
    by_samples = sum(60 * (s.serving + s.parked + s.coming + s.draining) for s in cold.samples)
    assert cold.replica_s == pytest.approx(by_samples, rel=0.15)


def test_every_decision_has_its_reasons_as_sentences(warm: Outcomes) -> None:
    for _, decision in warm.decisions:
        assert decision.reasons
        assert all(reason.endswith(".") for reason in decision.reasons)


def test_the_same_seed_gives_the_same_day(cold: Outcomes) -> None:
    again = run_step()
    assert again.replica_s == cold.replica_s
    assert again.decisions == cold.decisions
    assert np.array_equal(again.simulated.results.ttft_s, cold.simulated.results.ttft_s, equal_nan=True)


def test_it_works_step_by_step_too() -> None:
    outcomes = autoscale(CONFIG, steady(8.0, 0.0, 150.0), scaled(replace(SCALE, warm=1)), 1, "step")
    assert len(outcomes.simulated.results) == 1200
    assert outcomes.samples[-1].serving >= 3


def test_to_zero_and_back() -> None:
    scale = replace(SCALE, min=0, to_zero=True, idle_s=60.0, down_cooldown_s=60.0)
    config = replace(CONFIG, timeouts=replace(CONFIG.timeouts, no_replica_wait_s=120.0))
    arrivals = [*steady(2.0, 0.0, 60.0), *steady(1.0, 600.0, 700.0)]
    outcomes = autoscale(config, arrivals, scaled(scale, at_first=1), 1)
    assert next(sample for sample in outcomes.samples if sample.at_s == 540.0).serving == 0
    results = outcomes.simulated.results
    assert results.ok.mean() > 0.8
    assert 60 < results.ttft_s[results.at_s >= 600][0] < 70  # the spike that it was scaled to zero for


# -- the forecast -------------------------------------------------------------------------------------------------


def morning(factor: float = 1.0) -> list[Arrival]:
    """Quiet, then three times as much from the twentieth minute on."""
    return [*steady(2.5, 0.0, 1200.0), *steady(9.0 * factor, 1200.0, 1600.0)]


@pytest.mark.timeout(60)
def test_capacity_is_up_before_a_peak_that_was_there_yesterday() -> None:
    forecast = Forecast(0.5)
    learn(forecast, CONFIG, morning(1.05), MONDAY - 86_400.0, 1600.0)
    scale = replace(SCALE, forecast=True)
    known = autoscale(CONFIG, morning(), scaled(scale, forecast), 1)
    unknown = autoscale(CONFIG, morning(), scaled(scale, Forecast()), 1)
    ready = {sample.at_s: sample.serving for sample in known.samples}
    assert ready[600.0] <= 2
    assert ready[1200.0] >= 3
    assert {sample.at_s: sample.serving for sample in unknown.samples}[1200.0] <= 2
    assert late(known, 1200, 1300) < 0.05 < late(unknown, 1200, 1300)
    said = [reason for at, decision in known.decisions if at < 1200 for reason in decision.reasons]
    assert any("The forecast is" in reason and "1 day is known" in reason for reason in said)


def test_learning_from_arrivals_is_what_a_gateway_that_was_there_would_have_learned() -> None:
    learned, lived = Forecast(), Forecast()
    learn(learned, CONFIG, morning(), MONDAY, 1600.0)
    autoscale(CONFIG, morning(), scaled(replace(SCALE, forecast=True), lived, at_first=6), 1)
    for minute in (5, 15):
        wall = MONDAY + 86_400.0 + minute * 60.0
        assert learned.floor(wall, wall) == pytest.approx(lived.floor(wall, wall), rel=0.05)


# -- side by side -------------------------------------------------------------------------------------------------


def setting() -> Setting:
    return Setting(
        config=CONFIG,
        scale=replace(SCALE, forecast=True, warm=1),
        member=MEMBER,
        arrivals=lambda: STEP[:3000],
        targets=(Target("ttft", 2.0, None, 0.99),),
        at_first=2,
        seed=1,
    )


@pytest.mark.timeout(60)
def test_the_oracle_keeps_what_is_promised_with_fewest_replica_hours() -> None:
    said: list[str] = []
    foresight, both = with_foresight(setting(), said.append), one(setting(), BOTH)
    assert foresight is not None
    assert foresight.kept
    assert foresight.replica_hours < both.replica_hours
    assert len(said) == TRIES  # each time half as far from the fewest


def test_variants_differ_in_what_they_are_named_for() -> None:
    made = setting()
    assert [(made.varied(name).forecast, made.varied(name).warm) for name in VARIANTS] == [
        (False, 0),
        (True, 0),
        (False, 1),
        (True, 1),
    ]
    case = one(made, NEITHER)
    assert not case.kept
    assert case.turned_away > 0
    assert case.hours_missed == 1
    assert len(case.by_hour) == 1


def test_levels_hold_what_is_under_way_for_all_but_the_busiest_seconds() -> None:
    present = np.concatenate([np.full(300, 10.0), np.full(250, 3.0), np.full(50, 30.0), np.full(100, 0.0)])
    assert levels(present, 4.0, 1) == [3, 1, 1]
    assert Schedule([3, 1, 2]).at(10_000.0) == 2


def test_hours_are_judged_each_for_themselves() -> None:
    results = run_step().simulated.results
    assert len(hours(results, 600.0)) == 4
    assert hours(results, 600.0)[2] < 1.0


# -- as people meet it --------------------------------------------------------------------------------------------


def options(**changes: object) -> SimulateOptions:
    config = GatewayConfig(fleet=FleetConfig(kind="processes", scale=replace(SCALE, warm=1, forecast=True)))
    fields: dict[str, object] = {
        "load": WorkloadOptions(workload="poisson:prompt=50-200,output=50-150", rate=6.0, duration_s=300.0, seed=3),
        "config": config,
        "profile": machine(),
        "slots": 4,
        "cold_start_s": 30.0,
        "level": "gateway",
    }
    return SimulateOptions(**{**fields, **changes})  # type: ignore[arg-type]


def shown(made: ScaleOptions) -> tuple[int, str]:
    text = io.StringIO()
    code = run_scaled(made, Console(file=text, width=200, highlight=False), Console(file=io.StringIO()))
    return code, text.getvalue()


def test_simulate_scale_shows_what_it_did_and_why(tmp_path: Path) -> None:
    made = options(json=tmp_path / "out.json", html=tmp_path / "out.html", what_if=GatewayConfig())
    code, said = shown(ScaleOptions(simulate=made, history=2))
    assert code == 0
    assert "to serve" in said
    assert "that needs" in said
    assert "replica-hours" in said
    assert "what if" in said
    written = json.loads((tmp_path / "out.json").read_text())
    assert [case["name"] for case in written["cases"]] == ["as configured", "what if"]
    assert written["cases"][0]["replica_hours"] > 0
    assert "Replicas over the day" in (tmp_path / "out.html").read_text()


@pytest.mark.timeout(60)
def test_simulate_compare_scaling_shows_five_side_by_side() -> None:
    code, said = shown(ScaleOptions(simulate=options(), compare=True))
    assert code == 0
    for name in ("neither", "forecast", "warm pool", "both", "oracle"):
        assert name in said
    assert "against the oracle" in said


def test_what_makes_no_sense_with_it_is_said() -> None:
    with pytest.raises(StartupError, match=r"--fail can't be used with --scale"):
        shown(ScaleOptions(simulate=options(failures=("0@5",))))
    with pytest.raises(StartupError, match="from 0 to 42"):
        shown(ScaleOptions(simulate=options(), history=1000))
    odd = GatewayConfig(fleet=FleetConfig(kind="processes", scale=ScaleConfig(min=0)))
    with pytest.raises(StartupError, match=r"fleet\.scale\.min"):
        shown(ScaleOptions(simulate=options(config=odd)))
