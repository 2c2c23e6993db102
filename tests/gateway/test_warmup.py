"""What happens before a replica's first request, while it is idle, and after it was out."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headgate.config.warm import AdapterConfig
from headgate.model.clock import monotonic
from headgate.model.dialect import DIALECTS
from headgate.model.replica import Replica
from headgate.policy.replicas.signs import HealthState
from headgate.replica.http import Connections
from headgate.upkeep.warmup import BUSY, Warmed, WarmupTarget
from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import chat, double, eventually, gateway, seen
from tests.gateway.watching import warmup, watching
from tests.replica import kinds
from tests.replica.kinds import MODEL, Double
from tests.wire.serving import live, serving, until

POET = AdapterConfig(name="poet", path="/models/poet")


async def warmed(engine: Double, models: tuple[str, ...] = (MODEL,), **config: Any) -> Warmed:
    connections = Connections(engine.url, clock=monotonic)
    replica = Replica(id="r", url=engine.url, kind=engine.kind)
    try:
        return await warmup(**config).warm(WarmupTarget(replica, DIALECTS[engine.kind], connections, models, 4096))
    finally:
        connections.close()


def lengths(engine: Double) -> list[int]:
    """About how many tokens each prompt had."""
    return [len(body["messages"][-1]["content"]) // 4 for body in engine.bodies]


# -- what it is made to do ------------------------------------------------------------------------------------


@live
async def test_prompts_of_every_lanes_length_are_run_for_one_token() -> None:
    async with kinds.double("vllm") as engine:
        done = await warmed(engine)
        assert done.ok
        assert [step.what for step in done.steps] == ["first", "again", "fast", "slow", "long"]
        assert [step.tokens for step in done.steps] == [16, 16, 256, 1024, 2048]
        assert all(body["max_tokens"] == 1 for body in engine.bodies)
        assert lengths(engine) == sorted(lengths(engine))
        assert len({body["messages"][-1]["content"][:4] for body in engine.bodies}) == len(engine.bodies)
        assert all(headers["x-headgate-purpose"] == "warm-up" for headers in engine.headers)


def test_a_replica_for_one_lane_and_one_with_a_short_context_get_only_what_they_will_see() -> None:
    plan = warmup()
    assert plan.shapes(["long"], None) == [("long", 2048)]
    assert plan.shapes(["batch", "fast"], None) == [("fast", 256), ("batch", 1024)]
    assert plan.shapes([], 512) == [("fast", 256), ("slow", 358)]
    assert plan.shapes(["agents"], None) == []


@live
async def test_what_would_take_too_long_is_left_out() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.5  # so long a question takes, for 16 tokens
        return now[0]

    async with kinds.double("vllm") as engine:
        done = await warmed(engine, clock=clock, limit_s=5.0)
        assert done.ok
        assert [step.what for step in done.steps] == ["first", "again"]  # 256 tokens would take eight seconds


@live
async def test_a_prompt_that_is_too_long_for_the_replica_is_no_fault_of_it() -> None:
    async with kinds.double("vllm", longest=2000) as engine:
        done = await warmed(engine)
        assert done.ok
        assert [step.status for step in done.steps] == [200, 200, 200, 400, 400]


@live
async def test_an_engine_without_chats_is_warmed_with_text() -> None:
    class TextOnly(Double):
        def post(self, exchange: Any, path: str) -> None:
            if path == "/v1/chat/completions":
                exchange.respond(400, b'{"error":{"message":"no chat template"}}')
            else:
                super().post(exchange, path)

    async with serving(engine := TextOnly("vllm")) as served:
        engine.url = f"http://127.0.0.1:{served.port}"
        done = await warmed(engine)
        assert done.ok
        assert all(step.ok for step in done.steps)
        assert all("prompt" in body for body in engine.bodies)


@pytest.mark.parametrize("status", [500, 502])
def test_a_replica_that_can_not_generate_is_not_warm(status: int) -> None:
    @live
    async def run() -> None:
        async with kinds.double("vllm", status=status) as engine:
            done = await warmed(engine)
            assert not done.ok
            assert done.why == f"no first token: it answered {status}: it is broken"
            assert len(engine.bodies) == 1

    run()


@pytest.mark.parametrize("status", BUSY)
def test_a_busy_replica_is_asked_again_until_there_is_no_more_time(status: int) -> None:
    @live
    async def run() -> None:
        async with kinds.double("vllm", status=status) as engine:
            done = await warmed(engine, timeout_s=1.2)
            assert done.ok is done.full is (status != 408), "full with others' requests: it generates, and is used"
            assert len(engine.bodies) > 1

    run()


@live
async def test_a_replica_that_never_answers_is_given_up() -> None:
    class Silent(Double):
        def generate(self, exchange: Any, body: dict[str, Any]) -> None:
            pass

    async with serving(engine := Silent("vllm")) as served:
        engine.url = f"http://127.0.0.1:{served.port}"
        done = await warmed(engine, timeout_s=0.1)
        assert not done.ok
        assert "did not answer within 0.1 s" in done.why


@live
async def test_system_prompts_are_put_into_every_kinds_cache_our_own_engines_too() -> None:
    for kind in ("headgate", "llama_cpp"):
        async with kinds.double(kind) as engine:
            done = await warmed(engine, system_prompts=("You are a pirate.", "You are a poet."))
            assert done.ok
            found = [body["messages"][0]["content"] for body in engine.bodies if len(body["messages"]) == 2]
            assert found == ["You are a pirate.", "You are a poet."]
            assert len(engine.bodies) == (2 if kind == "headgate" else 7)


# -- adapters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_adapters_are_loaded_used_once_and_listed(kind: str) -> None:
    @live
    async def run() -> None:
        async with kinds.double(kind) as engine, watching(engine.url, kind, adapters=(POET,)) as (watch, keeper):
            await watch.joined.wait()
            assert engine.adapters == {"poet": "/models/poet"}
            assert [body["model"] for body in engine.bodies].count("poet") == 1
            assert keeper.models == [MODEL, "poet"]
            assert (await watch.warm(asked=True)).ok
            assert engine.paths("POST").count(DIALECTS[kind].load_adapter or "") == 1  # it has it by now

    run()


@live
async def test_an_adapter_that_can_not_be_loaded_is_named_and_the_replica_used_all_the_same() -> None:
    class Fixed(Double):
        def post(self, exchange: Any, path: str) -> None:
            if "lora" in path:
                exchange.respond(404, b'{"detail":"Not Found"}')
            else:
                super().post(exchange, path)

    async with serving(engine := Fixed("vllm")) as served:
        engine.url = f"http://127.0.0.1:{served.port}"
        done = await warmed(engine, adapters=(POET,))
        assert done.ok
        assert done.why.startswith("adapter poet: it loads none: start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING")


# -- when -------------------------------------------------------------------------------------------------------


@live
async def test_nobody_hears_that_it_is_well_before_it_is_warm_and_it_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with kinds.double("vllm", status=500) as engine, watching(engine.url, "vllm") as (watch, keeper):
        await until(lambda: len(keeper.told) > 1 and watch.phase == "failed")
        assert not any(probed.ok for probed in keeper.told)
        assert watch.load["warm"] == 0.0
        assert f"replica r: warming {engine.url} (vLLM)" in caplog.messages
        engine.status = 200
        await watch.joined.wait()
        assert keeper.told[-1].ok
        assert keeper.told[-1].deep  # it has generated: it is not cold
        assert watch.phase == "ready"


@live
async def test_one_that_was_out_is_warmed_again_before_anybody_hears_that_it_is_well() -> None:
    async with kinds.double("vllm") as engine, watching(engine.url, "vllm") as (watch, keeper):
        await watch.joined.wait()
        await until(lambda: len(keeper.told) > 3)
        once = len(engine.bodies)
        engine.status = 500
        keeper.state, keeper.since = HealthState.EJECTED, 7.0
        await until(lambda: len(engine.bodies) > once)
        told = len(keeper.told)
        await until(lambda: len(keeper.told) > told + 2)
        assert not any(probed.ok for probed in keeper.told[told:])
        engine.status = 200
        await until(lambda: keeper.told[-1].ok)
        assert keeper.told[-1].deep
        again = len(engine.bodies)
        keeper.state = HealthState.PROBATION
        told = len(keeper.told)
        await until(lambda: len(keeper.told) > told + 3)
        assert len(engine.bodies) == again  # once for each time it was out
        keeper.state, keeper.since = HealthState.EJECTED, 8.0
        await until(lambda: len(engine.bodies) > again)


@live
async def test_one_that_nobody_asks_is_kept_alive_and_one_that_is_asked_is_not() -> None:
    settings: dict[str, Any] = {"keep_alive_s": 0.03, "limit_s": 0.0, "system_prompts": ("Be brief.",)}
    async with kinds.double("vllm") as engine, watching(engine.url, "vllm", **settings) as (watch, keeper):
        await watch.joined.wait()
        before = len(engine.bodies)
        await until(lambda: len(engine.bodies) >= before + 2)
        contents = [body["messages"][0]["content"] for body in engine.bodies[before : before + 2]]
        assert contents[0].startswith("again: ")
        assert contents[1] == "Be brief."  # what is in its cache stays there
        deep = [probed for probed in keeper.told if probed.deep]
        assert all(probed.ok for probed in deep)

    async with kinds.double("vllm") as engine, watching(engine.url, "vllm", **settings) as (watch, keeper):
        await watch.joined.wait()
        before = len(engine.bodies)

        def asked() -> bool:
            keeper.requests = (keeper.requests or 0.0) + 1.0
            return len(keeper.told) > 10

        await until(asked)
        keeper.requests = None  # one that takes long
        await until(lambda: len(keeper.told) > 20)
        assert len(engine.bodies) == before


# -- the whole gateway --------------------------------------------------------------------------------------------


def replicas(url: str) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in json.loads(ask(f"{url}/admin/state")[1])["replicas"]}


@pytest.mark.timeout(60)
def test_a_replica_that_fails_its_warm_up_gets_no_request_until_it_passes(tmp_path: Path) -> None:
    with double() as (_, bad), double() as (_, good):
        ask(f"{bad}/break", b"1")
        with gateway(tmp_path, {}, bad, good) as url:
            for _ in range(10):
                status, _ = ask(f"{url}/v1/chat/completions", chat("n=1"))
                assert status == 200
            assert seen(bad)["seen"] == 0
            assert seen(bad)["warmed"] > 0
            shown = replicas(url)[bad.removeprefix("http://")]
            assert shown["state"] == "failed"
            assert "no memory" in shown["why"]
            figures = ask(f"{url}/metrics")[1].decode()
            assert re.search(rf'headgate_replica_warm{{replica="{bad.removeprefix("http://")}"}} 0(\.0)?\n', figures)
            assert len(ask(f"{url}/admin/records")[1].splitlines()) == 10  # warm-ups are nobody's requests
            ask(f"{bad}/break", b"0")
            eventually(lambda: replicas(url)[bad.removeprefix("http://")]["state"] == "up", within_s=20)


@pytest.mark.timeout(60)
def test_somebody_may_ask_for_a_warm_up_and_is_told_how_it_went(tmp_path: Path) -> None:
    with double() as (_, engine), gateway(tmp_path, {}, engine) as url:
        name = engine.removeprefix("http://")
        before = seen(engine)["warmed"]
        status, body = ask(f"{url}/admin/replicas/{name}/warmup", b"{}")
        told = json.loads(body)
        assert status == 200
        assert told["ok"]
        assert [step["what"] for step in told["steps"]][:2] == ["first", "again"]
        assert seen(engine)["warmed"] == before + len(told["steps"])
        ask(f"{engine}/break", b"1")
        status, body = ask(f"{url}/admin/replicas/{name}/warmup", b"{}")
        assert status == 502
        assert "no memory" in json.loads(body)["why"]
        assert ask(f"{url}/admin/replicas/nobody/warmup", b"{}")[0] == 400
        assert ask(f"{url}/admin/replicas/{name}/warmup", b"{}", headers={"x-forwarded-for": "1.2.3.4"})[0] == 401


@pytest.mark.timeout(60)
def test_a_running_engine_is_in_use_at_once_and_its_first_request_is_not_cold() -> None:
    with double() as (_, engine), headgate("serve", "--port", "0", "--replica", engine) as (_, url):
        assert seen(engine)["warmed"] > 0
        assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 200
        record = json.loads(ask(f"{url}/admin/records")[1].splitlines()[0])
        assert not record.get("cold", False)
