"""Records the gateway's last minute all the time, and keeps it as a trace when an alert turns critical.

A ring of samples costs the loop a few microseconds four times a second; nothing of it is on a request's path. An
incident is written SETTLE_S after the alert, so that alerts with one cause are one incident, and no sooner than a
minute after the one before; at most `per_hour` of them an hour. A thread draws and writes it: a disk that is full or
slow costs the incident, and one line in the log.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import nsmallest
from typing import Any, Final

import msgspec

from headgate.config.gateway import IncidentsConfig
from headgate.gateway.gateway import Gateway
from headgate.measure.conditions import Conditions, ReplicaStanding
from headgate.measure.evidence import Evidence
from headgate.measure.pulse import Pulse
from headgate.model.clock import Clock
from headgate.model.dialect import dialect_of_kind
from headgate.model.errors import ServeError
from headgate.model.record import Record
from headgate.model.replica import ReplicaId
from headgate.policy.dispatch.view import ReplicaView
from headgate.policy.promises.alert import AlertChange, Severity
from headgate.publish.incidents.digest import digest
from headgate.publish.incidents.flight import (
    EngineStep,
    FleetMoment,
    Flight,
    IncidentAlert,
    LaneMoment,
    ReplicaMoment,
)
from headgate.publish.incidents.folder import IncidentFolder
from headgate.publish.incidents.trace_events import trace_events
from headgate.upkeep.prober import Prober

log = logging.getLogger(__name__)

WINDOW_S: Final = 60.0
SETTLE_S: Final = 2.0
HOUR_S: Final = 3600.0
LANE_MOMENTS: Final = 256
"""Samples of the lanes kept: a minute of four a second."""
FLEET_MOMENTS: Final = 64
"""Samples of the replicas kept: a minute of one a second."""
MOST_LANES: Final = 32
MOST_REPLICAS: Final = 48
"""Maximum replicas sampled one by one: those that are not up, then the busiest."""
MOST_RUNNING: Final = 200
MOST_ENGINES: Final = 8
"""Maximum engines that are asked for their steps, the busiest."""
STEPS_WITHIN_S: Final = 2.0
SLOWEST: Final = 40
MOST_ALERTS: Final = 32


class _Told(msgspec.Struct):
    """An engine's answer; see RecentSteps.told in engine/runner/recent_steps.py."""

    steps: list[tuple[float, float, int, int, int, int, int]]


_steps = msgspec.json.Decoder(_Told).decode


@dataclass(frozen=True, slots=True)
class FlightSources:
    """The objects that samples and incidents are read from."""

    gateway: Gateway
    conditions: Conditions
    evidence: Evidence
    pulse: Pulse
    watches: Mapping[ReplicaId, Prober]
    clock: Clock
    wall: Clock


