"""The gateway as its clients meet it: real sockets, engines' doubles behind it, and the official client in front."""

import asyncio
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.engine.process import ask, headgate
from tests.ledger import ADMIN_KEYS

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).parent.parent.parent


# -- engines and gateways -----------------------------------------------------------------------------------


@contextmanager
def double(port: int = 0, model: str = "double") -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gateway.double", str(port), model], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


UNWATCHED: dict[str, Any] = {"output": {"tasks": {"chat": {"runaway": "off"}}}}
"""For tests in which a double says its one word without an end."""


@contextmanager
def gateway(tmp_path: Path, config: dict[str, Any], *engines: str, slots: int = 8) -> Iterator[str]:
    """A gateway process in front of these engines. The file is JSON, which is YAML too."""
    replicas = [{"url": url, "slots": slots} for url in engines]
    path = tmp_path / "headgate.yaml"
    keys = {"admin_keys": ADMIN_KEYS} if "tenants" in config else {}
    path.write_text(json.dumps({"replicas": replicas, "listen": {"port": 0}, **keys, **config}))
    with headgate("serve", "--config", str(path)) as (_, where):
        yield where


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with double() as (_, url):
        yield url


@pytest.fixture(scope="module")
def url(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gateway(tmp_path_factory.mktemp("gateway"), {}, engine) as where:
        yield where


def seen(engine: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(ask(f"{engine}/seen")[1])
    return facts


def eventually(true: Callable[[], bool], within_s: float = 10.0) -> None:
    ends = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < ends


def chat(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "default", "messages": [{"role": "user", "content": content}], **more}


# -- plain use ------------------------------------------------------------------------------------------------


def test_the_official_client_works_unchanged(url: str) -> None:
    messages: Any = [{"role": "user", "content": "n=4"}]
    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        whole = client.chat.completions.create(model="double", messages=messages)
        assert whole.choices[0].message.content == "w w w w "
        chunks = list(client.chat.completions.create(model="double", messages=messages, stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "w w w w "
        assert [model.id for model in client.models.list()] == ["double"]

    async def streamed() -> str:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(model="double", messages=messages, stream=True)
            return "".join([c.choices[0].delta.content or "" async for c in stream])

    assert asyncio.run(streamed()) == "w w w w "


def test_usage_goes_only_to_clients_that_asked_for_it(url: str) -> None:
    silent = ask(f"{url}/v1/chat/completions", chat("n=2", stream=True))[1]
    asked = ask(f"{url}/v1/chat/completions", chat("n=2", stream=True, stream_options={"include_usage": True}))[1]
    assert b"usage" not in silent
    assert b'"completion_tokens":2' in asked
    assert silent.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"messages": "hello"}, 400, "messages"),
        ("/v1/chat/completions", chat("x", stream="yes"), 400, "stream"),
        ("/v1/chat/completions", chat("x", max_tokens=0), 400, "max_tokens"),
        ("/v1/completions", {}, 400, "prompt"),
        ("/v1/embeddings", {"input": []}, 400, "input"),
        ("/v1/nothing", {}, 404, None),
    ],
)
def test_what_makes_no_sense_is_refused_by_name_and_never_reaches_an_engine(
    url: str, engine: str, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    before = seen(engine)["seen"]
    got, answer = ask(url + path, body)
    assert (got, json.loads(answer)["error"]["param"]) == (status, param)
    assert seen(engine)["seen"] == before


def test_the_engines_own_refusal_of_a_request_is_passed_on(url: str) -> None:
    status, answer = ask(f"{url}/v1/embeddings", {"model": "double", "input": "x"})
    assert status == 404
    assert json.loads(answer)["error"]["message"]


def test_health_models_figures_and_page(url: str) -> None:
    assert ask(f"{url}/health/live")[0] == ask(f"{url}/health/ready")[0] == ask(f"{url}/health")[0] == 200
    assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 200
    figures = ask(f"{url}/metrics")[1].decode()
    assert re.search(r'headgate_requests_total\{lane="slow",.*outcome="completed"\} [1-9]', figures)
    assert b"<title>Headgate" in ask(f"{url}/")[1]


# -- leaving ----------------------------------------------------------------------------------------------------


PHASES = {"prefill": "ttft=30000", "decode": "itl=20 n=1000"}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_leaves_reaches_the_engine_within_100_ms(url: str, engine: str, phase: str, stream: bool) -> None:
    before = len(seen(engine)["closed_at"])
    connection = post(url, chat(PHASES[phase], stream=stream))
    eventually(lambda: seen(engine)["running"] == 1)
    if phase == "decode" and stream:
        assert connection.recv(1)
    left_at = time.monotonic()
    connection.close()
    eventually(lambda: len(seen(engine)["closed_at"]) > before)
    assert seen(engine)["closed_at"][-1] - left_at < 0.1
    assert seen(engine)["running"] == 0


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_the_queue_never_reaches_the_engine(tmp_path: Path, engine: str, stream: bool) -> None:
    lanes = {"slow": {"wait_bound_s": 30}, "fast": {"wait_bound_s": 30}}
    with gateway(tmp_path, {"lanes": lanes}, engine, slots=1) as url:
        first = post(url, chat("ttft=30000", stream=stream))
        eventually(lambda: seen(engine)["running"] == 1)
        before = seen(engine)["seen"]
        second = post(url, chat("n=1", stream=stream))
        eventually(lambda: "headgate_waiting" in (text := ask(f"{url}/metrics")[1].decode()) and waiting(text) == 1)
        second.close()
        eventually(lambda: waiting(ask(f"{url}/metrics")[1].decode()) == 0)
        first.close()
        eventually(lambda: seen(engine)["running"] == 0)
        assert seen(engine)["seen"] == before


def waiting(figures: str) -> float:
    return sum(float(line.split()[-1]) for line in figures.splitlines() if line.startswith("headgate_waiting{"))


def post(url: str, body: dict[str, Any], receive_buffer: int | None = None) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((host, int(port)))
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def test_a_running_streams_tokens_are_its_replicas_deep_check(tmp_path: Path) -> None:
    """On a full engine a generation of the gateway's own would take the room of a client's."""
    with double() as (_, engine), gateway(tmp_path, {"health": {"deep_interval_s": 0.1}}, engine, slots=1) as url:
        eventually(lambda: seen(engine)["seen"] > 1)  # while nobody asks, it is made to generate
        with post(url, chat("itl=20 n=100", stream=True)) as connection:
            assert connection.recv(65536)
            time.sleep(0.2)
            before = seen(engine)["seen"]
            time.sleep(1.0)
            assert seen(engine)["seen"] == before
            while b"[DONE]" not in connection.recv(65536):
                pass
        eventually(lambda: seen(engine)["seen"] > before)
        assert json.loads(ask(f"{url}/admin/state")[1])["replicas"][0]["state"] == "up"


def test_whole_answers_are_a_deep_check_too_while_others_are_under_way(tmp_path: Path) -> None:
    with double() as (_, engine), gateway(tmp_path, {"health": {"deep_interval_s": 0.7}}, engine) as url:

        def keep_asking(number: int) -> int:
            """Its requests end out of step with those of the others."""
            ends, sent = time.monotonic() + 2.5, 0
            while time.monotonic() < ends:
                assert ask(f"{url}/v1/chat/completions", chat(f"ttft={100 + 45 * number}"))[0] == 200
                sent += 1
            return sent

        with ThreadPoolExecutor(4) as clients:
            asking = [clients.submit(keep_asking, number) for number in range(4)]
            sent = sum(one.result() for one in asking)
        checks = seen(engine)["seen"] - sent
        assert checks <= 1  # before the first of them; one each 0.7 s would be four


def test_a_client_that_does_not_read_is_let_go_and_memory_stays_flat(tmp_path: Path, engine: str) -> None:
    with gateway(tmp_path, {"timeouts": {"slow_client_grace_s": 0.5}, **UNWATCHED}, engine) as url:
        before = len(seen(engine)["closed_at"])
        connections = [post(url, chat("itl=0.2 n=2000000", stream=True), 4096) for _ in range(4)]
        eventually(lambda: len(seen(engine)["closed_at"]) == before + 4, within_s=20)
        assert ask(f"{url}/health/live")[0] == 200
        for connection in connections:
            rest = b""
            while more := connection.recv(65536):
                rest += more
            assert len(rest) < 1_000_000
            assert b"slow_client" in rest
            assert b"[DONE]" not in rest
            connection.close()
        assert 'outcome="slow_client"} 4\n' in ask(f"{url}/metrics")[1].decode()


# -- engines that fail --------------------------------------------------------------------------------------------


def test_an_engines_death_is_absorbed_before_the_first_byte_explicit_after_and_it_is_used_again_within_5_s(
    tmp_path: Path,
) -> None:
    with double() as (doomed, one), double() as (_, other), gateway(tmp_path, {}, one, other, slots=64) as url:
        port = int(one.rsplit(":", 1)[1])

        async def run() -> None:
            quiet = [asyncio.create_task(stream(url, chat("ttft=1500 n=2", stream=True))) for _ in range(12)]
            loud = [asyncio.create_task(stream(url, chat(f"itl=50 n={60 + step}", stream=True))) for step in range(12)]
            await until(lambda: seen(one)["running"] > 4 and seen(one)["running"] + seen(other)["running"] == 24)
            await asyncio.sleep(0.3)  # until the loud ones have spoken
            doomed.send_signal(signal.SIGKILL)
            quiet_answers, loud_answers = await asyncio.gather(*quiet), await asyncio.gather(*loud)
            assert all(status == 200 and body.endswith(b"[DONE]\n\n") for status, body, _ in quiet_answers)
            broken = [body for _, body, _ in loud_answers if not body.endswith(b"[DONE]\n\n")]
            assert len(broken) > 0
            assert all(b'"error"' in body and b"[DONE]" not in body for body in broken)

        asyncio.run(run())
        for _ in range(20):
            assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 200
        with double(port) as (_, revived):
            began = time.monotonic()
            while not seen(revived)["seen"]:
                assert ask(f"{url}/v1/chat/completions", chat(f"n=1 {time.monotonic()}"))[0] == 200
                assert time.monotonic() - began < 5.0


async def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + 10
    while not await asyncio.to_thread(true):
        assert time.monotonic() < ends


async def stream(url: str, body: dict[str, Any], key: str | None = None) -> tuple[int, bytes, float]:
    """Status, body without chunk sizes, and seconds to the first byte of it (or to the status of a refusal)."""
    host, port = url.removeprefix("http://").split(":")
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    auth = f"authorization: Bearer {key}\r\n" if key else ""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{auth}"
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    try:
        status_line = await reader.readline()
        took = time.perf_counter() - began
        rest = await reader.read()
    except ConnectionError:
        return 0, b"", 0.0
    finally:
        writer.close()
    headers, _, payload = rest.partition(b"\r\n\r\n")
    events = b"".join(part for part in payload.split(b"\r\n") if part.startswith((b"data:", b"{")))
    return int(status_line.split()[1]), headers + b"\n" + events if b"retry-after" in headers else events, took


def test_an_engine_that_says_it_is_busy_is_not_blamed_and_another_is_asked(tmp_path: Path) -> None:
    with double() as (_, one), double() as (_, other), gateway(tmp_path, {}, one, other) as url:
        for engine in (one, other):
            ask(f"{engine}/refuse", b"1")
        for _ in range(4):
            assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 200


# -- too much -----------------------------------------------------------------------------------------------------


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@pytest.mark.timeout(120)
def test_9500_at_once_are_all_answered_and_refusals_are_quick(tmp_path: Path, engine: str) -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 12_000:
        pytest.skip(f"9 500 connections need more than the {hard} open files this machine allows")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with gateway(tmp_path, {}, engine, slots=256) as url:

        async def live(times: list[float], stop: asyncio.Event) -> None:
            while not stop.is_set():
                began = time.perf_counter()
                await asyncio.to_thread(ask, f"{url}/health/live")
                times.append(time.perf_counter() - began)

        async def run() -> tuple[list[tuple[int, bytes, float]], list[float]]:
            times: list[float] = []
            stop = asyncio.Event()
            watching = asyncio.create_task(live(times, stop))
            burst = [stream(url, chat("ttft=300 n=2", stream=True)) for _ in range(9500)]
            answers = await asyncio.gather(*burst)
            stop.set()
            await watching
            return answers, times

        answers, times = asyncio.run(run())
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 503}
    assert statuses.count(200) >= 256
    refusals = [(body, took) for status, body, took in answers if status == 503]
    assert all(b"retry-after:" in body for body, _ in refusals)
    assert len(times) > 5


