"""Sends requests to replicas: takes the slots, counts the prompts that are not prefilled yet, and gives all back.

For unstreamed answers the gateway never sees when the prompt is prefilled, so that is estimated.
"""

import random
from heapq import heappop, heappush
from math import inf
from typing import Final

from headgate.config.gateway import RoutingConfig
from headgate.model.event import Command, Dispatch, Ended
from headgate.model.replica import Load, ReplicaId
from headgate.model.request import Request
from headgate.policy.dispatch.hedge import Hedger
from headgate.policy.dispatch.queues import LaneQueue, ModelQueue, Passage, Queues, Race
from headgate.policy.dispatch.turns import Turns
from headgate.policy.replicas.affinity import Affinity
from headgate.policy.replicas.book import ReplicaBook
from headgate.policy.replicas.outlier import answer_token_s
from headgate.policy.replicas.route import RouteChoice, route
from headgate.policy.replicas.signs import SAW, Saw

TOKEN_S: Final = 0.0001
"""Seconds per prompt token from sending a prompt to its first token, before any first token came from its replica:
typical of many GPUs."""


class Prefills:
    """Counts prompts in prefill for each lane queue, for Turns, which sends low lanes' and long prompts only while few
    are (Unheard is for the replicas' load). An unstreamed answer reports nothing before its end: its prompt counts for
    as long as the replica's first tokens usually take (model/pace.py), given the prompt tokens outstanding there. A
    mean of seconds per token would be far too long: a short prompt behind a long one would make every long prompt count
    for minutes."""

    def __init__(self) -> None:
        self.wake_at = inf
        """When the next unstreamed prompt stops counting. inf: none is counted."""
        self._unheard: list[tuple[float, int, float, Passage]] = []
        """A heap of unstreamed requests: when each stops counting, and the send time that identifies the attempt.
        Attempts that are over stay in the heap until they are due."""
        self._number = 0

    def sent(self, passage: Passage, load: Load, now: float) -> None:
        """The request, whose prompt is prefilled in turn, is at this replica now."""
        self._count(passage, 1)
        if not passage.request.stream:
            self._number += 1
            tokens = passage.request.prompt_tokens
            first_s = load.pace.first_s(tokens, passage.before)
            due = now + (TOKEN_S * tokens if first_s is None else first_s)
            heappush(self._unheard, (due, self._number, passage.sent_at, passage))
            self.wake_at = self._unheard[0][0]

    def sent_twice(self, passage: Passage) -> None:
        """The request was hedged: a second replica has its prompt, too."""
        if passage.prefilling:
            self._count(passage, 1)

    def one_less(self, passage: Passage) -> None:
        """The request was at two replicas, and is at one of them now."""
        if passage.prefilling:
            self._count(passage, -1)

    def over(self, passage: Passage) -> bool:
        """The request's first token has come, or it is at no replica any more. Returns whether its prompt was
        counted."""
        counted = passage.prefilling
        if counted:
            self._count(passage, -counted)
        return counted > 0

    def pass_time(self, now: float) -> bool:
        """Stops counting prompts whose estimated prefill is over. Returns whether there were any."""
        unheard, some = self._unheard, False
        while unheard and unheard[0][0] <= now:
            _, _, sent_at, passage = heappop(unheard)
            if passage.sent_at == sent_at and self.over(passage):
                some = True
        self.wake_at = unheard[0][0] if unheard else inf
        return some

    def _count(self, passage: Passage, times: int) -> None:
        """Counts the prompt this many times more; negative: less."""
        passage.prefilling += times
        passage.state.prefills += times
        passage.state.prefill_tokens += times * passage.request.prompt_tokens


