"""Builds and runs all instruments: figures, alarms, traces, the journal, and the routes that show them.

The instruments are off the requests' path: four times a second, and before anything is read, the records that have
closed since are handed to every consumer.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any

from headgate.config.gateway import GatewayConfig, ObserveConfig
from headgate.gateway.gateway import Gateway
from headgate.measure.conditions import Conditions
from headgate.measure.figures import Figures
from headgate.measure.gpu import find_gpus
from headgate.measure.pulse import Pulse
from headgate.measure.tenant_availability import TenantAvailability
from headgate.metrics.exposition import CONTENT_TYPE, OPEN_CONTENT_TYPE, wants_open
from headgate.model.clock import Clock, wall
from headgate.model.record import Record
from headgate.publish.alarms import Alarms
from headgate.publish.incidents.folder import IncidentFolder
from headgate.publish.incidents.recorder import FlightRecorder, FlightSources
from headgate.publish.journal import Journal
from headgate.publish.metrics import Metrics
from headgate.publish.otlp import OtlpSender
from headgate.publish.otlp_metrics import OtlpMetrics
from headgate.publish.traces import Traces
from headgate.publish.webhook import Webhook
from headgate.surface.access import AdminAccess
from headgate.surface.admin import Admin
from headgate.surface.drift import profiles_of
from headgate.surface.incidents import IncidentAdmin
from headgate.surface.live import Live
from headgate.surface.page import Page
from headgate.surface.snapshot import Sources
from headgate.surface.usage import UsageTable
from headgate.upkeep.replica_set import ReplicaSet
from headgate.wire.exchange import Exchange
from headgate.wire.router import Routes

LOOK_EVERY_S = 0.25
AT_ONCE = 500
"""Maximum records handed on in one turn of the loop: a few milliseconds' worth."""
ALARMS_EVERY = 4
"""Looks between two judgements of the promises, which are judged once a second."""
SEND_GRACE_S = 2.0
SAY_EVERY_S = 60.0

NOTHING_SAID: dict[str, float] = {}

log = logging.getLogger(__name__)

Consumer = Callable[[Sequence[Record], float], None]


