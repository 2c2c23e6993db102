"""Reads from a dispatcher what a pool is scaled by: requests that wait, load of each replica, arriving tokens, late
first tokens. The live fleet and the simulated one read it here."""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace

from headgate.model.replica import ReplicaId
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.scaling.member import Demand, Work
from headgate.policy.scaling.scale import FULL

VELOCITY_S = 30.0
"""Seconds over which the rate of arriving tokens is averaged."""
P95_EVERY_S = 1.0
P95_WINDOW_S = 60
"""Seconds whose first tokens are judged, in parts of five."""
LINK_TOKENS = 256
"""Tokens that one remembered link of a conversation stands for, roughly."""


class ArrivalRate:
    """Tokens that arrive per second, over the last VELOCITY_S seconds."""

    def __init__(self) -> None:
        self._arrived: deque[tuple[float, int]] = deque()
        """(time, tokens arrived by then)."""

    def observe(self, tokens: int, now: float) -> float:
        """The rate, given that `tokens` have arrived by now since the beginning."""
        arrived = self._arrived
        arrived.append((now, tokens))
        while now - arrived[0][0] > VELOCITY_S:
            arrived.popleft()
        then, before = arrived[0]
        return (tokens - before) / max(1.0, now - then)


class PoolSignals:
    """Implements `policy/scaling/pool.PoolReader`."""

    def __init__(self, dispatcher: Dispatcher, ttft_p95: Callable[[str, float], float | None]) -> None:
        """`ttft_p95`: p95 of a lane's TTFT over the last P95_WINDOW_S seconds; None: no first token."""
        self.tokens_per_s = 0.0
        """Tokens that arrive per second, as last observed."""
        self._dispatcher = dispatcher
        self._ttft_p95 = ttft_p95
        self._rate = ArrivalRate()
        self._p95_at = -P95_EVERY_S
        self._p95_ratio: float | None = None
        self._lanes: Collection[str] | None = None
        """Lanes whose first tokens count; None: all."""

    def waiting(self) -> int:
        return self._dispatcher.queued()[0]

    def strained(self) -> bool:
        limit, requests = self._dispatcher.slots()
        return requests >= FULL * limit or self.waiting() > 0

    def demand(self, now: float) -> Demand:
        waiting, waiting_tokens = self._dispatcher.queued()
        self.tokens_per_s = self._rate.observe(self._dispatcher.arrived_tokens, now)
        held = self._dispatcher.wanted_awake(now)
        return Demand(waiting, waiting_tokens, self.tokens_per_s, self._ratio(now), held=held)

    def work(self, replica_id: ReplicaId, now: float) -> Work:
        seen = self._dispatcher.view(now).replicas.get(replica_id)
        if seen is None:
            return Work()
        cached, slots = seen.cached_links * LINK_TOKENS, max(1, int(seen.limit))
        use = replace(self._dispatcher.use_of(replica_id), slots=None)
        return Work(seen.requests, seen.tokens, cached, slots, seen.share, use.largest or 0.0, use.binding)

    def _ratio(self, now: float) -> float | None:
        """p95 TTFT over the promised one, in the lane that is furthest from its promise; None: no lane has a figure."""
        if now - self._p95_at >= P95_EVERY_S:
            self._p95_at = now
            ratios = [
                p95 / lane.ttft_target_s
                for lane in self._dispatcher.lanes.values()
                if (self._lanes is None or lane.name in self._lanes)
                and (p95 := self._ttft_p95(lane.name, now)) is not None
            ]
            self._p95_ratio = max(ratios, default=None)
        return self._p95_ratio
