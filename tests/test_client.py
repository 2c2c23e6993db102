"""What an operator sees in a terminal, of a real gateway's inside; and what is said when there is none."""

import asyncio
import hashlib
import io
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from rich.console import Console

from headgate.cli import client
from headgate.model.clock import monotonic
from headgate.model.errors import NotReady, StartupError
from headgate.model.outcome import Outcome
from headgate.model.record import Ahead, Gap
from headgate.surface.access import AdminAccess
from headgate.wire.exchange import Exchange
from headgate.wire.router import Router
from tests.observe.test_admin import Scene
from tests.wire.serving import serving

AHEAD = Ahead(45, 9000, "acme", 40, 8000)
Fill = Callable[[Scene], None]


@contextmanager
def gateway(fill: Fill, access: AdminAccess | None = None, ready: bool = True) -> Iterator[str]:
    """A gateway's admin side in a thread of its own, with these records in it."""
    where: list[str] = []
    started, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    def health(exchange: Exchange) -> None:
        if exchange.path.endswith("ready") and not ready:
            raise NotReady("no replica is ready yet")
        exchange.respond(200, b'{"status":"live"}')

    async def run() -> None:
        it = Scene(access or AdminAccess((), loopback_only=True), 1000)
        fill(it)
        routes = {("GET", f"/health/{name}"): health for name in ("live", "ready")}
        async with serving(Router({**it.admin.routes(), **routes})) as served:
            where.append(f"http://127.0.0.1:{served.port}")
            started.set()
            await stop.wait()
            it.admin.close()
            await it.gateway.finish(0)

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        assert started.wait(10)
        yield where[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def some(it: Scene) -> None:
    it.close(id="old one", at=monotonic() - 400, first_s=9.0)
    for number in range(40):
        it.close(id=f"usual-{number}")
    it.close(id="a/b [bold]", queue_s=2.1, ahead=AHEAD, end_s=0.001)
    it.close(id="gappy", stream_s=1.4, gaps=(Gap(0.2, 1.0),))
    it.close(id="left", outcome=Outcome.CANCELLED, ttft_s=None, stream_s=0.0, first_s=0.7)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with gateway(some) as where:
        yield where


def shown(call: Callable[..., Any], *args: Any, width: int = 160, **more: Any) -> str:
    out = io.StringIO()
    call(*args, console=Console(file=out, width=width, highlight=False, color_system=None), **more)
    return out.getvalue()


def refused(call: Callable[..., Any], *args: Any, **more: Any) -> str:
    with pytest.raises(StartupError) as caught:
        call(*args, **more)
    message = str(caught.value)
    assert "\n" not in message
    return message


# -- why ------------------------------------------------------------------------------------------------------


def test_a_waterfall_with_the_causes_beside_it(url: str) -> None:
    text = shown(client.why, url, "a/b [bold]")
    lines = text.splitlines()
    assert lines[0] == "Request a/b [bold]"
    assert "lane fast · tenant t · model m · replica a" in lines[1]
    assert lines[2].startswith("2.6 s in all, first token after 2.2 s. 2.1 s of 2.6 s in the queue behind 40 requests")
    rows = {line.split()[0]: line for line in lines[4:] if line.strip()}
    assert list(rows) == ["accept", "queue", "route", "prefill", "decode", "end"]
    assert "2.10 s" in rows["queue"]
    assert rows["queue"].count("█") == pytest.approx(client.BAR * 2.1 / 2.552, abs=1)
    assert "behind 40 requests (8 000 tokens) of tenant acme" in rows["queue"]
    assert rows["decode"].index("█") > rows["queue"].rindex("█")
    assert "▏" in rows["accept"]


def test_it_is_readable_in_a_narrow_terminal(url: str) -> None:
    text = shown(client.why, url, "gappy", width=60)
    assert max(len(line) for line in text.splitlines()) <= 60
    assert "".join(text.split()).count("replicaawassilent") == 2  # in the headline, and beside its bar


def test_a_request_that_is_not_kept(url: str) -> None:
    message = refused(client.why, url, "nobody")
    assert "'nobody'" in message
    assert "not among the last 1000 any more" in message


@pytest.mark.parametrize(
    ("begins", "share", "expected"),
    [
        (0.0, 1.0, "████ "),
        (0.5, 0.5, "  ██ "),
        (0.0, 0.0, "     "),
        (0.0, 0.001, "▏    "),
        (1.0, 0.0, "     "),
        (1.0, 0.001, "   ▏ "),
        (0.25, 0.125, " ▌   "),
        (0.9, 5.0, "   ▍ "),
    ],
)
def test_bars(begins: float, share: float, expected: str) -> None:
    assert client.bar(begins, share, 4) == expected


# -- slow -----------------------------------------------------------------------------------------------------


def test_the_slowest_with_one_line_reasons(url: str) -> None:
    text = shown(client.slow, url, None, "5m", 3)
    lines = [line for line in text.splitlines() if line.strip()]
    assert [line.split("  ")[0].strip() for line in lines[1:4]] == ["a/b [bold]", "gappy", "left"]
    assert "2.1 s of 2.6 s in the queue behind 40 requests" in lines[1]
    assert "–" in lines[3]
    assert "3 of 43 requests in the last 300 s, by e2e" in text
    assert "old one" in shown(client.slow, url, "fast", "1h", 1)
    assert "gappy" in shown(client.slow, url, None, "1m", 1, by="gap")


def test_nothing_that_slow(url: str) -> None:
    assert shown(client.slow, url, "batch", "90") == "No request in lane batch has ended in the last 90.0 s.\n"


def test_a_lane_that_is_not_there(url: str) -> None:
    assert "lane must be one of fast, slow, long, batch, got 'fats'" in refused(client.slow, url, "fats")


@pytest.mark.parametrize(
    ("text", "value"),
    [("90", 90), ("90s", 90), ("5m", 300), ("1h", 3600), ("1.5h", 5400), ("2 d", 172_800), (" 5M ", 300)],
)
def test_times(text: str, value: float) -> None:
    assert client.duration(text) == value


@pytest.mark.parametrize("text", ["", "soon", "-5m", "5 minutes", "0", "0.2s", "8d", "1e3", "m"])
def test_times_that_make_no_sense(text: str) -> None:
    assert repr(text) in refused(client.duration, text)


# -- doctor ----------------------------------------------------------------------------------------------------


def test_findings_with_their_evidence_and_knob(url: str) -> None:
    text = shown(client.doctor, url)
    assert "✓ it is ready for requests" in text
    assert "✗ critical replicas: no replica is known: nothing can be answered" in text
    assert "because  up 0, out 0" in text
    assert "turn     name one: replicas:" in text
    assert client.doctor(url, console=Console(file=io.StringIO())) is False


def test_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def healthy(exchange: Exchange) -> None:
        exchange.respond(200, b'{"findings":[],"figures":{},"window_s":300}')

    monkeypatch.setattr("headgate.surface.admin.Admin._doctor", lambda self, exchange: healthy(exchange))
    with gateway(some) as where:
        assert "✓ nothing to report in the last 300 s" in shown(client.doctor, where)
        assert client.doctor(where, console=Console(file=io.StringIO())) is True


def test_a_gateway_that_is_not_ready_says_why() -> None:
    with gateway(some, ready=False) as where:
        text = shown(client.doctor, where)
    assert "✗ it is not ready: no replica is ready yet" in text


# -- trouble ----------------------------------------------------------------------------------------------------


def test_a_key_is_asked_for_and_used() -> None:
    access = AdminAccess((hashlib.sha256(b"k").hexdigest(),), loopback_only=True)
    with gateway(some, access) as where:
        assert "give an admin key with --key" in refused(client.slow, where)
        assert "give an admin key with --key" in refused(client.why, where, "gappy", "wrong")
        assert "gappy" in shown(client.why, where, "gappy", "k")


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{free.getsockname()[1]}"
        message = refused(client.doctor, where)
    assert f"can't reach http://{where}" in message
    assert "--url" in message


@pytest.mark.parametrize("address", ["", "http://", "ftp://x", "unix:/x"])
def test_no_address(address: str) -> None:
    assert "--url" in refused(client.doctor, address)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, b"<html>", "not as Headgate does"),
        (200, b"[]", "not as Headgate does"),
        (200, b"{}", "not as Headgate does"),
        (404, b"<html>", "is this the gateway's own address?"),
        (502, b"<html>", "it answered 502"),
        (500, b'{"error":{"message":"it broke"}}', "it broke"),
        (500, b'{"error":"it broke"}', "it answered 500"),
    ],
)
def test_something_else_there(status: int, body: bytes, says: str) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            message = refused(client.doctor, f"http://127.0.0.1:{server.server_port}/")
        finally:
            server.shutdown()
            thread.join()
    assert says in message


def test_a_proxy_in_the_environment_is_not_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert "gappy" in shown(client.slow, url)
