"""Each percentile shown is that one, wherever it is shown: of a distribution whose percentiles are far apart."""

import re
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from headgate.model.record import Record
from headgate.report.json_file import as_dict
from headgate.report.results import Results, Rows
from headgate.report.summary import summarise
from headgate.report.table import show
from tests.observe.records import record
from tests.observe.test_admin import scene
from tests.observe.test_metrics import Scene, find
from tests.replica.engine import engine
from tests.wire.serving import live

STEPS = ((600, 0.1), (320, 0.2), (40, 0.4), (35, 0.8), (5, 1.6))
"""How many of a thousand requests take how many seconds."""
TRUE_S = {"50": 0.1, "90": 0.2, "95": 0.4, "99": 0.8, "99.9": 1.6}
SCALE = {"ttft": 1.0, "tpot": 0.1, "e2e": 10.0, "queue": 0.5}
"""How the figures differ from each other."""


def records() -> list[Record]:
    values = [value for number, value in STEPS for _ in range(number)]
    np.random.default_rng(1).shuffle(values)
    return [
        record(id=f"r-{n}", ttft_s=value, tpot_s=0.1 * value, e2e_s=10 * value, queue_s=0.5 * value, output_tokens=9)
        for n, value in enumerate(values)
    ]


def test_in_prometheus_figures() -> None:
    on = Scene()
    on.take(*records())
    on.now += 1
    samples = on.samples()
    for figure, scale in SCALE.items():
        for percentile, value in TRUE_S.items():
            labels = {"lane": "fast", "figure": figure, "percentile": percentile}
            for window in ("1m", "5m", "1h"):
                found = find(samples, "headgate_latency_seconds", **labels, window=window)
                assert found == pytest.approx(scale * value, rel=0.01), (figure, percentile, window)


@live
async def test_on_the_page_and_for_the_doctor() -> None:
    async with scene(keep=2000) as it, engine() as replica:
        pool = it.join(replica)
        for one in records():
            tpot_s = one.tpot_s or 0.0
            it.close(
                id=one.id, ttft_s=one.ttft_s, tpot_s=tpot_s, e2e_s=one.e2e_s, queue_s=one.queue_s, output_tokens=9,
                stream_s=8 * tpot_s, gaps=(), stalled_s=0.0,
            )  # fmt: skip
        (fast, *_) = (await it.json("/admin/state"))["lanes"]
        for figure, scale in SCALE.items():
            wanted = {f"p{name.replace('.', '')}": pytest.approx(scale * s, rel=0.01) for name, s in TRUE_S.items()}
            assert fast["figures"][figure] == wanted
        (seen, *_) = (await it.json("/admin/doctor"))["figures"]["lanes"]
        assert seen["measured_s"] == {
            "ttft_p50": pytest.approx(0.1, rel=0.01),
            "ttft_p95": pytest.approx(0.4, rel=0.01),
            "ttft_p99": pytest.approx(0.8, rel=0.01),
            "tpot_p50": pytest.approx(0.01, rel=0.01),
            "gap_p99": pytest.approx(0.08, rel=0.01),
            "answer_p95": None,
            "e2e_p95": pytest.approx(4.0, rel=0.01),
            "e2e_p99": pytest.approx(8.0, rel=0.01),
        }
        assert seen["e2e_p999_s"] == pytest.approx(16.0, rel=0.01)
        assert seen["queue_p99_s"] == pytest.approx(0.4, rel=0.01)
        pool.close()


def played() -> Results:
    rows = Rows()
    for n, one in enumerate(records()):
        rows.add(
            at_s=n * 0.01, lane="fast", kind="ok", why="", ttft_s=one.ttft_s, tpot_s=one.tpot_s, max_gap_s=one.tpot_s,
            e2e_s=one.e2e_s, queue_s=one.queue_s, lag_s=0.0, prompt_tokens=4, output_tokens=9, gaps=(),
        )  # fmt: skip
    return rows.results("a run", source="bench")


def test_in_reports() -> None:
    results = played()
    summaries = summarise(results)
    for figure, scale in SCALE.items():
        found = {f"{100 * level:g}": known.value for level, known in summaries["fast"].figures[figure].levels.items()}
        assert found == pytest.approx({name: scale * value for name, value in TRUE_S.items()})
    file = as_dict(results, summaries)
    for name, value in TRUE_S.items():
        assert file[f"p{name}_ttft_ms"] == pytest.approx(1e3 * value)
        assert file[f"p{name}_e2el_ms"] == pytest.approx(1e4 * value)


def test_in_the_terminal() -> None:
    console = Console(width=100, record=True, file=StringIO())
    show(played(), summarise(played()), console)
    lines = console.export_text().splitlines()
    (names,) = {tuple(line.split()) for line in lines if "p99.9" in line and "p50" in line}
    assert [name for name in names if name.startswith("p")] == ["p50", "p90", "p95", "p99", "p99.9"]
    ttft = next(line for line in lines if line.split()[:1] == ["TTFT"])
    shown = [float(part) for part in re.findall(r"[\d.]+", re.sub(r"(?<=\d)[\u00a0\u202f](?=\d)", "", ttft))]
    for value in TRUE_S.values():
        assert 1e3 * value in shown, ttft
