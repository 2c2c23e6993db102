from itertools import count
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.gateway import HealthConfig
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.policy.replicas.health import COOLDOWN_LIMIT_S, HealthVerdict
from headgate.policy.replicas.outlier import LOOK_S, SLOW_FOR_S, OutlierConfig
from headgate.policy.replicas.signs import NEXT, SAW, HealthState, Saw, Sign, as_mermaid
from tests.policy.watched import Watched


def replica(name: str, model: str | None = "m", **tags: str) -> Replica:
    return Replica(id=name, url="http://x", model=model, tags=tags)


def watching(*names: str, config: HealthConfig | None = None) -> Watched:
    health = Watched(config)
    for name in names:
        health.add(replica(name), 0.0)
    return health


def see(health: Watched, name: str, *saw: Saw, now: float = 0.0) -> HealthVerdict:
    verdicts = [health.on(name, one, now) for one in saw]
    return verdicts[-1]


def ejected(health: Watched, name: str, now: float = 0.0) -> float:
    """Put it out; the time at which its cooldown is over."""
    assert see(health, name, Saw.FAILURE, Saw.FAILURE, Saw.PROBE_FAILED, now=now).state is HealthState.EJECTED
    return health.wake_at()


def back(health: Watched, name: str, now: float) -> HealthVerdict:
    """Let it recover: it ramps from `now` on."""
    return see(health, name, Saw.PROBE_OK, Saw.PROBE_OK, now=now)


# -- the table --------------------------------------------------------------------------------------------


def test_every_sign_in_every_state_has_an_answer() -> None:
    assert list(NEXT) == list(Sign)
    assert all(
        len(row) == len(HealthState) and all(isinstance(after, HealthState) for after in row) for row in NEXT.values()
    )


def test_only_time_leads_out_of_ejection_and_only_probes_out_of_probation() -> None:
    assert [sign for sign in Sign if NEXT[sign][HealthState.EJECTED] is not HealthState.EJECTED] == [Sign.COOLDOWN_OVER]
    assert [sign for sign in Sign if NEXT[sign][HealthState.PROBATION] is HealthState.RAMPING] == [Sign.RECOVERED]


def test_from_every_state_there_is_a_way_up() -> None:
    for start in HealthState:
        reached = {start}
        while True:
            further = {NEXT[sign][state] for sign in Sign for state in reached} | reached
            if further == reached:
                break
            reached = further
        assert HealthState.UP in reached


def test_the_diagram_has_every_change_of_the_table() -> None:
    diagram = as_mermaid()
    assert diagram.startswith("stateDiagram-v2\n    [*] --> UP\n")
    edges = {line.strip().split(":")[0]: line.split(": ")[1].split(", ") for line in diagram.splitlines()[2:]}
    drawn = {(edge.split(" --> ")[0], edge.split(" --> ")[1], sign) for edge, signs in edges.items() for sign in signs}
    changes = {
        (was.name, after[was].name, sign.value)
        for sign, after in NEXT.items()
        for was in HealthState
        if after[was] is not was
    }
    assert drawn == changes


def test_every_outcome_says_something_of_its_replica_or_nothing() -> None:
    assert set(SAW) == set(Outcome)
    assert {outcome: saw for outcome, saw in SAW.items() if saw is not Saw.NEUTRAL} == {
        Outcome.COMPLETED: Saw.SUCCESS,
        Outcome.REPLICA_FAILED: Saw.FAILURE,
        Outcome.REPLICA_STALLED: Saw.STALL,
        Outcome.ENGINE_FAILED: Saw.FAILURE,
    }


# -- out ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [Saw.FAILURE, Saw.PROBE_FAILED, Saw.DEEP_FAILED])
def test_three_failures_in_a_row_put_a_replica_out(failure: Saw) -> None:
    health = watching("a", "b")
    assert see(health, "a", failure, failure) == HealthVerdict("a", False, 1.0, HealthState.UP, "joined")
    out = see(health, "a", failure)
    assert (out.changed, out.usable, out.state) == (True, 0.0, HealthState.EJECTED)
    assert failure.value in out.why
    assert health.share("a", 0.0) == 0.0


def test_failures_of_requests_and_probes_count_together() -> None:
    assert see(watching("a"), "a", Saw.FAILURE, Saw.PROBE_FAILED, Saw.FAILURE).state is HealthState.EJECTED


