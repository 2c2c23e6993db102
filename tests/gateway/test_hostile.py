"""Engines that refuse, fail and die, before the gateway as a process: everybody gets one answer, in time, and no engine
is asked more often than it should be."""

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from headgate.replay.replay import Replayed, replay
from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import ROOT, chat, eventually, gateway, stream

pytestmark = pytest.mark.timeout(60)
CHAT = "/v1/chat/completions"


@contextmanager
def hostile(*moods: str, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "tests.gateway.hostile", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        set_mood(url, *(moods or ("ok",)))
        yield process, url
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def set_mood(engine: str, *moods: str) -> None:
    ask(f"{engine}/mood", json.dumps(moods).encode())


def log_of(engine: str) -> list[tuple[float, str, str, str]]:
    found: list[tuple[float, str, str, str]] = json.loads(ask(f"{engine}/log")[1])["log"]
    return found


def record_of(url: str, name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def there() -> bool:
        lines = ask(f"{url}/admin/records?last=300")[1].splitlines()
        found[:] = [one for one in map(json.loads, lines) if one["id"] == name]
        return bool(found)

    eventually(there)
    return found[0]


def answer(url: str, path: str, body: dict[str, Any], name: str) -> tuple[int, dict[str, str], bytes, float]:
    """Status, headers, body and seconds."""
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"content-type": "application/json", "x-request-id": name}
    )
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=30) as said:
            return said.status, dict(said.headers.items()), said.read(), time.monotonic() - began
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers.items()), error.read(), time.monotonic() - began


def states(url: str) -> list[str]:
    return [one["state"] for one in json.loads(ask(f"{url}/admin/state")[1])["replicas"]]


ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "streamed": (CHAT, chat("hello", stream=True)),
    "whole": (CHAT, chat("hello")),
    "text": ("/v1/completions", {"model": "m", "prompt": "hello", "stream": True}),
    "responses": ("/v1/responses", {"model": "m", "input": "hello"}),
    "responses streamed": ("/v1/responses", {"model": "m", "input": "hello", "stream": True}),
    "embeddings": ("/v1/embeddings", {"model": "m", "input": "hello"}),
}


# -- full ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A gateway before one engine that says 429, and to come back in five seconds."""
    with hostile("429 5") as (_, engine), gateway(tmp_path_factory.mktemp("gateway"), {}, engine) as url:
        yield url, engine


@pytest.mark.parametrize("kind", ASKED)
def test_the_only_engine_says_it_is_full_and_the_client_hears_when_it_will_not_be(
    refusing: tuple[str, str], kind: str
) -> None:
    url, engine = refusing
    path, body = ASKED[kind]
    before = len(log_of(engine))
    name = f"full-{kind.replace(' ', '-')}"
    status, headers, said, took_s = answer(url, path, body, name)
    assert status == 503
    assert took_s < 2.0 + 0.5, "the longest that its lane lets it wait"
    assert 0.0 < float(headers["retry-after-ms"]) / 1e3 <= 5.0
    assert "every replica says that it is full" in json.loads(said)["error"]["message"]
    assert len(log_of(engine)) - before <= 1
    assert record_of(url, name).get("failures", 0) <= 1
    assert states(url) == ["up"]


def test_over_a_websocket_too(refusing: tuple[str, str]) -> None:
    url, engine = refusing
    before = len(log_of(engine))
    with connect(url.replace("http", "ws", 1) + CHAT, compression=None, proxy=None) as client:
        client.send(json.dumps(chat("hello", stream=True)))
        said = json.loads(client.recv(timeout=10))
    assert (said["type"], said["status"]) == ("error", 503)
    assert 1 <= int(said["headers"]["retry-after"]) <= 5
    assert len(log_of(engine)) - before <= 1


