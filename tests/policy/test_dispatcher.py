import dataclasses
import random
from itertools import count
from math import inf

import pytest

from headgate.model.event import (
    Arrived,
    AttemptFailed,
    Command,
    Dispatch,
    Ended,
    FirstToken,
    Probed,
    Refuse,
    ReplicaJoined,
    ReplicaLeft,
    Resumed,
    Tick,
)
from headgate.model.lane import LANES, Lane
from headgate.model.outcome import Outcome
from headgate.model.record import Ahead
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.model.tier import Tier
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.queues import SetAside
from headgate.policy.replicas.health import Health
from headgate.policy.tenants.limits import TenantLimits
from tests.policy.driven import settings_of

numbers = count()


def request(
    lane: str = "fast",
    *,
    at: float = 0.0,
    tenant: str = "anonymous",
    model: str = "m",
    tokens: int = 10,
    tier: str = "free",
    stream: bool = True,
) -> Request:
    promise = LANES[lane]
    return Request(
        id=f"r{next(numbers)}",
        arrived=at,
        model=model,
        lane=lane,
        priority=promise.priority,
        tenant=tenant,
        tier=tier,
        prompt_tokens=tokens,
        max_output=tokens,
        stream=stream,
        wait_until=at + promise.wait_bound_s,
        first_token_by=at + promise.ttft_target_s,
    )


def dispatcher(
    *slots: int,
    tenants: dict[str, TenantLimits] | None = None,
    now: float = 0.0,
    no_replica_wait_s: float = 10.0,
    tiers: dict[str, Tier] | None = None,
    lanes: dict[str, Lane] = LANES,
) -> Dispatcher:
    """With a healthy replica for each number, called a, b, c …"""
    made = Dispatcher(
        settings_of(lanes, tenants, tiers=tiers), Health(), random.Random(1), no_replica_wait_s=no_replica_wait_s
    )
    for name, size in zip("abcdefgh", slots, strict=False):
        join(made, name, size, now)
    return made


def join(made: Dispatcher, name: str, slots: int | None, now: float = 0.0, model: str | None = None) -> None:
    made.on(ReplicaJoined(Replica(id=name, url=f"http://{name}", slots=slots, model=model)), now)
    made.on(Probed(name, ok=True), now)


def send(made: Dispatcher, *requests: Request, now: float | None = None) -> list[Command]:
    return [c for r in requests for c in made.on(Arrived(r), r.arrived if now is None else now)]


def placed(commands: list[Command]) -> list[str]:
    return [c.request_id for c in commands if isinstance(c, Dispatch)]


def refused(commands: list[Command]) -> list[Outcome]:
    return [c.outcome for c in commands if isinstance(c, Refuse)]


# -- room and waiting -------------------------------------------------------------------------------------


def test_whoever_finds_room_goes_at_once_and_whoever_does_not_waits() -> None:
    made = dispatcher(2)
    first, second, third = request(), request(), request()
    assert placed(send(made, first, second, third)) == [first.id, second.id]
    assert placed(made.on(Ended(first.id, Outcome.COMPLETED, (10, 5)), 0.1)) == [third.id]


def test_an_idle_replica_takes_anything_however_long_it_will_take() -> None:
    made = dispatcher(1)
    assert placed(send(made, request(tokens=10_000_000)))


def test_a_request_that_reaches_its_bound_is_refused_then_and_told_when_to_come_back() -> None:
    made = dispatcher(1)
    send(made, request(), request(at=0.0))
    assert made.wake_at == pytest.approx(0.4)
    (command,) = made.on(Tick(), 0.41)
    assert isinstance(command, Refuse)
    assert command.outcome is Outcome.WAITED_TOO_LONG
    assert command.retry_after_s is not None
    assert 0 < command.retry_after_s < 2
    assert made.wake_at == inf or made.wake_at > 0.41


def test_where_no_replica_is_full_only_the_queue_says_when_to_come_back() -> None:
    """Ten requests end each second, and two may wait: a turn comes in a few tenths of a second."""
    made = dispatcher(1, lanes={**LANES, "fast": dataclasses.replace(LANES["fast"], queue_limit=2)})
    now, there = 0.0, [request() for _ in range(3)]
    send(made, *there)
    for _ in range(50):
        now += 0.1
        made.on(Ended(there.pop(0).id, Outcome.COMPLETED, (10, 5)), now)
        there.append(request(at=now))
        send(made, there[-1])
    assert made.passages[there[-1].id].lane_queue.drain.per_second(now) == pytest.approx(10.0, rel=0.1)
    (command,) = send(made, request(at=now))
    assert isinstance(command, Refuse)
    assert command.outcome is Outcome.LANE_FULL
    assert command.retry_after_s is not None
    assert command.retry_after_s < 0.7


