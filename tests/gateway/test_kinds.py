"""A replica of each kind, watched: found out what it is, asked where it answers, warmed, its load read."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from headgate.config.hints import Kind
from headgate.model.clock import monotonic
from headgate.model.dialect import DIALECTS
from headgate.model.sequence import LOWEST_PRIORITY
from headgate.replica.dialects import continued
from headgate.replica.gauges import read_gauges
from tests.engine.process import ask
from tests.gateway.llama_server import llama_server
from tests.gateway.test_gateway import chat, eventually, gateway, post
from tests.gateway.watching import watching
from tests.replica.kinds import DEEP, HEALTH, HOLD, METRICS, MODEL, OWNERS, double, double_process
from tests.replica.test_gauges import SAID
from tests.wire.serving import live, serving, until


@pytest.mark.parametrize("kind", OWNERS)
def test_a_replica_of_each_kind_is_found_out_warmed_and_read(kind: str) -> None:
    @live
    async def run() -> None:
        async with double(kind) as engine, watching(engine.url) as (watch, keeper):
            await watch.joined.wait()
            assert watch.replica.kind == kind
            assert keeper.kinds == ([] if kind == "openai" else [kind])
            assert keeper.models == [MODEL]
            assert keeper.told[0].ok
            generated = [path for path in engine.paths("POST") if "completions" in path]
            assert len(generated) == (0 if kind == "headgate" else 5)  # twice short, and each lane's length once
            await until(lambda: len(keeper.told) > 3)
            assert all(probed.ok for probed in keeper.told)
            if kind in METRICS:
                await until(lambda: watch.load.items() >= SAID[kind].items())
            else:
                assert "/prometheus/metrics" not in engine.paths()
            if kind == "tensorrt_llm":
                assert "/metrics" not in engine.paths()  # reading those takes them from whoever collects them

    run()


@pytest.mark.parametrize("kind", OWNERS)
def test_a_kind_that_is_configured_is_not_found_out(kind: str) -> None:
    @live
    async def run() -> None:
        async with double(kind) as engine, watching(engine.url, kind, before_use=False) as (watch, keeper):
            await watch.joined.wait()
            await until(lambda: len(keeper.told) > 1)
            assert keeper.kinds == []
            assert not {"/info", "/props"} & set(engine.paths()) - set(DIALECTS[kind].about)
            assert HEALTH.get(kind, "/health") in engine.paths()

    run()


@pytest.mark.parametrize("kind", OWNERS)
def test_a_deep_check_generates_in_each_engines_own_way(kind: str) -> None:
    @live
    async def run() -> None:
        async with double(kind) as engine, watching(engine.url, kind, before_use=False) as (watch, _):
            await watch.joined.wait()
            before = len(engine.asked)
            assert await watch.look_deep()
            asked = [path for _, path in engine.asked[before:]]
            assert DEEP.get(kind, "/v1/completions") in asked
            engine.status = 500
            assert await watch.look_deep() is False

    run()


@pytest.mark.parametrize("kind", OWNERS)
def test_a_deep_check_that_finds_no_room_says_nothing_of_health(kind: str) -> None:
    @live
    async def run() -> None:
        async with double(kind) as engine, watching(engine.url, kind, before_use=False) as (watch, _):
            await watch.joined.wait()
            engine.status = 429
            assert await watch.look_deep() is None
            engine.status = 503
            assert await watch.look_deep() is (False if kind in DEEP else None), "a check of its own means what it says"

    run()


@pytest.mark.parametrize("kind", OWNERS)
def test_no_deep_check_generates_while_running_streams_get_tokens(kind: str) -> None:
    @live
    async def run() -> None:
        async with double(kind) as engine, watching(engine.url, kind, before_use=False) as (watch, keeper):
            await watch.joined.wait()
            generating = DEEP.get(kind, "/v1/completions")
            keeper.spoke_at = monotonic()
            assert await watch.look_deep()
            assert generating not in engine.paths("GET") + engine.paths("POST")
            assert await watch.look_deep()  # no token has come since the last check
            assert generating in engine.paths("GET") + engine.paths("POST")

    run()


@live
async def test_a_deep_check_goes_behind_everybody_where_priority_is_heeded() -> None:
    async with double("vllm") as engine, watching(engine.url, "vllm", before_use=False) as (watch, _):
        await watch.joined.wait()
        assert await watch.look_deep()
        watch.replica = replace(watch.replica, priority=True)
        assert await watch.look_deep()
        assert [body.get("priority") for body in engine.bodies] == [None, LOWEST_PRIORITY]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_answer_to_a_deep_check_says_nothing(status: int) -> None:
    @live
    async def run() -> None:
        async with (
            double("vllm") as engine,
            watching(engine.url, "vllm", deep_s=0.02, before_use=False) as (
                watch,
                keeper,
            ),
        ):
            await watch.joined.wait()
            engine.status = status
            assert await watch.look_deep() is None
            keeper.told.clear()
            asked = len(engine.bodies)
            await until(lambda: len(engine.bodies) > asked + 3)
            assert not [probed for probed in keeper.told if probed.deep]

    run()


@live
async def test_an_engine_whose_health_check_generates_is_asked_for_it_only_before_it_is_used() -> None:
    async with double("sglang") as engine, watching(engine.url, "sglang", before_use=False) as (watch, keeper):
        await watch.joined.wait()
        before = engine.paths().count("/health")
        await until(lambda: len(keeper.told) > 5)
        assert engine.paths().count("/health") == before
        assert engine.paths().count("/v1/models") > 4


@live
async def test_an_engines_load_is_read_once_a_second_at_most() -> None:
    async with double("vllm") as engine, watching(engine.url, "vllm", before_use=False) as (watch, keeper):
        await watch.joined.wait()
        await until(lambda: len(keeper.told) > 20)
        assert engine.paths().count("/metrics") <= 2


# -- adapters -------------------------------------------------------------------------------------------------


@live
async def test_adapters_are_those_that_say_whose_they_are() -> None:
    async with double("vllm", adapters={"poet": "/p"}) as engine, watching(engine.url) as (watch, keeper):
        await watch.joined.wait()
        assert keeper.models == [MODEL, "poet"]
        assert keeper.adapters == {"poet"}


# -- through the whole gateway ------------------------------------------------------------------------------------


def asked(engine: str) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Bodies and headers of clients' requests, without our own."""
    told = json.loads(ask(f"{engine}/asked")[1])
    pairs = zip(told["bodies"], told["headers"], strict=True)
    clients = [(body, headers) for body, headers in pairs if "x-headgate-purpose" not in headers]
    return [body for body, _ in clients], [headers for _, headers in clients]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("kind", "priority", "session"),
    [("vllm", 1, "x-session-id"), ("sglang", -1, "x-smg-routing-key"), ("tensorrt_llm", 0.495, "x-session-id")],
)
def test_priority_and_session_are_told_in_the_engines_own_way(
    tmp_path: Path, kind: str, priority: float, session: str
) -> None:
    with double_process(kind) as engine:
        config = {"replicas": [{"url": engine, "slots": 4, "priority": True}]}
        with gateway(tmp_path, config) as url:
            headers = {"x-headgate-session": "talk 1"}
            status, answer = ask(f"{url}/v1/chat/completions", {**chat("hello"), "model": MODEL}, headers)
            assert status == 200, answer
            bodies, sent = asked(engine)
            assert [body["priority"] for body in bodies] == [priority]
            assert [one[session] for one in sent] == ["talk%201"]


