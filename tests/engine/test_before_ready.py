"""What the engine says while it has no model yet, or no longer wants requests."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from headgate.engine.server import EngineServer
from headgate.model.clock import monotonic
from headgate.model.config import EngineConfig
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


def test_a_draining_engine_is_no_longer_ready() -> None:
    async def check(server: EngineServer, url: str) -> None:
        server.drain()
        status, body = await asyncio.to_thread(ask, f"{url}/health/ready")
        assert status == 503
        assert b"draining" in body

    served(check)
