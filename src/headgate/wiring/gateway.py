"""Builds and runs the gateway. Knows every class it is made of; decides nothing."""

import asyncio
import logging
import os
import random
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import uvloop

from headgate.config.engine import EngineConfig
from headgate.config.forms.flags import words_of
from headgate.config.gateway import GatewayConfig, RecordConfig
from headgate.gateway.account import Account
from headgate.gateway.answer.backlog import relay_limits
from headgate.gateway.gateway import Gateway
from headgate.gateway.hooks import NO_HOOKS, GatewayHooks
from headgate.gateway.intake.abilities import Abilities
from headgate.gateway.intake.accept import Acceptor
from headgate.gateway.intake.held import HeldBodies
from headgate.gateway.judge import HeaderJudge
from headgate.gateway.placing import Placing
from headgate.gateway.routes import ApiRoutes
from headgate.gateway.trace_context import Contexts
from headgate.gateway.websocket import Sockets
from headgate.logs import LogOptions, LogWriter, logging_to
from headgate.model.clock import Clock, monotonic, wall
from headgate.model.replica import Replica
from headgate.policy.compose import dispatcher_for, intake_for
from headgate.progress import Progress, ReplicaLine
from headgate.publish.access_log import AccessLog
from headgate.publish.journal import Journal
from headgate.publish.turned_away import RefusalLog
from headgate.replay.event_log import EventLog
from headgate.replica.credentials import Credentials
from headgate.replica.http import Connections, PoolLimits
from headgate.replica.local import keep_engine_running
from headgate.surface.access import AdminAccess
from headgate.surface.api.page import ApiPage
from headgate.surface.instruments import Instruments
from headgate.surface.ledger import Holdings
from headgate.upkeep.changes import ReplicaLog, described, reason
from headgate.upkeep.replica_set import ReplicaSet
from headgate.upkeep.warmup import Warmup
from headgate.wire.limits import wire_limits
from headgate.wire.origin import Door
from headgate.wire.server import HttpServer
from headgate.wiring.batches import BatchWiring
from headgate.wiring.change import ConfigChange, Reload, identities, open_door
from headgate.wiring.common import (
    HEALTH,
    NOTICE_S,
    RECORDED,
    collect_seldom,
    listen_on,
    most_connections,
    process_age_s,
    tls_of,
    wait,
)
from headgate.wiring.epp import picker_server
from headgate.wiring.fleet import FleetWiring, fleet_admin
from headgate.wiring.rollout import RolloutWiring
from headgate.wiring.shared import SharedWiring

log = logging.getLogger(__name__)

LOGS = LogOptions()
SURFACES = (("page", "/"), ("API docs", "/docs"), ("figures", "/metrics"))
"""What people find at the gateway's address, besides the API."""
NONE_ANSWERS_S = 3.0
"""Seconds after which it is reported that no replica has answered yet."""
OTHERS_S = 1.0
"""Seconds for the other replicas to answer once one has, before the banner says how many did: usually all are there."""


class BrainDesk(Protocol):
    """Where the workers of a gateway come to (wiring/several.py), in the process that decides for them."""

    async def open(self, parts: "GatewayParts", stack: AsyncExitStack, stop: asyncio.Event, clock: Clock) -> str:
        """Lets workers connect, and returns the gateway's address."""

    async def until_served(self) -> None:
        """Waits until all workers accept clients."""

    async def until_left(self, drain_s: float) -> None:
        """Waits until no worker is left, which each may take this long to finish its requests."""


def run_gateway(
    config: GatewayConfig,
    progress: Progress,
    reload: Reload | None = None,
    event_log: Path | None = None,
    watched: Path | None = None,
    logs: LogOptions = LOGS,
) -> None:
    """Runs the gateway until SIGTERM or SIGINT, with an engine of its own where no replicas are given. On SIGHUP, and
    when the `watched` file changes, it takes what `reload` returns, as far as that is possible without a restart."""
    prepare_process()
    with logging_to(logs) as writer:
        lines = writer if logs.access else None
        uvloop.run(serve_gateway(config, progress, reload, event_log, watched, monotonic, lines))


