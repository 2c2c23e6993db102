"""The dispatcher's read model: what others may ask, as frozen values."""

import random

import pytest

from headgate.config.hedge import HedgeConfig
from headgate.model.event import Ended, Probed, ReplicaJoined, ReplicaLeft, ReplicaParked, Shared
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.hedge import RESULTS, Hedger
from headgate.policy.replicas.health import Health
from headgate.policy.replicas.signs import HealthState
from headgate.policy.tenants.limits import TenantLimits
from tests.policy.driven import settings_of
from tests.policy.test_dispatcher import dispatcher, join, request, send


def test_a_view_says_of_each_lane_what_waits_and_runs() -> None:
    made = dispatcher(2)
    send(made, request(), request(), request(tokens=30))
    seen = made.view(0.0)
    assert [(one.lane.name, one.waiting, one.running, one.tokens) for one in seen.lanes.values()] == [
        (name, *((1, 2, 60) if name == "fast" else (0, 0, 0))) for name in LANES
    ]
    assert (seen.waiting, made.under_way) == (1, 3)
    assert made.queued() == (1, 60)
    assert seen.arrived_tokens == 100


def test_a_view_says_of_each_replica_how_it_stands() -> None:
    made = dispatcher(2, now=5.0)
    send(made, request(at=5.0))
    made.on(ReplicaJoined(Replica(id="b", url="http://b", slots=4)), 6.0)
    made.on(ReplicaParked("a", True), 6.0)
    seen = made.view(7.0)
    a, b = seen.replicas.values()
    assert (a.id, a.joined_at, a.usable, a.in_use, a.parked, a.requests, a.limit) == ("a", 5.0, 0, False, True, 1, 2)
    assert (a.share, a.tokens, a.cached_links) == (1.0, 10, 0)
    assert a.standing is not None
    assert a.standing.state is HealthState.UP
    assert (b.id, b.usable, b.in_use, b.parked) == ("b", 0.0, False, False)
    assert seen.usable == 0
    assert not made.any_usable()
    assert made.standing("a") == a.standing
    assert made.replica("a", 7.0) == a
    assert made.replica("c", 7.0) is None


def test_a_replica_that_comes_back_has_joined_later() -> None:
    made = dispatcher(2)
    made.on(ReplicaLeft("a"), 1.0)
    assert made.view(1.0).replicas == {}
    join(made, "a", 2, now=2.0)
    assert made.view(2.0).replicas["a"].joined_at == 2.0
    made.on(ReplicaJoined(Replica(id="a", url="http://a", slots=2, model="m")), 3.0)  # its name was found out
    assert made.view(3.0).replicas["a"].joined_at == 2.0


def test_a_view_is_made_once_for_a_moment_and_again_after_an_event() -> None:
    made = dispatcher(2)
    first = made.view(1.0)
    assert made.view(1.0) is first
    send(made, one := request(), now=1.0)
    second = made.view(1.0)
    assert (first.lanes["fast"].running, second.lanes["fast"].running) == (0, 1)
    assert made.view(1.5) is not second
    third = made.view(1.5)
    made.reconfigure(settings_of())
    assert made.view(1.5) is not third
    with pytest.raises(AttributeError):
        second.at = 2.0  # type: ignore[misc]
    made.on(Ended(one.id, Outcome.COMPLETED, (10, 5)), 2.0)
    assert (second.lanes["fast"].running, made.view(2.0).lanes["fast"].running) == (1, 0)


def test_utilisation_is_that_of_the_view() -> None:
    made = dispatcher(4)
    made.gauges_from(lambda replica_id: {"kv_ratio": 0.5})
    send(made, request())
    assert made.view(1.0).use == made.utilisation(1.0)
    assert made.use_of("a").known == {"slots": 0.25, "kv": 0.5}


def test_hedges_are_counted_by_lane_and_result_from_the_start() -> None:
    hedger = Hedger(HedgeConfig(enabled=True))
    made = Dispatcher(settings_of(), Health(), random.Random(1), hedger=hedger)
    assert made.view(0.0).hedges == {(lane, result): 0 for lane in ("fast", "slow") for result in RESULTS}
    assert dispatcher(1).view(0.0).hedges == {}


def test_what_is_shared_with_other_gateways_is_in_the_view() -> None:
    made = dispatcher(4)
    assert made.view(0.0).shared is None
    assert (made.shared_limits, made.part) == (None, (0.0, 1.0))
    made.on(Shared(2, 0.5, 1.0, True), 0.0)
    shared = made.view(0.0).shared
    assert shared is not None
    assert (shared.gateways, shared.connected, shared.part) == (2, True, 0.5)
    assert made.part == (0.5, 1.0)
    assert made.shared_limits is not None
    assert made.shared_limits.connected


def test_the_room_of_a_model_is_that_of_its_replicas() -> None:
    made = dispatcher()
    join(made, "a", 2, model="m")
    join(made, "b", 4, model="other")
    send(made, request(), request(), request())
    assert made.room("m") == (2, 2, 1)
    assert made.room("other") == (4, 0, 0)
    assert made.with_room("m") == []
    assert made.with_room("other") == ["b"]
    assert [one.id for one in made.replicas()] == ["a", "b"]


def test_lanes_and_models_without_a_usable_replica_are_unserved() -> None:
    made = dispatcher()
    for name, model, lanes in (("a", "m", ("slow",)), ("b", "m", ()), ("c", "other", ("slow", "gone"))):
        replica = Replica(id=name, url=f"http://{name}", slots=2, model=model, lanes=frozenset(lanes))
        made.on(ReplicaJoined(replica), 0.0)
    assert made.unserved(["a", "c"]) == (["slow"], ["m", "other"])
    made.on(Probed("b", ok=True), 0.0)
    assert made.unserved(["a", "c", "left"]) == ([], ["other"])


def test_what_a_replica_was_sent_is_told_while_it_is_idle() -> None:
    made = dispatcher(2)
    before = made.sent_to("a")
    send(made, one := request())
    assert made.sent_to("a") is None
    made.on(Ended(one.id, Outcome.COMPLETED, (10, 5)), 1.0)
    after = made.sent_to("a")
    assert before is not None
    assert after is not None
    assert after > before
    assert made.sent_to("c") is None


def test_a_tenants_limits_are_told_without_taking_from_them() -> None:
    made = dispatcher(8, tenants={"t": TenantLimits(requests_per_min=1)})
    assert made.limits_of("t") == TenantLimits(requests_per_min=1)
    assert (made.limits_of("u"), made.over_limit("u", 0.0), made.rates("u", 0.0)) == (None, None, None)
    assert made.over_limit("t", 0.0) is None
    send(made, request(tenant="t"))
    over, rates = made.over_limit("t", 0.0), made.rates("t", 0.0)
    assert over is not None
    assert over.which == "requests"
    assert rates is not None
    assert rates.requests is not None
    assert rates.requests.remaining == 0


def test_what_requests_hold_is_nothing_once_they_are_over() -> None:
    made = dispatcher(1)
    send(made, first := request(), second := request(tokens=7))
    held = made.holdings()
    assert (held["passages"], held["waiting"], held["waiting_by_model"], held["waiting_tokens"]) == (2, 1, 1, 14)
    assert (held["running"], held["room"], held["room_indexed"], held["prefill_tokens"]) == (1, 1, 1, 10)
    made.on(Ended(first.id, Outcome.COMPLETED, (10, 5)), 1.0)
    made.on(Ended(second.id, Outcome.COMPLETED, (10, 5)), 2.0)
    assert not any(made.holdings().values())
