"""Simulates a replica without its Batcher, from modelled service times and the replica's current load: the level
`gateway`, with which `headgate plan` and `headgate simulate --scale` work unless told otherwise.

Every sequence that decodes advances one token with each step; prompts go through one after the other, the urgent first,
a chunk in each step; the profile gives the duration of such a step. Equal steps are one event. sim/memory.py counts
the memory, what prompts share once where the machine's memory is paged; a prompt whose beginning another one computes
before it finds it. A batching engine behaves so while its memory suffices: nothing is swapped out here. Several choices
of a request are decoded beside each other and end together; their prompt is computed once. This model is for questions
about the gateway, with hundreds of thousands of requests; sim/replica.py is for questions about the engine.

Its contract, which tests/sim/test_service_contract.py keeps on recorded and drawn loads: p50, p90, p95 and p99 of TTFT,
TPOT and end-to-end time are within TOLERANCE of those of the Batcher, without the requests that are relegated or
refused; their shares are within 0.02, and so is the share of prompts that is found in caches. Gaps between tokens are
not: while long prompts push cached ones out to host memory, a step may wait for that, and here p95 of the longest gap
is as little as a third.
"""

from heapq import heapify, heappop, heappush, heapreplace
from math import sqrt

from headgate.machine.profile import Noise
from headgate.model.outcome import Outcome
from headgate.model.replica import ReplicaId
from headgate.policy.batching.urgency import lane_as_computed
from headgate.sim.fleet import Delays, SimGroup
from headgate.sim.gateway import SimGateway, SimTicket
from headgate.sim.longest import Longest
from headgate.sim.memory import ReplicaMemory
from headgate.sim.pace import ServicePace
from headgate.sim.world import World

TOLERANCE = 0.15
"""Share by which percentiles may differ from those that the Batcher gives for the same requests."""


class _Prompt:
    """A prompt to prefill."""

    __slots__ = ("begun", "done", "left", "ticket")

    def __init__(self, ticket: SimTicket) -> None:
        self.ticket = ticket
        self.begun = not ticket.arrival.prefix
        """Whether its beginning was looked up in the cache."""
        self.done = 0
        """Tokens whose KV is computed."""
        self.left = max(1, ticket.arrival.prompt_tokens)