class Unheard:
    """Tells when the prompt of an unstreamed request moves from prefill to decoding in its replica's load, as a
    stream's does with its first token: after the time that the replica usually needs for the prompt and those before
    it. All unstreamed requests are here; Prefills has only those of low lanes and with long prompts, and counts by lane
    queue."""

    def __init__(self) -> None:
        self.wake_at = inf
        """When the next prompt is due. inf: none is."""
        self._due: list[tuple[float, int, float, Passage]] = []
        """A heap: when each prompt is due, and the send time that identifies the attempt. Attempts that are over stay
        in the heap until they are due."""
        self._number = 0

    def sent(self, passage: Passage, load: Load, now: float) -> None:
        """The request is at this replica now, and its prompt is counted there."""
        self._number += 1
        first_s = load.pace.first_s(passage.request.prompt_tokens, passage.before)
        due = now + (load.prefill_token_s * load.prefill_tokens if first_s is None else first_s)
        heappush(self._due, (due, self._number, passage.sent_at, passage))
        self.wake_at = self._due[0][0]

    def prefilled(self, now: float) -> list[Passage]:
        """Requests whose prompt is due and that are still at their replica, each once."""
        due, found = self._due, []
        while due and due[0][0] <= now:
            _, _, sent_at, passage = heappop(due)
            there = passage.sent_at == sent_at == passage.state.pool.sent.get(passage.request.id)
            if there and passage.race is None and passage.first_token_at is None and not passage.decodes:
                found.append(passage)
        self.wake_at = due[0][0] if due else inf
        return found


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
        affinity: Affinity,
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
        self._fleet: Final = book.index
        self._affinity: Final = affinity
        self._turns: Final = turns
        self._hedger: Final = hedger
        self._rng: Final = rng

    # -- which request goes next ------------------------------------------------------------------------------

    def pump(self, pool: ModelQueue, now: float, commands: list[Command]) -> None:
        """Sends the next requests for as long as this pool has free slots."""
        blocked: list[LaneQueue] = []
        kept = self._kept_room(pool, now) if pool.wide else None
        while pool.waiting and (turn := self._turns.next(pool, blocked, now)) is not None:
            best, request = turn
            passage = self._queues.passages[request.id]
            if self.place(passage, best, now, commands, kept):
                best.queue.pop(request.id)  # by id: the charge may have changed whose turn it is
                pool.waiting -= 1
                pool.wide -= request.choices > 1
                best.drain.left(now)
                best.drain.backlog(len(best.queue) > 0, now)
            else:
                blocked.append(best)

    def place_set_aside(self, now: float, commands: list[Command]) -> None:
        """Sends requests that full replicas have refused, if they may be tried again and find a free slot."""
        set_aside = self._queues.set_aside
        for passage in set_aside.due(now):
            state = passage.state
            if self._turns.may_go(state, passage.request, now) and self.place(passage, state, now, commands):
                set_aside.drop(passage.request.id)

    def _kept_room(self, pool: ModelQueue, now: float) -> KeptRoom | None:
        """The most urgent request for several choices, if no replica has as many free slots, and the replica that lacks
        fewest: its slots are kept as they come free, from all but more urgent lanes. None: there is no such request."""
        first: Request | None = None
        priority = 0
        for state in pool.lanes.values():
            if not state.long or (first is not None and state.lane.priority >= priority):
                continue
            request = state.queue.peek()
            if request is not None and request.choices > 1 and self._turns.wants_room(state, request, now):
                first, priority = request, state.lane.priority
        if first is None:
            return None
        near = self._fleet.roomiest(first.model, first.lane, first.choices, self._queues.passages[first.id].tried)
        return None if near is None else KeptRoom(first.id, priority, near)

    # -- sending it -------------------------------------------------------------------------------------------

    def place(
        self, passage: Passage, state: LaneQueue, now: float, commands: list[Command], kept: KeptRoom | None = None
    ) -> bool:
        """Takes slots of the best replica and appends the Dispatch. Returns whether there was one with free slots."""
        request, tried = passage.request, passage.tried
        if kept is not None and request.id != kept.request_id and state.lane.priority >= kept.priority:
            tried |= {kept.replica_id}
        choice = route(request, self._fleet, self._affinity, self.routing, now, self._rng, tried)
        if not isinstance(choice, RouteChoice):
            return False
        seat = self._fleet.seat(choice.replica_id)
        assert seat is not None
        load = seat.load
        passage.width = width = 1
        if request.choices > 1:
            passage.width = width = min(request.choices, seat.limit)
        passage.before = load.prefill_tokens
        self._book.sent(load, width, request.prompt_tokens)
        self._book.remember(request, choice.replica_id)
        passage.load, passage.sent_at, passage.first_token_at = load, now, None
        passage.attempts += 1
        if not request.stream:
            self.unheard.sent(passage, load, now)
        if self._hedger is not None:
            self._hedger.sent(passage, now)
            passage.since = now
        if self._turns.prefilled_in_turn(state, request):
            self.prefills.sent(passage, load, now)
        if passage.attempts == 1:
            state.pool.turn = max(state.pool.turn, state.tally.served)
            state.tally.served += request.tokens / state.tally.weight
            passage.charged = request.tokens - request.output_each
            state.queue.charge(request.tenant, request.weight, passage.charged)
        self._turns.runs(state, request.tenant, width)
        state.pool.turnover.sent(now)
        state.pool.sent[request.id] = now
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
            )
        )
        return True

    def second_choice(self, passage: Passage, load: Load, now: float) -> RouteChoice | None:
        """Another replica than the one that the request is at. None: there is none with a free slot. Dedicated replicas
        first: a hedge does not spill over to those of other lanes."""
        request, there = passage.request, passage.tried | {load.id}
        if not self._fleet.left(self._fleet.pools(request.model, request.lane), there):
            return None
        choice = route(request, self._fleet, self._affinity, self.routing, now, self._rng, there)
        return choice if isinstance(choice, RouteChoice) else None

    def place_second(self, passage: Passage, other: Load, now: float) -> None:
        """Takes a slot of a second replica for a request that is at one, too."""
        self.decodes(passage, False)  # it is unknown whether either has prefilled
        self._book.sent(other, 1, passage.request.prompt_tokens)
        self._turns.runs(passage.state, passage.request.tenant, 1)
        self.prefills.sent_twice(passage)
        passage.race, passage.hedged = Race(other, now), True

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
        self._book.first_token(load, passage.request.prompt_tokens, passage.before, passage.sent_at, now)
        self.decodes(passage, True)
        return passage.prefilling > 0 and self.prefills.over(passage)

    def decodes(self, passage: Passage, decodes: bool) -> None:
        """Marks whether the replica is past the request's prompt: its first token was heard, or is assumed to have been
        generated."""
        load, request = passage.load, passage.request
        if load is not None and passage.decodes is not decodes:
            passage.decodes = decodes
            times = 1 if decodes else -1
            self._book.decodes(load, times * request.prompt_tokens, times * request.max_output)

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
        tpot_s = token_s = None
        if ttft_s is None:
            token_s = answer_token_s(took_s, request.prompt_tokens, output)
        elif output > 1:
            tpot_s = (took_s - ttft_s) / (output - 1)
        if output > 0 and not request.stream:
            book.answered(load, took_s, output)
        book.succeeded(load, request.prompt_tokens, ttft_s, tpot_s, now, token_s)

    def _blame_suspects(self, passage: Passage, load: Load, now: float) -> None:
        """Counts a failure for each suspect: another replica has answered the request, so it was not at fault."""
        for replica_id in passage.suspects:
            if replica_id != load.id:
                self._book.saw(replica_id, Saw.FAILURE, now)
        passage.suspects = ()

    # -- letting it go ----------------------------------------------------------------------------------------

    def release(self, passage: Passage, load: Load, state: LaneQueue) -> int:
        """Releases the request's slots at the replica. Returns the slots in use there before, this request's
        included."""
        width = passage.width
        self._turns.runs(state, passage.request.tenant, -width)
        del state.pool.sent[passage.request.id]
        if passage.prefilling:
            self.prefills.over(passage)
        if passage.decodes:
            self._book.released(load, width, 0, passage.request.max_output)
        else:
            self._book.released(load, width, passage.request.prompt_tokens, 0)
        passage.decodes = False
        return load.requests + width

    def drop(self, passage: Passage, load: Load) -> None:
        """Releases the slot at one of two replicas; the dispatcher has heard no first token of either."""
        request, state = passage.request, passage.state
        self._turns.runs(state, request.tenant, -1)
        self.prefills.one_less(passage)
        # One slot: a request for several choices is at one replica only.
        self._book.released(load, 1, request.prompt_tokens, 0)
