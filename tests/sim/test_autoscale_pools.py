"""Several pools in virtual time, each scaled by its part of the demand."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from headgate.config.file import parse
from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import PROFILES
from headgate.model.errors import UsageError
from headgate.sim.planning.command import SimulateOptions, WorkloadOptions
from headgate.sim.scaling.command import ScaleOptions, run_scaled
from headgate.sim.scaling.pools import PoolsRun, member_of, run_pools
from headgate.workload.arrival import Arrival
from tests.sim.scene import machine
from tests.sim.test_autoscale import STEP, steady

SCALE = "scale: {min: 1, max: 12, warm: 0, forecast: false}"
TWO = f"fleet: {{pools: [{{name: dear, price: 4, slots: 4, {SCALE}}}, {{name: cheap, price: 1, slots: 4, {SCALE}}}]}}"


def simulated(text: str, arrivals: list[Arrival]) -> PoolsRun:
    return run_pools(parse(text, "x"), arrivals, machine(), 1, cold_start_s=60.0)


def most(run: PoolsRun, name: str) -> int:
    return max(sample.serving for sample in run.outcomes[name].samples)


def test_the_cheapest_grows_first_and_the_dearer_one_stays_at_its_minimum() -> None:
    run = simulated(TWO, STEP)
    assert run.simulated.results.ok.mean() > 0.9  # a burst to three times comes sooner than a start is over
    assert most(run, "dear") == 1
    assert most(run, "cheap") >= 3
    assert run.cost == pytest.approx(run.outcomes["dear"].replica_hours * 4 + run.outcomes["cheap"].replica_hours)


def test_the_dearer_one_grows_once_the_cheaper_one_is_at_its_maximum() -> None:
    few = TWO.replace(
        "name: cheap, price: 1, slots: 4, scale: {min: 1, max: 12",
        "name: cheap, price: 1, slots: 4, scale: {min: 1, max: 2",
    )
    run = simulated(few, STEP)
    assert (most(run, "cheap"), most(run, "dear") >= 2) == (2, True)


def test_pools_of_other_lanes_are_scaled_apart() -> None:
    lanes = f"fleet: {{pools: [{{name: a, lanes: [fast], slots: 4, {SCALE}}}, "
    lanes += f"{{name: b, lanes: [batch], slots: 4, {SCALE}}}]}}"
    run = simulated(lanes, steady(9.0, 0.0, 600.0))
    assert most(run, "a") >= 3
    assert most(run, "b") == 1
    assert run.cost is None


def test_a_pool_has_its_own_profile_start_and_engine() -> None:
    text = """
embedded: {longest_shared: 99}
fleet:
  pools:
    - {name: a, emulate: {profile: a100-llama3-8b, cold_start_s: 7, slots: 3}}
    - {name: b, slots: 5, engine: {longest_shared: 64}}
"""
    config = parse(text, "x")
    first, second = (member_of(config, pool, PROFILES["h100-llama3-8b"], 60.0) for pool in config.fleet.pools)
    assert (first.profile.name, first.cold_start_s, first.slots) == ("a100-llama3-8b", 7.0, 3)
    assert (second.profile.name, second.cold_start_s, second.slots) == ("h100-llama3-8b", 60.0, 5)
    assert first.batch is not None
    assert first.batch.longest_shared == 99
    assert second.batch is not None
    assert second.batch.longest_shared == 64


def test_the_command_says_what_each_pool_cost(tmp_path: Path) -> None:
    load = WorkloadOptions(workload="poisson:rate=2,prompt=100,output=50", duration_s=300.0)
    base = SimulateOptions(
        load=load, config=parse(TWO, "x"), profile=machine(), level="gateway", json=tmp_path / "x.json",
        html=tmp_path / "x.html",
    )  # fmt: skip
    with (tmp_path / "out").open("w") as file:
        out = Console(file=file, width=120)
        assert run_scaled(ScaleOptions(simulate=base), out, Console(quiet=True)) == 0
    said = (tmp_path / "out").read_text()
    assert "2 pools: " in said
    assert "cheap" in said
    assert json.loads((tmp_path / "x.json").read_text())["pools"]["dear"]["price"] == 4.0
    with pytest.raises(UsageError, match="--compare can't be used with"):
        run_scaled(ScaleOptions(simulate=base, compare=True), Console(quiet=True), Console(quiet=True))


def test_pools_of_several_models_are_refused_in_words() -> None:
    with pytest.raises(UsageError, match="these serve a, b: simulate each by itself"):
        simulated("fleet: {pools: [{name: a, model: a}, {name: b, model: b}]}", [])
    assert GatewayConfig().fleet.pools == ()
