"""Watches availability: the share of requests that are refused or fail, and whether any replica is usable.

A percentile of the served requests says nothing of the others: a lane that refuses most requests serves the rest in
time. So both shares have alerts of their own, which fire within a minute, long before a month's error budget is spent.
An outage, with no usable replica, is reported at once.
"""

from headgate.policy.promises.alert import Alert, AlertChange, AlertLevel, Severity
from headgate.policy.promises.burn import FIVE_MIN_S, LEAST_FAILED, Burn
from headgate.policy.promises.promise import FleetReading, TenantReading
from headgate.policy.promises.words import about_down, about_outage, about_share, about_tenant

OUTAGE = "no_usable_replica"
WORTH, GRAVE = 0.01, 0.05
"""Shares of the requests for an answer from which on refusals, or failures, are a warning and critical."""
MOST, FEW = 0.5, 3
"""Where at least MOST of the requests get no answer, FEW of them are enough for an alert, instead of LEAST_FAILED."""
CLEARED = 0.9
CLEAR_S = 30.0
BACK_S = 5.0
"""Seconds that a replica must be usable again before the outage is over: a replica that cannot be reached is tried now
and then."""
DOWN_S = 15.0
"""Seconds that a replica must be down before it is reported: retries cover a shorter failure."""


def bounds(budget: float) -> tuple[float, float]:
    """The shares that are a warning and critical; never below the share that may go without an answer."""
    return max(WORTH, budget), min(max(GRAVE, 5 * budget), (1 + budget) / 2)


def hardly_any(budget: float) -> float:
    """The share from which on it is a tenant's own matter that it gets no answers."""
    return (1 + budget) / 2


class ShareWatch:
    """The shares of one lane's requests that are refused and that fail, over five minutes."""

    def __init__(self, lane: str, budget: float) -> None:
        self._budget = budget
        self.refused = _share_alert("refused_share", lane, budget)
        self.failed = _share_alert("failed_share", lane, budget)

    @property
    def alerts(self) -> list[Alert]:
        return [self.refused, self.failed]

    def on(self, burn: Burn, now: float) -> list[AlertChange | None]:
        """Judges both shares, after the lane's counts were added to `burn`."""
        found = burn.counts(FIVE_MIN_S, now)
        return [
            self._see(self.refused, found.refused, found.asked, now),
            self._see(self.failed, found.failed, found.asked, now),
        ]

    def _see(self, alert: Alert, missed: int, asked: int, now: float) -> AlertChange | None:
        worth, grave = bounds(self._budget)
        share = missed / asked if asked else None
        enough = share is not None and missed >= (FEW if share >= MOST else LEAST_FAILED)
        scores = (None, None) if share is None or not enough or self._budget >= 1 else (share / grave, share / worth)
        return alert.see(share, worth, missed, scores, now)


class TenantWatch:
    """Whether one tenant gets no answers where its lane as a whole may be well."""

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self.seen: TenantReading | None = None
        none = AlertLevel(Severity.CRITICAL, 1.0, CLEARED, clear_after_s=CLEAR_S)
        self.alert = Alert("tenant_missed", "", (none,), lambda alert: about_tenant(alert, self.seen))

    def on(self, worst: TenantReading | None, now: float) -> AlertChange | None:
        """`worst`: None where no tenant asked in vain."""
        self.seen = self.seen if worst is None else worst
        bound = hardly_any(self._budget)
        if worst is None or self._budget >= 1:
            return self.alert.see(None, bound, 0, (None,), now)
        share = worst.missed / worst.asked
        enough = worst.missed >= LEAST_FAILED
        return self.alert.see(share, bound, worst.missed, (share / bound if enough else None,), now)


class FleetWatch:
    """Watches for outages and for replicas that are down."""

    def __init__(self) -> None:
        self.seen = FleetReading()
        """The fleet as last read."""
        none = AlertLevel(Severity.CRITICAL, 1.0, 1.0, clear_after_s=BACK_S)
        self.outage = Alert(OUTAGE, "", (none,), self._about_outage)
        down = AlertLevel(Severity.WARNING, 1.0, 1.0, raise_after_s=DOWN_S, clear_after_s=CLEAR_S)
        self.down = Alert("replica_down", "", (down,), lambda alert: about_down(alert, self.seen))

    @property
    def alerts(self) -> list[Alert]:
        return [self.outage, self.down]

    def _about_outage(self, alert: Alert) -> str:
        said = about_outage(self.seen)
        over = alert.severity is not Severity.OK and not self.seen.outage and not self.seen.unserved
        return f"over, for less than {BACK_S:g} s: {said}" if over else said

    def on(self, fleet: FleetReading, now: float) -> list[AlertChange | None]:
        self.seen = fleet
        out = float(fleet.outage or bool(fleet.unserved))
        return [
            self.outage.see(float(fleet.up), 1.0, len(fleet.unserved), (out,), now),
            self.down.see(float(len(fleet.down)), 1.0, len(fleet.down), (float(len(fleet.down)),), now),
        ]


def _share_alert(name: str, lane: str, budget: float) -> Alert:
    grave = AlertLevel(Severity.CRITICAL, 1.0, CLEARED, clear_after_s=CLEAR_S)
    worth = AlertLevel(Severity.WARNING, 1.0, CLEARED, clear_after_s=CLEAR_S)
    what = name.partition("_")[0]
    return Alert(name, lane, (grave, worth), lambda alert: about_share(alert, what))
