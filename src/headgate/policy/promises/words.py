"""Puts an alert into words: one sentence for the problem, one for where to look."""

from collections.abc import Sequence
from math import inf

from headgate.model.labels import plain
from headgate.policy.promises.alert import Alert, Severity
from headgate.policy.promises.promise import NOTHING, FleetReading, Tail, TenantReading
from headgate.policy.replicas.utilisation import words

FIGURES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "gap": "gap between tokens",
    "e2e": "end-to-end time",
    "answer": "time per token of unstreamed answers",
}
LOOK = {
    "ttft": "Look at the queue wait: if it is most of it, add replicas; if not, long prefills are in the way.",
    "tpot": "Look for long contexts in the batch (cap them or give them replicas of their own) and for evictions.",
    "gap": "Look for long prefills and contexts in the batch (smaller chunks, their own replicas) and for evictions.",
    "e2e": "Look for answers that grow (caps, stop sequences, time limit) and for requests that were evicted.",
    "answer": "Look at the queue wait, for long prefills and long contexts beside them, and for slow replicas.",
}
"""Where to look first, by figure: the first branches of the tree that diagnose.py walks."""
LOOK_REFUSED = (
    "Look at headgate_refusals_total by reason and at headgate_errors_total by type: add replicas, or bring back those "
    "that are out."
)
LOOK_TENANT = (
    "Look at /admin/slo's tenants and at headgate_refusals_total by reason: its weight, tier and models, and which "
    "replicas serve those."
)
LOOK_SHARE = {
    "refused": "Look at headgate_refusals_total by reason: add replicas; lanes.*.wait_bound_s and .queue_limit say "
    "when a request is refused. Lane other is of requests refused before they were read: headgate_wire_refusals_total, "
    "limits.connections and .bodies_bytes.",
    "failed": "Look at headgate_errors_total by type and at the replicas that are out.",
}


