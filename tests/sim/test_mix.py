"""`plan` with several pools: the cheapest mix that keeps the SLOs."""

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from headgate.config.file import parse
from headgate.model.errors import UsageError
from headgate.report.results import Target
from headgate.sim.planning.command import PlanOptions, SimulateOptions, WorkloadOptions, run_plan, run_simulate
from headgate.sim.planning.mix import cheapest_mix, fleet_of_pools
from tests.sim.scene import machine
from tests.sim.test_autoscale import steady

POOL = "slots: 4, scale: {min: 0, to_zero: true, max: MOST, forecast: false}"
TWO = f"fleet: {{pools: [{{name: cheap, price: 1, {POOL}}}, {{name: dear, price: 4, {POOL}}}]}}"
SLOS = (Target("ttft", 1.0, None, 0.95),)


def two(most: int) -> str:
    return TWO.replace("MOST", str(most))


def test_the_dear_pool_stays_as_small_as_the_cheap_one_allows() -> None:
    arrivals = steady(9.0, 0.0, 60.0)
    mix = cheapest_mix(parse(two(6), "x"), arrivals, machine(), SLOS)
    assert mix.kept
    assert mix.counts["dear"] == 0
    assert 2 <= mix.counts["cheap"] <= 4
    assert mix.cost == mix.counts["cheap"]
    assert mix.sentence("USD") == f"Buy {mix.counts['cheap']} of cheap, 0 of dear, {mix.counts['cheap']} USD an hour."
    few = cheapest_mix(parse(two(2), "x"), arrivals, machine(), SLOS)
    assert few.kept
    assert few.counts["cheap"] == 2
    assert few.counts["dear"] >= 1


def test_where_no_mix_suffices_that_is_said() -> None:
    mix = cheapest_mix(parse(two(1), "x"), steady(30.0, 0.0, 30.0), machine(), SLOS)
    assert not mix.kept
    assert mix.sentence("USD").startswith("No mix keeps the SLOs: 1 of cheap, 1 of dear is all")
    assert cheapest_mix(parse(two(1).replace("price: 4, ", ""), "x"), [], machine(), ()).cost is None


def test_the_command_says_what_to_buy(tmp_path: Path) -> None:
    load = WorkloadOptions(workload="poisson:rate=3,prompt=100,output=50", duration_s=60.0, requests=300)
    options = PlanOptions(load=load, config=parse(two(4), "x"), profile=machine(), json=tmp_path / "x.json")
    with (tmp_path / "out").open("w") as file:
        assert run_plan(options, Console(file=file, width=120), Console(quiet=True)) == 0
    assert "Buy " in (tmp_path / "out").read_text()
    assert msgspec.json.decode((tmp_path / "x.json").read_bytes())["kept"]
    with pytest.raises(UsageError, match="--price can't be used with"):
        run_plan(PlanOptions(load=load, config=parse(two(4), "x"), profile=machine(), price=2.0))


def test_a_simulation_without_scaling_has_the_fewest_of_each_pool(tmp_path: Path) -> None:
    text = "fleet: {pools: [{name: a, lanes: [fast], scale: {min: 2}}, {name: b, price: 3}]}"
    fleet = fleet_of_pools(parse(text, "x"), machine())
    assert [(seat.replica.id, seat.replica.lanes, seat.replica.price) for seat in fleet.seats] == [
        ("a-0", {"fast"}, None),
        ("a-1", {"fast"}, None),
        ("b-0", frozenset(), 3.0),
    ]
    load = WorkloadOptions(workload="poisson:rate=2,prompt=100,output=50", duration_s=20.0)
    options = SimulateOptions(load=load, config=parse(text, "x"), profile=machine(), json=tmp_path / "x.json")
    assert run_simulate(options, Console(quiet=True), Console(quiet=True)) == 0
