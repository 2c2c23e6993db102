import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.model.replica import Load, Replica
from headgate.policy.replicas.entry import ReplicaGroup
from headgate.policy.replicas.index import Order, RouteIndex, work_s
from tests.policy.indexed import enter, remove


def load(name: str, *, limit: float = 4.0, **facts: Any) -> Load:
    return Load(Replica(id=name, url="http://x", **facts), limit=limit)


def fleet_of(*loads: Load, order: Order = "work") -> RouteIndex:
    fleet = RouteIndex({}, order)
    for one in loads:
        enter(fleet, one)
    return fleet


def least(fleet: RouteIndex, model: str | None = "m", lane: str = "fast") -> list[str]:
    return [seat.id for _, _, seat in fleet.least(fleet.groups(model, lane))]


def send(fleet: RouteIndex, name: str, count: int = 1) -> None:
    fleet.loads[name].requests += count
    fleet.changed(fleet.loads[name])


# -- the index ------------------------------------------------------------------------------------------------


def test_least_loaded_first_and_ties_by_order_of_joining() -> None:
    a, b, c = load("a"), load("b"), load("c")
    fleet = fleet_of(c, a, b)
    assert [replica.id for replica in fleet.replicas()] == least(fleet) == ["c", "a", "b"]
    c.prefill_tokens = 100
    fleet.changed(c)
    assert least(fleet) == ["a", "b", "c"]
    b.decode_tokens = 1
    fleet.changed(b)
    assert least(fleet) == ["a", "b", "c"]
    c.prefill_tokens = 0
    fleet.changed(c)
    assert least(fleet) == ["c", "a", "b"]


def test_load_is_counted_against_the_replicas_own_speed() -> None:
    slow, quick = load("slow"), load("quick")
    slow.prefill_token_s, quick.prefill_token_s = 0.01, 0.001
    slow.prefill_tokens, quick.prefill_tokens = 100, 500
    assert work_s(slow, 100, 0) == pytest.approx(1.0)
    assert least(fleet_of(slow, quick)) == ["quick", "slow"]
    quick.tpot_s, quick.decode_tokens = 0.04, 400  # four at a time, and decoding counts for a quarter: another second
    assert work_s(quick, 500, 400) == pytest.approx(1.5)
    assert least(fleet_of(slow, quick)) == ["slow", "quick"]


def test_the_full_and_the_ejected_are_not_offered() -> None:
    a, b = load("a", limit=2.0), load("b", limit=2.0)
    fleet = fleet_of(a, b)
    send(fleet, "a", 2)
    assert least(fleet) == ["b"]
    b.usable = 0.0
    fleet.changed(b)
    assert least(fleet) == []
    assert (fleet.usable("m"), fleet.capacity("m")) == (1, (2, 2))
    a.requests = 1
    b.usable = 0.1
    fleet.changed(a)
    fleet.changed(b)
    assert least(fleet) == ["a", "b"]
    assert fleet.capacity("m") == (3, 1)  # a ramping replica has room for one at least
    remove(fleet, "a")
    assert (least(fleet), fleet.capacity("m")) == (["b"], (1, 0))


def test_a_replica_over_its_token_limit_has_no_room_unless_it_is_idle() -> None:
    a = load("a", token_limit=100)
    fleet = fleet_of(a)
    a.prefill_tokens = 100
    fleet.changed(a)
    assert least(fleet) == ["a"]
    send(fleet, "a")
    assert (least(fleet), fleet.capacity("m")) == ([], (4, 4))


def test_least_connections_come_first_when_asked_for() -> None:
    fleet = fleet_of(load("a"), load("b"), order="requests")
    fleet.loads["b"].prefill_tokens = 10_000
    send(fleet, "a")
    assert least(fleet) == ["b", "a"]


def turns(fleet: RouteIndex, count: int) -> str:
    names = []
    for _ in range(count):
        names.append(least(fleet)[0])
        send(fleet, names[-1])
    return "".join(names)


def test_turns_go_round_and_weights_give_more_of_them() -> None:
    a, b, c = (load(name, limit=99.0) for name in "abc")
    assert turns(fleet_of(a, b, c, order="turn"), 7) == "abcabca"
    a, b = load("a", limit=99.0, weight=3.0), load("b", limit=99.0)
    assert turns(fleet_of(a, b, order="weighted_turn"), 8).count("a") == 6


def test_who_was_away_has_no_turns_to_catch_up_on() -> None:
    a, b = load("a", limit=99.0), load("b", limit=99.0)
    fleet = fleet_of(a, b, order="turn")
    b.usable = 0.0
    fleet.changed(b)
    turns(fleet, 10)
    b.usable = 1.0
    fleet.changed(b)
    assert turns(fleet, 6).count("b") == 3
    a.usable = b.usable = 0.0
    fleet.changed(a)
    fleet.changed(b)
    enter(fleet, load("c", limit=99.0))
    a.usable = 1.0
    fleet.changed(a)
    assert turns(fleet, 8).count("a") in (3, 4)


