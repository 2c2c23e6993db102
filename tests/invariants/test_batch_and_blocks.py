"""Whatever arrives, is cancelled or runs out of memory, these hold."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.engine import BatchConfig
from headgate.model.sequence import Finish, Sequence
from headgate.model.step import Step
from tests.scripted import ScriptedRunner, batcher, check_balance, cut, reply, sequence, step_seconds

TIGHT = BatchConfig(chunk_floor=4, long_prompt_tokens=40, first_output_guess=4, headroom=0.1, draft_rest=3)


def prompts(rng: random.Random) -> list[int]:
    """Many share a beginning, so that prefixes are found, copied, trimmed and evicted."""
    shared = [1] * rng.choice([0, 8, 24, 60]) + [2] * rng.choice([0, 16])
    return shared + [rng.randrange(50) for _ in range(rng.randrange(1, 80))]


def play(seed: int, blocks: int, host_blocks: int) -> tuple[list[Step], dict[int, Sequence]]:
    """A random life: arrivals, cancels and steps until all have ended. Gives the schedule and the sequences."""
    rng = random.Random(seed)
    batch = batcher(TIGHT, slots=4, slot_tokens=256, blocks=blocks, host_blocks=host_blocks)
    runner = ScriptedRunner()
    everyone: dict[int, Sequence] = {}
    steps: list[Step] = []
    now, stop_at = 0.0, frozenset({13})
    while len(everyone) < 30 or batch.running or batch.waiting:
        while len(everyone) < 30 and rng.random() < 0.4:
            lane, priority = rng.choice([("fast", 0), ("slow", 1), ("batch", 3)])
            one = sequence(
                len(everyone), prompts(rng), max_output=rng.randrange(1, 60), arrived=now, lane=lane, priority=priority
            )
            assert batch.add(one) is None
            everyone[one.id] = one
        if everyone and rng.random() < 0.03:
            batch.cancel(rng.choice(list(everyone)), now)
        check_balance(batch)
        step = batch.plan(now)
        if step is None:
            now += 0.05
            continue
        steps.append(step)
        assert step.tokens <= TIGHT.step_tokens + 9 * TIGHT.draft_batch
        check_balance(batch)
        sampled = [cut(one, stop_at) for one in runner.run(step)]
        stopped = frozenset(one.sequence_id for one in sampled if one.tokens[-1] in stop_at)
        now += step_seconds(step)
        batch.done(step, sampled, stopped, now, step_seconds(step))
    check_balance(batch)
    assert batch.ledger.owned_blocks == 0
    return steps, everyone


def expected(one: Sequence) -> list[int]:
    said = reply(one.tokens[: one.prompt_len], one.max_output)
    return said[: said.index(13) + 1] if 13 in said else said


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([36, 48, 128]), st.sampled_from([0, 8, 64]))
def test_every_arrival_ends_once_says_what_it_would_have_said_alone_and_no_budget_is_exceeded(
    seed: int, blocks: int, host_blocks: int
) -> None:
    _, everyone = play(seed, blocks, host_blocks)
    for one in everyone.values():
        said, alone = one.tokens[one.prompt_len :], expected(one)
        assert one.finish is not None
        if one.finish is Finish.CANCELLED:
            assert said == alone[: len(said)]
        else:
            assert said == alone
            assert one.finish is (Finish.STOP if said[-1] == 13 else Finish.LENGTH)


def test_the_random_life_meets_preemption_swapping_recomputing_prefix_reuse_and_drafts() -> None:
    swapped = any(s.preemptions for _, e in [play(seed, 36, 64) for seed in range(8)] for s in e.values())
    recomputed = any(s.preemptions for _, e in [play(seed, 36, 0) for seed in range(8)] for s in e.values())
    steps, lives = play(3, 128, 64)
    cached = any(s.cached for s in lives.values())
    drafted = any(row.draft for step in steps for row in step.rows)
    assert swapped
    assert recomputed
    assert cached
    assert drafted


def test_the_same_seed_gives_the_same_schedule() -> None:
    def schedule(seed: int) -> list[object]:
        steps, _ = play(seed, 48, 8)
        return [
            (s.moves, [(r.sequence.id, r.slot, r.start, r.count, r.draft) for r in s.rows], s.repeat) for s in steps
        ]

    assert schedule(7) == schedule(7)
    assert schedule(7) != schedule(8)
