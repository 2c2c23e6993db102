"""What a run says about itself: the lanes that the server used, what was cached, its seed."""

import json
from http.client import HTTPConnection
from pathlib import Path

import pytest

from headgate.__main__ import app
from headgate.bench.measure import measure
from headgate.bench.options import BenchOptions
from headgate.bench.run import run
from headgate.wire.exchange import Exchange
from tests.bench.scene import LAST, TOKEN, Scripted, live, serving, whole_stream
from tests.bench.test_run import consoles
from tests.gateway.test_gateway import chat, double, gateway

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("trusted", [False, True])
def test_the_lane_that_the_server_really_used_is_said(trusted: bool, tmp_path: Path) -> None:
    config = {"anonymous": {"trusted": trusted}}
    with double() as (_, engine), gateway(tmp_path, config, engine) as url:
        out, err, said, _ = consoles()
        load = "a=constant:rate=40,lane=batch; b=constant:rate=20"
        options = BenchOptions(url=url, workload=load, duration_s=1.0, allow_lag=True, json=tmp_path / "a.json")
        assert run(options, out, err) == 0
        used = json.loads((tmp_path / "a.json").read_text())["lanes_used"]
        assert used == (
            {"batch": {"batch": 40}, "b": {"fast": 20}} if trusted else {"batch": {"fast": 40}, "b": {"fast": 20}}
        )
        text = " ".join(said.getvalue().split())
        assert ("b → fast" in text) is True
        assert ("the server put 40 of 40 requests for lane batch into fast" in text) is not trusted


@live
async def test_a_server_that_says_nothing_of_lanes_is_not_believed_to_have_any() -> None:
    async with serving(Scripted(whole_stream)) as url:
        options = BenchOptions(url=url, workload="constant:rate=50,lane=fast", requests=10, allow_lag=True)
        measured = await measure(options)
        assert measured.lanes == {}
        assert any("does not say which lane" in note for note in measured.results.notes)
        plain = await measure(BenchOptions(url=url, workload="constant:rate=50", requests=10, allow_lag=True))
        assert not any("lane" in note for note in plain.results.notes)


def cached(exchange: Exchange) -> None:
    exchange.stream()
    exchange.event(TOKEN)
    exchange.event(LAST)
    details = b'"prompt_tokens_details":{"cached_tokens":90}'
    exchange.event(b'{"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":1,%b}}' % details)
    exchange.end(b"[DONE]")


@live
async def test_prompts_that_were_cached_are_said() -> None:
    async with serving(Scripted(cached)) as url:
        measured = await measure(BenchOptions(url=url, workload="constant:rate=50", requests=10, allow_lag=True))
        assert measured.results.facts["cached"].startswith("90.0")
        assert any("prefix cache" in note and "--seed" in note for note in measured.results.notes)
    async with serving(Scripted(whole_stream)) as url:
        measured = await measure(BenchOptions(url=url, workload="constant:rate=50", requests=10, allow_lag=True))
        assert "cached" not in measured.results.facts


def test_the_seed_is_another_one_each_time_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BenchOptions] = []

    def fake(options: BenchOptions) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr("headgate.bench.run.run", fake)
    for arguments in ([], [], [], ["--seed", "7"], ["--seed", "7"]):
        with pytest.raises(SystemExit):
            app(["bench", "http://127.0.0.1:1", *arguments])
    seeds = [options.seed for options in seen]
    assert len(set(seeds[:3])) > 1
    assert seeds[3:] == [7, 7]


def test_a_refusal_says_its_lane_too_and_nobody_is_told_who_does_not_ask(tmp_path: Path) -> None:
    config = {"anonymous": {"requests_per_min": 1}}
    body = json.dumps(chat("n=1")).encode()
    with double() as (_, engine), gateway(tmp_path, config, engine) as url:
        found = []
        for more in ({"x-headgate-timings": "1"}, {"x-headgate-timings": "1"}, {}):
            connection = HTTPConnection(url.removeprefix("http://"))
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json", **more})
            answer = connection.getresponse()
            answer.read()
            found.append((answer.status, answer.getheader("x-headgate-lane"), answer.getheader("x-headgate-queue-ms")))
            connection.close()
    (ok, lane, waited), refused, silent = found
    assert (ok, lane) == (200, "slow")
    assert waited is not None
    assert float(waited) >= 0
    assert refused == (429, "slow", None)
    assert silent == (429, None, None)
