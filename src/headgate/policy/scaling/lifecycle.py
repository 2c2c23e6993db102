"""Where is a replica between being wanted and being gone?

Whether a replica that serves is well is another question, and health.py's: a replica that is ejected for a moment is
still SERVING here. This table says what the fleet may do with it. Nothing is routed to, drained or parked before it has
been READY, and what is PARKED has been warmed, so that taking it into use costs no more than routing to it.
"""

from enum import Enum, IntEnum


class Lifecycle(IntEnum):
    STARTING = 0
    """Asked for; nothing answers yet."""
    WARMING = 1
    """It answers, loads its model and runs its first prompts."""
    READY = 2
    """Warm. It has not been decided yet whether it serves or is parked."""
    RAMPING = 3
    """Gets a share of requests that grows."""
    SERVING = 4
    DRAINING = 5
    """Gets nothing new; what it has may finish."""
    PARKED = 6
    """The warm pool: loaded, warmed, watched and kept warm, and gets no requests."""
    STOPPED = 7
    """Ended, or about to, because it was told to."""
    FAILED = 8
    """Ended, or out of reach, and nobody had asked for that."""


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
    # What was parked or draining is warm and was watched all along: a ramp would only make the burst wait for it.
    LifecycleEvent.ACTIVATED: (STARTING, WARMING, RAMPING, RAMPING, SERVING, SERVING, SERVING, STOPPED, FAILED),
    LifecycleEvent.RAMPED: (STARTING, WARMING, READY, SERVING, SERVING, DRAINING, PARKED, STOPPED, FAILED),
    # Before it is warm there is nothing to drain: it is stopped, or waited for.
    LifecycleEvent.DRAIN: (STARTING, WARMING, DRAINING, DRAINING, DRAINING, DRAINING, DRAINING, STOPPED, FAILED),
    # One that serves is drained first: parked ones are empty.
    LifecycleEvent.PARK: (STARTING, WARMING, PARKED, RAMPING, SERVING, PARKED, PARKED, STOPPED, FAILED),
    LifecycleEvent.STOPPED: (STOPPED, STOPPED, STOPPED, STOPPED, STOPPED, STOPPED, STOPPED, STOPPED, STOPPED),
    LifecycleEvent.LOST: (FAILED, FAILED, FAILED, FAILED, FAILED, FAILED, FAILED, STOPPED, FAILED),
}

ROUTED = frozenset((RAMPING, SERVING))
"""Those that get requests."""
COMING = frozenset((STARTING, WARMING))
"""Those that will be of use, and are not yet."""
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
