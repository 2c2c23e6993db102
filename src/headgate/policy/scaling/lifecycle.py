"""Defines a replica's lifecycle, from its start to its end, as a total table.

Whether a serving replica is healthy is decided in health.py: a replica that is ejected for a moment is still SERVING
here. This table says what the fleet may do with a replica. No replica is routed to, drained or parked before it has
been READY, and a PARKED replica has been warmed, so that taking it into use costs no more than routing to it. Only a
PARKED replica is put to sleep, and it is PARKED again before it serves: what sleeps has no requests.
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
    DOZING = 7
    """Parked, and told to sleep."""
    ASLEEP = 8
    """Parked, without memory on its GPU: it has to wake up before it is used."""
    WAKING = 9
    STOPPED = 10
    """Ended, or about to, on command."""
    FAILED = 11
    """Ended or out of reach, without a command."""


class LifecycleEvent(Enum):
    STARTED = "started"
    ANSWERED = "answered"
    WARMED = "warmed up"
    ACTIVATED = "activated"
    RAMPED = "ramp over"
    DRAIN = "told to drain"
    PARK = "empty and kept"
    SLEEP = "told to sleep"
    SLEPT = "asleep"
    WAKE = "told to wake"
    WOKEN = "awake"
    STOPPED = "stopped"
    LOST = "lost"


STARTING, WARMING, READY, RAMPING, SERVING, DRAINING, PARKED, DOZING, ASLEEP, WAKING, STOPPED, FAILED = Lifecycle

# fmt: off
NEXT: dict[LifecycleEvent, tuple[Lifecycle, ...]] = {
#   STARTING  WARMING  READY     RAMPING   SERVING   DRAINING  PARKED    DOZING   ASLEEP   WAKING   STOPPED   FAILED
    LifecycleEvent.STARTED: (
    STARTING, WARMING, READY,    RAMPING,  SERVING,  DRAINING, PARKED,   DOZING,  ASLEEP,  WAKING,  STARTING, STARTING),
    LifecycleEvent.ANSWERED: (
    WARMING,  WARMING, READY,    RAMPING,  SERVING,  DRAINING, PARKED,   DOZING,  ASLEEP,  WAKING,  STOPPED,  FAILED),
    LifecycleEvent.WARMED: (
    READY,    READY,   READY,    RAMPING,  SERVING,  DRAINING, PARKED,   DOZING,  ASLEEP,  WAKING,  STOPPED,  FAILED),
    # A parked or draining replica is warm and was watched all along: a ramp would only make the burst wait for it. One
    # that sleeps wakes up first, and is then activated again.
    LifecycleEvent.ACTIVATED: (
    STARTING, WARMING, RAMPING,  RAMPING,  SERVING,  SERVING,  SERVING,  WAKING,  WAKING,  WAKING,  STOPPED,  FAILED),
    LifecycleEvent.RAMPED: (
    STARTING, WARMING, READY,    SERVING,  SERVING,  DRAINING, PARKED,   DOZING,  ASLEEP,  WAKING,  STOPPED,  FAILED),
    # Before a replica is warm, and while it sleeps, there is nothing to drain: it is stopped, or waited for.
    LifecycleEvent.DRAIN: (
    STARTING, WARMING, DRAINING, DRAINING, DRAINING, DRAINING, DRAINING, DOZING,  ASLEEP,  WAKING,  STOPPED,  FAILED),
    # A serving replica is drained first: parked replicas are empty.
    LifecycleEvent.PARK: (
    STARTING, WARMING, PARKED,   RAMPING,  SERVING,  PARKED,   PARKED,   DOZING,  ASLEEP,  WAKING,  STOPPED,  FAILED),
    LifecycleEvent.SLEEP: (
    STARTING, WARMING, READY,    RAMPING,  SERVING,  DRAINING, DOZING,   DOZING,  ASLEEP,  WAKING,  STOPPED,  FAILED),
    # What is told to wake while it falls asleep does both, one after the other.
    LifecycleEvent.SLEPT: (
    STARTING, WARMING, READY,    RAMPING,  SERVING,  DRAINING, PARKED,   ASLEEP,  ASLEEP,  WAKING,  STOPPED,  FAILED),
    LifecycleEvent.WAKE: (
    STARTING, WARMING, READY,    RAMPING,  SERVING,  DRAINING, PARKED,   WAKING,  WAKING,  WAKING,  STOPPED,  FAILED),
    # A dozing replica is awake that would not sleep.
    LifecycleEvent.WOKEN: (
    STARTING, WARMING, READY,    RAMPING,  SERVING,  DRAINING, PARKED,   PARKED,  ASLEEP,  PARKED,  STOPPED,  FAILED),
    LifecycleEvent.STOPPED: (
    STOPPED,  STOPPED, STOPPED,  STOPPED,  STOPPED,  STOPPED,  STOPPED,  STOPPED, STOPPED, STOPPED, STOPPED,  STOPPED),
    LifecycleEvent.LOST: (
    FAILED,   FAILED,  FAILED,   FAILED,   FAILED,   FAILED,   FAILED,   FAILED,  FAILED,  FAILED,  STOPPED,  FAILED),
}
# fmt: on

ROUTED = frozenset((RAMPING, SERVING))
"""Replicas that get requests."""
COMING = frozenset((STARTING, WARMING))
"""Replicas that are on their way and cannot be used yet."""
SLEEPING = frozenset((DOZING, ASLEEP, WAKING))
"""Parked replicas that cannot be used before they have woken up."""
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
