"""The emulated engine sleeps as vLLM's sleep mode does: what runs ends first, and what comes meanwhile waits."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any

import pytest
import uvloop

from headgate.engine.emulation import emulated_config, emulated_engine
from headgate.engine.engine import Engine
from headgate.engine.runner import emulated_sleep
from headgate.engine.server import EngineServer
from headgate.engine.status import Emulation
from headgate.model.clock import monotonic
from headgate.policy.batching.blocks import Ledger
from headgate.policy.batching.ledger import BlockPlacement
from headgate.replica.http import Connections
from headgate.wire.server import HttpServer
from tests.engine.test_emulated import QUICK
from tests.policy.test_paged import SHARED, chain, compute, ledger, put

WAKE_S = 0.2
Check = Callable[["Client", Engine], Awaitable[None]]


def served(check: Check, **changes: Any) -> None:
    profile = replace(QUICK, **changes)

    async def main() -> None:
        config = emulated_config(profile)
        server = EngineServer(config, monotonic, Emulation(profile.name, wake_s=WAKE_S))
        engine, intake = emulated_engine(
            profile, config, clock=monotonic, sink=server.sink, ids=count(1), rng=Random(1)
        )
        http = HttpServer(server.router, clock=monotonic)
        port = await http.listen("127.0.0.1", 0)
        server.adopt(engine, intake)
        engine.start()
        try:
            await server.warm()
            await check(Client(Connections(f"http://127.0.0.1:{port}", clock=monotonic)), engine)
        finally:
            await http.drain(1)
            await asyncio.to_thread(engine.stop)

    uvloop.run(main())


@dataclass
class Answer:
    status_code: int
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class Client:
    """Asks an engine, each question on a connection of its own or an idle one."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections

    async def get(self, path: str) -> Answer:
        status, body = await self.connections.get(path, 10)
        return Answer(status, body.decode())

    async def post(self, path: str, body: object = None) -> Answer:
        status, said = await self.connections.ask("POST", path, b"" if body is None else json.dumps(body).encode(), 10)
        return Answer(status, said.decode())


