"""Probes replicas and warms them, on clocks of its own, never on the request path.

    starting ─▶ answers ─▶ known: its models, its kind ─▶ warmed ─▶ in use
                   ▲                                        │ failed: later again
                   └────────────────────────────────────────┘

A replica that was out and answers again may be another process by now: it is warmed again before the dispatcher hears
that it is well, and a failed warm-up counts as a failed probe.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal

import msgspec

from headgate.model.dialect import PLAIN, Dialect, dialect_of_kind
from headgate.model.errors import ReplicaFailed
from headgate.model.event import Event, Probed
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.model.sequence import LOWEST_PRIORITY
from headgate.policy.replicas.signs import HealthState
from headgate.replica.detect import Card, detect, read_cards
from headgate.replica.http import UNREACHED, Connections
from headgate.replica.openai import FULL, flaw_in, read_error
from headgate.upkeep.changes import ReplicaNotes
from headgate.upkeep.engine_reports import EngineReports
from headgate.upkeep.owner import ProbeOwner
from headgate.upkeep.sleep import SleepSwitch
from headgate.upkeep.warmup import Warmed, Warmup, WarmupTarget

log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode

PROBE_TIMEOUT_S = 2.0
READY_TIMEOUT_S = 5.0
"""Seconds for engines whose answer takes a generation."""
DEEP_TIMEOUT_S = 20.0
FIRST_PAUSE_S = 0.05
"""Seconds between the first two probes: few, so that no request waits longer than the start takes."""
LONGEST_PAUSE_S = 30.0
"""Maximum seconds between two warm-ups of a replica that fails."""
DENIED_PAUSE_S = 2.0
"""The same while the replica wants another key."""
SCRAPE_EVERY_S = 1.0
"""Minimum seconds between two scrapes of an engine's metrics: scraping more often has stalled engines."""
WELL = (200, 429)
"""Status codes of a health check that went well. 429 is said by a proxy that counts requests, before the replica."""
DENIED = (401, 403)
"""Status codes of a replica that wants a key, or another one."""
MOST_WHY = 300
"""Maximum characters that are kept, for people, of what went wrong."""
STILL_ASLEEP = Warmed(False, "it is asleep", 0.0)
OUT = (HealthState.EJECTED, HealthState.PROBATION)
Phase = Literal["starting", "waking", "warming", "failed", "ready"]