def test_slots_come_back_one_after_the_other_and_then_again() -> None:
    made, first = dispatcher(1), request()
    send(made, first)
    queue = made.passages[first.id].lane_queue.model_queue
    assert [queue.free_in_s(ahead, 2.0, 0.5) for ahead in (0, 1, 2)] == [1.5, 3.5, 5.5]
    both, one, two = dispatcher(2), request(), request(at=0.25)
    send(both, one, two)
    queue = both.passages[one.id].lane_queue.model_queue
    assert [queue.free_in_s(ahead, 2.0, 0.5) for ahead in (0, 1, 2, 3)] == [1.5, 1.75, 3.5, 3.75]


def test_a_request_predicted_to_wait_too_long_is_refused_on_arrival() -> None:
    made, now = dispatcher(1), 0.0
    running = request()
    send(made, running)
    for _ in range(30):  # one at a time, a second each: the queue drains at one a second
        follower = request("slow", at=now)
        send(made, follower)
        now += 1.0
        made.on(Ended(running.id, Outcome.COMPLETED, (10, 5)), now)
        running = follower
    queue = [request("slow", at=now) for _ in range(4)]
    assert refused(send(made, *queue)) == [Outcome.WOULD_WAIT_TOO_LONG] * 2


def test_a_full_lane_refuses_at_once() -> None:
    made = dispatcher(1)
    commands = send(made, *(request() for _ in range(1026)))
    assert refused(commands) == [Outcome.LANE_FULL]


def test_without_any_replica_requests_wait_for_one_to_come_up_and_no_longer_than_that_budget() -> None:
    made = dispatcher(no_replica_wait_s=5.0)
    lucky, late = request(), request()
    assert send(made, lucky, late) == []
    assert made.on(Tick(), 1.0) == []
    assert refused(made.on(Tick(), 5.1)) == [Outcome.NO_REPLICA, Outcome.NO_REPLICA]
    made = dispatcher(no_replica_wait_s=5.0)
    send(made, lucky)
    assert made.on(ReplicaJoined(Replica(id="a", url="http://a", slots=1)), 3.0) == []
    assert placed(made.on(Probed("a", ok=True), 3.1)) == [lucky.id]


def test_a_model_nobody_has_is_unknown_and_says_what_there_is() -> None:
    made = dispatcher()
    join(made, "a", 4, model="llama")
    (command,) = send(made, request(model="gpt"))
    assert isinstance(command, Refuse)
    assert command.outcome is Outcome.UNKNOWN_MODEL
    assert command.retry_after_s is None, "no retry finds a model that is not there"
    assert "llama" in command.message
    assert placed(send(made, request(model="llama")))


def test_a_client_that_leaves_the_queue_is_forgotten() -> None:
    made = dispatcher(1)
    first, second, third = request(), request(), request()
    send(made, first, second, third)
    assert made.on(Ended(second.id, Outcome.CANCELLED), 0.1) == []
    assert placed(made.on(Ended(first.id, Outcome.COMPLETED, (1, 1)), 0.2)) == [third.id]
    made.on(Ended(third.id, Outcome.CANCELLED), 0.3)
    assert made.passages == {}


# -- lanes --------------------------------------------------------------------------------------------------


def test_the_fast_lane_gets_its_reserve_back_first() -> None:
    made = dispatcher(8)
    slow = [request("slow") for _ in range(12)]
    send(made, *slow)
    fast = [request("fast") for _ in range(3)]
    send(made, *fast)
    freed = [made.on(Ended(one.id, Outcome.COMPLETED, (10, 10)), 0.1) for one in slow[:2]]
    assert [placed(commands) for commands in freed] == [[fast[0].id], [fast[1].id]]


def test_low_lanes_are_held_back_first_but_an_idle_fleet_takes_them() -> None:
    made = dispatcher(10)
    batch = [request("batch") for _ in range(10)]
    assert len(placed(send(made, *batch))) == 8
    assert len(placed(send(made, *(request("fast") for _ in range(3))))) == 2


def test_lower_lanes_leave_a_little_room_to_the_lane_that_is_at_work_before_them() -> None:
    made = dispatcher(64)
    send(made, *(request("fast") for _ in range(16)))
    slow = [request("slow", tokens=5) for _ in range(65)]
    assert len(placed(send(made, *slow))) == 64 - 16 - 8  # twice the root of 16
    assert len(placed(send(made, *(request("fast") for _ in range(9))))) == 8
    alone = dispatcher(64)
    assert len(placed(send(alone, *slow))) == 64


def test_room_left_free_keeps_nobody_from_its_own_share() -> None:
    made = dispatcher(28)
    send(made, *(request("fast") for _ in range(25)))
    slow = [request("slow") for _ in range(4)]
    assert placed(send(made, *slow)) == [one.id for one in slow[:3]]


def test_long_prefills_are_two_for_each_replica_however_much_room_there_is() -> None:
    made = dispatcher(64, 64)
    long = [request("slow", tokens=600) for _ in range(6)]
    assert placed(send(made, *long)) == [one.id for one in long[:4]]
    assert placed(made.on(FirstToken(long[0].id), 0.1)) == [long[4].id]