def prepare_process() -> None:
    """Sets what a process that serves clients needs of its interpreter and its system."""
    # The loop gets the interpreter's lock back within 0.5 ms while long bodies are read in a thread; the default is 5
    # ms.
    sys.setswitchinterval(0.0005)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:  # two sockets per stream: the usual 1024 would be the first limit to be reached
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def serve_gateway(
    config: GatewayConfig,
    progress: Progress,
    reload: Reload | None,
    event_log: Path | None,
    watched: Path | None,
    clock: Clock,
    access_lines: LogWriter | None,
    desk: BrainDesk | None = None,
) -> None:
    """`desk`: where workers that serve the clients come to; None: this process serves them."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT) if desk is None else (signal.SIGTERM,):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        parts = GatewayParts(config, progress, reload, event_log, stack, clock, access_lines)
        if desk is None:
            where = await _listen_gateway(parts.http, config)
            progress.listening(where, SURFACES)
        else:
            where = await desk.open(parts, stack, stop, clock)
        if parts.epp is not None:
            stack.push_async_callback(parts.epp.close)
            log.info("proxies ask over gRPC at %s", await parts.epp.listen())
        ready, background = parts.start_replicas(stack)
        if parts.shared is not None:
            background.append(await parts.shared.start(parts.gateway, stack))
        background += await parts.batches.start(stack)
        if reload is not None:
            loop.add_signal_handler(signal.SIGHUP, parts.change.on_signal)
        if watched is not None:
            background.append(loop.create_task(parts.change.watch(watched)))
        parts.instruments.start()
        stack.push_async_callback(parts.instruments.close)
        announcing = loop.create_task(_announce(ready, parts, where, progress, clock, desk))
        try:
            await _first_of(stop, background)
            log.info("draining: running requests may finish within %g s", config.listen.drain_s)
            if desk is not None:
                await desk.until_left(config.listen.drain_s)
            await parts.drain()
            log.info("stopped")
        finally:
            for task in (announcing, *background):
                task.cancel()
            await asyncio.gather(announcing, *background, return_exceptions=True)


class GatewayParts:
    """The objects of one gateway, connected. The stack closes those that have something to close."""

    def __init__(
        self,
        config: GatewayConfig,
        progress: Progress,
        reload: Reload | None,
        event_log: Path | None,
        stack: AsyncExitStack,
        clock: Clock,
        access_lines: LogWriter | None = None,
    ) -> None:
        self.config = config
        self.keep_prompt: Callable[[str, dict[str, Any]], None] | None = None
        """Keeps a request's prompt for the journal; None: prompts are not kept."""
        seed = int.from_bytes(os.urandom(8))
        events = None if event_log is None else EventLog(event_log, config, seed)
        if events is not None:
            events.start()
            stack.callback(events.close)
        rng, journal = random.Random(os.urandom(16)), _journal(config.record)
        self.shared = None if config.shared is None else SharedWiring(config.shared, clock)
        if journal is not None and config.record.prompts:
            self.keep_prompt = journal.keep_prompt
        hooks = _hooks(config, events, journal, self.shared, rng)
        self.gateway = gateway = build_gateway(config, clock, seed, hooks)
        limits = PoolLimits(connect_timeout_s=config.timeouts.connect_s)
        self.roster = roster = ReplicaSet(
            gateway,
            lambda replica: Connections(replica.url, clock=clock, limits=limits, credentials=Credentials(replica)),
            config.health.probe_interval_s,
            config.health.deep_interval_s,
            Warmup(config.warm, config.classify, clock),
        )
        stack.push_async_callback(roster.close)
        self._private = config.listen.is_private
        self.epp = None
        if config.epp is not None:
            bounds = wire_limits(config.limits, config.timeouts, most_connections())
            self.epp = picker_server(config.epp, gateway, bounds, clock)
        self.access = access = AdminAccess(
            config.admin_keys, loopback_only=self._private, tenants_have_keys=config.asks_for_keys
        )
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-")))
        self.instruments = Instruments(gateway, roster, config, access, rng, clock, journal, self._folder)
        self._keep_log(access_lines, stack, clock)
        self.fleet: FleetWiring | None = None
        if config.fleet.every:
            self.fleet = FleetWiring(config, gateway, roster, self.instruments.figures, self._folder, clock)
            roster.belong_to(self.fleet.pools)
        rescale = None if self.fleet is None else self.fleet.rescale
        self.change = ConfigChange(config, gateway, roster, access, events, clock, reload=reload, rescale=rescale)
        self.batches = BatchWiring(config, gateway, access, clock)
        self.instruments.show_batches(self.batches.admin.news)
        self._open_surface(clock)

    def _keep_log(self, access_lines: LogWriter | None, stack: AsyncExitStack, clock: Clock) -> None:
        """Logs what becomes of replicas and which requests are refused and, where asked for, each request."""
        replicas = ReplicaLog(lambda: self.roster.watches, self.instruments.conditions)
        self.instruments.add(lambda _, now: replicas.look(now))
        self.instruments.add(RefusalLog().take)
        self._access_log: AccessLog | None = None
        if access_lines is not None:
            self._access_log = AccessLog(access_lines, clock, wall, RECORDED)
            self.instruments.add(self._access_log.take)
            stack.callback(self._access_log.finish)

    def _open_surface(self, clock: Clock) -> None:
        config, gateway, roster, change = self.config, self.gateway, self.roster, self.change
        admin = fleet_admin(self.access, change, roster, self.fleet, self.instruments.conditions, clock)
        versions = RolloutWiring(config, gateway, roster.catalog, self.instruments, self.access, clock)
        if config.fleet.pools and self.fleet is not None:
            versions.scale_with(self.fleet.board, clock)
        self._sockets = sockets = Sockets(gateway)
        ledger, api = Holdings(gateway, self.access), ApiPage(lambda: routes.router.table)
        routed = (self.instruments, admin, versions, sockets, ledger, api, self.batches)
        more = {place: handler for one in routed for place, handler in one.routes().items()}
        self._routes = routes = ApiRoutes(gateway, roster.catalog, more)
        door = Door(routes.router, loopback_only=self._private, names=config.listen.names)
        change.reach(versions.reconfigure, door, sockets)
        open_door(door, config, self.access)
        most = most_connections()
        if config.limits.connections > most:
            log.info("only %d connections: there are no file descriptors for more (ulimit -n)", most)
        self.http = HttpServer(
            door,
            clock=clock,
            limits=wire_limits(config.limits, config.timeouts, most, self.batches.api.bodies),
            judge=HeaderJudge(door, routes.router, gateway, self.access.check, self.batches.api.begin),
            greet=door.greet,
            refused=gateway.account.refuse,
            access=None if self._access_log is None else self._access_log.ended,
            always=HEALTH,
        )
        ledger.count_clients(self.http)
        self.ledger = ledger

    def start_replicas(self, stack: AsyncExitStack) -> tuple[list[asyncio.Event], list[asyncio.Future[None]]]:
        """Lets the replicas join, and starts those that are the gateway's own. Returns events that say when each can
        be used, and futures that fail if one of its own does."""
        config, background = self.config, list[asyncio.Future[None]]()
        embedded, socket_path = config.embedded or EngineConfig(), self._folder / "engine.sock"
        own = Replica(id="embedded", url=f"unix:{socket_path}", kind="headgate", slots=embedded.slots)
        alone = self.fleet is None and not config.replicas
        ready = [self.roster.join(replica).joined for replica in ((own,) if alone else config.replicas)]
        if alone:
            running = keep_engine_running(words_of(embedded), socket_path, ready[0].is_set)
            background.append(asyncio.get_running_loop().create_task(running))
        if self.fleet is not None:
            background += self.fleet.start(stack)
            ready += self.fleet.ready()
        return ready, background

    def replica_lines(self) -> list[ReplicaLine]:
        """What the banner says of each replica; those that answer come first."""
        lines = []
        for replica_id, watch in self.roster.watches.items():
            answers = watch.joined.is_set()
            about = described(watch) if answers else reason(watch, watch.why)
            lines.append(ReplicaLine(replica_id, watch.replica.url, answers, about))
        return sorted(lines, key=lambda line: not line.answers)

    async def drain(self) -> None:
        """Says that the gateway is going, and lets running requests finish."""
        self._routes.drain()
        self.batches.drain()
        if self.epp is not None:
            self.epp.drain()
        self.http.say_close()
        await asyncio.sleep(NOTICE_S)
        self.instruments.live.close()
        self._sockets.drain()
        await self.http.leave(self.config.listen.drain_s)
        await self.gateway.finish(0)
        await self.http.drain(NOTICE_S)


