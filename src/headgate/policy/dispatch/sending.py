"""Sends requests to replicas: takes the slots, learns from what is heard of each request, and gives all back."""

import random
from math import inf
from typing import Final

from headgate.config.gateway import RoutingConfig
from headgate.model.event import Command, Dispatch, Ended
from headgate.model.replica import Load, ReplicaId
from headgate.model.request import Request
from headgate.policy.dispatch.hedge import Hedger
from headgate.policy.dispatch.passage import LaneQueue, ModelQueue, Passage, Race
from headgate.policy.dispatch.prefills import Prefills, Unheard
from headgate.policy.dispatch.queues import Queues
from headgate.policy.dispatch.turns import Turns
from headgate.policy.promises.quotes import told
from headgate.policy.replicas.book import ReplicaBook
from headgate.policy.replicas.entry import IndexEntry
from headgate.policy.replicas.outlier import answer_token_s
from headgate.policy.replicas.route import RouteChoice, route
from headgate.policy.replicas.signs import SAW, Saw

TELLING_S: Final = 0.05
"""Seconds that a cached prefix must save at least for the time of a first token to tell whether it was there."""


class KeptRoom:
    """Free slots of one replica that are kept for a request until there is one for each of its choices."""

    __slots__ = ("priority", "replica_id", "request_id")

    def __init__(self, request_id: str, priority: int, replica_id: ReplicaId) -> None:
        self.request_id = request_id
        self.priority = priority
        """Priority of the request's lane: more urgent lanes still get a slot there."""
        self.replica_id = replica_id


