"""Paces work that can wait for hours by the room that other lanes leave: how much may be sent, how much is put back.

The dispatcher already holds a low lane back as the fleet fills up (policy/dispatch/turns.py). This paces what is given
to the dispatcher, so that its queue holds only what is about to go: what waits in a queue can be refused, and what
waits in a file can't. And it puts work back that runs where another lane waits for a slot, since a line of a batch,
unlike a client's request, loses nothing by that but the time it ran.
"""

from typing import Final, NamedTuple

AHEAD: Final = 1
"""Lines per replica that may wait in the dispatcher's queue, so that a slot that comes free is taken at once."""
PREFILL_S: Final = 0.01
"""Seconds of prompts without a first token that a replica may have when it is given another line: counted in the tokens
that it has to compute, at its measured pace."""
QUIET_S: Final = 1.0
"""Seconds for which a crowd, or a waiting request of another lane, counts after it was last seen."""
CROWD: Final = 1 / 128
"""Share of a replica's slots, and at least one, that requests of other lanes have where they come in a crowd."""
BESIDE: Final = 1 / 32
"""Share of the slots, and at least one a replica, that lines may have beside a crowd: each makes every step of the
replica longer, and with it the others' first tokens."""

FULL: Final = "replicas are full, as far as batches may fill them"


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

    __slots__ = ("_crowded_at", "_waited_at")

    def __init__(self) -> None:
        self._waited_at = float("-inf")
        """When a request of another lane was last seen waiting."""
        self._crowded_at = float("-inf")
        """When requests of other lanes were last seen in a crowd."""

    def look(self, spare: Spare, now: float) -> LinePace:
        if not spare.replicas:
            return LinePace(0, 0, "no replica can be used")
        slots = spare.limit / spare.replicas
        if spare.used - spare.lines >= spare.replicas * max(1.0, CROWD * slots):
            self._crowded_at = now
        most = spare.limit
        if now - self._crowded_at < QUIET_S:
            most = int(spare.replicas * max(1.0, BESIDE * slots))
        end = max(0, spare.lines - most)
        if spare.others_waiting:
            self._waited_at = now
            free = max(0, spare.limit - spare.used)
            end = max(end, min(spare.lines, spare.others_waiting - free))
            return LinePace(0, end, "other lanes wait")
        if now - self._waited_at < QUIET_S:
            return LinePace(0, end, "other lanes waited a moment ago")
        if spare.lines + spare.lines_waiting >= most:
            return LinePace(0, end, "other lanes need the replicas" if most < spare.limit else FULL)
        if spare.prefill_s > PREFILL_S:
            return LinePace(0, end, "replicas have prompts to compute")
        send = min(AHEAD * spare.replicas - spare.lines_waiting, most - spare.lines - spare.lines_waiting)
        return LinePace(max(0, send), end, "" if send > 0 else FULL)