def test_a_stall_counts_twice() -> None:
    assert see(watching("a", "b"), "a", Saw.STALL, Saw.FAILURE).state is HealthState.EJECTED


@pytest.mark.parametrize("success", [Saw.SUCCESS, Saw.DEEP_OK])
def test_a_success_in_between_starts_the_count_again(success: Saw) -> None:
    saw = (Saw.FAILURE, Saw.FAILURE, success, Saw.FAILURE, Saw.FAILURE)
    assert see(watching("a"), "a", *saw).state is HealthState.UP


def test_probes_that_succeed_do_not_hide_requests_that_fail_nor_the_other_way_round() -> None:
    assert see(watching("a", "b"), "a", *(Saw.FAILURE, Saw.PROBE_OK) * 3).state is HealthState.EJECTED
    assert see(watching("a"), "a", *(Saw.PROBE_FAILED, Saw.SUCCESS) * 3).state is HealthState.EJECTED
    assert see(watching("a"), "a", *(Saw.DEEP_FAILED, Saw.PROBE_OK) * 3).state is HealthState.EJECTED


def test_clients_errors_disconnects_and_busy_replicas_count_against_nobody() -> None:
    health = watching("a", "b")
    assert see(health, "a", *[Saw.NEUTRAL] * 100).state is HealthState.UP
    assert (
        see(health, "a", Saw.FAILURE, Saw.NEUTRAL, Saw.FAILURE, Saw.NEUTRAL, Saw.FAILURE).state is HealthState.EJECTED
    )


def test_probes_may_put_out_everybody() -> None:
    health = watching("a", "b")
    for name in ("a", "b"):
        assert see(health, name, *[Saw.PROBE_FAILED] * 3).state is HealthState.EJECTED


# -- and back -----------------------------------------------------------------------------------------------


def test_a_late_success_does_not_bring_a_replica_back() -> None:
    health = watching("a")
    over = ejected(health, "a")
    assert see(health, "a", *[Saw.SUCCESS] * 50, *[Saw.PROBE_OK] * 50).state is HealthState.EJECTED
    assert see(health, "a", *[Saw.SUCCESS] * 50, *[Saw.FAILURE] * 50, now=over).state is HealthState.PROBATION


def test_after_the_cooldown_two_probes_in_a_row_bring_it_back_and_its_share_grows() -> None:
    health = watching("a")
    over = ejected(health, "a")
    assert over == 1.0
    (verdict,) = health.tick(over)
    assert (verdict.state, verdict.usable, health.wake_at()) == (HealthState.PROBATION, 0.0, inf)
    assert see(health, "a", Saw.PROBE_OK, Saw.PROBE_FAILED, now=1.5).state is HealthState.EJECTED
    assert health.wake_at() == 2.5
    ramping = back(health, "a", 2.5)
    assert (ramping.state, ramping.usable, ramping.changed) == (HealthState.RAMPING, 0.1, True)
    shares = []
    while health.wake_at() < inf:
        (verdict,) = health.tick(health.wake_at())
        assert verdict.changed
        shares.append(verdict.usable)
    assert shares == pytest.approx([0.1 + 0.09 * step for step in range(1, 11)])
    assert (verdict.state, health.share("a", 99.0)) == (HealthState.UP, 1.0)
    assert not see(health, "a", Saw.SUCCESS, now=99.0).changed


def test_time_counts_even_if_nobody_looked() -> None:
    health = watching("a")
    ejected(health, "a")
    assert back(health, "a", 100.0).state is HealthState.RAMPING
    assert health.share("a", 102.5) == pytest.approx(0.55)
    assert see(health, "a", Saw.NEUTRAL, now=106.0).state is HealthState.UP
    assert health.tick(200.0) == []


def test_without_a_ramp_a_replica_is_back_at_once() -> None:
    health = watching("a", config=HealthConfig(ramp_s=0.0))
    over = ejected(health, "a")
    assert back(health, "a", over).usable == 1.0
    assert [verdict.state for verdict in health.tick(over)] == [HealthState.UP]


def test_cooldowns_double_with_each_relapse_up_to_a_bound_and_are_forgiven() -> None:
    health = watching("a", config=HealthConfig(cooldown_s=12.0))
    now, cooldowns = 0.0, []
    for _ in range(5):
        over = ejected(health, "a", now)
        cooldowns.append(over - now)
        back(health, "a", over)
        now = over + 6.0
    assert cooldowns == [12.0, 24.0, 48.0, 60.0, 60.0]
    assert ejected(health, "a", now + 60.0) == now + 72.0


