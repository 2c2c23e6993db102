"""`headgate serve --workers N`: several processes on one port that are one gateway, and what becomes of it when one of
them is killed."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.sync.client import connect as connect_websocket

from headgate.replay.replay import Replayed, replay
from tests.engine.process import ask, headgate
from tests.gateway.test_drain import SHORT, STREAM
from tests.gateway.test_gateway import UNWATCHED, chat, double, eventually, seen
from tests.gateway.test_keys import certificate
from tests.ledger import ADMIN_KEYS, ANY_CERTIFICATE
from tests.wire.hammer import Tally, hammer

pytestmark = pytest.mark.timeout(90)


@contextmanager
def several(
    tmp_path: Path, *engines: str, slots: int = 8, workers: int = 2, more: tuple[str, ...] = (), **config: Any
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    path = tmp_path / "headgate.yaml"
    replicas = [{"url": url, "slots": slots} for url in engines]
    keys = {"admin_keys": ADMIN_KEYS} if "tenants" in config else {}
    config = {"replicas": replicas, **keys, **config, "listen": {"port": 0, **config.get("listen", {})}}
    path.write_text(json.dumps(config))
    with headgate("serve", "--config", str(path), "--workers", str(workers), *more) as (process, url):
        yield process, url


def children(process: subprocess.Popen[str]) -> list[int]:
    """Process ids of the brain and its workers, oldest first."""
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return sorted(int(one) for one in found)


def stands(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def listening(url: str) -> Counter[int]:
    """Listening sockets on the gateway's port, by process."""
    port = f":{urlsplit(url).port or 0:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(port) and row[3] == "0A"}
    found: Counter[int] = Counter()
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            found[int(folder.parent.name)] += sum(os.readlink(one) in inodes for one in folder.iterdir())
        except OSError:
            continue
    return +found


