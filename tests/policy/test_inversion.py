"""Less urgent prompts, however long, many or old, keep no urgent one waiting; and an aged one still goes on."""

from benchmarks.stepped import Come, serve, ttft

from headgate.config.engine import BatchConfig
from headgate.machine.profile import PROFILES
from headgate.model.sequence import Sequence
from headgate.model.step import Step
from headgate.policy.batching.batch import Batcher
from headgate.policy.batching.estimate import StepTime, shape_of
from tests.scripted import ScriptedRunner, batcher, drain, run_step, sequence

H100 = PROFILES["h100-llama3-8b"]
GPU = (0.009, 3e-5, 1e-6, 6e-7)
"""A step-time model: 9 ms, and 24 for 512 tokens; with 100 000 tokens before them, 31 more."""


def machine(slots: int = 8, slot_tokens: int = 200_000, config: BatchConfig | None = None) -> Batcher:
    made = batcher(config, slots=slots, slot_tokens=slot_tokens, block_tokens=16)
    made.step_time = StepTime(GPU)
    made.step_time._upper.value = 1.0
    return made


def long_one(
    number: int, arrived: float = 0.0, tokens: int = 100_000, priority: int = 2, ttft_s: float = 10.0
) -> Sequence:
    return sequence(number, [number] * tokens, arrived=arrived, lane="long", priority=priority, ttft_s=ttft_s)


def one_step(batch: Batcher, now: float) -> Step:
    """Planned, and carried out without a model."""
    step = batch.plan(now)
    assert step is not None
    batch.done(step, [], frozenset(), now, batch.step_time.predict(shape_of(step)))
    return step


def counts(step: Step) -> dict[int, int]:
    return {row.sequence.id: row.count for row in step.rows}


def test_a_prompt_above_512_tokens_does_not_wait_for_a_less_urgent_long_prefill() -> None:
    batch = machine()
    batch.add(long_one(1))
    one_step(batch, 0.0)
    batch.add(sequence(2, [7] * 600, arrived=0.02))
    assert counts(one_step(batch, 0.02))[2] == 512


def test_long_prompts_of_one_lane_go_one_at_a_time_and_wait_for_more_urgent_ones() -> None:
    batch = machine()
    batch.add(sequence(1, [7] * 5000, priority=1, lane="slow", ttft_s=2.0))
    batch.add(long_one(2))
    batch.add(sequence(3, [8] * 5000, priority=1, lane="slow", ttft_s=3.0))
    one_step(batch, 0.0)
    assert set(batch.running) == {1}


def test_an_aged_prompt_has_its_turn_beside_more_urgent_long_ones_that_have_not() -> None:
    batch = machine()
    batch.add(long_one(1))
    batch.add(sequence(2, [7] * 5000, arrived=69.9, priority=1, lane="slow", ttft_s=2.0))
    batch.add(long_one(3, arrived=1.0))
    one_step(batch, 70.0)
    assert set(batch.running) == {1, 2}  # the oldest of its lane


def test_an_aged_prompt_that_waits_for_its_turn_does_not_close_the_door() -> None:
    batch = machine()
    for number in (1, 2):
        batch.add(long_one(number, arrived=0.001 * number))
    one_step(batch, 0.01)
    for now in (61.0, 300.0):  # both are aged by then
        batch.add(sequence(10, [int(now)] * 100, arrived=now))
        batch.add(sequence(11, [int(now) + 1] * 900, arrived=now))
        step = counts(one_step(batch, now))
        assert step[10] == 100
        assert step[11] > 200
        for number in (10, 11):
            batch.cancel(number, now)


def test_however_many_long_prompts_wait_a_chat_behind_them_is_found() -> None:
    batch = machine(slots=64, slot_tokens=4096)
    for number in range(40):
        batch.add(long_one(number, arrived=0.001 * number, tokens=2000))
    one_step(batch, 0.1)
    batch.add(sequence(99, [5] * 100, arrived=61.0))
    assert counts(one_step(batch, 61.0))[99] == 100


