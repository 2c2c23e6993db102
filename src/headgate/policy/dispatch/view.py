"""Defines the dispatcher's read model: frozen values that say what waits, what runs, and how full replicas are.

Metrics, alarms, the page, the scaler and the simulator read these values instead of the dispatcher's own objects, which
only the dispatcher writes. Not compiled: no request makes a view.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from headgate.model.lane import Lane
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.dispatch.hedge import RESULTS, Hedger
from headgate.policy.dispatch.passage import LaneQueue, ModelQueue
from headgate.policy.replicas.book import ReplicaBook
from headgate.policy.replicas.entry import IndexEntry, ReplicaEntry
from headgate.policy.replicas.health import Standing
from headgate.policy.replicas.utilisation import Use, Utilisation
from headgate.policy.tenants.shared_limits import SharedLimits


class LaneCounts(msgspec.Struct, frozen=True, gc=False):
    """One lane, over all models and tiers."""

    lane: Lane
    waiting: int
    """Requests that wait for a replica."""
    running: int
    """Slots in use at replicas."""
    tokens: int
    """Tokens of the queued requests, prompt and expected output."""


class SourceCounts(msgspec.Struct, frozen=True, gc=False):
    """The requests of one lane for one model."""

    model: str | None
    """None: for models that no replica serves by name."""
    lane: str
    waiting: int
    waiting_tokens: int
    running: int
    """Slots in use at replicas."""
    arrived_tokens: int
    """Prompt and expected output tokens of all requests that came, since its model was last forgotten."""


class ReplicaView(msgspec.Struct, frozen=True):
    replica: Replica
    joined_at: float
    """When the replica joined. A replica that has left and come back, or joined with other slots, has a later one."""
    usable: float
    """Share of the replica's slots that may be used. 0: none."""
    in_use: bool
    """Whether the replica counts as usable: it has a share, and could be reached when last tried."""
    parked: bool
    """Whether it is known and probed, and given no requests."""
    requests: int
    limit: float
    """Maximum requests at once."""
    tokens: int
    """Prompt tokens without a first token yet, and output tokens still expected."""
    share: float
    """Share of its slots that the replica's health allows, whether it is parked or not."""
    standing: Standing | None
    """State of its health, since when and why. None: its health is unknown."""
    prefill_busy: float | None
    """Share of its time that the replica needs for the prompts sent from here. None: its pace is unknown."""
    cached_links: int
    """Links of conversations that the replica is known to have cached."""
    came: int
    """Number of the replica's last coming into use, counted over all replicas. 0: it was never in use."""

    @property
    def id(self) -> ReplicaId:
        return self.replica.id


class SharedView(msgspec.Struct, frozen=True, gc=False):
    """What is shared with other gateways."""

    gateways: int
    """Gateways that share, this one included."""
    connected: bool
    """Whether the shared store can be reached."""
    part: float
    """This gateway's share of each replica's slots, 0 to 1."""


class DispatcherView(msgspec.Struct, frozen=True):
    """The dispatcher at one moment."""

    at: float
    lanes: Mapping[str, LaneCounts]
    replicas: Mapping[ReplicaId, ReplicaView]
    use: Use
    """Utilisation of the whole fleet."""
    hedges: Mapping[tuple[str, str], int]
    """Hedges that are over, by lane and result. Empty: no request is hedged."""
    shared: SharedView | None
    """None: limits are not shared."""
    arrived_tokens: int
    """Prompt and expected output tokens of all requests admitted since the start."""
    ejections: int
    """Replicas ejected since the start."""

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self.lanes.values())

    @property
    def usable(self) -> int:
        """Number of replicas that have a usable share."""
        return sum(replica.usable > 0 for replica in self.replicas.values())


def replica_view(entry: ReplicaEntry, seat: IndexEntry, book: ReplicaBook, use: Utilisation, now: float) -> ReplicaView:
    load = seat.load
    return ReplicaView(
        load.replica,
        load.joined_at,
        load.usable,
        seat.usable,
        entry.parked,
        load.requests,
        load.limit,
        load.tokens,
        book.usable_share(seat.id, now),
        book.standing(seat.id),
        use.busy(seat.id),
        len(entry.links.seen),
        entry.came,
    )


def replica_views(book: ReplicaBook, use: Utilisation, now: float) -> dict[ReplicaId, ReplicaView]:
    return {
        entry.id: replica_view(entry, entry.seat, book, use, now)
        for entry in book.entries.values()
        if entry.seat is not None
    }


def hedge_counts(hedger: Hedger | None) -> dict[tuple[str, str], int]:
    """Hedges that are over, by lane and result, those without any included."""
    if hedger is None:
        return {}
    return {(lane, result): hedger.counts.get((lane, result), 0) for lane in hedger.lanes for result in RESULTS}


def shared_view(limits: SharedLimits | None, part: tuple[float, float]) -> SharedView | None:
    return None if limits is None else SharedView(limits.gateways, limits.connected, part[1] - part[0])


def held_in_queues(model_queues: Collection[ModelQueue]) -> dict[str, int]:
    """Counts by name of what requests hold in the queues."""
    lane_queues = list(_lane_queues(model_queues))
    return {
        "waiting": sum(len(lane_queue.queue) for lane_queue in lane_queues),
        "waiting_by_model": sum(model_queue.waiting for model_queue in model_queues),
        "waiting_tokens": sum(lane_queue.queue.tokens for lane_queue in lane_queues),
        "running": sum(tally.running for model_queue in model_queues for tally in model_queue.tallies.values()),
        "prefills": sum(lane_queue.prefills for lane_queue in lane_queues),
        "prefills_tokens": sum(lane_queue.prefill_tokens for lane_queue in lane_queues),
    }


def held_at_replicas(seats: Collection[IndexEntry]) -> dict[str, int]:
    """Counts by name of what requests hold at replicas."""
    loads = [seat.load for seat in seats]
    return {
        "room": sum(load.requests for load in loads),
        "room_indexed": sum(seat.requests for seat in seats),
        # Without tokens of requests that another replica answered first: they count in the load until this replica
        # answers again, but no request holds them.
        "prefill_tokens": sum(load.prefill_tokens - load.silent_tokens for load in loads),
        "decode_tokens": sum(load.decode_tokens for load in loads),
    }


def queued_tokens(model_queues: Iterable[ModelQueue], lane: str | None = None) -> int:
    """Tokens of the requests queued in a lane. None: in all lanes."""
    return sum(
        lane_queue.queue.tokens
        for lane_queue in _lane_queues(model_queues)
        if lane is None or lane_queue.lane.name == lane
    )


def _lane_queues(model_queues: Iterable[ModelQueue]) -> Iterator[LaneQueue]:
    return (lane_queue for model_queue in model_queues for lane_queue in model_queue.lanes.values())


def source_counts(model_queues: Iterable[ModelQueue], lanes: Iterable[str]) -> list[SourceCounts]:
    """The requests of each model and lane that has any, or had."""
    found = []
    for model_queue in model_queues:
        for lane in lanes:
            parts = [part for (name, _, _), part in model_queue.lanes.items() if name == lane]
            arrived = sum(part.arrived_tokens for part in parts)
            if arrived:
                waiting, tokens = sum(len(part.queue) for part in parts), sum(part.queue.tokens for part in parts)
                running = sum(tally.running for (name, _), tally in model_queue.tallies.items() if name == lane)
                found.append(SourceCounts(model_queue.model, lane, waiting, tokens, running, arrived))
    return found
