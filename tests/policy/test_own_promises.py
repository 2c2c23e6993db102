"""Requests that promise their own first token: order, bound and refusal follow the request, not its lane."""

import dataclasses

import pytest

from headgate.config.gateway import GatewayConfig, PromisesConfig, Tenant
from headgate.model.event import AttemptFailed, Command, Dispatch, Ended, Refuse, ReplicaLeft, Tick
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.request import Request
from headgate.policy.compose import classifier, intake_for
from headgate.policy.dispatch.intake import RequestIntake
from tests.policy.test_dispatcher import dispatcher, placed, refused, send
from tests.policy.test_dispatcher import request as of_lane


def made_by(intake: RequestIntake, ttft_s: float | None, tpot_s: float | None = None) -> Request:
    return intake.request(
        id="r", arrived=10.0, model="m", lane=LANES["fast"], priority=0, tenant=Tenant(name="a"), name="a",
        prompt_tokens=9, allowed=5, stream=True, choices=1, prefix=(), session=None, ttft_s=ttft_s, tpot_s=tpot_s,
    )  # fmt: skip


def promising(ttft_s: float, lane: str = "fast", at: float = 0.0, tenant: str = "anonymous") -> Request:
    first = of_lane(lane, at=at, tenant=tenant)
    return first.but(wait_until=at + LANES[lane].wait_bound_of(ttft_s), first_token_by=at + ttft_s, ttft_s=ttft_s)


@pytest.mark.parametrize(
    ("ttft_s", "deadline", "until"),
    [
        (None, 10.5, 10.4),
        (0.2, 10.2, 10.16),
        (0.499, 10.499, 10.3992),
        (0.5, 10.5, 10.4),
        (2.0, 12.0, 11.6),
        (0.001, 10.05, 10.04),
        (1e6, 310.0, 250.0),
    ],
)
def test_deadline_and_wait_bound_follow_the_promise_as_far_as_it_is_bounded(
    ttft_s: float | None, deadline: float, until: float
) -> None:
    found = made_by(intake_for(GatewayConfig(), dict(LANES)), ttft_s)
    assert found.first_token_by == pytest.approx(deadline)
    assert found.wait_until == pytest.approx(until)
    assert found.ttft_s == (None if ttft_s is None else pytest.approx(deadline - 10.0))


def test_a_promise_leaves_time_for_prefill_and_a_laxer_one_than_the_lanes_waits_as_long_as_the_lane_lets_it() -> None:
    slow = LANES["slow"]
    assert slow.wait_bound_s == slow.ttft_target_s == 2.0
    assert [slow.wait_bound_of(ttft_s) for ttft_s in (1.9, 2.0, 2.2, 5.0)] == [1.52, 1.6, 2.0, 4.0]
    found = [slow.wait_bound_of(0.01 * step) for step in range(1, 1000)]
    assert found == sorted(found), "who promises less never has to go sooner"


def test_the_time_per_token_is_bounded_and_a_new_config_has_other_bounds() -> None:
    intake = intake_for(GatewayConfig(), dict(LANES))
    assert [made_by(intake, None, tpot_s).tpot_s for tpot_s in (None, 0.001, 0.05, 99.0)] == [None, 0.005, 0.05, 10.0]
    intake.reconfigure(classifier(GatewayConfig()), None)
    assert made_by(intake, 99.0).ttft_s == 99.0
    intake.reconfigure(classifier(GatewayConfig()), None, PromisesConfig(ttft_most_s=20.0))
    assert made_by(intake, 99.0).ttft_s == 20.0


def test_within_a_lane_a_tenants_earliest_deadline_goes_first() -> None:
    made = dispatcher(1)
    running = of_lane()
    lax, usual, strict = promising(9.0), of_lane(), promising(0.3)
    send(made, running, lax, usual, strict)
    order = []
    for _ in range(3):
        (name,) = placed(made.on(Ended(running.id, Outcome.COMPLETED, (10, 5)), 0.1))
        order.append(name)
        running = next(one for one in (lax, usual, strict) if one.id == name)
    assert order == [strict.id, usual.id, lax.id]


