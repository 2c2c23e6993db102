"""Builds and runs a worker: the part of a gateway that talks to clients. Knows every class it is made of."""

import asyncio
import os
import random
import signal
from contextlib import AsyncExitStack
from dataclasses import replace
from math import ceil
from typing import Any

import msgspec

from headgate.config.gateway import GatewayConfig
from headgate.gateway.answer.backlog import relay_limits
from headgate.gateway.hooks import GatewayHooks
from headgate.gateway.intake.abilities import Abilities
from headgate.gateway.intake.held import HeldBodies
from headgate.gateway.judge import HeaderJudge
from headgate.gateway.placing import Placing
from headgate.gateway.trace_context import Contexts
from headgate.gateway.websocket import Sockets
from headgate.gateway.worker.brain_port import BrainPort
from headgate.gateway.worker.frames import PROMPT, STATUS
from headgate.gateway.worker.hands import ToldNames, WorkerAcceptor, WorkerAccount, WorkerGateway
from headgate.gateway.worker.passing import PassingOn
from headgate.gateway.worker.router import WorkerRouter
from headgate.gateway.worker.state import KnownReplica, WorkerState
from headgate.logs import LogWriter
from headgate.model.clock import Clock, wall
from headgate.model.record import Record
from headgate.model.replica import Replica
from headgate.policy.compose import classifier, intake_for, output_of
from headgate.publish.access_log import AccessLog
from headgate.replica.credentials import Credentials
from headgate.replica.http import Connections, PoolLimits
from headgate.surface.access import AdminAccess
from headgate.wire.limits import WireLimits, wire_limits
from headgate.wire.origin import Door
from headgate.wire.server import HttpServer
from headgate.wiring.change import identities, open_door
from headgate.wiring.common import HEALTH, NOTICE_S, RECORDED, collect_seldom, most_connections, tls_of, wait
from headgate.wiring.family import Place, Site

SAY_EVERY_S = 0.25
"""Seconds between two times that the brain is told what the worker holds."""
QUEUES = 4
"""Listening sockets of a port, over all workers: each has a backlog of its own."""


