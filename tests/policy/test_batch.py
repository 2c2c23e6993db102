import random
from itertools import pairwise

import pytest

from headgate.config.engine import BatchConfig
from headgate.model.sampling import Sampled
from headgate.model.sequence import LOWEST_PRIORITY, Finish, Sequence
from headgate.model.step import Move, Restore, Save, Step
from headgate.policy.batching.batch import Batcher, BatchRefusal
from headgate.policy.batching.blocks import Ledger
from headgate.policy.batching.estimate import StepShape, StepTime
from headgate.policy.batching.ledger import Short, extend_chain
from headgate.policy.batching.urgency import urgency
from tests.scripted import ScriptedRunner, batcher, check_balance, drain, reply, run_step, sequence, step_seconds


def plan(batch: Batcher, now: float = 0.0) -> Step:
    step = batch.plan(now)
    assert step is not None
    return step


def counts(step: Step) -> dict[int, int]:
    return {row.sequence.id: row.count for row in step.rows}


def knows_the_machine(batch: Batcher) -> None:
    batch.step_time = StepTime((0.004, 0.007, 0.007, 0.0))
    batch.step_time._upper.value = 1.0


def decoding(batch: Batcher, runner: ScriptedRunner, one: Sequence, now: float = 0.0) -> float:
    """Bring a sequence to its first token."""
    batch.add(one)
    while one.first_token_at is None:
        result = run_step(batch, runner, now)
        assert result is not None
        now = result[0]
    return now


# -- chunks ---------------------------------------------------------------------------------------------


def test_a_chunk_is_as_large_as_the_running_streams_gap_allows() -> None:
    batch, runner = batcher(slot_tokens=2048), ScriptedRunner(slot_tokens=2048)
    knows_the_machine(batch)
    now = decoding(batch, runner, sequence(1, range(8), max_output=50, gap_s=0.2))
    knows_the_machine(batch)
    batch.add(sequence(2, range(1000), arrived=now))
    chunk = counts(plan(batch, now))[2]
    assert batch.step_time.predict(StepShape(chunk, 1, 0)) <= 0.2 < batch.step_time.predict(StepShape(chunk + 1, 1, 0))


def test_time_already_spent_since_the_last_token_shrinks_the_chunk() -> None:
    batch, runner = batcher(slot_tokens=2048), ScriptedRunner(slot_tokens=2048)
    now = decoding(batch, runner, sequence(1, range(8), max_output=50, gap_s=0.4))
    knows_the_machine(batch)
    batch.add(sequence(2, range(1000), arrived=now))
    assert counts(plan(batch, now + 0.2))[2] == pytest.approx((0.2 - 0.004 - 0.007) / 0.007, abs=1)


def test_a_chunk_never_falls_below_the_floor() -> None:
    batch, runner = batcher(slot_tokens=2048), ScriptedRunner(slot_tokens=2048)
    now = decoding(batch, runner, sequence(1, range(8), max_output=50, gap_s=0.001))
    batch.add(sequence(2, range(1000), arrived=now))
    assert counts(plan(batch, now + 5.0))[2] == BatchConfig().chunk_floor


def test_an_urgent_prompt_has_the_step_limit_to_itself_beside_streams_that_have_time() -> None:
    """Three streams take 25 ms of a step of 30: with 5 left an urgent prompt would go on by the floor."""
    batch, runner = batcher(BatchConfig(step_limit_s=0.03, chunk_floor=1)), ScriptedRunner()
    now = 0.0
    for number in range(3):
        one = sequence(number, [number] * 4, max_output=50, gap_s=2.0, arrived=now, priority=1)
        now = decoding(batch, runner, one, now)
    knows_the_machine(batch)
    batch.add(sequence(8, range(100), arrived=now, priority=2))
    batch.add(sequence(9, range(200, 203), arrived=now))
    assert counts(plan(batch, now)) == {0: 1, 1: 1, 2: 1, 9: 3}  # and nothing more for the one that is less urgent
    batch.cancel(9, now)
    batch.add(sequence(10, range(300, 330), arrived=now))
    assert counts(plan(batch, now))[10] == 4  # 30 ms


def test_with_nobody_decoding_the_step_limit_and_512_bound_the_chunk() -> None:
    batch = batcher(slot_tokens=2048)
    knows_the_machine(batch)
    batch.add(sequence(1, range(1500)))
    assert counts(plan(batch)) == {1: 70}
    quick = batcher(slot_tokens=2048)
    quick.step_time = StepTime((1e-4, 1e-6, 1e-6, 0.0))
    quick.add(sequence(1, range(1500)))
    assert counts(plan(quick)) == {1: 512}