def test_a_relapse_while_ramping_is_one_too() -> None:
    health = watching("a")
    over = ejected(health, "a")
    back(health, "a", over)
    assert ejected(health, "a", over + 1.0) == over + 3.0


def test_a_revived_replica_is_in_use_within_five_seconds_however_often_it_died() -> None:
    health, now = watching("a"), 0.0
    for death in range(8):
        see(health, "a", *[Saw.FAILURE] * 64, now=now)  # all it had in flight
        for _ in range(3 + death):
            now += 1.0
            health.tick(now)
            see(health, "a", Saw.PROBE_FAILED, now=now)
        revived = now + 0.01
        while health.share("a", now) == 0.0:
            now += 1.0
            see(health, "a", Saw.PROBE_OK, now=now)
        assert now - revived <= 4.0


def test_deep_failures_are_not_disproved_by_shallow_probes() -> None:
    health = watching("a")
    see(health, "a", *[Saw.DEEP_FAILED] * 3)
    back(health, "a", 1.0)
    assert see(health, "a", Saw.DEEP_FAILED, now=2.0).state is HealthState.EJECTED
    see(health, "a", Saw.DEEP_OK, now=3.0)
    back(health, "a", 10.0)
    assert see(health, "a", Saw.DEEP_FAILED, Saw.DEEP_FAILED, now=11.0).state is HealthState.RAMPING


# -- outliers -----------------------------------------------------------------------------------------------


CLOCK = count()


def serve(
    health: Watched, name: str, requests: int, *, ttft_s: float = 0.2, tpot_s: float | None = 0.02
) -> HealthVerdict:
    """This number of requests, one a second."""
    for _ in range(requests):
        now = float(next(CLOCK))
        health.served(name, ttft_s, 100, tpot_s, now)
        verdict = see(health, name, Saw.SUCCESS, now=now)
    return verdict


def test_a_replica_that_fails_every_other_request_is_an_outlier() -> None:
    health = watching("a", "b")
    assert see(health, "a", *(Saw.SUCCESS, Saw.FAILURE) * 9).state is HealthState.UP
    verdict = see(health, "a", Saw.SUCCESS, Saw.FAILURE)
    assert (verdict.state, verdict.why) == (HealthState.EJECTED, "error rate")


@pytest.mark.parametrize(("ttft_s", "tpot_s", "why"), [(0.7, 0.02, "slow first tokens"), (0.2, 0.07, "slow tokens")])
def test_a_replica_three_times_slower_than_its_peers_is_an_outlier(ttft_s: float, tpot_s: float, why: str) -> None:
    health = watching("a", "b", "c")
    serve(health, "a", 30)
    serve(health, "b", 30)
    assert serve(health, "c", 18, ttft_s=ttft_s, tpot_s=tpot_s).state is HealthState.UP
    verdict = serve(health, "c", 10, ttft_s=ttft_s, tpot_s=tpot_s)
    assert (verdict.usable, verdict.why) == (0.0, why)


@pytest.mark.parametrize(("ttft_s", "tpot_s"), [(0.7, 0.02), (0.2, 0.07)])
def test_a_slow_one_is_put_out_soon_after_as_many_requests_as_it_takes_to_tell(ttft_s: float, tpot_s: float) -> None:
    """A request a second: it is known to be slow with the last sample, and slow for long enough after that."""
    health = watching("a", "b", "c")
    serve(health, "a", 30)
    serve(health, "b", 30)
    served = 0
    while serve(health, "c", 1, ttft_s=ttft_s, tpot_s=tpot_s).usable > 0:
        served += 1
    assert served == OutlierConfig().samples + SLOW_FOR_S - 1


def test_a_few_requests_that_are_far_off_make_no_outlier() -> None:
    """Another request's long prompt came before: a hundred times as slow, one in ten."""
    health = watching("a", "b", "c")
    for name in ("a", "b", "c"):
        serve(health, name, 30)
    for _ in range(10):
        serve(health, "c", 9)
        assert serve(health, "c", 1, ttft_s=20.0, tpot_s=1.0).state is HealthState.UP


