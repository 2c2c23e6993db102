"""Decides whether a second replica is asked as well, for requests that have waited for their first token longer than
most.

A request that has been at its replica for longer than 95 of 100 of its lane is more likely stuck there than slow by
itself: behind a long prefill, a preemption, a hiccup of the machine. The request is sent to a second replica with a
free slot, and the first answer is used. The cost is bounded: for each lane, at any time since the start,

    hedges ≤ share · requests

and at most `BURST` hedges at once after a quiet hour. Where the budget does not cover all late requests, those not
hedged are checked again when they have waited twice as long, so that the latest are not passed over for good.

A request that was hedged counts from when it was first sent, whichever replica wins. So the lane's percentile does not
drift: the request was above the percentile, and stays above it.
"""

from bisect import bisect_left, insort
from collections import deque
from heapq import heappop, heappush
from math import ceil, inf
from typing import Final

from headgate.config.hedge import HedgeConfig
from headgate.policy.dispatch.passage import Passage

KEPT: Final = 1000
"""First-token times remembered per lane, the latest: enough for a p99, and few enough to be current."""
BURST: Final = 10.0
"""Maximum hedges that can be saved up."""
WHOLE: Final = 1.5
"""Multiple of its lane's percentile at which an unstreamed answer is late: up to there it may just be long, and a
second one, begun when the first is nearly complete, would never be first."""
LOOK_AGAIN_S: Final = 0.01
"""Minimum seconds until a request that could not be hedged is checked again."""
MOST_WATCHED: Final = 100_000
"""Maximum requests watched for their first token; any more are not hedged."""

WON: Final = "won"
LOST: Final = "lost"
TOOK_OVER: Final = "took_over"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
RESULTS: Final = (WON, LOST, TOOK_OVER, FAILED, CANCELLED)
"""The second replica answered first; the first did; the first failed, and the second took the request over; the second
failed; the request ended before either had answered."""


class Recent:
    """The latest durations, and a percentile of them."""

    __slots__ = ("_in_order", "_latest")

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._in_order: list[float] = []

    def add(self, took_s: float) -> None:
        if len(self._latest) >= KEPT:
            del self._in_order[bisect_left(self._in_order, self._latest.popleft())]
        self._latest.append(took_s)
        insort(self._in_order, took_s)

    def __len__(self) -> int:
        return len(self._latest)

    def percentile(self, share: float) -> float:
        """The duration that this share of the samples did not exceed; there must be at least one sample."""
        return self._in_order[max(0, ceil(share * len(self._in_order)) - 1)]


class LaneHedges:
    """One lane's hedge budget and latencies."""

    __slots__ = ("budget", "streamed", "whole")

    def __init__(self) -> None:
        self.budget = 0.0
        """Hedges that the lane may have now. 0 to begin with, so that the share holds from the first request on."""
        self.streamed = Recent()
        """Seconds from dispatch to first token."""
        self.whole = Recent()
        """Seconds from dispatch to the end of unstreamed answers."""

    def times(self, stream: bool) -> Recent:
        return self.streamed if stream else self.whole


class Hedger:
    """Finds late requests within a budget. The dispatcher reports what is sent and heard, and asks which requests are
    late."""

    def __init__(self, config: HedgeConfig) -> None:
        self.config: Final = config
        self.counts: dict[tuple[str, str], int] = {}
        """Hedges that are over, by lane and result."""
        self.lanes: dict[str, LaneHedges] = {name: LaneHedges() for name in sorted(config.lanes)}
        self._watched: list[tuple[float, int, float, Passage]] = []
        """A heap: when to check each request, and the send time that identifies the attempt. Attempts that are over
        stay in the heap until they come first."""
        self._number = 0

    def sent(self, passage: Passage, now: float) -> None:
        """The request is at a replica now, and was at none before."""
        request = passage.request
        lane = self.lanes.get(request.lane)
        if lane is None:
            return
        config = self.config
        if passage.since == -inf:  # however often it is sent, one request earns once
            lane.budget = min(BURST, lane.budget + config.share)
        times = lane.times(request.stream)
        if len(times) < config.least_samples or request.uncached_tokens > config.longest_prompt_tokens:
            return
        if request.choices > 1:
            return  # a hedge would cost as many requests as there are choices
        late_s = times.percentile(config.percentile) * (1.0 if request.stream else WHOLE)
        self._watch(passage, now + max(config.least_s, late_s))

    def heard(self, passage: Passage, now: float) -> None:
        """The first token of a stream, or all of an unstreamed answer, has come."""
        lane = self.lanes.get(passage.request.lane)
        if lane is not None:
            lane.times(passage.request.stream).add(now - passage.since)

    @property
    def wake_at(self) -> float:
        watched = self._watched
        while watched and not _waits(watched[0][3], watched[0][2]):
            heappop(watched)
        return watched[0][0] if watched else inf

    def late(self, now: float) -> list[Passage]:
        """Requests that have waited longer than their lane's percentile, each returned once per check."""
        found: list[Passage] = []
        watched = self._watched
        while watched and watched[0][0] <= now:
            _, _, sent_at, passage = heappop(watched)
            if _waits(passage, sent_at) and passage not in found:  # a request may have been sent twice in one moment
                found.append(passage)
        return found

    def look_again(self, passage: Passage, now: float) -> None:
        """There was no free slot, or no budget: checks the request again when it has waited twice as long."""
        self._watch(passage, now + max(LOOK_AGAIN_S, now - passage.since))

    def quiet(self, limit: int, used: int) -> bool:
        """Whether utilisation is low enough for a second prefill to disturb no other request."""
        return used < self.config.most_use * limit

    def spend(self, lane: str) -> bool:
        """Whether the budget covers one more hedge; a yes is charged."""
        known = self.lanes[lane]
        if known.budget < 1.0 - 1e-9:
            return False
        known.budget -= 1.0
        return True

    def over(self, passage: Passage, result: str) -> None:
        key = (passage.request.lane, result)
        self.counts[key] = self.counts.get(key, 0) + 1

    def _watch(self, passage: Passage, at: float) -> None:
        if not passage.hedged and not passage.begun and len(self._watched) < MOST_WATCHED:
            self._number += 1
            heappush(self._watched, (at, self._number, passage.sent_at, passage))


def _waits(passage: Passage, sent_at: float) -> bool:
    """Whether the attempt of `sent_at` is still under way, without a first token, and was not hedged."""
    return (
        passage.load is not None
        and passage.first_token_at is None
        and not passage.hedged
        and passage.sent_at == sent_at
    )
