"""Logs what becomes of replicas: that they join, are taken into use, go out, come back, are parked, and leave.

The log follows the conditions (measure/conditions.py) that alerts, figures and the page tell, once a second, so that no
request and no probe pays for it.
"""

import logging
from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from headgate.model.replica import ReplicaId

if TYPE_CHECKING:
    from headgate.upkeep.prober import Prober

log = logging.getLogger(__name__)

EVERY_S = 1.0
PATIENCE_S = 3.0
"""Seconds that a replica may be silent after it has joined until that is logged."""


class ReplicaConditions(Protocol):
    """What is asked of each replica's condition."""

    def of(self, now: float) -> Mapping[ReplicaId, str]:
        """up, starting, waking, parked, asleep or down, by replica."""

    def why(self, replica_id: ReplicaId) -> str:
        """Why it is not in use; empty: no reason is known."""


class ReplicaNotes:
    """What the log has said of one replica."""

    __slots__ = ("_condition", "_since", "_why")

    def __init__(self) -> None:
        self._condition = ""
        """Empty: nothing yet."""
        self._since = 0.0
        self._why = ""
        """Why it does not answer, while it was never in use."""

    def compare(self, watch: "Prober", condition: str, why: str, now: float) -> None:
        """Logs what has changed since the last call."""
        name, was = watch.replica.id, self._condition
        told: dict[str, Any] = {"replica": name, "url": watch.replica.url, "condition": condition}
        if not was:
            log.info("replica %s joins: %s", name, watch.replica.url, extra=told)
            self._condition, self._since, was = "starting", now, "starting"
        late = was == "starting" and condition != "up" and now - self._since >= PATIENCE_S
        if late and watch.unwell not in ("", self._why):
            self._why = watch.unwell  # the prober logs other reasons itself
            # An engine that the gateway has started makes its socket when it is ready to be asked.
            level = logging.INFO if watch.replica.url.startswith("unix:") else logging.WARNING
            log.log(level, "replica %s is not in use yet: %s", name, self._why, extra={**told, "why": self._why})
        if condition == was:
            return
        if condition == "up" and was == "down":
            log.info("replica %s is back after %.1f s", name, now - self._since, extra=told)
        elif condition == "up":
            log.info("replica %s is in use: %s", name, described(watch), extra=told)
        elif condition == "parked":
            log.info("replica %s gets no requests: it is parked", name, extra=told)
        elif condition in ("asleep", "waking"):
            log.info("replica %s is %s", name, condition, extra=told)
        elif condition == "down" and was != "starting":
            found = reason(watch, why)
            log.warning("replica %s is out: %s", name, found, extra={**told, "why": found})
        self._condition, self._since = condition, now


class ReplicaLog:
    def __init__(self, watches: Callable[[], Mapping[ReplicaId, "Prober"]], conditions: ReplicaConditions) -> None:
        self._watches = watches
        self._conditions = conditions
        self._looked_at = -inf

    def look(self, now: float) -> None:
        """Logs what has changed, at most once a second."""
        if now - self._looked_at < EVERY_S:
            return
        self._looked_at = now
        watches = self._watches()
        for replica_id, condition in self._conditions.of(now).items():
            watch = watches.get(replica_id)
            if watch is not None:
                watch.notes.compare(watch, condition, self._conditions.why(replica_id), now)


def reason(watch: "Prober", why: str) -> str:
    """Why a replica is not in use, with what its last probe met where that says more."""
    met = watch.unwell
    known = [part for part in (why, met) if part]
    return ": ".join(dict.fromkeys(known)) or f"it is {watch.phase}"


def described(watch: "Prober") -> str:
    """What a replica is and serves, for people."""
    kind = watch.replica.kind or "an engine that does not say what it is"
    names = watch.models or sorted(watch.replica.names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{kind}, serves {', '.join(names[:3])}{more}" if names else kind
