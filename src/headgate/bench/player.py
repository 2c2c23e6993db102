"""Plays an open loop: sends each request when it is due, whatever became of the requests before."""

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from headgate.bench.alarm import alarm
from headgate.bench.asker import Asker, Prepared
from headgate.bench.shot import Shot
from headgate.model.clock import Clock
from headgate.model.quantile import Sketch
from headgate.report.arrivals import CUT_OFF
from headgate.report.results import Rows
from headgate.workload.arrival import Arrival, follow_up

HEAD_START_S = 0.05
"""Seconds from the start to the arrivals' time zero, for the first request to be prepared."""
MOST_REASONS = 100
MOST_LANES = 1000
MOST_MESSAGES = 20
NO_ROOM = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE), os.strerror(errno.EADDRNOTAVAIL))
LATE_S, LATE_SHARE, LAG_P99_S = 0.05, 0.01, 0.01
"""A client that sends more than 1 % of requests over 50 ms late, or whose p99 lag is over 10 ms, measures itself."""


@dataclass(slots=True)
class RunTally:
    """The counts and sketches of a run so far."""

    sent: int = 0
    completed: int = 0
    refused: int = 0
    failed: int = 0
    tokens: int = 0
    late: int = 0
    """Requests sent more than 50 ms after they were due."""
    no_room: int = 0
    """Requests not sent at all: this machine had no open file or no port left for another connection."""
    lag: Sketch = field(default_factory=Sketch)
    ttft: Sketch = field(default_factory=Sketch)
    e2e: Sketch = field(default_factory=Sketch)
    messages: dict[str, str] = field(default_factory=dict)
    """The server's first message for each reason."""
    reasons: set[str] = field(default_factory=set)
    lanes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests by (label that the load gives, lane that the server reports)."""
    prompt_tokens: int = 0
    """Prompt tokens of the answers that report cached tokens."""
    cached_tokens: int = 0

    @property
    def behind(self) -> str:
        """Why the figures are not to be trusted; empty: they are."""
        p99 = self.lag.quantile(0.99) or 0.0
        if self.no_room:
            return (
                f"{self.no_room} of {self.sent} requests could not be sent: this machine has no open file or port left "
                "for another connection; raise `ulimit -n`, or offer less"
            )
        if p99 <= LAG_P99_S and self.late <= LATE_SHARE * self.sent:
            return ""
        return (
            f"the client fell behind: requests were sent up to {(self.lag.max or 0.0) * 1e3:.0f} ms late (p99 "
            f"{p99 * 1e3:.1f} ms, {self.late} of {self.sent} more than {LATE_S * 1e3:.0f} ms), so these are its own "
            "figures, not the server's; offer less, or give it a core of its own"
        )


class Player:
    """Plays arrivals once. Built and used within one running loop."""

    def __init__(
        self,
        arrivals: Iterator[Arrival],
        asker: Asker,
        rows: Rows,
        tally: RunTally,
        clock: Clock,
        timeout_s: float = 600.0,
    ) -> None:
        self._arrivals = arrivals
        self._asker = asker
        self._rows = rows
        self.tally = tally
        self._clock = clock
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._flying: dict[Shot, None] = {}
        self._next: tuple[Shot, Prepared] | None = None
        self._later: list[tuple[float, int, Shot, Prepared]] = []
        """A heap of later turns of sessions, by when they are due."""
        self._turns = 0
        self._done: asyncio.Future[None] = self._loop.create_future()
        self.began = 0.0
        """The arrivals' time zero, on the clock."""
        self.started: float | None = None
        """When playing starts, on the clock: later than `began` if the first slice is not the first; None: not yet."""
        self.stopped = False

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    async def play(self, from_s: float = 0.0) -> None:
        """Plays until the last answer has arrived or all requests are cut off. `from_s`: the arrival time that is
        now."""
        self.started = self._clock() + HEAD_START_S
        self.began = self.started - from_s
        self._alarm = alarm(self._loop, self._clock, self._send_due)
        try:
            self._prepare()
            self._send_due()
            await self._done
        finally:
            self._alarm.close()
            for shot in list(self._flying):
                shot.cut_off(CUT_OFF)

    def stop(self) -> None:
        """Sends no more requests, and cuts off those in flight."""
        self.stopped = True
        self._next = None
        self._later.clear()
        for shot in list(self._flying):
            shot.cut_off(CUT_OFF)
        self._look()

    # ------------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Builds the next request before it is due."""
        arrival = next(self._arrivals, None)
        if arrival is None:
            self._next = None
            return
        asker = self._asker
        shot = Shot(arrival, self.began + arrival.at_s, asker.streams(arrival), self._clock, self._over)
        self._next = shot, asker.prepare(arrival)

    def _follow(self, before: Shot) -> None:
        """Builds the next turn of a session whose last one has ended."""
        arrival = follow_up(before.arrival, self._clock() - self.began)
        shot = Shot(arrival, self.began + arrival.at_s, self._asker.streams(arrival), self._clock, self._over)
        self._turns += 1
        heappush(self._later, (shot.due, self._turns, shot, self._asker.prepare(arrival)))
        self._send_due()

    def _send_due(self) -> None:
        while self._next is not None or self._later:
            follows = self._next is None or (bool(self._later) and self._later[0][0] < self._next[0].due)
            if follows:
                _, _, shot, prepared = self._later[0]
            else:
                assert self._next is not None
                shot, prepared = self._next
            lag = self._clock() - shot.due
            if lag < 0:
                self._alarm.set(shot.due)
                return
            shot.lag_s = lag
            self._flying[shot] = None
            shot.call = call = self._asker.send(prepared, shot)
            call.late_at = shot.due + self._timeout_s
            self._count(lag)
            if follows:
                heappop(self._later)
            else:
                self._prepare()
        self._look()

    def _count(self, lag: float) -> None:
        tally = self.tally
        tally.sent += 1
        tally.lag.add(lag)
        tally.late += lag > LATE_S

    def _over(self, shot: Shot) -> None:
        del self._flying[shot]
        tally, ok = self.tally, shot.kind == "ok"
        if ok:
            tally.completed += 1
            tally.tokens += shot.tokens
            tally.e2e.add(shot.e2e_s)
            if shot.cached_tokens is not None:
                tally.prompt_tokens += shot.prompt_tokens or 0
                tally.cached_tokens += shot.cached_tokens
            if shot.ttft_s is not None:
                tally.ttft.add(shot.ttft_s)
        else:
            self._blame(shot)
        arrival = shot.arrival
        known = (arrival.label, shot.lane)
        if shot.lane and (known in tally.lanes or len(tally.lanes) < MOST_LANES):
            tally.lanes[known] += 1
        self._rows_of(shot).add(
            at_s=arrival.at_s,
            lane=arrival.label,
            kind=shot.kind,
            why=shot.why,
            ttft_s=shot.ttft_s if ok else None,
            tpot_s=shot.tpot_s if ok else None,
            max_gap_s=shot.max_gap_s if ok else None,
            e2e_s=shot.e2e_s,
            queue_s=shot.queue_s,
            lag_s=shot.lag_s,
            prompt_tokens=arrival.prompt_tokens if shot.prompt_tokens is None else shot.prompt_tokens,
            output_tokens=shot.tokens,
            gaps=shot.gaps,
        )
        if ok and arrival.later and not self.stopped:  # an agent that gets no answer gives up
            self._follow(shot)
        self._look()

    def _rows_of(self, shot: Shot) -> Rows:
        return self._rows

    def _blame(self, shot: Shot) -> None:
        tally = self.tally
        if shot.kind == "refused":
            tally.refused += 1
        else:
            tally.failed += 1
        if any(text in shot.message for text in NO_ROOM):
            tally.no_room += 1
            shot.why = "the client has no open file or port left"
        if shot.why not in tally.reasons and len(tally.reasons) >= MOST_REASONS:
            shot.why = "other"
        tally.reasons.add(shot.why)
        if shot.message and len(tally.messages) < MOST_MESSAGES:
            tally.messages.setdefault(shot.why, shot.message)

    def _look(self) -> None:
        if self._next is None and not self._later and not self._flying and not self._done.done():
            self._done.set_result(None)
