"""All of `headgate bench`: from options to a table, a file, a page and an exit code."""

import asyncio
import io
import itertools
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from headgate.bench import compare
from headgate.bench.beside import added, slices
from headgate.bench.measure import measure
from headgate.bench.options import BenchOptions, read_keys
from headgate.bench.run import run
from headgate.model.clock import monotonic
from headgate.model.errors import StartupError
from headgate.report.results import Rows
from headgate.wire.exchange import Exchange
from headgate.workload.arrival import Arrival
from tests.bench.scene import Scripted, live, serving, whole_stream

MIX = "chat=poisson:rate=60,lane=fast; nightly=constant:rate=20,lane=batch"


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """The double, in a process of its own: `run` has a loop of its own."""
    argv = [sys.executable, "-m", "tests.gateway.double", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


def seen(url: str) -> int:
    with urllib.request.urlopen(f"{url}/seen") as answer:
        found: int = json.load(answer)["seen"]
        return found


def consoles(width: int = 100) -> tuple[Console, Console, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Console(file=out, width=width), Console(file=err, width=200), out, err


def test_a_run_with_everything(engine: str, tmp_path: Path) -> None:
    out, err, said, progress = consoles()
    options = BenchOptions(
        url=engine,
        workload=MIX,
        duration_s=1.5,
        goodput=("ttft:500", "tpot:80"),
        json=tmp_path / "a.json",
        html=tmp_path / "a.html",
        title="a first look",
        allow_lag=True,  # others may use this machine
    )
    before = seen(engine)
    assert run(options, out, err) == 0
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["completed"] == data["num_prompts"] == seen(engine) - before > 80
    assert data["failed"] == 0
    assert set(data["headgate"]["lanes"]) == {"fast", "batch"}
    assert data["request_goodput"] > 0
    assert data["model_id"] == "double"
    for text in (said.getvalue(), (tmp_path / "a.html").read_text()):
        for word in ("a first look", "fast", "batch", "all lanes", "chat = poisson, 60/s for 2 s", "TTFT", "p99.9"):
            assert word in text
    assert "idle" in said.getvalue()
    assert "after it was due" in said.getvalue()
    assert "a.html" in progress.getvalue()


def test_the_same_seed_asks_the_same(engine: str, tmp_path: Path) -> None:
    files = []
    for name in ("a.json", "b.json"):
        out, err, _, _ = consoles()
        options = BenchOptions(
            url=engine, workload="poisson:rate=100,prompt=5-50", duration_s=0.5, json=tmp_path / name, allow_lag=True
        )
        assert run(options, out, err) == 0
        files.append(json.loads((tmp_path / name).read_text()))
    assert files[0]["start_times"] == files[1]["start_times"]
    assert files[0]["input_lens"] == files[1]["input_lens"]


def test_two_files_are_compared(engine: str, tmp_path: Path) -> None:
    paths = [tmp_path / "before.json", tmp_path / "after.json"]
    for path in paths:
        out, err, _, _ = consoles()
        options = BenchOptions(
            url=engine, workload="poisson:rate=100,lane=fast", duration_s=0.6, json=path, allow_lag=True
        )
        assert run(options, out, err) == 0
    out, _, said, _ = consoles()
    assert compare.run(paths, page=tmp_path / "both.html", out=out) == 0
    assert "p50 TTFT fast: " in said.getvalue()
    assert "differences are real" in said.getvalue()
    assert "before → after" in (tmp_path / "both.html").read_text()
    with pytest.raises(StartupError, match="Give two files"):
        compare.run(paths[:1])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"url": "http://127.0.0.1:1"}, "can't be reached"),
        ({"url": "http://nowhere.invalid:1"}, "can't be reached"),
        ({"url": "file:///x"}, "is no address"),
        ({"workload": "poison:rate=1"}, "did you mean 'poisson'?"),
        ({"goodput": ("first:5",)}, "--goodput knows"),
        ({"json": Path("/no/such/folder/x.json")}, "there is no folder"),
        ({"extra_body": "[]"}, "--extra-body is an object"),
        ({"extra_body": "{"}, "--extra-body is no JSON"),
        ({"keys": ("env:NO_SUCH_NAME",)}, "the environment has no NO_SUCH_NAME"),
        ({"workload": "poisson:rate=1,tenant=a|b"}, "give each one, as in --key a=KEY"),
        ({"workload": "poisson:rate=1,tenant=a|b", "keys": ("a=x",)}, "no key for tenant b"),
    ],
)
def test_what_can_not_be_begun_is_said_in_one_line(engine: str, changed: dict[str, object], said: str) -> None:
    given: dict[str, object] = {"url": engine, "workload": "poisson:rate=10", "duration_s": 0.2, **changed}
    with pytest.raises(StartupError) as caught:
        run(BenchOptions(**given), *consoles()[:2])  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_keys() -> None:
    assert read_keys(("plain", "acme=k1", "x=env:NAME", "padded=="), {"NAME": "v"}) == {
        "": "plain",
        "acme": "k1",
        "x": "v",
        "padded": "=",
    }
    with pytest.raises(StartupError, match="no spaces"):
        read_keys(("a b",), {})


