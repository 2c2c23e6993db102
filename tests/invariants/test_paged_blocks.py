"""However sequences come, share, are swapped and go: paged memory is within its bounds, and counts what is there."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.model.sampling import Sampled
from headgate.model.sequence import Sequence
from headgate.policy.batching.batch import Batcher
from headgate.policy.batching.estimate import StepTime
from headgate.policy.batching.paged import PagedLedger
from tests.invariants.test_batch_and_blocks import TIGHT, expected, prompts
from tests.scripted import check_balance, next_token, sequence, step_seconds

BLOCK = 8


def check(batch: Batcher, everyone: dict[int, Sequence], computed: set[bytes]) -> None:
    check_balance(batch)
    ledger = batch.ledger
    assert isinstance(ledger, PagedLedger)
    users = ledger._users
    held = {*users, *ledger._idle, *ledger._copies, *ledger._away}
    assert held <= computed
    for one in everyone.values():
        there = [digest in users or digest in ledger._idle for digest in one.chain]
        assert there == sorted(there, reverse=True), "a block is on the device, and one before it is not"


def play(seed: int, blocks: int, host_blocks: int) -> tuple[Batcher, dict[int, Sequence]]:
    rng = random.Random(seed)
    ledger = PagedLedger(slots=4, slot_tokens=256, blocks=blocks, host_blocks=host_blocks, block_tokens=BLOCK)
    batch = Batcher(TIGHT, ledger, StepTime())
    everyone: dict[int, Sequence] = {}
    computed: set[bytes] = set()
    now = 0.0
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
        check(batch, everyone, computed)
        step = batch.plan(now)
        if step is None:
            now += 0.05
            continue
        sampled = []
        for row in step.rows:
            if row.samples:  # drafts are never right here
                sampled.append(Sampled(row.sequence.id, (next_token(row.sequence.tokens),)))
            computed.update(row.sequence.chain[: (row.start + row.count) // BLOCK])
        now += step_seconds(step)
        batch.done(step, sampled, frozenset(), now, step_seconds(step))
    check(batch, everyone, computed)
    assert batch.ledger.owned_blocks == 0
    return batch, everyone


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([36, 48, 128]), st.sampled_from([0, 8, 64]))
def test_paged_memory_is_never_overdrawn_and_every_answer_is_whole(seed: int, blocks: int, host_blocks: int) -> None:
    _, everyone = play(seed, blocks, host_blocks)
    for one in everyone.values():
        assert one.finish is not None
        said = one.tokens[one.prompt_len :]
        assert said == expected(one)[: len(said)] or 13 in said


def test_the_random_life_meets_sharing_swapping_recomputing_and_eviction() -> None:
    lives = [play(seed, 36, 64) for seed in range(6)]
    assert any(batch.counts.swaps for batch, _ in lives)
    assert any(batch.ledger.evictions for batch, _ in lives)
    assert any(one.cached for _, everyone in lives for one in everyone.values())
    assert any(batch.counts.recomputes for batch, _ in (play(seed, 36, 0) for seed in range(6)))
