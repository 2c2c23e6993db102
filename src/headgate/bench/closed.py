"""Plays a closed loop: a constant number of requests in flight, the next sent when one of them ends.

This is what people mean by "the p99 at 200 at once". A service meets something else: while the server stalls, a closed
loop sends nothing, so a stall is only as many slow requests as there are places. The open loop (player.py) sees all of
them.
"""

from collections.abc import Iterator
from itertools import count
from math import inf

from msgspec.structs import replace

from headgate.bench.asker import Asker
from headgate.bench.player import Player, RunTally
from headgate.bench.shot import Shot
from headgate.model.clock import Clock
from headgate.report.arrivals import CUT_OFF
from headgate.report.results import Rows
from headgate.workload.arrival import Arrival
from headgate.workload.load import Workload

A_TURN = 1000
PAUSE_S = 0.1
"""Seconds before the next request after a refused or failed one: without a pause, a server that refuses at once would
get an endless stream of requests."""
ENOUGH = 8
"""Requests that a run needs, beyond two per place, for its first request per place to be left out."""


def endless(text: str, seed: int) -> Iterator[Arrival]:
    """The workload's requests again and again, each round with other lengths. Their arrival times are not used."""
    workload = Workload(text, requests=A_TURN)
    for turn in count():
        yield from workload.arrivals(seed + turn * 1_000_003)


class ClosedPlayer(Player):
    """Keeps `places` requests in flight, for `lasts_s` seconds or `requests` requests."""

    def __init__(
        self,
        arrivals: Iterator[Arrival],
        asker: Asker,
        rows: Rows,
        tally: RunTally,
        clock: Clock,
        timeout_s: float = 600.0,
        *,
        places: int,
        lasts_s: float = inf,
        requests: int | None = None,
    ) -> None:
        super().__init__(arrivals, asker, rows, tally, clock, timeout_s)
        self.places = places
        self.left_out = 0
        """Requests left out of the rows: the first per place were sent together, as in no real load."""
        self._lasts_s = lasts_s
        self._left = requests
        self._finished = False
        self._pausing = 0
        self._early: set[Shot] = set()
        self._early_rows = Rows()

    async def play(self, from_s: float = 0.0) -> None:
        self.started = self.began = self._clock()
        try:
            for _ in range(self.places):
                self._send_next(early=True)
            self._look()
            await self._done
        finally:
            self._finished = True
            for shot in list(self._flying):
                shot.cut_off(CUT_OFF)
        if len(self._rows) >= self.places + ENOUGH:
            self.left_out = len(self._early_rows)
        else:
            self._rows.extend(self._early_rows)

    def stop(self) -> None:
        self._finished = True
        super().stop()

    # ------------------------------------------------------------------------------------------------------------

    def _send_next(self, early: bool = False) -> None:
        now = self._clock()
        arrival = None if self._over_by(now) else next(self._arrivals, None)
        if arrival is None:
            self._finished = True
            return
        if self._left is not None:
            self._left -= 1
        arrival = replace(arrival, at_s=now - self.began, later=())  # one request, not a session
        shot = Shot(arrival, now, self._asker.streams(arrival), self._clock, self._over)
        prepared = self._asker.prepare(arrival)
        if early:
            self._early.add(shot)
        self._flying[shot] = None
        shot.call = self._asker.send(prepared, shot)
        shot.call.late_at = now + self._timeout_s
        self._count(0.0)

    def _over_by(self, now: float) -> bool:
        return self._finished or now - self.began >= self._lasts_s or self._left == 0

    def _over(self, shot: Shot) -> None:
        if not self._finished:  # from the loop: a request that can't be sent at all would recurse here
            self._pausing += 1
            self._loop.call_later(0.0 if shot.kind == "ok" else PAUSE_S, self._again)
        super()._over(shot)
        self._early.discard(shot)

    def _again(self) -> None:
        self._pausing -= 1
        self._send_next()
        self._look()

    def _rows_of(self, shot: Shot) -> Rows:
        return self._early_rows if shot in self._early else self._rows

    def _look(self) -> None:
        if not self._flying and not self._pausing and not self._done.done():
            self._done.set_result(None)