class FlightRecorder:
    def __init__(self, sources: FlightSources, config: IncidentsConfig, folder: IncidentFolder) -> None:
        self.folder = folder
        self.skipped = 0
        """Incidents that were not recorded: there were `per_hour` of them already."""
        self.failed = 0
        """Incidents that could not be written."""
        self._sources = sources
        self._per_hour = config.per_hour
        self._lanes: deque[LaneMoment] = deque(maxlen=LANE_MOMENTS)
        self._fleet: deque[FleetMoment] = deque(maxlen=FLEET_MOMENTS)
        self._alerts: list[tuple[float, AlertChange]] = []
        """Alerts that turned critical and are not in an incident yet, and when each did."""
        self._recorded: deque[float] = deque()
        """When incidents of the last hour were begun, those asked for left out."""
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[dict[str, Any] | None] | None = None

    # -- on the loop, all the time ---------------------------------------------------------------------------

    def sample_lanes(self, now: float) -> None:
        dispatcher = self._sources.gateway.dispatcher
        names = list(dispatcher.lanes.values())[:MOST_LANES]
        counts = tuple((lane.name, dispatcher.waiting(lane.name), dispatcher.running(lane.name)) for lane in names)
        self._lanes.append(LaneMoment(now, counts))

    def sample_fleet(self, now: float) -> None:
        """Samples the replicas that matter most, and the counts of all as they were last read for the alarms: with a
        thousand replicas, the standing of each would take the loop ten milliseconds."""
        replicas, last = self._sources.gateway.dispatcher.view(now).replicas, self._sources.conditions.last
        counts = () if last is None else (
            ("up", last.up), ("starting", last.starting), ("parked", last.parked), ("down", len(last.down)),
        )  # fmt: skip
        shown = nsmallest(MOST_REPLICAS, replicas.values(), key=_importance)
        moments = tuple(map(self._moment, self._sources.conditions.standings_of(shown, now)))
        self._fleet.append(FleetMoment(now, tuple(one for one in counts if one[1]), moments))

    def _moment(self, standing: ReplicaStanding) -> ReplicaMoment:
        seen, watch = standing.seen, self._sources.watches.get(standing.seen.id)
        said = {} if watch is None else watch.load
        return ReplicaMoment(
            seen.id, (seen.replica if watch is None else watch.replica).kind or "", standing.condition,
            standing.state, standing.why, seen.requests, seen.limit, seen.tokens, said.get("kv_ratio"),
            said.get("batch_size"), said.get("waiting"),
        )  # fmt: skip

    def heed(self, change: AlertChange) -> None:
        """Hears of a changed alert; one that turned critical is recorded soon."""
        if change.severity is Severity.CRITICAL and len(self._alerts) < MOST_ALERTS:
            self._alerts.append((self._sources.clock(), change))

    def look(self, now: float) -> None:
        """Begins to write an incident, if one is due."""
        if not self._alerts or now - self._alerts[0][0] < SETTLE_S or self.under_way:
            return
        if self._recorded and now - self._recorded[-1] < WINDOW_S:
            return  # what follows from the same cause is in the next minute's incident
        while self._recorded and now - self._recorded[0] >= HOUR_S:
            self._recorded.popleft()
        if len(self._recorded) >= self._per_hour:
            self.skipped += self._per_hour > 0
            self._alerts.clear()
            return
        self._recorded.append(now)
        first = self._alerts[0][1]
        more = len(self._alerts) - 1
        reason = f"{first.alert} turned critical" + (f", and {more} more alerts" if more else "")
        self._task = asyncio.get_running_loop().create_task(self._write(first.alert, reason))

    @property
    def under_way(self) -> bool:
        """Whether an incident is being written."""
        return self._task is not None and not self._task.done()

    # -- writing ---------------------------------------------------------------------------------------------

    async def record(self, reason: str) -> dict[str, Any] | None:
        """Writes an incident now and returns its digest; None: it could not be written, as the log says."""
        return await self._write("asked", reason)

    async def close(self, patience_s: float) -> None:
        """Writes an incident that is under way, for at most `patience_s` seconds."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=patience_s)
            self._task.cancel()

    async def _write(self, name: str, reason: str) -> dict[str, Any] | None:
        async with self._writing:
            steps = await self._ask_steps()
            flight = self._flight(reason, steps)
            loop = asyncio.get_running_loop()
            try:
                told = await loop.run_in_executor(None, _write, self.folder, flight, name)
            except (OSError, ValueError) as error:
                self.failed += 1
                why = error.strerror if isinstance(error, OSError) and error.strerror else error
                log.error("an incident (%s) could not be kept in %s: %s", reason, self.folder.path, why)
                return None
            log.warning("incident %s: %s; headgate incident show %s", told["id"], reason, told["id"])
            return told

    def _flight(self, reason: str, steps: tuple[tuple[str, tuple[EngineStep, ...]], ...]) -> Flight:
        sources = self._sources
        now = sources.clock()
        began = now - WINDOW_S
        alerts, self._alerts = self._alerts, []
        tickets = sorted(sources.gateway.tickets.values(), key=lambda ticket: ticket.accepted.request.arrived)
        return Flight(
            id="",
            reason=reason,
            began=began,
            ended=now,
            wall=sources.wall(),
            alerts=tuple(IncidentAlert(one.alert, one.lane, one.message, now - at) for at, one in alerts),
            lanes=tuple(moment for moment in self._lanes if moment.at >= began),
            fleet=tuple(moment for moment in self._fleet if moment.at >= began),
            slowest=tuple(sources.evidence.slowest(now, WINDOW_S, SLOWEST)),
            records=tuple(sources.gateway.account.records),
            running=tuple(sources.gateway.so_far(ticket, now) for ticket in tickets[:MOST_RUNNING]),
            pauses=tuple(pause for pause in sources.pulse.pauses if pause.at >= began),
            steps=steps,
        )

    async def _ask_steps(self) -> tuple[tuple[str, tuple[EngineStep, ...]], ...]:
        """The latest steps of the engines that tell them, by replica; of none that does not answer in time."""
        latest = self._fleet[-1].replicas if self._fleet else ()
        busiest = sorted(latest, key=lambda moment: -moment.requests)
        able = [moment.id for moment in busiest if dialect_of_kind(moment.kind or None).steps is not None]
        asked = [(name, self._sources.watches[name]) for name in able if name in self._sources.watches][:MOST_ENGINES]
        found = await asyncio.gather(*(self._steps_of(watch) for _, watch in asked))
        return tuple((name, steps) for (name, _), steps in zip(asked, found, strict=True) if steps)

    async def _steps_of(self, watch: Prober) -> tuple[EngineStep, ...]:
        path = watch.dialect.steps
        if path is None:
            return ()
        try:
            status, body = await watch.connections.get(path, STEPS_WITHIN_S)
            said = _steps(body).steps if status == 200 else []
        except (ServeError, TimeoutError, OSError, msgspec.DecodeError, UnicodeDecodeError):
            return ()
        now = self._sources.clock()
        return tuple(
            EngineStep(now - ago_s, took_s, prefill, prompts, decodes, context, moves)
            for ago_s, took_s, prefill, prompts, decodes, context, moves in said
        )


def _importance(replica: ReplicaView) -> tuple[bool, int]:
    """Replicas that are out of use come first, then the busiest."""
    return (replica.in_use or replica.parked, -replica.requests)


def _write(folder: IncidentFolder, flight: Flight, name: str) -> dict[str, Any]:
    """Draws and writes a flight; for a thread."""
    moment = datetime.fromtimestamp(flight.wall, UTC).strftime("%Y%m%dT%H%M%SZ")
    named = re.sub(r"[^a-z0-9_]", "_", name.lower())[:48]
    flight = msgspec.structs.replace(flight, id=folder.free_id(f"{moment}-{named}"), records=_within(flight))
    told = digest(flight)
    path = folder.write(told, trace_events(flight))
    return {**told, "bytes": path.stat().st_size}


def _within(flight: Flight) -> tuple[Record, ...]:
    """The records that ended within the flight."""
    found = []
    for record in reversed(flight.records):
        if record.at + record.e2e_s < flight.began:
            break
        found.append(record)
    return tuple(reversed(found))