def test_of_two_replicas_the_slow_one_stands_out_and_alone_none_does() -> None:
    health = watching("a", "b")
    serve(health, "a", 30)
    assert serve(health, "b", 30, ttft_s=5.0).usable == 0.0
    assert serve(health, "a", 30, ttft_s=50.0).state is HealthState.UP


def test_peers_are_looked_at_once_a_second_not_at_every_request() -> None:
    health = watching("a", "b")
    for number in range(40):
        health.served("ab"[number % 2], 0.2 if number % 2 else 5.0, 100, None, 0.5)
    assert see(health, "a", Saw.SUCCESS, now=0.5).state is HealthState.UP
    for now in (1.5, 1.5 + SLOW_FOR_S - 0.1):
        health.served("a", 5.0, 100, None, now)
        assert see(health, "a", Saw.SUCCESS, now=now).state is HealthState.UP
    health.served("a", 5.0, 100, None, 1.5 + SLOW_FOR_S + LOOK_S)
    assert see(health, "a", Saw.SUCCESS, now=1.5 + SLOW_FOR_S + LOOK_S).state is HealthState.EJECTED


def test_one_that_is_slow_for_a_moment_is_no_outlier() -> None:
    """A few long prompts came at once, and are over when it is looked at again."""
    health = watching("a", "b", "c")
    serve(health, "a", 30)
    serve(health, "b", 30)
    for _ in range(10):
        assert serve(health, "c", 24).state is HealthState.UP
        assert serve(health, "c", 4, ttft_s=3.0, tpot_s=0.5).state is HealthState.UP


def test_each_is_judged_at_each_look_although_another_had_it_taken() -> None:
    """A slow one ends few requests: seldom is one of them the first after a look was due."""
    health = watching("a", "b")
    for step in range(400):
        now = 0.05 * step
        health.success("b", 0.2, 100, None, now)
        verdict = health.success("a", 5.0, 100, None, now + 0.01)
        if verdict is not None and verdict.usable == 0.0:
            break
    assert health.ejections == 1


def test_only_alike_replicas_are_compared() -> None:
    health = Watched()
    for name, gpu in (("a", "H100"), ("b", "H100"), ("c", "L4")):
        health.add(replica(name, gpu_type=gpu), 0.0)
    serve(health, "a", 30)
    serve(health, "b", 30)
    assert serve(health, "c", 30, ttft_s=5.0, tpot_s=None).state is HealthState.UP


def test_a_replica_that_comes_back_is_judged_anew() -> None:
    health = watching("a", "b", "c")
    serve(health, "a", 30)
    serve(health, "b", 30)
    assert serve(health, "c", 30, ttft_s=5.0).usable == 0.0
    serve(health, "c", 30, ttft_s=5.0)  # late ones, which count for nothing
    back(health, "c", float(next(CLOCK)))
    assert serve(health, "c", 1, ttft_s=5.0).state is HealthState.RAMPING


def test_outliers_never_take_more_than_half_of_a_model() -> None:
    health = Watched(outlier=OutlierConfig(samples=4))
    names = [f"m{number}" for number in range(5)]
    for name in names:
        health.add(replica(name), 0.0)
    health.add(replica("alone", model="other"), 0.0)
    for name in (*names, "alone"):
        see(health, name, *(Saw.SUCCESS, Saw.FAILURE) * 20)
    assert [name for name in names if not health.share(name, 0.0)] == ["m0", "m1"]
    assert health.share("alone", 0.0) == 1.0


def test_outliers_do_not_take_what_the_dead_have_left() -> None:
    health = watching("a", "b", "c", "d")
    for name in ("a", "b"):
        see(health, name, *[Saw.PROBE_FAILED] * 3)
    assert see(health, "c", *(Saw.SUCCESS, Saw.FAILURE) * 20).state is HealthState.UP


# -- coming and going -----------------------------------------------------------------------------------------


def test_a_replica_may_have_to_prove_itself_before_its_first_request() -> None:
    health = Watched()
    health.add(replica("a"), 0.0, HealthState.PROBATION)
    assert health.of["a"].usable == 0.0
    assert back(health, "a", 1.0).state is HealthState.RAMPING


def test_a_replica_that_has_left_is_of_no_interest() -> None:
    health = watching("a", "b")
    ejected(health, "a")
    health.remove("a")
    assert (health.wake_at(), health.tick(5.0)) == (inf, [])


