"""Which pool is scaled by which part of the demand."""

from math import inf

import pytest

from headgate.config.fleet import PoolConfig
from headgate.config.scale import ScaleConfig
from headgate.policy.scaling.shares import DemandSource, PoolRoom, attribute, planned, room_of

ALL: frozenset[str] = frozenset()


def room(price: float = 0.0, now: float = 10.0, most: float = 100.0, *, names: frozenset[str] = ALL,
         lanes: frozenset[str] = ALL, requests: int = 0, grows: bool = True) -> PoolRoom:  # fmt: skip
    return PoolRoom(names, lanes, price, now, most, requests, grows)


def source(present: float = 0.0, model: str | None = "m", lane: str = "fast", waiting: int = 0) -> DemandSource:
    return DemandSource(model, lane, waiting, 100 * waiting, present, 10.0 * present)


def test_a_source_belongs_to_the_pools_of_its_model_and_lane() -> None:
    rooms = {
        "a": room(names=frozenset({"a"})),
        "b": room(names=frozenset({"b"})),
        "long": room(names=frozenset({"b"}), lanes=frozenset({"long"})),
    }
    found = attribute([source(3, "a"), source(4, "b", waiting=2), source(5, "b", "long")], rooms, rooms)
    assert {name: share.present for name, share in found.items()} == {"a": 3, "b": 4, "long": 5}
    assert [found[name].waiting for name in rooms] == [0, 2, 0]
    assert found["long"].lanes == {"long"}
    assert found["a"].tokens_per_s == 30.0


def test_a_pool_of_one_lane_alone_goes_before_those_that_serve_all() -> None:
    rooms = {"cheap": room(1), "fast": room(5, lanes=frozenset({"fast"}))}
    found = attribute([source(3), source(4, lane="batch")], rooms, rooms)
    assert (found["fast"].present, found["cheap"].present) == (3, 4)


def test_the_cheapest_takes_all_that_it_may_ever_hold_and_the_next_what_is_left() -> None:
    rooms = {"dear": room(5, now=0.0), "cheap": room(1, now=0.0, most=30.0)}
    found = attribute([source(50)], rooms, rooms)
    assert (found["cheap"].present, found["dear"].present) == (30, 20)
    assert (found["cheap"].tokens_per_s, found["dear"].tokens_per_s) == (300.0, 200.0)


def test_a_dearer_pool_keeps_what_it_holds_until_a_cheaper_one_has_room() -> None:
    rooms = {"cheap": room(1, now=10.0), "dear": room(5, now=15.0)}
    found = attribute([source(50)], rooms, rooms)
    assert (found["cheap"].present, found["dear"].present) == (50, 15)
    rooms["cheap"] = room(1, now=60.0)
    assert attribute([source(50)], rooms, rooms)["dear"].present == 0.0


def test_only_the_cheapest_that_can_grow_may_start_replicas() -> None:
    rooms = {"cheap": room(1), "dear": room(5)}
    found = attribute([source(5, waiting=3)], rooms, rooms)
    assert (found["cheap"].may_start, found["dear"].may_start) == (True, False)
    assert (found["cheap"].waiting, found["dear"].waiting) == (3, 3)  # a parked replica of either helps at once
    assert (found["cheap"].lanes, found["dear"].lanes) == ({"fast"}, set())
    rooms["cheap"] = room(1, grows=False)
    found = attribute([source(5, waiting=3)], rooms, rooms)
    assert (found["cheap"].waiting, found["dear"].waiting, found["dear"].may_start) == (0, 3, True)
    rooms["dear"] = room(5, grows=False)
    assert attribute([source(5)], rooms, rooms)["dear"].may_start


def test_a_pool_that_alone_serves_a_lane_may_start_for_it() -> None:
    rooms = {"cheap": room(1, lanes=frozenset({"fast", "slow"})), "dear": room(5)}
    assert attribute([source(5), source(5, lane="batch")], rooms, rooms)["dear"].may_start


