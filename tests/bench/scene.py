"""Servers to bench against, on real sockets in the same loop."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, ParamSpec

import msgspec
import uvloop

from headgate.bench.asker import Asker, Asking
from headgate.bench.player import Player, RunTally
from headgate.model.clock import Clock, monotonic
from headgate.report.results import Results, Rows
from headgate.wire.exchange import Exchange, Handler
from headgate.wire.server import HttpServer
from headgate.workload.arrival import Arrival
from tests.gateway.double import Double

P = ParamSpec("P")

MODELS = b'{"object":"list","data":[{"id":"some-model"},{"id":"another"}]}'
TOKEN = b'{"choices":[{"index":0,"delta":{"content":"w "},"finish_reason":null}]}'
LAST = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'


def every(gap_s: float, count: int, prompt: str | None = None) -> list[Arrival]:
    return [Arrival(i * gap_s, 20, 5, prompt=prompt) for i in range(count)]


def live(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        uvloop.run(asyncio.wait_for(test(*args, **kwargs), 15))

    return run


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    server = HttpServer(handler, clock=monotonic)
    port = await server.listen("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.drain(0.2)


@contextlib.asynccontextmanager
async def doubling() -> AsyncIterator[tuple[Double, str]]:
    double = Double()
    async with serving(double.router()) as url, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(double.run())
        try:
            yield double, url
        finally:
            running.cancel()


class Scripted:
    """Answers /v1/models, and what is posted as `answer` says; keeps all it was asked."""

    def __init__(self, answer: Callable[[Exchange], None]) -> None:
        self._answer = answer
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []

    def __call__(self, exchange: Exchange) -> None:
        if exchange.method == "GET":
            exchange.respond(200, MODELS)
            return
        self.asked.append((exchange.path, dict(exchange.headers), msgspec.json.decode(exchange.body)))
        self._answer(exchange)


def whole_stream(exchange: Exchange) -> None:
    exchange.stream()
    exchange.event(TOKEN)
    exchange.event(LAST)
    exchange.end(b"[DONE]")


def not_streamed(exchange: Exchange) -> None:
    exchange.respond(200, b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}')


async def played(
    url: str,
    arrivals: Iterable[Arrival],
    asking: Asking | None = None,
    *,
    clock: Clock = monotonic,
    timeout_s: float = 10.0,
    tally: RunTally | None = None,
) -> Results:
    asker = Asker((url,), asking or Asking(), clock)
    rows = Rows()
    try:
        await asker.probe()
        await Player(iter(arrivals), asker, rows, tally or RunTally(), clock, timeout_s).play()
    finally:
        await asker.close()
    return rows.results("played", source="bench")
