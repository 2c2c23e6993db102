"""What a gateway says to a client before it has read what the client has to say."""

import http.client
import json
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import chat, double, eventually, gateway, seen

pytestmark = pytest.mark.timeout(60)
KEY = "sk-known"
ADMIN = "sk-admin"
KEYS: dict[str, Any] = {
    "tenants": {"acme": {"key_sha256": [sha256(KEY.encode()).hexdigest()]}},
    "admin_keys": [sha256(ADMIN.encode()).hexdigest()],
    "limits": {"body_bytes": 1_000_000},
}


@contextmanager
def talk(url: str) -> Iterator[socket.socket]:
    where = urlsplit(url)
    with closing(socket.create_connection((where.hostname, where.port), timeout=5)) as client:
        yield client


def head(path: str, *lines: str, length: int = 900_000) -> bytes:
    start = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", *lines]
    return "\r\n".join([*start, f"content-length: {length}", "", ""]).encode()


def answer(client: socket.socket) -> tuple[int, dict[str, Any]]:
    got = http.client.HTTPResponse(client)
    got.begin()
    return got.status, json.loads(got.read())


def test_who_asks_is_judged_before_the_body_is_sent(tmp_path: Path) -> None:
    cases = [
        (head("/v1/chat/completions"), 401, "API key"),
        (head("/v1/chat/completions", "expect: 100-continue"), 401, "API key"),
        (head("/v1/responses", "authorization: Bearer sk-other"), 401, "API key"),
        (head("/v1/embeddings", "x-api-key: sk-other", "expect: 100-continue"), 401, "API key"),
        (
            head("/v1/chat/completions").replace(b"content-length: 900000", b"transfer-encoding: chunked"),
            401,
            "API key",
        ),
        (head("/admin/tenants"), 401, "admin key"),
        (head("/admin/tenants", f"authorization: Bearer {KEY}"), 401, "admin key"),
        (head("/v1/nothing"), 404, "/v1/nothing"),
        (head("/health/live"), 405, "GET"),
        (head("/v1/chat/completions").replace(b"application/json", b"text/plain"), 415, "application/json"),
        (head("/v1/chat/completions", f"authorization: Bearer {KEY}", length=1_000_001), 413, "1000000"),
        (head("/v1/chat/completions", f"authorization: Bearer {KEY}", "content-encoding: gzip"), 415, "gzip"),
        (
            head("/v1/chat/completions", "upgrade: websocket", "connection: upgrade").replace(b"POST", b"GET"),
            400,
            "body",
        ),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/1.1"),
    ]
    with double() as (_, engine), gateway(tmp_path, KEYS, engine) as url:
        for request, status, word in cases:
            with talk(url) as client:
                client.sendall(request)
                got, body = answer(client)
                assert (got, word in body["error"]["message"]) == (status, True), (request, body)
        told = [json.loads(line) for line in ask(f"{url}/admin/records", headers={"x-api-key": ADMIN})[1].splitlines()]
        assert [record["outcome"] for record in told] == ["unauthorized"] * 5


def test_a_client_that_is_known_is_told_to_go_on(tmp_path: Path) -> None:
    body = json.dumps(chat("n=2")).encode()
    lines = (f"authorization: Bearer {KEY}", "expect: 100-continue")
    with double() as (_, engine), gateway(tmp_path, KEYS, engine) as url, talk(url) as client:
        client.sendall(head("/v1/chat/completions", *lines, length=len(body)))
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        assert answer(client)[0] == 200


def test_health_checks_are_answered_where_every_place_is_taken(tmp_path: Path) -> None:
    with double() as (_, engine), gateway(tmp_path, {"limits": {"connections": 4}}, engine) as url:
        where = urlsplit(url)
        idle = [socket.create_connection((where.hostname, where.port)) for _ in range(40)]
        for path in ("/health/live", "/health/ready", "/v1/models"):
            assert ask(f"{url}{path}")[0] == 200  # the oldest idle ones have made way
        body = json.dumps(chat("ttft=2000 n=1", stream=True)).encode()
        busy = [socket.create_connection((where.hostname, where.port)) for _ in range(4)]
        for client in busy:
            client.sendall(head("/v1/chat/completions", length=len(body)) + body)
        eventually(lambda: seen(engine)["running"] == 4)
        for path in ("/health/live", "/health/ready"):
            assert ask(f"{url}{path}")[0] == 200
        status, told = ask(f"{url}/v1/models")
        assert (status, json.loads(told)["error"]["code"]) == (503, "too_many_connections")
        for client in idle + busy:
            client.close()


def test_garbage_behind_a_request_does_not_keep_its_engine_busy(tmp_path: Path) -> None:
    body = json.dumps(chat("ttft=20 itl=2000 n=10", stream=True)).encode()
    with double() as (_, engine), gateway(tmp_path, {}, engine) as url:
        with talk(url) as client:
            client.sendall(head("/v1/chat/completions", length=len(body)) + body)
            assert b"200 OK" in client.recv(1000)
            client.sendall(b"x" * 4_000_000)
        left_at = time.monotonic()
        eventually(lambda: seen(engine)["running"] == 0)
        assert time.monotonic() - left_at < 0.5  # 0.1 s for it, and the time to ask


def over(path: Path, method: str, target: str, body: bytes | None = None) -> int:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    with closing(connection):
        connection.request(method, target, body, {"content-type": "application/json"})
        got = connection.getresponse()
        got.read()
        return got.status


def test_it_listens_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))  # and is gone
    with double() as (_, engine):
        with headgate("serve", "--uds", str(path), "--replica", engine) as (process, where):
            assert where == f"unix:{path}"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert over(path, "POST", "/v1/chat/completions", json.dumps(chat("n=2")).encode()) == 200
            assert over(path, "GET", "/admin/ledger") == 200
            with pytest.raises(AssertionError, match=r"can't listen on .*gate\.sock: .*--uds"):
                headgate("serve", "--uds", str(path), "--replica", engine).__enter__()
            process.terminate()
            assert process.wait(15) == 0
            assert not path.exists()
        file = tmp_path / "config.yaml"
        file.write_text(json.dumps({"listen": {"uds": str(path), "uds_for": "group"}, "replicas": [{"url": engine}]}))
        with headgate("serve", "--config", str(file)) as (_, where):
            assert where == f"unix:{path}"
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            assert over(path, "POST", "/v1/chat/completions", json.dumps(chat("n=2")).encode()) == 200
            assert over(path, "GET", "/admin/ledger") == 401  # whoever else may connect, a proxy for one, needs a key


def test_an_ipv6_address_is_announced_as_one_can_ask_there() -> None:
    with double() as (_, engine), headgate("serve", "--host", "::1", "--port", "0", "--replica", engine) as (_, url):
        assert url.startswith("http://[::1]:")
        assert ask(f"{url}/health/live")[0] == 200