class Instruments:
    """Built within the running loop."""

    def __init__(
        self,
        gateway: Gateway,
        roster: ReplicaSet,
        config: GatewayConfig,
        access: AdminAccess,
        rng: random.Random,
        clock: Clock,
        journal: Journal | None = None,
        scratch: Path | None = None,
    ) -> None:
        """`journal`: gets all records; None: there is none. `scratch`: folder that lasts as long as the gateway; None:
        no incident is recorded unless the config names a folder. Raises StartupError where the OTLP endpoint can't be
        used."""
        observe, account = config.observe, gateway.account
        self._gateway = gateway
        self._roster = roster
        self._clock = clock
        self._on = observe.instruments
        self._consumers: list[Consumer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._turns = 0
        self.flaws = 0
        """Exceptions raised by consumers of records, or while sampling and judging."""
        self._say_again_at = -inf
        self._rollouts: Callable[[], list[dict[str, Any]]] = list
        """Returns the status of rollouts, for the page."""
        self._batches: Callable[[], dict[str, Any]] = dict
        """Returns the batches that are not over, for the page."""
        self.figures = Figures(gateway.dispatcher.lanes, observe, clock())
        self.pulse = Pulse(clock)
        gateway.dispatcher.gauges_from(
            lambda name: NOTHING_SAID if (watch := roster.watches.get(name)) is None else watch.load
        )
        webhook = Webhook(observe.webhook, clock) if observe.webhook else None
        self.conditions = conditions = Conditions(gateway.dispatcher, roster.watches, lambda: roster.fleet)
        tenants = TenantAvailability(observe.labels, 1 - observe.availability, gateway.dispatcher.lanes)
        self.alarms = Alarms(self.figures, gateway.dispatcher, account, observe, wall, webhook, conditions, tenants)
        self.metrics = Metrics(
            gateway, self.figures, self.pulse, observe, roster.watches.values(), find_gpus(), self.alarms.slo,
            conditions, tenants,
        )  # fmt: skip
        self.admin = Admin(self._sources(observe), access)
        price = observe.price_per_replica_hour if self._on else None
        self.usage = UsageTable(observe.labels, access, wall, self.figures.held, price)
        self._consumers.append(self.usage.take)
        self.live = Live(self.admin.snapshot, self.admin.history, clock)
        self._journal = journal
        self._sender: OtlpSender | None = None
        self._incidents = self._incident_admin(observe, scratch, access) if self._on else None
        if self._on:
            self._consumers += [self.figures.take, self.admin.take, tenants.take]
        if journal is not None:
            self._consumers.append(journal.take)
        self._exporter: OtlpMetrics | None = None
        if observe.otlp_endpoint is not None and self._on:
            self._export(observe.otlp_endpoint, observe, rng)

    def _sources(self, observe: ObserveConfig) -> Sources:
        roster = self._roster
        return Sources(
            gateway=self._gateway,
            figures=self.figures,
            alarms=self.alarms,
            pulse=self.pulse,
            observe=observe,
            conditions=self.conditions,
            watches=roster.watches,
            fleet=lambda: roster.fleet,
            rollouts=lambda: self._rollouts(),
            batches=lambda: self._batches(),
            profiles=profiles_of(observe),
            clock=self._clock,
            refresh=self.catch_up,
        )

    def _incident_admin(
        self, observe: ObserveConfig, scratch: Path | None, access: AdminAccess
    ) -> IncidentAdmin | None:
        incidents = observe.incidents
        folder = scratch / "incidents" if incidents.folder is None and scratch is not None else incidents.folder
        if folder is None:
            return None
        sources = FlightSources(
            gateway=self._gateway,
            conditions=self.conditions,
            evidence=self.admin.evidence,
            pulse=self.pulse,
            watches=self._roster.watches,
            clock=self._clock,
            wall=wall,
        )
        recorder = FlightRecorder(sources, incidents, IncidentFolder(folder, incidents.files, incidents.bytes))
        self.alarms.report_to(recorder.heed)
        return IncidentAdmin(recorder, access, self.catch_up, lasts=incidents.folder is not None)

    def _export(self, endpoint: str, observe: ObserveConfig, rng: random.Random) -> None:
        """Sends traces and, where asked for, metrics to an OpenTelemetry backend."""
        self._sender = OtlpSender(endpoint, observe.otlp_headers, self._clock)
        traces = Traces(
            self._gateway.dispatcher.lanes,
            observe.trace_share,
            self._sender,
            rng,
            self.figures,
            url_of=self._roster.url,
            left=self.figures.exemplify,
        )
        self._consumers.append(traces.take)
        if observe.otlp_metrics:
            self._exporter = OtlpMetrics(self._text, self._sender, wall)

    def routes(self) -> Routes:
        guard = self.admin.access.guard
        return {
            **Page().routes(),
            **self.admin.routes(),
            **self.usage.routes(),
            **({} if self._incidents is None else self._incidents.routes()),
            ("GET", "/admin/live"): guard(self.live.watch),
            ("GET", "/metrics"): self._serve_metrics,
        }

    def add(self, consumer: Consumer) -> None:
        """Adds a consumer of the records that have closed."""
        self._consumers.append(consumer)

    def show_rollouts(self, status: Callable[[], list[dict[str, Any]]]) -> None:
        """Shows the status of rollouts on the page from now on."""
        self._rollouts = status

    def show_batches(self, news: Callable[[], dict[str, Any]]) -> None:
        """Shows the batches that are not over on the page from now on."""
        self._batches = news

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._on:
            self.pulse.start(loop)
        if self._sender is not None:
            self._tasks.append(loop.create_task(self._sender.run()))
            if self._exporter is not None:
                self._tasks.append(loop.create_task(self._exporter.run()))
        self._look(loop)

    def catch_up(self) -> None:
        self._hand_on(self._gateway.account.fresh())

    def _catch_up_in_turns(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hands on AT_ONCE records a turn: after a burst there are thousands, and streams under way come in between."""
        records = self._gateway.account.fresh(AT_ONCE)
        self._hand_on(records)
        if len(records) == AT_ONCE:
            loop.call_soon(self._catch_up_in_turns, loop)

    def _hand_on(self, records: list[Record]) -> None:
        now = self._clock()
        for consumer in self._consumers:
            try:
                consumer(records, now)
            except Exception:  # the other consumers get theirs, and no request is affected
                self._puzzled("records could not be taken")

    def _puzzled(self, what: str) -> None:
        """Counts an exception, and logs it at most once a minute: it may recur with every record. Call within
        `except`."""
        now = self._clock()
        self.flaws += 1
        if now >= self._say_again_at:
            self._say_again_at = now + SAY_EVERY_S
            log.exception("%s (%d so far)", what, self.flaws)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.pulse.stop()
        self.live.close()
        self.admin.close()
        self.catch_up()
        if self._incidents is not None:
            self._incidents.close()
            await self._incidents.recorder.close(SEND_GRACE_S)
        await self.alarms.close()
        if self._exporter is not None:
            await self._exporter.send()  # the figures since the last time
        if self._sender is not None:
            await self._sender.finish(SEND_GRACE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._journal is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._journal.close)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(LOOK_EVERY_S, self._look, loop)
        self._catch_up_in_turns(loop)
        if not self._on:
            return
        try:
            self._sample(self._clock())
        except Exception:
            self._puzzled("figures could not be sampled, or promises not be judged")

    def _sample(self, now: float) -> None:
        dispatcher = self._gateway.dispatcher
        for lane in dispatcher.lanes:
            self.figures.sample(lane, dispatcher.waiting(lane) + dispatcher.running(lane), now)
        recorder = None if self._incidents is None else self._incidents.recorder
        if recorder is not None:
            recorder.sample_lanes(now)
        self._turns += 1
        if self._turns % ALARMS_EVERY == 0:
            self._pay(now)
            self.alarms.look(now)
            if recorder is not None:
                recorder.sample_fleet(now)
                recorder.look(now)

    def _pay(self, now: float) -> None:
        """Notes how many replicas are held. Gateways that share replicas each pay for their part."""
        watches, fleet = self._roster.watches, self._roster.fleet
        held = len(watches) if fleet is None else fleet.paid_for() + sum(not fleet.owns(name) for name in watches)
        low, high = self._gateway.dispatcher.part
        account = self._gateway.account
        self.figures.held.see(held * (high - low), account.prompt_tokens + account.output_tokens, now, wall())

    def _text(self, open_metrics: bool = False) -> bytes:
        self.catch_up()
        return self.metrics.text(open_metrics)

    def _serve_metrics(self, exchange: Exchange) -> None:
        """Serves /metrics, as OpenMetrics for scrapers that do not prefer text: only OpenMetrics has exemplars."""
        wanted = wants_open(exchange.headers.get("accept", ""))
        exchange.respond(200, self._text(wanted), OPEN_CONTENT_TYPE if wanted else CONTENT_TYPE)
