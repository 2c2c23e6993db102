"""Chooses the replica for a request.

Filter → score → pick over a shortlist of at most eight, never over the whole fleet: holders of the prefix, the
session's own replicas, the least loaded, a few at random. `RouteIndex` keeps the index that makes the shortlist cheap;
an algorithm is a `Recipe` that says by what the index is ordered and what the shortlist is made of.

Replicas are compared by what the request would cost there, in seconds: the work that is there (prompt tokens that wait
for prefill and output tokens still to come) and the prompt tokens that the replica would have to compute, each at its
own measured speed. So a cached prefix counts for the time that it saves, until the holder's backlog costs more than to
compute the prompt elsewhere. A session is a preference among replicas near the least cost.
"""

import random
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from headgate.config.gateway import RoutingConfig
from headgate.config.hints import Algorithm
from headgate.model.record import ConsideredReplica
from headgate.model.replica import ReplicaId
from headgate.model.request import Request
from headgate.policy.replicas.entry import IndexEntry, ReplicaGroup
from headgate.policy.replicas.index import Order, RouteIndex, work_s
from headgate.policy.replicas.prefix_index import NOTHING_CACHED, CacheGuess, PrefixIndex
from headgate.policy.replicas.session_ring import session_order

SCAN: Final = 32
"""Index entries examined when the least loaded do not fit: they were tried, or lack room for the request's tokens."""
HOMES: Final = 2
"""Maximum replicas of a session on the shortlist."""
URGENT_UPTO: Final = 0
"""Requests of this priority and above (smaller goes first) are never used to explore, and their session counts only
between equal costs."""
SPREAD_FROM: Final = 3
"""Requests of this priority and below are spread at random, so that the least loaded are there for the urgent."""

COLD: Final = 4
"""Least loaded replicas on the shortlist of a prompt that no replica knows."""
SOON: Final = 0.1
"""Share of a prompt's own prefill by which it may begin later, for an even share of the caches."""
FILLED: Final = 0.8
"""Share of their room up to which the cheapest replicas are filled before dearer ones get a request."""
IN_TIME: Final = 0.5
"""Share of the time left until the first token is due that it may take at the cheapest replicas."""
INSTANT_S: Final = 1e-9
"""Seconds added to every cost, so that nothing is compared with nothing."""

Entry = tuple[float, int, IndexEntry]
Shortlist = dict[ReplicaId, Entry]
NO_HOLDERS: list[ReplicaId] = []
NO_HOMES: list[ReplicaId] = []
NOTHING_KNOWN: dict[ReplicaId, CacheGuess] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    order: Order = "work"
    least: int = 2
    random: int = 0
    """How many of the least loaded replicas, and of replicas chosen at random, are on the shortlist."""
    prefix: bool = False
    sticky: Literal["session", "tenant"] | None = None
    tight: bool = False
    """A session counts only between equal costs."""
    reason: str = "least_loaded"
    """Reason for a choice that neither prefix nor session decided."""


ALGORITHMS: dict[Algorithm, Recipe] = {
    "balanced": Recipe(least=1, prefix=True, sticky="session"),
    "round_robin": Recipe(order="turn", least=1, reason="its_turn"),
    "least_connections": Recipe(order="requests", reason="least_connections"),
    "weighted": Recipe(order="weighted_turn", least=1, reason="its_turn"),
    "token_aware": Recipe(),
    "power_of_two": Recipe(least=0, random=2, reason="two_choices"),
    "prefix": Recipe(prefix=True),
    "session": Recipe(sticky="session"),
    "tenant": Recipe(sticky="tenant"),
}
# What balanced does for some requests. Loads are counted here and exact, so that a replica chosen at random never beats
# the least loaded: random ones are put on the shortlist instead of the least loaded, not beside them.
BALANCED = ALGORITHMS["balanced"]
URGENT = Recipe(least=1, prefix=True, sticky="session", tight=True)
SPREAD = Recipe(least=0, random=3, prefix=True, sticky="session", reason="spread")
EXPLORE = Recipe(least=0, random=2, reason="exploration")


# -- answers --------------------------------------------------------------------------------------------------


class RouteChoice:
    # Written out, not a dataclass, whose constructor would stay interpreted where this is compiled.
    __slots__ = ("cached", "reason", "replica_id", "scores")

    def __init__(
        self,
        replica_id: ReplicaId,
        reason: str,
        scores: tuple[ConsideredReplica, ...],
        cached: CacheGuess = NOTHING_CACHED,
    ) -> None:
        self.replica_id: Final = replica_id
        self.reason: Final = reason
        self.scores: Final = scores
        self.cached: Final = cached
        """What the replica is expected to have of the prompt."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RouteChoice):
            return NotImplemented
        return (self.replica_id, self.reason, self.scores) == (other.replica_id, other.reason, other.scores)


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The request has to wait: `usable` replicas could serve it, and all are full."""

    usable: int


@dataclass(frozen=True, slots=True)
class NoReplica:
    """There is no replica to wait for. `known` replicas serve the model, but are out or were tried already; 0: no
    replica serves it at all."""

    known: int


