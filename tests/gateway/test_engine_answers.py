"""Whatever an engine answers with fails at most the one request, or the one replica: the client gets a clear answer, in
time, and the gateway lives on."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.sync.client import connect

from tests import ledger
from tests.engine.process import ask, headgate
from tests.gateway.raw_engine import (
    GOOD,
    LAST,
    STREAM,
    TOKEN,
    Answer,
    RawEngine,
    chunk,
    events,
    raw_engine,
    whole,
)
from tests.gateway.test_gateway import chat, eventually, gateway

pytestmark = pytest.mark.timeout(60)
CHAT = "/v1/chat/completions"
HTML = b"<html><body>Welcome to nginx</body></html>"
DEEP = b'{"a":' * 3000 + b"1" + b"}" * 3000
DONE = b"[DONE]"

NO_ANSWERS: dict[str, Answer] = {
    "no-content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "accepted": whole(GOOD, b"202 Accepted"),
    "partial": whole(GOOD, b"206 Partial Content"),
    "empty": whole(b""),
    "spaces": whole(b"  \n"),
    "html": whole(HTML, kind=b"text/html"),
    "html-called-json": whole(HTML),
    "list": whole(b"[]"),
    "null": whole(b"null"),
    "number": whole(b"5"),
    "object": whole(b"{}"),
    "detail": whole(b'{"detail":"Not Found"}'),
    "error": whole(b'{"error":{"message":"out of memory"}}'),
    "choices-text": whole(b'{"choices":"w"}'),
    "choices-null": whole(b'{"choices":null}'),
    "truncated": whole(GOOD[:-20]),
    "trailing": whole(GOOD + b"x"),
    "deep": whole(DEEP),
    "deep-choices": whole(b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "not-utf8": whole(GOOD.replace(b'"w"', b'"\xff\xfe"')),
    "nan": whole(b'{"choices":NaN}'),
    "length-too-short": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n" + GOOD,
    "length-too-long": b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 9999\r\n\r\n" + GOOD,
    "length-absurd": b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n" + GOOD,
    "length-negative": b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n" + GOOD,
    "lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 7\r\n\r\n" + GOOD,
    "gzip": whole(GOOD, b"200 OK", b"content-encoding: gzip"),
    "status-0": b"HTTP/1.1 000 What\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
    "status-999": b"HTTP/1.1 999 What\r\ncontent-length: 2\r\n\r\n{}",
    "switching": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "headers-endless": [b"HTTP/1.1 200 OK\r\n", b"x: " + b"y" * 1000 + b"\r\n"],
    "header-endless": [b"HTTP/1.1 200 OK\r\nx: ", b"y" * 1000],
    "many-headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 3000 + b"content-length: 2\r\n\r\n{}",
    "interim-endless": [b"HTTP/1.1 100 Continue\r\n\r\n"],
    "hints-endless": [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"],
    "body-endless": [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", b"{" * 65536],
    "extension-endless": [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;", b"x=y;" * 300],
    "trailers-endless": [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"x: " + b"y" * 999 + b"\r\n"],
    "redirect": b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
}
NO_STREAMS: dict[str, Answer] = {
    "just-done": events(DONE),
    "no-end": events(TOKEN, end=b""),
    "nothing": events(),
    "comments": STREAM + chunk(b": hello\n\n") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n",
    "html": whole(HTML, kind=b"text/html"),
    "whole": whole(GOOD),
    "no-content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "first-no-json": events(b"{not json}", LAST, DONE),
    "first-text": events(b"hello", LAST, DONE),
    "first-number": events(b"5", LAST, DONE),
    "first-list": events(b"[]", LAST, DONE),
    "first-deep": events(DEEP, LAST, DONE),
    "first-not-utf8": events(TOKEN.replace(b"w ", b"\xff"), LAST, DONE),
    "event-endless": [STREAM, chunk(b"data: " + b"x" * 65536)],
    "line-endless": [STREAM, chunk(b"x" * 65536)],
    "lines-endless": [STREAM, chunk(b"data: x\n" * 8000)],
    "partial": STREAM.replace(b"200 OK", b"206 Partial") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n",
}
BROKEN_STREAMS: dict[str, Answer] = {
    "no-finish": events(TOKEN, TOKEN, DONE),
    "no-json": events(TOKEN, b"{not json}", LAST, DONE),
    "cut-json": events(TOKEN, TOKEN[:-5], LAST, DONE),
    "not-utf8": events(TOKEN, TOKEN.replace(b"w ", b"\xc3("), LAST, DONE),
    "text": events(TOKEN, b"Internal Server Error", DONE),
    "deep": events(TOKEN, DEEP, LAST, DONE),
    "error-inside": events(TOKEN, b'{"id":"x","choices":[],"error":{"message":"it broke"}}', DONE),
    "no-done": events(TOKEN),
    "two-heads": events(TOKEN) + events(LAST, DONE),
}
USAGES = {
    "digits-400": b"9" * 400,
    "digits-5000": b"9" * 5000,
    "negative": b"-5",
    "huge": b"99999999999",
    "float": b"1.5",
    "float-huge": b"1e308",
    "text": b'"5"',
    "true": b"true",
    "null": b"null",
    "object": b"{}",
    "deep": b"[" * 900 + b"]" * 900,
}


def usage(value: bytes) -> bytes:
    return b'{"id":"x","choices":[],"usage":{"prompt_tokens":%b,"completion_tokens":%b,"total_tokens":1}}' % (
        value,
        value,
    )


ANSWERS: dict[str, Answer] = {
    **{f"whole-{name}": answer for name, answer in NO_ANSWERS.items()},
    **{f"stream-{name}": answer for name, answer in NO_STREAMS.items()},
    **{f"broken-{name}": answer for name, answer in BROKEN_STREAMS.items()},
    **{f"usage-{name}": whole(GOOD.replace(b":1}", b":" + value + b"}")) for name, value in USAGES.items()},
    **{f"used-{name}": events(TOKEN, LAST, usage(value), DONE) for name, value in USAGES.items()},
    **{
        f"after-{number}": whole(b'{"error":{"message":"no room"}}', b"429 X", b"retry-after: " + after)
        for number, after in enumerate((b"9" * 400, b"-5", b"nan", b"1e400", b"soon", b"Wed, 99 Foo 2099 99:99:99 GMT"))
    },
    "error-deep": whole(b'{"error":{"message":' + b"[" * 800 + b"]" * 800 + b"}}", b"400 X"),
    "error-number": whole(b'{"error":{"message":{"a":' + b"9" * 400 + b'},"code":1' + b"0" * 300 + b"}}", b"400 X"),
    "error-list": whole(b'[{"error":1}]', b"400 X"),
    "half-character": events(TOKEN.replace(b"w ", b"\\ud83d"), LAST, DONE),
    "keep-alive": events(b"", TOKEN, b"", LAST, DONE),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[RawEngine]:
    with raw_engine(ANSWERS) as it:
        yield it


@pytest.fixture(scope="module")
def url(engine: RawEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gateway(tmp_path_factory.mktemp("gateway"), {"retry": {"attempts": 1}}, engine.url) as where:
        yield where


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_what_is_no_answer_is_a_502(url: str, name: str) -> None:
    began = time.monotonic()
    status, said = ask(url + CHAT, chat(f"say=whole-{name}", tools=[]))
    assert status in (502, 503), said
    assert json.loads(said)["error"]["message"]
    assert time.monotonic() - began < 10
    assert ask(url + CHAT, chat("hello"))[0] == 200
    ledger.check(url)


@pytest.mark.parametrize("name", NO_STREAMS)
def test_nor_is_a_stream_of_nothing(url: str, name: str) -> None:
    status, said = ask(url + CHAT, chat(f"say=stream-{name}", stream=True))
    if name == "no-end":
        return  # it stalls: see timeouts.stall_s
    assert status in (502, 503), said
    ledger.check(url)


@pytest.mark.parametrize("name", BROKEN_STREAMS)
def test_a_stream_that_turns_into_something_else_ends_with_an_error(url: str, name: str) -> None:
    status, said = ask(url + CHAT, chat(f"say=broken-{name}", stream=True))
    assert status == 200
    assert said.startswith(b"data: " + TOKEN)
    parts = [part.removeprefix(b"data: ") for part in said.split(b"\n\n") if part]
    for part in parts:
        json.loads(part)  # and so none is [DONE]
    assert "error" in json.loads(parts[-1])
    ledger.check(url)


@pytest.mark.parametrize("name", USAGES)
@pytest.mark.parametrize("streamed", [False, True])
def test_usage_that_makes_no_sense_is_not_believed_and_costs_nothing(url: str, name: str, streamed: bool) -> None:
    status, said = ask(url + CHAT, chat(f"say={'used' if streamed else 'usage'}-{name}", stream=streamed))
    assert status == (200 if name != "digits-5000" or streamed else status), said
    ledger.check(url)
    assert ask(url + CHAT, chat("hello"))[0] == 200


@pytest.mark.parametrize("number", range(6))
def test_a_retry_after_of_nonsense_is_no_promise(engine: RawEngine, tmp_path: Path, number: int) -> None:
    with gateway(tmp_path, {}, engine.url) as url:
        status, _ = ask(url + CHAT, chat(f"say=after-{number}"))
        assert status == 503
        eventually(lambda: ask(url + CHAT, chat("hello"))[0] == 200, 5)


@pytest.mark.parametrize("name", ["error-deep", "error-number", "error-list"])
def test_whatever_is_in_an_error_it_is_passed_on_as_one(url: str, name: str) -> None:
    status, said = ask(url + CHAT, chat(f"say={name}"))
    assert status == 400
    assert isinstance(json.loads(said)["error"]["message"], str)


@pytest.mark.parametrize("name", ["half-character", "keep-alive"])
def test_what_engines_do_is_still_an_answer(url: str, name: str) -> None:
    status, said = ask(url + CHAT, chat(f"say={name}", stream=True))
    assert status == 200
    assert said.endswith(b"data: [DONE]\n\n")
    assert b"data: \n" not in said


@pytest.mark.parametrize("name", ["html", "empty", "deep", "no-content", "object"])
def test_another_replica_answers_instead(engine: RawEngine, tmp_path: Path, name: str) -> None:
    with raw_engine({}) as good, gateway(tmp_path, {"retry": {"ratio": 1}}, engine.url, good.url) as url:
        # It is ready with one replica, and would ask that one three times while there is no other.
        eventually(lambda: all(one["state"] == "up" for one in json.loads(ask(f"{url}/admin/fleet")[1])["known"]))
        for number in range(6):
            status, said = ask(url + CHAT, chat(f"{number} say=whole-{name}", max_tokens=16))
            assert (status, json.loads(said)["choices"][0]["message"]["content"]) == (200, "w")
            stream = f"{number} say=stream-{'html' if name == 'html' else 'just-done'}"
            status, said = ask(url + CHAT, chat(stream, stream=True))
            assert (status, said.count(b"[DONE]")) == (200, 1)


@pytest.mark.parametrize("name", ["broken-no-json", "broken-no-finish", "stream-first-deep", "whole-deep"])
def test_over_a_websocket_too(url: str, name: str) -> None:
    with connect(url.replace("http", "ws", 1) + CHAT, compression=None, proxy=None) as client:
        client.send(json.dumps(chat(f"say={name}", stream=not name.startswith("whole"))))
        while True:
            said = json.loads(client.recv(timeout=10))
            if said.get("type") == "error" or "error" in said:
                break
        client.send(json.dumps(chat("hello", stream=True)))
        assert "error" not in json.loads(client.recv(timeout=10))


@pytest.mark.parametrize("name", ["whole-html", "whole-deep", "whole-object", "stream-first-deep", "broken-no-json"])
def test_and_as_a_response(url: str, name: str) -> None:
    body = {"model": "m", "input": f"say={name}", "stream": not name.startswith("whole")}
    status, said = ask(f"{url}/v1/responses", body)
    assert status == 502 or b'"error"' in said
    ledger.check(url)


PAGES: dict[str, dict[str, Answer]] = {
    "models-deep": {"/v1/models": whole(b'{"data":' + b"[" * 1000 + b"]" * 1000 + b"}")},
    "models-deeper": {"/v1/models": whole(DEEP)},
    "models-long": {"/v1/models": whole(b'{"data":[{"id":"m","max_model_len":' + b"9" * 400 + b"}]}")},
    "models-strange": {"/v1/models": whole(b'{"data":[{"id":"m","max_model_len":-1,"owned_by":{"a":[]},"parent":5}]}')},
    "models-many": {"/v1/models": whole(b'{"data":[' + b",".join([b'{"id":"m%d"}' % n for n in range(9999)]) + b"]}")},
    "models-html": {"/v1/models": whole(HTML)},
    "models-wide": {"/v1/models": whole(b'{"data":[{"id":"' + b"m" * 500_000 + b'"}]}')},
    "metrics-deep": {"/metrics": whole(DEEP)},
    "metrics-inf": {"/metrics": whole(b"vllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc -Inf\n")},
    "metrics-long": {"/metrics": whole(b"vllm:num_requests_waiting{" + b"a" * 3_000_000)},
    "metrics-junk": {"/metrics": whole(b"\xff\xfe\x00vllm:num_requests_waiting " + b"9" * 5000)},
    "info-deep": {
        "/v1/models": whole(b'{"data":[{"id":"m"}]}'),
        "/info": whole(DEEP), "/props": whole(DEEP), "/metrics": whole(DEEP),
    },
    "health-html": {"/health": whole(HTML)},
    "endless": {"/metrics": [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", b"x" * 65536]},
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_what_an_engine_says_of_itself_never_ends_the_gateway(tmp_path: Path, name: str) -> None:
    config = {"health": {"probe_interval_s": 0.1, "deep_interval_s": 0.2}, "warm": {"keep_alive_s": 0.1}}
    with raw_engine({}, PAGES[name]) as odd, raw_engine({}) as good:
        replicas = [{"url": odd.url, "slots": 4, "model": "m"}, {"url": good.url, "slots": 4, "model": "m"}]
        path = tmp_path / "headgate.yaml"
        path.write_text(json.dumps({"replicas": replicas, "listen": {"port": 0}, **config}))
        with headgate("serve", "--config", str(path)) as (process, url):
            ends = time.monotonic() + 1.5
            while time.monotonic() < ends:
                assert ask(url + CHAT, {**chat("hello"), "model": "m"})[0] == 200
                assert ask(f"{url}/metrics")[0] == ask(f"{url}/admin/state")[0] == ask(f"{url}/v1/models")[0] == 200
                time.sleep(0.1)
            assert process.poll() is None
            json.loads(ask(f"{url}/admin/state")[1])


def test_usage_is_believed_up_to_what_can_be(tmp_path: Path) -> None:
    """An engine that said 99 999 999 tokens used a tenant's limit up for its other requests."""
    usage = b'"usage":{"prompt_tokens":99999999,"completion_tokens":99999999}'
    lie = GOOD.replace(b'"usage":{"prompt_tokens":3,"completion_tokens":1}', usage)
    assert usage in lie
    with raw_engine({"lie": whole(lie)}) as engine:
        path = tmp_path / "headgate.yaml"
        path.write_text(json.dumps({"replicas": [{"url": engine.url, "slots": 2}], "listen": {"port": 0}}))
        with headgate("serve", "--config", str(path)) as (_, url):
            eventually(lambda: ask(f"{url}/health/ready")[0] == 200)
            assert ask(url + CHAT, chat("say=lie", max_tokens=20), {"x-request-id": "lie"})[0] == 200
            eventually(lambda: ask(f"{url}/admin/requests/lie")[0] == 200)
            record = json.loads(ask(f"{url}/admin/requests/lie")[1])["record"]
    assert record["output_tokens"] == 20
    assert record["prompt_tokens"] < 5000
