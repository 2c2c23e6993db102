"""Reads the figures once a second and reports changed alerts: to the log, the webhook and /admin/slo."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, Literal, Protocol

import msgspec

from headgate.config.gateway import ObserveConfig
from headgate.gateway.account import NO_LANE, Account
from headgate.measure.conditions import Conditions
from headgate.measure.tenant_availability import TenantAvailability, availability
from headgate.model.clock import Clock
from headgate.model.outcome import ASIDE
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.view import ReplicaView
from headgate.policy.promises.alert import AlertChange, Severity
from headgate.policy.promises.promise import LEAST, MINUTE_S
from headgate.policy.promises.slo import (
    Asked,
    Availability,
    Known,
    LaneReading,
    Promise,
    Reading,
    Slo,
    SloState,
    Tail,
    asks,
)
from headgate.policy.promises.verdict import ServiceVerdict, lane_verdict, verdict
from headgate.publish.webhook import Webhook

log = logging.getLogger(__name__)

LEVELS = {Severity.OK: logging.INFO, Severity.WARNING: logging.WARNING, Severity.CRITICAL: logging.ERROR}
LANES_A_LOOK = 4
"""Maximum lanes read in one look; more lanes take turns: a look stays short, and a few seconds do not matter here."""
START_S = 60.0
"""Seconds after the first replica came into use in which further ones are not reported as joined: they were there
before the gateway, or started with it."""
COUNT_EVERY_S = 5.0
"""Seconds between two counts of all requests of five minutes, which add up every lane and part."""
RECENT = 100
"""Changes kept for the page."""
MOST_NAMED = 64
"""Maximum replicas, and lanes and models, listed by name; there may be a thousand."""
NOBODY = Availability(0, 0, 0)
WINDOWS = {300: "5m", 1800: "30m", 3600: "1h", 21_600: "6h"}

_encode = msgspec.json.Encoder().encode


class QuantileSource(Protocol):
    @property
    def count(self) -> int: ...
    def quantiles(self, qs: Sequence[float], /, beyond: float = 0.0) -> list[float | None]: ...


class CountSource(Protocol):
    @property
    def requests(self) -> int: ...
    @property
    def cold(self) -> int: ...
    @property
    def asked(self) -> int: ...
    @property
    def missed(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def over_limit(self) -> int: ...
    def beyond(self, figure: str, having: int, /) -> float: ...


class FigureSource(Protocol):
    """The part of measure/figures.py that is used here."""

    def sketch(self, figure: str, window_s: int, now: float, *, lane: str | None = None) -> QuantileSource: ...
    def counts(self, window_s: int, now: float, *, lane: str | None = None) -> CountSource: ...


class Alarms:
    def __init__(
        self,
        figures: FigureSource,
        dispatcher: Dispatcher,
        account: Account,
        observe: ObserveConfig,
        wall: Clock,
        webhook: Webhook | None = None,
        conditions: Conditions | None = None,
        tenants: TenantAvailability | None = None,
    ) -> None:
        self._conditions = conditions or Conditions(dispatcher)
        self._tenants = tenants
        self.slo = Slo(dispatcher.lanes, observe)
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        """Changes, the latest last."""
        self._figures = figures
        self._dispatcher = dispatcher
        self._account = account
        self._observe = observe
        self._wall = wall
        self._webhook = webhook
        self._listeners: list[Callable[[AlertChange], None]] = []
        self._now = 0.0
        self._turn = 0
        self._count_at = -inf
        self._last_minutes: CountSource
        self._counted: dict[str, Availability] = {}
        """Requests since the start by lane, as of the lane's last reading."""
        self._came = 0
        """The last coming of a replica into use that was seen."""
        self._first_at: float | None = None

    def look(self, now: float) -> list[AlertChange]:
        self._now = now
        changes = self.slo.reconfigure(self._dispatcher.lanes, now)
        changes += self.slo.on(self._read(now), now)
        for change in changes:
            self._tell(change)
        return changes

    def report_to(self, listener: Callable[[AlertChange], None]) -> None:
        """Tells `listener` too of each changed alert from now on."""
        self._listeners.append(listener)

    async def close(self) -> None:
        if self._webhook is not None:
            await self._webhook.close()

    # -- reading -----------------------------------------------------------------------------------------

    def _read(self, now: float) -> Reading:
        view = self._dispatcher.view(now)
        usable = [replica for replica in view.replicas.values() if replica.usable > 0]
        if now >= self._count_at:
            self._count_at = now + COUNT_EVERY_S
            self._last_minutes = self._figures.counts(300, now)
        ended = self._ended()
        return Reading(
            lanes={name: self._read_lane(name, ended.get(name, NOBODY), now) for name in self._whose_turn()},
            waiting_per_replica=view.waiting / max(1, len(usable)),
            utilisation=view.use.largest,
            binding=view.use.binding,
            cold=self._last_minutes.cold,
            cold_of=self._last_minutes.requests,
            fleet=self._conditions.read(now),
            unknown=self._unknown(ended),
            tenant=None if self._tenants is None else self._tenants.worst(now),
            joined=tuple(self._joined(usable, now)),
        )

    def _whose_turn(self) -> list[str]:
        names = list(self._dispatcher.lanes)
        turns = -(-len(names) // LANES_A_LOOK)
        self._turn = (self._turn + 1) % turns
        return names[self._turn :: turns]

    def _ended(self) -> dict[str, Availability]:
        """Requests for an answer since the start, and those of them without one, by lane."""
        ended: dict[str, Availability] = {}
        for (lane, outcome), count in self._account.ended.items():
            if outcome not in ASIDE:
                known, kind = ended.get(lane, NOBODY), outcome.kind
                ended[lane] = Availability(
                    known.asked + count,
                    known.refused + count * (kind == "refused"),
                    known.failed + count * (kind == "failed"),
                )
        return ended

    def _unknown(self, ended: dict[str, Availability]) -> Availability:
        """Requests since the last look that ended before their lane was known."""
        known, before = ended.get(NO_LANE, NOBODY), self._counted.get(NO_LANE, NOBODY)
        self._counted[NO_LANE] = known
        return Availability(known.asked - before.asked, known.refused - before.refused, known.failed - before.failed)

    def _read_lane(self, name: str, ended: Availability, now: float) -> LaneReading:
        sketches: dict[tuple[str, int], QuantileSource] = {}
        counts: dict[int, CountSource] = {}

        def sketch_of(figure: str, window_s: int) -> QuantileSource:
            if (figure, window_s) not in sketches:
                sketches[figure, window_s] = self._figures.sketch(figure, window_s, now, lane=name)
            return sketches[figure, window_s]

        tails: dict[Asked, Tail] = {}
        for figure, percentile, window_s in asks(self._dispatcher.lanes[name]):
            if window_s not in counts:
                counts[window_s] = self._figures.counts(window_s, now, lane=name)
            sketch = sketch_of(figure, window_s)
            # For gaps, the number of requests, not of gaps.
            of = sketch_of("tpot", window_s).count if figure == "gap" else sketch.count
            tails[figure, percentile, window_s] = _tail(sketch, of, percentile, counts[window_s].beyond(figure, of))
        before = self._counted.get(name, NOBODY)
        self._counted[name] = ended
        return LaneReading(
            tails=tails,
            requests=ended.asked - before.asked,
            failed=ended.failed - before.failed,
            refused=ended.refused - before.refused,
        )

    def _joined(self, usable: list[ReplicaView], now: float) -> Iterator[str]:
        """Replicas that came into use since the last look: new ones, and those that were out and are back."""
        before, self._came = self._came, max((seen.came for seen in usable), default=self._came)
        if self._first_at is None:
            self._first_at = now if usable else None
        elif now - self._first_at > START_S:
            for seen in usable:
                if seen.came > before:
                    version = seen.replica.tags.get("version", "")
                    yield f"{seen.id} (version {version})" if version else seen.id

    # -- telling -----------------------------------------------------------------------------------------

    def _tell(self, change: AlertChange) -> None:
        where = f" of lane {change.lane}" if change.lane else ""
        was, severity = change.was.value, change.severity.value
        log.log(LEVELS[change.severity], "alert %s%s: %s → %s: %s", change.alert, where, was, severity, change.message)
        at = self._wall()
        news = {
            "alert": change.alert,
            "lane": change.lane,
            "was": was,
            "severity": severity,
            "value": finite(change.value),
            "bound": change.bound,
            "since": at - (change.at - change.since),
            "at": at,
            "message": change.message,
            "verdict": self.verdict(self._now).text,
        }
        self.recent.append(news)
        for listener in self._listeners:
            listener(change)
        if self._webhook is not None:
            # Chat services show `text` of a message posted to them.
            text = f"{severity.upper()}: {change.alert}{where}: {change.message}"
            self._webhook.post(_encode({**news, "text": text}))

    def state(self, now: float | None = None, /) -> dict[str, Any]:
        """The state for /admin/slo and the page, as an object that encodes to JSON. The fleet is as of `now`, so that
        every reader sees the same; all else, and the fleet where `now` is None, is as of the last look."""
        if now is not None:
            for change in self.slo.see_fleet(self._conditions.read(now), now):
                self._tell(change)
        state, webhook = self.slo.state(self._now), self._webhook
        lanes = self._lanes(state, self._now if now is None else now)
        calm = "idle" if _all_idle(lanes) else "ok"
        return {
            "verdict": self._judged(state, lanes, self._now if now is None else now)._asdict(),
            "worst": calm if state.worst is Severity.OK else state.worst.value,
            "outage": state.fleet.outage,
            "fleet": {
                "up": state.fleet.up,
                "starting": state.fleet.starting,
                "parked": state.fleet.parked,
                "down": list(state.fleet.down[:MOST_NAMED]),
                "down_count": len(state.fleet.down),
                "unserved": list(state.fleet.unserved[:MOST_NAMED]),
            },
            "lanes": lanes,
            "tenants": [] if self._tenants is None else self._tenants.told(self._now),
            "promises": [self._promise(promise, known) for promise, known in state.promises],
            "alerts": [self._as_dict(known) for known in state.raised],
            "watched": [self._as_dict(known) for known in state.alerts],
            "availability": self._observe.availability,
            "burn": {
                lane: {WINDOWS[window_s]: rate for window_s, rate in rates.items()}
                for lane, rates in state.burns.items()
            },
            "usual_ttft_s": state.usual_ttft_s,
            "recent": list(self.recent),
            "webhook": None
            if webhook is None
            else {
                "host": webhook.host,
                "sent": webhook.sent,
                "failed": webhook.failed,
                "dropped": webhook.dropped,
                "waiting": webhook.waiting,
                "last_error": webhook.last_error,
            },
        }

    def verdict(self, now: float) -> ServiceVerdict:
        """Returns the one line that says whether all is well, and if not, what is wrong."""
        state = self.slo.state(self._now)
        return self._judged(state, self._lanes(state, now), now)

    def _judged(self, state: SloState, lanes: dict[str, dict[str, Any]], now: float) -> ServiceVerdict:
        minute = self._figures.counts(MINUTE_S, now)
        return verdict(state.fleet, state.raised, minute, idle=_all_idle(lanes))

    def _lanes(self, state: SloState, now: float) -> dict[str, dict[str, Any]]:
        """Each lane's badge and its availability."""
        told = {}
        for name, windows in state.availability.items():
            own = [known for known in state.raised if known.lane == name]
            judged = lane_verdict(own, self._figures.counts(MINUTE_S, now, lane=name), self._calm(name, windows[300]))
            told[name] = {
                "state": judged.level,
                "badge": judged.text,
                "availability": {WINDOWS[window_s]: availability(found) for window_s, found in windows.items()},
            }
        return told

    def _calm(self, lane: str, found: Availability) -> Literal["ok", "idle", "unknown"]:
        """The state of a lane without an alert."""
        if not found.asked:
            here = lane in self._dispatcher.lanes
            return "ok" if here and self._dispatcher.waiting(lane) + self._dispatcher.running(lane) else "idle"
        return "unknown" if found.missed and found.asked < LEAST else "ok"

    def _promise(self, promise: Promise, known: Known) -> dict[str, Any]:
        tail = known.tail
        return {
            "lane": known.lane,
            "figure": promise.figure,
            "percentile": promise.percentile,
            "within_s": promise.within_s,
            "state": known.standing,
            "value_s": finite(known.value),
            "arrivals_s": finite(tail.value_s),
            "served_s": tail.served_s,
            "missed": tail.value_s == inf,
            "count": known.count,
            "refused_or_failed": tail.missed,
            "since_s": self._since_s(known),
            "message": known.message,
        }

    def _as_dict(self, known: Known) -> dict[str, Any]:
        return {
            "name": known.alert,
            "lane": known.lane,
            "severity": known.severity.value,
            "value": finite(known.value),
            "missed": known.value == inf,
            "bound": known.bound,
            "since_s": self._since_s(known),
            "message": known.message,
        }

    def _since_s(self, known: Known) -> float | None:
        return None if known.since is None else self._now - known.since


def _all_idle(lanes: dict[str, dict[str, Any]]) -> bool:
    return all(lane["state"] == "idle" for lane in lanes.values())


def finite(value: float | None) -> float | None:
    """A value for JSON, which has no infinity: infinite becomes None. Infinite: the percentile falls on a request
    without an answer, which another field says."""
    return None if value is None or value == inf else value


def _tail(sketch: QuantileSource, of: int, percentile: int, beyond: float) -> Tail:
    """`of`: the requests that the sketch is made of; `beyond`: the further requests that missed their promise. Each of
    those counts as many values as the others have on average."""
    share = percentile / 100
    (served,) = sketch.quantiles((share,))
    if beyond <= 0:
        return Tail(served, of)
    (value,) = sketch.quantiles((share,), beyond * max(1.0, sketch.count / max(1, of)))
    missed = max(1, round(beyond))
    return Tail(value, of + missed, missed, served)
