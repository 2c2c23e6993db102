"""Every table at 80 columns, which is also what a file or a pipe gets: no figure is cut off or broken in two."""

import io
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console, RenderableType

from headgate.bench.beside import Added
from headgate.bench.lines import Advice, Level, Prefill
from headgate.bench.run import added_table
from headgate.bench.tune_report import show
from headgate.bench.tuned import Tuned, TuneOptions
from headgate.cli import client, fleet_client, rollout_client
from headgate.report import table
from headgate.report.results import Results, Rows, Target
from headgate.report.statistics import Estimate
from headgate.report.summary import summarise
from headgate.report.words import ms
from headgate.sim.planning import report as plan_report
from headgate.sim.planning.curve import Curve, Point
from headgate.sim.scaling import report as autoscale_report
from headgate.sim.scaling.compare import ScaledDay
from headgate.sim.slo import Judged

WIDTH = 80
NARROW = "\N{NARROW NO-BREAK SPACE}"
LONG = "a-lane-with-a-name-of-its-own"


def printed(*parts: RenderableType, width: int = WIDTH) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    for part in parts:
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert max(len(line) for line in said.splitlines()) <= width
    assert "…" not in said, said
    return said


def slow(scale: float, lanes: tuple[str, ...] = ("fast", LONG)) -> Results:
    """Results of a server on which everything takes `scale` times too long."""
    rng, rows = np.random.default_rng(1), Rows()
    for number in range(4000):
        ttft, tpot = scale * rng.lognormal(0, 1.5), scale * 0.1 * rng.lognormal(0, 0.5)
        rows.add(
            at_s=number * 0.05, lane=lanes[number % len(lanes)], ttft_s=ttft, tpot_s=tpot, max_gap_s=9 * tpot,
            e2e_s=ttft + 64 * tpot, queue_s=ttft / 2, output_tokens=65,
        )  # fmt: skip
    promises = [Target(figure, 0.5 * scale, lane, level) for lane in lanes for figure in ("ttft", "e2e", "tpot")
                for level in (0.5, 0.95, 0.99)]  # fmt: skip
    return rows.results("everything is slow", source="bench", promises=promises)


@pytest.mark.parametrize("scale", [0.0001, 0.02, 1.0, 12.0, 25.0])
def test_the_figures_of_a_lane(scale: float) -> None:
    results = slow(scale)
    summaries = summarise(results)
    said = printed(table.render(results, summaries, WIDTH))
    wide = printed(table.render(results, summaries, 200), width=200)
    for summary in summaries.values():
        for spread in summary.figures.values():
            for estimate in spread.levels.values():
                value = ms(estimate.value)
                assert re.search(rf"(^|\s){re.escape(value)}(\s|$)", said, re.MULTILINE), value
                assert value in wide
    assert len(re.findall(r"[✓✗]≤", said)) == len(re.findall(r"[✓✗]≤", wide)) > 10


def test_the_judgement_and_the_curve_of_a_plan() -> None:
    point = Point(
        load=0.65, requests_per_s=12_345.6, use=0.9999, ttft_s=(12.345, 123.456, 999.999), e2e_s=(99.9, 654.3, 1999.9),
        lanes={}, turned_away=0.12345,
    )  # fmt: skip
    said = printed(
        plan_report.curve_table(Curve(capacity_per_s=1.0, now=0.5, points=(point, replace(point, load=0.1))))
    )
    for figure in ("12 345", "123 456", "999 999", "99 900", "654 300", "1 999 900", "65.0 %", "12.3 %", "12 346"):
        assert figure.replace(" ", NARROW) in said, figure
    assert said.count("←") == 2  # in the title, and at the point
    judged = Judged(Target("max_gap", 86_400.0, LONG * 2, 0.999), 86_399.9, 1_234_567, 0)
    said = printed(plan_report.judged_table((judged,)))
    assert f"86{NARROW}399{NARROW}900" in said
    assert " ".join(said.split()).find("max gap p99.9") > 0


class _Simulated:
    results = ()


def scaled(name: str) -> ScaledDay:
    outcomes: Any = type("O", (), {"replica_hours": 123_456.7, "starts": 12_345, "simulated": _Simulated()})()
    return ScaledDay(
        name=name, outcomes=outcomes, kept=False, p99_s=float("inf"), turned_away=0.99, hours_missed=1000, by_hour=()
    )


def test_scaled_days_side_by_side() -> None:
    said = printed(autoscale_report.table([scaled("as configured"), scaled("what if"), scaled("oracle")]))
    for word in ("as configured", "a refusal", "123456.7", "+0.0%", "against", "replica", f"12{NARROW}345"):
        assert word in said, word


def test_what_a_gateway_adds() -> None:
    item = Added(LONG, "p99 max gap", 123.456, 124.0, Estimate(0.544, -100.123, 200.456))
    said = printed(added_table([item, replace(item, lane="")]))
    for figure in ("123 456", "124 000", "544", "-100 123", "200 456"):
        assert figure.replace(" ", NARROW) in said


def test_what_tune_found() -> None:
    console = Console(file=io.StringIO(), width=WIDTH)
    tuned = Tuned(TuneOptions(urls=("http://127.0.0.1:8001",), sla=("ttft:500",)), "m", 0.5, None)
    tuned.levels = [Level(1000, 123_456, 123.456, 234.567, 12.345, 23.456, 1_234_567.0, 3)]
    tuned.prefill, tuned.advice = Prefill(0.1, 0.001, 16, 8192), Advice(1, 2, None, None, ("because",))
    show(tuned, console)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    row = next(line for line in said.splitlines() if "broken" in line)
    assert "…" not in said
    assert len(row) <= WIDTH


def test_replicas_versions_and_slow_requests() -> None:
    name = "gpu-pool-eu-west-1a-0123456789abcdef.svc.cluster.local:8000"
    known = {"id": name, "url": f"http://{name}", "state": "probation", "since_s": 86_400.0, "usable": 0.0,
             "requests": 1024, "limit": 1024.0, "why": "x"}  # fmt: skip
    own = {**known, "id": "own", "state": "starting"}
    said = printed(fleet_client.replicas_table({"known": [known], "replicas": [own]}))
    assert "probation" in said
    assert "1024 of 1024" in said
    assert name in re.sub(r"\s", "", said) or name[:20] in said
    version = {"name": LONG, "model": LONG * 3, "share": 1.0, "running": 1024, "room": 1024, "waiting": 123_456}
    row = {"figure": "queue", "percentile": 99, "baseline": 123.4, "canary": 234.5, "worse": 0.999, "fine": 1.0}
    model = {"name": "m", "stage": "stable", "candidate": None, "versions": [version], "verdict": None, "rows": [row],
             "shadow": None, "history": []}  # fmt: skip
    said = printed(rollout_client.shown(model))
    assert "1024 of 1024" in said
    assert "100.0%" in said
    slowest = {"id": "0123456789abcdef" * 3, "lane": LONG, "ago_s": 86_400.0, "ttft_s": 1234.5, "e2e_s": 2345.6,
               "headline": "1234.5 s in the queue behind 1 234 requests, and then a long prefill"}  # fmt: skip
    said = printed(client.slow_table([slowest]))
    assert "1234.50 s" in said
    assert "2345.60 s" in said
