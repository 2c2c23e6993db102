"""Completions over a WebSocket, as clients meet them: a real client library, the gateway as a process."""

import asyncio
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from headgate.gateway.websocket import Conversation, open_message
from headgate.model.errors import ServeError
from headgate.wire.limits import WireLimits
from headgate.wire.message import MessageExchange
from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import PHASES, ROOT, chat, double, eventually, gateway, seen
from tests.wire.serving import Recorder

pytestmark = pytest.mark.timeout(60)


def known(key: str) -> dict[str, Any]:
    return {"key_sha256": [hashlib.sha256(key.encode()).hexdigest()]}


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with double() as (_, url):
        yield url


@pytest.fixture(scope="module")
def url(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = {
        "limits": {"body_bytes": 300_000},
        "timeouts": {"slow_client_grace_s": 0.5},
        "tenants": {"known": known("sk-known"), "few": {**known("sk-few"), "requests_per_min": 1}},
        "anonymous": {"allowed": True},
    }
    with gateway(tmp_path_factory.mktemp("gateway"), config, engine) as where:
        yield where


@contextmanager
def opened(url: str, path: str = "/v1/chat/completions", **options: Any) -> Iterator[ClientConnection]:
    with connect(url.replace("http", "ws", 1) + path, compression=None, proxy=None, **options) as client:
        yield client


def say(client: ClientConnection, body: dict[str, Any]) -> None:
    client.send(json.dumps(body))


def answer(client: ClientConnection) -> list[str]:
    """Up to what ends it."""
    messages: list[str] = []
    while not messages or (messages[-1] != "[DONE]" and '"type":"error"' not in messages[-1]):
        message = client.recv(timeout=20)
        assert isinstance(message, str)
        messages.append(message)
    return messages


def error(client: ClientConnection) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(answer(client)[-1])
    return said


def record(url: str, request_id: str) -> dict[str, Any]:
    found = [json.loads(line) for line in ask(f"{url}/admin/records?last=300")[1].splitlines()]
    return next(each for each in reversed(found) if each["id"] == request_id)


# -- the same answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"stream_options": {"include_usage": True}}])
def test_the_messages_are_what_the_events_would_be(url: str, more: dict[str, Any]) -> None:
    body = chat("n=4", stream=True, **more)
    events = ask(f"{url}/v1/chat/completions", body)[1].decode().removesuffix("\n\n").split("\n\n")
    with opened(url) as client:
        for _ in range(3):
            say(client, body)
            assert answer(client) == [event.removeprefix("data: ") for event in events]


def test_an_answer_in_one_piece_is_one_message(url: str) -> None:
    with opened(url) as client:
        say(client, chat("n=2"))
        whole, done = answer(client)
    assert whole.encode() == ask(f"{url}/v1/chat/completions", chat("n=2"))[1]
    assert done == "[DONE]"


def test_text_completions_have_a_websocket_too(url: str) -> None:
    with opened(url, "/v1/completions") as client:
        say(client, {"model": "double", "prompt": "n=2", "stream": True})
        assert [json.loads(message)["choices"][0]["text"] for message in answer(client)[:-1]] == ["w ", "w "]


def test_requests_sent_at_once_are_answered_in_order(url: str) -> None:
    with opened(url) as client:
        for tokens in (3, 1, 2):
            say(client, chat(f"itl=10 n={tokens}", stream=True))
        assert [len(answer(client)) for _ in range(3)] == [4, 2, 3]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat("x", max_tokens=0), "max_tokens"),
        ({"messages": []}, "messages"),
        ('{"messages": [], "messages": []}', "messages"),
        ("no JSON", None),
        ("[]", None),
        ("[" * 100_000, None),
        ({**chat("x"), "type": "response.create"}, "type"),
        ({**chat("x"), "event_id": 7}, "event_id"),
        ({"model": "no", "messages": [{"role": "user", "content": "x" * 100_000}], "stream": 1}, "stream"),
    ],
)
def test_what_makes_no_sense_is_refused_as_over_http_and_the_next_is_answered(
    url: str, body: dict[str, Any] | str, param: str | None
) -> None:
    with opened(url) as client:
        client.send(body if isinstance(body, str) else json.dumps(body))
        said = error(client)
        assert (said["type"], said["status"], said["error"]["param"]) == ("error", 400, param)
        assert record(url, said["request_id"])["outcome"] == "invalid"
        if param not in ("type", "event_id"):
            raw = body.encode() if isinstance(body, str) else body
            assert json.loads(ask(f"{url}/v1/chat/completions", raw)[1])["error"] == said["error"]
        say(client, chat("n=1"))
        assert answer(client)[-1] == "[DONE]"


