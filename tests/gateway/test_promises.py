"""Requests that promise for themselves, as clients and engines meet them: real sockets, headers and bodies."""

import hashlib
import json
import threading
import time
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
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
LANE_MS = [500.0, 200.0]
"""What lane fast promises."""


def known(key: str, **more: Any) -> dict[str, Any]:
    return {"key_sha256": [hashlib.sha256(key.encode()).hexdigest()], **more}


def key(name: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}", **more}


@contextmanager
def serving(path: Path, *engines: str, slots: int = 8, kind: str = "headgate", **config: Any) -> Iterator[str]:
    replicas = [{"url": url, "slots": slots, "kind": kind} for url in engines]
    tenants = {"trusted": known("sk-trusted", trusted=True), "plain": known("sk-plain")}
    file = path / "headgate.yaml"
    told = {"replicas": replicas, "listen": {"port": 0}, "tenants": tenants, "admin_keys": ADMIN_KEYS, **config}
    file.write_text(json.dumps(told))
    with headgate("serve", "--config", str(file)) as (_, where):
        yield where


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with double() as (_, url):
        yield url


@pytest.fixture(scope="module")
def url(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    bounds = {"ttft_least_s": 0.1, "ttft_most_s": 100, "tpot_least_s": 0.02, "tpot_most_s": 1}
    with serving(tmp_path_factory.mktemp("gateway"), engine, promises=bounds) as where:
        yield where


def record(url: str, request_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(f"{url}/admin/requests/{request_id}")[1])["record"]
    return found


def test_a_streams_own_promise_reaches_the_engine_and_its_record(url: str, engine: str) -> None:
    headers = key("sk-trusted", **{"x-headgate-ttft-ms": "400", "x-headgate-tpot-ms": "50.5", "x-request-id": "own-1"})
    assert ask(url + CHAT, chat("n=3", stream=True), headers)[0] == 200
    assert seen(engine)["targets"][-1] == [400.0, 50.5]
    promise = record(url, "own-1")["promise"]
    assert promise == {"ttft_s": 0.4, "tpot_s": 0.0505, "ttft_kept": True, "tpot_kept": True}


def test_llm_ds_headers_count_too_and_a_missed_promise_is_told(url: str, engine: str) -> None:
    headers = key("sk-trusted", **{"x-llm-d-slo-ttft-ms": "150", "x-llm-d-slo-tpot-ms": "20", "x-request-id": "own-2"})
    assert ask(url + CHAT, chat("ttft=200 itl=40 n=3", stream=True), headers)[0] == 200
    assert seen(engine)["targets"][-1] == [150.0, 20.0]
    assert record(url, "own-2")["promise"] == {"ttft_s": 0.15, "tpot_s": 0.02, "ttft_kept": False, "tpot_kept": False}
    missed = 'headgate_own_promises_total{lane="fast",figure="ttft",result="missed"} 1'
    eventually(lambda: missed in ask(f"{url}/metrics")[1].decode())


def test_an_answer_in_one_piece_has_kept_what_it_was_whole_in(url: str, engine: str) -> None:
    headers = key("sk-trusted", **{"x-headgate-ttft-ms": "30000", "x-request-id": "own-3"})
    assert ask(url + CHAT, chat("n=3"), headers)[0] == 200
    assert seen(engine)["targets"][-1][0] == 30_000.0
    assert record(url, "own-3")["promise"] == {"ttft_s": 30.0, "ttft_kept": True}
    headers = key("sk-trusted", **{"x-headgate-ttft-ms": "100", "x-request-id": "own-4"})
    assert ask(url + CHAT, chat("ttft=300 n=3"), headers)[0] == 200
    assert record(url, "own-4")["promise"] == {"ttft_s": 0.1}, "its first token was not seen"


def test_a_response_and_a_long_body_promise_too(url: str, engine: str) -> None:
    headers = key("sk-trusted", **{"x-headgate-ttft-ms": "700"})
    body = {"model": "default", "input": "n=3", "stream": True}
    assert ask(url + RESPONSES, body, headers)[0] == 200
    assert seen(engine)["targets"][-1][0] == 700.0
    assert ask(url + RESPONSES, {**body, "ttft_target_ms": 800}, key("sk-trusted"))[0] == 200
    assert seen(engine)["targets"][-1][0] == 800.0
    assert ask(url + CHAT, chat("words " * 20_000 + "n=3", stream=True), headers)[0] == 200
    assert seen(engine)["targets"][-1][0] == 700.0


def test_over_a_websocket_each_message_may_promise(url: str, engine: str) -> None:
    where = url.replace("http", "ws", 1) + CHAT
    headers = key("sk-trusted", **{"x-headgate-ttft-ms": "900"})
    with connect(where, compression=None, proxy=None, additional_headers=headers) as client:
        for body in (chat("n=1", stream=True), chat("n=1", stream=True, tpot_target_ms=70)):
            client.send(json.dumps(body))
            while client.recv() != "[DONE]":
                pass
    assert seen(engine)["targets"][-2:] == [[900.0, 200.0], [900.0, 70.0]]


def test_what_is_beyond_the_bounds_counts_as_the_bound(url: str, engine: str) -> None:
    for said, counts in (("1", 100.0), ("0.001", 100.0), ("100000.1", 100_000.0), ("1000000000", 100_000.0)):
        assert ask(url + CHAT, chat("n=1", stream=True), key("sk-trusted", **{"x-headgate-ttft-ms": said}))[0] == 200
        assert seen(engine)["targets"][-1][0] == counts


def test_an_untrusted_key_promises_nothing_whatever_it_says(url: str, engine: str) -> None:
    for said in ("1", "nonsense", "-5", "9" * 200):
        headers = key("sk-plain", **{"x-headgate-ttft-ms": said, "x-llm-d-slo-tpot-ms": said, "x-request-id": "own-5"})
        assert ask(url + CHAT, chat("n=1", stream=True, ttft_target_ms="x"), headers)[0] == 200
        assert seen(engine)["targets"][-1] == LANE_MS
        assert "promise" not in record(url, "own-5")


HOSTILE = ("", " ", "0", "0.0", "-5", "+5", "1e3", "abc", "NaN", "inf", "١٢", "400ms", "1,5", "4 0", "0x10", "9" * 40)


@pytest.mark.parametrize("name", ["x-headgate-ttft-ms", "x-llm-d-slo-ttft-ms", "x-headgate-tpot-ms"])
@pytest.mark.parametrize("said", HOSTILE)
def test_nonsense_from_a_trusted_key_is_refused_by_name(url: str, name: str, said: str) -> None:
    status, body = ask(url + CHAT, chat("n=1"), key("sk-trusted", **{name: said.encode().decode("latin-1")}))
    assert status == 400
    error = json.loads(body)["error"]
    assert error["param"] == name
    assert "expected milliseconds above 0" in error["message"]


@pytest.mark.parametrize("said", ["400", True, [], {}, -1, 0, 1e300, 10**300])
def test_a_field_that_is_no_time_is_refused_by_name(url: str, said: Any) -> None:
    status, body = ask(url + CHAT, chat("n=1", tpot_target_ms=said), key("sk-trusted"))
    assert (status, json.loads(body)["error"]["param"]) == (400, "tpot_target_ms")


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """One slot, and no other engine."""
    with double() as (_, engine), serving(tmp_path, engine, slots=1) as where:
        yield where, engine


def busy(url: str, engine: str, held_ms: int) -> threading.Thread:
    """Takes the only slot for this long."""
    request = chat(f"ttft={held_ms} n=1", stream=True)
    thread = threading.Thread(target=lambda: ask(url + CHAT, request, key("sk-trusted")))
    thread.start()
    eventually(lambda: seen(engine)["running"] == 1)
    return thread


def test_a_request_waits_for_four_fifths_of_what_it_promises(narrow: tuple[str, str]) -> None:
    url, engine = narrow
    holder = busy(url, engine, 2500)

    def asked(promise_ms: str) -> tuple[int, float, bytes]:
        began = time.monotonic()
        status, body = ask(
            url + CHAT, chat("n=1", stream=True), key("sk-trusted", **{"x-headgate-ttft-ms": promise_ms})
        )
        return status, time.monotonic() - began, body

    with ThreadPoolExecutor(2) as pool:
        strict, lax = pool.submit(asked, "200"), pool.submit(asked, "10000")
        status, took_s, body = strict.result()
        assert status == 503
        assert 0.15 <= took_s < 0.35, "lane fast would have let it wait for 0.4 s"
        assert b"the first token that it promises allows" in body
        status, took_s, _ = lax.result()
        assert (status, took_s > 1.5) == (200, True), "lane fast would have refused it after 0.4 s"
    holder.join()


def test_the_one_that_promised_more_goes_first(narrow: tuple[str, str]) -> None:
    url, engine = narrow
    holder = busy(url, engine, 600)
    order: list[str] = []

    def asked(promise_ms: str) -> None:
        ask(url + CHAT, chat("ttft=50 n=1", stream=True), key("sk-trusted", **{"x-headgate-ttft-ms": promise_ms}))
        order.append(promise_ms)

    threads = [threading.Thread(target=asked, args=(promise_ms,)) for promise_ms in ("9000", "7000", "5000")]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in (*threads, holder):
        thread.join()
    assert order == ["5000", "7000", "9000"]


def test_a_second_replica_gets_the_same_promise(tmp_path: Path) -> None:
    hedge = {"enabled": True, "least_samples": 20, "least_s": 0.1, "share": 1.0}
    with double() as (_, first), double() as (_, second):
        more: dict[str, Any] = {"hedge": hedge, "routing": {"algorithm": "least_connections"}}
        with serving(tmp_path, first, second, **more) as url:
            for _ in range(25):
                assert ask(url + CHAT, chat("n=1", stream=True), key("sk-trusted"))[0] == 200
            ask(f"{first}/hold", b"3000")
            ask(f"{second}/hold", b"0")
            before = [len(seen(engine)["targets"]) for engine in (first, second)]
            headers = key("sk-trusted", **{"x-headgate-ttft-ms": "345"})
            assert ask(url + CHAT, chat("n=1", stream=True), headers)[0] == 200
            both = [seen(engine)["targets"][many:] for engine, many in zip((first, second), before, strict=True)]
            assert both == [[[345.0, 200.0]], [[345.0, 200.0]]]


def test_a_stream_that_another_replica_continues_keeps_its_promise(tmp_path: Path) -> None:
    with double() as (_, first), double() as (_, second), serving(tmp_path, first, second) as url:
        headers = key("sk-trusted", **{"x-headgate-tpot-ms": "321", "x-request-id": "own-6"})
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask, url + CHAT, chat("itl=50 n=40", stream=True), headers)
            eventually(lambda: seen(first)["running"] + seen(second)["running"] == 1)
            time.sleep(0.5)
            ask(f"{first if seen(first)['running'] else second}/drop", b"")
            assert answer.result()[0] == 200
        targets = [*seen(first)["targets"], *seen(second)["targets"]]
        assert targets == [[500.0, 321.0], [500.0, 321.0]]
        assert record(url, "own-6")["promise"] == {"tpot_s": 0.321, "tpot_kept": True}