def test_every_decode_is_in_every_step_and_rows_are_in_slot_order() -> None:
    batch, runner = batcher(), ScriptedRunner()
    now = 0.0
    for number in range(3):
        now = decoding(batch, runner, sequence(number, [number] * 4, max_output=50, arrived=now), now)
    batch.add(sequence(9, range(200), arrived=now))
    step = plan(batch, now)
    assert [row.slot for row in step.rows] == [0, 1, 2, 3]
    assert set(counts(step)) == {0, 1, 2, 9}


def test_two_short_prompts_share_a_step() -> None:
    batch = batcher()
    knows_the_machine(batch)
    batch.add(sequence(1, range(20)))
    batch.add(sequence(2, range(100, 120)))
    assert counts(plan(batch)) == {1: 20, 2: 20}


def test_less_urgent_prompts_fill_a_step_up_to_what_a_whole_chunk_of_a_beginning_takes() -> None:
    """512 tokens at the beginning of a prompt take 26 ms, nearly all of it for attention."""
    batch = batcher(slot_tokens=2048)
    batch.step_time = StepTime((0.0, 1e-6, 1e-6, 1e-4))
    batch.step_time._upper.value = 1.0
    batch.add(sequence(1, range(100)))
    batch.add(sequence(2, range(500, 1500), priority=2))
    assert counts(plan(batch)) == {1: 100, 2: 412}


# -- order ----------------------------------------------------------------------------------------------

CONFIG = BatchConfig()


def order(*sequences: Sequence, now: float) -> list[int]:
    return [s.id for s in sorted(sequences, key=lambda s: urgency(s, now, CONFIG))]


def test_priority_then_deadline_decides() -> None:
    fast = sequence(1, [1], arrived=9.9)
    due = sequence(2, [1], arrived=9.8, priority=1, ttft_s=1.0)
    later = sequence(3, [1], arrived=9.0, priority=1, ttft_s=5.0)
    assert order(later, due, fast, now=10.0) == [1, 2, 3]


def test_a_late_sequence_is_relegated_behind_those_that_can_still_be_in_time() -> None:
    late = sequence(1, [1], arrived=0.0, ttft_s=0.5)
    in_time = sequence(2, [1], arrived=0.9, ttft_s=0.5)
    assert order(late, in_time, now=1.0) == [2, 1]


def test_age_lifts_a_sequence_past_higher_priorities_and_in_the_end_past_everyone() -> None:
    old = sequence(1, [1], arrived=0.0, priority=1, ttft_s=2.0)
    assert order(old, sequence(2, [1], arrived=7.0, ttft_s=5.0), now=7.5) == [2, 1]
    assert order(old, sequence(2, [1], arrived=16.0, ttft_s=5.0), now=16.5) == [1, 2]
    assert order(old, sequence(2, [1], arrived=59.9, priority=-100), now=60.0) == [1, 2]


def test_a_sequence_that_was_promised_less_grows_old_more_slowly() -> None:
    batch = sequence(1, [1], arrived=0.0, priority=3, ttft_s=300.0)
    assert order(batch, sequence(2, [1], arrived=299.8), now=299.9) == [2, 1]
    assert order(batch, sequence(2, [1], arrived=299.9), now=300.0) == [1, 2]


@pytest.mark.parametrize(("given", "target_s"), [(None, 0.2), (0.05, 0.05), (0.5, 0.2)])
def test_an_engines_gap_target_holds_for_sequences_that_name_a_longer_one(given: float | None, target_s: float) -> None:
    batch, one = batcher(BatchConfig(gap_target_s=given)), sequence(1, [1, 2, 3])
    assert one.gap_target_s == 0.2
    batch.add(one)
    assert one.gap_target_s == target_s


def test_a_short_urgent_prompt_overtakes_a_long_prefill_under_way() -> None:
    batch = batcher(slot_tokens=2048)
    knows_the_machine(batch)
    batch.add(sequence(1, range(1500), priority=1, ttft_s=2.0))
    step = plan(batch)
    batch.done(step, [], frozenset(), 0.5, 0.494)
    batch.add(sequence(2, range(5000, 5060), arrived=0.5))
    after = counts(plan(batch, 0.5))
    assert after[2] == 60


