"""Composes the gateway's choices: events in, commands out, and one `wake_at`.

The backlog is held here, so that replicas' own queues stay near empty: each replica has a limited number of slots, and
a request that finds none free waits in its lane. Gateway and simulator drive this same object; single tokens pass it
by.

An arrival is charged to its tenant's limits, queued in its lane, and sent at once if there is a free slot. If not, and
it is predicted to wait past its bound, it is refused at once; if it reaches the bound, it is refused then. Every
request that arrives ends in exactly one Refuse or is reported by exactly one Ended.
"""

import random
from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from headgate.config.gateway import RoutingConfig, TimeoutsConfig
from headgate.model.event import (
    Arrived,
    AttemptFailed,
    Command,
    Dispatch,
    Ended,
    Event,
    FirstToken,
    Hedge,
    HedgeWon,
    Leased,
    Probed,
    Refuse,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaParked,
    Shared,
)
from headgate.model.labels import plain
from headgate.model.lane import Lane
from headgate.model.outcome import Outcome
from headgate.model.record import Ahead
from headgate.model.replica import Load, Replica, ReplicaId
from headgate.model.request import Request
from headgate.model.tier import TIERS, Tier
from headgate.policy.dispatch.admit import come_back_at
from headgate.policy.dispatch.fair import FairQueue
from headgate.policy.dispatch.hedge import CANCELLED, FAILED, LOST, TOOK_OVER, WON, Hedger
from headgate.policy.dispatch.limits import Grant, OverLimit, RateLimiter, RateView, TenantLimits, over_message
from headgate.policy.dispatch.passage import LONG_PROMPT, KeptRoom, LaneQueue, ModelQueue, Passage, Race, TierTally
from headgate.policy.dispatch.prefills import Prefills, Unheard
from headgate.policy.dispatch.retry import RetryBudget
from headgate.policy.dispatch.shared_limits import SharedLimits
from headgate.policy.dispatch.standing_room import NO_TENANTS, Comers, NamedTenants
from headgate.policy.dispatch.turns import Turns
from headgate.policy.dispatch.view import (
    DispatcherView,
    LaneCounts,
    ReplicaView,
    hedge_counts,
    held_at_replicas,
    held_in_queues,
    queued_tokens,
    replica_view,
    replica_views,
    shared_view,
)
from headgate.policy.replicas.affinity import Affinity
from headgate.policy.replicas.book import ReplicaBook
from headgate.policy.replicas.full import SetAside
from headgate.policy.replicas.health import Health, Standing
from headgate.policy.replicas.outlier import About, answer_token_s
from headgate.policy.replicas.route import ALGORITHMS, RouteChoice, route
from headgate.policy.replicas.signs import SAW, Saw
from headgate.policy.replicas.utilisation import Said, Use, Utilisation

TIMEOUTS: Final = TimeoutsConfig()
TOKEN_S: Final = 0.025
"""Seconds per output token for which a slot is assumed to be held, before any request has ended."""
MOST_REFUSALS: Final = 32
"""Refusals by full replicas after which a request is refused for good and its client told so: a proxy in front of a
replica may say that it is full whenever it breaks off, and this request may be why."""
MOST_POOLS: Final = 64
"""Maximum models whose queues, running requests and slot times are kept; more are kept only while they have
requests."""
PINNED: Final = (
    "no replica of the version that was named is usable any more: come back, or ask without x-headgate-version"
)
STEADY_S: Final = 10.0
"""Seconds of streaming after which a failure is taken to be the replica's: the request's attempts count anew."""