def test_the_bounds_change_without_a_restart(tmp_path: Path) -> None:
    with double() as (_, engine), serving(tmp_path, engine) as url:
        headers = key("sk-trusted", **{"x-headgate-ttft-ms": "100000"})
        assert ask(url + CHAT, chat("n=1", stream=True), headers)[0] == 200
        assert seen(engine)["targets"][-1][0] == 100_000.0
        file = tmp_path / "headgate.yaml"
        file.write_text(json.dumps({**json.loads(file.read_text()), "promises": {"ttft_most_s": 7}}))
        assert ask(f"{url}/admin/reload", b"{}")[0] == 200
        assert ask(url + CHAT, chat("n=1", stream=True), headers)[0] == 200
        assert seen(engine)["targets"][-1][0] == 7000.0


def test_a_relegated_request_is_sent_as_one_of_the_lower_lane_and_its_record_has_missed_its_promise(
    tmp_path: Path,
) -> None:
    lanes = {"fast": {"when_late": "relegate"}}
    with double() as (_, engine), serving(tmp_path, engine, slots=1, lanes=lanes) as url:
        holder = busy(url, engine, 800)
        wishes = {"x-headgate-ttft-ms": "200", "x-headgate-when-late": "relegate", "x-request-id": "own-7"}
        answered = ask(url + CHAT, chat("n=2", stream=True, tpot_target_ms=33), key("sk-trusted", **wishes))
        assert answered[0] == 200
        holder.join()
        assert seen(engine)["targets"][-1] == [2000.0, 33.0]
        found = record(url, "own-7")
        assert (found["lane"], found["relegated_from"]) == ("slow", "fast")
        assert found["promise"] == {"ttft_s": 0.2, "tpot_s": 0.033, "ttft_kept": False, "tpot_kept": True}