def test_an_engine_that_refuses_for_ever_is_hardly_asked_and_one_that_refuses_once_serves_the_next_try(
    tmp_path: Path,
) -> None:
    with hostile("503") as (_, engine), gateway(tmp_path, {}, engine) as url:

        async def clients() -> list[tuple[int, bytes, float]]:
            began, told = time.monotonic(), []
            while time.monotonic() - began < 3.0:
                told += await asyncio.gather(*(stream(url, chat("hello", stream=True)) for _ in range(20)))
            return told

        told = asyncio.run(clients())
        assert {status for status, _, _ in told} == {503}
        times = [at - log_of(engine)[0][0] for at, _, _, _ in log_of(engine)]
        assert sum(at >= 0.1 for at in times) / 3.0 < 20
        assert sum(at < 0.1 for at in times) <= 8, "as many as it is said to have room for"
        time.sleep(0.5)
        set_mood(engine, "429 0.2", "ok")
        status, _, _, took_s = answer(url, CHAT, chat("hello"), "again")
        assert status == 200
        assert took_s < 2.5
        assert record_of(url, "again")["attempts"] == 1, "what it was refused is no attempt"


def test_checks_and_warm_ups_that_find_no_room_are_no_sign_of_illness(tmp_path: Path) -> None:
    config = {
        "health": {"probe_interval_s": 0.1, "deep_interval_s": 0.1},
        "warm": {"timeout_s": 1.0, "keep_alive_s": 0.1},
    }
    with hostile() as (_, engine):
        ask(f"{engine}/full", b"1")
        with gateway(tmp_path, config, engine) as url:  # it is taken into use as well
            own = json.loads(ask(f"{engine}/log")[1])["own"]
            eventually(lambda: json.loads(ask(f"{engine}/log")[1])["own"] > own + 10)
            assert states(url) == ["up"]
            assert answer(url, CHAT, chat("hello"), "well")[0] == 200


def test_attempts_kept_are_bounded_and_counted(tmp_path: Path) -> None:
    lanes = {"fast": {"wait_bound_s": 5}, "slow": {"wait_bound_s": 5}}
    with ExitStack() as stack:
        engines = [stack.enter_context(hostile("429 0.1"))[1] for _ in range(3)]
        url = stack.enter_context(gateway(tmp_path, {"lanes": lanes}, *engines))
        assert answer(url, CHAT, chat("hello"), "often")[0] == 503
        record = record_of(url, "often")
        assert sum(len(log_of(engine)) for engine in engines) == record["failures"] > 8
        assert len(record["failed"]) == 8
        times = [one["at_s"] for one in record["failed"]]
        assert times == sorted(times)
        assert times[3] < 0.5 < 1.5 < times[5], "the first few and the last few"


# -- poison -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("say", ["500", "reset", "error", "deep"])
@pytest.mark.parametrize("replicas", [1, 4])
def test_a_poison_request_gets_one_502_and_takes_nobody_down(tmp_path: Path, replicas: int, say: str) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(hostile())[1] for _ in range(replicas)]
        url = stack.enter_context(gateway(tmp_path, {}, *engines))
        status, _, said, took_s = answer(url, CHAT, chat(f"say={say}", stream=say == "error"), "poison")
        assert status == 502
        assert took_s < 1.0
        assert sum(len(log_of(engine)) for engine in engines) == 3
        record = record_of(url, "poison")
        assert (record["attempts"], record["outcome"]) == (3, "replica_failed")
        if say == "500":
            message = json.loads(said)["error"]["message"]
            assert "the replica answered 500: Traceback" in message
            assert message.isprintable()
            assert len(message) < 600

        async def four_a_second() -> list[tuple[int, bytes, float]]:
            told: list[tuple[int, bytes, float]] = []
            for step in range(12):
                bad = [stream(url, chat(f"say={say} {step} {number}", stream=True)) for number in range(2)]
                good = [stream(url, chat(f"good {step} {number}", stream=True)) for number in range(4)]
                told += (await asyncio.gather(*bad, *good))[2:]
                found = states(url)
                assert sum(state in ("up", "ramping") for state in found) >= (replicas + 1) // 2
                await asyncio.sleep(0.15)
            return told

        told = asyncio.run(four_a_second())
        assert Counter(status for status, _, _ in told) == {200: 48}
        assert max(took for _, _, took in told) < 1.0
        sent = Counter(asked for engine in engines for _, _, mood, asked in log_of(engine) if mood == say)
        assert max(sent.values()) <= 3