# -- the choice -----------------------------------------------------------------------------------------------


def route(
    request: Request,
    index: RouteIndex,
    prefixes: PrefixIndex,
    config: RoutingConfig,
    now: float,
    rng: random.Random,
    tried: frozenset[ReplicaId] = frozenset(),
) -> RouteChoice | NoRoom | NoReplica:
    """Where to send the request, and why; or that it has to wait; or that there is no replica to wait for."""
    recipe = _recipe(request, config, now, rng)
    if index.order != recipe.order:
        raise ValueError(f"{config.algorithm} needs an index ordered by {recipe.order}, not by {index.order}")
    groups = index.groups(request.model, request.lane, tried)
    cheap = _cheapest(request, groups, now, recipe) if index.priced and len(groups) > 1 else groups
    holders = prefixes.holders(request.prefix) if recipe.prefix or recipe is EXPLORE else NO_HOLDERS
    if holders and recipe is EXPLORE:
        recipe = BALANCED  # a second copy of a prefix at a replica drawn at random would cost all others its room there
    homes = _homes(request, recipe, cheap) if recipe.sticky is not None else NO_HOMES
    near: Shortlist = {}
    if holders or homes:
        _add_known(near, request, index, groups, (*holders, *homes), tried)
    if recipe.random:
        _add_random(near, request, cheap, recipe.random, tried, rng)
    if recipe.least or not near:
        many = COLD if recipe is BALANCED and not holders else recipe.least or 1
        _add_least(near, request, index, cheap, many, tried)
        if not near and cheap is not groups:
            _add_least(near, request, index, groups, many, tried)
    if not near:
        left = index.left(groups, tried)
        return NoRoom(left) if left else NoReplica(sum(group.replicas for group in groups))
    cached = _cached(request, near, index, prefixes) if holders else NOTHING_KNOWN
    least = None
    if recipe is BALANCED and not holders:
        least = _least_given(request, near, now)
        most = near[least][2].load.recent(now) + request.tokens
        homes = [one for one in homes if one in near and near[one][2].load.recent(now) <= most]
    scored, best = _score(request, near, cached, homes, recipe, config)
    if least is not None and not best.home:
        best = next(one for one in scored if one.replica_id == least)
    guess = cached.get(best.replica_id, NOTHING_CACHED)
    if guess.tokens:
        reason = "prefix"
    elif best.home and recipe.sticky is not None:
        reason = recipe.sticky
    else:
        reason = recipe.reason
    return RouteChoice(best.replica_id, reason, tuple(scored), guess)


def _recipe(request: Request, config: RoutingConfig, now: float, rng: random.Random) -> Recipe:
    """The recipe for this request. Balanced sends urgent requests to the least loaded, and also those whose first token
    is already due."""
    if config.algorithm != "balanced":
        return ALGORITHMS[config.algorithm]
    if request.priority <= URGENT_UPTO or now >= request.first_token_by:
        return URGENT
    if rng.random() < config.exploration:
        return EXPLORE
    return SPREAD if request.priority >= SPREAD_FROM else BALANCED


def _cheapest(
    request: Request, groups: tuple[ReplicaGroup, ...], now: float, recipe: Recipe
) -> tuple[ReplicaGroup, ...]:
    """The cheapest groups that can serve the request as promised; all, where none can."""
    left_s = IN_TIME * (request.first_token_by - now)
    for price in sorted({group.price for group in groups}):
        some = tuple([group for group in groups if group.price == price])
        limit = room = 0
        for group in some:
            limit += group.limit
            room += group.room
        if limit - room < FILLED * limit and any(group.ready for group in some):
            first = min([group.ready[0] for group in some if group.ready])
            if recipe.order != "work":
                return some
            if first[0] + request.uncached_tokens * first[2].load.prefill_token_s <= left_s:
                return some
    return groups


# -- shortlist and filter -------------------------------------------------------------------------------------


def _fits(request: Request, seat: IndexEntry, tried: frozenset[ReplicaId]) -> bool:
    """Whether the replica was not tried yet, has a slot for each choice, and has room for the request's tokens. An idle
    replica takes anything: the request would fit better nowhere."""
    if tried and seat.id in tried:
        return False
    if request.choices > 1 and seat.room < min(request.choices, seat.limit):
        return False
    if seat.token_limit is None:
        return True
    return not seat.requests or seat.load.tokens + request.tokens <= seat.token_limit


def _homes(request: Request, recipe: Recipe, groups: tuple[ReplicaGroup, ...]) -> list[ReplicaId]:
    """The replicas that the request's session, or its tenant, belongs to."""
    key = request.session if recipe.sticky == "session" else request.tenant
    return session_order(key, [group.ring for group in groups], HOMES) if key is not None else NO_HOMES


