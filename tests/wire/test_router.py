"""Which handler answers, and what is said where none does."""

import msgspec
import pytest

from headgate.wire.exchange import Exchange
from headgate.wire.router import Router
from tests.wire.serving import live, serving


def answer_with(body: bytes, exchange: Exchange) -> None:
    exchange.respond(200, body)


ROUTER = Router(
    {
        ("GET", "/v1/models"): lambda exchange: answer_with(b"models", exchange),
        ("POST", "/v1/chat"): lambda exchange: answer_with(b"chat", exchange),
        ("GET", "/v1/chat"): lambda exchange: answer_with(b"chats", exchange),
    }
)


@pytest.mark.parametrize(
    ("line", "content_type", "status", "said"),
    [
        ("GET /v1/models", None, 200, b"models"),
        ("GET /v1/models?after=x", None, 200, b"models"),
        ("GET /v1/chat", None, 200, b"chats"),
        ("POST /v1/chat", None, 200, b"chat"),
        ("POST /v1/chat", "application/json", 200, b"chat"),
        ("POST /v1/chat", "Application/JSON; charset=utf-8", 200, b"chat"),
        ("POST /v1/chat", "text/plain", 415, b"unsupported_media_type"),
        ("POST /v1/chat", "application/json-seq", 415, b"unsupported_media_type"),
        ("GET /v1/model", None, 404, b"not_found"),
        ("GET /v1/models/", None, 404, b"not_found"),
        ("POST /v1/models", None, 405, b"method_not_allowed"),
        ("DELETE /v1/chat", None, 405, b"method_not_allowed"),
    ],
)
@live
async def test_a_path_and_method_lead_to_one_answer(
    line: str, content_type: str | None, status: int, said: bytes
) -> None:
    async with serving(ROUTER) as served:
        client = await served.connect()
        header = f"content-type: {content_type}\r\n" if content_type else ""
        answer = await client.ask(f"{line} HTTP/1.1\r\nhost: a\r\n{header}\r\n".encode())
        assert answer.status == status
        assert said in answer.body
        if status != 200:
            assert msgspec.json.decode(answer.body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("path", "allow"), [("/v1/models", "GET, HEAD"), ("/v1/chat", "GET, HEAD, POST")])
@live
async def test_a_wrong_method_is_told_the_right_ones(path: str, allow: str) -> None:
    async with serving(ROUTER) as served:
        answer = await (await served.connect()).ask(f"DELETE {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
        assert answer.headers["allow"] == allow


@live
async def test_head_is_answered_by_the_get_route() -> None:
    async with serving(ROUTER) as served:
        client = await served.connect()
        client.send(b"HEAD /v1/models HTTP/1.1\r\nhost: a\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
        status, headers = await client.head()
        assert (status, headers["content-length"]) == (200, "6")
        assert (await client.answer()).body == b"models"