def test_a_replica_that_joins_again_starts_afresh() -> None:
    health = watching("a", "b")
    ejected(health, "a")
    health.add(replica("a"), 0.0)
    assert health.tick(50.0) == []
    assert health.share("a", 0.0) == 1.0
    see(health, "b", *(Saw.SUCCESS, Saw.FAILURE) * 20)
    assert health.share("b", 0.0) == 0.0  # the one who left is not among those who are out


# -- whatever happens -------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(Saw), st.floats(0.0, 3.0), st.floats(0.01, 5.0)), max_size=120
)


@settings(max_examples=50, deadline=None)
@given(steps=STEPS)
def test_whatever_is_seen_there_is_a_way_back_and_outliers_are_at_most_half(
    steps: list[tuple[int, Saw, float, float]],
) -> None:
    health, now, names = Watched(outlier=OutlierConfig(samples=3)), 0.0, [f"r{number}" for number in range(5)]
    for name in names:
        health.add(replica(name), now)
    by_outlier: set[str] = set()
    for at, saw, wait_s, ttft_s in steps:
        now += wait_s
        verdicts = health.tick(now)
        if saw is Saw.SUCCESS:
            health.served(names[at], ttft_s, 10, ttft_s, now)
        verdicts.append(health.on(names[at], saw, now))
        for verdict in {verdict.replica_id: verdict for verdict in verdicts}.values():  # the latest of each
            assert verdict.usable == health.share(verdict.replica_id, now)
            assert (verdict.usable == 0.0) == (verdict.state in (HealthState.EJECTED, HealthState.PROBATION))
            outlier = verdict.usable == 0.0 and verdict.why in ("error rate", "slow first tokens", "slow tokens")
            (by_outlier.add if outlier else by_outlier.discard)(verdict.replica_id)
        assert len(by_outlier) <= len(names) // 2
        assert health.wake_at() > now
    now += COOLDOWN_LIMIT_S
    for name in names:
        see(health, name, Saw.DEEP_OK, Saw.DEEP_OK, now=now)
    now += HealthConfig().ramp_s
    health.tick(now)
    assert [health.share(name, now) for name in names] == [1.0] * 5


# -- while it ramps up ----------------------------------------------------------------------------------------


def ramped(health: Watched, name: str, ttft_s: float, times: int, now: float) -> HealthState:
    for _ in range(times):
        health.success(name, ttft_s, 100, None, now)
    standing = health.of[name]
    return standing.state


@pytest.mark.parametrize("peers", [("a",), ("a", "b", "c")])
def test_one_that_is_slower_than_its_peers_is_out_before_its_ramp_is_over(peers: tuple[str, ...]) -> None:
    health = watching(*peers)
    for peer in peers:
        ramped(health, peer, 0.1, 30, 0.0)
    ramped(health, peers[0], 0.1, 1, 1.5)  # the peers' median is taken once a second
    health.add(replica("new"), 2.0, HealthState.RAMPING)
    assert ramped(health, "new", 0.5, 4, 2.1) is HealthState.RAMPING
    assert ramped(health, "new", 0.5, 1, 2.2) is HealthState.EJECTED
    standing = health.of["new"]
    assert standing.why == "slow during its ramp"


def test_a_slow_one_in_ten_during_the_ramp_is_chance_and_one_in_three_is_not() -> None:
    for every, after in ((10, HealthState.RAMPING), (3, HealthState.EJECTED)):
        health = watching("a", "b")
        ramped(health, "a", 0.1, 30, 0.0)
        ramped(health, "b", 0.1, 30, 0.0)
        ramped(health, "a", 0.1, 1, 1.5)
        health.add(replica("new"), 2.0, HealthState.RAMPING)
        for number in range(1, 31):
            state = ramped(health, "new", 0.5 if number % every == 0 else 0.1, 1, 2.1)
            if state is HealthState.EJECTED:
                break
        assert state is after


def test_one_that_fails_now_and_then_is_out_after_a_few_requests_of_its_ramp_and_not_of_its_life() -> None:
    saw = (Saw.FAILURE, Saw.SUCCESS, Saw.SUCCESS, Saw.FAILURE, Saw.SUCCESS)
    health = watching("a", "b")
    assert see(health, "a", *saw).state is HealthState.UP
    health.add(replica("new"), 0.0, HealthState.RAMPING)
    assert see(health, "new", *saw).state is HealthState.EJECTED
