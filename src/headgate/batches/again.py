"""Decides what becomes of a line after an answer: it has its result, or it is sent again, and when."""

from typing import Final, Literal, NamedTuple

from headgate.model.outcome import Outcome

FIRST_PAUSE_S: Final = 1.0
GROWTH: Final = 4.0
LONGEST_PAUSE_S: Final = 600.0
UNKNOWN_ATTEMPTS: Final = 5
"""Attempts at a line whose model no replica has: after a restart a model may take a minute or two to be back."""

WAITS: Final = frozenset(
    (
        Outcome.OVER_LIMIT,
        Outcome.LANE_FULL,
        Outcome.WOULD_WAIT_TOO_LONG,
        Outcome.WAITED_TOO_LONG,
        Outcome.NO_REPLICA,
        Outcome.QUEUE_FULL,
        Outcome.NOT_READY,
        Outcome.CANCELLED,
        Outcome.SLOW_CLIENT,
    )
)
"""Outcomes that say nothing of the line: there was no room for it, or it was put back."""
FAILS: Final = frozenset((Outcome.REPLICA_FAILED, Outcome.REPLICA_STALLED, Outcome.ENGINE_FAILED))
"""Outcomes that another attempt may better. OUT_OF_TIME is none of these: the same answer takes as long again."""


class Next(NamedTuple):
    what: Literal["over", "again", "wait"]
    """over: this is its result. again: it is sent again, as another attempt. wait: it is sent again, and its batch has
    a pause as well."""
    pause_s: float


OVER: Final = Next("over", 0.0)


def after(outcome: Outcome | None, attempts: int, most: int, retry_after_s: float | None) -> Next:
    """`outcome`: of the error; None: there was an answer, good or bad. `attempts`: how often the line was sent, this
    time included. `retry_after_s`: what the refusal says; None: nothing."""
    if outcome in WAITS:
        return Next("wait", min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, retry_after_s or 0.0)))
    most = min(most, UNKNOWN_ATTEMPTS) if outcome is Outcome.UNKNOWN_MODEL else most
    if (outcome in FAILS or outcome is Outcome.UNKNOWN_MODEL) and attempts < most:
        return Next("again", pause_s(attempts))
    return OVER


def pause_s(attempts: int) -> float:
    """Seconds until a line is sent again that was sent this often: 1, 4, 16, 64, 256, then 600."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * GROWTH ** min(attempts - 1, 8))
