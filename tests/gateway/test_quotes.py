"""POST /v1/quote as clients meet it, and what requests were told in their records: real sockets, an engine behind."""

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import chat, double, eventually, seen
from tests.ledger import ADMIN_KEYS

pytestmark = pytest.mark.timeout(60)
QUOTE, CHAT, TEXT = "/v1/quote", "/v1/chat/completions", "/v1/completions"


def known(key: str, **more: Any) -> dict[str, Any]:
    return {"key_sha256": [hashlib.sha256(key.encode()).hexdigest()], **more}


def key(name: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}", **more}


@contextmanager
def serving(path: Path, *engines: str, slots: int = 8, **config: Any) -> Iterator[str]:
    tags = {"gpu_type": "h100", "quantization": "fp8", "rack": "7"}
    replicas = [
        {"id": f"secret-{number}", "url": url, "slots": slots, "kind": "headgate", "tags": tags}
        for number, url in enumerate(engines)
    ]
    file = path / "headgate.yaml"
    file.write_text(json.dumps({"replicas": replicas, "listen": {"port": 0}, **config}))
    with headgate("serve", "--config", str(file)) as (_, where):
        yield where


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with double() as (_, url):
        yield url


@pytest.fixture(scope="module")
def url(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tenants = {
        "plain": known("sk-plain"),
        "trusted": known("sk-trusted", trusted=True),
        "few": known("sk-few", requests_per_min=3),
        "poor": known("sk-poor", tokens_per_min=200),
    }
    with serving(tmp_path_factory.mktemp("gateway"), engine, tenants=tenants, admin_keys=ADMIN_KEYS) as where:
        yield where


def told(url: str, body: Any, headers: dict[str, str] | None = None) -> dict[str, Any]:
    status, answer = ask(url + QUOTE, body, headers)
    assert status == 200, answer
    found: dict[str, Any] = json.loads(answer)
    return found


def with_headers(url: str, body: Any, headers: dict[str, str]) -> tuple[int, dict[str, str], dict[str, Any]]:
    request = urllib.request.Request(
        url + QUOTE, json.dumps(body).encode(), {"content-type": "application/json", **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {k.lower(): v for k, v in error.headers.items()}, json.loads(error.read())


def ledger(url: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(f"{url}/admin/ledger")[1])
    return found


def record(url: str, request_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(f"{url}/admin/requests/{request_id}")[1])["record"]
    return found


# -- what is answered -----------------------------------------------------------------------------------------


def test_an_idle_replica_is_told_of_and_nothing_is_served_or_held(url: str, engine: str) -> None:
    before, held = seen(engine)["seen"], ledger(url)
    found = told(url, chat("hello", stream=True), key("sk-plain"))
    assert (found["object"], found["admitted"], found["waits"], found["lane"]) == ("quote", True, False, "fast")
    assert found["replica_class"] == {"kind": "headgate", "gpu_type": "h100", "quantization": "fp8"}
    assert 0 < found["expected_ttft_ms"] <= found["p99_ttft_ms"]
    assert [found[name] for name in ("relegated_from", "retry_after_ms", "reason", "message")] == [None] * 4
    assert ledger(url) == held
    assert seen(engine)["seen"] == before


def test_chats_texts_streams_and_whole_answers_are_read_as_completions_are(url: str) -> None:
    lanes = [
        told(url, body, key("sk-plain"))["lane"]
        for body in (
            chat("hello"),
            chat("hello", stream=True),
            {"model": "default", "prompt": "Once", "stream": True},
            {"model": "default", "prompt": [1, 2, 3]},
            chat("hello", stream=True, service_tier="flex"),
            chat("word " * 60_000, stream=True),
        )
    ]
    assert lanes == ["slow", "fast", "fast", "slow", "batch", "long"]
    assert told(url, chat("hello"), key("sk-trusted", **{"x-headgate-lane": "batch"}))["lane"] == "batch"
    assert not any(ledger(url).values())


@pytest.mark.parametrize(
    ("body", "like"),
    [
        ({"messages": []}, CHAT),
        ({"messages": "hello"}, CHAT),
        ({}, CHAT),
        ({"input": "x"}, CHAT),
        ({"prompt": 7}, TEXT),
        ({"prompt": "x", "max_tokens": 0}, TEXT),
        (chat("x", stream="yes"), CHAT),
        (chat("x", temperature=9), CHAT),
        (chat("x", model="unheard-of"), CHAT),
        (b"{", CHAT),
        (b"[1]", CHAT),
        (b'{"model":"a","model":"b","messages":[]}', CHAT),
        (b'{"messages":[' + b" " * 70_000, CHAT),
        (json.dumps(chat("x" * 70_000, model="unheard-of")).encode(), CHAT),
    ],
)
def test_what_makes_no_sense_has_the_error_that_a_completion_has(url: str, body: Any, like: str) -> None:
    status, answer = ask(url + QUOTE, body, key("sk-plain"))
    assert (status, json.loads(answer)) == (lambda one: (one[0], json.loads(one[1])))(
        ask(url + like, body, key("sk-plain"))
    )
    assert status in (400, 404)


def test_another_method_or_content_type_is_refused(url: str) -> None:
    assert ask(url + QUOTE, None, key("sk-plain"))[0] == 405
    assert ask(url + QUOTE, chat("x"), key("sk-plain", **{"content-type": "text/plain"}))[0] == 415


def test_it_needs_a_key_where_there_are_keys(url: str) -> None:
    for headers in (None, key("sk-wrong")):
        for body in (chat("x"), chat("x" * 70_000)):
            assert ask(url + QUOTE, body, headers)[0] == 401


def test_it_tells_nothing_of_replicas_and_other_tenants(url: str) -> None:
    text = ask(url + QUOTE, chat("hello", stream=True), key("sk-plain"))[1].decode()
    assert not any(word in text for word in ("secret", "rack", "127.0.0.1", "trusted", "few", "poor"))


# -- limits ---------------------------------------------------------------------------------------------------


def test_a_question_counts_as_a_request_and_a_flood_of_them_is_refused(url: str, engine: str) -> None:
    before = seen(engine)["seen"]
    found = [with_headers(url, chat("x"), key("sk-few")) for _ in range(5)]
    assert [status for status, _, _ in found] == [200, 200, 200, 429, 429]
    assert [answer["admitted"] for _, _, answer in found[:3]] == [True, True, False]
    assert [headers["x-ratelimit-remaining-requests"] for _, headers, _ in found[:3]] == ["2", "1", "0"]
    _, headers, error = found[3]
    assert error["error"]["code"] == "rate_limit_exceeded"
    assert int(headers["retry-after"]) > 0
    assert headers["x-ratelimit-limit-requests"] == "3"
    assert ask(url + CHAT, chat("n=1"), key("sk-few"))[0] == 429
    assert seen(engine)["seen"] == before
    assert ledger(url)["reservations"] == 0


def test_who_has_used_its_tokens_up_hears_when_they_are_back(url: str) -> None:
    for _ in range(5):
        ask(url + CHAT, chat("word " * 40 + "n=5"), key("sk-poor"))
    status, headers, found = with_headers(url, chat("word " * 40), key("sk-poor"))
    assert (status, found["admitted"], found["reason"]) == (200, False, "over_limit")
    assert 0 < found["retry_after_ms"] <= 60_000
    assert int(headers["retry-after-ms"]) >= found["retry_after_ms"]
    assert found["message"] == "tenant 'poor' is over its limit of tokens per minute"


# -- a busy gateway -------------------------------------------------------------------------------------------


def test_a_full_fleet_says_wait_then_no_and_when_to_come_back(tmp_path: Path, engine: str) -> None:
    lanes = {"slow": {"queue_limit": 1, "wait_bound_s": 20, "when_late": "refuse"}}
    with serving(tmp_path, engine, slots=1, lanes=lanes) as url, ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, url + CHAT, chat("itl=150 n=40"))
        eventually(lambda: seen(engine)["running"] == 1)
        found = told(url, chat("x"))
        assert (found["admitted"], found["waits"], found["p99_ttft_ms"]) == (True, True, None), "none has waited yet"
        assert found["replica_class"]["gpu_type"] == "h100"
        second = pool.submit(ask, url + CHAT, chat("n=1"))
        eventually(lambda: ledger(url)["waiting"] == 1)
        held = {name: ledger(url)[name] for name in ("passages", "reservations", "waiting")}
        status, headers, full = with_headers(url, chat("x"), {})
        assert (status, full["admitted"], full["reason"], full["waits"]) == (200, False, "lane_full", False)
        assert full["retry_after_ms"] > 0
        assert int(headers["retry-after"]) > 0
        assert full["replica_class"] is not None
        assert {name: ledger(url)[name] for name in held} == held
        assert (first.result()[0], second.result()[0]) == (200, 200)


def test_what_would_be_late_is_told_of_the_lower_lane(tmp_path: Path, engine: str) -> None:
    lanes = {"slow": {"wait_bound_s": 0.2, "ttft_target_s": 1}, "long": {"wait_bound_s": 20}}
    with serving(tmp_path, engine, slots=1, lanes=lanes) as url, ThreadPoolExecutor(3) as pool:
        first = pool.submit(ask, url + CHAT, chat("itl=150 n=12"))
        eventually(lambda: seen(engine)["running"] == 1)
        waiting = pool.submit(ask, url + CHAT, chat("n=1"), {"x-request-id": "late"})
        eventually(lambda: told(url, chat("x"))["relegated_from"] == "slow" or first.done())
        assert (first.result()[0], waiting.result()[0]) == (200, 200)
        quote = record(url, "late")["quote"]
        assert quote["lane"] == "slow"
        metric = 'headgate_quotes_total{lane="slow",result="untold"}'
        eventually(lambda: metric in ask(f"{url}/metrics")[1].decode())


def test_without_a_replica_it_would_wait_for_one(tmp_path: Path) -> None:
    with double() as (process, own), serving(tmp_path, own) as url:
        process.kill()
        eventually(lambda: "no replica is usable" in (told(url, chat("x"))["message"] or ""))
        found = told(url, chat("x"))
        assert (found["admitted"], found["waits"]) == (True, True)
        assert (found["expected_ttft_ms"], found["p99_ttft_ms"]) == (None, None)


# -- records --------------------------------------------------------------------------------------------------


def test_a_record_has_what_the_request_was_told_and_whether_it_was_kept(url: str) -> None:
    asked = told(url, chat("n=2", stream=True), key("sk-plain"))
    headers = key("sk-plain", **{"x-request-id": "told-1"})
    assert ask(url + CHAT, chat("n=2", stream=True), headers)[0] == 200
    found = record(url, "told-1")["quote"]
    assert (found["lane"], found["kept"]) == ("fast", True)
    assert 1e3 * found["p99_s"] == pytest.approx(asked["p99_ttft_ms"], rel=0.5)
    assert ask(url + CHAT, chat("ttft=5 n=2"), key("sk-plain", **{"x-request-id": "told-2"}))[0] == 200
    assert "kept" not in record(url, "told-2")["quote"], "its first token's time is unknown"
    kept = 'headgate_quotes_total{lane="fast",result="kept"}'
    unknown = 'headgate_quotes_total{lane="slow",result="unknown"}'
    eventually(lambda: all(one in ask(f"{url}/metrics")[1].decode() for one in (kept, unknown)))


def test_a_first_token_that_comes_late_has_missed(tmp_path: Path, engine: str) -> None:
    lanes = {"fast": {"ttft_target_s": 0.3, "wait_bound_s": 0.2}}
    with serving(tmp_path, engine, lanes=lanes) as url:
        headers = {"x-request-id": "told-late"}
        assert ask(url + CHAT, chat("ttft=900 n=2", stream=True), headers)[0] == 200
        assert record(url, "told-late")["quote"]["kept"] is False


def test_over_a_websocket_requests_are_told_too_and_there_is_no_quote(url: str) -> None:
    where = url.replace("http", "ws", 1)
    headers = key("sk-plain", **{"x-request-id": "told-ws"})
    with connect(where + CHAT, compression=None, proxy=None, additional_headers=headers) as client:
        client.send(json.dumps(chat("n=1", stream=True)))
        while client.recv() != "[DONE]":
            pass
    with pytest.raises(Exception, match="405"):
        connect(where + QUOTE, compression=None, proxy=None, additional_headers=key("sk-plain")).close()


def test_questions_leave_no_record(url: str) -> None:
    told(url, chat("x"), key("sk-plain", **{"x-request-id": "only-asked"}))
    ask(url + QUOTE, b"{", key("sk-plain", **{"x-request-id": "only-asked"}))
    assert ask(f"{url}/admin/requests/only-asked")[0] == 404