def duration(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    if seconds >= 1:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + " s"
    return f"{plain(seconds * 1e3)} ms"


def share(value: float) -> str:
    return f"{plain(value * 100)} %"


def _with_advice(alert: Alert, now: str, advice: str) -> str:
    """Adds the advice while the figure is as bad as the alert's severity. An alert that is still raised only because
    the figure has not been better for long enough says that instead."""
    if alert.severity is Severity.OK:
        return now
    if alert.easing:
        ends = "that ends when it has stayed better for a while"
        return f"{now}. It was worse, and is still {alert.severity.value}: {ends}."
    return f"{now}. {advice}"


def about_promise(alert: Alert, figure: str, percentile: int, minutes: int, tail: Tail = NOTHING) -> str:
    """Describes a promise's alert. `tail`: what the alert was last shown; refused and failed requests count as late."""
    what, promised = f"{FIGURES[figure]} p{percentile}", f"the promised {duration(alert.bound)}"
    if alert.value is None and not alert.count:
        return f"{what}: idle, no requests in {minutes} min; {promised[4:]}"
    if alert.value is None:
        now = f"{what}: too few requests to tell ({alert.count} in {minutes} min); {promised[4:]}"
        return _with_advice(alert, now, LOOK[figure])
    served = ""
    if tail.missed:
        of_served = "none was served" if tail.served_s is None else f"{duration(tail.served_s)} over the served"
        served = f", {tail.missed} of them refused or failed; {of_served}"
    if alert.value == inf:
        now = f"{what} over all arrivals of the last {minutes} min is of one that got no answer, {promised} is missed "
        return _with_advice(alert, f"{now}({alert.count} requests{served})", LOOK_REFUSED)
    now = (
        f"{what} is {duration(alert.value)} over the last {minutes} min, "
        f"{share(alert.value / alert.bound)} of {promised} ({alert.count} requests{served})"
    )
    return _with_advice(alert, now, LOOK[figure])


def about_usual(alert: Alert, usual_s: float | None) -> str:
    if usual_s is None:
        return "TTFT p50: what is usual is not known yet, or no longer"
    if alert.value is None:
        now = f"TTFT p50: too few requests to tell ({alert.count} in 5 min); usually {duration(usual_s)}"
    else:
        now = f"TTFT p50 is {duration(alert.value)} over the last 5 min, usually {duration(usual_s)}"
    advice = "Look at what changed: a new version, longer prompts, fewer replicas, a lower cache hit rate."
    return _with_advice(alert, now, advice)


def about_budget(alert: Alert, availability: float) -> str:
    now = (
        f"the error budget of {share(1 - availability)} is being used {plain(alert.value or 0.0)}× as fast as it lasts "
        f"({alert.count} refused or failed)"
    )
    return _with_advice(alert, now, LOOK_REFUSED)


def about_share(alert: Alert, what: str) -> str:
    """Describes a share's alert. `what`: refused or failed."""
    if alert.value is None:
        return f"{what}: idle, nobody asked in the last 5 min"
    now = f"{share(alert.value)} of the requests of the last 5 min were {what} ({alert.count})"
    if what == "failed":
        now = f"{share(alert.value)} of the requests of the last 5 min failed ({alert.count})"
    return _with_advice(alert, now, LOOK_SHARE[what])


def about_tenant(alert: Alert, seen: TenantReading | None) -> str:
    if alert.value is None or seen is None:
        return "tenants: none asked in vain in the last 5 min"
    now = (
        f"tenant {seen.tenant} in lane {seen.lane}: {share(alert.value)} of its {seen.asked} requests of the last "
        "5 min were refused or failed" + (f", and so with {seen.others} more" if seen.others else "")
    )
    return _with_advice(alert, now, LOOK_TENANT)


def about_outage(fleet: FleetReading) -> str:
    there = ", ".join(
        f"{count} {what}"
        for count, what in ((len(fleet.down), "down"), (fleet.starting, "starting"), (fleet.parked, "parked"))
        if count
    )
    if fleet.outage:
        why = f": {fleet.why}" if fleet.why else ""
        does = "Start them again, or look at their logs"
        if fleet.starting:
            others = "start the others again, or" if fleet.down else "if they are not ready soon,"
            does = f"Wait for those that start; {others} look at their logs"
        return (
            f"no replica is usable, nothing can be answered ({there or 'none is known'}){why}. "
            f"{does}; /admin/fleet says what is known of each."
        )
    if fleet.unserved:
        return f"no replica is usable for {few(fleet.unserved)}. Start theirs again, or look at their logs."
    return f"usable replicas: {fleet.up}" + (f" ({there})" if there else "")


def about_down(alert: Alert, fleet: FleetReading) -> str:
    if not fleet.down:
        return "no replica is down" if alert.severity is Severity.OK else "none is down any more, since a few seconds"
    why = f" ({fleet.why})" if fleet.why else ""
    return (
        f"{len(fleet.down)} of {len(fleet.down) + fleet.up} replicas down: {few(fleet.down)}{why}. "
        "Start them again, or look at their logs; health.failures and .cooldown_s say when they are out and back."
    )


def about_queue(alert: Alert) -> str:
    now = f"{plain(alert.value or 0.0)} requests wait for each usable replica, the target is {plain(alert.bound, 6)}"
    return _with_advice(alert, now, "Add replicas, or look for ones that are out or slower than the others.")


def about_use(alert: Alert, binding: str) -> str:
    """Describes the utilisation alert. `binding`: the fullest resource."""
    if alert.value is None:
        now = f"utilisation: no replica is usable; the target is {share(alert.bound)}"
    else:
        now = f"{share(alert.value)} of {words(binding)} is taken, the target is {share(alert.bound)}"
    advice = "Latency bends at 80 % and knows no bound near 95 %: add replicas before it does."
    return _with_advice(alert, now, advice)


def about_cold(alert: Alert, joined: Sequence[str]) -> str:
    if alert.value is None:
        return _with_advice(alert, "cold replicas: no requests in the last 5 min", "")
    now = f"{share(alert.value)} of {alert.count} requests met a cold replica in the last 5 min"
    if alert.severity is not Severity.OK and not alert.easing:
        now += f", over {share(alert.bound)}, since {few(joined)} came into use"
    return _with_advice(alert, now, "Look at its warm-up and at health.ramp_s.")


def few(names: Sequence[str]) -> str:
    """The first four names, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
