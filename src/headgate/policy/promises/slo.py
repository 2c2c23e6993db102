"""Judges whether each lane's SLOs are kept, and raises the alerts.

A promise is about a percentile of a lane, never about every request. Each promise is ok, at risk (80 % of its bound) or
broken. Beside the promises stand alerts about what is likely to break them next: queues, a shift from the usual, cold
replicas after a deployment, the error budget, utilisation.

A refused or failed request missed its promise: percentiles are judged over all arrivals, and reported over the served
requests beside that. Only symptoms are critical (a broken promise, requests without an answer, no usable replica): an
alert may wake an operator. Causes are warnings.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf, nextafter

from headgate.config.gateway import ObserveConfig
from headgate.model.labels import OTHER
from headgate.model.lane import Lane
from headgate.policy.promises.alert import Alert, AlertChange, AlertLevel, Severity
from headgate.policy.promises.availability import OUTAGE, FleetWatch, ShareWatch, TenantWatch
from headgate.policy.promises.burn import (
    FAST,
    FIVE_MIN_S,
    HALF_HOUR_S,
    HOUR_S,
    SIX_HOURS_S,
    SLOW,
    Availability,
    Burn,
    Meter,
)
from headgate.policy.promises.promise import (
    LEAST,
    MINUTE_S,
    NOTHING,
    USUAL_PERCENTILE,
    Asked,
    FleetReading,
    LaneReading,
    Promise,
    Reading,
    Tail,
    asks,
    promises,
)
from headgate.policy.promises.words import about_budget, about_cold, about_promise, about_queue, about_use, about_usual
from headgate.policy.replicas.baseline import Baseline

__all__ = [
    "Asked", "Availability", "FleetReading", "Known", "LaneReading", "Promise", "Reading", "Slo", "SloState", "Tail",
    "asks", "promises",
]  # fmt: skip

AT_RISK, NO_RISK = 0.8, 0.7
"""Share of its bound from which on a promise is at risk, and below which it no longer is."""
KEPT = 0.9
"""Share of its bound below which a broken promise is kept again."""
CALM_S = 30.0
"""Seconds that a figure must be better before its alert is cleared."""
SUSTAINED_S = MINUTE_S + 15.0
"""Seconds that the last minute's p99 must be over its bound. One burst stays in that minute, and in the slice that is
cut off next, for no longer: a p99 that is over for longer is no single burst."""
USUAL_LEAST = 50
"""Minimum requests in five minutes before their median counts as usual or unusual."""
TWICE = 2.0
IMMATERIAL = 0.02
"""Share of the promised TTFT below which an excess over the usual is immaterial, even where it is twice the usual."""
QUEUE_S = 15.0
"""Seconds that a queue must last before it is reported: a queue is there to absorb shorter bursts."""
USE_S = 60.0
COLD_WATCH_S = 600.0
"""Seconds after a replica came into use in which cold requests are attributed to that."""
COLD_SHARE, COLD_LEAST = 0.01, 3
"""Minimum share of requests, and minimum number of them, that meet a cold replica for an alert."""
OVER = nextafter(1.0, inf)
"""A score just over 1, for bounds that may be reached but not exceeded."""


# -- what is known ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One alert as it is now."""

    alert: str
    lane: str
    severity: Severity
    value: float | None
    bound: float
    count: int
    since: float | None
    """When the severity last changed; None: never."""
    tell: Callable[[], str]
    tail: Tail = NOTHING
    """For a promise: the percentile that it was last judged by."""
    easing: bool = False
    """The alert is raised although its last score would not raise it."""

    @property
    def standing(self) -> str:
        """For a promise: its severity, or why it has none. idle: no requests came. unknown: too few to tell."""
        if self.severity is not Severity.OK or self.value is not None:
            return self.severity.value
        return "unknown" if self.count else "idle"

    @property
    def message(self) -> str:
        """The message for people. Made on demand: a scrape needs the state of hundreds of alerts, and no words."""
        return self.tell()


