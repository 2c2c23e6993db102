"""What is left of a tenant's limits is in every answer to it, as OpenAI says it; other tenants hear nothing of it."""

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.gateway.test_gateway import chat, double, gateway
from tests.keys import hash_key

pytestmark = pytest.mark.timeout(60)
NAMES = [f"x-ratelimit-{figure}-{of}" for of in ("requests", "tokens") for figure in ("limit", "remaining", "reset")]
TENANTS = {
    "both": {"key_sha256": [hash_key("both")], "requests_per_min": 600, "tokens_per_min": 100_000},
    "few": {"key_sha256": [hash_key("few")], "requests_per_min": 2},
    "any": {"key_sha256": [hash_key("any")], "concurrency": 4},
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with double() as (_, engine), gateway(tmp_path_factory.mktemp("gateway"), {"tenants": TENANTS}, engine) as where:
        yield where


def asked(url: str, key: str, body: Any, path: str = "/v1/chat/completions") -> tuple[int, dict[str, str]]:
    """Status and x-ratelimit headers, each of which must be there once."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    given = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), given)
    answer = connection.getresponse()
    answer.read()
    found = [(name, value) for name, value in answer.getheaders() if name.startswith("x-ratelimit-")]
    connection.close()
    assert len(dict(found)) == len(found)
    return answer.status, dict(found)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_every_answer_says_what_is_left(url: str, stream: bool) -> None:
    status, first = asked(url, "both", chat("n=2", stream=stream, max_tokens=50))
    assert status == 200
    assert list(first) == NAMES
    assert first["x-ratelimit-limit-requests"] == "600"
    assert first["x-ratelimit-limit-tokens"] == "100000"
    assert 0 < int(first["x-ratelimit-remaining-requests"]) < 600
    assert 99_000 < int(first["x-ratelimit-remaining-tokens"]) < 100_000
    assert 0 < float(first["x-ratelimit-reset-requests"].removesuffix("s")) < 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"messages": []}, 400),
        (b"{", 400),
        (chat("n=1", model="nowhere"), 404),
        (chat("n=1", n=10_000), 400),
        ({"messages": "x" * 100_000}, 400),
    ],
    ids=["empty", "json", "model", "bounds", "long"],
)
def test_so_do_refusals(url: str, body: Any, status: int) -> None:
    told, headers = asked(url, "both", body)
    assert told == status
    assert list(headers) == NAMES


def test_over_the_limit_they_are_said_once(url: str) -> None:
    answers = [asked(url, "few", chat("n=1")) for _ in range(4)]
    assert {status for status, _ in answers} == {200, 429}
    assert all(list(headers) == NAMES[:3] for _, headers in answers)
    assert [headers["x-ratelimit-remaining-requests"] for status, headers in answers if status == 429][-1] == "0"


@pytest.mark.parametrize(
    "body", [chat("n=1"), chat("n=1", stream=True), {"messages": []}], ids=["whole", "stream", "wrong"]
)
def test_a_tenant_without_limits_per_minute_hears_nothing_of_them(url: str, body: Any) -> None:
    assert asked(url, "any", body)[1] == {}


def test_an_unknown_key_hears_nothing_of_them(url: str) -> None:
    assert asked(url, "somebodys", chat("n=1")) == (401, {})
