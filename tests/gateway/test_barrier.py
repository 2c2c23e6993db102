"""Whatever raises while a request is served fails that request, and nothing else: its client is told, its room comes
back, its record is written once, and the gateway serves the next one.

Each callback is made to raise where a request passes it: those that the connection to a replica calls, those that a
relay calls, those that carry the dispatcher's commands out, and those that only watch.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from headgate.config.gateway import GatewayConfig, TimeoutsConfig
from headgate.config.hedge import HedgeConfig
from headgate.gateway.account import Account
from headgate.gateway.answer.backlog import Backlog
from headgate.gateway.answer.bounded import Bounded
from headgate.gateway.answer.gather import Gather
from headgate.gateway.answer.relay import Relay
from headgate.gateway.gateway import Gateway
from headgate.gateway.hedge import Rival
from headgate.gateway.intake.accept import Acceptor
from headgate.gateway.intake.models import Chosen
from headgate.gateway.placing import Placing, Ticket
from headgate.gateway.shadow import ShadowCopy, Shadows
from headgate.gateway.trace_context import Contexts
from headgate.model.clock import Clock, monotonic
from headgate.model.event import Ended, Event, FirstToken, Tick
from headgate.model.replica import Replica
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.hedge import Hedger
from headgate.policy.dispatch.sending import Sending
from headgate.policy.replicas.book import ReplicaBook
from headgate.wire.exchange import Exchange
from headgate.wire.server import HttpServer
from tests.gateway.versions import Engine, Scene, awaited
from tests.ledger import settled
from tests.wire.serving import until

pytestmark = [
    pytest.mark.timeout(20),
    pytest.mark.interpreted_only("a compiled class can't be changed for a test"),
]


class Bang(Exception):
    pass


class Trap:
    """Makes a method raise, `times` times, in the place of what it does, or after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, after: bool = False) -> None:
        self.sprung = 0
        self.armed = False
        real = getattr(owner, name)

        def raising(*given: Any, **named: Any) -> Any:
            at_engine = isinstance(given[0], Exchange) and "x-request-id" in given[0].headers
            if not self.armed or at_engine:
                return real(*given, **named)
            self.armed = False
            self.sprung += 1
            if after:
                real(*given, **named)
            raise Bang(f"{owner.__name__}.{name}")

        monkeypatch.setattr(owner, name, raising)


