"""`simulate`, `plan` and `replay` as people meet them: tables, files, exit codes."""

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headgate.config.gateway import GatewayConfig, RoutingConfig
from headgate.model.errors import StartupError
from headgate.model.replica import Replica
from headgate.sim.fleet import Failure
from headgate.sim.planning.command import (
    PlanOptions,
    SimulateOptions,
    WorkloadOptions,
    failure,
    run_plan,
    run_replay,
    run_simulate,
)
from headgate.sim.planning.plan import plan
from tests.sim.scene import machine

LOAD = WorkloadOptions(workload="poisson:prompt=50-600,output=5-40", rate=15.0, duration_s=20.0, seed=3)


def consoles() -> tuple[Console, Console, io.StringIO]:
    text = io.StringIO()
    out = Console(file=text, width=160, highlight=False)
    return out, Console(file=io.StringIO(), width=160), text


def test_simulate_shows_a_table_and_writes_what_bench_does(tmp_path: Path) -> None:
    out, err, text = consoles()
    options = SimulateOptions(
        load=LOAD,
        config=GatewayConfig(),
        profile=machine(),
        replicas=2,
        slots=8,
        failures=("0@5-8",),
        cold_start_s=1.0,
        goodput=("ttft:500",),
        events=tmp_path / "events",
        json=tmp_path / "out.json",
        html=tmp_path / "out.html",
    )
    assert run_simulate(options, out, err) == 0
    said = text.getvalue()
    assert "2 × small" in said
    assert "TTFT" in said
    assert "good" in said
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["completed"] > 200
    assert "<svg" in (tmp_path / "out.html").read_text()
    assert run_replay(tmp_path / "events", out) == 0
    assert "all the same" in text.getvalue()


def test_what_if_is_shown_beside_what_is() -> None:
    out, err, text = consoles()
    options = SimulateOptions(
        load=LOAD,
        config=GatewayConfig(),
        what_if=GatewayConfig(routing=RoutingConfig(algorithm="round_robin")),
        what_if_replicas=3,
        profile=machine(),
        replicas=1,
        level="gateway",
    )
    assert run_simulate(options, out, err) == 0
    said = text.getvalue()
    assert "simulation → what if  the same arrivals, compared pairwise" in said
    assert "TTFT of each request beside itself" in said
    assert "3 × small" in said


def test_replicas_come_from_the_config_where_none_are_counted() -> None:
    out, err, text = consoles()
    replicas = tuple(Replica(id=name, url=f"http://{name}", slots=4) for name in "abc")
    options = SimulateOptions(load=LOAD, config=GatewayConfig(replicas=replicas), profile=machine(), level="gateway")
    assert run_simulate(options, out, err) == 0
    assert text.getvalue().count("1 × small") == 3


def test_a_run_in_which_nobody_was_served_fails() -> None:
    out, err, _ = consoles()
    options = SimulateOptions(
        load=WorkloadOptions(workload="constant:prompt=50,output=5", rate=1.0, duration_s=10.0),
        config=GatewayConfig(),
        profile=machine(),
        replicas=1,
        failures=("0@0",),
    )
    assert run_simulate(options, out, err) == 1


@pytest.mark.timeout(60)
def test_plan_says_how_many_and_writes_it_down(tmp_path: Path) -> None:
    out, err, text = consoles()
    options = PlanOptions(
        load=LOAD,
        config=GatewayConfig(),
        profile=machine(),
        slos=("fast:ttft:p95:0.3", "slow:ttft:p95:0.5"),
        price=1.5,
        draws=2,
        json=tmp_path / "plan.json",
        html=tmp_path / "plan.html",
    )
    assert run_plan(options, out, err) == 0
    said = text.getvalue()
    written = json.loads((tmp_path / "plan.json").read_text())
    assert f"{written['replicas']} × small" in said
    assert "operate here" in said
    assert "Little's law" in said
    assert "twice the traffic" in said
    assert f"one of {written['replicas']} lost: " in said
    assert said.startswith(written["answer"][:20])
    assert written["cost_per_hour"] == 1.5 * written["replicas"]
    assert [one["operating"] for one in written["curve"]].count(True) == 3
    assert all(one["kept"] for one in written["slos"])
    page = (tmp_path / "plan.html").read_text()
    assert "operate here" in page
    assert "this workload" in page or written["load"] > 1


def test_an_impossible_slo_is_answered_and_fails(tmp_path: Path) -> None:
    out, err, text = consoles()
    options = PlanOptions(
        load=LOAD,
        config=GatewayConfig(),
        profile=machine(),
        slos=("fast:ttft:p99:0.001",),
        json=tmp_path / "plan.json",
    )
    assert run_plan(options, out, err) == 1
    assert "no number of replicas keeps fast TTFT p99" in text.getvalue()
    assert "impossible" in json.loads((tmp_path / "plan.json").read_text())


def test_a_log_that_does_not_replay_fails_with_the_difference(tmp_path: Path) -> None:
    out, err, text = consoles()
    options = SimulateOptions(
        load=LOAD, config=GatewayConfig(), profile=machine(), replicas=2, level="gateway", events=tmp_path / "events"
    )
    assert run_simulate(options, out, err) == 0
    content = (tmp_path / "events").read_bytes()
    (tmp_path / "events").write_bytes(content.replace(b'"attempt":1', b'"attempt":2', 1))
    assert run_replay(tmp_path / "events", out) == 1
    assert "attempt: 2 became 1" in text.getvalue()


def test_failures_are_read_from_text() -> None:
    assert failure("0@60") == Failure(0, 60.0)
    assert failure("2@1.5-30") == Failure(2, 1.5, 30.0)
    for text in ("", "0", "x@1", "0@5-4", "0@-1"):
        with pytest.raises(StartupError, match="REPLICA@SECONDS"):
            failure(text)


def test_a_folder_that_is_not_there_is_found_before_anything_is_run(tmp_path: Path) -> None:
    options = PlanOptions(load=LOAD, config=GatewayConfig(), profile=machine(), json=tmp_path / "nowhere" / "plan.json")
    with pytest.raises(StartupError, match="there is no folder"):
        run_plan(options)


# -- one answer -------------------------------------------------------------------------------------------------


def planned(tmp_path: Path, **load: Any) -> dict[str, Any]:
    out, err, _ = consoles()
    options = PlanOptions(
        load=WorkloadOptions(workload="poisson:rate=24,prompt=20-900,output=4-60", **load),
        config=GatewayConfig(),
        profile=machine(),
        slos=("*:ttft:p95:0.5",),
        json=tmp_path / "plan.json",
        draws=2,
    )
    assert run_plan(options, out, err) == 0
    found: dict[str, Any] = json.loads((tmp_path / "plan.json").read_text())
    return found


@pytest.mark.timeout(120)
def test_the_answer_of_a_plan_does_not_flip_with_the_duration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.sim.planning.command.STANDARD", 1200)
    monkeypatch.setattr("headgate.sim.planning.command.plan", partial(plan, loads=()))
    found = [planned(tmp_path, duration_s=duration_s) for duration_s in (5.0, 20.0, None, 75.0)]
    assert len({one["replicas"] for one in found}) == 1, [(one["replicas"], one["fewest_replicas"]) for one in found]
    assert all(one["fewest_replicas"] <= one["replicas"] for one in found)
    assert all(slo["kept"] for one in found for slo in one["slos"])
