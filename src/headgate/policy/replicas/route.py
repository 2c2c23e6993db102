"""Chooses the replica for a request.

Filter → score → pick over a shortlist of at most eight, never over the whole fleet: holders of the prefix, the
session's own replicas, the least loaded, a few at random. `RouteIndex` keeps the index that makes the shortlist cheap;
an algorithm is a `Recipe` that says by what the index is ordered and what the shortlist is made of.

Load is seconds of work: prompt tokens that wait for prefill and output tokens still to come, each at the replica's own
measured speed. Affinity is a preference among replicas near the least load and never more: alone it once put a whole
fleet's traffic on one engine of eight.
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
from headgate.policy.replicas.affinity import Affinity, session_order
from headgate.policy.replicas.entry import IndexEntry, ReplicaPool
from headgate.policy.replicas.index import Order, RouteIndex, work_s

SCAN: Final = 32
"""Index entries examined when the least loaded do not fit: they were tried, or lack room for the request's tokens."""
HOMES: Final = 2
"""Maximum replicas of a session on the shortlist."""
URGENT_UPTO: Final = 0
"""Requests of this priority and above (smaller goes first) go to the least loaded, or to a warm cache no further behind
than the prefill it could save. They are never used to explore."""
SPREAD_FROM: Final = 3
"""Requests of this priority and below are spread at random, so that the least loaded are there for the urgent."""

Entry = tuple[float, int, IndexEntry]
Shortlist = dict[ReplicaId, Entry]
NO_MATCHES: dict[ReplicaId, int] = {}
NO_HOMES: list[ReplicaId] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    order: Order = "work"
    least: int = 2
    random: int = 0
    """How many of the least loaded replicas, and of replicas chosen at random, are on the shortlist."""
    prefix: bool = False
    sticky: Literal["session", "tenant"] | None = None
    tight: bool = False
    """Affinity counts only as far as the prefill it could save outweighs the wait it costs."""
    reason: str = "least_loaded"
    """Reason for a choice that no affinity decided."""


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
    __slots__ = ("reason", "replica_id", "scores")

    def __init__(self, replica_id: ReplicaId, reason: str, scores: tuple[ConsideredReplica, ...]) -> None:
        self.replica_id: Final = replica_id
        self.reason: Final = reason
        self.scores: Final = scores

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
    fleet: RouteIndex,
    affinity: Affinity,
    config: RoutingConfig,
    now: float,
    rng: random.Random,
    tried: frozenset[ReplicaId] = frozenset(),
) -> RouteChoice | NoRoom | NoReplica:
    """Where to send the request, and why; or that it has to wait; or that there is no replica to wait for."""
    recipe = _recipe(request, config, now, rng)
    if fleet.order != recipe.order:
        raise ValueError(f"{config.algorithm} needs a fleet ordered by {recipe.order}, not by {fleet.order}")
    pools = fleet.pools(request.model, request.lane, tried)
    matches = affinity.holders(request.prefix) if recipe.prefix and request.prefix else NO_MATCHES
    homes = _homes(request, recipe, pools) if recipe.sticky is not None else NO_HOMES
    near: Shortlist = {}
    if matches or homes:
        _add_known(near, request, fleet, pools, (*matches, *homes), tried)
    if recipe.random:
        _add_random(near, request, pools, recipe.random, tried, rng)
    if recipe.least or not near:
        _add_least(near, request, fleet, pools, recipe.least or 1, tried)
    if not near:
        left = fleet.left(pools, tried)
        return NoRoom(left) if left else NoReplica(sum(pool.replicas for pool in pools))
    scored, best = _score(request, near, matches, homes, recipe, config)
    if best.match:
        reason = "prefix"
    elif best.home and recipe.sticky is not None:
        reason = recipe.sticky
    else:
        reason = recipe.reason
    return RouteChoice(best.replica_id, reason, tuple(scored))


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


def _homes(request: Request, recipe: Recipe, pools: tuple[ReplicaPool, ...]) -> list[ReplicaId]:
    """The replicas that the request's session, or its tenant, belongs to."""
    key = request.session if recipe.sticky == "session" else request.tenant
    return session_order(key, [pool.ring for pool in pools], HOMES) if key is not None else NO_HOMES


def _add_known(
    near: Shortlist,
    request: Request,
    fleet: RouteIndex,
    pools: tuple[ReplicaPool, ...],
    known: tuple[ReplicaId, ...],
    tried: frozenset[ReplicaId],
) -> None:
    for replica_id in known:
        seat = fleet.seat(replica_id)
        if seat is not None and seat.entry is not None and seat.pool in pools and _fits(request, seat, tried):
            near[replica_id] = seat.entry


def _add_random(
    near: Shortlist,
    request: Request,
    pools: tuple[ReplicaPool, ...],
    count: int,
    tried: frozenset[ReplicaId],
    rng: random.Random,
) -> None:
    total = 0
    for pool in pools:
        total += len(pool.ready)
    for _ in range(count if total else 0):
        at = int(rng.random() * total)
        which = 0
        while at >= len(pools[which].ready):
            at -= len(pools[which].ready)
            which += 1
        entry = pools[which].ready[at]
        if _fits(request, entry[2], tried):
            near[entry[2].id] = entry


def _add_least(
    near: Shortlist,
    request: Request,
    fleet: RouteIndex,
    pools: tuple[ReplicaPool, ...],
    count: int,
    tried: frozenset[ReplicaId],
) -> None:
    for entry in islice(fleet.least(pools), SCAN):
        if count <= 0:
            break
        if _fits(request, entry[2], tried):
            near[entry[2].id] = entry
            count -= 1


# -- score ----------------------------------------------------------------------------------------------------


def _own_and_band(request: Request, floor: Entry, recipe: Recipe, config: RoutingConfig) -> tuple[float, float]:
    """Load that the request adds to a replica, and the maximum load at which affinity still counts."""
    if recipe.order != "work":
        return 1.0, 0.0
    load = floor[2].load
    prefill_s = work_s(load, request.prompt_tokens, 0)
    own = prefill_s + work_s(load, 0, request.max_output)
    return own, floor[0] + prefill_s if recipe.tight else (1.0 + config.bounded_load_epsilon) * floor[0] + own


def _score(
    request: Request,
    near: Shortlist,
    matches: dict[ReplicaId, int],
    homes: list[ReplicaId],
    recipe: Recipe,
    config: RoutingConfig,
) -> tuple[list[ConsideredReplica], ConsideredReplica]:
    """All scores, and the best; among equals the least loaded, then the first to have joined."""
    floor = min(near.values())
    least = floor[0]
    own, band = _own_and_band(request, floor, recipe, config)
    home = None
    for replica_id in homes:
        if replica_id in near and near[replica_id][0] <= band:
            home = replica_id
            break
    weights = config.weights
    load_weight, prefix_weight, session_weight = weights["load"], weights["prefix"], weights["session"]
    total = sum(weights.values())
    scored: list[ConsideredReplica] = []
    best_at, best_score, best_entry = 0, -1.0, floor
    for replica_id, entry in near.items():
        load = entry[0]
        match = 0.0
        score = load_weight * (least + own) / (load + own)
        if replica_id in matches and load <= band:
            match = matches[replica_id] / len(request.prefix)
            score += prefix_weight * match
        if replica_id == home:
            score += session_weight
        if score > best_score or (score == best_score and entry < best_entry):
            best_at, best_score, best_entry = len(scored), score, entry
        scored.append(ConsideredReplica(replica_id, score / total, load, match, replica_id == home))
    return scored, scored[best_at]