def test_long_prefills_go_one_at_a_time_while_short_ones_pass() -> None:
    batch = batcher(slot_tokens=2048)
    for number in (1, 2):
        batch.add(sequence(number, range(number * 5000, number * 5000 + 1000)))
    batch.add(sequence(3, [7] * 10, ttft_s=9.0))
    plan(batch)
    assert set(batch.running) == {1, 3}


def test_an_aged_sequence_that_does_not_fit_holds_the_door() -> None:
    batch, runner = batcher(blocks=30), ScriptedRunner()
    now = decoding(batch, runner, sequence(1, range(80), max_output=40))
    batch.add(sequence(2, range(1000, 1080), max_output=4, arrived=now))
    batch.add(sequence(3, [5] * 8, max_output=1, arrived=now + 59.9))
    batch.plan(now + 59.0)
    assert set(batch.waiting) == {2}
    batch.add(sequence(4, [6] * 8, max_output=1, arrived=now + 60.0))
    batch.plan(now + 60.0)
    assert set(batch.waiting) == {2, 4}


# -- admission and memory -----------------------------------------------------------------------------------


def test_headroom_is_kept_on_predicted_output() -> None:
    config = BatchConfig(first_output_guess=16)
    batch = batcher(config, blocks=40)  # 320 tokens, of which 256 may be promised
    batch.add(sequence(1, [1] * 100, max_output=100))  # predicted 116: 15 blocks
    batch.add(sequence(2, [2] * 100, max_output=100))  # 15 more
    batch.add(sequence(3, [3] * 8, max_output=8))  # 2 more: exactly 32
    batch.add(sequence(4, [4] * 8, max_output=8))
    plan(batch)
    assert set(batch.running) == {1, 2, 3}


def test_what_is_promised_but_taken_is_waited_for() -> None:
    """What running ones need is not predicted anew at every step: one that says more meanwhile is in the way."""
    config = BatchConfig(first_output_guess=1, headroom=0.0, draft_batch=0)
    batch, runner = batcher(config, blocks=3), ScriptedRunner()
    batch.add(sequence(1, [1] * 7, max_output=100))  # predicted 8: one block
    for _ in range(4):
        plan_and_run(batch, runner, 0.0)
    batch.add(sequence(2, [2] * 13, max_output=3))  # two blocks
    plan_and_run(batch, runner, 0.0)
    assert (set(batch.running), set(batch.waiting)) == ({1}, {2})
    batch.cancel(1, 0.0)
    plan_and_run(batch, runner, 0.0)
    assert set(batch.running) == {2}


def test_predicted_output_follows_what_a_lane_really_says() -> None:
    batch = batcher(BatchConfig(first_output_guess=100))
    for number in range(40):
        batch.add(sequence(number, [number % 50] * 9, max_output=100))
        for _ in range(4):
            step = plan(batch)
            stopped = frozenset(row.sequence.id for row in step.rows if row.sequence.output_len == 3)
            batch.done(step, [Sampled(row.sequence.id, (0,)) for row in step.rows], stopped, 0.0, 0.01)
    assert batch._admission._predicted_len(sequence(99, [1] * 10, max_output=100)) == 14


def test_a_first_burst_is_admitted_on_what_it_may_say() -> None:
    """On a guess of 128 tokens all of them were let in, outgrew the memory, and were swapped out in turn."""
    batch, runner = batcher(slots=16, slot_tokens=512, blocks=256), ScriptedRunner(slots=16, slot_tokens=512)
    for number in range(12):
        batch.add(sequence(number, [number] * 20, max_output=400))
    plan(batch)
    assert len(batch.running) == 3  # 53 blocks each, of 204
    drain(batch, runner)
    assert (batch.counts.swaps, batch.counts.recomputes) == (0, 0)


def test_when_memory_is_short_the_latest_deadline_is_swapped_out_and_comes_back() -> None:
    batch, runner = batcher(BatchConfig(first_output_guess=1, headroom=0.0), blocks=12), ScriptedRunner()
    first = sequence(1, [1] * 40, max_output=40)
    second = sequence(2, [2] * 40, max_output=40, arrived=0.0, ttft_s=9.0)
    batch.add(first)
    batch.add(second)
    moves: list[Move] = []
    now = 0.0
    while step := batch.plan(now):
        moves += step.moves
        check_balance(batch)
        now += step_seconds(step)
        batch.done(step, runner.run(step), frozenset(), now, step_seconds(step))
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert [type(move) for move in moves if isinstance(move, Save | Restore)] == [Save, Restore]
    assert batch.counts.swaps == 1
    for one in (first, second):
        assert one.tokens[40:] == reply(one.tokens[:40], 40)


