"""Simulates a replica step by step: the engine's own Batcher and block ledger, with a profile instead of a model.

mail ─→ plan ─→ the profile gives the duration ─→ done ─→ tell the gateway, and plan again
         └── quiet decode steps are one event; an arrival cuts it at the end of the current step
"""

from math import sqrt

from headgate.machine.profile import Noise, Profile
from headgate.machine.step_features import StepFeatures, shape
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.replica import ReplicaId
from headgate.model.sampling import Sampled, Sampling
from headgate.model.sequence import Sequence
from headgate.model.step import Step
from headgate.sim.chains import chain_of
from headgate.sim.fleet import Delays, SimGroup
from headgate.sim.gateway import SimGateway, SimTicket
from headgate.sim.longest import Longest
from headgate.sim.world import World

SPIN_S = 0.001
"""Seconds until an engine with waiting sequences that can do nothing looks again."""
_SAMPLING = Sampling()
"""The sampling settings of all sequences: there is no text."""


class Run:
    """A step in progress, or several equal ones in a row."""

    __slots__ = ("_ends", "_first_s", "_more_s", "began", "count", "prefills", "step")

    def __init__(
        self, step: Step, profile: Profile, made: StepFeatures, chance: Noise | None, overhead_s: float, now: float
    ) -> None:
        self.step = step
        self.prefills = made.prefill > 0
        self.began = now
        self.count = step.repeat
        self._ends: list[float] | None = None
        """When each step ends, if durations vary by chance; None: each step takes `_more_s` longer than the one
        before."""
        self._first_s = overhead_s + profile.step_s(made, chance)
        self._more_s = 0.0
        if step.repeat > 1:
            # The formula is linear in the context, and a decode step adds one token of context per sequence.
            growth_s = profile.cost.per_context * made.decodes
            residuals = profile.decode_only
            if chance is not None and residuals.runs:
                base_s, ends = profile.cost.seconds(made), [self._first_s]
                for index in range(1, step.repeat):
                    ends.append(ends[-1] + overhead_s + (base_s + index * growth_s) * chance.ratio(residuals))
                self._ends = ends
            else:
                self._more_s = growth_s * residuals.median

    @property
    def end(self) -> float:
        return self.began + self.took_s(self.count)

    def took_s(self, steps: int) -> float:
        """Returns the seconds from the beginning to the end of step number `steps`."""
        if steps <= 0:
            return 0.0
        if self._ends is not None:
            return self._ends[steps - 1]
        return steps * self._first_s + self._more_s * (steps * (steps - 1) // 2)

    @property
    def longest_s(self) -> float:
        """Seconds of the longest step of the run."""
        if self._ends is None or self.count == 1:
            return self._first_s + self._more_s * (self.count - 1)
        ends = self._ends
        return max(self._first_s, max(ends[index] - ends[index - 1] for index in range(1, self.count)))

    def steps_by(self, now: float) -> int:
        """Returns the number of steps that have ended by `now`."""
        passed_s = now - self.began
        if self._ends is None and self._more_s > 0:
            b = self._first_s - self._more_s / 2
            steps = int((sqrt(b * b + 2 * self._more_s * max(0.0, passed_s)) - b) / self._more_s)
        else:
            steps = int(passed_s / self._first_s) if self._ends is None else 0
        steps = max(0, min(self.count, steps) - 1)
        while steps < self.count and self.took_s(steps + 1) <= passed_s:
            steps += 1
        return steps


class _Open:
    """The replica's state of one sequence, beside the Batcher's."""

    __slots__ = ("one", "sequence", "ticket")

    def __init__(self, ticket: SimTicket, sequence: Sequence) -> None:
        self.ticket = ticket
        self.sequence = sequence
        self.one = Sampled(sequence.id, (ticket.number,))
        """The token that a step gives the sequence."""


class SteppedReplica:
    def __init__(
        self,
        world: World,
        gateway: SimGateway,
        replica_id: ReplicaId,
        member: SimGroup,
        delays: Delays,
        chance: Noise | None,
    ) -> None:
        self.id = replica_id
        self.alive = False
        self.tells = member.tells
        self.busy_s = 0.0
        """Seconds in which the replica computed."""
        self._world = world
        self._gateway = gateway
        self._profile = member.profile
        self._config = member.batch or member.profile.batch_config()
        self._overhead_s = member.step_overhead_s
        self._delays = delays
        self._chance = chance
        self._lives = 0
        self._ids = 0
        self._due = 0
        """The number of the event that ends the run; any other event is out of date."""
        self._forget()

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prefixes in the cache."""
        return self.batcher.ledger.cached_blocks * self.batcher.ledger.block_tokens

    @property
    def gauges(self) -> dict[str, float]:
        """The gauges that an engine reports: see replica/gauges.py."""
        return {"kv_ratio": self.batcher.ledger.owned_blocks / self.batcher.ledger.blocks}

    def _forget(self) -> None:
        self.batcher = self._profile.batcher(self._config)
        self._inbox: list[Sequence] = []
        self._open: dict[int, _Open] = {}
        self._leaving: list[int] = []
        """Cancelled sequences, which leave when the current step ends."""
        self._run: Run | None = None
        self._steps = 0
        self._longest = Longest()
        self._preempted = 0
        self._away: dict[int, float] = {}
        """Sequences preempted in the middle of their answers, each with the time of its last token."""

    # -- it lives and dies ---------------------------------------------------------------------------------

    def start(self, _: object = None) -> None:
        """Starts the replica: it answers from now on, with an empty cache."""
        self.alive = True
        self._lives += 1
        self._forget()

    def sleep(self) -> None:
        """Gives its memory back: the cache is lost. A cancelled request may be in its last step; then nothing is."""
        if not self.batcher.running and not self.batcher.waiting:
            self.batcher.forget_cached()

    def die(self, _: object = None) -> None:
        """Kills the replica, with all its requests."""
        self.alive = False
        self._due += 1
        run, lost = self._run, list(self._open.values())
        saying = [row.sequence.id for row in run.step.rows if row.sequence.decoding] if run is not None else []
        more = run.steps_by(self._world.now) if run is not None else 0
        self._forget()
        for one in lost:
            one.ticket.said += one.sequence.output_len + (more if one.sequence.id in saying else 0)
        for ticket in {one.ticket.number: one.ticket for one in lost}.values():
            if ticket.first_at is None:
                self._gateway.attempt_failed(ticket, Outcome.REPLICA_FAILED, "the connection was lost")
            else:
                self._gateway.ended(ticket, Outcome.REPLICA_FAILED)

    # -- requests ------------------------------------------------------------------------------------------

    def submit(self, ticket: SimTicket) -> None:
        self._world.at(self._world.now + self._delays.send_s, self._receive, ticket)

    def cancel(self, ticket: SimTicket) -> None:
        leaving = [number for number, one in self._open.items() if one.ticket is ticket]
        self._leaving += leaving
        if leaving and self._run is not None and self._run.count > 1:
            self._cut(self._run)

    def _let_leave(self) -> None:
        leaving, self._leaving = self._leaving, []
        for number in leaving:
            self._away.pop(number, None)
            if self._open.pop(number, None) is not None:
                self.batcher.cancel(number, self._world.now)
        self._inbox = [sequence for sequence in self._inbox if sequence.id in self._open]

    def _receive(self, ticket: SimTicket) -> None:
        if ticket.gone:
            return
        if not self.alive:
            self._gateway.attempt_failed(ticket, Outcome.REPLICA_FAILED, "the connection was refused", unsent=True)
            return
        if ticket.arrival.prompt_tokens + ticket.output > self.batcher.ledger.longest:
            self._gateway.ended(ticket, Outcome.INVALID)  # 400, context_length_exceeded
            return
        for _ in range(ticket.request.choices):
            sequence = self._sequence(ticket)
            self._open[sequence.id] = _Open(ticket, sequence)
            self._inbox.append(sequence)
        if self._run is None:
            self._next()
        elif self._run.count > 1:
            self._cut(self._run)

    def _sequence(self, ticket: SimTicket) -> Sequence:
        """Makes a sequence as Headgate's own engine makes it from what the gateway passes on."""
        self._ids += 1
        request, arrival, now = ticket.request, ticket.arrival, self._world.now
        dispatcher = self._gateway.dispatcher
        lane, neighbour = dispatcher.lanes[request.lane], dispatcher.tiers[request.tier].longest_neighbour
        prompt = max(1, arrival.prompt_tokens)
        return Sequence(
            id=self._ids,
            # The token's value does not matter, as long as no other request has the same.
            tokens=[ticket.number] * prompt,
            prompt_len=prompt,
            max_output=ticket.output,
            arrived=now,
            lane=request.lane if request.lane in LANES else "slow",
            priority=request.priority,
            first_token_by=now + (lane.ttft_target_s if request.ttft_s is None else request.ttft_s),
            gap_target_s=lane.gap_target_s if request.tpot_s is None else request.tpot_s,
            sampling=_SAMPLING,
            chain=chain_of(arrival, ticket.number, self._profile.block_tokens, ticket.output),
            expected=ticket.uncached,
            longest_neighbour=None if neighbour is None else max(neighbour, self.batcher.ledger.longest // 4),
        )

    # -- steps ---------------------------------------------------------------------------------------------

    def _next(self, _: object = None) -> None:
        """Plans the next step; called between two steps."""
        batcher, now = self.batcher, self._world.now
        self._run = None
        if self._leaving:
            self._let_leave()
        if self._inbox:
            self._take_mail()
        step = batcher.plan(now)
        if batcher.counts.swaps + batcher.counts.recomputes != self._preempted:
            self._note_preempted()
        self._due += 1
        if step is not None:
            self._run = run = Run(step, self._profile, shape(step), self._chance, self._overhead_s, now)
            self._world.at(run.end, self._end, self._due)
        elif batcher.waiting:
            self._world.at(now + SPIN_S, self._look_again, self._due)

    def _look_again(self, number: int) -> None:
        if number == self._due:
            self._next()

    def _take_mail(self) -> None:
        mail, self._inbox = self._inbox, []
        for sequence in mail:
            if sequence.id not in self._open:
                continue  # another choice of the same request was refused
            refused = self.batcher.add(sequence)
            if refused is not None:
                ticket = self._open[sequence.id].ticket
                for number in [number for number, one in self._open.items() if one.ticket is ticket]:
                    del self._open[number]
                    self.batcher.cancel(number, self._world.now)
                self._world.at(self._world.now + self._delays.back_s, self._refuse, (ticket, refused.reason))

    def _refuse(self, about: tuple[SimTicket, str]) -> None:
        self._gateway.attempt_failed(about[0], Outcome.QUEUE_FULL, about[1], refused=True)

    def _note_preempted(self) -> None:
        self._preempted = self.batcher.counts.swaps + self.batcher.counts.recomputes
        for sequence in self.batcher.waiting.values():
            if sequence.last_token_at is not None:
                self._away[sequence.id] = sequence.last_token_at

    def _cut(self, run: Run) -> None:
        """Ends the run after the current step: a request came or was cancelled."""
        steps = run.steps_by(self._world.now) + 1
        if steps < run.count:
            run.count = steps
            self._due += 1
            self._world.at(run.end, self._end, self._due)

    def _end(self, number: int) -> None:
        run = self._run
        if number != self._due or run is None:
            return
        now, step, count, known = self._world.now, run.step, run.count, self._open
        took_s = run.took_s(count)
        self.busy_s += took_s
        self._steps += count
        self._longest.add(self._steps, run.longest_s)
        if self._away:
            self._note_back(run)
        firsts: list[_Open] = []
        if count > 1:
            sampled = [Sampled(row.sequence.id, known[row.sequence.id].one.tokens * count) for row in step.rows]
        else:
            sampled = [known[row.sequence.id].one for row in step.rows if row.samples]
            if run.prefills:
                firsts = [
                    known[row.sequence.id] for row in step.rows if row.samples and row.sequence.first_token_at is None
                ]
                for one in firsts:
                    one.ticket.step = self._steps
        ended = self.batcher.done(step, sampled, frozenset(), now, took_s - count * self._overhead_s)
        over = [known.pop(sequence.id) for sequence in ended]
        self._next()
        if firsts or over:
            self._world.at(now + self._delays.back_s, self._tell, (self._lives, firsts, over))

    def _note_back(self, run: Run) -> None:
        """Notes the gap of each preempted sequence that generates again in this run."""
        for row in run.step.rows:
            if row.samples and row.sequence.id in self._away:
                silent_s = run.began + run.took_s(1) - self._away.pop(row.sequence.id)
                ticket = self._open[row.sequence.id].ticket
                ticket.gap_s = max(ticket.gap_s, silent_s)

    def _tell(self, news: tuple[int, list[_Open], list[_Open]]) -> None:
        life, firsts, over = news
        gateway = self._gateway
        for one in firsts:
            if life == self._lives and (self.alive or one in over) and one.ticket.first_at is None:
                one.ticket.cached = one.sequence.cached
                gateway.first(one.ticket)
        for one in over:
            ticket, sequence = one.ticket, one.sequence
            ticket.said += sequence.output_len
            ticket.still -= 1
            ticket.gap_s = max(ticket.gap_s, self._longest.since(ticket.step))
            if not ticket.still:
                gateway.ended(ticket, Outcome.COMPLETED)
