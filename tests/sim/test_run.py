"""The same dispatcher in virtual time: whatever comes is accounted for once, and the same seed gives the same run."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.gateway import GatewayConfig, RoutingConfig, Tenant
from headgate.machine.profile import Residuals, StepCost
from headgate.model.errors import StartupError
from headgate.report.results import Results
from headgate.sim.fleet import Failure, SimFleet, SimGroup, dilated, fleet_from, fleet_of
from headgate.sim.run import Level, run, simulate
from headgate.workload.arrival import Arrival
from headgate.workload.load import Workload
from tests.sim.scene import CONFIG, NO_DELAYS, machine, poisson, simulated

LEVELS: tuple[Level, ...] = ("step", "gateway")


def same(one: Results, other: Results) -> bool:
    names = ("at_s", "ttft_s", "tpot_s", "max_gap_s", "e2e_s", "queue_s", "kind", "output_tokens")
    return all(np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in names)


@pytest.mark.parametrize("level", LEVELS)
def test_the_same_seed_gives_the_same_run_and_another_another(level: Level) -> None:
    arrivals = poisson(1, 20.0, 300)
    noise = Residuals(1.0, ((0.8, 1.2), (1.0, 1.4)))
    first, again, other = (
        simulated(arrivals, level=level, replicas=3, seed=seed, decode_only=noise).results for seed in (1, 1, 2)
    )
    assert same(first, again)
    assert not same(first, other)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rate=st.sampled_from([3.0, 15.0, 60.0]),
    replicas=st.integers(1, 3),
    level=st.sampled_from(LEVELS),
    fails=st.booleans(),
)
def test_every_arrival_has_one_row_and_what_was_promised_of_tokens_is_given(
    seed: int, rate: float, replicas: int, level: Level, fails: bool
) -> None:
    arrivals = poisson(seed, rate, 80)
    failures = (Failure(0, 1.0, 2.0),) if fails else ()
    found = simulated(arrivals, level=level, replicas=replicas, seed=seed, failures=failures)
    results = found.results
    assert len(results) == len(arrivals)
    assert np.allclose(results.at_s, [arrival.at_s for arrival in arrivals])
    outputs = np.array([arrival.output_tokens for arrival in arrivals])
    assert (results.output_tokens[results.ok] == outputs[results.ok]).all()
    assert (results.e2e_s >= 0).all()
    streamed = results.ok & ~np.isnan(results.ttft_s)
    assert (results.ttft_s[streamed] <= results.e2e_s[streamed] + 1e-9).all()
    assert (results.queue_s <= results.e2e_s + 1e-9).all()
    # Little's law, from the area below the number of requests and from their own times.
    assert found.present_s == pytest.approx(float(results.e2e_s.sum()), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_beyond_capacity_low_lanes_are_refused_and_those_let_in_stay_quick(level: Level) -> None:
    arrivals = poisson(6, 80.0, 1500, prompt=(20, 300))
    results = simulated(arrivals, level=level).results
    refused = results.kind == 1
    assert refused.mean() > 0.3
    assert {results.reasons[why][:3] for why in results.why[refused]} == {"503"}
    assert np.quantile(results.values("ttft", "fast"), 0.99) < 0.6


@pytest.mark.parametrize("seed", [2, 3])
def test_on_a_slow_engine_prompts_of_low_lanes_do_not_fill_the_slots_that_chats_need(seed: int) -> None:
    """As much again as it can do, with a second's work in a prompt of batch and six in a document."""
    lanes = [
        replace(
            lane,
            ttft_target_s=8.0 * lane.ttft_target_s,
            gap_target_s=8.0 * lane.gap_target_s,
            wait_bound_s=8.0 * lane.wait_bound_s,
        )
        for lane in CONFIG.lanes
    ]
    mix = (
        "chat=poisson:rate=12,prompt=16-60,output=8-24,lane=fast; "
        "docs=poisson:rate=1,prompt=600-1400,output=16-48,lane=long; "
        "batch=poisson:rate=8,prompt=60-240,output=24-72,lane=batch"
    )
    config = replace(CONFIG, lanes=tuple(lanes), anonymous=replace(CONFIG.anonymous, trusted=True))
    cost = StepCost(fixed=0.001, per_prefill=0.0056, per_decode=0.011, per_context=1e-5)
    arrivals = list(Workload(mix, rate=1.6, duration_s=300.0).arrivals(seed))
    results = simulated(arrivals, config=config, cost=cost, slots=32, kv_tokens=32 * 4096).results
    assert not (results.of_lane("fast") & (results.kind == 1)).any()
    assert np.quantile(results.values("ttft", "fast"), 0.99) < 2.0


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_dead_replica_had_goes_on_elsewhere_unless_it_had_begun(level: Level) -> None:
    arrivals = poisson(7, 12.0, 400, prompt=(100, 900))
    results = simulated(arrivals, level=level, replicas=3, failures=(Failure(1, 10.5, 15.0),)).results
    failed = results.kind == 2
    assert 0 < failed.sum() <= 16
    ends = results.at_s[failed] + results.e2e_s[failed]
    assert np.allclose(ends, 10.5)  # in the middle of their streams, when it died
    assert (results.output_tokens[failed] >= 1).all()
    assert (results.kind[~failed] == 0).all()