def test_a_client_that_falls_behind_fails_the_run_unless_allowed(engine: str) -> None:
    def slow() -> float:
        return monotonic() + next(steps) * 5e-3

    for allow, code in ((False, 1), (True, 0)):
        steps = itertools.count()
        out, err, said, complaint = consoles()
        options = BenchOptions(url=engine, workload="constant:rate=1000", requests=150, allow_lag=allow)
        assert run(options, out, err, clock=slow) == code
        assert "the client fell behind" in " ".join(said.getvalue().split())
        assert ("--allow-lag" in complaint.getvalue()) != allow


def test_nothing_completed_fails_the_run(tmp_path: Path) -> None:
    @live
    async def measured() -> None:
        async with serving(Scripted(lambda exchange: exchange.respond(500, b"{}"))) as url:
            loop = asyncio.get_running_loop()
            options = BenchOptions(url=url, workload="constant:rate=50", requests=5)
            assert await loop.run_in_executor(None, lambda: run(options, *consoles()[:2])) == 1

    measured()


@pytest.mark.timeout(60)
def test_ctrl_c_reports_what_was_done(engine: str, tmp_path: Path) -> None:
    program = (
        "import sys; from headgate.bench.run import run; from headgate.bench.options import BenchOptions\n"
        f"from pathlib import Path; sys.exit(run(BenchOptions(url={engine!r}, workload='constant:rate=50,lane=fast', "
        f"duration_s=600, allow_lag=True, json=Path({str(tmp_path / 'x.json')!r}))))"
    )
    before = seen(engine)
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while seen(engine) < before + 20:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "interrupted" in out
    assert "fast  " in out
    assert json.loads((tmp_path / "x.json").read_text())["completed"] >= 15


# -- what the gateway adds --------------------------------------------------------------------------------------


def test_arrivals_are_cut_into_slices() -> None:
    arrivals = [Arrival(at, 1, 1) for at in (0.0, 0.9, 1.0, 3.5, 3.6)]
    found = [(begin, [a.at_s for a in slice_]) for begin, slice_ in slices(iter(arrivals), 1.0)]
    assert found == [(0.0, [0.0, 0.9]), (1.0, [1.0]), (3.0, [3.5, 3.6])]


@live
async def test_what_the_way_through_the_gateway_costs() -> None:
    def late(exchange: Exchange) -> None:
        asyncio.get_running_loop().call_later(0.03, whole_stream, exchange)

    through, direct = Scripted(late), Scripted(whole_stream)
    async with serving(through) as gateway, serving(direct) as engine:
        options = BenchOptions(
            url=gateway,
            direct=(engine,),
            workload="a=poisson:rate=60; b=poisson:rate=20",
            duration_s=1.5,
            slice_s=0.5,
            keys=("secret",),
        )
        measured = await measure(options)
    assert len(through.asked) == len(direct.asked) == len(measured.results) > 80
    assert measured.direct is not None
    assert measured.direct.at_s.tolist() == measured.results.at_s.tolist()
    texts = [{body["messages"][0]["content"] for _, _, body in side.asked} for side in (through, direct)]
    assert not texts[0] & texts[1], "what one has left in a cache would help the other"
    assert all("authorization" not in headers for _, headers, _ in direct.asked), (
        "the gateway's key is not the engine's"
    )
    found = {(item.lane, item.what): item.added for item in measured.added}
    median = found["", "p50 TTFT"]
    assert median.low is not None
    assert median.high is not None
    assert 0.025 < median.low <= median.value <= median.high < 0.06
    assert ("a", "p90 e2e") in found
    assert ("b", "p90 e2e") in found


def test_two_ways_that_are_the_same_add_nothing() -> None:
    rng = np.random.default_rng(4)
    sides = [Rows(), Rows()]
    work = rng.lognormal(0, 1, 2000)
    for side in sides:
        for index, each in enumerate(work):
            side.add(at_s=index * 0.01, lane="fast", ttft_s=each + rng.normal(0, 0.01), e2e_s=each + 1)
    a, b = (side.results("x", source="bench") for side in sides)
    for item in added(a, b):
        assert item.added.low is not None
        assert item.added.high is not None
        assert item.added.low <= 0 <= item.added.high
        assert item.added.high - item.added.low < 0.05, "what both have in common does not widen it"
