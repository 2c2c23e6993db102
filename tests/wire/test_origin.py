"""Which web pages are let in, and what the others are told."""

import asyncio
import json

import pytest

from headgate.model.clock import monotonic
from headgate.wire.exchange import Exchange
from headgate.wire.limits import WireLimits
from headgate.wire.origin import Door, is_foreign, is_local
from headgate.wire.router import Router
from headgate.wire.server import HttpServer
from tests.wire.serving import Answer, Client, live, serving


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1:8000", True),
        ("127.9.9.9", True),
        ("localhost:8000", True),
        ("LOCALHOST", True),
        ("localhost.:80", True),
        ("app.localhost:3000", True),
        ("[::1]:8000", True),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("[::1", False),
        ("0.0.0.0:8000", False),
        ("", False),
    ],
)
def test_which_hosts_are_this_machine(host: str, local: bool) -> None:
    assert is_local(host) is local


@pytest.mark.parametrize(
    ("origin", "host", "foreign"),
    [
        (None, "127.0.0.1:8000", False),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", False),
        ("http://localhost:8000", "localhost:8000", False),
        ("http://[::1]:8000", "[::1]:8000", False),
        ("http://localhost:3000", "localhost:8000", True),
        ("http://localhost:8000", "127.0.0.1:8000", True),
        ("https://models.example", "models.example", False),
        ("https://models.example", "models.example:443", False),
        ("http://models.example", "models.example:443", True),
        ("https://Models.Example:8443", "models.example:8443", False),
        ("https://models.example.evil", "models.example", True),
        ("null", "127.0.0.1:8000", True),
        ("", "127.0.0.1:8000", True),
        ("http://[oops", "127.0.0.1:8000", True),
        ("http://localhost:99999999", "localhost:8000", True),
        ("file://", "", True),
    ],
)
def test_which_pages_are_from_elsewhere(origin: str | None, host: str, foreign: bool) -> None:
    headers = {"host": host} if origin is None else {"host": host, "origin": origin}
    assert is_foreign(headers) is foreign


@pytest.mark.parametrize(
    ("site", "foreign"),
    [
        ("cross-site", True),
        ("same-site", True),
        ("Cross-Site", True),
        ("odd", True),
        ("none", False),
        ("same-origin", False),
    ],
)
def test_what_a_browser_says_of_the_page_counts_without_an_origin(site: str, foreign: bool) -> None:
    assert is_foreign({"host": "127.0.0.1:8000", "sec-fetch-site": site}) is foreign


def _said(exchange: Exchange) -> None:
    exchange.respond(200, b"{}")


def _streamed(exchange: Exchange) -> None:
    exchange.stream()
    exchange.event(b"one")
    exchange.end(b"[DONE]")


def _broken(exchange: Exchange) -> None:
    raise ValueError("no")


ROUTER = Router(
    {
        ("POST", "/v1/chat/completions"): _said,
        ("GET", "/v1/chat/completions"): _said,
        ("POST", "/v1/stream"): _streamed,
        ("POST", "/v1/broken"): _broken,
        ("GET", "/v1/models"): _said,
        ("GET", "/admin/state"): _said,
        ("POST", "/admin/reload"): _said,
        ("GET", "/metrics"): _said,
        ("GET", "/health/live"): _said,
        ("GET", "/"): _said,
        ("GET", "/page/*"): _said,
    }
)
EVIL = "origin: https://evil.example"
SENT = "sec-fetch-site: cross-site"
KEY = "authorization: Bearer k"


async def asked(door: Door, line: str, *headers: str, host: str = "127.0.0.1:8000") -> Answer:
    async with serving(door) as served:
        client = await served.connect()
        return await client.ask("\r\n".join([f"{line} HTTP/1.1", f"host: {host}", *headers, "", ""]).encode())


SOCKET = "GET /v1/chat/completions"
CHAT, MODELS = "POST /v1/chat/completions", "GET /v1/models"


