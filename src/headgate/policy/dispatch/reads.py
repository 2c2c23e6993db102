"""Answers what other rooms ask of a dispatcher: how its lanes, replicas and tenants stand. Decides nothing.

`view` is the whole read model (policy/dispatch/view.py). What is asked for each request, or for one replica or tenant,
has a method of its own that makes no view.
"""

from collections.abc import Callable, Container, Iterable
from math import inf
from typing import Final

from headgate.model.lane import Lane
from headgate.model.replica import Load, Replica, ReplicaId
from headgate.policy.dispatch.hedge import Hedger
from headgate.policy.dispatch.port import DispatchPort
from headgate.policy.dispatch.queues import Queues
from headgate.policy.dispatch.view import (
    DispatcherView,
    LaneCounts,
    ReplicaView,
    SourceCounts,
    hedge_counts,
    held_at_replicas,
    held_in_queues,
    queued_tokens,
    replica_view,
    replica_views,
    shared_view,
    source_counts,
)
from headgate.policy.replicas.book import ReplicaBook
from headgate.policy.replicas.health import Health, Standing
from headgate.policy.replicas.utilisation import Said, Use, Utilisation
from headgate.policy.tenants.limits import OverLimit, RateView, TenantLimits
from headgate.policy.tenants.shared_limits import SharedLimits, TenantGate
from headgate.policy.tenants.spare_room import Spare