def test_with_no_host_memory_a_victim_is_recomputed() -> None:
    config = BatchConfig(first_output_guess=1, headroom=0.0)
    batch, runner = batcher(config, blocks=12, host_blocks=0), ScriptedRunner()
    both = [sequence(n, [n] * 40, max_output=40) for n in (1, 2)]
    for one in both:
        batch.add(one)
    drain(batch, runner)
    assert batch.counts.recomputes >= 1
    assert all(one.tokens[40:] == reply(one.tokens[:40], 40) for one in both)


def full_of(lane: str, priority: int, config: BatchConfig) -> tuple[Batcher, ScriptedRunner, float]:
    """Every slot decodes a sequence of this lane."""
    batch, runner, now = batcher(config, slots=2), ScriptedRunner(slots=2), 0.0
    for number in (1, 2):
        one = sequence(number, [number] * 20, max_output=60, lane=lane, priority=priority, ttft_s=300.0)
        now = decoding(batch, runner, one, now)
    return batch, runner, now


def test_a_higher_lane_is_let_in_by_swapping_a_lower_one_out_and_both_finish_unharmed() -> None:
    batch, runner, now = full_of("batch", 3, BatchConfig())
    fast = sequence(9, [9] * 20, arrived=now)
    batch.add(fast)
    everyone = [*batch.running.values(), fast]
    plan_and_run(batch, runner, now)
    assert 9 in batch.running
    drain(batch, runner, now)
    assert batch.counts.yields == 1
    assert all(one.tokens[20:] == reply(one.tokens[:20], one.max_output) for one in everyone)


def test_nobody_makes_way_for_its_own_lane_or_more_often_than_agreed() -> None:
    for lane, priority, config in (("fast", 0, BatchConfig()), ("batch", 3, BatchConfig(most_yields=0))):
        batch, runner, now = full_of(lane, priority, config)
        batch.add(sequence(9, [9] * 20, arrived=now))
        plan_and_run(batch, runner, now)
        assert 9 in batch.waiting


def test_a_sequence_of_the_lowest_priority_has_nobody_swapped_out_however_long_it_waits() -> None:
    for lane, priority in (("fast", 0), ("batch", 3), ("batch", LOWEST_PRIORITY)):
        batch, runner, now = full_of(lane, priority, BatchConfig())
        batch.add(sequence(9, [9] * 3, max_output=1, arrived=now - 1000.0, priority=LOWEST_PRIORITY))
        plan_and_run(batch, runner, now)
        assert 9 in batch.waiting
        assert (batch.counts.yields, batch.counts.swaps, batch.counts.recomputes) == (0, 0, 0)


def test_what_is_too_short_to_be_found_again_costs_one_cached_prefix_at_most() -> None:
    """A check every half minute on an idle engine must not empty its prefix cache."""
    batch, runner, now = batcher(), ScriptedRunner(), 0.0
    for number in range(4):
        batch.add(sequence(number, [number] * 40, arrived=now))
        now, _ = drain(batch, runner, now)
    for number in range(10, 20):
        batch.add(sequence(number, [1, 2, 3], max_output=1, arrived=now))
        now, _ = drain(batch, runner, now + 30.0)
    assert batch.ledger.evictions - 9 == 1  # nine times its own
    known = [number for number in range(4) if batch.ledger.match(chain_of([number] * 40))]
    assert known == [1, 2, 3]


def chain_of(tokens: list[int]) -> list[bytes]:
    chain: list[bytes] = []
    extend_chain(chain, tokens, 8, b"")
    return chain


def plan_and_run(batch: Batcher, runner: ScriptedRunner, now: float) -> None:
    assert run_step(batch, runner, now) is not None


def test_nobody_is_preempted_twice_in_a_row_while_there_is_somebody_else() -> None:
    batch, runner, now = batcher(BatchConfig(first_output_guess=1, headroom=0.0), blocks=26), ScriptedRunner(), 0.0
    for number in range(4):
        batch.add(sequence(number, [number] * 40, max_output=100, ttft_s=number + 1.0))
    victims: list[int] = []
    hit = [0] * 4
    while result := run_step(batch, runner, now):
        now = result[0]
        for one in batch.waiting.values():
            if one.preemptions > hit[one.id]:
                hit[one.id] = one.preemptions
                victims.append(one.id)
    assert len(victims) > 2
    assert all(one != other for one, other in pairwise(victims))