def test_long_prefills_of_less_urgent_lanes_hold_nobody_back() -> None:
    """Beside two prompts of 100 000 tokens 11 of 13 requests of the slow lane were refused."""
    made = dispatcher(64)
    assert len(placed(send(made, *(request("long", tokens=100_000) for _ in range(3))))) == 2
    slow = [request("slow", tokens=tokens) for tokens in (600, 8000, 700)]
    assert placed(send(made, *slow)) == [one.id for one in slow[:2]]  # the third waits for its own lane's
    fast = [request("fast", tokens=600) for _ in range(3)]
    assert placed(send(made, *fast)) == [one.id for one in fast[:2]]
    assert not placed(send(made, request("batch", tokens=600)))


def test_low_lanes_send_no_more_prompts_than_replicas_are_busy_with() -> None:
    """Six prompts of batch in the slots of a small engine would be prefilled no sooner, and keep a chat waiting."""
    made = dispatcher(8)
    batch = [request("batch", tokens=150) for _ in range(6)]
    assert placed(send(made, *batch)) == [one.id for one in batch[:4]]
    assert len(placed(send(made, *(request("fast", tokens=150) for _ in range(4))))) == 4  # room, and its own turn
    exactly = dispatcher(8)
    assert len(placed(send(exactly, *(request("batch", tokens=256) for _ in range(4))))) == 2  # 512 tokens are enough
    small = dispatcher(64)
    assert len(placed(send(small, *(request("batch", tokens=10) for _ in range(40))))) == 40  # all of it in one step


def test_the_next_prompt_of_a_low_lane_is_sent_when_one_is_prefilled() -> None:
    made = dispatcher(8)
    batch = [request("batch", tokens=200) for _ in range(5)]
    assert placed(send(made, *batch)) == [one.id for one in batch[:3]]
    assert placed(made.on(FirstToken(batch[1].id), 0.1)) == [batch[3].id]
    assert not placed(made.on(FirstToken(batch[1].id), 0.2))
    assert placed(made.on(AttemptFailed(batch[0].id, "a", Outcome.CANCELLED), 0.3)) == [batch[4].id]


def test_the_prompt_of_an_answer_in_one_piece_counts_for_as_long_as_it_should_take() -> None:
    made = dispatcher(64)
    whole = [request("batch", tokens=1000, stream=False) for _ in range(6)]
    assert placed(send(made, *whole)) == [one.id for one in whole[:2]]
    assert made.wake_at == pytest.approx(0.1)
    assert not placed(made.on(Tick(), 0.09))
    assert placed(made.on(Tick(), 0.1)) == [one.id for one in whole[2:4]]
    assert placed(made.on(Ended(whole[2].id, Outcome.CANCELLED), 0.15)) == [whole[4].id]
    assert placed(made.on(Tick(), 0.2)) == [whole[5].id]  # the other one is over; the one that ended counts once
    made.on(Tick(), 9.0)
    (pool,) = made.model_queues.values()
    assert all((state.prefills, state.prefill_tokens) == (0, 0) for state in pool.lanes.values())


def test_and_how_long_that_is_is_learned_from_those_that_are_streamed() -> None:
    made = dispatcher(64)
    for turn in range(60):
        send(made, one := request("slow", at=turn, tokens=1000))
        made.on(FirstToken(one.id), turn + 2.0)
        made.on(Ended(one.id, Outcome.COMPLETED, (1000, 1)), turn + 2.0)
    whole = [request("batch", at=100.0, tokens=500, stream=False) for _ in range(3)]
    assert placed(send(made, *whole)) == [one.id for one in whole[:2]]
    assert made.wake_at == pytest.approx(101.0, abs=0.1)


def test_a_lane_that_was_away_or_had_little_to_do_has_saved_nothing_up() -> None:
    """While batch waits and fast is served, slow sends little. Then it floods: fast must not feel that."""
    plain = {name: dataclasses.replace(lane, reserve=0.0, hold_above=1.0) for name, lane in LANES.items()}
    made, now = dispatcher(8, lanes=plain), 0.0
    running = placed(send(made, *(request("batch", at=now) for _ in range(200))))
    served = dict.fromkeys(("fast", "slow", "batch"), 0)
    for turn in range(1200):
        now += 0.01
        flood = turn >= 800
        running += placed(send(made, request("fast", at=now), request("fast", at=now)))
        if flood or turn % 100 == 0:
            running += placed(send(made, request("slow", at=now), request("slow", at=now)))
        running += placed(made.on(Tick(), now))
        done = running.pop(0)
        served[made.passages[done].request.lane] += flood
        running += placed(made.on(Ended(done, Outcome.COMPLETED, (10, 10)), now))
    assert served["fast"] > 1.5 * served["slow"] > 0


