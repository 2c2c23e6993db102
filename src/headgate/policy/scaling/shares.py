"""Attributes the demand on a fleet to its pools: each pool is scaled by the requests that it should have room for.

Requests of one model and lane are a source. A source belongs to the pools that could serve it: pools of that lane alone
before others, as routing has it (policy/replicas/index.py). Among several, the cheapest takes as much as it may ever
hold, and the next what is left. So the cheapest grows first; pools of one price share evenly. A dearer pool keeps what
it holds until a cheaper one has room for that, and then shrinks. Replicas that no pool owns cost nothing more, and hold
what they have room for.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from headgate.config.fleet import PoolConfig

Key = tuple[str | None, str]
"""Model and lane of a source."""


@dataclass(frozen=True, slots=True)
class DemandSource:
    """The demand of one model and lane."""

    model: str | None
    """None: for models that no replica serves by name."""
    lane: str
    waiting: int = 0
    waiting_tokens: int = 0
    present: float = 0.0
    """Requests waiting or at replicas, or more where a rollout will send more."""
    tokens_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolRoom:
    """What a pool holds and could hold."""

    names: frozenset[str]
    """Models that its replicas serve; empty: any."""
    lanes: frozenset[str]
    price: float
    now: float
    """Requests that its serving replicas hold at their target."""
    most: float
    """Requests that it could hold with all the replicas it may have; inf: not known yet."""
    requests: int = 0
    """Requests at its replicas."""
    grows: bool = False
    """More of its replicas could serve: parked ones, or further ones that can be started."""

    def serves(self, source: DemandSource) -> bool:
        named = not self.names or source.model in self.names
        return named and (not self.lanes or source.lane in self.lanes)


@dataclass(slots=True)
class PoolShare:
    """The part of the demand that a pool is scaled by."""

    waiting: int = 0
    waiting_tokens: int = 0
    present: float = 0.0
    tokens_per_s: float = 0.0
    carried_tokens_per_s: float = 0.0
    """The part of the arriving tokens that its replicas are sent."""
    may_start: bool = True
    """False: for all that it serves, a cheaper pool can still grow."""
    lanes: set[str] = field(default_factory=set)
    """Lanes whose late first tokens are a reason for this pool to grow."""


def room_of(
    pool: PoolConfig,
    names: frozenset[str],
    slots: Sequence[float],
    requests: int,
    more: int,
) -> PoolRoom:
    """`names`: found models of its replicas, where the config names none. `slots`: those of its serving replicas.
    `more`: replicas that it could have beside them, parked or started; 0 where no start succeeds."""
    target = pool.scale.utilisation_target
    each = sum(slots) / len(slots) if slots else pool.slots
    most = (inf if more else 0.0) if each is None else (len(slots) + more) * each * target
    return PoolRoom(
        names if pool.model is None else names | {pool.model},
        pool.lanes,
        pool.price or 0.0,
        sum(slots) * target,
        most,
        requests,
        more > 0,
    )


def attribute(
    sources: Sequence[DemandSource], rooms: Mapping[str, PoolRoom], owned: Collection[str]
) -> dict[str, PoolShare]:
    """The share of each pool in `owned`. Rooms that are not in `owned` are replicas that nothing scales."""
    shares = {name: PoolShare() for name in rooms}
    now = {name: room.now for name, room in rooms.items()}
    most = {name: room.most for name, room in rooms.items()}
    grows_for: dict[str, list[bool]] = {name: [] for name in rooms}
    could = {id(source): _could(source, rooms) for source in sources}
    for source in sorted(sources, key=lambda one: len(could[id(one)])):  # those with least choice first
        names = could[id(source)]
        own = [name for name in names if name in owned]
        if not own:
            continue
        first = _first(own, rooms)
        for name in own:
            grows_for[name].append(name in first or not rooms[first[0]].grows)
            if name in first or rooms[name].grows:
                shares[name].waiting += source.waiting
                shares[name].waiting_tokens += source.waiting_tokens
        for name in first:
            shares[name].lanes.add(source.lane)
        taken = _fill(source.present, names, rooms, now, most, first)
        _divide(source, names, taken, first, rooms, shares)
    for name in owned:
        shares[name].may_start = not grows_for[name] or any(grows_for[name])
    return {name: shares[name] for name in owned}


def _could(source: DemandSource, rooms: Mapping[str, PoolRoom]) -> list[str]:
    """Pools that could serve the source, the cheapest first: those of its lane alone, if there are any."""
    able = [name for name, room in rooms.items() if room.serves(source)]
    alone = [name for name in able if rooms[name].lanes == {source.lane}]
    return sorted(alone or able, key=lambda name: rooms[name].price)


def _first(own: Sequence[str], rooms: Mapping[str, PoolRoom]) -> list[str]:
    """The pools that grow: the cheapest that can; where none can, the cheapest."""
    growing = [name for name in own if rooms[name].grows] or own[:1]
    return [name for name in growing if rooms[name].price == rooms[growing[0]].price]


def _fill(
    present: float,
    names: Sequence[str],
    rooms: Mapping[str, PoolRoom],
    now: dict[str, float],
    most: dict[str, float],
    first: Sequence[str],
) -> dict[str, float]:
    """Requests for each pool: as many as it may ever hold, the cheapest first; and a dearer one keeps, up to what it
    has room for, those that the cheaper ones have no room for yet. Pools of one price share evenly, by their size."""
    taken: dict[str, float] = {}
    left = waits = present
    for price in sorted({rooms[name].price for name in names}):
        some = [name for name in names if rooms[name].price == price]
        grown, held = _shared(left, [most[name] for name in some]), _shared(waits, [now[name] for name in some])
        for name, more, kept in zip(some, grown, held, strict=True):
            taken[name] = max(more, kept)
            most[name] -= more
            now[name] -= kept
        left -= sum(grown)
        waits -= sum(held)
    for name in first:
        taken[name] += left / len(first)  # more than all may hold: the reasons for a decision say so
    return taken


def _shared(amount: float, rooms: Sequence[float]) -> list[float]:
    """Divides as much of an amount as there is room for, by the rooms' sizes; evenly among those without a limit."""
    unlimited = rooms.count(inf)
    if unlimited:
        return [amount / unlimited if room == inf else 0.0 for room in rooms]
    total = sum(rooms)
    part = min(1.0, amount / total) if total > 0 else 0.0
    return [part * room for room in rooms]


