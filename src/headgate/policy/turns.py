"""Whose turn is it, and may it go?

Lanes with a reserve come first while they have less than it; of the others, whoever has had least for its weight. As
the fleet fills up, low lanes and long prompts are held back first, and tiers keep what is theirs.
"""

from math import ceil, inf, sqrt
from typing import Final

from headgate.model.lane import Lane
from headgate.model.request import Request
from headgate.model.tier import Tier
from headgate.policy.fleet import Fleet
from headgate.policy.passage import LONG_PROMPT, LaneState, Pool

PREFILLS_EACH: Final = 2
"""Prompts of low lanes, and long ones, that a replica may have at once; more, if they are less than LONG_PROMPT in all.
Others would end no sooner, and wait there with room that a more urgent one could use; one would leave it without work
until the next is sent."""
HEADROOM: Final = 2.0
"""Square roots of what a lane with a reserve has at work that lower lanes leave free for it, at most its reserve: by so
much it may grow by chance before anybody's room comes back."""


class Turns:
    def __init__(self, fleet: Fleet, lanes: dict[str, Lane], tiers: dict[str, Tier]) -> None:
        self._fleet = fleet
        self.reconfigure(lanes, tiers)

    def reconfigure(self, lanes: dict[str, Lane], tiers: dict[str, Tier]) -> None:
        self._lanes = lanes
        self._tiers = tiers
        self._reserved = any(tier.reserve > 0 for tier in tiers.values())
        self._first = min((float(lane.priority) for lane in lanes.values() if lane.reserve > 0), default=inf)
        """The priority of the first lane with a reserve; inf: there is none."""

    def next(self, pool: Pool, blocked: list[LaneState]) -> LaneState | None:
        """The lane to serve: one that has less than its reserve before all others, by priority; otherwise the one that
        has had least for its weight."""
        best: LaneState | None = None
        best_key = (inf, inf)
        for state in pool.lanes.values():
            lane = state.lane
            if not len(state.queue) or state in blocked:
                continue
            request = state.queue.peek()
            if request is None or not self.may_go(state, request):
                continue
            room, _ = self._fleet.capacity(pool.model, lane.name)
            owed = state.running < int(lane.reserve * room)
            key = (float(lane.priority), 0.0) if owed else (inf, state.tally.served)
            if best is None or key < best_key:
                best, best_key = state, key
        return best

    def may_go(self, state: LaneState, request: Request) -> bool:
        """Low lanes and long prompts are held back first as the fleet fills up; an idle one takes anything."""
        lane = state.lane
        if lane.concurrency is not None and state.running >= lane.concurrency:
            return False
        if self._reserved and self._kept_for_others(state):
            return False
        if lane.hold_above >= 1.0 and lane.priority <= self._first and request.prompt_tokens <= LONG_PROMPT:
            return True
        room, used = self._fleet.capacity(state.pool.model, lane.name)
        held = used >= lane.hold_above * room
        if not held and lane.priority > self._first and 2 * used >= room:
            held = room - used <= self._headroom(state, room)
        if held and state.running >= max(1, int(self._share(lane) * room)):
            return False  # it has its share, and what is left is for others
        return used == 0 or not self.prefilled_in_turn(state, request) or not self._enough_to_prefill(state)

    def prefilled_in_turn(self, state: LaneState, request: Request) -> bool:
        """Whether its prompt is sent only when replicas are done with others: a long one, and any of a low lane."""
        return request.prompt_tokens > LONG_PROMPT or state.lane.priority > self._first

    def _headroom(self, state: LaneState, room: int) -> int:
        """What is to stay free for lanes that go before this one and are at work, so that they need not wait."""
        most = 0
        for lane in self._lanes.values():
            if lane.reserve > 0 and lane.priority < state.lane.priority:
                running = 0
                for tier in self._tiers:
                    running += state.pool.tallies[lane.name, tier].running
                most = max(most, min(int(lane.reserve * room), ceil(HEADROOM * sqrt(running))))
        return most

    def _kept_for_others(self, state: LaneState) -> bool:
        """What is left of the room is what other tiers have in reserve. An idle fleet takes anybody."""
        room, used = self._fleet.capacity(state.pool.model, state.lane.name)
        kept = 0
        for tier in self._tiers.values():
            if tier.name != state.tier and tier.reserve > 0:
                tallies = state.pool.tallies
                running = sum([tallies[lane, tier.name].running for lane in self._lanes])
                kept += max(0, int(tier.reserve * room) - running)
        return used > 0 and room - used <= kept

    def _share(self, lane: Lane) -> float:
        return lane.weight / sum(other.weight for other in self._lanes.values())

    def _enough_to_prefill(self, state: LaneState) -> bool:
        """Whether replicas have as much as they need of what is prefilled in turn. A short prompt does not wait for its
        own lane's long ones."""
        prefills = tokens = 0
        for other in state.pool.lanes.values():
            if other.prefills and (state.long or not other.long or other.lane is not state.lane):
                prefills += other.prefills
                tokens += other.prefill_tokens
        replicas = self._fleet.usable(state.pool.model, state.lane.name)
        return prefills >= PREFILLS_EACH * replicas and tokens >= LONG_PROMPT * replicas