def test_backlogged_lanes_share_by_weight() -> None:
    made, now = dispatcher(1), 0.0
    running = request("batch")
    send(made, running)
    lanes = dict.fromkeys(("fast", "slow", "batch"), 0)
    waiting = {lane: request(lane, at=now) for lane in lanes}
    send(made, *waiting.values())
    for _ in range(260):
        now += 0.01
        (started,) = placed(made.on(Ended(running.id, Outcome.COMPLETED, (10, 10)), now))
        running = made.passages[started].request
        lanes[running.lane] += 1
        waiting[running.lane] = request(running.lane, at=now)
        send(made, waiting[running.lane])
    assert lanes["fast"] > lanes["slow"] * 1.5 > lanes["batch"] * 2
    assert lanes["batch"] > 5


def test_a_lane_keeps_to_its_concurrency() -> None:
    from dataclasses import replace

    lanes = {**LANES, "slow": replace(LANES["slow"], concurrency=2)}
    made = Dispatcher(settings_of(lanes), Health(), random.Random(1))
    join(made, "a", 8)
    assert len(placed(send(made, *(request("slow") for _ in range(5))))) == 2


# -- tenants ------------------------------------------------------------------------------------------------


def test_a_tenant_over_its_limit_is_refused_with_the_exact_time_and_gets_back_what_it_did_not_use() -> None:
    made = dispatcher(8, tenants={"t": TenantLimits(tokens_per_min=60)})
    first = request(tenant="t", tokens=30)
    assert placed(send(made, first))
    (command,) = send(made, request(tenant="t", tokens=10))
    assert isinstance(command, Refuse)
    assert command.outcome is Outcome.OVER_LIMIT
    assert command.retry_after_s == pytest.approx(20.0, abs=1)
    made.on(FirstToken(first.id), 0.1)
    made.on(Ended(first.id, Outcome.COMPLETED, (5, 5)), 0.2)
    assert placed(send(made, request(tenant="t", tokens=10, at=0.2)))


def test_one_tenants_hundred_requests_do_not_go_before_anothers_one() -> None:
    made, now = dispatcher(1), 0.0
    running = request("batch", tenant="loud")
    send(made, running, *(request("batch", tenant="loud") for _ in range(100)))
    quiet = request("batch", tenant="quiet")
    send(made, quiet)
    order = []
    for _ in range(3):
        now += 0.1
        (started,) = placed(made.on(Ended(running.id, Outcome.COMPLETED, (10, 10)), now))
        running = made.passages[started].request
        order.append(running.tenant)
    assert "quiet" in order[:2]


# -- failures -----------------------------------------------------------------------------------------------


def test_a_failed_attempt_goes_elsewhere() -> None:
    made = dispatcher(4, 4)
    one = request()
    (first,) = send(made, one)
    assert isinstance(first, Dispatch)
    (second,) = made.on(AttemptFailed(one.id, first.replica_id, Outcome.REPLICA_FAILED), 0.1)
    assert isinstance(second, Dispatch)
    assert {first.replica_id, second.replica_id} == {"a", "b"}
    assert second.attempt == 2


def test_when_a_replica_dies_all_it_had_is_absorbed_and_it_gets_nothing_more() -> None:
    made = dispatcher(20, 40)
    requests = [request() for _ in range(30)]
    where = {c.request_id: c.replica_id for c in send(made, *requests) if isinstance(c, Dispatch)}
    dead = [name for name, replica in where.items() if replica == "a"]
    commands = [c for name in dead for c in made.on(AttemptFailed(name, "a", Outcome.REPLICA_FAILED), 0.1)]
    assert len(dead) > 5
    assert refused(commands) == []
    assert {c.replica_id for c in commands if isinstance(c, Dispatch)} == {"b"}
    assert {c.replica_id for c in send(made, *(request(at=0.2) for _ in range(5))) if isinstance(c, Dispatch)} == {"b"}


def fail(made: Dispatcher, one: Request, now: float) -> list[Command]:
    load = made.passages[one.id].load
    assert load is not None
    return made.on(AttemptFailed(one.id, load.id, Outcome.REPLICA_FAILED), now)


def test_a_stream_that_has_begun_is_gone_on_with_though_others_are_not_retried_any_more() -> None:
    made = dispatcher(40, 40, 40)
    made.retries.spend(0.0, 1)
    made.retries.debt = 3.0
    fresh, begun, doomed = request(), request(), request()
    send(made, fresh, begun, doomed)
    made.on(FirstToken(begun.id), 0.1)
    assert refused(fail(made, begun, 0.2)) == []
    assert refused(fail(made, begun, 0.3)) == [], "also if it dies again before it has said another word"
    assert refused(fail(made, fresh, 0.4)) == [Outcome.REPLICA_FAILED]
    made.retries.gentle_debt = 1e6
    made.on(FirstToken(doomed.id), 0.4)
    assert refused(fail(made, doomed, 0.5)) == [Outcome.REPLICA_FAILED], "there is an end to that too"


def test_a_stream_that_kills_whoever_has_it_is_sent_as_often_as_any_request() -> None:
    made = dispatcher(4, 4, 4, 4)
    one = request()
    send(made, one)
    for now in (0.1, 0.3):
        made.on(FirstToken(one.id), now)
        assert refused(fail(made, one, now + 0.1)) == []
    made.on(FirstToken(one.id), 0.5)
    assert refused(fail(made, one, 0.6)) == [Outcome.REPLICA_FAILED]