@dataclass(frozen=True, slots=True, kw_only=True)
class SloState:
    worst: Severity
    promises: tuple[tuple[Promise, Known], ...]
    alerts: tuple[Known, ...]
    """All watched alerts but the promises', raised or not."""
    availability: dict[str, dict[int, Availability]]
    """Lane → window in seconds → the requests for an answer and how they ended."""
    fleet: FleetReading
    burns: dict[str, dict[int, float]]
    """Lane → window in seconds → burn: how many times too fast the error budget is spent."""
    usual_ttft_s: dict[str, float | None]

    @property
    def raised(self) -> list[Known]:
        """All raised alerts, worst first; an outage comes before all others."""
        all_of_them = (*(known for _, known in self.promises), *self.alerts)
        raised = (known for known in all_of_them if known.severity is not Severity.OK)
        return sorted(raised, key=lambda known: (-known.severity.rank, known.alert != OUTAGE))


# -- watching ---------------------------------------------------------------------------------------------


class LaneWatch:
    """All promises and alerts of one lane."""

    def __init__(self, lane: Lane, availability: float) -> None:
        self.lane = lane
        self.tails: Mapping[Asked, Tail] = {}
        """The percentiles as last read."""
        self.kept = [(promise, self._promise_alert(promise)) for promise in promises(lane)]
        self.sustained = [(p, self._sustained_alert(p)) for p in promises(lane) if p.percentile == 99]
        self.usual = Baseline()
        slower = AlertLevel(Severity.WARNING, OVER, 0.75, clear_after_s=CALM_S)
        self.shift = Alert("ttft_over_usual", lane.name, (slower,), lambda alert: about_usual(alert, self.usual.value))
        self.burn = Burn(1 - availability)
        fast, slow = (AlertLevel(severity, 1.0, KEPT) for severity in (Severity.CRITICAL, Severity.WARNING))
        self.budget = Alert("error_budget", lane.name, (fast, slow), lambda alert: about_budget(alert, availability))
        self.shares = ShareWatch(lane.name, 1 - availability)

    @property
    def others(self) -> list[Alert]:
        """All alerts but the promises' own."""
        return [*(alert for _, alert in self.sustained), self.shift, self.budget, *self.shares.alerts]

    def tail(self, promise: Promise, window_s: int = FIVE_MIN_S) -> Tail:
        return self.tails.get((promise.of, promise.percentile, window_s), NOTHING)

    def on(self, reading: LaneReading, now: float) -> list[AlertChange | None]:
        tails = self.tails = reading.tails
        changes = [_judge(alert, promise, self.tail(promise), promise.least, now) for promise, alert in self.kept]
        changes += [
            _judge(alert, promise, self.tail(promise, MINUTE_S), LEAST, now) for promise, alert in self.sustained
        ]
        changes.append(self._shifted(tails.get(("ttft", USUAL_PERCENTILE, FIVE_MIN_S), NOTHING), now))
        changes.append(self._burned(reading, now))
        changes += self.shares.on(self.burn, now)
        return changes

    def _shifted(self, tail: Tail, now: float) -> AlertChange | None:
        """Compares TTFT with the usual, over the served requests alone."""
        value = tail.served_s if tail.count - tail.missed >= USUAL_LEAST else None
        usual, score, bound = self.usual.value, None, 0.0
        if usual is not None:
            bound = max(TWICE * usual, usual + IMMATERIAL * self.lane.ttft_target_s)
            score = value / bound if value is not None else None
        change = self.shift.see(value, bound, tail.count - tail.missed, (score,), now)
        self.usual.see(value, self.shift.severity is Severity.OK, now)
        return change

    def _burned(self, reading: LaneReading, now: float) -> AlertChange | None:
        burn = self.burn
        burn.add(reading.requests, reading.failed, now, reading.refused)
        fast = burn.score(FAST, HOUR_S, FIVE_MIN_S, now)
        slow = burn.score(SLOW, SIX_HOURS_S, HALF_HOUR_S, now)
        window_s, bound = (HOUR_S, FAST) if (fast or 0.0) >= 1 else (SIX_HOURS_S, SLOW)
        missed = burn.counts(window_s, now).missed
        return self.budget.see(burn.rate(window_s, now), bound, missed, (fast, slow), now)

    def _promise_alert(self, promise: Promise) -> Alert:
        broken = AlertLevel(Severity.CRITICAL, 1.0, KEPT, clear_after_s=CALM_S)
        at_risk = AlertLevel(Severity.WARNING, AT_RISK, NO_RISK, clear_after_s=CALM_S)
        return Alert(promise.name, self.lane.name, (broken, at_risk), self._about(promise, FIVE_MIN_S))

    def _sustained_alert(self, promise: Promise) -> Alert:
        """The alert for a p99 that stays over its bound. It needs fewer requests, because it must last."""
        over = AlertLevel(Severity.CRITICAL, OVER, KEPT, raise_after_s=SUSTAINED_S, clear_after_s=CALM_S)
        return Alert(f"{promise.name}_over_60s", self.lane.name, (over,), self._about(promise, MINUTE_S))

    def _about(self, promise: Promise, window_s: int) -> Callable[[Alert], str]:
        figure, percentile, minutes = promise.figure, promise.percentile, window_s // MINUTE_S
        return lambda alert: about_promise(alert, figure, percentile, minutes, self.tail(promise, window_s))


