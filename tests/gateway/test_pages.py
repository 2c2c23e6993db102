"""Pages that config allows, and then no longer does: what they can read, and what becomes of their WebSockets."""

import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from headgate.gateway.websocket import PATHS
from headgate.wire.origin import Door
from tests.engine.process import ask
from tests.gateway.test_gateway import chat, double, gateway
from tests.gateway.test_strangers import key

pytestmark = pytest.mark.timeout(60)
APP, OTHER = "https://app.example", "https://other.example"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with double() as (_, url):
        yield url


def sent(url: str, origin: str, *lines: str, body: bytes = b"") -> http.client.HTTPResponse:
    """The answer to these headers, and to what of a body is sent."""
    client = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    client.putrequest("POST", CHAT)
    for line in (f"origin: {origin}", "content-type: application/json", *lines):
        client.putheader(*line.split(": "))
    with contextlib.suppress(OSError):
        client.endheaders(body)
    return client.getresponse()


@pytest.mark.parametrize("keyed", [False, True])
def test_a_page_can_read_why_its_body_was_refused_unread(tmp_path: Path, engine: str, keyed: bool) -> None:
    config: dict[str, Any] = {"cors": {"origins": [APP]}, "limits": {"body_bytes": 1000}}
    if keyed:
        config["tenants"] = {"known": key("sk-known")}
    more = ("authorization: Bearer sk-known",) if keyed else ()
    with gateway(tmp_path, config, engine) as url:
        chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
        for status, answer in (
            (413, sent(url, APP, "content-length: 1001", *more)),
            (413, sent(url, APP, "transfer-encoding: chunked", *more, body=chunk)),
            (415, sent(url, APP, "content-length: 10", "content-encoding: gzip", *more)),
            (431, sent(url, APP, *more, f"x-long: {'y' * 20_000}")),
            (431, sent(url, APP, *more, *[f"x-{number}: y" for number in range(200)])),
            (400, sent(url, APP, *more, "host: another")),
        ):
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == APP
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
            assert answer.headers["vary"] == "origin"
            assert json.loads(answer.read())["error"]["message"]
        refused = sent(url, OTHER, "content-length: 1001", *more)
        assert refused.status == 413
        assert "access-control-allow-origin" not in refused.headers


@contextlib.contextmanager
def opened(url: str, origin: str | None, path: str = CHAT, **headers: str) -> Iterator[ClientConnection]:
    given = {**headers, **({} if origin is None else {"origin": origin})}
    with connect(url.replace("http", "ws", 1) + path, compression=None, proxy=None, additional_headers=given) as client:
        yield client


def still_open(client: ClientConnection) -> bool:
    client.send(json.dumps(chat("n=1")))
    return str(client.recv(timeout=20)).startswith("{")


@pytest.mark.parametrize("path", PATHS)
def test_a_websocket_does_not_outlive_its_pages_permission(tmp_path: Path, engine: str, path: str) -> None:
    config = {"cors": {"origins": [APP, OTHER]}}
    with (
        gateway(tmp_path, config, engine) as url,
        opened(url, APP, path) as app,
        opened(url, APP, path) as busy,
        opened(url, OTHER, path) as other,
        opened(url, None, path) as plain,
        opened(url, url, path) as own,
    ):
        busy.send(json.dumps({"prompt": "n=1000 itl=20", **chat("n=1000 itl=20"), "model": "double", "stream": True}))
        busy.recv(timeout=20)
        file = tmp_path / "headgate.yaml"
        now = {**json.loads(file.read_text()), "cors": {"origins": [OTHER]}}
        file.write_text(json.dumps(now))
        assert ask(f"{url}/admin/reload", {})[0] == 200
        for gone in (app, busy):
            with pytest.raises(ConnectionClosed):
                list(iter(lambda: gone.recv(timeout=20), None))  # noqa: B023
            assert gone.close_code == 1008
            assert APP in (gone.close_reason or "")
        for kept in (other, plain, own):
            kept.ping().wait(10)
            assert kept.close_code is None
        if path == CHAT:
            assert still_open(other)


def test_with_a_key_of_its_own_a_page_may_stay() -> None:
    door = Door(lambda exchange: None, loopback_only=True)
    door.change([APP], clients_have_keys=True)
    headers = {"origin": APP, "host": "localhost:8000"}
    assert door.still_lets_in(CHAT, headers)
    door.change([], clients_have_keys=True)
    assert not door.still_lets_in(CHAT, headers)
    assert door.still_lets_in(CHAT, {**headers, "authorization": "Bearer sk"})
    door.change([], clients_have_keys=False)
    assert not door.still_lets_in(CHAT, {**headers, "authorization": "Bearer sk"})
    assert door.still_lets_in(CHAT, {"host": "localhost:8000"})
    door.change(["*"])
    assert door.still_lets_in(CHAT, headers)