def test_a_stream_that_was_kept_up_for_a_while_is_a_victim_however_often() -> None:
    made, now = dispatcher(4, 4, 4, 4), 0.0
    one = request()
    send(made, one)
    for _ in range(6):
        made.on(FirstToken(one.id), now)
        now += 30.0
        for name in "abcd":
            made.on(Probed(name, ok=True, deep=True), now)
        assert refused(fail(made, one, now)) == []
        made.on(Tick(), now)


def test_a_stream_that_has_begun_waits_for_room_as_long_as_for_any_replica() -> None:
    made = dispatcher(1, 1, no_replica_wait_s=10.0)
    begun, other = request(), request()
    send(made, begun, other)
    made.on(FirstToken(begun.id), 0.1)
    load = made.passages[begun.id].load
    assert load is not None
    made.on(ReplicaLeft(load.id), 0.2)
    assert refused(made.on(AttemptFailed(begun.id, load.id, Outcome.REPLICA_FAILED), 0.2)) == []
    late = request(at=5.0)
    assert refused(send(made, late)) == [Outcome.WOULD_WAIT_TOO_LONG], "nobody has left for 5 s, and it may wait 0.4"
    assert placed(made.on(Ended(other.id, Outcome.COMPLETED, (1, 1)), 9.0)) == [begun.id]


def test_what_never_reached_a_replica_is_no_retry() -> None:
    made = dispatcher(4, 4, 4, 4)
    made.retries.spend(0.0, 1)
    made.retries.debt = 3.0
    one = request()
    commands = send(made, one)
    for now in (0.1, 0.2, 0.3):
        last = commands[-1]
        assert isinstance(last, Dispatch)
        commands += made.on(AttemptFailed(one.id, last.replica_id, Outcome.REPLICA_FAILED, unsent=True), now)
    assert len({command.replica_id for command in commands if isinstance(command, Dispatch)}) == 4
    assert refused(commands) == []


def test_a_request_that_fails_everywhere_is_refused_in_the_end() -> None:
    made = dispatcher(4, 4, 4, 4)
    one = request()
    commands = send(made, one)
    for now in (0.1, 0.2, 0.3, 0.4):
        last = commands[-1]
        if not isinstance(last, Dispatch):
            break
        commands += made.on(AttemptFailed(one.id, last.replica_id, Outcome.REPLICA_FAILED), now)
    assert len(placed(commands)) == 3
    assert refused(commands) == [Outcome.REPLICA_FAILED]
    assert made.passages == {}


def test_the_only_replicas_requests_wait_for_it_to_come_back_and_its_death_costs_them_one_attempt() -> None:
    made = dispatcher(4)
    one = request()
    send(made, one)
    now, unsent = 0.1, False
    attempts = placed(made.on(AttemptFailed(one.id, "a", Outcome.REPLICA_FAILED), now))
    assert attempts, "it may have been only the connection"
    for step in range(40):
        unsent = made.passages[one.id].load is not None
        failed = AttemptFailed(one.id, "a", Outcome.REPLICA_FAILED, unsent=True)
        commands = made.on(failed, now) if unsent else []
        now += 0.1
        commands += made.on(Tick(), now) if made.wake_at <= now else []
        if step % 10 == 9:
            commands += made.on(Probed("a", ok=False), now)
        assert refused(commands) == []
        attempts += placed(commands)
    assert made.index.usable("m") == 0
    assert len(attempts) < 6
    for _ in range(30):
        made.on(Probed("a", ok=True), now)
        now += 0.1
        made.on(Tick(), now)
    assert made.passages[one.id].load is not None


def test_who_waits_when_the_last_replica_goes_out_waits_for_it_as_long_as_for_any() -> None:
    made = dispatcher(1)
    running, waits = request(), request()
    send(made, running, waits)
    for moment in (0.1, 0.2, 0.3):
        made.on(Probed("a", ok=False), moment)
    assert made.index.usable("m") == 0
    assert refused(made.on(Tick(), 0.5)) == []
    assert refused(made.on(Tick(), 10.1)) == [Outcome.NO_REPLICA]


def test_a_model_that_gets_a_name_while_requests_wait_for_it_loses_none_of_them() -> None:
    made = dispatcher()
    first, second = request(), request()
    send(made, first, second)
    join(made, "a", 1, 0.1, model="m")
    assert made.passages[first.id].load is not None
    made.on(Ended(second.id, Outcome.CANCELLED), 0.2)
    made.on(Ended(first.id, Outcome.COMPLETED, (1, 1)), 0.3)
    assert placed(send(made, request(at=0.4)))
    assert made.running("fast") == 1
    assert made.waiting("fast") == 0


