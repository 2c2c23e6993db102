"""A gateway of one replica and no policy, between a client and an engine that do as they are told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from math import inf
from typing import Any, Literal

import msgspec

from headgate.config.gateway import GatewayConfig
from headgate.gateway.account import Summary
from headgate.gateway.answer.backlog import relay_limits
from headgate.gateway.answer.bounded import Bounded, Several
from headgate.gateway.answer.continuation import closing
from headgate.gateway.answer.gather import Gather
from headgate.gateway.answer.relay import Relay
from headgate.gateway.answer.response_reader import ResponseReader
from headgate.model.clock import monotonic
from headgate.model.errors import ServeError
from headgate.replica.http import Connections, PoolLimits, request_head
from headgate.wire.errors import Headers
from headgate.wire.exchange import Exchange
from tests.replica.engine import Engine, Talk, engine, event
from tests.wire.serving import Answer, Client, Served, post, serving, until

DONE = event(b"[DONE]")
USAGE = event(
    b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}'
)
ASK = post(b"{}")
LIMITS = relay_limits(GatewayConfig())


class Gate:
    """The owner of every relay."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.limits = LIMITS
        self.slow_client: Literal["cancel", "spool"] = "cancel"
        self.stream = True
        self.wants_usage = False
        self.generation_s = inf
        self.headers: Headers = ()
        self.read_by: Callable[[Relay], Relay | Bounded | Several | Gather | ResponseReader] = lambda relay: relay
        self.goes_on: Callable[[ServeError], None] | None = None
        self.exchanges: list[Exchange] = []
        self.relays: list[Relay] = []
        self.firsts = 0
        self.ended: asyncio.Queue[Summary] = asyncio.Queue()
        self.failed: asyncio.Queue[tuple[ServeError, bool]] = asyncio.Queue()
        self.on_failed: Callable[[ServeError], None] = lambda error: self.exchanges[-1].fail(error)

    def __call__(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.attempt(exchange)

    def attempt(self, exchange: Exchange) -> None:
        limits = replace(self.limits, spool=self.slow_client == "spool")
        asked = (self.stream, self.wants_usage, self.generation_s, self.headers)
        relay = Relay(exchange, self, limits, monotonic, *asked)
        self.relays.append(relay)
        reader = self.read_by(relay)
        reader.start(self.connections.send(request_head("/v1/x", self.connections.host), exchange.body, reader))

    def on_first(self) -> None:
        self.firsts += 1

    def on_attempt_failed(self, error: ServeError, refused: bool) -> None:
        self.failed.put_nowait((error, refused))
        self.on_failed(error)

    def closing(self, first: bytes, finish: str, stop: str, events: int) -> list[bytes]:
        return closing(first, finish, stop, (7, events))

    def may_go_on(self) -> bool:
        return self.goes_on is not None

    def on_broken_off(self, error: ServeError) -> None:
        assert self.goes_on is not None
        self.goes_on(error)

    def on_end(self, summary: Summary) -> None:
        self.ended.put_nowait(summary)

    def on_broken(self, flaw: Exception) -> None:
        raise flaw


class Scene:
    def __init__(self, gate: Gate, served: Served, replica: Engine) -> None:
        self.gate = gate
        self.served = served
        self.replica = replica

    @property
    def behind(self) -> bool:
        backlog = self.gate.relays[0]._backlog
        return backlog is not None and backlog.pausing

    async def asking(self) -> tuple[Client, Talk]:
        """A client that has asked, and the replica that has got it."""
        client = await self.served.connect()
        client.send(ASK)
        return client, await self.replica.asked()


@contextlib.asynccontextmanager
async def scene(**limits: Any) -> AsyncIterator[Scene]:
    async with engine() as replica:
        gate = Gate(Connections(replica.url, clock=monotonic, limits=PoolLimits(look_every_s=0.01)))
        gate.limits = replace(LIMITS, **limits)
        async with serving(gate) as served:
            try:
                yield Scene(gate, served, replica)
                for client in served.opened:
                    client.leave()
                await until(lambda: not served.server.answering and not gate.connections.busy)
            finally:
                gate.connections.close()
                await until(lambda: not gate.connections.count)
        assert all(relay.over for relay in gate.relays)
        assert gate.ended.empty()  # nothing ended twice, and each test has looked
        assert gate.failed.empty()


def payloads(answer: Answer) -> list[bytes]:
    assert answer.status == 200
    assert answer.body.endswith(b"\n\n")
    return [part.removeprefix(b"data: ") for part in answer.body[:-2].split(b"\n\n")]


def content(payload: bytes) -> str:
    text: str = msgspec.json.decode(payload)["choices"][0]["delta"]["content"]
    return text


def error_in(payload: bytes) -> dict[str, Any]:
    error: dict[str, Any] = msgspec.json.decode(payload)["error"]
    return error