# -- who serves what --------------------------------------------------------------------------------------------


def test_models_and_lanes_are_kept_apart_and_replicas_for_any_model_join_in() -> None:
    fleet = fleet_of(
        load("small", model="s"), load("large", model="l"), load("any"), load("fast", lanes=frozenset({"fast"}))
    )
    assert fleet.models() == ["s", "l"]
    assert fleet.by_name("s")
    assert not fleet.by_name("x")
    assert least(fleet, "s", "slow") == ["small", "any"]
    assert least(fleet, "l", "slow") == ["large", "any"]
    assert least(fleet, "unheard of", "slow") == ["any"]
    assert least(fleet, None, "slow") == ["any"]
    assert least(fleet, "s", "fast") == ["fast"]
    assert fleet.usable("s") == 3
    remove(fleet, "small")
    assert fleet.models() == ["l"]
    assert least(fleet, "s", "slow") == ["any"]


def test_names_made_up_by_clients_take_no_memory() -> None:
    fleet = fleet_of(load("any"))
    for number in range(1000):
        assert fleet.any_for(f"model {number}")
    assert len(fleet._views) == 1


def test_dedicated_replicas_are_used_alone_while_any_of_them_is_usable() -> None:
    fleet = fleet_of(
        load("shared"), load("both", lanes=frozenset({"long", "fast"})), load("long", lanes=frozenset({"long"}))
    )
    assert least(fleet, "m", "long") == ["long"]
    assert least(fleet, "m", "fast") == ["shared", "both"]
    assert least(fleet, "m", "batch") == ["shared"]
    send(fleet, "long", 4)
    assert least(fleet, "m", "long") == []
    assert [pool.lanes for pool in fleet.groups("m", "long", frozenset({"long"}))] == [frozenset(), {"long", "fast"}]
    fleet.loads["long"].usable = 0.0
    fleet.changed(fleet.loads["long"])
    assert least(fleet, "m", "long") == ["shared", "both"]
    for name in ("shared", "both"):
        remove(fleet, name)
    assert fleet.any_for("m", "long")
    assert not fleet.any_for("m", "fast")
    assert fleet.usable("m", "long") == 0


def test_a_replica_that_left_is_of_no_interest_and_one_that_joins_again_is_new() -> None:
    old = load("a")
    fleet = fleet_of(old)
    send(fleet, "a", 3)
    new = load("a")
    enter(fleet, new)
    old.requests = 99
    fleet.changed(old)
    assert fleet.capacity("m") == (4, 0)
    assert fleet.get("a") is new
    remove(fleet, "a")
    remove(fleet, "a")
    fleet.changed(new)
    assert (fleet.get("a"), fleet.any_for("m"), fleet.capacity("m")) == (None, False, (0, 0))


def counted(pool: ReplicaGroup, loads: list[Load]) -> None:
    assert pool.replicas == len(loads)
    assert pool.usable == sum(one.usable > 0 for one in loads)
    assert pool.room == sum(one.room for one in loads)
    assert [key for key, _, _ in pool.ready] == sorted(key for key, _, _ in pool.ready)
    assert {seat.id for _, _, seat in pool.ready} == {one.id for one in loads if one.room}


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), order=st.sampled_from(["work", "requests", "turn", "weighted_turn"]))
def test_whatever_changes_the_index_says_what_the_loads_say(seed: int, order: Order) -> None:
    rng, fleet = random.Random(seed), RouteIndex({}, order)
    for _ in range(60):
        name = f"r{rng.randrange(6)}"
        one = fleet.get(name)
        if one is None:
            enter(fleet, load(name, limit=rng.uniform(0.5, 6.0)))
        elif rng.random() < 0.1:
            remove(fleet, name)
        else:
            one.requests = max(0, one.requests + rng.choice((-1, 1)))
            one.prefill_tokens, one.decode_tokens = rng.randrange(5), rng.randrange(5)
            one.usable = rng.choice((0.0, 0.1, 1.0, 1.0))
            fleet.changed(one)
        for pool in fleet.groups("m", "fast"):
            counted(pool, list(fleet.loads.values()))


def test_a_lane_is_served_by_whoever_may_be_used_for_it_whatever_the_model() -> None:
    own, other = load("own", lanes=frozenset(("long",)), model="big"), load("other", lanes=frozenset(("fast",)))
    fleet = fleet_of(own, other)
    assert [fleet.serves_lane(lane) for lane in ("long", "fast", "batch")] == [True, True, False]
    own.usable = 0.0
    fleet.changed(own)
    assert not fleet.serves_lane("long")
    enter(fleet, load("any"))
    assert fleet.serves_lane("long")