class Reading:
    """A stream that is being read, on a connection of its own."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        where = urlsplit(url)
        self.socket = socket.create_connection((where.hostname, where.port), timeout=30)
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n"
        self.socket.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        self.received = b""

    def __enter__(self) -> "Reading":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def until(self, wanted: bytes) -> bytes:
        while wanted not in self.received:
            data = self.socket.recv(65536)
            if not data:
                break
            self.received += data
        return self.received

    def served_by(self, pids: list[int]) -> int:
        """The process at the other end of the connection."""
        own, there = (address[1] for address in (self.socket.getsockname(), self.socket.getpeername()))
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ends = (f":{there:04X}", f":{own:04X}")
        inode = next(row[9] for row in rows if row[1].endswith(ends[0]) and row[2].endswith(ends[1]))
        for pid in pids:
            for one in Path(f"/proc/{pid}/fd").iterdir():
                if os.readlink(one) == f"socket:[{inode}]":
                    return pid
        raise AssertionError("no process has the connection")


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with double() as (_, url):
        yield url


@pytest.fixture(scope="module")
def served(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with several(tmp_path_factory.mktemp("workers"), engine, slots=2) as (process, url):
        yield process, url


def test_every_worker_listens_and_the_page_is_the_same_at_each(served: tuple[subprocess.Popen[str], str]) -> None:
    process, url = served
    brain, *workers = children(process)
    assert set(listening(url)) == set(workers)
    assert len(workers) == 2
    answers = Counter(
        ask(f"{url}{path}")[0] for path in ("/", "/health/ready", "/metrics", "/v1/models") for _ in range(8)
    )
    assert answers == {200: 32}
    assert ask(f"{url}/nothing")[0] == 404
    assert brain not in listening(url)


def test_requests_at_all_workers_are_counted_and_recorded_once(
    served: tuple[subprocess.Popen[str], str], engine: str
) -> None:
    _, url = served

    def one(number: int) -> bytes:
        return ask(f"{url}/v1/chat/completions", chat("n=3", stream=number % 2 == 0), {"x-request-id": f"n{number}"})[1]

    before = completed(url)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(24)))
    assert all((b"[DONE]" in answer) or (b'"w w w "' in answer) for answer in answers)
    eventually(lambda: completed(url) == before + 24)
    told = json.loads(ask(f"{url}/admin/requests/n4")[1])
    assert urlsplit(engine).netloc in json.dumps(told)


def completed(url: str) -> int:
    text = ask(f"{url}/metrics")[1].decode()
    lines = [line for line in text.splitlines() if line.startswith("headgate_requests_total") and "completed" in line]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines)


def test_a_replica_is_never_given_more_than_its_slots_by_all_workers_together(engine: str, tmp_path: Path) -> None:
    with double() as (_, own), several(tmp_path, own, slots=2, workers=3) as (_, url):
        with ThreadPoolExecutor(12) as pool:
            asked = [chat("ttft=20 n=2", stream=True)] * 24
            answers = list(pool.map(lambda body: ask(f"{url}/v1/chat/completions", body)[1], asked))
        assert all(b"[DONE]" in answer or b"too long" in answer or b"wait" in answer for answer in answers)
        assert seen(own)["most"] <= 2


def test_a_tenants_limit_is_one_for_all_workers(engine: str, tmp_path: Path) -> None:
    with several(tmp_path, engine, anonymous={"requests_per_min": 6}) as (_, url):
        got: Counter[int] = Counter()
        left, waits = list[int](), list[int]()
        for _ in range(16):  # each on a connection of its own
            data = json.dumps(chat("n=1")).encode()
            request = urllib.request.Request(f"{url}/v1/chat/completions", data, {"content-type": "application/json"})
            try:
                with urllib.request.urlopen(request) as answer:
                    got[answer.status] += 1
                    left.append(int(answer.headers["x-ratelimit-remaining-requests"]))
            except urllib.error.HTTPError as error:
                got[error.code] += 1
                waits.append(int(error.headers["retry-after"]))
        assert got == {200: 6, 429: 10}
        assert left == [5, 4, 3, 2, 1, 0]
        assert min(waits) >= 1


def test_a_long_prompt_that_replicas_have_cached_is_a_short_request_at_every_worker(
    engine: str, tmp_path: Path
) -> None:
    prompt = "n=1 " + "all of this was said before " * 600
    with several(tmp_path, engine, classify={"long_above_tokens": 2000}) as (_, url):
        for number in range(4):
            body = chat(prompt + f"and {number}", stream=True)
            assert b"[DONE]" in ask(f"{url}/v1/chat/completions", body)[1]
        eventually(lambda: completed(url) == 4)
        text = ask(f"{url}/metrics")[1].decode()
        done = {
            line for line in text.splitlines() if line.startswith("headgate_requests_total{") and "completed" in line
        }
        assert {line.split('lane="')[1].split('"')[0] for line in done} == {"long", "fast"}


def test_a_killed_workers_requests_end_as_cancelled_and_others_notice_nothing(engine: str, tmp_path: Path) -> None:
    with double() as (_, own), several(tmp_path, own, slots=8, **UNWATCHED) as (process, url), ExitStack() as stack:
        _, *workers = before = children(process)
        streams = [stack.enter_context(Reading(url, chat("itl=20 n=100", stream=True))) for _ in range(8)]
        for stream in streams:
            assert b"data:" in stream.until(b"data:")
        by = [stream.served_by(workers) for stream in streams]
        assert len(set(by)) == 2
        os.kill(by[0], signal.SIGKILL)
        for stream, pid in zip(streams, by, strict=True):
            assert (b"[DONE]" in stream.until(b"[DONE]")) is (pid != by[0])
        eventually(lambda: len(children(process)) == 3 and by[0] not in children(process))
        assert set(children(process)) & set(before) == set(before) - {by[0]}
        eventually(lambda: seen(own)["running"] == 0)
        text = ask(f"{url}/metrics")[1].decode()
        (line,) = (one for one in text.splitlines() if one.startswith("headgate_requests_total") and "cancelled" in one)
        assert int(float(line.rsplit(" ", 1)[1])) == by.count(by[0])
        eventually(lambda: len(listening(url)) == 2)
        assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 200


def test_a_killed_brain_ends_no_stream_and_new_requests_wait_for_the_next(engine: str, tmp_path: Path) -> None:
    with double() as (_, own), several(tmp_path, own, slots=2, **UNWATCHED) as (process, url), ExitStack() as stack:
        brain, *workers = children(process)
        stream = stack.enter_context(Reading(url, chat("itl=20 n=150", stream=True)))
        stream.until(b"data:")
        os.kill(brain, signal.SIGKILL)
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: ask(f"{url}/v1/chat/completions", chat("n=1")), range(4)))
        assert {status for status, _ in answers} <= {200, 503}
        assert b"[DONE]" in stream.until(b"[DONE]")
        eventually(lambda: ask(f"{url}/health/ready")[0] == 200)
        assert set(children(process)) > set(workers)
        assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 200


def test_requests_that_outlive_a_brain_are_counted_by_the_next(engine: str, tmp_path: Path) -> None:
    with double() as (_, own), several(tmp_path, own, slots=1, **UNWATCHED) as (process, url), ExitStack() as stack:
        brain = children(process)[0]
        stream = stack.enter_context(Reading(url, chat("itl=20 n=2000", stream=True)))
        stream.until(b"data:")
        os.kill(brain, signal.SIGKILL)
        eventually(lambda: children(process)[0] != brain and ask(f"{url}/health/ready")[0] == 200)
        held = ("tickets", "passages", "room")  # its worker may be the last to come back
        eventually(lambda: itemgetter(*held)(json.loads(ask(f"{url}/admin/ledger")[1])) == (1, 1, 1))
        assert stream.socket.recv(65536), "it goes on"
        stream.socket.close()
        eventually(lambda: json.loads(ask(f"{url}/admin/ledger")[1])["tickets"] == 0)


def test_nothing_outlives_a_killed_parent(engine: str, tmp_path: Path) -> None:
    with several(tmp_path, engine) as (process, _):
        pids = children(process)
        process.kill()
        process.wait()
        eventually(lambda: not any(map(stands, pids)), 15)


def test_no_request_is_cut_while_several_workers_drain(engine: str, tmp_path: Path) -> None:
    with several(tmp_path, engine, slots=64) as (process, url):
        where = urlsplit(url)
        tally = Tally()

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection(where.hostname, where.port)

        async def run() -> None:
            clients = [hammer(connect, STREAM if n % 3 == 0 else SHORT, tally, 0.05, n) for n in range(16)]
            tasks = [asyncio.create_task(client) for client in clients]
            await asyncio.sleep(0.7)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                await asyncio.gather(*tasks)

        asyncio.run(run())
        assert process.wait(15) == 0
    assert tally.cut == []
    assert set(tally.answers) <= {200}
    assert tally.refused == 16


def test_a_changed_file_is_followed_by_every_worker(engine: str, tmp_path: Path) -> None:
    with several(tmp_path, engine) as (process, url):
        path = tmp_path / "headgate.yaml"
        config = json.loads(path.read_text())
        assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 200
        path.write_text(json.dumps({**config, "anonymous": {"allowed": False}, "admin_keys": ADMIN_KEYS}))
        process.send_signal(signal.SIGHUP)
        eventually(lambda: {ask(f"{url}/v1/chat/completions", chat("n=1"))[0] for _ in range(8)} == {401})
        path.write_text(json.dumps(config))
        process.send_signal(signal.SIGHUP)
        eventually(lambda: {ask(f"{url}/v1/chat/completions", chat("n=1"))[0] for _ in range(8)} == {200})
        models = [{"name": "assistant", "versions": [{"name": "a", "model": "double"}]}]
        path.write_text(json.dumps({**config, "models": models}))
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 200


def test_tls_and_websockets_work_at_every_worker(engine: str, tmp_path: Path) -> None:
    cert, _ = certificate(tmp_path)
    with several(tmp_path, engine, listen={"tls": {"cert": str(cert), "key": str(tmp_path / "key.pem")}}) as (_, url):
        for _ in range(6):
            there = f"wss://{urlsplit(url).netloc}/v1/chat/completions"
            with connect_websocket(there, ssl=ANY_CERTIFICATE) as client:
                client.send(json.dumps(chat("n=2", stream=True)))
                assert any('"finish_reason":"stop"' in str(client.recv(10)) for _ in range(3))
            with urllib.request.urlopen(f"{url}/health/ready", context=ANY_CERTIFICATE) as answer:
                assert answer.status == 200


def test_the_event_log_of_several_workers_replays(engine: str, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    with several(tmp_path, engine, slots=2, more=("--event-log", str(log))) as (process, url):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: ask(f"{url}/v1/chat/completions", chat("n=2", stream=n % 2 == 0)), range(24)))
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    decided = replay(log)
    assert isinstance(decided, Replayed), decided
    assert decided.commands >= 24


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"listen": {"workers": 2, "uds": "/tmp/x.sock"}}, "listen.uds"),
        ({"listen": {"workers": 2}, "models": [{"name": "a", "versions": [{"name": "x", "model": "m"}]}]}, "models"),
    ],
)
def test_what_several_workers_cannot_serve_is_refused_in_words(
    tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    path = tmp_path / "headgate.yaml"
    path.write_text(json.dumps({"replicas": [{"url": "http://127.0.0.1:1", "model": "m"}], **config}))
    found = subprocess.run(
        [sys.executable, "-m", "headgate", "serve", "--check", "--config", str(path)],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert found.returncode != 0
    assert said in found.stderr
    assert "workers" in found.stderr
