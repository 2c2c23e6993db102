"""Keeps the index of the fleet: which replicas have free slots, least loaded first.

For a model and a lane, the index gives the replicas that may be used without ever looking at all of them. A sorted
list, not a heap: the least few, one at random and a replica that moves are all cheap, and ties go by order of joining,
the same in every process.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Final, Literal

from headgate.model.replica import Load, Replica, ReplicaId
from headgate.policy.replicas.entry import IndexEntry, ReplicaEntry, ReplicaGroup

Order = Literal["work", "requests", "turn", "weighted_turn"]
"""What the index is ordered by. A turn grows with each request sent: the replica with the lowest is next."""
LOOKED_AT: Final = 32
"""Maximum replicas with free slots that are examined to find the one with most of them."""
DECODE: Final = 0.25
"""Weight of decoding against prefill. If decoding counted in full, a replica that has just come into use, and so has
nothing to decode yet, would be sent every prompt until it had as much as the others, one waiting for the other. Among
1, 0.5, 0.25 and 0.1 this has the best tail when load rises to four times as much."""


def work_s(load: Load, prefill_tokens: int, decode_tokens: int) -> float:
    """Seconds by which these tokens delay the first token of the next request here. Prompts go one after the other and
    before it; decoding, at full batch as it would be under load, only slows them, and counts for DECODE."""
    return prefill_tokens * load.prefill_token_s + DECODE * decode_tokens * load.tpot_s / max(1.0, load.limit)


class RouteIndex:
    """The index of all replicas in a book. The book tells it of every change."""

    def __init__(self, entries: dict[ReplicaId, ReplicaEntry], order: Order = "work") -> None:
        """`entries`: those of the book."""
        self.order = order
        self.entries: Final = entries
        self.priced = False
        """Whether replicas differ in price."""
        self._groups: dict[tuple[frozenset[str], frozenset[str], float], ReplicaGroup] = {}
        self._views: dict[tuple[str | None, str | None], tuple[tuple[ReplicaGroup, ...], tuple[ReplicaGroup, ...]]] = {}
        self._models: dict[str, None] = {}
        self._joined = 0

    def add(self, entry: ReplicaEntry, load: Load) -> IndexEntry:
        """Enters a replica, or enters it anew: it keeps its number, and counts as just come."""
        replica, seat = load.replica, entry.seat
        if seat is not None:
            self._take_out(seat)
        names, price = replica.names, replica.price or 0.0
        group = self._groups.get((names, replica.lanes, price))
        if group is None:
            group = self._groups[names, replica.lanes, price] = ReplicaGroup(names, replica.lanes, price)
            self._look_again()
        group.replicas += 1
        group.ring.add(replica.id)
        if seat is None:
            self._joined += 1
            seat = entry.seat = IndexEntry(replica.id, load, self._joined, group, replica.token_limit)
        else:
            seat.load, seat.group, seat.token_limit, seat.turn = load, group, replica.token_limit, 0.0
        seat.requests = load.requests
        self.changed(load)
        return seat

    def remove(self, entry: ReplicaEntry) -> None:
        if entry.seat is not None:
            self._take_out(entry.seat)
            entry.seat = None

    def _take_out(self, seat: IndexEntry) -> None:
        group = seat.group
        self._place(seat, None)
        self._count(seat, False, 0, 0)
        group.replicas -= 1
        group.ring.remove(seat.id)
        if not group.replicas:
            del self._groups[group.names, group.lanes, group.price]
            self._look_again()

    def changed(self, load: Load) -> None:
        """Takes in a changed Load. A replica that has left meanwhile is ignored."""
        replica = load.replica
        entry = self.entries.get(replica.id)
        seat = None if entry is None else entry.seat
        if seat is None or seat.load is not load:
            return
        usable, requests = load.usable, load.requests
        if requests > seat.requests:
            share = max(replica.weight, 1e-3) if self.order == "weighted_turn" else 1.0
            seat.group.turn = max(seat.group.turn, seat.turn)
            seat.turn += (requests - seat.requests) / (share * max(usable, 0.01))
        seat.requests = requests
        if usable <= 0:
            self._count(seat, False, 0, 0)
            self._place(seat, None)
            return
        limit = int(max(1.0, load.limit * usable))
        if load.ceiling < limit:
            if load.unreached:
                self._count(seat, False, 0, 0)
                self._place(seat, None)
                return
            limit = int(load.ceiling)
        room = limit - requests if requests < limit else 0
        if room and requests and seat.token_limit is not None and load.tokens >= seat.token_limit:
            room = 0
        if load.memory_full and requests:
            room = 0
        self._count(seat, True, limit or 1, room)
        self._place(seat, self._key(seat) if room else None)

    # -- what the dispatcher asks ---------------------------------------------------------------------------

    def get(self, replica_id: ReplicaId) -> Load | None:
        """The replica's Load. None: the replica has left."""
        seat = self.seat(replica_id)
        return None if seat is None else seat.load

    def seat(self, replica_id: ReplicaId) -> IndexEntry | None:
        """The replica's place in the index. None: the replica has left."""
        entry = self.entries.get(replica_id)
        return None if entry is None else entry.seat

    def seats(self) -> list[IndexEntry]:
        """The places of all replicas, in the order in which they joined or were described anew."""
        return [entry.seat for entry in tuple(self.entries.values()) if entry.seat is not None]

    @property
    def loads(self) -> dict[ReplicaId, Load]:
        """A copy of the registry of loads, for those who read all of them."""
        return {seat.id: seat.load for seat in self.seats()}

    def replicas(self) -> list[Replica]:
        """A copy of what is known of every replica, with the names that were found out; safe from any thread."""
        return [seat.load.replica for seat in self.seats()]

    def models(self) -> list[str]:
        """Models that are served by name, first come first."""
        return list(self._models)

    def by_name(self, model: str) -> bool:
        """Whether a replica serves this model by its name."""
        return model in self._models

    def any(self) -> bool:
        """Whether any replica has joined."""
        return len(self._groups) > 0

    def any_for(self, model: str | None, lane: str | None = None) -> bool:
        """Whether a replica serves this model and lane, usable or not."""
        dedicated, others = self._view(model, lane)
        return bool(dedicated or others)

    def usable(self, model: str | None, lane: str | None = None) -> int:
        """Number of replicas that may be used for this, with free slots or without."""
        return sum(group.usable for group in self.groups(model, lane))

    def serves_lane(self, lane: str) -> bool:
        """Whether any replica may be used for this lane, of whatever model."""
        return any(group.usable and (not group.lanes or lane in group.lanes) for group in self._groups.values())

    def capacity(self, model: str | None, lane: str | None = None) -> tuple[int, int]:
        """(limit, used): requests that usable replicas may have at once, and how many of these slots are taken."""
        limit = used = 0
        for group in self.groups(model, lane):
            limit += group.limit
            used += group.limit - group.room
        return limit, used

    def groups(
        self, model: str | None, lane: str | None, tried: frozenset[ReplicaId] = frozenset()
    ) -> tuple[ReplicaGroup, ...]:
        """Replicas that serve this lane and no other, if any of them is usable and untried: they are there so that the
        lane disturbs no other. Otherwise all that serve it among others."""
        dedicated, others = self._view(model, lane)
        if dedicated and (self.left(dedicated, tried) or not others):
            return dedicated
        return others

    def groups_now(self, model: str, lane: str) -> list[ReplicaGroup] | None:
        """As `groups`, for any thread: looked for each time. None: all replicas of the model serve all lanes."""
        groups = [group for group in tuple(self._groups.values()) if not group.names or model in group.names]
        if not any(group.lanes for group in groups):
            return None
        dedicated = [group for group in groups if group.lanes == {lane}]
        if sum([group.usable for group in dedicated]):
            return dedicated
        return [group for group in groups if not group.lanes or lane in group.lanes]

    def left(self, groups: tuple[ReplicaGroup, ...], tried: frozenset[ReplicaId]) -> int:
        """Number of usable replicas that have not been tried."""
        usable = sum(group.usable for group in groups)
        for replica_id in tried:
            seat = self.seat(replica_id)
            if seat is not None and seat.usable and seat.group in groups:
                usable -= 1
        return usable

    def least(self, groups: tuple[ReplicaGroup, ...]) -> Iterator[tuple[float, int, IndexEntry]]:
        """Replicas with free slots, least loaded first."""
        return iter(groups[0].ready) if len(groups) == 1 else merge(*(group.ready for group in groups))

    def roomiest(
        self, model: str | None, lane: str | None, slots: int, tried: frozenset[ReplicaId]
    ) -> ReplicaId | None:
        """The replica that lacks fewest of `slots` free slots, among the least loaded; a smaller replica needs only as
        many as it has. None: one lacks none, or none has a free slot."""
        best: IndexEntry | None = None
        lacks = 0
        for entry in islice(self.least(self.groups(model, lane, tried)), LOOKED_AT):
            seat = entry[2]
            lack = min(slots, seat.limit) - seat.room
            if seat.id not in tried and (best is None or lack < lacks):
                best, lacks = seat, lack
        return None if best is None or lacks <= 0 else best.id

    # -- the index --------------------------------------------------------------------------------------------

    def _key(self, seat: IndexEntry) -> float:
        load = seat.load
        if self.order == "work":
            return work_s(load, load.prefill_tokens, load.decode_tokens) / load.usable
        if self.order == "requests":
            return load.requests / load.usable
        if seat.entry is None:
            # A replica that is new, or back from being full or out, continues from here, and has no turns to catch up
            # on.
            seat.turn = max(seat.turn, seat.group.turn)
        return seat.turn

    def _place(self, seat: IndexEntry, key: float | None) -> None:
        ready, old = seat.group.ready, seat.entry
        if old is not None:
            if key == old[0]:
                return
            del ready[bisect_left(ready, old)]
        if key is None:
            seat.entry = None
        else:
            seat.entry = (key, seat.number, seat)
            insort(ready, seat.entry)

    def _count(self, seat: IndexEntry, usable: bool, limit: int, room: int) -> None:
        group = seat.group
        group.usable += usable - seat.usable
        group.limit += limit - seat.limit
        group.room += room - seat.room
        seat.usable, seat.limit, seat.room = usable, limit, room

    def _view(self, model: str | None, lane: str | None) -> tuple[tuple[ReplicaGroup, ...], tuple[ReplicaGroup, ...]]:
        # Names come from clients: names that no replica serves share one answer, so that the cache is bounded.
        key = (model if model in self._models else None, lane)
        view = self._views.get(key)
        if view is None:
            serving = [group for group in self._groups.values() if not group.names or model in group.names]
            dedicated = tuple(group for group in serving if lane is not None and group.lanes == {lane})
            open_to = (group for group in serving if lane is None or not group.lanes or lane in group.lanes)
            view = self._views[key] = (dedicated, tuple(group for group in open_to if group not in dedicated))
        return view

    def _look_again(self) -> None:
        self._views.clear()
        self.priced = len({group.price for group in self._groups.values()}) > 1
        self._models = dict.fromkeys(name for group in self._groups.values() for name in sorted(group.names))