class Slo:
    def __init__(self, lanes: Mapping[str, Lane], observe: ObserveConfig) -> None:
        self._observe = observe
        self._lanes = {name: LaneWatch(lane, observe.availability) for name, lane in lanes.items()}
        self._queue = _warning("queue_per_replica", about_queue, NO_RISK, QUEUE_S)
        self._binding = ""
        self._use = _warning("utilisation", lambda alert: about_use(alert, self._binding), 0.95, USE_S)
        self._used = Meter(2, reach_s=FIVE_MIN_S)
        self._cold = ColdWatch()
        self._fleet = FleetWatch()
        budget = 1 - observe.availability
        self._unknown = Burn(budget)
        """Error budget burn of requests that were refused before their lane was known."""
        self._unknown_shares = ShareWatch(OTHER, budget)
        self._tenants = TenantWatch(budget)

    def on(self, reading: Reading, now: float) -> list[AlertChange]:
        changes: list[AlertChange | None] = []
        for name, lane in reading.lanes.items():
            changes += self._lanes[name].on(lane, now)
        waiting, target = reading.waiting_per_replica, self._observe.queue_per_replica
        changes.append(self._queue.see(waiting, target, 0, (waiting / target,), now))
        changes += self._fleet.on(reading.fleet, now)
        if reading.unknown is not None:
            self._unknown.add(reading.unknown.asked, reading.unknown.failed, now, reading.unknown.refused)
            changes += self._unknown_shares.on(self._unknown, now)
        changes.append(self._tenants.on(reading.tenant, now))
        changes.append(self._cold.on(reading, now))
        self._binding = reading.binding or self._binding
        changes.append(self._utilised(reading.utilisation, now))
        return [change for change in changes if change is not None]

    def see_fleet(self, fleet: FleetReading, now: float) -> list[AlertChange]:
        """Judges the fleet between two readings, when an operator asks for its current state."""
        return [change for change in self._fleet.on(fleet, now) if change is not None]

    def reconfigure(self, lanes: Mapping[str, Lane], now: float) -> list[AlertChange]:
        """Takes over changed promises. The counts of a lane stay; alerts about former promises end."""
        if {name: watch.lane for name, watch in self._lanes.items()} == dict(lanes):
            return []
        before, self._lanes = self._lanes, {}
        for name, lane in lanes.items():
            old = before.get(name)
            if old is None or old.lane != lane:
                new = LaneWatch(lane, self._observe.availability)
                if old is not None:
                    new.burn, new.usual = old.burn, old.usual
                self._lanes[name] = new
            else:
                self._lanes[name] = old
        gone = [watch for name, watch in before.items() if self._lanes.get(name) is not watch]
        alerts = [alert for watch in gone for alert in (*(a for _, a in watch.kept), *watch.others)]
        return [_ended(alert, now) for alert in alerts if alert.severity is not Severity.OK]

    def _utilised(self, utilisation: float | None, now: float) -> AlertChange | None:
        """Judges the mean utilisation of five minutes: queues absorb what happens within."""
        if utilisation is not None:
            self._used.add(now, utilisation, 1)
        total, count = self._used.over(FIVE_MIN_S, now)
        mean, target = total / count if count else None, self._observe.utilisation_target
        return self._use.see(mean, target, 0, (None if mean is None else mean / target,), now)

    def state(self, now: float) -> SloState:
        lanes = self._lanes.values()
        kept = tuple((promise, _known(alert, watch.tail(promise))) for watch in lanes for promise, alert in watch.kept)
        others = [alert for watch in lanes for alert in watch.others]
        others += [
            *self._fleet.alerts,
            *self._unknown_shares.alerts,
            self._tenants.alert,
            self._queue,
            self._cold.alert,
            self._use,
        ]
        alerts = tuple(_known(alert) for alert in others)
        everything = [known.severity for known in (*(known for _, known in kept), *alerts)]
        windows = (FIVE_MIN_S, HALF_HOUR_S, HOUR_S, SIX_HOURS_S)
        availability = {name: {w: watch.burn.counts(w, now) for w in windows} for name, watch in self._lanes.items()}
        unknown = {w: self._unknown.counts(w, now) for w in windows}
        if unknown[SIX_HOURS_S].asked:
            availability[OTHER] = unknown
        return SloState(
            worst=max(everything, key=lambda severity: severity.rank),
            promises=kept,
            alerts=alerts,
            availability=availability,
            fleet=self._fleet.seen,
            burns={name: {w: watch.burn.rate(w, now) for w in windows} for name, watch in self._lanes.items()},
            usual_ttft_s={name: watch.usual.value for name, watch in self._lanes.items()},
        )


