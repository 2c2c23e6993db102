"""Measures load as a gateway sees it: tokens that arrive per second, and the recent times to first token."""

from collections import deque
from dataclasses import dataclass, field

from headgate.config.gateway import GatewayConfig
from headgate.model.request import Request
from headgate.sim.gateway import SimTicket
from headgate.sim.intake import SimIntake
from headgate.workload.arrival import Arrival

VELOCITY_S = 30.0
RECENT_S, RECENT = 60.0, 2048
"""The p95 is taken over the first tokens of the last 60 s, at most the latest 2048."""


class CountedIntake(SimIntake):
    """An intake that counts the tokens that arrive."""

    def __init__(self, config: GatewayConfig) -> None:
        super().__init__(config)
        self._arrived: deque[tuple[float, int]] = deque()
        """(second, tokens)."""

    def request(self, arrival: Arrival, number: int, now: float) -> tuple[Request, int]:
        made, output = super().request(arrival, number, now)
        second, arrived = float(int(now)), self._arrived
        tokens = made.tokens
        if arrived and arrived[-1][0] == second:
            tokens += arrived.pop()[1]
        arrived.append((second, tokens))
        if second - arrived[0][0] > VELOCITY_S:
            arrived.popleft()
        return made, output

    def tokens_per_s(self, now: float) -> float:
        return sum(tokens for second, tokens in self._arrived if now - second <= VELOCITY_S) / VELOCITY_S


@dataclass(slots=True)
class Firsts:
    """The recent times to first token, as a share of their lanes' targets."""

    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def add(self, ticket: SimTicket, now: float, target_s: float) -> None:
        first = ticket.first_at
        took_s = now - ticket.arrival.at_s if first is None else first - ticket.arrival.at_s
        refused = 10.0 if first is None else 0.0
        self.recent.append((now, max(refused, took_s / target_s)))

    def p95(self, now: float) -> float | None:
        ratios = sorted(ratio for at, ratio in self.recent if now - at <= RECENT_S)
        return ratios[int(0.95 * len(ratios))] if ratios else None