class DispatcherReads(DispatchPort):
    """The part of a dispatcher that only reads."""

    def __init__(
        self, queues: Queues, book: ReplicaBook, health: Health, gate: TenantGate, hedger: Hedger | None
    ) -> None:
        super().__init__(queues.lanes, queues.tiers)
        self.queues: Final = queues
        self.passages: Final = queues.passages
        self.model_queues: Final = queues.model_queues
        self.book: Final = book
        self.index: Final = book.index
        self.health: Final = health
        self.gate: Final = gate
        self.hedger: Final = hedger
        """None: no request is hedged."""
        self.use: Final = Utilisation(book.index, queues.held_up)
        self.arrived_tokens = 0
        """Prompt and expected output tokens of all admitted requests, from which the scaler computes the arrival
        rate."""
        self._seen: DispatcherView | None = None
        """The last view that was made. None: something has happened since."""

    # -- lanes and requests -------------------------------------------------------------------------------------

    def view(self, now: float) -> DispatcherView:
        """What waits and runs, and how full the replicas are, as one frozen value. It is made once for all who ask at
        one moment."""
        seen = self._seen
        if seen is None or seen.at != now:
            self.use.look(now)
            self._seen = seen = DispatcherView(
                now,
                {name: self._counts(lane) for name, lane in self.lanes.items()},
                replica_views(self.book, self.use, now),
                self.use.read(),
                hedge_counts(self.hedger),
                shared_view(self.gate.shared, self.book.part),
                self.arrived_tokens,
                self.health.ejections,
            )
        return seen

    def _counts(self, lane: Lane) -> LaneCounts:
        tokens = queued_tokens(self.model_queues.values(), lane.name)
        return LaneCounts(lane, self.waiting(lane.name), self.running(lane.name), tokens)

    def waiting(self, lane: str) -> int:
        """Requests of a lane that wait for a replica."""
        return self.queues.waiting(lane)

    def running(self, lane: str) -> int:
        """Slots that a lane uses at replicas."""
        return self.queues.running(lane)

    def queued(self) -> tuple[int, int]:
        """(requests, tokens) in all queues, without requests that full replicas refused."""
        return sum(model_queue.waiting for model_queue in self.model_queues.values()), queued_tokens(
            self.model_queues.values()
        )

    def sources(self) -> list[SourceCounts]:
        """The requests of each model and lane that has any, or had."""
        return source_counts(self.model_queues.values(), self.lanes)

    @property
    def under_way(self) -> int:
        """Requests that wait or run."""
        return len(self.passages)

    def holdings(self) -> dict[str, int]:
        """Counts by name of what requests hold, each counted where it is kept. All are 0 while no request is under
        way."""
        return {
            "passages": len(self.passages),
            "reservations": self.gate.limits.reserved,
            **held_in_queues(self.model_queues.values()),
            **held_at_replicas(self.index.seats()),
        }

    def computed(self, request_id: str, now: float) -> int:
        """Output tokens that the replica has probably generated for each choice of an unstreamed request: the time
        since the request was sent, at the replica's pace. 0: no replica has the request."""
        passage = self.passages.get(request_id)
        if passage is None or passage.load is None:
            return 0
        return int((now - passage.sent_at) / max(_answer_pace(passage.load), 1e-6))

    def answer_pace(self, replica_id: ReplicaId) -> float:
        """Seconds that the replica takes for each token of an unstreamed answer; 1: it has left."""
        seat = self.index.seat(replica_id)
        return 1.0 if seat is None else _answer_pace(seat.load)

    # -- replicas -----------------------------------------------------------------------------------------------

    def replicas(self) -> list[Replica]:
        """A copy of what is known of every replica, with the names that were found out; safe from any thread."""
        return self.index.replicas()

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
        seat = self.index.seat(replica_id)
        return None if seat is None or seat.requests else seat.turn

    def room(self, model: str | None) -> tuple[int, int, int]:
        """(limit, used, waiting) of a model: requests that its usable replicas may have at once, those of these slots
        that are taken, and requests that wait for it. None: of models that no replica names."""
        limit, used = self.index.capacity(model)
        model_queue = self.model_queues.get(model if model is not None and self.index.by_name(model) else None)
        return limit, used, 0 if model_queue is None else model_queue.waiting

    def spare(self, model: str | None, lane: str) -> Spare:
        """What a model's replicas have to do, for the lane that is paced by what the others leave."""
        name = model if model is not None and self.index.by_name(model) else None
        limit, used = self.index.capacity(name, lane)
        lines = lines_waiting = others_waiting = 0
        model_queue = self.model_queues.get(name)
        if model_queue is not None:
            for (of_lane, _), tally in model_queue.tallies.items():
                lines += tally.running if of_lane == lane else 0
            for lane_queue in model_queue.lanes.values():
                if lane_queue.lane.name == lane:
                    lines_waiting += len(lane_queue.queue)
                else:
                    others_waiting += len(lane_queue.queue)
        least_s = inf
        for seat in self.index.seats():
            load = seat.load
            if load.usable > 0 and (name is None or not load.replica.names or name in load.replica.names):
                least_s = min(least_s, load.prefill_tokens * load.prefill_token_s)
        replicas = self.index.usable(name, lane)
        return Spare(replicas, limit, used, lines, lines_waiting, others_waiting, least_s)

    def slots(self, among: Container[ReplicaId] | None = None) -> tuple[int, int]:
        """(limit, requests) of the usable replicas in `among`; None: of all."""
        limit = requests = 0
        for seat in self.index.seats():
            if seat.load.usable > 0 and (among is None or seat.id in among):
                limit += int(seat.load.limit)
                requests += seat.load.requests
        return limit, requests

    def with_room(self, model: str) -> list[ReplicaId]:
        """Usable replicas that name this model and have a free slot."""
        loads = [seat.load for seat in self.index.seats()]
        return [load.id for load in loads if load.usable > 0 and load.room > 0 and model in load.replica.names]

    def any_usable(self) -> bool:
        return any(seat.load.usable > 0 for seat in self.index.seats())

    def unserved(self, replica_ids: Iterable[ReplicaId]) -> tuple[list[str], list[str]]:
        """(lanes, models) that these replicas serve, and no usable replica does."""
        lanes: dict[str, None] = {}
        models: dict[str, None] = {}
        for replica_id in replica_ids:
            seat = self.index.seat(replica_id)
            if seat is not None:
                lanes.update(dict.fromkeys(sorted(seat.load.replica.lanes)))
                models.update(dict.fromkeys(sorted(seat.load.replica.names)))
        return (
            [name for name in lanes if name in self.lanes and not self.index.serves_lane(name)],
            [name for name in models if not self.index.usable(name)],
        )

    def wanted_awake(self, now: float) -> bool:
        """Whether requests wait that would have been refused if no replica could be woken for them."""
        return self.book.sleepers.wanted(now)

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

    # -- tenants ------------------------------------------------------------------------------------------------

    def limits_of(self, tenant: str) -> TenantLimits | None:
        """None: the tenant has no limits per minute."""
        return self.gate.tenants.get(tenant)

    def over_limit(self, tenant: str, now: float) -> OverLimit | None:
        """The refusal of a request for a single token. None: the tenant's limits would admit it. Reserves nothing."""
        return self.gate.over_limit(tenant, now)

    def rates(self, tenant: str, now: float) -> RateView | None:
        """What is left of the tenant's limits. None: the tenant has no limits per minute."""
        return self.gate.rates(tenant, now)

    @property
    def shared_limits(self) -> SharedLimits | None:
        """The limits shared with other gateways, for the driver that shares them. None: they are not shared."""
        return self.gate.shared

    @property
    def part(self) -> tuple[float, float]:
        """Range of each replica's slots that this gateway may use, 0 to 1."""
        return self.book.part


def _answer_pace(load: Load) -> float:
    return load.tpot_s if load.answer_token_s is None else load.answer_token_s