@pytest.mark.parametrize("streamed", [True, False])
def test_a_request_that_kills_engines_kills_three_of_five(tmp_path: Path, streamed: bool) -> None:
    """Over connections that were used before too: it is not sent again on a fresh one as if it had not been read."""
    with ExitStack() as stack:
        engines = [stack.enter_context(hostile()) for _ in range(5)]
        url = stack.enter_context(gateway(tmp_path, {}, *(engine for _, engine in engines)))

        async def used() -> None:
            for _ in range(3):
                told = await asyncio.gather(*(stream(url, chat(f"{number}", stream=True)) for number in range(30)))
                assert {status for status, _, _ in told} == {200}

        asyncio.run(used())
        status, _, _, took_s = answer(url, CHAT, chat("say=die", stream=streamed), "killer")
        assert status == 502
        assert took_s < 2.0
        assert sum(process.poll() is None for process, _ in engines) >= 2
        assert answer(url, CHAT, chat("hello"), "after")[0] == 200


def test_a_stream_that_breaks_off_wherever_it_is_ends_after_three(tmp_path: Path) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(hostile())[1] for _ in range(5)]
        url = stack.enter_context(gateway(tmp_path, {}, *engines))
        status, _, said, _ = answer(url, CHAT, chat("say=cut", stream=True), "cut")
        assert status == 200
        assert b'"error"' in said
        assert b"[DONE]" not in said
        assert sum(len(log_of(engine)) for engine in engines) <= 3


# -- everything at once -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_engines_that_do_as_they_like(tmp_path: Path, seed: int) -> None:
    """Each client gets exactly one answer, in time; no replica is asked too often; half the fleet stays in use."""
    rng = random.Random(seed)
    moods = ["ok"] * 30 + ["429 0.3", "429", "503 0", "503", "500", "reset", "slow", "error", "cut"]
    with ExitStack() as stack:
        engines = [stack.enter_context(hostile(*(rng.choice(moods) for _ in range(40))))[1] for _ in range(3)]
        set_mood(engines[0], "429 1")  # one is always full
        config = {"replicas": [{"url": one, "slots": 8} for one in engines], "listen": {"port": 0}}
        (tmp_path / "headgate.yaml").write_text(json.dumps({**config, "hedge": {"enabled": True}}))
        events = tmp_path / "events.jsonl"
        arguments = ("--config", str(tmp_path / "headgate.yaml"), "--event-log", str(events))
        process, url = stack.enter_context(headgate("serve", *arguments))
        found: list[int] = []

        async def client(number: int) -> tuple[int, bytes, float]:
            await asyncio.sleep(rng.uniform(0.0, 6.0))
            body = chat(f"hello {number}", stream=rng.random() < 0.6)
            began = time.monotonic()
            status, said, _ = await asyncio.wait_for(stream(url, body), 20)
            return status, said, time.monotonic() - began

        async def look() -> None:
            for _ in range(30):
                await asyncio.sleep(0.2)
                state = await asyncio.to_thread(states, url)
                found.append(sum(one in ("up", "ramping") for one in state))

        async def run() -> list[tuple[int, bytes, float]]:
            told, _ = await asyncio.gather(asyncio.gather(*(client(number) for number in range(400))), look())
            return told

        told = asyncio.run(run())
        statuses = Counter(status for status, _, _ in told)
        assert sum(statuses.values()) == 400
        assert set(statuses) <= {200, 502, 503}
        assert statuses[200] > 250
        for status, said, took_s in told:
            assert took_s < 12.0, "the wait for a replica to come up, and what was lost before"
            if status == 200 and said.startswith(b"data:"):
                assert (b"[DONE]" in said) != (b'"error"' in said)
        assert min(found) >= 2
        records = [json.loads(line) for line in ask(f"{url}/admin/records?last=1000")[1].splitlines()]
        assert len({one["id"] for one in records}) == len(records) == 400
        assert max(one.get("attempts", 0) for one in records) <= 3
        full = [at for at, _, _, _ in log_of(engines[0])]
        for at in full[8:]:
            assert sum(at <= other < at + 1.0 for other in full) < 20
        state = json.loads(ask(f"{url}/admin/state")[1])
        assert all(one["requests"] == 0 for one in state["replicas"]), "nothing is left behind"
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        again = replay(events)
        assert isinstance(again, Replayed), str(again)
        assert again.commands > 400