async def until(happened: Callable[[], bool]) -> None:
    while not happened():  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def say(client: Client, tokens: int = 4, prompt: str = "It was the best of times. " * 20) -> Any:
    body = {"model": "default", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    return await client.post("/v1/completions", body)


async def asleep(client: Client) -> bool:
    return bool((await client.get("/is_sleeping")).json()["is_sleeping"])


async def figure(client: Client, name: str) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_what_runs_ends_first_and_what_comes_meanwhile_is_answered_when_it_is_awake() -> None:
    async def check(client: Client, engine: Engine) -> None:
        running = asyncio.create_task(say(client, 40))
        await until(lambda: bool(engine.batcher.running))
        going = asyncio.create_task(client.post("/sleep?level=1&mode=wait"))
        for _ in range(100):
            if await asleep(client):
                break
        late = asyncio.create_task(say(client))
        assert (await going).status_code == 200
        assert running.done()
        assert (await running).json()["usage"]["completion_tokens"] == 40
        assert await figure(client, "headgate_engine_asleep") == 1
        assert await figure(client, "headgate_engine_kv_memory_bytes") == 0
        assert (await client.get("/health")).status_code == 200
        assert not late.done()
        began = monotonic()
        assert (await client.post("/wake_up")).status_code == 200
        assert monotonic() - began >= WAKE_S
        assert not await asleep(client)
        answer = await late
        assert answer.status_code == 200
        assert await figure(client, "headgate_engine_kv_memory_bytes") > 0

    served(check)


def test_its_prefixes_are_forgotten() -> None:
    async def cached(client: Client) -> int:
        return int((await say(client)).json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    async def check(client: Client, engine: Engine) -> None:
        await cached(client)
        assert await cached(client) > 0
        await client.post("/sleep?level=1&mode=wait")
        await client.post("/wake_up")
        assert await cached(client) == 0
        assert await cached(client) > 0

    served(check)


def test_the_usual_mode_aborts_what_runs_as_vllms_does() -> None:
    async def check(client: Client, engine: Engine) -> None:
        running = asyncio.create_task(say(client, 400, "Once"))
        await until(lambda: bool(engine.batcher.running))
        assert (await client.post("/sleep")).status_code == 200
        assert (await running).status_code == 500

    served(check)


def test_telling_it_twice_is_no_harm_and_nonsense_is_refused_with_what_to_say() -> None:
    async def check(client: Client, engine: Engine) -> None:
        assert (await client.post("/wake_up")).status_code == 200
        both = await asyncio.gather(*(client.post("/sleep?level=1&mode=wait") for _ in range(2)))
        assert [one.status_code for one in both] == [200, 200]
        assert (await client.get("/health/deep")).status_code == 503
        both = await asyncio.gather(*(client.post("/wake_up") for _ in range(2)))
        assert [one.status_code for one in both] == [200, 200]
        assert (await say(client)).status_code == 200
        refused = await client.post("/sleep?level=7")
        assert refused.status_code == 400
        assert "level=1 or 2" in refused.json()["error"]["message"]

    served(check)


def test_clients_that_left_make_room_for_others_and_no_more_are_held_than_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(emulated_sleep, "MOST_HELD", 2)

    async def check(client: Client, engine: Engine) -> None:
        await client.post("/sleep?level=1&mode=wait")
        before = engine.spent.lives
        gone = asyncio.create_task(say(client))
        stays = asyncio.create_task(say(client))
        await asyncio.sleep(0.1)
        assert (await say(client)).status_code == 503
        gone.cancel()
        await asyncio.sleep(0.1)
        late = asyncio.create_task(say(client))
        await asyncio.sleep(0.05)
        await client.post("/wake_up")
        assert [(await one).status_code for one in (stays, late)] == [200, 200]
        assert engine.spent.lives == before + 2

    served(check)


def test_an_engine_with_real_weights_has_no_such_paths() -> None:
    async def main() -> None:
        server = EngineServer(emulated_config(QUICK), monotonic)
        http = HttpServer(server.router, clock=monotonic)
        port = await http.listen("127.0.0.1", 0)
        client = Client(Connections(f"http://127.0.0.1:{port}", clock=monotonic))
        assert (await client.post("/sleep?level=1&mode=wait")).status_code == 404
        assert (await client.get("/is_sleeping")).status_code == 404
        await http.drain(1)

    uvloop.run(main())


def test_a_cleared_account_is_that_of_an_empty_memory() -> None:
    book = ledger(host_blocks=10)
    placed = put(book, SHARED)
    book.pin(placed.slot, 1.0)
    book.release(placed.slot, 1.0)
    assert book.match(chain(SHARED)) > 0
    book.clear()
    assert book.match(chain(SHARED)) == 0
    assert (book.cached_blocks, book.owned_blocks, book.host_used, book.free_slots) == (0, 0, 0, 4)
    assert put(book, SHARED).length == 0


def test_one_of_slots_too() -> None:
    book = Ledger(slots=2, slot_tokens=400, blocks=100, host_blocks=10, block_tokens=4)
    placed = book.place(1, chain(SHARED), len(SHARED), 0.0)
    assert isinstance(placed, BlockPlacement)
    compute(book, placed.slot, SHARED)  # type: ignore[arg-type]
    book.release(placed.slot, 1.0)
    assert book.match(chain(SHARED)) > 0
    book.clear()
    assert book.match(chain(SHARED)) == 0
    assert (book.cached_blocks, book.owned_blocks, book.host_used, book.free_slots) == (0, 0, 0, 2)


def test_an_engine_that_has_ended_has_nothing_to_forget() -> None:
    async def check(client: Client, engine: Engine) -> None:
        await asyncio.to_thread(engine.stop)
        assert engine.forget_cached().result(1) is None

    served(check)