def _divide(
    source: DemandSource,
    names: Sequence[str],
    taken: Mapping[str, float],
    first: Sequence[str],
    rooms: Mapping[str, PoolRoom],
    shares: Mapping[str, PoolShare],
) -> None:
    requests = sum(rooms[name].requests for name in names)
    for name in names:
        share = shares[name]
        share.present += taken[name]
        part = taken[name] / source.present if source.present > 0 else float(name in first) / len(first)
        share.tokens_per_s += part * source.tokens_per_s
        sent = rooms[name].requests / requests if requests else float(name in first) / len(first)
        share.carried_tokens_per_s += sent * source.tokens_per_s


def planned(sources: Sequence[DemandSource], plans: Sequence[Mapping[str, float]]) -> list[DemandSource]:
    """The sources as rollouts will have them. A plan has the share of each version's model, now or at the next step of
    its rollout, whichever is more."""
    found = {(source.model, source.lane): source for source in sources}
    for plan in plans:
        lanes = {source.lane for source in sources if source.model in plan}
        for lane in sorted(lanes):
            parts = [found[model, lane] for model in plan if (model, lane) in found]
            present, tokens = sum(part.present for part in parts), sum(part.tokens_per_s for part in parts)
            for model, share in plan.items():
                before = found.get((model, lane), DemandSource(model, lane))
                found[model, lane] = DemandSource(
                    model,
                    lane,
                    before.waiting,
                    before.waiting_tokens,
                    max(before.present, share * present),
                    max(before.tokens_per_s, share * tokens),
                )
    return list(found.values())
