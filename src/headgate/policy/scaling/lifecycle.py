"""Defines a replica's lifecycle, from its start to its end, as a total table.

Whether a serving replica is healthy is decided in health.py: a replica that is ejected for a moment is still SERVING
here. This table says what the fleet may do with a replica. No replica is routed to, drained or parked before it has
been READY, and a PARKED replica has been warmed, so that taking it into use costs no more than routing to it.
"""

from enum import Enum, IntEnum


class Lifecycle(IntEnum):
    STARTING = 0
    """Asked for; the replica does not answer yet."""
    WARMING = 1
    """The replica answers, loads its model and runs its first prompts."""
    READY = 2
    """Warm. Whether the replica serves or is parked has not been decided yet."""
    RAMPING = 3
    """Gets a growing share of requests."""
    SERVING = 4
    DRAINING = 5
    """Gets no new requests; those it has may finish."""
    PARKED = 6
    """The warm pool: loaded, warmed, watched and kept warm, without requests."""
    STOPPED = 7
    """Ended, or about to, on command."""
    FAILED = 8
    """Ended or out of reach, without a command."""


class LifecycleEvent(Enum):
    STARTED = "started"
    ANSWERED = "answered"
    WARMED = "warmed up"
    ACTIVATED = "activated"
    RAMPED = "ramp over"
    DRAIN = "told to drain"
    PARK = "empty and kept"
    STOPPED = "stopped"
    LOST = "lost"


STARTING, WARMING, READY, RAMPING, SERVING, DRAINING, PARKED, STOPPED, FAILED = Lifecycle

NEXT: dict[
    LifecycleEvent,
    tuple[Lifecycle, Lifecycle, Lifecycle, Lifecycle, Lifecycle, Lifecycle, Lifecycle, Lifecycle, Lifecycle],
] = {
    # was               STARTING  WARMING  READY     RAMPING   SERVING   DRAINING  PARKED    STOPPED   FAILED
    LifecycleEvent.STARTED: (STARTING, WARMING, READY, RAMPING, SERVING, DRAINING, PARKED, STARTING, STARTING),
    LifecycleEvent.ANSWERED: (WARMING, WARMING, READY, RAMPING, SERVING, DRAINING, PARKED, STOPPED, FAILED),
    LifecycleEvent.WARMED: (READY, READY, READY, RAMPING, SERVING, DRAINING, PARKED, STOPPED, FAILED),
    # A parked or draining replica is warm and was watched all along: a ramp would only make the burst wait for it.
    LifecycleEvent.ACTIVATED: (STARTING, WARMING, RAMPING, RAMPING, SERVING, SERVING, SERVING, STOPPED, FAILED),
    LifecycleEvent.RAMPED: (STARTING, WARMING, READY, SERVING, SERVING, DRAINING, PARKED, STOPPED, FAILED),
    # Before a replica is warm there is nothing to drain: it is stopped, or waited for.
    LifecycleEvent.DRAIN: (STARTING, WARMING, DRAINING, DRAINING, DRAINING, DRAINING, DRAINING, STOPPED, FAILED),
    # A serving replica is drained first: parked replicas are empty.
    LifecycleEvent.PARK: (STARTING, WARMING, PARKED, RAMPING, SERVING, PARKED, PARKED, STOPPED, FAILED),
    LifecycleEvent.STOPPED: (STOPPED, STOPPED, STOPPED, STOPPED, STOPPED, STOPPED, STOPPED, STOPPED, STOPPED),
    LifecycleEvent.LOST: (FAILED, FAILED, FAILED, FAILED, FAILED, FAILED, FAILED, STOPPED, FAILED),
}

ROUTED = frozenset((RAMPING, SERVING))
"""Replicas that get requests."""
COMING = frozenset((STARTING, WARMING))
"""Replicas that are on their way and cannot be used yet."""
OVER = frozenset((STOPPED, FAILED))


def next_state(state: Lifecycle, happened: LifecycleEvent) -> Lifecycle:
    return NEXT[happened][state]


def as_mermaid() -> str:
    """The table as a diagram for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> STARTING"]
    for was in Lifecycle:
        to: dict[Lifecycle, list[str]] = {}
        for happened, after in NEXT.items():
            to.setdefault(after[was], []).append(happened.value)
        lines += [f"    {was.name} --> {state.name}: {', '.join(why)}" for state, why in to.items() if state is not was]
    return "\n".join(lines) + "\n"