def test_a_client_may_name_its_request(url: str, engine: str) -> None:
    with opened(url) as client:
        say(client, chat("n=1", event_id="my-1", stream=True))
        assert answer(client)[-1] == "[DONE]"
        say(client, chat("n=1 " + "x" * 100_000, event_id="my-2"))
        assert answer(client)[-1] == "[DONE]"
        say(client, chat("x", event_id="not a good one/", max_tokens=0))
        said = error(client)
    assert record(url, "my-1")["outcome"] == record(url, "my-2")["outcome"] == "completed"
    assert record(url, "my-2")["prompt_tokens"] > 10_000
    assert said["event_id"] == "not a good one/" != said["request_id"]


def test_records_are_those_of_http(url: str) -> None:
    ask(f"{url}/v1/chat/completions", chat("n=3", stream=True), {"x-request-id": "over-http"})
    with opened(url) as client:
        say(client, chat("n=3", stream=True, event_id="over-websocket"))
        answer(client)
    one, other = record(url, "over-http"), record(url, "over-websocket")
    same = ("lane", "tenant", "model", "outcome", "status", "operation", "stream", "output_tokens", "prompt_tokens")
    assert [one.get(name) for name in same] == [other.get(name) for name in same]
    assert other["ttft_s"] > 0


def test_an_envelope_is_taken_off_and_nothing_else_is_changed() -> None:
    limits = WireLimits()
    plain = b'{"model": "m", "messages": []}'
    assert open_message(plain, limits) == (plain, None, None)
    assert open_message(b'{"event_id":"e","a":1.0}', limits) == (b'{"a":1.0}', "e", None)
    twice = b'{"a":1,"a":2,"event_id":"e"}'
    opened_twice = open_message(twice, limits)
    assert opened_twice[:2] == (twice, "e")
    assert "duplicate key" in str(opened_twice.error), "it need not be read once more to be refused"


# -- leaving, and not wanting more ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "close", "vanish"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("phase", PHASES)
def test_whoever_wants_no_more_reaches_the_engine_within_100_ms(
    url: str, engine: str, phase: str, stream: bool, how: str
) -> None:
    before = len(seen(engine)["closed_at"])
    name = f"{how}-{phase}-{stream}"
    with opened(url) as client:
        say(client, chat(PHASES[phase], stream=stream, event_id=name))
        eventually(lambda: seen(engine)["running"] == 1)
        if phase == "decode" and stream:
            client.recv()
        left_at = time.monotonic()
        if how == "cancel":
            client.send('{"type":"cancel"}')
        elif how == "close":
            client.close()
        else:
            client.socket.shutdown(socket.SHUT_RDWR)
        eventually(lambda: len(seen(engine)["closed_at"]) > before)
        assert seen(engine)["closed_at"][-1] - left_at < 0.1
        if how == "cancel":
            said = error(client)
            assert (said["status"], said["event_id"], said["error"]["code"]) == (499, name, "cancelled")
            client.send('{"type":"cancel"}')  # there is nothing to cancel
            say(client, chat("n=1"))
            assert answer(client)[-1] == "[DONE]"
    eventually(lambda: seen(engine)["running"] == 0)
    assert record(url, name)["outcome"] == "cancelled"
    assert record(url, name).get("status", 200) == (200 if phase == "decode" and stream else 499)


def test_cancelling_ends_what_is_answered_and_not_what_waits_behind_it(url: str) -> None:
    with opened(url) as client:
        say(client, chat("ttft=30000", stream=True, event_id="first"))
        say(client, chat("n=1", stream=True, event_id="second"))
        client.send('{"type":"cancel"}')
        assert error(client)["event_id"] == "first"
        assert answer(client)[-1] == "[DONE]"


def test_a_long_message_that_is_cancelled_before_it_is_opened_is_named(url: str) -> None:
    long = json.dumps({**chat("ttft=30000", stream=True, event_id="long-cancelled"), "zz": ["x" * 100] * 2000})
    with opened(url) as client:
        for _ in range(5):
            client.send(long)
            client.send('{"type":"cancel"}')
            said = error(client)
            assert (said["status"], said["event_id"], said["request_id"]) == (499, "long-cancelled", "long-cancelled")


