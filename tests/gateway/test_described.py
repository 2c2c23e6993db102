"""A replica whose slots are not configured is asked what it can do, and followed when that changes."""

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.model.clock import monotonic
from headgate.model.dialect import DIALECTS
from headgate.wire.exchange import Exchange
from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import eventually
from tests.gateway.watching import watching
from tests.replica.kinds import MODEL, Double, double, double_process
from tests.wire.serving import live, serving, until

DESCRIBED = [kind for kind, dialect in DIALECTS.items() if dialect.about]


@pytest.mark.parametrize("kind", DESCRIBED)
def test_what_an_engine_describes_is_told_and_a_change_is_noticed(kind: str) -> None:
    @live
    async def run() -> None:
        async with double(kind) as engine, watching(engine.url, deep_s=0.05) as (watch, keeper):
            await watch.joined.wait()
            assert keeper.reported[0].batch == 4  # before it gets its first request
            await until(lambda: watch.load.get("batch_limit") == 4.0)
            engine.batch = 8
            await until(lambda: keeper.reported[-1].batch == 8)

    run()


@pytest.mark.parametrize(
    "said", ["x", 5, [], {}, [[]], {"total_slots": -3}, {"total_slots": 1e300}, {"vllm_config": [1]}, {"dp_size": "2"}]
)
@pytest.mark.parametrize("kind", DESCRIBED)
def test_nonsense_is_not_believed_and_the_replica_is_used(kind: str, said: Any) -> None:
    @live
    async def run() -> None:
        async with double(kind, absurd=said) as engine, watching(engine.url, kind) as (watch, keeper):
            await watch.joined.wait()
            assert all(told.ok for told in keeper.told)
            assert all(report.batch is None for report in keeper.reported)

    run()


def test_what_was_said_holds_while_it_does_not_answer() -> None:
    @live
    async def run() -> None:
        async with double("llama_cpp") as engine, watching(engine.url, deep_s=0.02) as (watch, keeper):
            await watch.joined.wait()
            engine.absurd = "gone"
            before = engine.paths().count("/props")
            await until(lambda: engine.paths().count("/props") > before + 1)
            assert keeper.reported[-1].batch == 4

    run()


def test_an_engine_that_never_describes_itself_is_used_soon() -> None:
    @live
    async def run() -> None:
        held = []

        def handle(exchange: Exchange) -> None:
            if exchange.path == "/props":
                held.append(exchange)  # never answered
            else:
                engine(exchange)

        engine = Double("llama_cpp")
        async with (
            serving(handle) as served,
            watching(f"http://127.0.0.1:{served.port}", "llama_cpp") as (watch, keeper),
        ):
            began = monotonic()
            await watch.joined.wait()
            assert monotonic() - began < 3.5
            assert held
            assert all(report.batch is None for report in keeper.reported)

    run()


@pytest.mark.timeout(60)
def test_the_gateway_sends_no_more_than_the_engine_says_it_computes_at_once() -> None:
    with double_process("llama_cpp") as engine, headgate("serve", "--replica", engine, "--port", "0") as (_, url):
        eventually(lambda: ask(f"{url}/health/ready")[0] == 200)
        told = json.loads(ask(f"{url}/admin/state")[1])["replicas"][0]
        assert told["limit"] == 4
        assert b'headgate_replica_batch_limit{replica="' in ask(f"{url}/metrics")[1]


@pytest.mark.timeout(60)
def test_ranks_behind_one_address_are_replicas_of_their_own(tmp_path: Path) -> None:
    with double_process("vllm") as engine:
        seats = [{"id": f"rank-{n}", "url": engine, "headers": {"X-data-parallel-rank": str(n)}} for n in (0, 1)]
        path = tmp_path / "headgate.yaml"
        path.write_text(json.dumps({"replicas": seats, "listen": {"port": 0}, "routing": {"algorithm": "round_robin"}}))
        with headgate("serve", "--config", str(path)) as (_, url):
            eventually(lambda: ask(f"{url}/health/ready")[0] == 200)
            told = json.loads(ask(f"{url}/admin/state")[1])["replicas"]
            assert {one["id"]: one["limit"] for one in told} == {"rank-0": 2, "rank-1": 2}  # 4 over both
            for _ in range(4):
                assert ask(f"{url}/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 47})[0] == 200
            asked = json.loads(ask(f"{engine}/asked")[1])
            ranks = [
                headers["x-data-parallel-rank"]
                for body, headers in zip(asked["bodies"], asked["headers"], strict=True)
                if body["max_tokens"] == 47
            ]
            assert sorted(ranks) == ["0", "0", "1", "1"]