def test_demand_beyond_all_is_the_growing_pools() -> None:
    rooms = {"cheap": room(1, most=10.0, grows=False), "dear": room(5, most=20.0)}
    found = attribute([source(50)], rooms, rooms)
    assert (found["cheap"].present, found["dear"].present) == (10, 40)


def test_fixed_replicas_hold_what_they_can_and_are_not_scaled() -> None:
    rooms = {"fixed": room(now=8.0, most=8.0, grows=False), "a": room(2)}
    found = attribute([source(20)], rooms, ["a"])
    assert (list(found), found["a"].present) == (["a"], 12.0)
    alone = attribute(
        [source(20, "x")], {"fixed": room(names=frozenset({"x"})), "a": room(names=frozenset({"y"}))}, ["a"]
    )
    assert alone["a"].present == 0.0


def test_what_a_pool_is_sent_is_told_apart_from_what_it_should_hold() -> None:
    rooms = {"cheap": room(1, requests=1), "dear": room(5, requests=3)}
    found = attribute([source(4)], rooms, rooms)
    assert found["cheap"].carried_tokens_per_s == pytest.approx(10.0)
    assert found["dear"].carried_tokens_per_s == pytest.approx(30.0)
    idle = attribute(
        [DemandSource("m", "fast", tokens_per_s=8.0)], {"cheap": room(1), "dear": room(5)}, ["cheap", "dear"]
    )
    assert (idle["cheap"].tokens_per_s, idle["cheap"].carried_tokens_per_s) == (8.0, 8.0)


def test_the_room_of_a_pool_follows_from_its_replicas_or_its_config() -> None:
    pool = PoolConfig(name="p", model="m", price=3.0, scale=ScaleConfig(utilisation_target=0.5))
    assert room_of(pool, ALL, [10.0, 20.0], 7, 2) == PoolRoom(frozenset({"m"}), ALL, 3.0, 15.0, 30.0, 7, True)
    assert room_of(pool, ALL, (), 0, 2).most == inf
    assert room_of(pool, ALL, (), 0, 0).most == 0.0
    assert room_of(PoolConfig(name="p", slots=4), frozenset({"x"}), (), 0, 2).names == {"x"}
    assert room_of(PoolConfig(name="p", slots=4), ALL, (), 0, 2).most == pytest.approx(4 * 2 * 0.65)


def test_a_rollouts_next_step_is_demand_already() -> None:
    before = [source(20, "old"), source(1, "new"), source(4, "old", "batch"), source(9, "else")]
    found = {(one.model, one.lane): one for one in planned(before, [{"old": 0.8, "new": 0.2}])}
    assert found["old", "fast"].present == 20
    assert found["new", "fast"].present == pytest.approx(0.2 * 21)
    assert found["new", "batch"].present == pytest.approx(0.8)
    assert found["new", "batch"].tokens_per_s == pytest.approx(8.0)
    assert found["else", "fast"].present == 9
    assert planned(before, []) == before


def test_pools_of_one_price_share_by_their_size() -> None:
    rooms = {"a": room(2, now=10.0, most=30.0), "b": room(2, now=10.0, most=60.0), "dear": room(5)}
    found = attribute([source(45, waiting=2)], rooms, rooms)
    assert (found["a"].present, found["b"].present) == (15.0, 30.0)
    assert found["dear"].present == 10.0  # it keeps what the others have no room for yet
    assert (found["a"].may_start, found["b"].may_start, found["dear"].may_start) == (True, True, False)
    unknown = {"a": room(2, now=0.0, most=inf), "b": room(2, now=0.0, most=inf), "c": room(2, now=0.0, most=9.0)}
    shares = attribute([source(30)], unknown, unknown)
    assert [share.present for share in shares.values()] == [15.0, 15.0, 0.0]
    none = {"a": room(now=0.0, most=0.0, grows=False)}
    assert attribute([source(5)], none, none)["a"].present == 5.0
