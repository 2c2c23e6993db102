"""What the engine says while it has no model yet, or no longer wants requests."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from headgate.config.engine import EngineConfig
from headgate.engine.emulation import emulated_config, emulated_engine
from headgate.engine.engine import Engine
from headgate.engine.intake import Intake
from headgate.engine.server import EngineServer
from headgate.engine.status import Emulation
from headgate.machine.profile import PROFILES
from headgate.model.clock import monotonic
from headgate.wire.server import HttpServer
from tests.engine.process import ask


def served(check: Callable[[EngineServer, str], Awaitable[None]]) -> None:
    async def main() -> None:
        server = EngineServer(EngineConfig(model=Path("none.gguf"), model_name="none"), monotonic)
        http = HttpServer(server.router, clock=monotonic)
        port = await http.listen("127.0.0.1", 0)
        await check(server, f"http://127.0.0.1:{port}")
        await http.drain(1)

    uvloop.run(main())


def test_a_loading_engine_is_live_but_not_ready_and_says_when_to_come_back() -> None:
    async def check(server: EngineServer, url: str) -> None:
        for path, status in (("/health/live", 200), ("/health/ready", 503), ("/health", 503), ("/health/deep", 503)):
            assert (await asyncio.to_thread(ask, url + path))[0] == status
        status, body = await asyncio.to_thread(ask, f"{url}/v1/completions", {"prompt": "x"})
        assert status == 503
        assert b"loading" in body
        assert (await asyncio.to_thread(ask, f"{url}/tokenize", {"prompt": "x"}))[0] == 503
        assert b"loading" in (await asyncio.to_thread(ask, f"{url}/"))[1]
        assert (await asyncio.to_thread(ask, f"{url}/metrics"))[0] == 200

    served(check)


def test_an_engine_is_ready_when_its_warm_up_is_over_and_not_before() -> None:
    """Its steps are held back until the warm-up has been seen to wait for them."""

    async def ready(url: str) -> tuple[int, bytes]:
        return await asyncio.to_thread(ask, f"{url}/health/ready")

    async def main() -> None:
        profile = PROFILES["h100-llama3-8b"]
        config = emulated_config(profile)
        server = EngineServer(config, monotonic, Emulation(profile.name))
        engine, intake = emulated_engine(
            profile, config, clock=monotonic, sink=server.sink, ids=itertools.count(1), rng=random.Random(1)
        )
        http = HttpServer(server.router, clock=monotonic)
        url = f"http://127.0.0.1:{await http.listen('127.0.0.1', 0)}"
        try:
            await check(server, engine, intake, url)
        finally:
            await http.drain(1)
            await asyncio.to_thread(engine.stop)

    async def check(server: EngineServer, engine: Engine, intake: Intake, url: str) -> None:
        server.adopt(engine, intake)
        assert (await ready(url))[0] == 503
        warming = asyncio.ensure_future(server.warm())
        for _ in range(20):  # all that it does without the engine
            await asyncio.sleep(0.01)
        for path in ("/health/ready", "/health"):
            status, said = await asyncio.to_thread(ask, url + path)
            assert status == 503, path
            assert b"warming up" in said
        assert (await asyncio.to_thread(ask, f"{url}/v1/completions", {"prompt": "x"}))[0] == 503
        assert b"headgate_engine_ready 0\n" in (await asyncio.to_thread(ask, f"{url}/metrics"))[1]
        assert (engine.batcher.counts.steps, server.figures.cold_start) == (0, {})
        engine.start()
        await warming
        assert (await ready(url))[0] == 200
        assert b"headgate_engine_ready 1\n" in (await asyncio.to_thread(ask, f"{url}/metrics"))[1]
        assert engine.batcher.counts.steps > 2
        assert server.figures.cold_start["warm-up"] > 0.15

    uvloop.run(asyncio.wait_for(main(), 15))


def test_a_draining_engine_is_no_longer_ready() -> None:
    async def check(server: EngineServer, url: str) -> None:
        server.drain()
        status, body = await asyncio.to_thread(ask, f"{url}/health/ready")
        assert status == 503
        assert b"draining" in body

    served(check)