def test_official_clients_recover_by_themselves_from_429_and_503(tmp_path: Path, engine: str) -> None:
    import hashlib

    tenant = {"key_sha256": [hashlib.sha256(b"k").hexdigest()], "requests_per_min": 60}
    config = {"tenants": {"t": tenant}, "anonymous": {"allowed": False}}
    with gateway(tmp_path, config, engine) as url:
        messages: Any = [{"role": "user", "content": "n=1"}]
        with OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as hasty:

            def ask_until_limited() -> int:
                asked = 0
                try:
                    while asked < 600:
                        hasty.chat.completions.create(model="double", messages=messages)
                        asked += 1
                except openai.RateLimitError:
                    assert asked >= 60  # and one more for each second that it took
                    raise
                return asked

            with pytest.raises(openai.RateLimitError) as caught:
                ask_until_limited()
            assert float(caught.value.response.headers["retry-after-ms"]) > 0
            assert caught.value.response.headers["x-ratelimit-limit-requests"] == "60"
            assert caught.value.response.headers["x-request-id"]
        with OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=5) as patient:
            assert patient.chat.completions.create(model="double", messages=messages).choices
        with OpenAI(base_url=f"{url}/v1", api_key="wrong") as stranger, pytest.raises(openai.AuthenticationError):
            stranger.chat.completions.create(model="double", messages=messages)