class Dispatcher:
    def __init__(
        self,
        lanes: dict[str, Lane],
        tenants: dict[str, TenantLimits],
        routing: RoutingConfig,
        health: Health,
        rng: random.Random,
        *,
        retries: RetryBudget | None = None,
        no_replica_wait_s: float = TIMEOUTS.no_replica_wait_s,
        tiers: dict[str, Tier] | None = None,
        hedger: Hedger | None = None,
        expected: NamedTenants = NO_TENANTS,
    ) -> None:
        self.lanes = lanes
        self.tiers = tiers or TIERS
        self.tenants = tenants
        self.health = health
        self.affinity = Affinity()
        self.book = ReplicaBook(health, self.affinity, ALGORITHMS[routing.algorithm].order)
        self.fleet = self.book.index
        self._full = self.book.full
        self._set_aside = SetAside()
        self.limits: RateLimiter = RateLimiter()
        self.retries = retries or RetryBudget()
        self.hedger = hedger
        """None: no request is hedged."""
        self.passages: dict[str, Passage] = {}
        self.pools: dict[str | None, ModelQueue] = {}
        self.unfinished: list[Command] = []
        """Commands that the last event has led to so far."""
        self.wake_at = inf
        self._routing = routing
        self._rng = rng
        self._no_replica_wait_s = no_replica_wait_s
        self._turns = Turns(self.fleet, self.pools, self.lanes, self.tiers, expected)
        self._prefills = Prefills()
        self._unheard = Unheard()
        self._versions: dict[str, dict[str, Passage]] = {}
        """Requests with a fallback model, or pinned to a version, by the model that they ask for and by id."""
        self.arrived_tokens = 0
        """Prompt and expected output tokens of all admitted requests, from which the scaler computes the arrival
        rate."""
        self.use = Utilisation(self.fleet, self.held_up)
        self._seen: DispatcherView | None = None
        """The last view that was made. None: something has happened since."""

    def on(self, event: Event, now: float) -> list[Command]:
        """Handles one event and returns the commands that follow. If it raises, the commands decided until then are in
        `unfinished`: slots have been taken for them."""
        commands: list[Command] = []
        self.unfinished = commands
        self._seen = None
        # Not a match statement: where this is compiled, its patterns look every field up by name.
        if self._unheard.wake_at <= now:
            for passage in self._unheard.prefilled(now):
                self._decodes(passage, True)
        if self._prefills.wake_at <= now and self._prefills.pass_time(now):
            self._pump_all(now, commands)
        if isinstance(event, Arrived):
            self._arrive(event.request, now, commands)
        elif isinstance(event, FirstToken):
            self._first_token(event.request_id, now, commands)
        elif isinstance(event, Ended):
            self._end(event, now, commands)
        elif isinstance(event, AttemptFailed):
            self._attempt_failed(event, now, commands)
        elif isinstance(event, Probed):
            if self.book.probed(event.replica_id, event.ok, event.deep, now):
                self._pump_all(now, commands)
        elif isinstance(event, ReplicaJoined):
            self.book.join(event.replica, now)
            self._pump_all(now, commands)
        elif isinstance(event, HedgeWon):
            self._hedge_won(event, now, commands)
        elif isinstance(event, ReplicaLeft):
            self.book.leave(event.replica_id)
            if self._versions:
                self._pump_all(now, commands)
        elif isinstance(event, ReplicaParked):
            self.book.park(event.replica_id, event.parked, event.ramp, now)
            self._pump_all(now, commands)
        elif isinstance(event, Leased):
            self._lease(event, now)
        elif isinstance(event, Shared):
            self._share_with(event)
            self._pump_all(now, commands)
        else:
            self._tick(now, commands)
        self._set_alarm()
        return commands

    # -- what others ask ----------------------------------------------------------------------------------------

    def view(self, now: float) -> DispatcherView:
        """What waits and runs, and how full the replicas are, as one frozen value. It is made once for all who ask at
        one moment, and never for a request: what is asked per request has a method of its own."""
        seen = self._seen
        if seen is None or seen.at != now:
            self.use.look(now)
            self._seen = seen = DispatcherView(
                now,
                {name: self._counts(lane) for name, lane in self.lanes.items()},
                replica_views(self.book, self.use, now),
                self.use.read(),
                hedge_counts(self.hedger),
                shared_view(self.limits, self.book.part),
                self.arrived_tokens,
                self.health.ejections,
            )
        return seen

    def _counts(self, lane: Lane) -> LaneCounts:
        tokens = queued_tokens(self.pools.values(), lane.name)
        return LaneCounts(lane, self.waiting(lane.name), self.running(lane.name), tokens)

    def waiting(self, lane: str) -> int:
        states = (state for pool in self.pools.values() for state in pool.lanes.values() if state.lane.name == lane)
        return sum(len(state.queue) for state in states) + self._set_aside.of(lane)

    def running(self, lane: str) -> int:
        return sum(pool.tallies[lane, tier].running for pool in self.pools.values() for tier in self.tiers)

    def queued(self) -> tuple[int, int]:
        """(requests, tokens) in all queues, without requests that full replicas refused."""
        return sum(pool.waiting for pool in self.pools.values()), queued_tokens(self.pools.values())

    @property
    def under_way(self) -> int:
        """Requests that wait or run."""
        return len(self.passages)

    def holdings(self) -> dict[str, int]:
        """Counts by name of what requests hold, each counted where it is kept. All are 0 while no request is under
        way."""
        return {
            "passages": len(self.passages),
            "reservations": self.limits.reserved,
            **held_in_queues(self.pools.values()),
            **held_at_replicas(self.fleet.seats()),
        }

    def held_up(self) -> bool:
        """Whether requests wait for usable replicas, and not for a cap of their own lane or tenant."""
        for pool in self.pools.values():
            for state in pool.lanes.values() if pool.waiting else ():
                cap = state.lane.concurrency
                waits = state.queue.peek() is not None and (cap is None or state.running < cap)
                if waits and self.fleet.usable(pool.model, state.lane.name):
                    return True
        return False

    def computed(self, request_id: str, now: float) -> int:
        """Output tokens that the replica has probably generated for each choice of an unstreamed request: the time
        since the request was sent, at the replica's pace. 0: no replica has the request."""
        passage = self.passages.get(request_id)
        if passage is None or passage.load is None:
            return 0
        load = passage.load
        token_s = load.tpot_s if load.answer_token_s is None else load.answer_token_s
        return int((now - passage.sent_at) / max(token_s, 1e-6))

    # -- what others ask about replicas ---------------------------------------------------------------------------

    def replicas(self) -> list[Replica]:
        """A copy of what is known of every replica, with the names that were found out; safe from any thread."""
        return self.fleet.replicas()

    def replica(self, replica_id: ReplicaId, now: float) -> ReplicaView | None:
        """One replica as it is now. None: it has left."""
        entry = self.book.entries.get(replica_id)
        seat = None if entry is None else entry.seat
        return None if entry is None or seat is None else replica_view(entry, seat, self.book, self.use, now)

    def standing(self, replica_id: ReplicaId) -> Standing | None:
        """The state of a replica's health. None: it has left."""
        return self.book.standing(replica_id)

    def sent_to(self, replica_id: ReplicaId) -> float | None:
        """A number that grows with each request that the replica is sent. None: it has requests now, or has left."""
        seat = self.fleet.seat(replica_id)
        return None if seat is None or seat.requests else seat.turn

    def room(self, model: str | None) -> tuple[int, int, int]:
        """(limit, used, waiting) of a model: requests that its usable replicas may have at once, those of these slots
        that are taken, and requests that wait for it. None: of models that no replica names."""
        limit, used = self.fleet.capacity(model)
        pool = self.pools.get(model if model is not None and self.fleet.by_name(model) else None)
        return limit, used, 0 if pool is None else pool.waiting

    def slots(self) -> tuple[int, int]:
        """(limit, requests) of all usable replicas."""
        limit = requests = 0
        for seat in self.fleet.seats():
            if seat.load.usable > 0:
                limit += int(seat.load.limit)
                requests += seat.load.requests
        return limit, requests

    def with_room(self, model: str) -> list[ReplicaId]:
        """Usable replicas that name this model and have a free slot."""
        loads = [seat.load for seat in self.fleet.seats()]
        return [load.id for load in loads if load.usable > 0 and load.room > 0 and model in load.replica.names]

    def any_usable(self) -> bool:
        return any(seat.load.usable > 0 for seat in self.fleet.seats())

    def unserved(self, replica_ids: Iterable[ReplicaId]) -> tuple[list[str], list[str]]:
        """(lanes, models) that these replicas serve, and no usable replica does."""
        lanes: dict[str, None] = {}
        models: dict[str, None] = {}
        for replica_id in replica_ids:
            seat = self.fleet.seat(replica_id)
            if seat is not None:
                lanes.update(dict.fromkeys(sorted(seat.load.replica.lanes)))
                models.update(dict.fromkeys(sorted(seat.load.replica.names)))
        return (
            [name for name in lanes if name in self.lanes and not self.fleet.serves_lane(name)],
            [name for name in models if not self.fleet.usable(name)],
        )

    def utilisation(self, now: float) -> Use:
        """Utilisation of the whole fleet, of which what is measured over time is measured up to now."""
        self.use.look(now)
        return self.use.read()

    def use_of(self, replica_id: ReplicaId) -> Use:
        """Utilisation of one replica, as last measured. Nothing is known of a replica that may not be used."""
        return self.use.of(replica_id)

    def gauges_from(self, said: Callable[[ReplicaId], Said]) -> None:
        """Sets where to read what an engine reports of its own load."""
        self.use.said = said

    # -- what others ask about tenants ----------------------------------------------------------------------------

    def limits_of(self, tenant: str) -> TenantLimits | None:
        """None: the tenant has no limits per minute."""
        return self.tenants.get(tenant)

    def over_limit(self, tenant: str, now: float) -> OverLimit | None:
        """The refusal of a request for a single token. None: the tenant's limits would admit it. Reserves nothing."""
        limits = self.tenants.get(tenant)
        return None if limits is None else self.limits.look(tenant, limits, 1, now)

    def rates(self, tenant: str, now: float) -> RateView | None:
        """What is left of the tenant's limits. None: the tenant has no limits per minute."""
        limits = self.tenants.get(tenant)
        return None if limits is None else self.limits.view(tenant, limits, now)

    @property
    def shared_limits(self) -> SharedLimits | None:
        """The limits shared with other gateways, for the driver that shares them. None: they are not shared."""
        return self.limits if isinstance(self.limits, SharedLimits) else None

    @property
    def part(self) -> tuple[float, float]:
        """Range of each replica's slots that this gateway may use, 0 to 1."""
        return self.book.part

    # -- a changed config -----------------------------------------------------------------------------------------

    def reconfigure(
        self,
        lanes: dict[str, Lane],
        tenants: dict[str, TenantLimits],
        tiers: dict[str, Tier],
        routing: RoutingConfig,
        expected: NamedTenants = NO_TENANTS,
    ) -> None:
        """Applies a new config from now on. A lane that is no longer named stays for the requests in it; tiers are
        always the same two."""
        if ALGORITHMS[routing.algorithm].order != self.fleet.order:
            raise ValueError(f"{routing.algorithm} needs another index than {self._routing.algorithm}: start again")
        self._seen = None
        self.lanes.update(lanes)
        self.tenants, self.tiers, self._routing = tenants, tiers, routing
        self._turns.reconfigure(self.lanes, tiers, expected)
        for pool in self.pools.values():
            for name, lane in self.lanes.items():
                if (name, next(iter(tiers)), False) not in pool.lanes:
                    self._open_lane(pool, lane)
            for state in pool.lanes.values():
                state.lane = self.lanes[state.lane.name]
                state.tally.weight = state.lane.weight * tiers[state.tier].weight

    # -- requests -------------------------------------------------------------------------------------------

    def _arrive(self, request: Request, now: float, commands: list[Command]) -> None:
        granted = self._charge(request, now)
        if isinstance(granted, OverLimit):
            message = over_message(request.tenant, granted)
            commands.append(Refuse(request.id, Outcome.OVER_LIMIT, message, granted.retry_after_s))
            return
        self.retries.earn(now)
        self.arrived_tokens += request.tokens
        state = self._state(request)
        passage = self.passages[request.id] = Passage(request, granted, state)
        if request.fallback or request.pinned:
            self._versions.setdefault(request.model, {})[request.id] = passage
            if self._stand_in(passage, False):
                request, state = passage.request, passage.state
        pool = state.pool
        pool.arrived(request, self._turns.expected, now)
        if not len(state.queue):
            state.tally.served = max(state.tally.served, pool.turn)  # what a lane has not used is not saved up
        if not pool.waiting and self._turns.may_go(state, request, now) and self._place(passage, state, now, commands):
            return
        if self.fleet.any() and not self.fleet.any_for(request.model, request.lane):
            known = ", ".join(self.fleet.models()[:16])
            message = f"no model {request.model!r} for lane {request.lane!r} here; there is {known or 'none for it'}"
            self._refuse(passage, Outcome.UNKNOWN_MODEL, message, now, commands)
            return
        passage.ahead = _ahead(state.queue)
        if len(state.queue) >= state.lane.queue_limit:
            # Before any other work on the request: in a flood this is what happens to most.
            message = f"lane {state.lane.name!r} has {state.lane.queue_limit} waiting"
            displaced = state.queue.displaced_by(request.tenant)
            if displaced is None:
                self._refuse(passage, Outcome.LANE_FULL, message, now, commands)
                return
            self._refuse(self.passages[displaced.id], Outcome.LANE_FULL, message, now, commands)
        self._enqueue(passage, state, now)
        self._pump(pool, now, commands)
        if passage.load is None:
            self._keep_waiting_or_refuse(passage, state, now, commands)

    def _enqueue(self, passage: Passage, state: LaneQueue, now: float) -> None:
        state.queue.push(passage.request)
        state.pool.waiting += 1
        state.pool.wide += passage.request.choices > 1
        state.drain.backlog(True, now)

    def _dequeue(self, request_id: str, state: LaneQueue, now: float) -> None:
        if self._set_aside.wake_at < inf:
            self._set_aside.drop(request_id)
        removed = state.queue.remove(request_id)
        if removed is not None:
            state.pool.waiting -= 1
            state.pool.wide -= removed.choices > 1
            state.drain.backlog(len(state.queue) > 0, now)

    def _charge(self, request: Request, now: float) -> Grant | OverLimit | None:
        limits = self.tenants.get(request.tenant)
        return self.limits.take(request.tenant, limits, request.tokens, now) if limits is not None else None

    def _keep_waiting_or_refuse(self, passage: Passage, state: LaneQueue, now: float, commands: list[Command]) -> None:
        request, lane, queue = passage.request, state.lane, state.queue
        if not self.fleet.usable(request.model, request.lane):
            # No replica is usable: waiting for one to start has another bound than waiting for a turn.
            if request.pinned:
                self._refuse(passage, Outcome.NO_REPLICA, PINNED, now, commands)
                return
            self._wait_until(passage, request.arrived + self._no_replica_wait_s, now)
        else:
            ahead, _ = queue.ahead_of(request.tenant, request.weight, pushed=request)
            wait_s = state.drain.wait_s(ahead + 1, now)
            # With no request ahead, this one waits in any case: one must, or a rate once learned would never be
            # unlearned. So does a tenant below its share: the next slot is its own, whatever the rate of those at their
            # share.
            if ahead and now + wait_s > request.wait_until and not self._turns.light(state, request):
                message = f"it would wait {wait_s:.2f} s, and lane {lane.name!r} allows {plain(lane.wait_bound_s, 6)} s"
                self._refuse(passage, Outcome.WOULD_WAIT_TOO_LONG, message, now, commands)

    def _wait_until(self, passage: Passage, moment: float, now: float) -> None:
        """Lets the request wait at least until `moment`; it is queued again, or for the first time."""
        state = passage.state
        self._dequeue(passage.request.id, state, now)
        if moment > passage.request.wait_until:
            passage.request = passage.request.but(wait_until=moment)
        self._enqueue(passage, state, now)

    def _first_token(self, request_id: str, now: float, commands: list[Command]) -> None:
        passage = self.passages.get(request_id)
        if passage is None or passage.load is None or passage.first_token_at is not None:
            return
        if self.hedger is not None and not passage.begun:
            self.hedger.heard(passage, now)
        passage.first_token_at = now
        passage.begun = True
        self.book.first_token(passage.load, passage.request.prompt_tokens, passage.before, passage.sent_at, now)
        self._decodes(passage, True)
        if passage.prefilling and self._prefills.over(passage):
            self._pump_all(now, commands)

    def _end(self, event: Ended, now: float, commands: list[Command]) -> None:
        request_id, outcome, usage = event.request_id, event.outcome, event.usage
        passage = self.passages.pop(request_id, None)
        if passage is None:
            return
        self._forget_version(passage)
        state, request = passage.state, passage.request
        load = passage.load
        if load is None:
            self._dequeue(request_id, state, now)
        else:
            if self.hedger is not None:
                self._end_hedge(passage, self.hedger, outcome, now)
            try:
                self._watch(passage, load, event, now)
            finally:  # whatever the verdict on its replica, the request's slots are free
                self._let_go(passage, load, usage, now)
        if load is None and passage.grant is not None:
            self._settle(passage, passage.grant, usage, now)
        if usage is not None:
            prompt, output = usage
            state.queue.charge(
                request.tenant, request.weight, prompt + output - (passage.charged or request.prompt_tokens)
            )
        elif request.choices > 1:
            self._take_back(passage)
        if load is not None:
            self._pump_all(now, commands)  # all: replicas that serve any model are shared between pools

    def _let_go(self, passage: Passage, load: Load, usage: tuple[int, int] | None, now: float) -> None:
        """Releases the request's slots at its replica, and settles its tenant's limits."""
        self._release(passage, load, passage.state)
        passage.state.pool.ended(passage.request.tenant, now - passage.sent_at, now)
        if passage.grant is not None:
            self._settle(passage, passage.grant, usage, now)

    def _settle(self, passage: Passage, grant: Grant, usage: tuple[int, int] | None, now: float) -> None:
        prompt = passage.request.prompt_tokens if passage.first_token_at else 0
        self.limits.settle(grant, prompt if usage is None else sum(usage), now)

    def _watch(self, passage: Passage, load: Load, event: Ended, now: float) -> None:
        """Tells what this request's end says about its replica: its health, and how much it can take at once."""
        replica_id, saw, usage = load.id, SAW[event.outcome], event.usage
        if saw is not Saw.SUCCESS:
            self.book.saw(replica_id, saw, now)
            return
        if load.silent_tokens:
            self.book.heard_again(load)
        if passage.suspects:
            self._blame_suspects(passage, load, now)
        if load.ceiling < inf and passage.first_token_at is None:
            self.book.took(load, passage.sent_at)
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
            self.book.answered(load, took_s, output)
        self.book.succeeded(load, request.prompt_tokens, ttft_s, tpot_s, now, token_s)

    def _attempt_failed(self, failed: AttemptFailed, now: float, commands: list[Command]) -> None:
        passage = self.passages.get(failed.request_id)
        if passage is None or passage.load is None:
            return
        if passage.race is not None:
            self._one_left(passage, passage.race, passage.load, failed, now, commands)
            return
        if passage.load.id != failed.replica_id:
            return
        load = passage.load
        in_flight = self._release(passage, load, passage.state)
        passage.load = None
        if not failed.refused:
            passage.lost_s += now - passage.sent_at
        self._judge(passage, load, passage.sent_at, failed, now)
        passage.tried |= {failed.replica_id}
        self._try_again(passage, failed, in_flight, now, commands)
        self._pump_all(now, commands)

    def _judge(self, passage: Passage, load: Load, sent_at: float, failed: AttemptFailed, now: float) -> None:
        """Judges a failed attempt, whose slots are released already: its replica is full, is not reachable, or fails;
        or the request itself may be at fault."""
        passage.attempts += failed.twice
        if failed.refused or failed.unsent:
            passage.spared += 1
            again = passage.refusals > 0
            self.book.refused(load, sent_at, failed.retry_after_s, now, again=again, unreached=failed.unsent)
        elif passage.first_token_at is not None and now - passage.first_token_at >= STEADY_S:
            passage.spared = passage.attempts - 1
        if failed.refused:
            return
        passage.broke_at = now
        if failed.answered and not self.book.errs(load.id, _about(passage.request), now):
            passage.suspects += (load.id,)
        elif not failed.answered:
            self.book.saw(load.id, SAW[failed.outcome], now)

    def _blame_suspects(self, passage: Passage, load: Load, now: float) -> None:
        """Counts a failure for each suspect: another replica has answered the request, so it was not at fault."""
        for replica_id in passage.suspects:
            if replica_id != load.id:
                self.book.saw(replica_id, Saw.FAILURE, now)
        passage.suspects = ()

    def _try_again(
        self, passage: Passage, failed: AttemptFailed, in_flight: int, now: float, commands: list[Command]
    ) -> None:
        request, lane = passage.request, passage.state.lane
        if not failed.refused:
            # One replica's death fails all of its requests at once: that many retries are always absorbed.
            gentle = passage.begun or failed.unsent
            again = self.retries.spend(now, in_flight, passage.attempts - passage.spared, gentle)
            if not again:
                self._refuse(passage, failed.outcome, f"{failed.message or 'it failed'}; {again.value}", now, commands)
                return
        elsewhere = self.fleet.left(self.fleet.pools(request.model, request.lane, passage.tried), passage.tried)
        if not elsewhere and not failed.refused and self._stand_in(passage, failed.unsent):
            request = passage.request
            elsewhere = self.fleet.left(self.fleet.pools(request.model, request.lane, passage.tried), passage.tried)
        if elsewhere and self._place(passage, passage.state, now, commands):
            return
        if failed.refused:
            passage.refusals += 1
            if passage.refusals >= MOST_REFUSALS:
                message = f"{failed.message or 'it was refused'}; it was tried {passage.refusals} times"
                self._refuse(passage, Outcome.WAITED_TOO_LONG, message, now, commands)
                return
        # Other replicas are full, or there are none: the request waits like any other, also for replicas that failed
        # it.
        passage.tried = request.unfit
        gone = not self.fleet.usable(request.model, request.lane)
        if request.pinned and (gone or (failed.unsent and not elsewhere)):
            self._refuse(passage, Outcome.NO_REPLICA, PINNED, now, commands)
            return
        alone = passage.begun or gone
        patience_s = max(self._no_replica_wait_s, lane.wait_bound_s) if alone else lane.wait_bound_s
        # A stream that has begun is no new work that could be refused. Any other request has waited since its arrival,
        # except for the time that it was at replicas.
        since = passage.broke_at if passage.begun else request.arrived + passage.lost_s
        self._wait_until(passage, since + patience_s, now)
        if failed.refused:
            self._dequeue(request.id, passage.state, now)
            self._set_aside.add(passage, now)

    def _release(self, passage: Passage, load: Load, state: LaneQueue) -> int:
        """Releases the request's slots at the replica. Returns the slots in use there before, this request's
        included."""
        width = passage.width
        self._turns.runs(state, passage.request.tenant, -width)
        del state.pool.sent[passage.request.id]
        if passage.prefilling:
            self._prefills.over(passage)
        if passage.decodes:
            self.book.released(load, width, 0, passage.request.max_output)
        else:
            self.book.released(load, width, passage.request.prompt_tokens, 0)
        passage.decodes = False
        return load.requests + width

    def _decodes(self, passage: Passage, decodes: bool) -> None:
        """Marks whether the replica is past the request's prompt: its first token was heard, or is assumed to have been
        generated."""
        load, request = passage.load, passage.request
        if load is not None and passage.decodes is not decodes:
            passage.decodes = decodes
            times = 1 if decodes else -1
            self.book.decodes(load, times * request.prompt_tokens, times * request.max_output)

    def _refuse(self, passage: Passage, outcome: Outcome, message: str, now: float, commands: list[Command]) -> None:
        request, state = passage.request, passage.state
        del self.passages[request.id]
        self._forget_version(passage)
        self._dequeue(request.id, state, now)
        if request.choices > 1:
            self._take_back(passage)
        if passage.grant is not None:
            self.limits.give_back(passage.grant, now)
        after = self._opens_in(request, now)
        if not after or state.pool.sent:  # otherwise the replicas know best
            after = max(after, self._come_back_in(request, state, now))
        commands.append(Refuse(request.id, outcome, message, after, passage.ahead))

    def _take_back(self, passage: Passage) -> None:
        """Refunds the output of several choices that was charged in advance: none is known to have said anything."""
        request = passage.request
        if passage.charged:
            passage.state.queue.charge(request.tenant, request.weight, request.prompt_tokens - passage.charged)

    def _come_back_in(self, request: Request, state: LaneQueue, now: float) -> float:
        """Seconds after which a refused request is worth sending again, by the forecast that refused it."""
        pool, queue = state.pool, state.queue
        ahead, _ = queue.ahead_of(request.tenant, request.weight)
        held_s = pool.turnover.held_s(TOKEN_S * request.output_each, now)
        every_s = held_s / max(1, len(pool.sent))
        wait_s = max(state.drain.wait_s(ahead + 1, now), pool.free_in_s(ahead, held_s, now))
        promised = queue.promised(request.tenant)
        due = come_back_at(wait_s, every_s * max(1, queue.tenants), promised, now, self._rng)
        queue.promise(request.tenant, request.weight, due)
        return due - now

    def _opens_in(self, request: Request, now: float) -> float:
        """Seconds until the first of the request's replicas is to have room by its own word, if all say they are full.
        0: not all do."""
        if self._full.wake_at == inf:
            return 0.0
        pools = self.fleet.pools(request.model, request.lane, request.unfit)
        return self._full.opens_in(pools, request.unfit, now)

    # -- which request goes next ------------------------------------------------------------------------------

    def _pump_all(self, now: float, commands: list[Command]) -> None:
        if self._set_aside.wake_at < inf:
            self._place_held(now, commands)
        if self._versions:
            self._move_over(now, commands)
        for pool in self.pools.values():
            self._pump(pool, now, commands)

    def _place_held(self, now: float, commands: list[Command]) -> None:
        for passage in self._set_aside.due(now):
            state = passage.state
            if self._turns.may_go(state, passage.request, now) and self._place(passage, state, now, commands):
                self._set_aside.drop(passage.request.id)

    def _pump(self, pool: ModelQueue, now: float, commands: list[Command]) -> None:
        """Sends the next requests for as long as this pool has free slots."""
        blocked: list[LaneQueue] = []
        kept = self._kept_room(pool, now) if pool.wide else None
        while pool.waiting and (turn := self._turns.next(pool, blocked, now)) is not None:
            best, request = turn
            passage = self.passages[request.id]
            if self._place(passage, best, now, commands, kept):
                best.queue.pop(request.id)  # by id: the charge may have changed whose turn it is
                pool.waiting -= 1
                pool.wide -= request.choices > 1
                best.drain.left(now)
                best.drain.backlog(len(best.queue) > 0, now)
            else:
                blocked.append(best)

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
        near = self.fleet.roomiest(first.model, first.lane, first.choices, self.passages[first.id].tried)
        return None if near is None else KeptRoom(first.id, priority, near)

    def _place(
        self, passage: Passage, state: LaneQueue, now: float, commands: list[Command], kept: KeptRoom | None = None
    ) -> bool:
        request, tried = passage.request, passage.tried
        if kept is not None and request.id != kept.request_id and state.lane.priority >= kept.priority:
            tried |= {kept.replica_id}
        choice = route(request, self.fleet, self.affinity, self._routing, now, self._rng, tried)
        if not isinstance(choice, RouteChoice):
            return False
        seat = self.fleet.seat(choice.replica_id)
        assert seat is not None
        load = seat.load
        passage.width = width = 1
        if request.choices > 1:
            passage.width = width = min(request.choices, seat.limit)
        passage.before = load.prefill_tokens
        self.book.sent(load, width, request.prompt_tokens)
        self.book.remember(request, choice.replica_id)
        passage.load, passage.sent_at, passage.first_token_at = load, now, None
        passage.attempts += 1
        if not request.stream:
            self._unheard.sent(passage, load, now)
        if self.hedger is not None:
            self.hedger.sent(passage, now)
            passage.since = now
        if self._turns.prefilled_in_turn(state, request):
            self._prefills.sent(passage, load, now)
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

    def _state(self, request: Request) -> LaneQueue:
        """The queue of a request: requests for a model that some replica names wait for that model; all others for any
        replica."""
        model = request.model if self.fleet.by_name(request.model) else None
        pool = self.pools.get(model)
        if pool is None:
            if len(self.pools) >= MOST_POOLS:
                self._forget_pools()
            pool = self.pools[model] = ModelQueue(model)
            for lane in self.lanes.values():
                self._open_lane(pool, lane)
        return pool.lanes[request.lane, request.tier, request.prompt_tokens > LONG_PROMPT or request.choices > 1]

    def _forget_pools(self) -> None:
        """Forgets pools without requests, the oldest first, down to half of MOST_POOLS: adapters have names too, and
        replicas may list thousands. What a pool has learned of its tenants and slot times is learned again."""
        in_use = {passage.state.pool.model for passage in self.passages.values()}
        idle = [model for model in self.pools if model not in in_use]
        for model in idle[: len(self.pools) - MOST_POOLS // 2]:
            del self.pools[model]

    def _open_lane(self, pool: ModelQueue, lane: Lane) -> None:
        tallies = tuple(TierTally(lane.weight * tier.weight) for tier in self.tiers.values())
        pool.comers[lane.name] = Comers()
        for tier, tally in zip(self.tiers, tallies, strict=True):
            pool.tallies[lane.name, tier] = tally
            for long in (False, True):
                pool.lanes[lane.name, tier, long] = LaneQueue(lane, tier, pool, tally, tallies, long)

    # -- another version ----------------------------------------------------------------------------------------

    def _stand_in(self, passage: Passage, unreached: bool) -> bool:
        """Lets a fallback model answer, if no replica of the requested model is usable, or the last one can't be
        reached. Not once the client has received output: two models would say one sentence. The caller moves a request
        that is queued."""
        request = passage.request
        if passage.begun or (self.fleet.usable(request.model, request.lane) and not unreached):
            return False
        for model in request.fallback:
            if self.fleet.usable(model, request.lane):
                self._forget_version(passage)
                passage.request = request.but(model=model, fallback=())
                passage.state = self._state(passage.request)
                passage.stands_in = model
                passage.tried = request.unfit
                return True
        return False

    def _move_over(self, now: float, commands: list[Command]) -> None:
        """Moves requests that wait for a version without usable replicas: a fallback model answers, or, where the
        version was pinned, the request is refused."""
        for model in list(self._versions):
            if self.fleet.usable(model):
                continue
            for passage in list(self._versions[model].values()):
                state = passage.state
                if passage.load is None and passage.request.pinned:
                    self._refuse(passage, Outcome.NO_REPLICA, PINNED, now, commands)
                elif passage.load is None and self._stand_in(passage, False):
                    self._dequeue(passage.request.id, state, now)
                    self._enqueue(passage, passage.state, now)

    def _forget_version(self, passage: Passage) -> None:
        request = passage.request
        if request.fallback or request.pinned:
            those = self._versions[request.model]
            del those[request.id]
            if not those:
                del self._versions[request.model]

    # -- a second replica ---------------------------------------------------------------------------------------

    def _hedge(self, passage: Passage, hedger: Hedger, now: float, commands: list[Command]) -> bool:
        """Asks a second replica as well, if that takes nothing from other requests. The request takes a slot and counts
        as work there, too."""
        request, load = passage.request, passage.load
        for pool in self.pools.values():
            if pool.waiting:
                return False
        room, used = self.fleet.capacity(request.model, request.lane)
        if load is None or not hedger.quiet(room, used) or not self._turns.may_go(passage.state, request, now):
            return False
        there = passage.tried | {load.id}
        if not self.fleet.left(self.fleet.pools(request.model, request.lane), there):
            return False  # dedicated replicas first: a hedge does not spill over to those of other lanes
        choice = route(request, self.fleet, self.affinity, self._routing, now, self._rng, there)
        other = self.fleet.get(choice.replica_id) if isinstance(choice, RouteChoice) else None
        if not isinstance(choice, RouteChoice) or other is None or other.cold or not hedger.spend(request.lane):
            return False
        self._decodes(passage, False)  # it is unknown whether either has prefilled
        self.book.sent(other, 1, request.prompt_tokens)
        self._turns.runs(passage.state, request.tenant, 1)
        self._prefills.sent_twice(passage)
        passage.race, passage.hedged = Race(other, now), True
        commands.append(Hedge(request.id, choice.replica_id, choice.reason, choice.scores))
        return True

    def _hedge_won(self, event: HedgeWon, now: float, commands: list[Command]) -> None:
        passage = self.passages.get(event.request_id)
        race = None if passage is None else passage.race
        if passage is None or race is None or passage.load is None or self.hedger is None:
            return
        loser = race.load
        if event.replica_id == race.load.id:
            loser = passage.load
            self._move(passage, race)
            self.book.remember(passage.request, race.load.id)
            self.book.fell_silent(loser, passage.request.prompt_tokens)
        self.hedger.over(passage, LOST if loser is race.load else WON)
        passage.race = None
        self._drop(passage, loser)
        self._pump_all(now, commands)

    def _one_left(
        self, passage: Passage, race: Race, load: Load, failed: AttemptFailed, now: float, commands: list[Command]
    ) -> None:
        """One of the request's two replicas failed: the other simply has the request."""
        if failed.replica_id not in (load.id, race.load.id) or self.hedger is None:
            return
        gone, sent_at = race.load, race.sent_at
        if failed.replica_id == load.id:
            gone, sent_at = load, passage.sent_at
            self._move(passage, race)
            passage.since = race.sent_at
            passage.lost_s += race.sent_at - sent_at
        passage.attempts += 1
        self.hedger.over(passage, FAILED if gone is race.load else TOOK_OVER)
        passage.race = None
        passage.tried |= {gone.id}
        self._drop(passage, gone)
        self._judge(passage, gone, sent_at, failed, now)
        self._pump_all(now, commands)

    def _end_hedge(self, passage: Passage, hedger: Hedger, outcome: Outcome, now: float) -> None:
        """Ends the race of a request that is over: what is said of it below is about one replica only."""
        race = passage.race
        if race is not None:
            passage.race = None
            hedger.over(passage, CANCELLED)
            self._drop(passage, race.load)
        if outcome is Outcome.COMPLETED and not passage.request.stream and not passage.begun:
            hedger.heard(passage, now)
        passage.hedged = True  # the hedger need not look at it any more

    def _move(self, passage: Passage, race: Race) -> None:
        passage.load, passage.sent_at, passage.before = race.load, race.sent_at, 0

    def _drop(self, passage: Passage, load: Load) -> None:
        """Releases the slot at one of two replicas; neither has sent a first token."""
        request, state = passage.request, passage.state
        self._turns.runs(state, request.tenant, -1)
        self._prefills.one_less(passage)
        # One slot: a request for several choices is at one replica only.
        self.book.released(load, 1, request.prompt_tokens, 0)

    # -- other gateways -----------------------------------------------------------------------------------------

    def _lease(self, event: Leased, now: float) -> None:
        if isinstance(self.limits, SharedLimits):
            self.limits.leased(
                event.tenant, event.requests_s, event.tokens_s, event.requests_full_s, event.tokens_full_s, now
            )

    def _share_with(self, event: Shared) -> None:
        if not isinstance(self.limits, SharedLimits):
            reserved, self.limits = self.limits.reserved, SharedLimits()
            self.limits.reserved = reserved
        self.limits.share(event.gateways, event.connected)
        self.book.share(event.low, event.high)

    # -- time ---------------------------------------------------------------------------------------------------

    def _tick(self, now: float, commands: list[Command]) -> None:
        for pool in self.pools.values():
            for state in pool.lanes.values() if pool.waiting else ():
                for request in state.queue.expired(now):
                    pool.waiting -= 1
                    pool.wide -= request.choices > 1
                    self._time_out(self.passages[request.id], state, now, commands)
        self.book.tick(now)
        if self._full.wake_at <= now:
            self._full.tick(now)
            for pool in self.pools.values():
                self._pump(pool, now, commands)  # one request is tried, of those that were not refused if there are any
        if self._set_aside.wake_at <= now:
            for passage in self._set_aside.expire(now):
                self._time_out(passage, passage.state, now, commands)
        if self.hedger is not None:
            for passage in self.hedger.late(now):
                if not self._hedge(passage, self.hedger, now, commands):
                    self.hedger.look_again(passage, now)
        self._pump_all(now, commands)

    def _time_out(self, passage: Passage, state: LaneQueue, now: float, commands: list[Command]) -> None:
        waited = now - passage.request.arrived
        patience = passage.request.arrived + passage.lost_s + self._no_replica_wait_s
        usable = self.fleet.usable(passage.request.model, passage.request.lane)
        if not usable and now < patience and not passage.request.pinned:
            self._wait_until(passage, patience, now)  # its replicas left while it waited for a turn
        elif (most := self._turns.capped_at(state, passage.request)) is not None:
            who = f"tenant {passage.request.tenant!r}"
            message = f"{who} has {most} requests at work, as many as it may; this one waited {waited:.2f} s"
            self._refuse(passage, Outcome.OVER_LIMIT, message, now, commands)
        elif usable:
            full = "; every replica says that it is full" if self._opens_in(passage.request, now) else ""
            message = f"it waited {waited:.2f} s, all that lane {state.lane.name!r} allows{full}"
            self._refuse(passage, Outcome.WAITED_TOO_LONG, message, now, commands)
        else:
            self._refuse(passage, Outcome.NO_REPLICA, f"no replica came up within {waited:.1f} s", now, commands)

    def _set_alarm(self) -> None:
        # `min` of two at a time: compiled, `min` of three is a call, for every event.
        wake_at = min(min(self._full.wake_at, self._set_aside.wake_at), self.health.wake_at())
        for pool in self.pools.values():
            if pool.waiting:
                wake_at = min(wake_at, self._prefills.wake_at)
                for state in pool.lanes.values():
                    wake_at = min(wake_at, state.queue.next_expiry)
        if self.hedger is not None:
            wake_at = min(wake_at, self.hedger.wake_at)
        self.wake_at = wake_at


def _ahead(queue: FairQueue) -> Ahead | None:
    """What waits in a lane before a new request joins it, and which tenant has most of it. None: nothing waits."""
    if not len(queue):
        return None
    tenant, requests, tokens = queue.heaviest()
    return Ahead(len(queue), queue.tokens, tenant, requests, tokens)


def _about(request: Request) -> About:
    """Identifies a prompt: by the end of its prefix, or, where nothing is known of its text, by model and length."""
    return request.tenant, request.prefix[-1] if request.prefix else f"{request.model} {request.prompt_tokens}"
