"""Defines the states of a replica's health, the signs that change them, and what counts as which sign.

The table `NEXT` says what follows from a sign in each state, and nothing else changes a state.
"""

from enum import Enum, IntEnum

from headgate.model.outcome import Outcome


class HealthState(IntEnum):
    UP = 0
    EJECTED = 1
    PROBATION = 2
    RAMPING = 3


class Saw(Enum):
    """One thing seen of a replica."""

    SUCCESS = "success"
    FAILURE = "failure"
    STALL = "stall"
    """The replica fell silent. Counts twice: this has cost a client's patience too."""
    NEUTRAL = "neutral"
    """The client erred or left, or the replica said that it is busy: no fault of the replica's."""
    PROBE_OK = "probe ok"
    PROBE_FAILED = "probe failed"
    DEEP_OK = "deep ok"
    """A probe really generated a token."""
    DEEP_FAILED = "deep failed"


class Sign(Enum):
    """What all that was seen of a replica comes to."""

    NOTHING = "nothing new"
    FAILURES = "failures in a row"
    OUTLIER = "outlier"
    DOWN = "probe failed"
    RECOVERED = "probes in a row"
    COOLDOWN_OVER = "cooldown over"
    RAMP_OVER = "ramp over"


UP, EJECTED, PROBATION, RAMPING = HealthState

NEXT: dict[Sign, tuple[HealthState, HealthState, HealthState, HealthState]] = {
    # was            UP       EJECTED    PROBATION  RAMPING
    Sign.NOTHING: (UP, EJECTED, PROBATION, RAMPING),
    Sign.FAILURES: (EJECTED, EJECTED, EJECTED, EJECTED),
    Sign.OUTLIER: (EJECTED, EJECTED, PROBATION, EJECTED),
    Sign.DOWN: (UP, EJECTED, EJECTED, RAMPING),  # in use, one failed probe may be chance
    Sign.RECOVERED: (UP, EJECTED, RAMPING, RAMPING),
    Sign.COOLDOWN_OVER: (UP, PROBATION, PROBATION, RAMPING),
    Sign.RAMP_OVER: (UP, EJECTED, PROBATION, UP),
}

SAW: dict[Outcome, Saw] = {
    **dict.fromkeys(Outcome, Saw.NEUTRAL),
    Outcome.COMPLETED: Saw.SUCCESS,
    Outcome.REPLICA_FAILED: Saw.FAILURE,
    Outcome.REPLICA_STALLED: Saw.STALL,
    Outcome.ENGINE_FAILED: Saw.FAILURE,
}
"""What the end of a request at a replica says of that replica."""


def as_mermaid() -> str:
    """The table as a diagram for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> UP"]
    for was in HealthState:
        signs: dict[HealthState, list[str]] = {}
        for sign, after in NEXT.items():
            signs.setdefault(after[was], []).append(sign.value)
        lines += [f"    {was.name} --> {to.name}: {', '.join(why)}" for to, why in signs.items() if to is not was]
    return "\n".join(lines) + "\n"