class ServiceReplica:
    def __init__(
        self,
        world: World,
        gateway: SimGateway,
        replica_id: ReplicaId,
        member: SimGroup,
        delays: Delays,
        chance: Noise | None,
    ) -> None:
        profile = member.profile
        config = member.batch or profile.batch_config()
        self.id = replica_id
        self.alive = False
        self.tells = member.tells
        self.busy_s = 0.0
        """Seconds in which the replica computed."""
        self._world = world
        self._gateway = gateway
        self._delays = delays
        self._profile = profile
        self._overhead_s = member.step_overhead_s
        gap_s = min(lane.gap_target_s for lane in gateway.dispatcher.lanes.values())
        self._pace = ServicePace(profile, config, min(gap_s, config.gap_target_s or gap_s), chance)
        self._memory = (1.0 - config.headroom) * profile.kv_tokens
        speed = profile.load_bytes_per_s
        self._load_s = 0.0 if speed is None else profile.bytes_per_token / speed
        """Seconds that a token takes from host memory to the device."""
        self._longest_sequence = min(profile.context, profile.kv_tokens)
        self._due = 0
        """The number of the event that ends the run; any other event is out of date."""
        self._forget()

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt beginnings in the cache."""
        return self._kept.cached

    @property
    def gauges(self) -> dict[str, float]:
        """The gauges that an engine reports: see replica/gauges.py."""
        return {"kv_ratio": min(1.0, self._kept.taken / self._profile.kv_tokens)}

    def _forget(self) -> None:
        self._open: dict[int, SimTicket] = {}
        self._leaving: list[SimTicket] = []
        """Cancelled requests, which leave when the current step ends."""
        self._waiting: list[tuple[int, float, int, SimTicket]] = []
        """A heap of requests that wait for memory or a slot, the urgent first."""
        self._prompts: list[tuple[int, float, int, _Prompt]] = []
        """A heap of admitted prompts, the urgent first."""
        self._saying: list[tuple[int, int, SimTicket]] = []
        """A heap of answers, by the step that ends each."""
        self._context = 0
        """KV tokens that a decode step reads."""
        self._used = 0
        """Slots of the admitted requests."""
        self._decodes = 0
        """Sequences that advance one token with each step."""
        self._kept = ReplicaMemory(self._profile)
        self._longest = Longest()
        self._steps = 0
        # The run in progress.
        self._count = 0
        """Steps of the run; 0: nothing is in progress."""
        self._began = 0.0
        self._first_s = 0.0
        self._more_s = 0.0
        """Seconds by which each step is longer than the one before."""
        self._chunked: _Prompt | None = None
        """The prompt that is not finished by this run; None: none."""
        self._chunk = 0
        """Tokens of that prompt in each step."""
        self._through: list[SimTicket] = []
        """Requests whose prompts end with this step."""

    # -- it lives and dies ---------------------------------------------------------------------------------

    def start(self, _: object = None) -> None:
        """Starts the replica: it answers from now on, with an empty cache."""
        self.alive = True
        self._forget()

    def sleep(self) -> None:
        """Gives its memory back: the cache is lost. A cancelled request may be in its last step; then nothing is."""
        if not self._open:
            self._kept = ReplicaMemory(self._profile)

    def die(self, _: object = None) -> None:
        """Kills the replica, with all its requests."""
        self.alive = False
        self._due += 1
        steps = self._steps + (self._steps_by(self._world.now) if self._count else 0)
        said = {
            number: ticket.request.choices * max(1, ticket.output - max(0, last - steps))
            for last, number, ticket in self._saying
        }
        lost = self._open
        self._forget()
        for number, ticket in lost.items():
            if ticket.first_at is None:
                self._gateway.attempt_failed(ticket, Outcome.REPLICA_FAILED, "the connection was lost")
            else:
                ticket.said = said[number]
                self._gateway.ended(ticket, Outcome.REPLICA_FAILED)

    # -- requests ------------------------------------------------------------------------------------------

    def submit(self, ticket: SimTicket) -> None:
        world = self._world
        arrival = ticket.arrival
        if not self.alive:
            world.at(world.now + self._delays.send_s, self._refuse_connection, ticket)
            return
        if arrival.prompt_tokens + ticket.output > self._longest_sequence:
            world.at(world.now + self._delays.send_s, self._refuse_length, ticket)
            return
        request = ticket.request
        self._open[ticket.number] = ticket
        if self._fits(ticket):
            self._admit(ticket)
        else:
            heappush(self._waiting, (request.priority, request.first_token_by, ticket.number, ticket))
        if not self._count:
            self._count, self._began, self._first_s = 1, world.now, self._delays.send_s
            self._more_s, self._chunked = 0.0, None
            self._due += 1
            world.at(world.now + self._delays.send_s, self._wake, self._due)
        elif self._count > 1 and (self._chunked is None or self._prompts[0][3] is not self._chunked):
            self._cut()

    def cancel(self, ticket: SimTicket) -> None:
        if self._open.get(ticket.number) is ticket:
            self._leaving.append(ticket)
            if self._count > 1:
                self._cut()

    def _let_leave(self) -> None:
        leaving, self._leaving = self._leaving, []
        for ticket in leaving:
            if self._open.pop(ticket.number, None) is None:
                continue  # it has ended meanwhile
            inside = len(self._waiting)
            self._waiting = [one for one in self._waiting if one[3] is not ticket]
            choices = ticket.request.choices
            said = 0
            self._prompts = [one for one in self._prompts if one[3].ticket is not ticket]
            saying = [one for one in self._saying if one[2] is not ticket]
            if len(saying) < len(self._saying):
                said = self._steps - ticket.step
                self._context -= choices * (ticket.arrival.prompt_tokens + said)
                self._decodes -= choices
            if len(self._waiting) == inside:
                self._kept.release(ticket.arrival, ticket.number, ticket.output, choices, said)
                self._used -= choices
            self._saying = saying
        heapify(self._waiting)
        heapify(self._prompts)
        heapify(self._saying)
        self._fill()

    def _refuse_connection(self, ticket: SimTicket) -> None:
        self._gateway.attempt_failed(ticket, Outcome.REPLICA_FAILED, "the connection was refused", unsent=True)

    def _refuse_length(self, ticket: SimTicket) -> None:
        self._gateway.ended(ticket, Outcome.INVALID)  # 400, context_length_exceeded

    def _fits(self, ticket: SimTicket) -> bool:
        choices, slots = ticket.request.choices, self._profile.slots
        if self._used + min(choices, slots) > slots:
            return self._used <= 0
        needs = self._kept.needs(ticket.arrival, ticket.output, choices)
        return self._kept.taken + needs <= self._memory or self._used <= 0

    def _admit(self, ticket: SimTicket) -> None:
        request = ticket.request
        self._kept.hold(ticket.arrival, ticket.output, request.choices)
        self._used += request.choices
        heappush(self._prompts, (request.priority, request.first_token_by, ticket.number, _Prompt(ticket)))

    def _begin(self) -> float:
        """Looks the first prompt's beginning up in the cache, now that its turn has come: a prompt before it may just
        have computed it. Returns the seconds that loading takes from the host. A prompt with much more to compute than
        expected goes back to those as long as it is."""
        prompt = self._prompts[0][3]
        prompt.begun, ticket = True, prompt.ticket
        ticket.cached, loaded = self._kept.find(ticket.arrival)
        prompt.done = ticket.cached
        prompt.left -= ticket.cached
        request = ticket.request
        lane = lane_as_computed(prompt.left, ticket.uncached) if ticket.uncached else None
        if lane is not None and lane.priority > request.priority:
            by = max(request.first_token_by, ticket.since + lane.ttft_target_s)
            heapreplace(self._prompts, (lane.priority, by, ticket.number, prompt))
        return loaded * self._load_s

    # -- steps ---------------------------------------------------------------------------------------------

    def _wake(self, number: int) -> None:
        if number == self._due:
            self._next()

    def _next(self) -> None:
        """Plans the next step, and how many equal steps may follow."""
        if self._leaving:
            self._let_leave()
        saying, prompts = self._saying, self._prompts
        decodes = self._decodes
        if not decodes and not prompts:
            self._count = 0
            return
        pace = self._pace
        prefill = pairs = 0
        self._chunked = None
        count = saying[0][0] - self._steps if decodes else 1
        more_s = pace.per_context * decodes
        moves_s = 0.0
        if prompts:
            while not prompts[0][3].begun:
                moves_s += self._begin()
            first = prompts[0][3]
            room = pace.room(decodes, self._context, first.done)
            if first.left > room:
                self._chunked, self._chunk, prefill = first, room, room
                pairs = room * (2 * first.done + room)
                alike = (first.left - 1) // room
                count = 1 if moves_s else alike if not decodes or alike < count else count
                more_s += 2.0 * room * room * pace.per_pair
            else:
                count = 1
                prefill, pairs, packed_s = self._pack(room)
                moves_s += packed_s
        first_s, ratio = pace.step(prefill, decodes, self._context + decodes, pairs, count)
        self._first_s = first_s = first_s * ratio + self._overhead_s + moves_s
        self._more_s = more_s = more_s * ratio
        self._count = count
        self._began = now = self._world.now
        self._due += 1
        self._world.at(now + count * first_s + more_s * (count * (count - 1) // 2), self._end, self._due)

    def _pack(self, room: int) -> tuple[int, int, float]:
        """Takes prompts to their end as far as there is room, and a part of the next. Returns their tokens and pairs,
        and the seconds that loading takes."""
        prefill = pairs = 0
        moves_s = 0.0
        prompts = self._prompts
        while prompts and room:
            prompt = prompts[0][3]
            if not prompt.begun:
                moves_s += self._begin()
                continue
            part = prompt.left if prompt.left < room else room
            pairs += part * (2 * prompt.done + part)
            prompt.done += part
            prompt.left -= part
            prefill += part
            room -= part
            if not prompt.left:
                heappop(prompts)
                self._through.append(prompt.ticket)
                if prompt.ticket.arrival.prefix:  # now, so that the next prompt need not compute it again
                    self._kept.computed(prompt.ticket.arrival, prompt.ticket.arrival.prompt_tokens)
        return prefill, pairs, moves_s

    def _took_s(self, steps: int) -> float:
        return steps * self._first_s + self._more_s * (steps * (steps - 1) // 2)

    def _steps_by(self, now: float) -> int:
        """Returns the number of the run's steps that have ended by `now`."""
        passed_s, more_s = now - self._began, self._more_s
        if more_s > 1e-12:
            b = self._first_s - more_s / 2
            steps = int((sqrt(b * b + 2 * more_s * max(0.0, passed_s)) - b) / more_s + 1e-9)
        else:
            steps = int(passed_s / self._first_s + 1e-9)
        return min(steps, self._count)

    def _cut(self) -> None:
        """Ends the run after the current step: a request came or was cancelled."""
        steps = self._steps_by(self._world.now + self._delays.send_s) + 1
        if steps < self._count:
            self._count = steps
            self._due += 1
            self._world.at(self._began + self._took_s(steps), self._end, self._due)

    def _end(self, number: int) -> None:
        if number != self._due:
            return
        count, saying = self._count, self._saying
        self.busy_s += self._took_s(count)
        self._steps = steps = self._steps + count
        self._context += count * self._decodes
        self._longest.add(steps, self._first_s + self._more_s * (count - 1))
        if self._chunked is not None:
            self._chunked.done += count * self._chunk
            self._chunked.left -= count * self._chunk
        over: list[SimTicket] = []
        while saying and saying[0][0] <= steps:
            ticket = heappop(saying)[2]
            choices = ticket.request.choices
            self._context -= choices * (ticket.arrival.prompt_tokens + ticket.output - 1)
            self._decodes -= choices
            over.append(ticket)
        firsts, self._through = self._through, []
        for ticket in firsts:
            ticket.step = steps
            if ticket.output > 1:
                heappush(saying, (steps + ticket.output - 1, ticket.number, ticket))
                self._context += ticket.request.choices * ticket.arrival.prompt_tokens
                self._decodes += ticket.request.choices
            else:
                over.append(ticket)
        if over:
            self._let_go(over)
        self._next()
        # Told at once, as if the way back had passed: an event for each way back would cost as much as the step.
        for ticket in firsts:
            self._gateway.first(ticket, self._delays.back_s)
        for ticket in over:
            self._gateway.ended(ticket, Outcome.COMPLETED, self._delays.back_s)

    def _let_go(self, over: list[SimTicket]) -> None:
        for ticket in over:
            del self._open[ticket.number]
            choices = ticket.request.choices
            if ticket.arrival.turn:  # its session goes on with the answer
                self._kept.computed(ticket.arrival, ticket.arrival.prompt_tokens + ticket.output)
            self._kept.release(ticket.arrival, ticket.number, ticket.output, choices, ticket.output)
            self._used -= choices
            ticket.said = choices * ticket.output
            ticket.gap_s = max(ticket.gap_s, self._longest.since(ticket.step))
        self._fill()

    def _fill(self) -> None:
        while self._waiting and self._fits(self._waiting[0][3]):
            self._admit(heappop(self._waiting)[3])