@contextlib.asynccontextmanager
async def two_replicas(config: GatewayConfig, clock: Clock = monotonic) -> AsyncIterator[Scene]:
    """A gateway before two doubles that serve the same."""
    engines = {"a": Engine(), "b": Engine()}
    loop = asyncio.get_running_loop()
    servers = {name: HttpServer(engine.router(), clock=monotonic) for name, engine in engines.items()}
    tasks = [loop.create_task(engine.run()) for engine in engines.values()]
    it = Scene(config, engines, clock=clock)
    try:
        it.port = await it.server.listen("127.0.0.1", 0)
        for name, server in servers.items():
            url = f"http://127.0.0.1:{await server.listen('127.0.0.1', 0)}"
            it.roster.join(Replica(id=name, url=url, kind="vllm", slots=8))
        it.instruments.start()
        fleet = it.gateway.dispatcher.index
        await until(lambda: all(load.usable == 1 for load in fleet.loads.values()))
        yield it
        it.leave()
        await settled(it.ledger)
    finally:
        it.leave()
        await it.gateway.finish(0)
        await it.instruments.close()
        await it.roster.close()
        await it.server.drain(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in servers.values():
            await server.drain(0)


# -- what is asked of it -------------------------------------------------------------------------------------


async def whole(it: Scene) -> None:
    answer = await it.ask("n=2")
    assert answer.status in (200, 500, 502)


async def streamed(it: Scene) -> None:
    answer = await it.ask("n=3 itl=10", stream=True)
    assert answer.status in (200, 500, 502)
    if answer.status == 200:
        assert (b"[DONE]" in answer.body) != (b'"error"' in answer.body)


async def refused(it: Scene) -> None:
    """The first that it is sent to has no room."""
    for engine in it.engines.values():
        engine.refuse = 1
    await streamed(it)
    for engine in it.engines.values():
        engine.refuse = 0


async def unfound(it: Scene) -> None:
    """An answer of 4xx."""
    answer = await it.http("POST", "/v1/embeddings", {"model": "double", "input": "x"})
    assert answer.status in (404, 500, 502)


async def broken(it: Scene) -> None:
    """A stream that its replica drops."""
    body = {"model": "double", "messages": [{"role": "user", "content": "n=40 itl=10"}], "stream": True}
    client = await it.send("POST", "/v1/chat/completions", body)
    await until(lambda: heard(it))
    for engine in it.engines.values():
        for job in list(engine.jobs):
            if job.said:
                job.exchange.abort()
    answer = await client.answer()
    assert answer.status in (200, 500, 502)


def heard(it: Scene) -> bool:
    return any(ticket.relay is not None and ticket.relay.events for ticket in it.gateway.tickets.values())


async def left(it: Scene) -> None:
    body = {"model": "double", "messages": [{"role": "user", "content": "n=400 itl=10"}], "stream": True}
    client = await it.send("POST", "/v1/chat/completions", body)
    await until(lambda: heard(it))
    client.leave()


async def silent(it: Scene) -> None:
    """Nothing is heard for as long as is allowed."""
    answer = await it.ask("n=1 ttft=10000", stream=True)
    assert answer.status in (500, 502, 504)


async def unread(it: Scene) -> None:
    """A client that does not read."""
    for engine in it.engines.values():
        engine.word = "w" * 50_000
    body = {"model": "double", "messages": [{"role": "user", "content": "n=400 itl=1"}], "stream": True}
    client = await it.send("POST", "/v1/chat/completions", body, "x-headgate-task: other")
    await until(lambda: len(it.records) > 0)
    client.leave()
    for engine in it.engines.values():
        engine.word = "w "


async def hedged(it: Scene, *, second_is_first: bool = True) -> None:
    for engine in it.engines.values():
        engine.held_s = 0.2
    asking = asyncio.create_task(it.ask("n=3 itl=5", stream=True))
    await until(lambda: any(engine.jobs for engine in it.engines.values()))
    first, second = sorted(it.engines.values(), key=lambda engine: -len(engine.jobs))
    second.held_s = 0.0 if second_is_first else 0.5
    it.gateway.hear(Tick())
    answer = await asking
    first.held_s = second.held_s = 0.0
    assert answer.status in (200, 500, 502)


async def hedged_in_vain(it: Scene) -> None:
    await hedged(it, second_is_first=False)


QUICK = TimeoutsConfig(first_token_s=0.3, stall_s=0.3, slow_client_grace_s=0.1)
HEDGED = HedgeConfig(enabled=True)
Way = Callable[[Scene], Awaitable[None]]
CASES: list[tuple[type, str, Way]] = [
    *((Relay, name, whole) for name in ("on_head", "on_body", "on_done")),
    *((Relay, name, streamed) for name in ("on_head", "on_events", "on_done")),
    (Relay, "on_failed", broken),
    (Relay, "on_late", silent),
    (Relay, "_pass_on", streamed),
    (Relay, "_settle", whole),
    (Relay, "_end", whole),
    (Relay, "_end", streamed),
    (Relay, "_end", left),
    (Relay, "go_on", broken),
    (Relay, "_on_gone", left),
    (Relay, "_give_up_client", unread),
    (Relay, "_judge_refusal", refused),
    (Relay, "_judge_refusal", unfound),
    (Backlog, "judge", unread),
    (Backlog, "_look_now", unread),
    *((Ticket, name, streamed) for name in ("on_first", "on_end")),
    (Ticket, "on_attempt_failed", refused),
    (Ticket, "may_go_on", broken),
    (Ticket, "on_broken_off", broken),
    (Ticket, "on_end", whole),
    *((Gateway, name, whole) for name in ("_carry_out", "ended", "_close")),
    *((Placing, name, whole) for name in ("send", "_head", "_body")),
    (Gateway, "ended", left),
    (Gateway, "attempt_failed", refused),
    (Gateway, "broken_off", broken),
    (Placing, "go_on", broken),
    (Placing, "abort", left),
    (Acceptor, "learn", whole),
    (Acceptor, "learn", streamed),
    (Acceptor, "accept", whole),
    *((Exchange, name, whole) for name in ("respond",)),
    *((Exchange, name, streamed) for name in ("stream", "events", "end")),
    (ReplicaBook, "succeeded", whole),
    (ReplicaBook, "succeeded", streamed),
    (Sending, "judge_end", streamed),
    (Dispatcher, "_first_token", streamed),
    (Dispatcher, "_attempt_failed", refused),
    (Dispatcher, "_arrive", whole),
    (Dispatcher, "_pump_all", whole),
]


def case_name(case: object) -> str:
    return getattr(case, "__name__", str(case))


@pytest.mark.parametrize(("owner", "name", "way"), CASES, ids=case_name)
@awaited
async def test_what_raises_fails_one_request(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, way: Way) -> None:
    timeouts = QUICK if way in (silent, unread) else TimeoutsConfig()
    for after in (False, True):
        async with two_replicas(GatewayConfig(timeouts=timeouts)) as it:
            await proven(it, Trap(monkeypatch, owner, name, after=after), way)


@pytest.mark.parametrize(
    "name",
    ["__init__", "body", "start", "settle", "over", "cancel", "_lead", "on_head", "on_events", "on_done"],
)
@awaited
async def test_a_second_replicas_trouble_is_one_requests(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for after in (False, True):
        async with two_replicas(GatewayConfig(hedge=HEDGED)) as it:
            for load in it.gateway.dispatcher.index.loads.values():
                load.cold = False
            monkeypatch.setattr(Hedger, "late", late_at_once(it))
            monkeypatch.setattr(Hedger, "spend", lambda self, lane: True)
            monkeypatch.setattr(Hedger, "quiet", lambda self, room, used: True)
            trap = Trap(monkeypatch, Rival, name, after=after)
            await proven(it, trap, hedged_in_vain if name == "cancel" else hedged)


def late_at_once(it: Scene) -> Callable[..., list[Any]]:
    """Every request without a first token is worth a second replica."""

    def late(hedger: object, now: float) -> list[Any]:
        found = it.gateway.dispatcher.passages.values()
        return [one for one in found if one.first_token_at is None and one.load is not None and not one.hedged]

    return late


async def proven(it: Scene, trap: Trap, way: Way) -> None:
    trap.armed = True
    async with asyncio.timeout(8.0):
        await way(it)
        it.leave()
        await settled(it.ledger)
    it.instruments.catch_up()
    assert trap.sprung == 1 or not trap.armed
    names = [record.id for record in it.records]
    assert len(names) == len(set(names)) == 1, "one request, one record"
    trap.armed = False
    again = await it.ask("n=2", stream=True)
    assert again.status == 200
    assert again.body.endswith(b"data: [DONE]\n\n")
    await settled(it.ledger)
    assert len(it.records) == 2
    assert all(load.usable > 0 for load in it.gateway.dispatcher.index.loads.values()), "nobody is blamed"


# -- those that only watch -----------------------------------------------------------------------------------


def raises(*given: object) -> Any:
    raise Bang


@awaited
async def test_those_who_watch_cost_no_request_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_replicas(GatewayConfig()) as it:
        it.gateway._events = raises
        it.gateway._keep_prompt = raises
        monkeypatch.setattr(Contexts, "of", raises)
        it.gateway._contexts = Contexts.__new__(Contexts)
        heard: list[int] = []
        it.instruments._consumers.insert(0, raises)
        it.instruments.add(lambda records, now: heard.append(len(records)))
        assert (await it.ask("n=2")).status == 200
        assert (await it.ask("n=2", stream=True)).status == 200
        it.instruments.catch_up()
        assert sum(heard) == 2, "one who raises takes nothing from the others"
        monkeypatch.setattr(type(it.instruments.alarms), "look", raises)
        assert (await it.http("GET", "/metrics")).status == 200


@pytest.mark.parametrize("way", [whole, streamed])
@awaited
async def test_a_record_that_can_not_be_kept_is_tried_again(monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    async with two_replicas(GatewayConfig()) as it:
        await proven(it, Trap(monkeypatch, Account, "close"), way)


@awaited
async def test_a_tick_that_raises_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_replicas(GatewayConfig()) as it:
        trap = Trap(monkeypatch, Dispatcher, "_tick")
        for engine in it.engines.values():
            engine.refuse = 1000
        waiting = asyncio.create_task(it.ask("n=1"))
        await until(lambda: it.gateway.dispatcher._full.wake_at < 1e18)
        trap.armed = True
        await until(lambda: trap.sprung == 1)
        for engine in it.engines.values():
            engine.refuse = 0
        assert (await asyncio.wait_for(waiting, 5)).status in (200, 503)


@awaited
async def test_a_copy_that_raises_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_replicas(GatewayConfig()) as it:
        shadows = Shadows(it.gateway.dispatcher.with_room, it.gateway.placing.places, monotonic)
        shadows.allow("x", 8)
        monkeypatch.setattr(Shadows, "_replica", lambda self, model: "a")
        for name in ("on_head", "on_events", "on_done"):
            trap = Trap(monkeypatch, ShadowCopy, name)
            trap.armed = True
            shadows.copy(COPIED, "/v1/chat/completions", ask_body("n=2"), 10)
            await until(lambda: not shadows.counts("x")["under_way"])
            assert trap.sprung
        shadows.report_to(raises)
        shadows.copy(COPIED, "/v1/chat/completions", ask_body("n=2"), 10)
        await until(lambda: not shadows.counts("x")["under_way"])
        shadows.copy(COPIED, "/v1/chat/completions", {"model": object()}, 10)
        await until(lambda: not shadows.counts("x")["under_way"])
        await until(lambda: not it.gateway.placing.places["a"].connections.busy)


COPIED = Chosen("x", "double", "v1", "", "x", ("v2", "double"))


def ask_body(text: str) -> dict[str, Any]:
    return {"model": "double", "messages": [{"role": "user", "content": text}], "stream": True}


@pytest.mark.parametrize("owner", [Bounded, Gather])
@pytest.mark.parametrize("name", ["on_head", "on_events", "on_done"])
@awaited
async def test_answers_that_are_read_along_are_no_exception(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    async with two_replicas(GatewayConfig()) as it:
        await proven(it, Trap(monkeypatch, owner, name), streamed if owner is Bounded else whole)


@awaited
async def test_an_event_that_the_dispatcher_chokes_on_is_not_the_gateways_end(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Dispatcher.on
    for kind in (FirstToken, Ended):

        def on(self: Dispatcher, event: Event, now: float, kind: type = kind) -> Any:
            if isinstance(event, kind):
                monkeypatch.setattr(Dispatcher, "on", real)
                raise Bang
            return real(self, event, now)

        async with two_replicas(GatewayConfig()) as it:
            monkeypatch.setattr(Dispatcher, "on", on)
            await streamed(it)
            await settled(it.ledger)
            assert len(it.records) == 1
            assert (await it.ask("n=2")).status == 200


@awaited
async def test_one_whose_end_raises_when_the_gateway_stops_is_ended_like_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_replicas(GatewayConfig()) as it:
        body = {"model": "double", "messages": [{"role": "user", "content": "n=400 itl=10"}], "stream": True}
        clients = [await it.send("POST", "/v1/chat/completions", body) for _ in range(2)]
        await until(lambda: len(it.gateway.tickets) == 2 and heard(it))
        trap = Trap(monkeypatch, Relay, "fail")
        trap.armed = True
        await it.gateway.finish(0)
        assert trap.sprung == 1
        assert not it.gateway.tickets
        for client in clients:
            assert b'"error"' in (await client.answer()).body