# -- neighbours -----------------------------------------------------------------------------------------------------


def keys(names: list[str]) -> dict[str, Any]:
    import hashlib

    return {name: {"key_sha256": [hashlib.sha256(name.encode()).hexdigest()]} for name in names}


@pytest.mark.timeout(120)
def test_a_tenant_that_floods_does_not_move_the_others_p99(tmp_path: Path, engine: str) -> None:
    names = [f"t{n}" for n in range(5)]
    lanes = {"fast": {"wait_bound_s": 30, "queue_limit": 4096}}
    with gateway(tmp_path, {"tenants": keys(names), "lanes": lanes}, engine, slots=4) as url:

        async def load(senders: list[str]) -> dict[str, list[float]]:
            """The same total, sent over half a second, in equal parts by these tenants."""
            took: dict[str, list[float]] = {name: [] for name in names}

            async def one(name: str, delay: float) -> None:
                await asyncio.sleep(delay)
                _, _, seconds = await stream(url, chat("ttft=15 n=1", stream=True), key=name)
                took[name].append(seconds)

            total = len(senders)
            await asyncio.gather(*(one(name, 0.5 * index / total) for index, name in enumerate(senders)))
            return took

        fair = asyncio.run(load([names[n % 5] for n in range(140)]))
        flood = asyncio.run(load((["t0"] * 10 + names[1:]) * 10))
        well_behaved = percentile([t for name in names[1:] for t in fair[name]], 0.99)
        beside_a_flood = percentile([t for name in names[1:] for t in flood[name]], 0.99)
    assert beside_a_flood <= 1.25 * well_behaved


