"""What seldom happens, and is decided all the same: late events, second descriptions, bounds that are reached."""

import dataclasses

import pytest

from headgate.config.engine import BatchConfig
from headgate.config.gateway import RoutingConfig
from headgate.machine.step_features import StepFeatures, is_decode
from headgate.model.event import AttemptFailed, HedgeWon, ReplicaJoined
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.model.step import Row
from headgate.policy.answers.sizes import MOST_RATIOS, Ratio
from headgate.policy.batching.batch import Batcher
from headgate.policy.batching.blocks import Ledger
from headgate.policy.batching.estimate import StepTime
from headgate.policy.batching.holders import Holders
from headgate.policy.replicas.allowance import Appetite
from headgate.policy.replicas.route import RouteChoice
from headgate.policy.scaling.forecast import SLOT_S, WEEK_SLOTS, Forecast
from headgate.policy.tenants.limits import TenantLimits
from headgate.policy.tenants.shared_limits import MOST_PARTS, SharedLimits
from tests.policy.driven import settings_of
from tests.policy.test_blocks import chain, ledger, put
from tests.policy.test_dispatcher import dispatcher, placed, request, send
from tests.policy.test_forecast import MONDAY, taught
from tests.policy.test_hedge import Scene
from tests.scripted import sequence

WEEK_S = 7 * 86_400.0

# -- the dispatcher -----------------------------------------------------------------------------------------


def test_a_lane_that_is_new_is_open_in_every_pool_and_a_changed_weight_counts_at_once() -> None:
    made = dispatcher(1, lanes=dict(LANES))
    send(made, request())
    night = dataclasses.replace(LANES["batch"], name="night")
    fast = dataclasses.replace(LANES["fast"], weight=3.0)
    made.reconfigure(settings_of({"fast": fast, "night": night}))
    for pool in made.model_queues.values():
        assert {name for name, _, _ in pool.lanes} == {*LANES, "night"}
        assert {s.tally.weight for s in pool.lanes.values() if s.lane.name == "fast" and s.tier == "free"} == {3.0}
    with pytest.raises(ValueError, match="start again"):
        made.reconfigure(settings_of(routing=RoutingConfig(algorithm="round_robin")))


def test_a_replica_that_is_described_anew_keeps_what_it_is_doing() -> None:
    made = dispatcher(2)
    first = request()
    send(made, first)
    made.on(ReplicaJoined(Replica(id="a", url="http://a", slots=2, kind="vllm")), 1.0)
    load = made.index.loads["a"]
    assert (load.replica.kind, load.requests, load.usable) == ("vllm", 1, 1.0)
    made.on(ReplicaJoined(Replica(id="b", url="http://b", slots=2)), 1.0)
    made.on(ReplicaJoined(Replica(id="b", url="http://b", slots=2, kind="tgi")), 1.0)
    assert made.index.loads["b"].replica.kind == "tgi"


def test_news_of_a_request_that_is_gone_or_elsewhere_changes_nothing() -> None:
    made = dispatcher(1, 1)
    first, second = request(), request()
    assert placed(send(made, first, second)) == [first.id, second.id]
    passage = made.passages[first.id]
    assert passage.load is not None
    other = {"a": "b", "b": "a"}[passage.load.id]
    for event in (
        AttemptFailed(first.id, other, Outcome.REPLICA_FAILED),
        AttemptFailed("nobody", "a", Outcome.REPLICA_FAILED),
        HedgeWon(first.id, other),
    ):
        assert made.on(event, 0.1) == []
    assert passage.load is not None
    assert [load.requests for load in made.index.loads.values()] == [1, 1]


def test_of_a_request_at_two_replicas_a_third_has_nothing_to_say() -> None:
    scene = Scene(4, 4, 4)
    scene.serve(60)
    name, hedge = scene.late()
    (third,) = {"a", "b", "c"} - {scene.at[name], hedge.replica_id}
    before = scene.requests
    assert scene.hear(AttemptFailed(name, third, Outcome.REPLICA_FAILED)) == []
    assert scene.requests == before


def test_a_replica_that_lost_is_heard_of_by_a_whole_answer_too() -> None:
    scene = Scene(4, 4)
    scene.serve(50, stream=False)
    name, hedge = scene.late(stream=False)
    slow = scene.at[name]
    scene.hear(HedgeWon(name, hedge.replica_id))
    scene.end(name)
    load = scene.made.index.loads[slow]
    assert load.silent_tokens
    while scene.at[last := scene.arrive(stream=False)] != slow:
        assert scene.requests[hedge.replica_id] <= 4, "it has no room for more"
    scene.end(last)
    assert load.silent_tokens == 0