def test_a_sequence_over_the_shared_cap_waits_for_the_short_ones_and_shares_with_long_ones() -> None:
    batch = batcher(BatchConfig(longest_shared=64, first_output_guess=4))
    batch.add(sequence(1, [1] * 10, max_output=4))
    batch.add(sequence(2, [2] * 100, max_output=4))
    batch.add(sequence(3, [3] * 100, max_output=4))
    plan(batch)
    assert set(batch.running) == {1}
    batch.cancel(1, 0.0)
    plan(batch)
    assert set(batch.running) == {2, 3}


def test_a_sequence_may_bring_a_tighter_cap_of_its_own() -> None:
    batch = batcher(BatchConfig(first_output_guess=4))
    batch.add(sequence(1, [1] * 10, max_output=4, longest_neighbour=64))
    batch.add(sequence(2, [2] * 100, max_output=4))
    plan(batch)
    assert set(batch.running) == {1}


def test_whoever_needs_a_block_that_is_being_computed_waits_and_shares_it() -> None:
    batch, runner = batcher(), ScriptedRunner()
    twins = [sequence(n, range(64), max_output=4) for n in (1, 2)]
    for one in twins:
        batch.add(one)
    first = plan(batch)
    assert counts(first).keys() == {1}
    drain_after(batch, runner, first)
    assert twins[1].cached == 56
    assert twins[0].tokens == twins[1].tokens


def test_a_more_urgent_sequence_does_not_wait_for_a_less_urgent_ones_prefix() -> None:
    batch = batcher()
    batch.add(sequence(1, range(200), priority=3, ttft_s=300.0))
    step = plan(batch)
    batch.done(step, [], frozenset(), 0.1, 0.1)
    batch.add(sequence(2, range(199), arrived=0.1))
    plan(batch, 0.1)
    assert 2 in batch.running


def drain_after(batch: Batcher, runner: ScriptedRunner, step: Step) -> None:
    batch.done(step, runner.run(step), frozenset(), 0.1, 0.1)
    drain(batch, runner, 0.1)


def test_a_full_queue_and_a_prompt_over_the_context_are_refused_with_the_reason() -> None:
    batch = batcher(BatchConfig(queue_limit=1))
    assert batch.add(sequence(1, [1])) is None
    full, long = batch.add(sequence(2, [1])), batcher().add(sequence(3, [1] * 256))
    assert full == BatchRefusal("1 sequences are waiting already")
    assert isinstance(long, BatchRefusal)
    assert "256" in long.reason


def test_pinning_survives_and_says_when_it_can_not() -> None:
    batch, runner = batcher(host_blocks=8, slots=1), ScriptedRunner(slots=1)
    one = sequence(1, range(40), max_output=1)
    batch.add(one)
    drain(batch, runner)
    assert batch.pin(0, 1.0) is None
    assert batch.pin(0, 1.0) == Short(2)
    for number in range(2, 6):
        batch.add(sequence(number, [number] * 60, max_output=1))
        drain(batch, runner)
    again = sequence(9, [*range(40), 1, 2], max_output=1)
    batch.add(again)
    drain(batch, runner)
    assert again.cached == 40


# -- ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_cancelling_frees_everything_in_every_phase(steps: int) -> None:
    batch, runner = batcher(BatchConfig(step_limit_s=0.1)), ScriptedRunner()
    one = sequence(1, range(30), max_output=20)
    batch.add(one)
    now = 0.0
    for _ in range(steps):
        result = run_step(batch, runner, now)
        assert result is not None
        now = result[0]
    assert batch.cancel(1, now) is one
    assert one.finish is Finish.CANCELLED
    assert batch.cancel(1, now) is None
    assert (batch.ledger.owned_blocks, batch.running, batch.waiting) == (0, {}, {})
    assert batch.plan(now) is None


def test_cancelling_a_swapped_sequence_frees_its_host_copy() -> None:
    batch, runner = batcher(BatchConfig(first_output_guess=1, headroom=0.0), blocks=12), ScriptedRunner()
    for number in (1, 2):
        batch.add(sequence(number, [number] * 40, max_output=40, ttft_s=float(number)))
    now = 0.0
    while not batch.counts.swaps:
        result = run_step(batch, runner, now)
        assert result is not None
        now = result[0]
    run_step(batch, runner, now)
    batch.cancel(2, now)
    assert batch.ledger.host_used == 0
    drain(batch, runner, now)
    assert runner.blobs == {}