class Sending:
    """Holds the requests that are at replicas. A slot is taken before anything is sent, and given back on every way
    out."""

    def __init__(
        self,
        queues: Queues,
        book: ReplicaBook,
        turns: Turns,
        hedger: Hedger | None,
        routing: RoutingConfig,
        rng: random.Random,
    ) -> None:
        self.routing = routing
        self.prefills: Final = Prefills()
        self.unheard: Final = Unheard()
        self._queues: Final = queues
        self._book: Final = book
        self._index: Final = book.index
        self._turns: Final = turns
        self._hedger: Final = hedger
        self._rng: Final = rng

    # -- which request goes next ------------------------------------------------------------------------------

    def pump(self, model_queue: ModelQueue, now: float, commands: list[Command]) -> None:
        """Sends the next requests for as long as this model has free slots."""
        blocked: list[LaneQueue] = []
        kept = self._kept_room(model_queue, now) if model_queue.wide else None
        while model_queue.waiting and (turn := self._turns.next(model_queue, blocked, now)) is not None:
            best, request = turn
            passage = self._queues.passages[request.id]
            if self.place(passage, best, now, commands, kept):
                best.queue.pop(request.id)  # by id: the charge may have changed whose turn it is
                model_queue.waiting -= 1
                model_queue.wide -= request.choices > 1
                best.drain.left(now)
                best.drain.backlog(len(best.queue) > 0, now)
            else:
                blocked.append(best)

    def place_set_aside(self, now: float, commands: list[Command]) -> None:
        """Sends requests that full replicas have refused, if they may be tried again and find a free slot."""
        set_aside = self._queues.set_aside
        for passage in set_aside.due(now):
            lane_queue = passage.lane_queue
            if self._turns.may_go(lane_queue, passage.request, now) and self.place(passage, lane_queue, now, commands):
                set_aside.drop(passage.request.id)

    def _kept_room(self, model_queue: ModelQueue, now: float) -> KeptRoom | None:
        """The most urgent request for several choices, if no replica has as many free slots, and the replica that lacks
        fewest: its slots are kept as they come free, from all but more urgent lanes. None: there is no such request."""
        first: Request | None = None
        priority = 0
        for lane_queue in model_queue.lanes.values():
            if not lane_queue.long or (first is not None and lane_queue.lane.priority >= priority):
                continue
            request = lane_queue.queue.peek()
            if request is not None and request.choices > 1 and self._turns.wants_room(lane_queue, request, now):
                first, priority = request, lane_queue.lane.priority
        if first is None:
            return None
        near = self._index.roomiest(first.model, first.lane, first.choices, self._queues.passages[first.id].tried)
        return None if near is None else KeptRoom(first.id, priority, near)

    # -- sending it -------------------------------------------------------------------------------------------

    def place(
        self, passage: Passage, lane_queue: LaneQueue, now: float, commands: list[Command], kept: KeptRoom | None = None
    ) -> bool:
        """Takes slots of the best replica and appends the Dispatch. Returns whether there was one with free slots."""
        request, tried = passage.request, passage.tried
        if kept is not None and request.id != kept.request_id and lane_queue.lane.priority >= kept.priority:
            tried |= {kept.replica_id}
        choice = route(request, self._index, self._book.prefixes, self.routing, now, self._rng, tried)
        if not isinstance(choice, RouteChoice):
            return False
        seat = self._index.seat(choice.replica_id)
        assert seat is not None
        load = seat.load
        passage.width = width = 1
        if request.choices > 1:
            passage.width = width = min(request.choices, seat.limit)
        passage.before = load.prefill_tokens
        passage.cached = choice.cached
        passage.uncached = uncached_at(request, choice)
        self._book.sent(load, width, passage.uncached, request.max_output, now)
        passage.remembered_at = self._book.remember(request, choice.replica_id, passage.uncached)
        passage.load, passage.sent_at, passage.first_token_at = load, now, None
        passage.attempts += 1
        if not request.stream:
            self.unheard.sent(passage, load, now)
        if self._hedger is not None:
            self._hedger.sent(passage, now)
            passage.since = now
        if self._turns.prefilled_in_turn(lane_queue, passage.uncached):
            self.prefills.sent(passage, load, now)
        if passage.attempts == 1:
            lane_queue.model_queue.turn = max(lane_queue.model_queue.turn, lane_queue.tally.served)
            lane_queue.tally.served += (passage.uncached + request.max_output) / lane_queue.tally.weight
            passage.charged = passage.uncached + request.max_output - request.output_each
            lane_queue.queue.charge(request.tenant, request.weight, passage.charged)
        self._turns.runs(lane_queue, request.tenant, width)
        lane_queue.model_queue.turnover.sent(now)
        lane_queue.model_queue.sent[request.id] = now
        quotes, passed_s = self._queues.quotes, now - request.arrived
        if passage.quote is None:
            target_s = lane_queue.lane.ttft_target_s
            passage.quote = quotes.sent(request.lane, passed_s, passage.uncached, passage.before, load, target_s)
        quotes.placed(request.lane, load)
        commands.append(
            Dispatch(
                request.id,
                choice.replica_id,
                passage.attempts - passage.spared,
                choice.reason,
                choice.scores,
                load.cold,
                passage.ahead,
                passage.stands_in,
                passage.uncached,
                request.lane if request.relegated else "",
                told(passage.quote),
                0.0 if not passage.held_s else self._woke_s(request, choice.replica_id),
            )
        )
        return True

    def _woke_s(self, request: Request, replica_id: ReplicaId) -> float:
        """Seconds of a held request's wait in which the replica woke up; 0: it was awake."""
        entry = self._book.entries[replica_id]
        return max(0.0, entry.awake_at - max(entry.woken_at, request.arrived))

    def resume(self, passage: Passage, lane_queue: LaneQueue, seat: IndexEntry, begun: bool, now: float) -> None:
        """Takes slots of the replica that has a request already, also if none are free. `begun`: its first token has
        come."""
        request, load = passage.request, seat.load
        passage.width = width = max(1, min(request.choices, seat.limit))  # none are usable before it was probed
        passage.before, passage.resumed = load.prefill_tokens, True
        self._book.sent(load, width, passage.uncached, request.max_output, now)
        passage.load, passage.sent_at = load, now
        passage.attempts, passage.begun = 1, begun
        if begun:
            passage.first_token_at = now
            self.decodes(passage, True)
        self._turns.runs(lane_queue, request.tenant, width)
        lane_queue.model_queue.sent[request.id] = now

    def second_choice(self, passage: Passage, load: Load, now: float) -> RouteChoice | None:
        """Another replica than the one that the request is at. None: there is none with a free slot. Dedicated replicas
        first: a hedge does not spill over to those of other lanes."""
        request, there = passage.request, passage.tried | {load.id}
        if not self._index.left(self._index.groups(request.model, request.lane), there):
            return None
        choice = route(request, self._index, self._book.prefixes, self.routing, now, self._rng, there)
        return choice if isinstance(choice, RouteChoice) else None

    def place_second(self, passage: Passage, other: Load, choice: RouteChoice, now: float) -> None:
        """Takes a slot of a second replica for a request that is at one, too."""
        self.decodes(passage, False)  # it is unknown whether either has prefilled
        uncached = uncached_at(passage.request, choice)
        self._book.sent(other, 1, uncached, passage.request.max_output, now)
        self._turns.runs(passage.lane_queue, passage.request.tenant, 1)
        self.prefills.sent_twice(passage)
        passage.race, passage.hedged = Race(other, now, uncached, choice.cached), True

    # -- what is heard of it ----------------------------------------------------------------------------------

    def pass_time(self, now: float) -> bool:
        """Takes prompts for prefilled that should be by now. Returns whether other prompts may be sent for them."""
        if self.unheard.wake_at <= now:
            for passage in self.unheard.prefilled(now):
                self.decodes(passage, True)
        return self.prefills.wake_at <= now and self.prefills.pass_time(now)

    def first_token(self, passage: Passage, load: Load, now: float) -> bool:
        """Takes in the first token. Returns whether other prompts may be sent for this one."""
        if self._hedger is not None and not passage.begun:
            self._hedger.heard(passage, now)
        passage.first_token_at = now
        passage.begun = True
        self._book.first_token(load, passage.sent_at)
        if not passage.cached.remembered:  # otherwise how much was computed is known at the end
            load.pace.see(passage.uncached, passage.before, now - passage.sent_at)
        self.decodes(passage, True)
        return passage.prefilling > 0 and self.prefills.over(passage)

    def decodes(self, passage: Passage, decodes: bool) -> None:
        """Marks whether the replica is past the request's prompt: its first token was heard, or is assumed to have been
        generated."""
        load, request = passage.load, passage.request
        if load is not None and passage.decodes is not decodes:
            passage.decodes = decodes
            times = 1 if decodes else -1
            self._book.decodes(load, times * passage.uncached, times * request.max_output)

    def judge_end(self, passage: Passage, load: Load, event: Ended, now: float) -> None:
        """Tells what this request's end says about its replica: its health, and how much it can take at once."""
        book, saw, usage = self._book, SAW[event.outcome], event.usage
        if saw is not Saw.SUCCESS:
            book.saw(load.id, saw, now)
            return
        if load.silent_tokens:
            book.heard_again(load)
        if passage.suspects:
            self._blame_suspects(passage, load, now)
        if load.ceiling < inf and passage.first_token_at is None:
            book.took(load, passage.sent_at)
        request, took_s = passage.request, now - passage.sent_at
        output = usage[1] // request.choices if usage else 0
        ttft_s = event.first_s
        if passage.first_token_at is not None:
            ttft_s = passage.first_token_at - passage.sent_at
        elif ttft_s is None and usage is not None and not usage[1]:
            ttft_s = took_s  # an embedding: all of it is prefill
        computed = self._computed(passage, load, event, ttft_s)
        tpot_s = token_s = None
        if ttft_s is None:
            token_s = answer_token_s(took_s, computed, output)
        elif output > 1:
            tpot_s = (took_s - ttft_s) / (output - 1)
        if output > 0 and not request.stream:
            book.answered(load, took_s, output)
        if ttft_s is not None and (passage.first_token_at is None or passage.cached.remembered):
            load.pace.see(computed, passage.before, ttft_s)
        book.succeeded(load, computed, ttft_s, tpot_s, now, token_s)

    def _computed(self, passage: Passage, load: Load, event: Ended, ttft_s: float | None) -> int:
        """Prompt tokens that the replica has really computed, as far as is known, in the gateway's own estimate of the
        prompt: replicas are compared by it, and one that counts more tokens than others is no quicker. What that says
        of its cache is learned: from its own count, or, where it gives none, from the time of the first token."""
        guess, usage, cached, whole = passage.cached, event.usage, event.cached, passage.request.prompt_tokens
        if usage is None or usage[0] <= 0:
            return passage.uncached
        if cached is not None:
            if guess.remembered:
                remembered = guess.remembered * usage[0] / max(1, whole)
                self._book.learn_cached(load.id, guess, min(1.0, cached / max(1.0, remembered)))
            return max(1, int(whole * passage.computed(usage, cached) / usage[0]))
        share = None if ttft_s is None or not guess.remembered else _cached_share(passage, load, ttft_s)
        if share is None:
            return passage.uncached
        self._book.learn_cached(load.id, guess, share)
        return max(1, whole - int(share * guess.remembered))

    def _blame_suspects(self, passage: Passage, load: Load, now: float) -> None:
        """Counts a failure for each suspect: another replica has answered the request, so it was not at fault."""
        for replica_id in passage.suspects:
            if replica_id != load.id:
                self._book.saw(replica_id, Saw.FAILURE, now)
        passage.suspects = ()

    # -- letting it go ----------------------------------------------------------------------------------------

    def release(self, passage: Passage, load: Load, lane_queue: LaneQueue) -> int:
        """Releases the request's slots at the replica. Returns the slots in use there before, this request's
        included."""
        width = passage.width
        self._turns.runs(lane_queue, passage.request.tenant, -width)
        del lane_queue.model_queue.sent[passage.request.id]
        if passage.prefilling:
            self.prefills.over(passage)
        if passage.decodes:
            self._book.released(load, width, 0, passage.request.max_output)
        else:
            self._book.released(load, width, passage.uncached, 0)
        passage.decodes = False
        return load.requests + width

    def drop(self, passage: Passage, load: Load, uncached_tokens: int) -> None:
        """Releases the slot at one of two replicas, where this many tokens of the prompt were to be computed; the
        dispatcher has heard no first token of either."""
        request, lane_queue = passage.request, passage.lane_queue
        self._turns.runs(lane_queue, request.tenant, -1)
        self.prefills.one_less(passage)
        # One slot: a request for several choices is at one replica only.
        self._book.released(load, 1, uncached_tokens, 0)


def uncached_at(request: Request, choice: RouteChoice) -> int:
    """Prompt tokens that the chosen replica is expected to compute; at least one, for the first token."""
    return max(1, request.prompt_tokens - int(choice.cached.tokens))


def _cached_share(passage: Passage, load: Load, ttft_s: float) -> float | None:
    """The share of the remembered prefix that the replica had, 0 to 1, if its first token took `ttft_s`. None: with and
    without the prefix, the first token would have come at nearly the same time."""
    remembered, whole = passage.cached.remembered, passage.request.prompt_tokens
    with_it = load.pace.first_s(max(1, whole - remembered), passage.before)
    without = load.pace.first_s(whole, passage.before)
    if with_it is None or without is None or without - with_it < TELLING_S + 0.5 * with_it:
        return None
    return min(1.0, max(0.0, (without - ttft_s) / (without - with_it)))
