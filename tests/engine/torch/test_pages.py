"""The ledger that names pages decides like its parent, and no page has two owners."""

import random
from collections import Counter

import pytest

from headgate.config.engine import BatchConfig
from headgate.engine.torch.pages import NOWHERE, PageLedger
from headgate.model.sampling import Sampled
from headgate.model.sequence import Sequence
from headgate.policy.batching.batch import Batcher
from headgate.policy.batching.estimate import StepTime
from headgate.policy.batching.ledger import KvLedger
from headgate.policy.batching.paged import PagedLedger
from tests.scripted import sequence

SIZES = {"slots": 6, "slot_tokens": 160, "blocks": 40}


def batcher(ledger: KvLedger) -> Batcher:
    return Batcher(BatchConfig(step_tokens=64, chunk_limit=48, draft_batch=0), ledger, StepTime())


def prompts(seed: int) -> list[Sequence]:
    """Prompts of which many begin alike, some of them to the last token."""
    rng = random.Random(seed)
    made = []
    for number in range(1, 61):
        begin = rng.choice(([], list(range(32)), list(range(32, 96))))
        tokens = begin + [rng.randrange(1000, 1003) for _ in range(rng.choice((1, 15, 16, 40)))]
        one = sequence(number, tokens)
        one.max_output = rng.choice((1, 17, 50))
        made.append(one)
    return made


def check(ledger: PageLedger, running: list[Sequence]) -> None:
    """Every page is spare, or kept for a full block, or in one table only."""
    tables = {one.slot: ledger.table(one.slot) for one in running if one.slot is not None}
    shared = set(ledger._page_of.values())
    alone = Counter(page for row in tables.values() for page in row if page not in shared)
    assert not alone or max(alone.values()) == 1
    assert len(shared) == len(ledger._page_of)
    owned = [*shared, *alone, *ledger._spare]
    assert sorted(owned) == list(range(1, ledger.pages)), "a page is lost, or has two owners"
    assert NOWHERE not in owned
    for one in running:
        if one.slot is not None:
            row = tables[one.slot]
            assert len(row) * ledger.block_tokens > len(one.tokens), "no room for the token after the next"
            full = one.computed // ledger.block_tokens
            assert row[:full] == [ledger._page_of[digest] for digest in one.chain[:full]]


def drive(ledger: KvLedger, seed: int) -> list[object]:
    """What the Batcher decides, while sequences come, stop early and are cancelled."""
    rng, one, waiting = random.Random(seed), batcher(ledger), prompts(seed)
    decided: list[object] = []
    now = 0.0
    while waiting or one.has_work:
        now += 0.01
        for _ in range(rng.choice((0, 0, 1, 3))):
            if waiting:
                one.add(waiting.pop())
        if one.running and rng.random() < 0.02:
            one.cancel(min(one.running), now)
        step = one.plan(now)
        if step is None:
            continue
        decided += [(row.sequence.id, row.slot, row.start, row.count) for row in step.rows]
        drawn = [Sampled(row.sequence.id, (rng.randrange(1000, 1003),)) for row in step.rows if row.samples]
        stopped = frozenset(said.sequence_id for said in drawn if rng.random() < 0.02)
        one.done(step, drawn, stopped, now, 0.01)
        if isinstance(ledger, PageLedger):
            check(ledger, list(one.running.values()))
    return [*decided, one.counts, ledger.evictions]


@pytest.mark.parametrize("seed", range(6))
def test_it_decides_like_its_parent_and_gives_every_page_one_owner(seed: int) -> None:
    named = PageLedger(**SIZES)
    decided = drive(named, seed)
    assert decided == drive(PagedLedger(**SIZES, host_blocks=0), seed)
    assert named.evictions > 20, "it was never short of memory"
    named.clear()
    assert sorted(named._spare) == list(range(1, named.pages))


def test_a_prompt_that_was_computed_twice_at_once_is_kept_once() -> None:
    ledger = PageLedger(**SIZES)
    first, second = sequence(1, range(40)), sequence(2, range(40))
    one = batcher(ledger)
    for prompt in (first, second):
        assert one.add(prompt) is None
        ledger.place(prompt.id, prompt.chain, 40, 0.0)
    first.slot, second.slot = 0, 1
    first.computed = second.computed = 40
    assert ledger.table(0)[:2] != ledger.table(1)[:2]
    ledger.take_changes()
    ledger.commit([first, second])
    assert ledger.table(0)[:2] == ledger.table(1)[:2]
    assert ledger.take_changes() == {1: 0}
    assert len(ledger._spare) + 2 + 2 * 2 == ledger.pages - 1


def test_a_pinned_prompt_stays_on_the_device() -> None:
    ledger = PageLedger(**SIZES)
    pinned = sequence(1, range(40))
    batcher(ledger).add(pinned)
    ledger.place(1, pinned.chain, 40, 0.0)
    pinned.slot, pinned.computed = 0, 40
    ledger.commit([pinned])
    ledger.pin(0, 0.0)
    ledger.release(0, 0.0)
    assert (ledger.owned_blocks, ledger.cached_blocks) == (2, 0)
    drive(ledger, 1)
    assert ledger.match(pinned.chain) == 2
    assert (ledger.owned_blocks, ledger.match(pinned.chain)) == (2, 2)
