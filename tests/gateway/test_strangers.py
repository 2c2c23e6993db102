"""What strangers can do: clients without a key, and web pages in the browser of a person who has one."""

import contextlib
import hashlib
import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest
from benchmarks.bodies_load import CHAT, EMBEDDINGS, KINDS
from openai import OpenAI
from websockets.sync.client import connect

from headgate.surface.api.document import OPERATIONS
from headgate.surface.api.operation import Who
from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import chat, double, gateway
from tests.ledger import ADMIN_KEY

pytestmark = pytest.mark.timeout(60)

Route = tuple[str, str]
ROUTES: dict[Route, Who] = {route: operation.who for route, operation in OPERATIONS.items()}
"""Every route that there is, and who may ask: tests/observe/test_api.py holds this to a running gateway's own table."""
FOREIGN: dict[str, dict[str, str]] = {
    "origin": {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    "no origin": {"sec-fetch-site": "cross-site"},
    "another port": {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
    "sandboxed": {"origin": "null"},
    "pointed here": {"host": "pointed.example:8000", "origin": "http://pointed.example:8000"},
}
MODELS = ("/v1/models", "/v1/models/double")


def key(text: str) -> dict[str, Any]:
    return {"key_sha256": [hashlib.sha256(text.encode()).hexdigest()]}


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with double() as (_, url):
        yield url


@pytest.fixture(scope="module")
def open_url(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gateway(tmp_path_factory.mktemp("open"), {}, engine) as where:
        yield where


@pytest.fixture(scope="module")
def keyed_url(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tenants = {"known": key("sk-known"), "few": {**key("sk-few"), "requests_per_min": 1}}
    tenants["tokens"] = {**key("sk-tokens"), "tokens_per_min": 1}
    with gateway(tmp_path_factory.mktemp("keyed"), {"tenants": tenants}, engine) as where:
        yield where


def call(
    url: str, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
) -> tuple[int, dict[str, str], bytes]:
    with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)) as client:
        client.putrequest(method, path, skip_host="host" in (headers or {}))
        for name, value in (headers or {}).items():
            client.putheader(name, value)
        if body is not None:
            client.putheader("content-length", str(len(body)))
        client.endheaders(body)
        answer = client.getresponse()
        told = {name.lower(): value for name, value in answer.getheaders()}
        if told.get("content-type", "").startswith("text/event-stream"):
            return answer.status, told, answer.read1()
        return answer.status, told, answer.read()


def spelled(path: str) -> str:
    return (
        path.replace("/rollout/*", "/rollout/x/promote").replace("/replicas/*", "/replicas/x/drain").replace("*", "x")
    )


def asked(url: str, route: Route, headers: dict[str, str]) -> int:
    method, path = route
    kind = "multipart/form-data; boundary=b" if path == "/v1/files" else "application/json"
    typed = {"content-type": kind} if method == "POST" else {}
    return call(url, method, spelled(path), {**typed, **headers}, b"{}" if method == "POST" else None)[0]


# -- one table --------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_where_there_are_keys_every_route_but_the_public_ones_asks_for_its_own(keyed_url: str, route: Route) -> None:
    upgrade = {"upgrade": "websocket", "connection": "Upgrade", "sec-websocket-version": "13"}
    upgrade |= (
        {"sec-websocket-key": "MDEyMzQ1Njc4OWFiY2RlZg=="} if route[0] == "GET" and "completions" in route[1] else {}
    )
    opens = upgrade if "sec-websocket-key" in upgrade else {}
    nobody = asked(keyed_url, route, opens)
    assert (nobody == 401) is (ROUTES[route] != "anybody"), nobody
    wrong = {"client": ADMIN_KEY, "admin": "sk-known", "anybody": "sk-wrong"}[ROUTES[route]]
    assert (asked(keyed_url, route, {**opens, "authorization": f"Bearer {wrong}"}) == 401) is (nobody == 401)
    if not opens:
        right = {"client": "sk-known", "admin": ADMIN_KEY, "anybody": "none"}[ROUTES[route]]
        assert asked(keyed_url, route, {"authorization": f"Bearer {right}"}) != 401


@pytest.mark.parametrize("page", FOREIGN)
@pytest.mark.parametrize(
    "route", [*ROUTES, ("OPTIONS", "/v1/chat/completions"), ("OPTIONS", "/admin/reload")], ids=" ".join
)
def test_a_page_from_elsewhere_gets_nothing_of_a_gateway_without_keys_but_what_is_public(
    open_url: str, route: Route, page: str
) -> None:
    headers = FOREIGN[page]
    status = asked(open_url, route, headers)
    if ROUTES.get(route) == "anybody" and route[1] != "/metrics" and ("host" not in headers or "/health" in route[1]):
        assert status in (200, 404)
    else:
        assert status == 403


def test_a_name_that_was_pointed_here_reads_nothing(open_url: str) -> None:
    """A page whose own name is this address now: its GETs carry no Origin."""
    host = {"host": "pointed.example:8000"}
    for path in (*MODELS, "/metrics", "/admin/state"):
        assert call(open_url, "GET", path, host)[0] == 403
    assert call(open_url, "GET", "/health/live", host)[0] == 200
    for name in ("localhost:1", "127.0.0.1", "[::1]:8000"):
        assert call(open_url, "GET", "/v1/models", {"host": name})[0] == 200


def test_an_untyped_blob_changes_nothing(open_url: str) -> None:
    """What any page may send without asking first: no content type, or one of a form's."""
    for route, who in ROUTES.items():
        if who == "admin" and route[0] == "POST":
            for headers in ({}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}):
                assert call(open_url, "POST", spelled(route[1]), headers, b"{}")[0] == 415
    assert (
        call(open_url, "POST", "/v1/chat/completions", {}, json.dumps(chat("n=1")).encode())[0] == 200
    )  # as curl does


# -- open mode ends ---------------------------------------------------------------------------------


def test_the_first_key_of_a_tenant_closes_admin_too(tmp_path: Path, engine: str) -> None:
    with gateway(tmp_path, {}, engine) as url:
        assert call(url, "GET", "/admin/state")[0] == 200
        assert call(url, "GET", "/v1/models")[0] == 200
        status, said = ask(f"{url}/admin/tenants", {"acme": key("sk-acme")})
        assert status == 200
        assert "admin_keys" in json.loads(said)["said"]
        for path in ("/admin/state", "/v1/models"):
            assert call(url, "GET", path)[0] == 401
        assert call(url, "GET", "/v1/models", {"authorization": "Bearer sk-acme"})[0] == 200
        assert call(url, "GET", "/admin/state", {"authorization": "Bearer sk-acme"})[0] == 401
        assert call(url, "DELETE", "/admin/tenants/acme")[0] == 401


@pytest.mark.parametrize(
    "header",
    [
        "forwarded",
        "via",
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-anything",
        "x-real-ip",
        "cf-connecting-ip",
    ],
)
def test_what_came_through_a_proxy_is_not_from_this_machine(open_url: str, header: str) -> None:
    assert call(open_url, "GET", "/admin/state", {header: "9.9.9.9"})[0] == 401
    assert call(open_url, "GET", "/v1/models", {header: "9.9.9.9"})[0] == 200


# -- what official clients see ----------------------------------------------------------------------


def test_official_clients_get_openais_types_and_codes(keyed_url: str) -> None:
    messages: Any = [{"role": "user", "content": "n=1"}]
    with OpenAI(base_url=f"{keyed_url}/v1", api_key="sk-wrong", max_retries=0) as client:
        for of in (lambda: client.models.list(), lambda: client.models.retrieve("double"),
                   lambda: client.chat.completions.create(model="double", messages=messages)):  # fmt: skip
            with pytest.raises(openai.AuthenticationError) as wrong:
                of()
            assert (wrong.value.code, wrong.value.type) == ("invalid_api_key", "invalid_request_error")
    for api_key, kind in (("sk-few", "requests"), ("sk-tokens", "tokens")):
        with OpenAI(base_url=f"{keyed_url}/v1", api_key=api_key, max_retries=0) as client:
            assert client.models.retrieve("double").id == "double"
            for stream in (False, True):
                with contextlib.suppress(openai.RateLimitError):
                    client.chat.completions.create(model="double", messages=messages)
                with pytest.raises(openai.RateLimitError) as limited:
                    client.chat.completions.create(model="double", messages=messages, stream=stream)
                assert (limited.value.code, limited.value.type) == ("rate_limit_exceeded", kind)
                assert float(limited.value.response.headers["retry-after"]) > 0


# -- pages that may ---------------------------------------------------------------------------------


def test_pages_that_are_allowed_read_answers_streams_and_errors(tmp_path: Path, engine: str) -> None:
    page = {"origin": "https://app.example", "sec-fetch-site": "cross-site", "content-type": "application/json"}
    tenants = {"few": {**key("sk-few"), "requests_per_min": 2}}
    with gateway(tmp_path, {"cors": {"origins": ["https://app.example"]}, "tenants": tenants}, engine) as url:
        mine = {**page, "authorization": "Bearer sk-few"}
        asks = {**page, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        answers = [call(url, "OPTIONS", "/v1/chat/completions", asks), call(url, "GET", "/v1/models", mine)]
        bodies = [json.dumps(chat("n=1", stream=stream)).encode() for stream in (False, True, False)]
        answers += [call(url, "POST", "/v1/chat/completions", mine, body) for body in bodies]
        answers.append(call(url, "POST", "/v1/chat/completions", page, b"{}"))
        answers.append(call(url, "POST", "/v1/chat/completions", mine, b"{"))
        assert [status for status, _, _ in answers] == [200, 200, 200, 200, 429, 401, 400]
        for _, headers, _ in answers:
            assert headers["access-control-allow-origin"] == "https://app.example"
            assert "x-ratelimit-reset-tokens" in headers["access-control-expose-headers"]
            assert "access-control-allow-credentials" not in headers
        assert "authorization" in answers[0][1]["access-control-allow-headers"]
        admin = {**page, "authorization": f"Bearer {ADMIN_KEY}"}
        status, headers, _ = call(url, "GET", "/admin/state", admin)
        assert status == 200
        assert "access-control-allow-origin" not in headers


# -- one body -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_no_megabyte_is_more_than_one_request(open_url: str, kind: str) -> None:
    """Each is answered by what it is, over HTTP and on a WebSocket."""
    path, make = KINDS[kind]
    body = make()
    valid = list(KINDS).index(kind) < 9
    status, _, said = call(open_url, "POST", path, {"content-type": "application/json"}, body)
    # The double has no embeddings: what reaches it is valid.
    assert status == (400 if not valid else 404 if path == EMBEDDINGS else 200), said[:300]
    with contextlib.suppress(UnicodeDecodeError):
        body.decode()
        with connect(open_url.replace("http", "ws", 1) + CHAT, compression=None, proxy=None, max_size=None) as client:
            client.send(body, text=True)
            heard = json.loads(client.recv(timeout=20))
            assert heard.get("status", 200) == (200 if valid and path == CHAT else 400)
            client.send(json.dumps(chat("n=1")))
            while heard != "[DONE]":
                heard = client.recv(timeout=20)
    assert call(open_url, "GET", "/health/live")[0] == 200


def test_too_many_messages_are_named_and_counted(open_url: str) -> None:
    message = {"role": "user", "content": "n=1"}
    for path, field in ((CHAT, "messages"), ("/v1/responses", "input")):
        status, said = ask(f"{open_url}{path}", {"model": "double", field: [message] * 10_001})
        assert (status, json.loads(said)["error"]["param"]) == (400, field)
        assert "10001 items, at most 10000" in json.loads(said)["error"]["message"]


def test_a_change_through_admin_is_no_longer_than_a_config(open_url: str) -> None:
    assert ask(f"{open_url}/admin/tenants", b"{" + b" " * 300_000 + b"}")[0] == 413


# -- the engine's own server ------------------------------------------------------------------------


def test_a_page_can_not_use_an_engine_either() -> None:
    with headgate("engine", "--emulate", "h100-llama3-8b", "--port", "0") as (_, url):
        body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
        for page, headers in FOREIGN.items():
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
                typed = {"content-type": "application/json"}
                assert call(url, "POST", path, headers, body)[0] == 403, page
                assert call(url, "POST", path, {**typed, **headers}, body)[0] == 403, page
            for path in ("/v1/models", "/metrics", "/health/deep"):
                assert call(url, "GET", path, headers)[0] == 403, page
        assert call(url, "GET", "/v1/models", {"host": "pointed.example"})[0] == 403
        assert call(url, "POST", "/v1/completions", {}, body)[0] == 200
        typed = {"content-type": "application/json"}
        for kind in ("[[[[", "{},{},", '"","",', "keys", "NaN at the end"):
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
                assert call(url, "POST", path, typed, KINDS[kind][1]())[0] == 400, (kind, path)
        assert call(url, "GET", "/health/ready", {"host": "10.0.0.7:8000"})[0] == 200