@dataclass(slots=True)
class Prober:
    """Looks after one replica for as long as `run` runs."""

    replica: Replica
    connections: Connections
    tell: Callable[[Event], object]
    owner: ProbeOwner
    warmup: Warmup
    interval_s: float = 1.0
    deep_s: float = 30.0
    """Seconds between two checks that really generate a token."""
    phase: Phase = "starting"
    why: str = ""
    """Why the replica, or a part of its warm-up, failed. Empty: nothing did."""
    unwell: str = ""
    """What its last health check found wrong. Empty: nothing, or it was not asked yet."""
    notes: ReplicaNotes = field(default_factory=ReplicaNotes)
    models: list[str] = field(default_factory=list)
    """Models that the replica says it serves."""
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the replica has been taken into use."""
    load: dict[str, float] = field(default_factory=dict)
    """What the replica last reported of its own load, and what its warm-up here took."""
    dialect: Dialect = PLAIN
    ready: Callable[[], None] | None = None
    """Called once, when the replica has been taken into use."""
    sleep: SleepSwitch = field(default_factory=SleepSwitch)
    _task: asyncio.Task[None] | None = None
    _own: dict[str, float] = field(default_factory=dict)
    _context: int | None = None
    _path: str = ""
    _warming: asyncio.Lock = field(default_factory=asyncio.Lock)
    _warm: bool = False
    """Whether the replica was warmed since it was last put out of use."""
    _outage: float = 0.0
    """When the replica was last put out of use."""
    _failed: int = 0
    """Warm-ups that failed in a row while the replica is out."""
    _rest: int = 0
    """Probes until the next warm-up."""
    _looked_deep_at: float = -inf
    _denials: int = 0
    """The connections' count of denials when they were last looked into. -1: they are to be looked into again."""
    _denied: str = ""
    """Why the replica would not list its models, if it wants another key. Empty: it does not."""
    reports: EngineReports = field(init=False)
    _given: bool = field(init=False)
    """Whether the replica's kind was configured."""

    def __post_init__(self) -> None:
        self._given = self.replica.kind is not None
        self.dialect = dialect_of_kind(self.replica.kind)
        self.reports = EngineReports(self.replica, self.connections, self.tell)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self.run())

    def stop(self) -> asyncio.Task[None]:
        """Stops looking after the replica. Returns the task, which ends soon."""
        assert self._task is not None
        self._task.cancel()
        return self._task

    def described(self, replica: Replica) -> None:
        """Takes in what was found out of the replica: its model names and its kind."""
        self.replica = replica if replica.kind is not None else replace(replica, kind=self.replica.kind)

    async def run(self) -> None:
        """Takes the replica into use when it has answered and is warm; from then on the dispatcher judges what is seen
        of it."""
        await self._until_done(self._take_into_use)
        self.joined.set()
        if self.ready is not None:
            self.ready()
        async with asyncio.TaskGroup() as group:  # apart: a deep check takes its time, and a death must not wait for it
            group.create_task(self._until_done(self._keep_looking))
            group.create_task(self._until_done(self._keep_looking_deep))
            group.create_task(self._until_done(self._keep_asking_load))
            group.create_task(self._until_done(self._keep_alive))

    async def _until_done(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs `work` until it returns. An answer of an engine that the code does not expect is this one replica's
        failure, and no reason to stop the probes: the replica would then go unwatched."""
        while True:
            try:
                await work()
                return
            except Exception as flaw:
                log.exception("replica %s: looking after it raised; it counts as failed", self.replica.id)
                self.why = f"it could not be looked at: {flaw!r}"[:MOST_WHY]
                if not self.joined.is_set():
                    self.phase = "failed"
            with contextlib.suppress(Exception):
                self.tell(Probed(self.replica.id, ok=False))
            await asyncio.sleep(self.interval_s)

    async def _take_into_use(self) -> None:
        pause_s, warm_pause_s = FIRST_PAUSE_S, self.interval_s
        while True:
            while not await self.look(ready=True):
                await asyncio.sleep(pause_s)
                pause_s = min(self.interval_s, pause_s * 1.5)
            await self._meet()
            warmed = await self.warm() if await self._is_awake() else STILL_ASLEEP
            if warmed.ok:
                return
            await asyncio.sleep(warm_pause_s)
            # Sooner where it wants another key: an operator who has just replaced the key waits for it.
            warm_pause_s = min(DENIED_PAUSE_S if warmed.denied else LONGEST_PAUSE_S, 2 * warm_pause_s)

    async def _is_awake(self) -> bool:
        """Wakes a replica that sleeps when it joins. Returns whether it is awake."""
        before, self.phase = self.phase, "waking"
        why = await self.sleep.wake_if_asleep(self.dialect, self.connections)
        self.phase = "failed" if why else before
        if why:
            self.why = f"it was asleep, and did not wake up: {why}"[:MOST_WHY]
            log.warning("replica %s: %s", self.replica.id, self.why)
        return not why

    async def warm(self, *, asked: bool = False) -> Warmed:
        """Warms the replica now, one warm-up at a time, and tells the dispatcher how it went. `asked`: a caller wants
        it, needed or not."""
        async with self._warming:
            if not asked and not self.warmup.has_work(self.dialect):
                return self._unwarmed()
            if not self.joined.is_set():
                self.phase = "warming"
                log.info("replica %s: warming %s (%s)", self.replica.id, self.replica.url, self.dialect.name)
            warmed = await self.warmup.warm(self._target(), all_of_it=asked)
            if warmed.adapters:
                self._hear(await self._cards())
            if warmed.why:
                log.warning("replica %s: warm-up: %s", self.replica.id, warmed.why)
            self.phase, self.why = "ready" if warmed.ok else "failed", warmed.why
            self._own = {"warm": float(warmed.ok), "cold_start_gateway_warm_up_s": warmed.took_s}
            self.load = self.load | self._own
            self.tell(Probed(self.replica.id, warmed.ok, deep=not warmed.full))
            return warmed

    def _unwarmed(self) -> Warmed:
        """Reports a replica that needs no warm-up: its list of models has said whether it takes the gateway's key."""
        if self._denied:
            log.warning("replica %s: %s", self.replica.id, self._denied)
        self.phase, self.why = "failed" if self._denied else "ready", self._denied
        self.tell(Probed(self.replica.id, ok=not self._denied))
        return Warmed(not self._denied, self._denied, 0.0, denied=bool(self._denied))

    def _note_denial(self, path: str, status: int) -> bool:
        """Whether the replica wants a key that it was not given, or another one. That is logged in words, once."""
        if status not in DENIED:
            return False
        words = self.connections.denied(path, status)
        if words != self.why:
            log.warning("replica %s: %s", self.replica.id, words)
        self.why = words
        if not self.joined.is_set():
            self.phase = "failed"
        return True

    # -- again and again -------------------------------------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            if self.sleep.asleep:
                self.tell(Probed(self.replica.id, await self.look()))
                continue
            out = self._is_out()
            well = await self.look(ready=out) and await self._lets_in()
            if not well or not out:
                self._warm, self._failed, self._rest = False, 0, 0  # it may be another process when it is back
            elif not self._warm:
                await self._warm_again()
                continue
            self.tell(Probed(self.replica.id, well))

    async def _lets_in(self) -> bool:
        """Whether the replica takes the gateway's key, as far as is known. Where it denied a request, it is asked for a
        token, again and again until it gives one: most engines answer a health check without a key."""
        if self.connections.denials == self._denials:
            return True
        well = await self.look_deep() is not False
        self._denials = self.connections.denials if well else -1
        return well

    def _is_out(self) -> bool:
        standing = self.owner.standing(self.replica.id)
        if standing is None or standing.state not in OUT:
            return False
        if standing.state is HealthState.EJECTED and standing.since != self._outage:
            self._outage, self._warm = standing.since, False
        return True

    async def _warm_again(self) -> None:
        """Warms a replica that is out and answers. The dispatcher hears of it from the warm-up; while that has to wait,
        as a failed probe."""
        if self._rest:
            self._rest -= 1
            self.tell(Probed(self.replica.id, ok=False))
            return
        await self._meet()
        if (await self.warm()).ok:
            self._warm, self._failed = True, 0
        else:
            self._failed += 1
            self._rest = int(min(LONGEST_PAUSE_S, 2.0 ** min(self._failed, 10)))

    async def _keep_looking_deep(self) -> None:
        while True:
            await asyncio.sleep(self.deep_s)
            if self.sleep.asleep:
                continue
            self._tell_deep(await self.look_deep())
            self._hear(await self._cards())
            await self.reports.ask_about(self.dialect)

    def _tell_deep(self, ok: bool | None) -> None:
        if ok is not None:
            self.tell(Probed(self.replica.id, ok, deep=True))

    async def _keep_asking_load(self) -> None:
        while True:
            self.load = await self.reports.ask_load(self.dialect) | self._own
            await asyncio.sleep(max(SCRAPE_EVERY_S, self.interval_s))

    async def _keep_alive(self) -> None:
        every_s = self.warmup.config.keep_alive_s
        sent = self.owner.sent(self.replica.id)
        while every_s > 0:
            await asyncio.sleep(every_s)
            before, sent = sent, self.owner.sent(self.replica.id)
            quiet = sent is not None and sent == before and not self.sleep.asleep
            if quiet and self.phase == "ready" and not self._is_out():
                self._tell_deep(await self.warmup.keep_alive(self._target()))

    def _target(self) -> WarmupTarget:
        return WarmupTarget(self.replica, self.dialect, self.connections, tuple(self.models), self._context)

    # -- what is asked -----------------------------------------------------------------------------------------

    async def look_deep(self) -> bool | None:
        """Whether the replica has generated a token. A replica that can only say it is well is not. Tokens of running
        streams are the proof where there are any, so that a check does not take the slot of a request. None: the
        replica is full, which says nothing. Where an engine has a check of its own, a 503 that names no full queue is
        what that has found."""
        since, self._looked_deep_at = self._looked_deep_at, self.connections.clock()
        if self.owner.spoke(self.replica.id, since):
            return True
        try:
            if self.dialect.deep is not None:
                status, said = await self.connections.get(self.dialect.deep, DEEP_TIMEOUT_S)
                if status == 429 or (status == 503 and read_error(said).code == Outcome.QUEUE_FULL.value):
                    return None
                if status != 404:
                    self._note_denial(self.dialect.deep, status)
                    return status == 200
            model = self.replica.served_as or self.replica.model or (self.models[0] if self.models else "")
            body: dict[str, Any] = {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0}
            if self.replica.priority and self.dialect.priority is not None:
                body["priority"] = self.dialect.priority(LOWEST_PRIORITY)
            status, said = await self.connections.ask("POST", "/v1/completions", _encode(body), DEEP_TIMEOUT_S)
        except (ReplicaFailed, TimeoutError, OSError):
            return False
        if self._note_denial("/v1/completions", status):
            return False
        if status == 200:
            return not flaw_in(said, "choices")
        # Another 4xx is about the gateway's question: not every model takes this one.
        return None if status in FULL else 400 <= status < 500

    async def look(self, *, ready: bool = False) -> bool:
        """Whether the replica is well. `ready`: and could be used, which some engines say only at a price."""
        try:
            if (live := self.dialect.live) is not None and not ready:
                return self._is_well(live, (await self.connections.get(live, PROBE_TIMEOUT_S))[0])
            if self._path:
                within_s = READY_TIMEOUT_S if live else PROBE_TIMEOUT_S
                status, _ = await self.connections.get(self._path, within_s)
                if status != 404:
                    return self._is_well(self._path, status)
            return await self._look_for_path()
        except (ReplicaFailed, TimeoutError, OSError) as error:
            self.unwell = str(error).removeprefix(UNREACHED)[:MOST_WHY]
            return False

    def _is_well(self, path: str, status: int) -> bool:
        self._note_denial(path, status)
        self.unwell = "" if status in WELL else f"{path} answered {status}"
        return status in WELL

    async def _look_for_path(self) -> bool:
        """Finds the path of the health check, and asks there; without one, listing models must do."""
        for path in self.dialect.health:
            status, _ = await self.connections.get(path, PROBE_TIMEOUT_S)
            if status != 404:
                self._path = path
                return self._is_well(path, status)
        return False

    async def _meet(self) -> None:
        """Learns what the replica serves, and its kind where that was not configured."""
        cards = await self._cards()
        if not self._given:
            kind = await detect(cards, lambda path: self.connections.get(path, PROBE_TIMEOUT_S))
            self.replica = replace(self.replica, kind=kind)
            if dialect_of_kind(self.replica.kind) is not self.dialect:
                self.dialect, self._path = dialect_of_kind(self.replica.kind), ""
                self.owner.found(self.replica)
        self._hear(cards)
        await self.reports.ask_about(self.dialect, PROBE_TIMEOUT_S)  # requests wait for this

    def _hear(self, cards: list[Card]) -> None:
        if cards:  # if not, the last list still holds; whether the replica is well is asked elsewhere
            self.models = [card.id for card in cards]
            self._context = next((length for card in cards if (length := card.context) is not None), None)
            self.owner.said(self.replica.id, cards)

    async def _cards(self) -> list[Card]:
        try:
            status, body = await self.connections.get("/v1/models", PROBE_TIMEOUT_S)
        except (ReplicaFailed, TimeoutError, OSError):
            return []
        self._denied = self.connections.denied("/v1/models", status) if status in DENIED else ""
        return read_cards(body) if status == 200 else []