async def serve_worker(site: Site, place: Place, clock: Clock, access_lines: LogWriter | None) -> None:
    """Serves clients until SIGTERM, or until the parent is gone."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(place.parent_gone, stop.set)
    port = BrainPort(site.brain, place.number, os.getpid(), clock)
    first: asyncio.Future[WorkerState] = loop.create_future()
    port.tell_state(lambda state: None if first.done() else first.set_result(state))
    connected = loop.create_task(port.run())
    stopping = loop.create_task(wait(stop))
    async with AsyncExitStack() as stack:
        stack.callback(port.close)
        stack.callback(connected.cancel)
        waited: list[asyncio.Future[Any]] = [first, stopping]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            return
        parts = WorkerParts(await first, site, port, clock, access_lines)
        stack.callback(parts.close)
        tls = tls_of(parts.config.listen)
        await parts.http.listen_shared(site.places, max(1, QUEUES // site.workers), tls=tls)
        collect_seldom()
        saying = loop.create_task(parts.say_how_it_is())
        stack.callback(saying.cancel)
        await stopping
        await parts.drain()


class WorkerParts:
    """The objects of one worker, connected."""

    def __init__(
        self, state: WorkerState, site: Site, port: BrainPort, clock: Clock, access_lines: LogWriter | None
    ) -> None:
        self.config = config = state.config
        self._version = state.version
        self._port = port
        self._clock = clock
        port.know(state)
        limits = replace(
            config.limits,
            bodies_bytes=ceil(config.limits.bodies_bytes / site.workers),
            held_bytes=ceil(config.limits.held_bytes / site.workers),
        )
        wire = wire_limits(limits, config.timeouts, most_connections())
        intake = intake_for(config, port.lanes)
        self._acceptor = WorkerAcceptor(intake, identities(config), wire, limits.open_fields, Abilities(port.replicas))
        self._names = ToldNames()
        self._acceptor.serve_names(self._names)
        self._account = WorkerAccount(config.observe.keep, wall() - clock())
        self._access_log: AccessLog | None = None
        if access_lines is not None:
            self._access_log = AccessLog(access_lines, clock, wall, RECORDED)
        self._account.tell(port, None if self._access_log is None else self._keep)
        self._fresh: list[Record] = []
        self._placing = Placing(port, relay_limits(config), clock)
        held = HeldBodies(limits.held_bytes)
        self.gateway = WorkerGateway(
            port,
            self._acceptor,
            self._account,
            self._placing,
            clock,
            held,
            self._hooks(config),
        )
        self.gateway.ask_of(port, self._acceptor)
        self._pool = PoolLimits(connect_timeout_s=config.timeouts.connect_s)
        self._open_surface(config, site, wire)
        self.follow(state)
        port.tell_state(self.follow)

    def _open_surface(self, config: GatewayConfig, site: Site, wire: WireLimits) -> None:
        self._access = AdminAccess(
            config.admin_keys, loopback_only=config.listen.is_private, tenants_have_keys=config.asks_for_keys
        )
        self._sockets = Sockets(self.gateway)
        self._router = WorkerRouter(self.gateway, self._sockets.routes(), PassingOn(site.http))
        self._door = Door(self._router, loopback_only=config.listen.is_private, names=config.listen.names)
        open_door(self._door, config, self._access)
        self.http = HttpServer(
            self._door,
            clock=self._clock,
            limits=wire,
            judge=HeaderJudge(self._door, self._router, self.gateway, self._access.check),
            greet=self._door.greet,
            refused=self._account.refuse,
            access=None if self._access_log is None else self._access_log.ended,
            always=HEALTH,
        )

    def _hooks(self, config: GatewayConfig) -> GatewayHooks:
        traced = config.observe.otlp_endpoint is not None and config.observe.instruments
        kept = config.record.path is not None and config.record.prompts
        return GatewayHooks(
            contexts=Contexts(config.observe.trace_share, random.Random(os.urandom(16))) if traced else None,
            keep_prompt=self._keep_prompt if kept else None,
        )

    def _keep_prompt(self, request_id: str, body: dict[str, Any]) -> None:
        self._port.send(PROMPT, (request_id, msgspec.json.encode(body)))

    def _keep(self, record: Record) -> None:
        self._fresh.append(record)

    # -- what the brain says ---------------------------------------------------------------------------------

    def follow(self, state: WorkerState) -> None:
        """Takes config, replicas and names as the brain has them now."""
        self._port.know(state)
        known = {one.replica.id: one for one in state.replicas}
        for replica_id in [name for name in self._placing.places if name not in known]:
            connections = self._placing.places[replica_id].connections
            self._placing.leave(replica_id)
            connections.retire()
        for one in state.replicas:
            self._join(one)
        self._names.take(state.names)
        self._account.know_adapters(state.names.adapters)
        if state.version != self._version:
            self._version, self.config = state.version, state.config
            self._reconfigure(state.config)

    def _join(self, one: KnownReplica) -> None:
        replica, place = one.replica, self._placing.places.get(one.replica.id)
        if place is None:
            self._placing.join(replica, self._connections(replica))
        elif place.replica != replica:
            found_out = replace(replica, kind=place.replica.kind, models=place.replica.models)
            connections = place.connections
            if found_out != place.replica:  # the config has changed, and not only what was found out
                connections.retire()
                connections = self._connections(replica)
            self._placing.join(replica, connections)
        self._placing.call_default(replica.id, one.default_model)

    def _connections(self, replica: Replica) -> Connections:
        return Connections(replica.url, clock=self._clock, limits=self._pool, credentials=Credentials(replica))

    def _reconfigure(self, config: GatewayConfig) -> None:
        self._acceptor.reconfigure(classifier(config), identities(config), output_of(config), config.promises)
        self._access.change(config.admin_keys, tenants_have_keys=config.asks_for_keys)
        open_door(self._door, config, self._access)
        self._sockets.show_out(self._door.still_lets_in)
        for place in self._placing.places.values():
            place.connections.read_key_again()

    # -- what the brain is told ------------------------------------------------------------------------------

    async def say_how_it_is(self) -> None:
        """Tells the brain a few times a second what the worker holds, and which replicas speak."""
        while True:
            self._port.send(STATUS, (self._held(), self._spoke(), True))
            if self._access_log is not None:
                records, self._fresh = self._fresh, []
                self._access_log.take(records, self._clock())
            await asyncio.sleep(SAY_EVERY_S)

    def _held(self) -> dict[str, int]:
        places = self._placing.places.values()
        return {
            "client_connections": self.http.answering - self._router.passed_on(),
            "received_bytes": self.http.receiving,
            "held_bytes": self.gateway.held.total,
            "replica_connections": sum(place.connections.busy for place in places),
        }

    def _spoke(self) -> dict[str, float]:
        """When each replica last sent a token of an answer that still runs."""
        since = self._clock() - 4 * SAY_EVERY_S
        spoke: dict[str, float] = {}
        for ticket in self.gateway.tickets.values():
            replica, at = ticket.timeline.replica, ticket.spoke_at()
            if replica is not None and at is not None and at > max(since, spoke.get(replica.id, since)):
                spoke[replica.id] = at
        return spoke

    # -- the end ---------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Says that the gateway is going, and lets running requests finish."""
        self._router.drain()
        self.http.say_close()
        await asyncio.sleep(NOTICE_S)
        self._sockets.drain()
        await self.http.leave(self.config.listen.drain_s)
        await self.gateway.finish(0)
        await self.http.drain(NOTICE_S)

    def close(self) -> None:
        for place in self._placing.places.values():
            place.connections.close()
        if self._access_log is not None:
            self._access_log.take(self._fresh, self._clock())
            self._access_log.finish()
