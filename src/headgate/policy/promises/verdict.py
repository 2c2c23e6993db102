"""Says in one line whether all is well, and if not, what is wrong: for the page, the terminal and alerts alike.

    All promises kept · 3 of 3 replicas · 0 refused
    Down: 0 of 2 replicas answer (connection refused)

The worst fact comes first: an outage, then failures, refusals, broken promises, and what is likely to break one next.
Counts of requests are over the last minute, so that the line follows what happens now.
"""

from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import Literal, NamedTuple, Protocol

from headgate.model.labels import OTHER, plain
from headgate.policy.promises.alert import Severity
from headgate.policy.promises.availability import OUTAGE, WORTH
from headgate.policy.promises.promise import FleetReading
from headgate.policy.promises.slo import Known
from headgate.policy.promises.words import FIGURES, duration, few, share

VerdictLevel = Literal["ok", "idle", "unknown", "warning", "critical"]
SUSTAINED = "_over_60s"
SHARES = ("failed_share", "refused_share")
FLEET = (OUTAGE, "replica_down")
"""Alerts about what the fleet itself tells."""
ORDER = (OUTAGE, *SHARES, "tenant_missed", "replica_down")
"""Alerts that are named before the others of their severity, in this order."""
MOST_WHY = 80
"""Maximum characters of a replica's own reason."""


class ServiceVerdict(NamedTuple):
    level: VerdictLevel
    """idle: nothing was asked, or no replica is wanted. unknown: too few requests to judge, of a lane only."""
    text: str