def test_an_aged_prompt_has_a_share_of_each_step_and_not_all_of_it() -> None:
    batch = machine()
    batch.add(long_one(1, tokens=20_000))
    now = 0.0
    one_step(batch, now)
    batch.add(sequence(2, [7] * 5000, arrived=61.0))
    step = counts(one_step(batch, 61.0))
    assert 384 <= step[2] < 512
    assert 0 < step[1] <= 128
    young = machine()
    young.add(long_one(1, tokens=20_000))
    one_step(young, now)
    young.add(sequence(2, [7] * 5000, arrived=1.0))
    assert counts(one_step(young, 1.0)) == {2: 512}


def test_an_aged_prompt_has_the_time_of_its_share_to_the_token() -> None:
    batch = machine()
    batch.step_time = StepTime((2.0**-10, 2.0**-20, 2.0**-20, 0.0))  # exact in binary
    batch.step_time._upper.value = 1.0
    batch.add(long_one(1, tokens=20_000))
    one_step(batch, 0.0)
    batch.add(sequence(2, [7] * 5000, arrived=61.0))
    assert counts(one_step(batch, 61.0)) == {1: 128, 2: 384}


def test_an_aged_prompt_goes_on_even_where_streams_leave_no_time() -> None:
    batch, runner = batcher(slots=4, slot_tokens=4096, block_tokens=16), ScriptedRunner(slot_tokens=4096)
    stream = sequence(1, range(8), max_output=50, gap_s=0.001)
    batch.add(stream)
    result = run_step(batch, runner, 0.0)
    assert result is not None
    batch.add(long_one(2, tokens=2000))
    batch.add(sequence(3, [7] * 400, arrived=61.0))
    step = batch.plan(61.0)
    assert step is not None
    assert counts(step) == {1: 1, 2: 2, 3: 6}  # of the eight that are the least


def test_less_urgent_prompts_fill_a_step_up_but_hardly_lengthen_it() -> None:
    batch = machine()
    batch.add(long_one(1))
    one_step(batch, 0.0)
    deep = batch.running[1]
    batch.add(sequence(2, [7] * 100, arrived=0.1))
    assert counts(one_step(batch, 0.1))[1] > 400
    deep.computed = 99_000
    batch.add(sequence(3, [8] * 100, arrived=0.2))
    assert 100 < counts(one_step(batch, 0.2))[1] < 200
    for number in (2, 3):
        batch.cancel(number, 0.3)
    assert counts(one_step(batch, 0.3))[1] == 512  # nobody is waiting for this one


# -- memory ---------------------------------------------------------------------------------------------------


def full_of_long_ones(blocks: int = 100) -> tuple[Batcher, ScriptedRunner, float]:
    """Long ones have four fifths of the memory, all that they may."""
    config = BatchConfig(first_output_guess=8, headroom=0.2)
    batch, runner = batcher(config, slots=8, slot_tokens=400, blocks=blocks), ScriptedRunner(slots=8, slot_tokens=400)
    now = 0.0
    for number in (1, 2):
        one = sequence(number, [number] * 312, max_output=40, lane="long", priority=2, ttft_s=10.0)  # 40 blocks
        batch.add(one)
        while one.first_token_at is None:
            result = run_step(batch, runner, now)
            assert result is not None
            now = result[0]
    return batch, runner, now


def test_less_urgent_sequences_do_not_hold_memory_from_a_more_urgent_one() -> None:
    batch, _, now = full_of_long_ones()
    batch.add(sequence(8, [8] * 50, arrived=now, lane="long", priority=2, ttft_s=10.0))
    batch.add(sequence(9, [9] * 50, arrived=now))
    batch.plan(now)
    assert set(batch.running) == {1, 2, 9}
    batch.add(sequence(10, [10] * 80, arrived=now))  # beyond 95 of 100 blocks
    batch.plan(now)
    assert 10 in batch.waiting


