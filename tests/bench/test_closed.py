"""A closed loop: a fixed number of requests at once."""

import json
from pathlib import Path

import pytest

from headgate.bench.measure import measure
from headgate.bench.options import BenchOptions
from headgate.bench.run import run
from headgate.model.errors import StartupError
from headgate.wire.exchange import Exchange
from tests.bench.scene import Scripted, doubling, live, serving
from tests.bench.test_run import consoles, engine  # noqa: F401

pytestmark = pytest.mark.timeout(60)


@live
async def test_as_many_are_under_way_as_were_asked_for_all_the_time() -> None:
    async with doubling() as (double, url):
        double.held_s = 0.05
        options = BenchOptions(url=url, workload="constant:rate=1", concurrency=7, duration_s=1.5)
        measured = await measure(options)
        results = measured.results
        assert double.most == 7
        assert double.seen > 7 * 10
        assert len(results) == double.seen - 7  # those that began together are left out
        assert any("first 7 requests" in note for note in results.notes)
        assert any("closed loop" in note for note in results.notes)
        assert results.facts["loop"].startswith("closed, 7 at once")
        assert results.ok.all()
        assert 0.05 <= float(results.ttft_s.min()) < 0.3  # from when it was sent, not from a schedule
        assert results.at_s.max() <= 1.6


@live
async def test_it_ends_after_so_many_requests_and_none_is_left_out_of_a_few() -> None:
    async with doubling() as (double, url):
        measured = await measure(BenchOptions(url=url, workload="poisson:rate=2", concurrency=4, requests=9))
        assert len(measured.results) == double.seen == 9
        assert double.most == 4
        more = await measure(BenchOptions(url=url, workload="poisson:rate=2", concurrency=50, requests=3))
        assert len(more.results) == 3


@live
async def test_a_server_that_refuses_at_once_is_not_asked_for_ever() -> None:
    async with serving(Scripted(refuse)) as url:
        options = BenchOptions(url=url, workload="constant:rate=1", concurrency=3, duration_s=1.0)
        measured = await measure(options)
        assert 3 * 5 <= len(measured.results) + 3 <= 3 * 11
        assert not measured.results.ok.any()


def refuse(exchange: Exchange) -> None:
    exchange.respond(503, b'{"error":{"message":"full","code":503}}')


def test_p99_at_so_many_at_once_on_the_command_line(engine: str, tmp_path: Path) -> None:  # noqa: F811
    out, err, said, _ = consoles(80)
    options = BenchOptions(
        url=engine, workload="poisson:rate=1,prompt=20", concurrency=20, duration_s=1.0, json=tmp_path / "a.json"
    )
    assert run(options, out, err) == 0
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["completed"] > 40
    assert "closed, 20 at once" in said.getvalue()


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"rate": 3.0}, "--rate"),
        ({"time_scale": 3.0}, "--time-scale"),
        ({"direct": ("http://127.0.0.1:1",)}, "--direct"),
        ({"concurrency": 0}, "from 1 to"),
        ({"concurrency": 10**6}, "from 1 to"),
    ],
)
def test_what_makes_no_sense_with_it_is_said(more: dict[str, object], word: str) -> None:
    given: dict[str, object] = {"url": "http://127.0.0.1:1", "workload": "poisson:rate=1", "concurrency": 2, **more}
    with pytest.raises(StartupError, match=word):
        run(BenchOptions(**given))  # type: ignore[arg-type]