async def _first_of(stop: asyncio.Event, background: list[asyncio.Future[None]]) -> None:
    """Waits until asked to stop, or until a background task fails, which is then raised."""
    stopping = asyncio.get_running_loop().create_task(wait(stop))
    done, _ = await asyncio.wait([stopping, *background], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    for task in done:
        if task is not stopping:
            await task


async def _announce(
    ready: list[asyncio.Event],
    parts: GatewayParts,
    where: str,
    progress: Progress,
    clock: Clock,
    desk: BrainDesk | None,
) -> None:
    """Reports when the first replica is usable: from then on requests are served. Where none of those that are said to
    run answers, that is reported first."""
    began, config = clock() - process_age_s(), parts.config
    if desk is not None:
        await desk.until_served()
        progress.listening(where, SURFACES)
    waiting = [asyncio.ensure_future(event.wait()) for event in ready]
    patience_s = NONE_ANSWERS_S if config.replicas else None
    done, _ = await asyncio.wait(waiting, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
    if not done:
        progress.none_answer(parts.replica_lines(), config.timeouts.no_replica_wait_s)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if config.replicas:
        await asyncio.wait(waiting, timeout=OTHERS_S)
    models, key = parts.roster.catalog.names, not config.anonymous.allowed
    collect_seldom()
    lines = parts.replica_lines() if config.replicas else []
    progress.ready(where, models[0] if models else "default", clock() - began, key=key, replicas=lines)
    await asyncio.gather(*waiting)


def build_gateway(config: GatewayConfig, clock: Clock, seed: int, hooks: GatewayHooks = NO_HOOKS) -> Gateway:
    """Built within the running loop."""
    dispatcher = dispatcher_for(config, random.Random(seed))
    intake = intake_for(config, dispatcher.lanes, dispatcher.cached_tokens)
    limits = wire_limits(config.limits, config.timeouts, most_connections())
    acceptor = Acceptor(intake, identities(config), limits, config.limits.open_fields, Abilities(dispatcher.replicas))
    account = Account(config.observe.keep, wall() - clock())
    placing, held = Placing(dispatcher, relay_limits(config), clock), HeldBodies(config.limits.held_bytes)
    return Gateway(dispatcher, acceptor, account, placing, clock, held, hooks)


def _hooks(
    config: GatewayConfig,
    events: EventLog | None,
    journal: Journal | None,
    shared: SharedWiring | None,
    rng: random.Random,
) -> GatewayHooks:
    traced = config.observe.otlp_endpoint is not None and config.observe.instruments
    return GatewayHooks(
        events=None if events is None else events.add,
        contexts=Contexts(config.observe.trace_share, rng) if traced else None,
        keep_prompt=journal.keep_prompt if journal is not None and config.record.prompts else None,
        hold=None if shared is None else shared.hold,
    )


def _journal(record: RecordConfig) -> Journal | None:
    """Raises StartupError where the file can't be written. None: records are not written to a file."""
    if record.path is None:
        return None
    return Journal(record.path, record.rotate_bytes, record.files, record.prompts)


async def _listen_gateway(http: HttpServer, config: GatewayConfig) -> str:
    tls = tls_of(config.listen)
    where = await listen_on(http, config.listen, tls)
    return where.replace("http:", "https:", 1) if tls else where