class MinuteCounts(Protocol):
    """Requests of the last minute; see measure/windows.py."""

    @property
    def asked(self) -> int: ...
    @property
    def missed(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def over_limit(self) -> int: ...


def verdict(fleet: FleetReading, raised: Sequence[Known], minute: MinuteCounts, *, idle: bool) -> ServiceVerdict:
    """`raised`: the alerts that are not ok. `idle`: no lane has had a request in five minutes, and none has one now, as
    was last looked; requests that have ended since are in `minute`."""
    if not fleet.up:
        return _none_up(fleet)
    text, level = _problem(fleet, raised, minute)
    if not text:
        idle = idle and not minute.asked
        text, level = ("Idle: no requests in 5 min", "idle") if idle else ("All promises kept", "ok")
        if idle:
            return ServiceVerdict(level, f"{text} · {_replicas(fleet)}")
    return ServiceVerdict(level, " · ".join((text, *([] if fleet.down else [_replicas(fleet)]), *_requests(minute))))


def lane_verdict(
    raised: Sequence[Known], minute: MinuteCounts, calm: Literal["ok", "idle", "unknown"]
) -> ServiceVerdict:
    """The badge of a lane: the worst of its latency, failures and refusals. `raised`: the lane's own alerts; `calm`:
    what it is without any."""
    known = sorted(raised, key=lambda one: (-one.severity.rank, one.easing, _rank(one.alert)))
    if known:
        worst = known[0]
        return ServiceVerdict("critical" if worst.severity is Severity.CRITICAL else "warning", _badge(worst))
    if minute.missed and minute.missed >= WORTH * minute.asked:
        what = "failed" if 2 * minute.failed >= minute.missed else "refused"
        return ServiceVerdict("warning", f"{minute.missed:,} of {minute.asked:,} {what}")
    return ServiceVerdict(calm, "too few to judge" if calm == "unknown" else calm)


def _badge(known: Known) -> str:
    name, figure, percentile = known.alert, *known.alert.removesuffix(SUSTAINED).partition("_p")[::2]
    if name in SHARES:
        return f"{share(known.value or 0.0)} {name.removesuffix('_share')}"
    if figure in FIGURES and percentile:
        where = "over" if known.severity is Severity.CRITICAL else "near"
        return f"{FIGURES[figure]} p{percentile} {'was ' if known.easing else ''}{where} its promise"
    return {"ttft_over_usual": "TTFT twice the usual"}.get(name, name.replace("_", " "))


def _none_up(fleet: FleetReading) -> ServiceVerdict:
    """The verdict where no request can be answered: an outage, or on purpose, or not yet."""
    down, why = len(fleet.down), _because(fleet)
    coming = f", {fleet.starting} starting" if down and fleet.starting else ""
    there = down + fleet.starting
    if down:
        return ServiceVerdict("critical", f"Down: 0 of {_many(there)} answer{'s' if there == 1 else ''}{coming}{why}")
    if fleet.outage:
        return ServiceVerdict(
            "critical", f"Down: {'0 of ' + _many(there) + ' ready' if there else 'no replica is known'}"
        )
    if fleet.starting:
        return ServiceVerdict("warning", f"Starting: 0 of {_many(there)} ready{why}")
    if fleet.asleep:
        return ServiceVerdict(
            "idle", "Asleep: no replica is in use" + (f", {fleet.parked} parked" if fleet.parked else "")
        )
    return ServiceVerdict("warning", "Starting: no replica is known yet")


def _problem(fleet: FleetReading, raised: Sequence[Known], minute: MinuteCounts) -> tuple[str, VerdictLevel]:
    """What is wrong, or nothing: the worst alert, and what has happened since without one."""
    if fleet.unserved:
        return f"Down for {few(fleet.unserved)}: none of its replicas answers{_because(fleet)}", "critical"
    # What is down is said of the fleet itself; of alerts that outlast it, that it is over.
    known = [one for one in raised if not (fleet.down and one.alert in FLEET)]
    known.sort(key=lambda one: (-one.severity.rank, one.easing, _rank(one.alert)))
    worst = known[0] if known else None
    critical = worst is not None and worst.severity is Severity.CRITICAL
    level: VerdictLevel = "critical" if critical else "warning"
    unanswered = {one.lane for one in known if one.alert in SHARES}
    more = len({_about(one, unanswered) for one in known}) - (critical or not fleet.down)
    others = f", and {more} more" if more > 0 else ""
    if fleet.down and not critical:
        return f"At risk: {_down(fleet)}{others}", level
    if worst is not None:
        return _short(worst) + others + (f"; {_down(fleet)}" if fleet.down else ""), level
    if minute.missed and minute.missed >= WORTH * minute.asked:
        failing = 2 * minute.failed >= minute.missed
        return f"{'Failing' if failing else 'Refusing'}: {minute.missed} of {minute.asked} requests", "warning"
    return "", "ok"


def _short(known: Known) -> str:
    """One alert in a few words, its figure and its bound."""
    name, value, lane = known.alert.removesuffix(SUSTAINED), known.value, known.lane
    if name in SHARES:
        head = "Failing" if name == "failed_share" else "Refusing"
        where = "requests refused before they were read" if lane == OTHER else f"lane {lane}"
        return f"{head}: {share(value or 0.0)} of {where} in 5 min"
    if name == "error_budget":
        return f"Failing: the error budget of lane {lane} is spent {plain(value or 0.0)}× too fast"
    if name in FLEET:
        return "Recovering: no replica is down any more"
    broken = known.severity is Severity.CRITICAL
    head = "Broken" if broken else "At risk"
    figure, _, percentile = name.partition("_p")
    if figure in FIGURES and percentile:
        what, promised = f"{lane} {FIGURES[figure]} p{percentile}", f"promised {duration(known.bound)}"
        if known.easing or value is None:
            return f"Recovering: {what} was {'over' if broken else 'near'} the {promised}"
        return f"{head}: {what} is {'missed' if value == inf else duration(value)}, {promised}"
    words = {
        "tenant_missed": "a tenant gets hardly any answers",
        "ttft_over_usual": f"{lane} TTFT is twice what it usually is",
        "queue_per_replica": f"{plain(value or 0.0)} requests wait for each replica",
        "utilisation": f"{share(value or 0.0)} of the scarcest resource is taken",
        "cold_starts": "requests meet cold replicas",
    }.get(name, name.replace("_", " "))
    return f"{'Recovering, after' if known.easing else head}: {words}"


def _rank(alert: str) -> int:
    return ORDER.index(alert) if alert in ORDER else len(ORDER)


def _about(known: Known, unanswered: Collection[str]) -> tuple[str, str]:
    """What an alert is about. That a p99 is over its bound for long is the same fact as that it is over; that a lane
    refuses or fails many requests, the same as that its percentiles fall on those, and that its budget goes."""
    follows = known.value == inf or known.alert in (*SHARES, "error_budget")
    if follows and known.lane in unanswered:
        return SHARES[0], known.lane
    return known.alert.removesuffix(SUSTAINED), known.lane


def _replicas(fleet: FleetReading) -> str:
    there = fleet.up + len(fleet.down) + fleet.starting
    aside = ((fleet.starting, "starting"), (fleet.parked, "parked"))
    return ", ".join((f"{fleet.up} of {_many(there)}", *(f"{count} {what}" for count, what in aside if count)))


def _requests(minute: MinuteCounts) -> Iterable[str]:
    refused = minute.missed - minute.failed
    if minute.failed:
        yield f"{minute.failed:,} failed in 1 min"
    yield f"{refused:,} refused in 1 min" if refused else "0 refused"
    if minute.over_limit:
        yield f"{minute.over_limit:,} over their limit"


def _down(fleet: FleetReading) -> str:
    there = fleet.up + len(fleet.down) + fleet.starting
    return f"{len(fleet.down)} of {_many(there)} down{_because(fleet)}"


def _because(fleet: FleetReading) -> str:
    why = " ".join(fleet.why.split())
    return f" ({why[: MOST_WHY - 1] + '…' if len(why) > MOST_WHY else why})" if why else ""


def _many(replicas: int) -> str:
    return f"{replicas} replica{'' if replicas == 1 else 's'}"