@pytest.mark.timeout(60)
def test_the_adapter_that_answered_is_in_the_record(tmp_path: Path) -> None:
    config = {"warm": {"adapters": [{"name": "poet", "path": "/p"}]}}
    with double_process("vllm") as engine, gateway(tmp_path, config, engine) as url:
        for model in (MODEL, "poet"):
            status, answer = ask(f"{url}/v1/chat/completions", {**chat("hello"), "model": model})
            assert status == 200, answer
        records = [json.loads(line) for line in ask(f"{url}/admin/records?last=60")[1].splitlines()]
        assert [(one["model"], one.get("adapter", "")) for one in records] == [(MODEL, ""), ("poet", "poet")]


@pytest.mark.timeout(60)
def test_an_engine_that_notices_late_is_told_that_a_client_has_left(tmp_path: Path) -> None:
    with double_process("sglang") as engine, gateway(tmp_path, {}, engine) as url:
        connection = post(url, {**chat("hello"), "model": MODEL, "seed": HOLD})
        eventually(lambda: len(asked(engine)[0]) == 1)
        connection.close()
        eventually(lambda: len(asked(engine)[0]) == 2)
        request, abort = asked(engine)[0]
        assert abort == {"rid": request["rid"]}


# -- the real llama.cpp server ----------------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.timeout(60)
def test_the_real_llama_cpp_server_is_found_out_warmed_served_and_continued(tmp_path: Path, model_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    with llama_server(model_path) as engine, gateway(tmp_path, {}, engine, slots=2) as url:
        replica = json.loads(ask(f"{url}/admin/state")[1])["replicas"][0]
        assert replica["kind"] == "llama_cpp"
        ask_for = {**chat("Name three colours."), "temperature": 0, "seed": 1, "cache_prompt": False}
        whole = answer(url, {**ask_for, "max_tokens": 16})
        begun = answer(url, {**ask_for, "max_tokens": 6})
        assert whole.startswith(begun)
        going = continued("llama_cpp", "/v1/chat/completions", {**ask_for, "max_tokens": 16}, begun, 6)
        assert going is not None
        assert begun + streamed(engine, going) == whole
        said = read_gauges("llama_cpp", ask(f"{engine}/metrics")[1].decode())
        assert said.keys() >= {"waiting", "batch_size"}
        figures = ask(f"{url}/metrics")[1].decode()
        assert "headgate_requests_total" in figures
        assert len(json.loads(b"[" + b",".join(ask(f"{url}/admin/records")[1].splitlines()) + b"]")) == 2
        eventually(lambda: "headgate_replica_batch_size" in ask(f"{url}/metrics")[1].decode())


def answer(url: str, body: dict[str, object]) -> str:
    status, got = ask(f"{url}/v1/chat/completions", body)
    assert status == 200, got
    text: str = json.loads(got)["choices"][0]["message"]["content"]
    return text


def streamed(url: str, body: dict[str, object]) -> str:
    status, got = ask(f"{url}/v1/chat/completions", {**body, "stream": True})
    assert status == 200, got
    events = [json.loads(line[6:]) for line in got.splitlines() if line.startswith(b"data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


def test_every_kind_in_the_config_has_a_dialect() -> None:
    assert set(get_args(Kind)) == set(DIALECTS)


@live
async def test_a_proxy_that_counts_requests_and_says_429_does_not_make_its_replica_ill() -> None:
    async with (
        serving(lambda exchange: exchange.respond(429, b'{"error":{"message":"too many"}}')) as served,
        watching(f"http://127.0.0.1:{served.port}", before_use=False, deep_s=0.02) as (watch, keeper),
    ):
        await watch.joined.wait()
        await until(lambda: len(keeper.told) > 8)
        assert all(probed.ok and not probed.deep for probed in keeper.told)
