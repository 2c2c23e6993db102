"""docs/request.md names every module that runs for a request, from its first byte to its record."""

import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from headgate.config.gateway import GatewayConfig
from headgate.gateway.catalog import Catalog
from headgate.gateway.judge import HeaderJudge
from headgate.gateway.routes import ApiRoutes
from headgate.model.clock import monotonic
from headgate.model.event import Probed, ReplicaJoined
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.replica.http import Connections
from headgate.surface.access import AdminAccess
from headgate.wire.origin import Door
from headgate.wire.server import HttpServer
from headgate.wiring.gateway import build_gateway
from tests.gateway.scene import DONE, USAGE
from tests.replica.engine import END, STREAM, Talk, engine, event, token
from tests.wire.serving import Client, live, post, until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "request.md"
MOST_MODULES = 43
"""Modules that may run for one streamed chat from its first byte to its record, once one has been served."""
BODY = b'{"model":"default","messages":[{"role":"user","content":"Say hello."}],"stream":true,"max_tokens":40}'
ASK = post(BODY, b"content-type: application/json").replace(b"POST / ", b"POST /v1/chat/completions ")
STOP = event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')

pytestmark = pytest.mark.interpreted_only("a profiler does not see the calls of compiled modules")


class ModuleTrace:
    """A profiler that notes the modules of headgate whose functions are called on this thread."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.upto_record: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        # By the globals, not by the file: what a dataclass generates has no file.
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("headgate."):
            self.modules.add(name.removeprefix("headgate.").replace(".", "/") + ".py")
        if event == "return" and name == "headgate.gateway.account" and frame.f_code.co_name == "close":
            self.upto_record = set(self.modules)


async def chat(client: Client, talking: "asyncio.Future[Talk]") -> None:
    """One chat, answered in four tokens; the client gets all of the answer."""
    client.send(ASK)
    talk = await talking
    await talk.request()
    talk.send(STREAM)
    for text in ("Hel", "lo", " there", "."):
        talk.send(token(text))
    talk.send(STOP + USAGE + DONE + END)
    assert b"[DONE]" in (await client.answer()).body


async def traced(kind: str | None) -> tuple[ModuleTrace, ModuleTrace]:
    """The first and the second chat through a gateway, to a replica of this kind. Nothing else runs on the loop: no
    prober, no instruments."""
    gateway = build_gateway(GatewayConfig(), monotonic, 1)
    catalog = Catalog(gateway.placing.places, gateway.hear)
    gateway.acceptor.serve_names(catalog)
    access = AdminAccess((), loopback_only=True)
    router = ApiRoutes(gateway, catalog, {}).router
    door = Door(router, loopback_only=True, names=("test",))
    judge = HeaderJudge(door, router, gateway, access.check)
    server = HttpServer(door, clock=monotonic, judge=judge, greet=door.greet)
    traces = (ModuleTrace(), ModuleTrace())
    async with engine() as behind:
        replica = Replica(id="a", url=behind.url, slots=4, kind=kind)
        connections = Connections(behind.url, clock=monotonic)
        gateway.placing.join(replica, connections)
        catalog.look_again()
        gateway.hear(ReplicaJoined(replica))
        gateway.hear(Probed("a", ok=True))
        port = await server.listen("127.0.0.1", 0)
        client = Client(*await asyncio.open_connection("127.0.0.1", port))
        try:
            await until(lambda: server._state.connections)  # connecting is before the first byte
            talking = asyncio.ensure_future(behind.talk())  # both chats go over one connection
            for trace in traces:
                sys.setprofile(trace)
                await chat(client, talking)
                await until(lambda: not gateway.tickets)
                sys.setprofile(None)
        finally:
            sys.setprofile(None)
            client.leave()
            connections.close()
            await gateway.finish(0)
            await server.drain(0)
    ended = [(record.outcome, record.output_tokens) for record in gateway.account.records]
    assert ended == [(Outcome.COMPLETED, 2)] * 2
    return traces


@pytest.mark.parametrize("kind", [None, "vllm", "headgate"])
@live
async def test_every_module_that_runs_for_a_streamed_chat_is_named(kind: str | None) -> None:
    first, second = await traced(kind)
    assert {"wire/protocol.py", "policy/dispatch/dispatcher.py", "gateway/account.py"} <= second.upto_record
    text = PAGE.read_text(encoding="utf-8")
    assert sorted(module for module in first.modules | second.modules if f"`{module}`" not in text) == []
    counts = f"{len(second.upto_record)} modules up to the record, {len(second.modules)} with what is learned from it"
    print(f"kind {kind}: {counts}; the first chat of a gateway: {len(first.modules)}")
    assert len(second.upto_record) <= MOST_MODULES