def test_room_that_a_failed_request_leaves_is_given_to_who_waits() -> None:
    made = dispatcher(1, 1)
    one, other, waits = request("batch"), request("batch"), request("slow")
    send(made, one, other, waits)
    for _ in range(3):
        place = made.passages[one.id].load
        if place is None:
            break
        made.on(AttemptFailed(one.id, place.id, Outcome.REPLICA_FAILED), 0.1)
    assert sum(made.running(lane) for lane in LANES) == 2


def test_a_slow_hour_is_forgotten() -> None:
    made = dispatcher(2)
    first, second, third = request(), request(), request()
    send(made, first, second, third)
    made.on(Tick(), 0.39)
    for moment in (5.0, 5.1):
        made.on(Ended(first.id if moment == 5.0 else second.id, Outcome.COMPLETED, (1, 1)), moment)
    later = [request(at=60.0) for _ in range(4)]
    assert refused(send(made, *later)) == []


def test_short_requests_of_a_lane_do_not_wait_behind_its_long_ones() -> None:
    made = dispatcher(8)
    send(made, *(request("slow", tokens=600) for _ in range(5)))
    assert made.waiting("slow") == 3
    assert placed(send(made, request("slow", tokens=10)))


def test_no_lane_starves_while_higher_ones_keep_the_fleet_full() -> None:
    made, now, served = dispatcher(4), 0.0, dict.fromkeys(LANES, 0)
    running: list[str] = []
    for _ in range(400):
        for lane in ("fast", "slow", "batch"):
            running += placed(send(made, request(lane, at=now), request(lane, at=now)))
        now += 0.02
        done = running.pop(0)
        served[made.passages[done].request.lane] += 1
        running += placed(made.on(Ended(done, Outcome.COMPLETED, (10, 10)), now))
        running += placed(made.on(Tick(), now))
    assert served["batch"] > 5
    assert served["fast"] > served["slow"] > served["batch"]


def test_a_busy_replica_is_not_blamed() -> None:
    made = dispatcher(4, 4)
    for _ in range(10):
        one = request()
        commands = send(made, one)
        last = commands[-1]
        assert isinstance(last, Dispatch)
        made.on(AttemptFailed(one.id, last.replica_id, Outcome.QUEUE_FULL, refused=True, retry_after_s=0.1), 0.1)
        made.on(Ended(one.id, Outcome.CANCELLED), 0.1)
        made.on(Tick(), made.wake_at)
    assert made.index.usable("m") == 2


@pytest.mark.parametrize(("refusals", "hold_s"), [(2, 0.0), (3, 0.25), (4, 0.5), (6, 2.0), (9, 8.0), (90, 8.0)])
def test_one_that_full_replicas_keep_refusing_is_held_back_twice_as_long_each_time(
    refusals: int, hold_s: float
) -> None:
    made, one = dispatcher(1), request("batch")
    send(made, one)
    passage = made.passages[one.id]
    passage.refusals = refusals
    aside = SetAside()
    aside.add(passage, 10.0)
    assert aside.due(10.0 + hold_s) == [passage]
    assert not hold_s or aside.due(9.99 + hold_s) == []


def test_a_replica_that_left_stands_in_for_none() -> None:
    """The last one is used although it fails: there is no other."""
    made = dispatcher(4, 4)
    made.on(ReplicaLeft("b"), 0.1)
    for _ in range(6):
        one = request(at=0.2)
        assert placed(send(made, one))
        made.on(AttemptFailed(one.id, "a", Outcome.REPLICA_FAILED), 0.3)
        made.on(Ended(one.id, Outcome.CANCELLED), 0.3)
    assert made.index.usable("m") == 1


def test_a_replica_that_left_is_not_used_and_its_requests_end_without_harm() -> None:
    made = dispatcher(4, 4)
    one = request()
    (command,) = send(made, one)
    assert isinstance(command, Dispatch)
    made.on(ReplicaLeft(command.replica_id), 0.1)
    made.on(FirstToken(one.id), 0.1)
    made.on(Ended(one.id, Outcome.COMPLETED, (1, 1)), 0.2)
    assert len(made.index.loads) == 1


def test_what_is_not_known_any_more_is_ignored() -> None:
    made = dispatcher(1)
    assert made.on(FirstToken("never"), 0.0) == []
    assert made.on(Ended("never", Outcome.COMPLETED), 0.0) == []
    assert made.on(AttemptFailed("never", "a", Outcome.REPLICA_FAILED), 0.0) == []
    assert made.on(Probed("nobody", ok=True), 0.0) == []


def test_a_replica_without_a_given_size_finds_it_by_watching() -> None:
    made = dispatcher()
    join(made, "a", None)
    load = made.index.get("a")
    assert load is not None
    before, now = load.limit, 0.0
    for _ in range(60):
        batch = [request(at=now) for _ in range(int(load.limit))]
        started = [one for one in batch if placed(send(made, one))]
        now += 0.05
        for one in started:
            made.on(FirstToken(one.id), now)
        now += 0.2
        for one in started:
            made.on(Ended(one.id, Outcome.COMPLETED, (10, 5)), now)
    assert load.limit > before


