"""A gateway with names that stand for versions, in this process, in front of engines' doubles."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from typing import Any

import msgspec
import uvloop

from headgate.config.gateway import GatewayConfig
from headgate.config.models import ModelConfig, VersionConfig
from headgate.gateway.catalog import Catalog
from headgate.gateway.hooks import NO_HOOKS, GatewayHooks
from headgate.gateway.routes import ApiRoutes
from headgate.model.clock import Clock, monotonic
from headgate.model.event import Command, Event
from headgate.model.record import Record
from headgate.model.replica import Replica
from headgate.replica.http import Connections
from headgate.surface.access import AdminAccess
from headgate.surface.instruments import Instruments
from headgate.surface.ledger import Holdings
from headgate.upkeep.replica_set import ReplicaSet
from headgate.upkeep.warmup import Warmup
from headgate.wire.exchange import Exchange
from headgate.wire.origin import Door
from headgate.wire.server import HttpServer
from headgate.wiring.gateway import build_gateway
from headgate.wiring.rollout import RolloutWiring
from tests.gateway.double import Double
from tests.ledger import settled
from tests.wire.serving import Answer, Client, until

V1, V2 = VersionConfig(name="v1", model="chat-1", weight=1), VersionConfig(name="v2", model="chat-2")
CHAT = ModelConfig(name="chat", versions=(V1, V2))


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        uvloop.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


class Engine(Double):
    """Remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[dict[str, Any]] = []

    def take(self, exchange: Exchange) -> None:
        body = msgspec.json.decode(exchange.body)
        if "messages" in body:
            self.bodies.append(body)
        super().take(exchange)


class Scene:
    def __init__(
        self,
        config: GatewayConfig,
        engines: dict[str, Engine],
        hooks: GatewayHooks = NO_HOOKS,
        clock: Clock = monotonic,
    ) -> None:
        """`clock`: the gateway's own; all around it have the real one."""
        self.engines = engines
        self.gateway = build_gateway(config, clock, 1, hooks)
        warmup = Warmup(config.warm, config.classify, monotonic)
        self.roster = ReplicaSet(
            self.gateway, lambda replica: Connections(replica.url, clock=monotonic), 0.05, 60.0, warmup
        )
        self.catalog: Catalog = self.roster.catalog
        self.access = AdminAccess((), loopback_only=True)
        self.instruments = Instruments(self.gateway, self.roster, config, self.access, random.Random(1), monotonic)
        self.wiring = RolloutWiring(
            config, self.gateway, self.catalog, self.instruments, self.access, monotonic
        )  # fmt: skip
        self.rollouts = self.wiring.rollouts
        routes = {**self.instruments.routes(), **self.wiring.routes()}
        door = Door(ApiRoutes(self.gateway, self.catalog, routes).router, loopback_only=True)
        self.server = HttpServer(door, clock=monotonic)
        self.ledger = Holdings(self.gateway, self.access)
        self.ledger.server = self.server
        self.port = 0
        self.servers: dict[str, HttpServer] = {}
        """The engines', by model."""
        self.clients: list[Client] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def records(self) -> list[Record]:
        return list(self.gateway.account.records)

    async def send(self, method: str, path: str, body: object = None, *headers: str) -> Client:
        """A client that has asked and got nothing yet."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"host: 127.0.0.1:{self.port}", f"content-length: {len(data)}", *headers]
        lines += ["content-type: application/json"] if method == "POST" else []
        client.send("\r\n".join([*lines, "", ""]).encode() + data)
        return client

    async def http(self, method: str, path: str, body: object = None, *headers: str) -> Answer:
        return await (await self.send(method, path, body, *headers)).answer()

    async def ask(self, text: str = "n=1", model: str = "chat", headers: tuple[str, ...] = (), **more: Any) -> Answer:
        body = {"model": model, "messages": [{"role": "user", "content": text}], **more}
        return await self.http("POST", "/v1/chat/completions", body, *headers)

    def leave(self) -> None:
        for client in self.clients:
            client.leave()

    def asked(self) -> dict[str, int]:
        return {name: len(engine.bodies) for name, engine in self.engines.items()}


@contextlib.asynccontextmanager
async def scene(
    *models: ModelConfig,
    replicas: tuple[str, ...] = ("chat-1", "chat-2"),
    slots: int = 64,
    events: Callable[[Event, float, list[Command]], None] | None = None,
    **more: Any,
) -> AsyncIterator[Scene]:
    """A replica of each of these models, all of which call it `double`; `MODEL#2` is one more of MODEL. `events` gets
    all that the dispatcher is told, and its commands."""
    engines, servers, tasks = {}, [], []
    config = GatewayConfig(models=models or (CHAT,), **more)
    loop = asyncio.get_running_loop()
    it = None
    try:
        for model in replicas:
            engine = engines[model] = Engine()
            server = HttpServer(engine.router(), clock=monotonic)
            servers.append((model, await server.listen("127.0.0.1", 0), server))
            tasks.append(loop.create_task(engine.run()))
        it = Scene(config, engines, GatewayHooks(events=events))
        it.servers = {model: server for model, _, server in servers}
        it.port = await it.server.listen("127.0.0.1", 0)
        for model, port, _ in servers:
            url, name = f"http://127.0.0.1:{port}", model.partition("#")[0]
            it.roster.join(
                Replica(id=model, url=url, model=name, served_as="double", kind="openai", slots=slots)
            )  # fmt: skip
        fleet = it.gateway.dispatcher.index
        await until(lambda: all(load.usable == 1 for load in fleet.loads.values()))
        for engine in engines.values():
            engine.bodies.clear()  # warm-up
        yield it
        it.leave()
        await settled(it.ledger)
    finally:
        if it is not None:
            it.leave()
            await it.gateway.finish(0)
            await it.instruments.close()
            await it.roster.close()
            await it.server.drain(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, _, server in servers:
            await server.drain(0)