@pytest.mark.parametrize("level", LEVELS)
def test_a_replica_that_comes_back_is_used_again_after_its_cold_start(level: Level) -> None:
    member = SimGroup(profile=machine(), cold_start_s=3.0)
    fleet = SimFleet(members=(member,), failures=(Failure(0, 5.0, 6.0),), delays=NO_DELAYS)
    arrivals = [Arrival(0.5 * number, 100, 2) for number in range(60)]
    results = simulate(CONFIG, arrivals, fleet, 1, level)
    served = results.at_s[results.ok] + results.ttft_s[results.ok]
    assert not ((served > 5.0) & (served < 9.0)).any()
    assert (served < 15.0).any()
    assert results.ok[results.at_s > 14.0].all()


def test_a_replica_that_starts_late_takes_its_share_from_then_on() -> None:
    late = SimGroup(profile=machine(), starts_s=5.0, cold_start_s=5.0)
    fleet = SimFleet(members=(SimGroup(profile=machine()), late), delays=NO_DELAYS)
    arrivals = poisson(9, 30.0, 700, prompt=(100, 300))
    found = run(CONFIG, arrivals, fleet, 1, "gateway").results
    waited = found.queue_s > 0
    assert waited[found.at_s < 9.5].mean() > 2 * waited[found.at_s > 16.0].mean()


def test_lanes_are_given_by_length_by_name_or_by_tenant() -> None:
    config = GatewayConfig(
        tenants=(Tenant(name="nightly", key_sha256=("0" * 64,), default_lane="batch", max_tokens=3),)
    )
    arrivals = [
        Arrival(0.0, 100, 2),
        Arrival(1.0, 1000, 2),
        Arrival(2.0, 100, 2, lane="long"),
        Arrival(3.0, 100, 9, tenant="nightly"),
        Arrival(4.0, 100, 2, stream=False),
    ]
    results = run(config, arrivals, fleet_of(machine(), 1), 1).results
    assert [results.lanes[lane] for lane in results.lane] == ["fast", "slow", "long", "batch", "slow"]
    assert results.output_tokens.tolist() == [2, 2, 2, 3, 2]
    with pytest.raises(StartupError, match="does not serve this workload: no lane 'quick'; there are fast, slow"):
        run(config, [Arrival(0.0, 100, 2, lane="quick")], fleet_of(machine(), 1), 1)


def test_a_tenants_limit_holds_in_virtual_time() -> None:
    limited = Tenant(name="anonymous", requests_per_min=30)
    results = run(GatewayConfig(anonymous=limited), poisson(2, 5.0, 300), fleet_of(machine(), 2), 1, "gateway").results
    refused = results.kind == 1
    assert refused.sum() > 200
    assert {results.reasons[why] for why in results.why[refused]} == {"429 over_limit"}


def test_fleets_come_from_configs_too() -> None:
    from headgate.model.replica import Replica

    replicas = (
        Replica(id="a", url="http://a", slots=4),
        Replica(id="b", url="http://b", lanes=frozenset(("batch",))),
    )
    fleet = fleet_from(GatewayConfig(replicas=replicas), machine())
    assert [(seat.replica.slots, sorted(seat.replica.lanes)) for seat in fleet.seats] == [(4, []), (None, ["batch"])]
    assert fleet_from(CONFIG, machine()).replicas == 1


def test_a_dilated_replica_takes_that_many_times_as_long() -> None:
    arrivals = [Arrival(0.0, 700, 20)]
    plain = simulated(arrivals).results
    slow = run(CONFIG, arrivals, SimFleet(members=(dilated(machine(), 4.0),), delays=NO_DELAYS), 1).results
    assert slow.e2e_s[0] == pytest.approx(4.0 * plain.e2e_s[0])


def test_no_such_replica_can_fail() -> None:
    with pytest.raises(StartupError, match="replica 3 can't fail"):
        simulated([Arrival(0.0, 10, 1)], failures=(Failure(3, 1.0),))


def test_any_routing_algorithm_can_be_tried() -> None:
    for algorithm in ("round_robin", "least_connections", "power_of_two"):
        config = GatewayConfig(routing=RoutingConfig(algorithm=algorithm))
        assert simulated(poisson(4, 10.0, 60), config=config, replicas=3).results.ok.all()
