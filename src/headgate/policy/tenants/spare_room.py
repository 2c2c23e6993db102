"""Paces work that can wait for hours by the room that other lanes leave: how much may be sent, how much is put back.

The dispatcher already holds a low lane back as the fleet fills up (policy/dispatch/turns.py). This paces what is given
to the dispatcher, so that its queue holds only what is about to go: what waits in a queue can be refused, and what
waits in a file can't. And it puts work back that runs where another lane waits for a slot, since a line of a batch,
unlike a client's request, loses nothing by that but the time it ran.
"""

from typing import Final, NamedTuple

AHEAD: Final = 1
"""Lines per replica that may wait in the dispatcher's queue, so that a slot that comes free is taken at once."""
PREFILL_S: Final = 0.1
"""Seconds of prompts without a first token that a replica may have when it is given another line: counted in the tokens
that it has to compute, at its measured pace."""
QUIET_S: Final = 0.25
"""Seconds without a waiting request of another lane, until more is sent."""


class Spare(NamedTuple):
    """What a model's replicas have to do, for lanes apart."""

    replicas: int
    """Replicas that may be used."""
    limit: int
    """Requests that they may have at once."""
    used: int
    """Slots of these that are taken."""
    lines: int
    """Slots of these that the paced lane has."""
    lines_waiting: int
    """Requests of the paced lane that wait."""
    others_waiting: int
    """Requests of other lanes that wait."""
    prefill_s: float
    """Seconds of prompts without a first token, of the replica that has fewest."""


class LinePace(NamedTuple):
    send: int
    """Lines that may be sent now."""
    end: int
    """Lines to be ended and sent again later, those that ran shortest first."""
    reason: str
    """Why no more is sent, for people."""


class SpareRoom:
    """The pace of one model's lines."""

    __slots__ = ("_waited_at",)

    def __init__(self) -> None:
        self._waited_at = float("-inf")
        """When a request of another lane was last seen waiting."""

    def look(self, spare: Spare, now: float) -> LinePace:
        if not spare.replicas:
            return LinePace(0, 0, "no replica can be used")
        if spare.others_waiting:
            self._waited_at = now
            full = spare.limit - spare.used
            return LinePace(0, min(spare.lines, max(0, spare.others_waiting - full)), "other lanes wait")
        if now - self._waited_at < QUIET_S:
            return LinePace(0, 0, "other lanes waited a moment ago")
        if spare.prefill_s > PREFILL_S:
            return LinePace(0, 0, "replicas have prompts to compute")
        send = AHEAD * spare.replicas - spare.lines_waiting
        return LinePace(max(0, send), 0, "" if send > 0 else "replicas are full, as far as batches may fill them")