def test_long_prompts_ahead_do_not_hold_short_ones_up(tmp_path: Path, engine: str) -> None:
    with gateway(tmp_path, {"lanes": {"fast": {"wait_bound_s": 20}, "slow": {"wait_bound_s": 60}}}, engine) as url:
        # Each begins in its own way: equal ones would be expected in the cache once the first is sent.
        long = [chat(f"work=300 n=2 {number} " + "word " * 4000, stream=True) for number in range(18)]
        short = chat("work=20 n=2", stream=True)

        async def eleven() -> list[float]:
            return [took for _, _, took in await asyncio.gather(*(stream(url, short) for _ in range(11)))]

        async def behind() -> list[float]:
            ahead = [asyncio.create_task(stream(url, each)) for each in long]
            await until(lambda: seen(engine)["running"] > 0)
            took = await eleven()
            for task in ahead:
                task.cancel()
            return took

        alone, beside = asyncio.run(eleven()), asyncio.run(behind())
    assert percentile(beside, 0.99) <= 3.0 * percentile(alone, 0.99)
    assert statistics.median(beside) < 2.0


# -- the whole thing --------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_serve_without_arguments_runs_its_own_engine_revives_it_and_takes_it_along_when_killed(
    model_path: Path,
) -> None:
    with headgate("serve", "--port", "0", "--slots", "2", "--context", "256") as (process, url):
        status, answer = ask(
            f"{url}/v1/chat/completions", chat("Hello", max_tokens=3) | {"model": "smollm2-135m-instruct"}
        )
        assert status == 200
        assert json.loads(answer)["usage"]["completion_tokens"] == 3
        (engine,) = children(process.pid)
        os.kill(engine, signal.SIGKILL)
        eventually(lambda: children(process.pid) not in ([], [engine]))
        eventually(lambda: ask(f"{url}/v1/chat/completions", chat("Hello", max_tokens=1))[0] == 200, within_s=20)
        engines = children(process.pid)
        assert engines
        process.kill()
        process.wait()
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in engines))


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(line) for line in found.split() if int(line) != os.getpid()]
