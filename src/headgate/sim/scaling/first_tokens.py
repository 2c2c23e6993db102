"""Keeps the times to first token of a simulation in the windows that a gateway keeps them in."""

from collections.abc import Iterable

from headgate.measure.windows import TTFT, Window
from headgate.model.quantile import GRID
from headgate.policy.scaling.signals import P95_WINDOW_S
from headgate.sim.gateway import SimTicket


class FirstTokens:
    def __init__(self, lanes: Iterable[str], now: float) -> None:
        self.held_s: list[float] = []
        """Those of requests that waited for a replica to wake up, in seconds."""
        self._windows = {lane: Window(now, totals=True) for lane in lanes}

    def add(self, ticket: SimTicket, now: float) -> None:
        """Counts the ticket's first token when the request is over, as a gateway does; without one, nothing. An
        unstreamed answer has one if its engine reported it."""
        request = ticket.request
        told_at = None if ticket.told_s is None else ticket.since + ticket.told_s
        first_at = ticket.first_at if request.stream else told_at
        if first_at is not None:
            window = self._windows[request.lane]
            window.roll(now)
            window.current.counts.requests += 1
            if ticket.woke_s > 0:
                self.held_s.append(first_at - request.arrived)
            window.current.buckets[TTFT][GRID.index(first_at - request.arrived)] += 1

    def p95(self, lane: str, now: float) -> float | None:
        """p95 of the lane's TTFT over the last minute, in seconds; None: there was no first token."""
        window = self._windows[lane]
        window.roll(now)
        return window.sketch(TTFT, P95_WINDOW_S).quantile(0.95)