@pytest.mark.parametrize(
    ("line", "headers", "host", "open_mode", "keyed"),
    [
        (CHAT, (), "127.0.0.1:8000", 200, 200),
        (CHAT, ("origin: http://127.0.0.1:8000",), "127.0.0.1:8000", 200, 200),
        (CHAT, ("origin: http://127.0.0.1:8000", "sec-fetch-site: same-origin"), "127.0.0.1:8000", 200, 200),
        (CHAT, (EVIL,), "127.0.0.1:8000", 403, 403),
        (CHAT, ("origin: null",), "127.0.0.1:8000", 403, 403),
        (CHAT, (SENT,), "127.0.0.1:8000", 403, 403),
        (CHAT, ("origin: http://127.0.0.1:8000", SENT), "127.0.0.1:8000", 403, 403),
        (CHAT, ("origin: http://localhost:3000", "sec-fetch-site: same-site"), "localhost:8000", 403, 403),
        (CHAT, (EVIL, KEY), "127.0.0.1:8000", 403, 200),
        (CHAT, (EVIL, "x-api-key: k"), "127.0.0.1:8000", 403, 200),
        (CHAT, (EVIL, "authorization: Basic k"), "127.0.0.1:8000", 403, 403),  # what a browser may add by itself
        (CHAT, ("origin: http://pointed.example:8000",), "pointed.example:8000", 403, 200),
        (CHAT, (), "pointed.example:8000", 200, 200),  # no browser leaves out the origin of a POST
        ("GET /v1/chat/completions", (EVIL, "upgrade: websocket"), "127.0.0.1:8000", 403, 403),
        (
            "GET /v1/chat/completions",
            (EVIL, "sec-websocket-protocol: chat-completions, openai-insecure-api-key.k"),
            "127.0.0.1:8000", 403, 200,
        ),
        (MODELS, (), "127.0.0.1:8000", 200, 200),
        (MODELS, (), "api.localhost", 200, 200),
        (MODELS, (), "pointed.example:8000", 403, 200),
        (MODELS, (SENT,), "127.0.0.1:8000", 403, 403),
        (MODELS, (SENT, KEY), "127.0.0.1:8000", 403, 200),
        ("OPTIONS /v1/models", (EVIL,), "127.0.0.1:8000", 403, 403),
        ("GET /admin/state", (SENT,), "127.0.0.1:8000", 403, 403),
        ("GET /admin/state", (SENT, KEY), "127.0.0.1:8000", 403, 200),
        ("POST /admin/reload", (EVIL,), "127.0.0.1:8000", 403, 403),
        ("OPTIONS /admin/reload", (EVIL,), "127.0.0.1:8000", 403, 403),
        ("GET /metrics", (), "pointed.example:8000", 403, 200),
        ("GET /metrics", (SENT,), "127.0.0.1:8000", 403, 403),
        ("GET /health/live", (SENT,), "pointed.example:8000", 200, 200),
        ("GET /", (SENT,), "127.0.0.1:8000", 200, 200),  # a link to the page
        ("GET /page/page.js", (SENT,), "127.0.0.1:8000", 200, 200),
        ("POST /", (SENT,), "127.0.0.1:8000", 403, 403),
    ],
)  # fmt: skip
@live
async def test_who_gets_in(line: str, headers: tuple[str, ...], host: str, open_mode: int, keyed: int) -> None:
    door = Door(ROUTER, loopback_only=True)
    answer = await asked(door, line, *headers, host=host)
    assert answer.status == open_mode, answer.body
    assert "access-control-allow-origin" not in answer.headers
    if answer.status == 403:
        assert json.loads(answer.body)["error"]["code"] == "foreign_page"
    door.change(clients_have_keys=True, admins_have_keys=True)
    assert (await asked(door, line, *headers, host=host)).status == keyed


UPGRADE = ("upgrade: websocket", "connection: upgrade")


@pytest.mark.parametrize(
    ("line", "headers", "host", "status"),
    [
        (CHAT, ("authorization: Bearer k",), "127.0.0.1:8000", 200),
        (CHAT, ("authorization: Bearer ",), "127.0.0.1:8000", 403),
        (CHAT, ("x-api-key: ",), "127.0.0.1:8000", 403),
        (CHAT, ("authorization: Bearer ", "x-api-key: k"), "127.0.0.1:8000", 403),  # the first counts
        (CHAT, ("authorization: Basic a2V5",), "127.0.0.1:8000", 403),
        (SOCKET, (*UPGRADE, "sec-websocket-protocol: a, openai-insecure-api-key.k"), "127.0.0.1:8000", 200),
        (SOCKET, (*UPGRADE, "sec-websocket-protocol: a, openai-insecure-api-key."), "127.0.0.1:8000", 403),
        (SOCKET, (*UPGRADE, "sec-websocket-protocol: xopenai-insecure-api-key.k"), "127.0.0.1:8000", 403),
        (CHAT, ("sec-websocket-protocol: openai-insecure-api-key.k",), "127.0.0.1:8000", 403),
        (CHAT, ("authorization: Bearer k",), "pointed.example:8000", 200),
        (CHAT, ("sec-fetch-site: same-origin",), "evil.example", 403),
    ],
)  # fmt: skip
@live
async def test_where_nobody_needs_a_key_a_page_does(
    line: str, headers: tuple[str, ...], host: str, status: int
) -> None:
    door = Door(ROUTER, loopback_only=True)
    door.change(clients_have_keys=True, admins_have_keys=True, anonymous=True)
    assert (await asked(door, line, EVIL, *headers, host=host)).status == status