# -- everything at once -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_every_arrival_ends_exactly_once_and_every_load_returns_to_nothing(seed: int) -> None:
    rng, now = random.Random(seed), 0.0
    made = dispatcher(3, 2, tenants={"t1": TenantLimits(requests_per_min=600, tokens_per_min=60_000)})
    ended: dict[str, int] = {}
    running: dict[str, str] = {}
    arrived: list[str] = []

    def carry_out(commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Dispatch):
                assert command.request_id not in running
                running[command.request_id] = command.replica_id
            else:
                ended[command.request_id] = ended.get(command.request_id, 0) + 1

    for _ in range(1500):
        now += rng.expovariate(50)
        kind = rng.random()
        if kind < 0.45 and len(arrived) < 500:
            one = request(rng.choice(list(LANES)), at=now, tenant=f"t{rng.randrange(3)}", tokens=rng.randrange(1, 500))
            arrived.append(one.id)
            carry_out(made.on(Arrived(one), now))
        elif kind < 0.55 and made.passages:
            name = rng.choice(sorted(made.passages))
            running.pop(name, None)
            ended[name] = ended.get(name, 0) + 1
            carry_out(made.on(Ended(name, Outcome.CANCELLED), now))
        elif kind < 0.85 and running:
            name = rng.choice(sorted(running))
            if rng.random() < 0.5:
                carry_out(made.on(FirstToken(name), now))
            elif rng.random() < 0.3:
                replica = running.pop(name)
                carry_out(made.on(AttemptFailed(name, replica, Outcome.REPLICA_FAILED), now))
            else:
                del running[name]
                ended[name] = ended.get(name, 0) + 1
                carry_out(made.on(Ended(name, Outcome.COMPLETED, (10, 20)), now))
        elif kind < 0.9:
            carry_out(made.on(Probed(rng.choice("ab"), ok=rng.random() < 0.7), now))
        if made.wake_at <= now:
            carry_out(made.on(Tick(), now))
        for load in made.index.loads.values():
            assert load.requests == sum(replica == load.id for replica in running.values())
    for name in sorted(running):
        ended[name] = ended.get(name, 0) + 1
        now += 0.01
        commands = made.on(Ended(name, Outcome.COMPLETED, (10, 20)), now)
        for command in commands:  # whoever is let in now ends too
            if isinstance(command, Dispatch):
                ended[command.request_id] = ended.get(command.request_id, 0) + 1
                made.on(Ended(command.request_id, Outcome.CANCELLED), now)
            else:
                ended[command.request_id] = ended.get(command.request_id, 0) + 1
    for name in sorted(made.passages):
        ended[name] = ended.get(name, 0) + 1
        made.on(Ended(name, Outcome.CANCELLED), now)
    assert sorted(ended) == sorted(arrived)
    assert set(ended.values()) <= {1}
    assert made.passages == {}
    for load in made.index.loads.values():
        assert (load.requests, load.prefill_tokens, load.decode_tokens) == (0, 0, 0)


# -- tiers ------------------------------------------------------------------------------------------------

RESERVED = {tier.name: tier for tier in (Tier(name="premium", weight=4.0, reserve=0.5), Tier(name="free"))}


def test_free_leaves_premium_its_reserve_and_premium_takes_it() -> None:
    made = dispatcher(4, tiers=RESERVED)
    free = [request("slow") for _ in range(4)]
    assert placed(send(made, *free)) == [one.id for one in free[:2]]
    premium = [request("slow", tier="premium") for _ in range(3)]
    assert placed(send(made, *premium)) == [one.id for one in premium[:2]]
    # A premium request has ended: its place is its tier's, and the one that waits has it.
    assert placed(made.on(Ended(premium[0].id, Outcome.COMPLETED, (1, 1)), 0.1)) == [premium[2].id]
    # A free one has ended: the reserve is in use, so its place is free's again.
    assert placed(made.on(Ended(free[0].id, Outcome.COMPLETED, (1, 1)), 0.2)) == [free[2].id]


def test_an_idle_fleet_takes_anybody_whatever_is_reserved() -> None:
    made = dispatcher(1, tiers={"premium": Tier(name="premium", reserve=1.0), "free": Tier(name="free")})
    assert len(placed(send(made, request()))) == 1


def test_tiers_that_wait_share_a_lane_by_weight_and_neither_starves() -> None:
    made = dispatcher(1, tiers={"premium": Tier(name="premium", weight=4.0), "free": Tier(name="free")})
    running = send(made, request("slow"))[0].request_id
    waiting = {one.id: one for one in [request("slow", tier=tier) for _ in range(20) for tier in ("free", "premium")]}
    send(made, *waiting.values())
    turns = []
    for step in range(20):
        (command,) = made.on(Ended(running, Outcome.COMPLETED, None), 0.01 * step)
        running = command.request_id
        turns.append(waiting[running].tier)
    assert 15 <= turns.count("premium") <= 17