def test_each_is_refused_when_its_own_bound_is_reached() -> None:
    made = dispatcher(1)
    strict, usual, lax = promising(0.2), of_lane(), promising(3.0)
    send(made, of_lane(), strict, usual, lax)
    ends: list[tuple[float, str, Command]] = []
    while made.wake_at < 10.0:
        at = made.wake_at
        ends += [(at, one.request_id, one) for one in made.on(Tick(), at)]
    assert [name for _, name, _ in ends] == [strict.id, usual.id, lax.id]
    assert [at for at, _, _ in ends] == pytest.approx([0.16, 0.4, 2.4])
    said = [one.message for _, _, one in ends if isinstance(one, Refuse)]
    assert said[0] == "it waited 0.16 s, all that the first token that it promises allows"
    assert said[1] == "it waited 0.40 s, all that lane 'fast' allows"


def test_a_wait_that_is_predicted_is_judged_by_the_requests_own_bound() -> None:
    made, now = dispatcher(1), 0.0
    running = of_lane("batch")
    send(made, running)
    for _ in range(30):  # one a second: so the queue drains
        follower = of_lane("batch", at=now)
        send(made, follower)
        now += 1.0
        assert placed(made.on(Ended(running.id, Outcome.COMPLETED, (10, 5)), now)) == [follower.id]
        running = follower
    send(made, *(of_lane("batch", at=now) for _ in range(3)))
    assert refused(send(made, promising(300.0, "batch", at=now))) == []
    (command,) = send(made, promising(2.0, "batch", at=now))
    assert isinstance(command, Refuse)
    assert command.outcome is Outcome.WOULD_WAIT_TOO_LONG
    assert command.message.endswith("and the first token that it promises allows 1.6 s")


def test_an_idle_replica_takes_whatever_is_promised() -> None:
    made = dispatcher(1)
    hurried = promising(0.05).but(prompt_tokens=10_000_000)
    assert placed(send(made, hurried)) == [hurried.id]


def test_a_request_that_failed_somewhere_waits_no_longer_than_it_promises() -> None:
    for ttft_s, until in ((0.2, 0.05 + 0.16), (None, 0.05 + 0.4), (5.0, 0.05 + 4.0)):
        made = dispatcher(1, 1)
        first = of_lane() if ttft_s is None else promising(ttft_s)
        (where,) = [one.replica_id for one in send(made, first) if isinstance(one, Dispatch)]
        send(made, of_lane(), now=0.0)  # the other replica is full now
        made.on(ReplicaLeft(where), 0.05)
        assert made.on(AttemptFailed(first.id, where, Outcome.REPLICA_FAILED), 0.05) == []
        assert made.passages[first.id].request.wait_until == pytest.approx(until)


def test_without_a_usable_replica_it_waits_as_long_as_any_other() -> None:
    made = dispatcher(1, no_replica_wait_s=10.0)
    first = promising(0.2)
    send(made, first)
    made.on(ReplicaLeft("a"), 0.01)
    made.on(AttemptFailed(first.id, "a", Outcome.REPLICA_FAILED), 0.05)
    assert made.passages[first.id].request.wait_until == pytest.approx(10.05)


def test_a_lane_that_waits_longer_than_its_target_keeps_that() -> None:
    lane = dataclasses.replace(LANES["fast"], wait_bound_s=9.0)
    assert lane.wait_bound_of(1.0) == 9.0
    assert lane.wait_bound_of(0.5) == 0.4, "as strict as the lane's target: what is said counts"
    assert lane.wait_bound_of(None) == 9.0


def test_a_promise_that_cant_be_kept_is_given_up_with_the_lane() -> None:
    made = dispatcher(1)
    strict = promising(0.2).but(when_late="relegate")
    send(made, of_lane(), strict)
    assert made.on(Tick(), 0.17) == []
    lower = made.passages[strict.id].request
    assert (lower.lane, lower.ttft_s, lower.wait_until, lower.first_token_by) == ("slow", None, 2.0, 2.0)


def test_a_lax_promise_is_relegated_only_to_a_lane_that_waits_longer() -> None:
    made = dispatcher(1)
    lax = promising(5.0).but(when_late="relegate")
    send(made, of_lane(), lax)
    assert made.on(Tick(), 4.0) == []
    assert made.passages[lax.id].request.lane == "long"