@live
async def test_a_proxy_in_front_may_call_it_by_a_name_that_is_configured() -> None:
    for loopback_only in (True, False):
        door = Door(ROUTER, loopback_only=loopback_only, names=["Models.example"])
        assert (await asked(door, MODELS, host="models.example")).status == 200
        assert (await asked(door, MODELS, host="models.EXAMPLE:8443")).status == 200
        assert (await asked(door, MODELS, host="other.example")).status == 403
    assert (await asked(Door(ROUTER, loopback_only=False), MODELS, host="other.example")).status == 200


@live
async def test_only_some_spellings_of_this_machine_are_remembered() -> None:
    door = Door(ROUTER, loopback_only=True)
    async with serving(door) as served:
        client = await served.connect()
        for port in range(1000):
            assert (await client.ask(f"GET / HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode())).status == 200
    assert len(door._hosts) <= 256


# -- CORS -----------------------------------------------------------------------------------------------------

APP = "https://app.example"


def allowing(*origins: str) -> Door:
    door = Door(ROUTER, loopback_only=True)
    door.change(origins)
    return door


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (CHAT, 200), ("POST /v1/stream", 200), (MODELS, 200), ("GET /v1/nothing", 404), ("DELETE /v1/models", 405),
        ("POST /v1/broken", 500),
    ],
)  # fmt: skip
@live
async def test_every_answer_tells_the_browser_that_an_allowed_page_may_read_it(line: str, status: int) -> None:
    answer = await asked(allowing(APP), line, f"origin: {APP}", SENT)
    assert answer.status == status
    assert answer.headers["access-control-allow-origin"] == APP
    assert answer.headers["vary"] == "origin"
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "retry-after", "retry-after-ms", "x-ratelimit-remaining-tokens"} <= set(exposed)
    assert "access-control-allow-credentials" not in answer.headers


@live
async def test_an_allowed_page_may_read_why_its_request_was_refused_before_it_was_complete() -> None:
    door = allowing(APP)
    server = HttpServer(door, clock=monotonic, limits=WireLimits(header_count=8), greet=door.greet)
    port = await server.listen("127.0.0.1", 0)
    many = "".join(f"x-{number}: 1\r\n" for number in range(20))
    try:
        for line, allowed in ((f"origin: {APP}\r\n", APP), ("origin: https://other.example\r\n", None), ("", None)):
            client = Client(*await asyncio.open_connection("127.0.0.1", port))
            client.send(f"POST /v1/x HTTP/1.1\r\nhost: localhost\r\n{line}{many}\r\n".encode())
            answer = await asyncio.wait_for(client.answer(), 2)
            client.leave()
            assert answer.status == 431
            assert answer.headers.get("access-control-allow-origin") == allowed
    finally:
        await server.drain(0)


@live
async def test_a_preflight_is_answered_for_allowed_pages_only() -> None:
    asks = (
        "access-control-request-method: POST",
        "access-control-request-headers: authorization,content-type,x-stainless-os",
        "access-control-request-private-network: true",
    )
    answer = await asked(allowing(APP), "OPTIONS /v1/chat/completions", f"origin: {APP}", *asks)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == APP
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type,x-stainless-os"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-private-network"] == "true"
    for origin, line in (
        ("https://app.example.evil", "OPTIONS /v1/chat/completions"),
        ("http://app.example", "OPTIONS /v1/chat/completions"),
        ("https://app.example:8443", "OPTIONS /v1/chat/completions"),
        (APP, "OPTIONS /admin/reload"),
        (APP, "OPTIONS /v1"),
    ):
        refused = await asked(allowing(APP), line, f"origin: {origin}", *asks)
        assert refused.status == 403
        assert "access-control-allow-origin" not in refused.headers


@live
async def test_any_page_may_be_allowed_and_none_is_ever_told_to_send_credentials() -> None:
    answer = await asked(allowing("*"), CHAT, EVIL)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
    assert "access-control-allow-credentials" not in answer.headers
    assert (await asked(allowing("*"), "POST /admin/reload", EVIL)).status == 403
    pointed = await asked(allowing("*"), CHAT, "origin: http://pointed.example", host="pointed.example")
    assert pointed.status == 403