# -- memory -------------------------------------------------------------------------------------------------


def test_there_is_work_as_long_as_anybody_waits_or_runs() -> None:
    batch = Batcher(
        BatchConfig(), Ledger(slots=1, slot_tokens=80, blocks=8, host_blocks=0, block_tokens=10), StepTime()
    )
    assert not batch.has_work
    batch.add(sequence(1, [1, 2, 3]))
    assert batch.has_work


def test_a_sequence_whose_memory_is_not_there_after_all_goes_on_waiting() -> None:
    config = BatchConfig(headroom=-4.0)
    batch = Batcher(config, Ledger(slots=2, slot_tokens=80, blocks=8, host_blocks=0, block_tokens=10), StepTime())
    for number in (1, 2):
        batch.add(sequence(number, [number] * 60))
    assert batch.plan(0.0) is not None
    assert (list(batch.running), list(batch.waiting)) == ([1], [2])


def test_what_has_no_slot_has_nothing_to_commit() -> None:
    book = ledger()
    book.commit([sequence(1, list(range(20)))])
    assert book.match(chain(list(range(20)))) == 0


def test_the_order_of_host_copies_stays_as_small_as_their_number() -> None:
    book = ledger(slots=2)
    tokens = {name: list(range(100 * name, 100 * name + 40)) for name in (1, 2, 3)}
    for turn in range(300):
        placed = put(book, turn, tokens[1 + turn % 3], float(turn))
        book.release(placed.slot, turn + 0.5)
    assert len(book._loose) <= 2 * len(book._blobs) + 65


def test_a_block_is_held_or_not() -> None:
    made = Holders()
    made.add([b"one"], 0, 7)
    assert b"one" in made
    assert b"two" not in made


def test_a_shape_is_a_value_and_says_what_is_not_zero() -> None:
    one = StepFeatures(prefill=3, context=7)
    assert {one: "x"}[StepFeatures(prefill=3, context=7)] == "x"
    assert repr(one) == "Shape(prefill=3, context=7)"
    decoded = sequence(1, [1, 2, 3])
    assert is_decode(Row(decoded, 0, 3, 1, True))
    assert not is_decode(Row(decoded, 0, 2, 1, True))


def test_a_choice_is_equal_to_choices_alone() -> None:
    assert RouteChoice("a", "least", ()) == RouteChoice("a", "least", ())
    assert RouteChoice("a", "least", ()) != "a"


# -- what is learned ----------------------------------------------------------------------------------------


def test_a_ratio_is_learned_by_name_and_overall_and_names_are_bounded() -> None:
    made = Ratio(4.0, pace=0.5)
    assert made.of("m") == 4.0
    made.learn("m", 8.0)
    assert (made.of("m"), made.of("other")) == (8.0, 6.0)
    made.learn("m", 6.0)
    assert made.of("m") == 7.0
    for number in range(2 * MOST_RATIOS):
        made.learn(f"m{number}", 1.0)
    assert len(made._by_name) == MOST_RATIOS


def test_a_rate_is_not_told_of_no_time() -> None:
    made = Appetite(5.0)
    made.seen(1.0, 1.0, 5.0)
    assert (made.requests, made.tokens) == (0.0, 0.0)


def test_a_tenant_that_was_never_seen_has_a_full_bucket() -> None:
    assert SharedLimits().full_in_s("nobody", 0.0) == (0.0, 0.0)


def test_parts_of_limits_are_remembered_up_to_a_bound() -> None:
    made = SharedLimits()
    made.share(2, False)
    for number in range(MOST_PARTS + 1):
        made.take("t", TenantLimits(requests_per_min=60.0 + number), 1, 0.0)
    assert len(made._parts) == 1


def test_a_pause_of_more_than_half_a_slot_is_not_filled_in_within_one() -> None:
    made = Forecast()
    made.observe(0.0, 10.0)
    made.observe(0.9 * SLOT_S, 10.0)
    made.observe(1.0 * SLOT_S, 10.0)
    assert made.slots == 0


def test_answers_are_remembered_up_to_a_week() -> None:
    made = taught(1)
    for week in range(1, 4):
        made.expect(MONDAY + week * WEEK_S, MONDAY + (week + 1) * WEEK_S)
        assert 0 < len(made._known) <= WEEK_SLOTS + 1