def _add_known(
    near: Shortlist,
    request: Request,
    index: RouteIndex,
    groups: tuple[ReplicaGroup, ...],
    known: tuple[ReplicaId, ...],
    tried: frozenset[ReplicaId],
) -> None:
    for replica_id in known:
        seat = index.seat(replica_id)
        if seat is not None and seat.entry is not None and seat.group in groups and _fits(request, seat, tried):
            near[replica_id] = seat.entry


def _add_random(
    near: Shortlist,
    request: Request,
    groups: tuple[ReplicaGroup, ...],
    count: int,
    tried: frozenset[ReplicaId],
    rng: random.Random,
) -> None:
    total = 0
    for group in groups:
        total += len(group.ready)
    for _ in range(count if total else 0):
        at = int(rng.random() * total)
        which = 0
        while at >= len(groups[which].ready):
            at -= len(groups[which].ready)
            which += 1
        entry = groups[which].ready[at]
        if _fits(request, entry[2], tried):
            near[entry[2].id] = entry


def _add_least(
    near: Shortlist,
    request: Request,
    index: RouteIndex,
    groups: tuple[ReplicaGroup, ...],
    count: int,
    tried: frozenset[ReplicaId],
) -> None:
    for entry in islice(index.least(groups), SCAN):
        if count <= 0:
            break
        if _fits(request, entry[2], tried):
            near[entry[2].id] = entry
            count -= 1


# -- score ----------------------------------------------------------------------------------------------------


def _cached(request: Request, near: Shortlist, fleet: RouteIndex, prefixes: PrefixIndex) -> dict[ReplicaId, CacheGuess]:
    """What each replica of the shortlist is expected to have of the prompt; those with nothing are left out."""
    found: dict[ReplicaId, CacheGuess] = {}
    for replica_id in near:
        links = fleet.entries[replica_id].links
        guess = prefixes.guess(request.prefix, request.link_tokens, request.prompt_tokens, links)
        if guess.remembered:
            found[replica_id] = guess
    return found


def _cost(request: Request, entry: Entry, guess: CacheGuess | None, recipe: Recipe, prefix_weight: float) -> float:
    """What the request would cost at this replica, in seconds: the work that is there, and the prompt tokens that it
    would have to compute. Where replicas are not ordered by work: requests, or turns."""
    if recipe.order != "work":
        return entry[0] + 1.0
    uncached = float(request.prompt_tokens)
    if guess is not None:
        uncached = max(1.0, uncached - guess.tokens)
    return entry[0] + prefix_weight * uncached * entry[2].load.prefill_token_s


def _score(
    request: Request,
    near: Shortlist,
    cached: dict[ReplicaId, CacheGuess],
    homes: list[ReplicaId],
    recipe: Recipe,
    config: RoutingConfig,
) -> tuple[list[ConsideredReplica], ConsideredReplica]:
    """All scores, and the best; among equals the least loaded, then the first to have joined."""
    weights = config.weights
    load_weight, prefix_weight, session_weight = weights["load"], weights["prefix"], weights["session"]
    times = {
        replica_id: _cost(request, entry, cached.get(replica_id), recipe, prefix_weight)
        for replica_id, entry in near.items()
    }
    least_s = min(times.values())
    home = None
    if homes:
        band_s = _band_s(request, near, least_s, recipe, config)
        for replica_id in homes:
            if replica_id in near and times[replica_id] <= band_s:
                home = replica_id
                break
    total = (load_weight + session_weight) or 1.0
    scored: list[ConsideredReplica] = []
    best_at, best_score, best_entry = 0, -1.0, min(near.values())
    for replica_id, entry in near.items():
        score = load_weight * (least_s + INSTANT_S) / (times[replica_id] + INSTANT_S)
        if replica_id == home:
            score += session_weight
        if score > best_score or (score == best_score and entry < best_entry):
            best_at, best_score, best_entry = len(scored), score, entry
        guess = cached.get(replica_id)
        match = 0.0 if guess is None else guess.tokens / max(1, request.prompt_tokens)
        scored.append(ConsideredReplica(replica_id, score / total, entry[0], match, replica_id == home))
    return scored, scored[best_at]


def _least_given(request: Request, near: Shortlist, now: float) -> ReplicaId:
    """Chooses the replica that was given fewest tokens of late, among those that begin nearly as soon as the least
    loaded. The later turns of a prompt that is cached nowhere will go there, too, and push out of the cache what others
    come back for."""
    first = min(near.values())
    soon_s = first[0] + SOON * request.prompt_tokens * first[2].load.prefill_token_s
    best, fewest = first, first[2].load.recent(now)
    for entry in near.values():
        given = entry[2].load.recent(now)
        if entry[0] <= soon_s and (given < fewest or (given == fewest and entry < best)):
            best, fewest = entry, given
    return best[2].id


def _band_s(request: Request, near: Shortlist, least_s: float, recipe: Recipe, config: RoutingConfig) -> float:
    """The cost, in seconds, up to which the session's own replica is preferred. All recipes with sessions order
    replicas by work."""
    if recipe.tight:
        return least_s
    own_s = work_s(min(near.values())[2].load, 0, request.max_output)
    return (1.0 + config.bounded_load_epsilon) * least_s + own_s