def test_a_result_for_a_sequence_that_was_cancelled_meanwhile_is_ignored() -> None:
    batch, runner = batcher(), ScriptedRunner()
    one = sequence(1, range(10))
    batch.add(one)
    step = plan(batch)
    batch.cancel(1, 0.0)
    assert batch.done(step, runner.run(step), frozenset(), 0.1, 0.1) == []
    assert one.output_len == 0


def test_a_sequence_ends_when_the_context_is_full() -> None:
    batch, runner = batcher(slot_tokens=64), ScriptedRunner(slot_tokens=64)
    one = sequence(1, range(40), max_output=1000)
    batch.add(one)
    drain(batch, runner)
    assert (one.finish, len(one.tokens)) == (Finish.LENGTH, 64)


# -- repeated steps -------------------------------------------------------------------------------------------


def finish_times(repeat: bool, seed: int) -> dict[int, int]:
    """In which step each sequence of a random mix ends, run one by one or as repeated steps."""
    rng = random.Random(seed)
    batch = batcher(BatchConfig(draft_batch=0), slots=3, blocks=40, host_blocks=0)
    runner = ScriptedRunner(slots=3)
    for number in range(12):
        batch.add(sequence(number, [number] * rng.randrange(1, 60), max_output=rng.randrange(1, 60)))
    ended, steps = {}, 0
    while step := batch.plan(0.0):
        sampled, times = runner.run(step), step.repeat if repeat else 1
        for _ in range(times - 1):
            sampled = [Sampled(s.sequence_id, (*s.tokens, 0)) for s in sampled]
            for row in step.rows:
                runner.held[row.slot].append(0)
        if times > 1:  # the scripted model is not asked again, so what the slots hold is what is booked
            for one, row in zip(sampled, step.rows, strict=True):
                runner.held[row.slot] = [*row.sequence.tokens, *one.tokens[:-1]]
        steps += times
        for finished in batch.done(step, sampled, frozenset(), 0.0, 0.01 * times):
            ended[finished.id] = steps
        check_balance(batch)
    return ended


@pytest.mark.parametrize("seed", range(5))
def test_repeated_steps_end_everyone_in_the_same_step_as_single_ones(seed: int) -> None:
    assert finish_times(True, seed) == finish_times(False, seed)


def test_a_step_is_repeated_until_the_first_ends() -> None:
    batch, runner = batcher(BatchConfig(draft_batch=0)), ScriptedRunner()
    now = decoding(batch, runner, sequence(1, range(8), max_output=30))
    decoding(batch, runner, sequence(2, range(50, 58), max_output=12), now)
    run_step(batch, runner, now)
    step = plan(batch, now)
    assert step.repeat == min(s.max_output - s.output_len for s in batch.running.values())


def test_while_one_waits_every_step_is_decided_anew() -> None:
    batch, runner = batcher(BatchConfig(draft_batch=0), slots=1), ScriptedRunner(slots=1)
    now = decoding(batch, runner, sequence(1, range(8), max_output=30))
    assert plan(batch, now).repeat > 1
    batch.add(sequence(2, range(50, 58), arrived=now))
    assert plan(batch, now).repeat == 1


def test_a_step_with_only_moves_is_not_repeated() -> None:
    batch, runner = batcher(), ScriptedRunner()
    batch.add(sequence(1, range(20), max_output=1))
    drain(batch, runner)
    batch.pin(0, 0.0)
    step = plan(batch)
    assert (step.rows, step.repeat) == ((), 1)
    batch.done(step, runner.run(step), frozenset(), 0.0, 0.0)
    assert batch.plan(0.0) is None


def test_a_draft_gives_way_when_memory_is_short() -> None:
    config = BatchConfig(draft_rest=0, first_output_guess=1)
    batch = Batcher(config, Ledger(slots=1, slot_tokens=80, blocks=8, host_blocks=0, block_tokens=10), StepTime())
    runner = ScriptedRunner(slots=1, slot_tokens=80)
    one = sequence(1, [1, 2, 3, 4] * 4, max_output=60)
    batch.add(one)
    drain(batch, runner)
    assert one.tokens[16:] == reply(one.tokens[:16], 60)
    assert batch.counts.drafted > 0


def test_a_batcher_whose_memory_was_given_back_computes_every_prompt_again() -> None:
    batch, runner = batcher(), ScriptedRunner()
    for number, cached in ((1, 0), (2, 40), (3, 0)):
        if number == 3:
            batch.forget_cached()
            runner.held.clear()
        one = sequence(number, [*range(40), number], max_output=1)
        batch.add(one)
        drain(batch, runner)
        assert one.cached == cached