class AtOnce:
    """A gateway that answers in the same moment, and a socket that keeps what is said."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.transport = Recorder()
        self.loop = asyncio.get_running_loop()
        self.limits = WireLimits()
        self.open_now: dict[Any, Any] = {}
        self.writable = self.is_open = True
        self.draining = self.drained = False
        self.access = None
        self.talk = Conversation(self, self, "/v1/chat/completions", {})  # type: ignore[arg-type]
        self.talk.on_open(self, self)  # type: ignore[arg-type]

    def clock(self) -> float:
        return 0.0

    def new_id(self) -> str:
        return "r"

    def complete(self, exchange: MessageExchange) -> None:
        self.order.append(exchange.body.decode())
        self.loop.call_soon(self.order.append, "other")
        exchange.respond(200, b"{}")

    def turn_away(self, exchange: MessageExchange, error: ServeError) -> None:
        self.order.append(f"{error.outcome.value} {exchange.event_id}")
        exchange.fail(error)

    def send(self, data: bytes) -> None: ...

    def drain(self) -> None:
        self.draining = True
        if not self.talk.busy:
            self.is_open, self.drained = False, True

    def answered(self, keep_alive: bool) -> None:
        self.talk.on_answered(keep_alive)


def test_messages_that_are_answered_at_once_let_others_go_first_in_between() -> None:
    async def order() -> list[str]:
        scene = AtOnce()
        for body in (b"1", b"2", b"3"):
            scene.talk.on_message(body)
        assert scene.order == ["1"]
        await asyncio.sleep(0.01)
        assert not scene.talk.busy
        return scene.order

    assert asyncio.run(order()) == ["1", "other", "2", "other", "3", "other"]


def test_a_message_whose_turn_it_is_can_be_cancelled() -> None:
    async def order() -> list[str]:
        scene = AtOnce()
        for body in (b"1", b'{"event_id":"two"}', b"[", b"3"):
            scene.talk.on_message(body)
        for _ in range(2):
            scene.talk.on_message(b'{"type":"cancel"}')
        await asyncio.sleep(0.01)
        assert not scene.talk.busy
        return scene.order

    assert asyncio.run(order()) == ["1", "cancelled two", "cancelled None", "other", "3", "other"]


def test_between_two_messages_a_socket_can_be_drained_or_lost() -> None:
    async def between(drained: bool) -> None:
        scene = AtOnce()
        for body in (b"1", b"2"):
            scene.talk.on_message(body)
        if drained:
            scene.drain()
        else:
            scene.talk.on_lost()
        await asyncio.sleep(0.01)
        assert scene.order == ["1", "other"]
        assert not scene.talk.busy
        assert scene.drained is drained

    asyncio.run(between(True))
    asyncio.run(between(False))


def test_a_client_that_does_not_read_is_let_go_and_memory_stays_flat(url: str, engine: str) -> None:
    before = len(seen(engine)["closed_at"])
    host, port = url.removeprefix("http://").split(":")
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.connect((host, int(port)))
    other = {"x-headgate-task": "other"}  # or it would be ended as repetition
    with opened(url, sock=plain, max_queue=1, additional_headers=other) as client:
        say(client, chat("itl=0.2 n=2000000", stream=True, event_id="slow"))
        eventually(lambda: len(seen(engine)["closed_at"]) == before + 1, within_s=20)
        got: list[str | bytes] = []
        with pytest.raises(ConnectionClosed):
            got.extend(client)
        assert sum(len(message) for message in got) < 1_000_000
        assert "slow_client" in str(got[-1])
        assert client.close_code == 1008
    assert record(url, "slow")["outcome"] == "slow_client"


# -- bounds --------------------------------------------------------------------------------------------------------


def test_a_message_may_be_as_long_as_a_body(url: str) -> None:
    with opened(url) as client:
        say(client, chat("n=1 " + "x" * 290_000))
        assert answer(client)[-1] == "[DONE]"
        with pytest.raises(ConnectionClosed):  # noqa: PT012 (while it is sent, or afterwards)
            client.send([json.dumps(chat("x" * 200_000))[:150_000], "x" * 200_000])
            answer(client)
        assert client.close_code == 1009


def test_only_so_many_may_wait(url: str) -> None:
    with opened(url) as client:
        for _ in range(18):
            say(client, chat("ttft=30000"))
        with pytest.raises(ConnectionClosed):
            answer(client)
        assert client.close_code == 1008


def test_limits_are_the_tenants_and_say_when_to_come_back(url: str) -> None:
    with opened(url, additional_headers={"authorization": "Bearer sk-few"}) as client:
        say(client, chat("n=1", event_id="of-few"))
        assert answer(client)[-1] == "[DONE]"
        say(client, chat("n=1"))
        said = error(client)
    assert (said["status"], said["error"]["type"], said["error"]["code"]) == (429, "requests", "rate_limit_exceeded")
    assert 0 < int(said["headers"]["retry-after"]) <= 60
    assert said["headers"]["x-ratelimit-limit-requests"] == "1"
    assert record(url, "of-few")["tenant"] == "few"


# -- who may -------------------------------------------------------------------------------------------------------


def refused(url: str, **options: Any) -> int:
    with pytest.raises(InvalidStatus) as caught, opened(url, **options):
        pass
    return int(caught.value.response.status_code)


def offering(*names: str) -> dict[str, Any]:
    return {"subprotocols": [Subprotocol(name) for name in names]}


def test_a_key_is_given_in_a_header_or_by_browsers_as_a_subprotocol(tmp_path: Path, engine: str) -> None:
    config = {"tenants": {"known": known("sk-known")}, "anonymous": {"allowed": False}}
    with gateway(tmp_path, config, engine) as url:
        browser = offering("chat-completions", "openai-insecure-api-key.sk-known")
        for options in ({"additional_headers": {"authorization": "Bearer sk-known"}}, browser):
            with opened(url, **options) as client:
                say(client, chat("n=1", event_id="known"))
                assert answer(client)[-1] == "[DONE]"
                assert client.subprotocol == ("chat-completions" if options is browser else None)
            assert record(url, "known")["tenant"] == "known"
        assert refused(url) == 401
        assert refused(url, additional_headers={"authorization": "Bearer no"}) == 401
        assert refused(url, **offering("chat-completions", "openai-insecure-api-key.no")) == 401
        assert refused(url, **offering("openai-insecure-api-key.sk-known")) == 400
        assert 'outcome="unauthorized"} 3\n' in ask(f"{url}/metrics")[1].decode()


def test_a_page_from_elsewhere_needs_a_key_that_is_known(url: str) -> None:
    elsewhere = {"origin": Origin("https://elsewhere.example")}
    assert refused(url, **elsewhere) == 403
    assert refused(url, **elsewhere, additional_headers={"authorization": "Bearer sk-guessed"}) == 401
    with opened(url, **elsewhere, additional_headers={"authorization": "Bearer sk-known"}) as client:
        say(client, chat("n=1"))
        assert answer(client)[-1] == "[DONE]"
    with opened(url, origin=Origin(url)) as client:
        say(client, chat("n=1"))
        assert answer(client)[-1] == "[DONE]"


def test_a_get_without_an_upgrade_says_what_to_do(url: str) -> None:
    status, body = ask(f"{url}/v1/chat/completions")
    assert status == 426
    assert json.loads(body)["error"]["code"] == "upgrade_required"
    assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 200


# -- the end -------------------------------------------------------------------------------------------------------


def test_on_sigterm_what_runs_is_finished_and_everybody_is_told(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "headgate.yaml"
    path.write_text(json.dumps({"replicas": [{"url": engine, "slots": 8}], "listen": {"port": 0}}))
    with headgate("serve", "--config", str(path)) as (process, url), opened(url) as idle, opened(url) as busy:
        say(busy, chat("ttft=1500 itl=50 n=10", stream=True))
        say(busy, chat("n=1"))
        eventually(lambda: seen(engine)["running"] == 1)
        os.kill(process.pid, signal.SIGTERM)
        with pytest.raises(ConnectionClosed):
            idle.recv(timeout=10)
        assert idle.close_code == 1001
        assert seen(engine)["running"] == 1
        assert len(answer(busy)) == 11
        with pytest.raises(ConnectionClosed):
            busy.recv(timeout=10)
        assert busy.close_code == 1001, "before it began with the next"
        assert process.wait(timeout=10) == 0


# -- what the documentation tells people to write ------------------------------------------------------------------


def example(language: str, url: str) -> str:
    """The one in docs/websocket.md, aimed at this gateway."""
    page = (ROOT / "docs" / "websocket.md").read_text()
    code = re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(code) == 1
    return str(code[0]).replace("ws://localhost:8000", url.replace("http", "ws", 1)).replace("KEY", "sk-known")


def test_the_python_example_works(url: str) -> None:
    run = subprocess.run([sys.executable, "-c", example("python", url)], capture_output=True, text=True, timeout=30)
    assert (run.stdout, run.stderr) == ("w w w ", "")


# -- with the real model -------------------------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.timeout(120)
def test_the_real_model_says_the_same_over_a_websocket(tmp_path: Path) -> None:
    path = tmp_path / "headgate.yaml"
    path.write_text(json.dumps({"listen": {"port": 0}, "embedded": {"slots": 2, "context": 512, "threads": 1}}))
    body = chat("Count from one to ten in words.", max_tokens=12, temperature=0, stream=True)

    def text(chunks: list[str]) -> str:
        return "".join(json.loads(chunk)["choices"][0]["delta"].get("content") or "" for chunk in chunks)

    with headgate("serve", "--config", str(path)) as (_, url):
        over_http = ask(f"{url}/v1/chat/completions", body)[1].decode().split("\n\n")
        with opened(url) as client:
            say(client, body)
            messages = answer(client)
            assert messages[-1] == "[DONE]"
            said = text(messages[:-1])
            assert said == text([event.removeprefix("data: ") for event in over_http[:-2]]) != ""
            say(client, {**body, "max_tokens": 400, "event_id": "long"})
            client.recv()
            client.send('{"type":"cancel"}')
            assert error(client)["status"] == 499
        assert record(url, "long")["outcome"] == "cancelled"