@dataclass(slots=True)
class ColdWatch:
    """Watches whether more requests than usual meet a cold replica after replicas came into use."""

    alert: Alert = field(init=False)
    usual: Meter = field(default_factory=lambda: Meter(2, slice_s=FIVE_MIN_S, reach_s=86_400))
    """Cold requests and all requests, in five-minute slices during which no replica was new."""
    joined: tuple[str, ...] = ()
    joined_at: float = -inf
    learn_at: float | None = None

    def __post_init__(self) -> None:
        self.alert = _warning("cold_starts", lambda alert: about_cold(alert, self.joined), KEPT, 0.0)

    def on(self, reading: Reading, now: float) -> AlertChange | None:
        if self.learn_at is None:
            self.learn_at = now + COLD_WATCH_S  # at the start every replica is new
        if reading.joined:
            self.joined, self.joined_at, self.learn_at = reading.joined, now, now + COLD_WATCH_S
        elif now >= self.learn_at:
            self.usual.add(now, reading.cold, reading.cold_of)
            self.learn_at = now + FIVE_MIN_S
        cold, requests = self.usual.over(86_400, now)
        bound = max(TWICE * cold / requests if requests else 0.0, COLD_SHARE)
        share = reading.cold / reading.cold_of if reading.cold_of else None
        judged = share is not None and reading.cold >= COLD_LEAST and now - self.joined_at < COLD_WATCH_S
        score = share / bound if judged and share is not None else None
        return self.alert.see(share, bound, reading.cold_of, (score,), now)


def _judge(alert: Alert, promise: Promise, tail: Tail, least: int, now: float) -> AlertChange | None:
    """Judges a promise. Once its alert is raised, half as many requests suffice, so that it does not come and go with
    their number."""
    enough = tail.value_s is not None and tail.count >= (least if alert.severity is Severity.OK else least / 2)
    value = tail.value_s if enough else None
    score = value / promise.within_s if value is not None else None
    return alert.see(value, promise.within_s, tail.count, (score,) * len(alert.steps), now)


def _warning(name: str, tell: Callable[[Alert], str], off: float, raise_after_s: float) -> Alert:
    return Alert(name, "", (AlertLevel(Severity.WARNING, OVER, off, raise_after_s, CALM_S),), tell)


def _ended(alert: Alert, now: float) -> AlertChange:
    return AlertChange(
        alert=alert.name,
        lane=alert.lane,
        was=alert.severity,
        severity=Severity.OK,
        value=alert.value,
        bound=alert.bound,
        since=now,
        at=now,
        message="the config has changed, and this is no longer promised as it was",
    )


def _known(alert: Alert, tail: Tail = NOTHING) -> Known:
    return Known(
        alert=alert.name,
        lane=alert.lane,
        severity=alert.severity,
        value=alert.value,
        bound=alert.bound,
        count=alert.count,
        since=alert.since,
        tell=partial(alert.tell, alert),
        tail=tail,
        easing=alert.easing,
    )