# -- what is told with a command -------------------------------------------------------------------------


def test_a_replica_is_cold_until_it_has_been_seen_to_generate() -> None:
    made = dispatcher(4)
    first, second = request(), request()
    assert [c.cold for c in send(made, first) if isinstance(c, Dispatch)] == [True]
    made.on(Ended(first.id, Outcome.COMPLETED, (10, 5)), 0.1)
    assert [c.cold for c in send(made, second, now=0.2) if isinstance(c, Dispatch)] == [False]


def test_a_deep_check_warms_a_replica_and_an_ejection_cools_it() -> None:
    made = dispatcher(4)
    made.on(Probed("a", ok=True, deep=True), 0.0)
    assert [c.cold for c in send(made, request()) if isinstance(c, Dispatch)] == [False]
    for _ in range(3):
        made.on(Probed("a", ok=False), 0.5)
    load = made.index.get("a")
    assert load is not None
    assert load.cold


def test_who_stood_before_is_told_when_the_wait_is_over() -> None:
    made = dispatcher(1)
    running, hog, late = request(), request(tenant="hog", tokens=100), request(tenant="late")
    send(made, running, hog, late)
    first = made.on(Ended(running.id, Outcome.COMPLETED, None), 0.1)
    second = made.on(Ended(placed(first)[0], Outcome.COMPLETED, None), 0.2)
    ahead = {c.request_id: c.ahead for c in (*first, *second) if isinstance(c, Dispatch | Refuse)}
    stood = Ahead(requests=1, tokens=200, tenant="hog", tenant_requests=1, tenant_tokens=200)
    assert ahead == {hog.id: None, late.id: stood}


def test_what_was_computed_of_an_answer_in_one_piece_is_guessed_from_time_and_pace() -> None:
    made = dispatcher(1)
    first, second, third = request(stream=False), request(stream=False, at=20.0), request(stream=False, at=20.0)
    assert made.computed("nobody", 0.0) == 0
    send(made, first)
    assert made.computed(first.id, 1.0) == 40  # before any is measured: 25 ms a token
    made.on(Ended(first.id, Outcome.COMPLETED, (10, 100)), 10.0)
    assert placed(send(made, second, third)) == [second.id]
    assert made.computed(second.id, 21.0) == 10
    assert made.computed(third.id, 21.0) == 0  # it waits
    made.on(Ended(second.id, Outcome.COMPLETED, (10, 100)), 40.0)
    assert made.index.loads["a"].answer_token_s == pytest.approx(0.11)
    made.on(Ended(third.id, Outcome.COMPLETED, (10, 0)), 41.0)
    assert made.index.loads["a"].answer_token_s == pytest.approx(0.11)


# -- requests that were there before --------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [False, True])
def test_a_request_that_a_replica_has_already_is_counted_there_and_its_room_comes_back(begun: bool) -> None:
    made = dispatcher(1)
    before, after = request(), request(at=0.1)
    assert made.on(Resumed(before, "a", begun), 0.0) == []
    assert made.running("fast") == 1
    assert placed(send(made, after)) == []
    made.on(FirstToken(before.id), 0.15)
    assert placed(made.on(Ended(before.id, Outcome.COMPLETED, (10, 10)), 0.2)) == [after.id]
    made.on(Ended(after.id, Outcome.CANCELLED), 0.3)
    assert not any(made.holdings().values())


def test_a_request_may_be_there_before_its_replica_was_probed() -> None:
    made = dispatcher()
    made.on(ReplicaJoined(Replica(id="a", url="http://a", slots=2)), 0.0)
    made.on(Resumed(request(), "a", True), 0.1)
    assert made.running("fast") == 1
    made.on(Probed("a", ok=True), 0.2)
    made.on(Ended(next(iter(made.passages)), Outcome.COMPLETED), 0.3)
    assert not any(made.holdings().values())


def test_nothing_is_learned_from_the_times_of_a_request_that_was_there_before() -> None:
    made = dispatcher(2)
    seat = made.index.seat("a")
    assert seat is not None
    pace = (seat.load.prefill_token_s, seat.load.tpot_s)
    made.on(Resumed(request(tokens=1000), "a", True), 0.0)
    made.on(Ended(next(iter(made.passages)), Outcome.COMPLETED, (1000, 1000)), 0.001)
    assert (seat.load.prefill_token_s, seat.load.tpot_s) == pace


def test_a_request_at_a_replica_that_is_not_known_runs_uncounted() -> None:
    made = dispatcher(1)
    assert made.on(Resumed(request(), "z"), 0.0) == []
    strange = request().but(lane="gone")
    assert made.on(Resumed(strange, "a"), 0.0) == []
    assert made.passages == {}
    assert made.on(Ended(strange.id, Outcome.COMPLETED), 1.0) == []


def test_the_pace_of_a_replicas_answers() -> None:
    made = dispatcher(1)
    assert made.answer_pace("a") == 0.025
    assert made.answer_pace("z") == 1.0