def test_a_higher_lane_passes_an_aged_one_that_waits_for_memory_and_leaves_it_room() -> None:
    batch, runner, now = full_of_long_ones()
    aged = sequence(3, [3] * 312, max_output=8, arrived=now, lane="long", priority=2, ttft_s=10.0)
    batch.add(aged)
    later = now + 61.0
    batch.add(sequence(4, [4] * 16, max_output=8, arrived=later, lane="long", priority=2, ttft_s=10.0))
    batch.add(sequence(5, [5] * 16, max_output=8, arrived=later, lane="batch", priority=3, ttft_s=300.0))
    batch.add(sequence(6, [6] * 16, max_output=8, arrived=later))
    run_step(batch, runner, later)
    assert set(batch.running) == {1, 2, 6}  # those of its own lane and below do not pass
    for number in (1, 2, 6):
        batch.cancel(number, later)
    run_step(batch, runner, later + 0.1)
    assert aged.slot is not None
    drain(batch, runner, later + 0.2)
    assert batch.ledger.owned_blocks == 0


def test_those_that_pass_an_aged_one_never_take_what_it_needs() -> None:
    """A stream of chats, for ever: when those that were before it have ended, the aged one is in."""
    batch, runner, now = full_of_long_ones()
    aged = sequence(3, [3] * 312, max_output=8, arrived=now, lane="long", priority=2, ttft_s=10.0)
    batch.add(aged)
    now += 61.0
    number = 10
    while aged.slot is None and number < 2000:
        batch.add(sequence(number, [number % 50] * 60, max_output=30, arrived=now))
        number += 1
        result = run_step(batch, runner, now)
        assert result is not None
        now = result[0]
    assert aged.slot is not None
    assert len(batch.running) > 1


# -- slots and prefixes -------------------------------------------------------------------------------------------


def test_a_lower_lane_makes_way_for_a_chat_though_an_aged_one_is_first() -> None:
    batch, runner, now = batcher(BatchConfig(first_output_guess=8), slots=2), ScriptedRunner(slots=2), 0.0
    for number in (1, 2):
        one = sequence(number, [number] * 20, max_output=200, lane="long", priority=2, ttft_s=300.0)
        batch.add(one)
        while one.first_token_at is None:
            result = run_step(batch, runner, now)
            assert result is not None
            now = result[0]
    batch.add(sequence(3, [3] * 20, arrived=now - 100.0, lane="long", priority=2, ttft_s=10.0))
    batch.plan(now)
    assert 3 in batch.waiting  # for its own lane nobody makes way
    batch.add(sequence(4, [4] * 20, arrived=now))
    batch.plan(now)
    assert batch.counts.yields == 1


def test_nobody_waits_for_a_prefix_that_a_less_urgent_aged_one_computes() -> None:
    batch = machine()
    batch.add(long_one(1))
    one_step(batch, 0.0)
    batch.add(sequence(2, [1] * 100_000, arrived=61.0))
    one_step(batch, 61.0)
    assert 2 in batch.running


# -- an emulated H100 ---------------------------------------------------------------------------------------------


def test_beside_long_prompts_a_chat_waits_for_a_step_and_no_longer() -> None:
    """benchmarks/inversion.py does it with many more. Before: 3.3 s beside 60 000 tokens, 41 s after a minute."""
    long = [Come(0.001 * n, "long", 100_000, 50, name="long") for n in range(10)]
    fast = [Come(at, "fast", tokens, 20) for at in (1.0, 7.5, 61.0, 70.2, 79.9) for tokens in (100, 600)]
    slow = [Come(at, "slow", 8000, 20) for at in (3.0, 65.0, 77.0)]
    alone, both = serve(H100, long), serve(H100, long + fast + slow)
    assert max(both.ttfts("fast")) < 0.15
    assert max(both.ttfts("slow")) < 1.0
    assert all(a < 1.3 * b for a, b in zip(both.ttfts("long"), alone.ttfts("long"), strict=True))
    assert both.longest_step_s < 0.08
    assert all(ttft(one) < 110.0 for _, one in both.sequences)
