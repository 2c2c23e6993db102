"""Three hours of mixed load in virtual time: no lane starves, and the fast one stays fast."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from headgate.config.engine import BatchConfig
from headgate.machine.profile import PROFILES
from headgate.machine.step_features import shape
from headgate.model.lane import LANES
from headgate.model.sampling import Sampled
from headgate.model.sequence import Finish, Sequence
from headgate.model.step import Step
from headgate.policy.batching.batch import Batcher
from headgate.policy.batching.urgency import ageing_bound_s
from tests.scripted import batcher, sequence, step_seconds

HOURS = 3
Share = tuple[float, str, tuple[int, int], tuple[int, int]]
MIX: list[Share] = [  # share, lane, prompt tokens, output tokens
    (0.70, "fast", (20, 100), (10, 70)),
    (0.15, "slow", (100, 500), (20, 180)),
    (0.10, "batch", (200, 800), (50, 350)),
    (0.05, "long", (1000, 2000), (20, 180)),
]
PER_SECOND = 0.5
"""Keeps the scripted machine about nine tenths busy."""
H100 = PROFILES["h100-llama3-8b"]
LONG_MIX: list[Share] = [
    (0.70, "fast", (20, 1000), (10, 100)),
    (0.25, "slow", (513, 16_000), (20, 200)),
    (0.04, "long", (30_000, 100_000), (20, 400)),
    (0.01, "batch", (1000, 100_000), (50, 350)),
]


@dataclass
class Run:
    everyone: list[Sequence]
    batch: Batcher
    ended_at: float
    busy_s: float


def arrivals(rng: random.Random, per_second: float, mix: list[Share] = MIX) -> list[Sequence]:
    """Poisson, with a burst of twenty every half hour."""
    times, now = [], 0.0
    while (now := now + rng.expovariate(per_second)) < HOURS * 3600:
        times.append(now)
    times += [half * 1800.0 + 0.001 * n for half in range(2 * HOURS) for n in range(20)]
    made = []
    for number, when in enumerate(sorted(times)):
        _, lane, prompt, output = rng.choices(mix, [share for share, *_ in mix])[0]
        promise = LANES[lane]
        made.append(
            sequence(
                number,
                [number % 49 + 1 if mix is MIX else number] * rng.randint(*prompt),
                max_output=rng.randint(*output),
                arrived=when,
                lane=lane,
                priority=promise.priority,
                ttft_s=promise.ttft_target_s,
                gap_s=promise.gap_target_s,
            )
        )
    return made


def three_hours(seed: int, config: BatchConfig, per_second: float = PER_SECOND) -> Run:
    batch = batcher(config, slots=8, slot_tokens=4096, host_blocks=1024, block_tokens=16)
    return played(batch, arrivals(random.Random(seed), per_second), step_seconds)


def played(batch: Batcher, everyone: list[Sequence], seconds: Callable[[Step], float]) -> Run:
    coming = [(one.arrived, one.id) for one in everyone]
    heapq.heapify(coming)
    now = busy = 0.0
    while coming or batch.running or batch.waiting:
        while coming and coming[0][0] <= now:
            one = everyone[heapq.heappop(coming)[1]]
            one.tokens = one.tokens or [one.id] * one.prompt_len
            assert batch.add(one) is None
        step = batch.plan(now)
        if step is None:
            now = coming[0][0]
            continue
        once = seconds(step)
        until = coming[0][0] - now if coming else float("inf")
        times = max(1, min(step.repeat, int(until / once) if until < 1e9 else step.repeat))
        now, busy = now + once * times, busy + once * times
        sampled = [Sampled(row.sequence.id, (0,) * times) for row in step.rows if row.samples]
        for one in batch.done(step, sampled, frozenset(), now, once * times):
            if one.prompt_len > 16_000:
                one.tokens = []  # together they would take a gigabyte
    return Run(everyone, batch, now, busy)


@pytest.fixture(scope="module")
def run() -> Run:
    return three_hours(1, BatchConfig(draft_batch=0))


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


def waited(one: Sequence) -> float:
    assert one.admitted_at is not None
    return one.admitted_at - one.arrived


def ttft(one: Sequence) -> float:
    assert one.first_token_at is not None
    return one.first_token_at - one.arrived


@pytest.mark.timeout(120)
def test_everyone_ends_and_the_machine_was_really_busy(run: Run) -> None:
    assert all(one.finish is Finish.LENGTH and one.output_len == one.max_output for one in run.everyone)
    assert 0.75 < run.busy_s / (HOURS * 3600) < 0.95


@pytest.mark.timeout(120)
def test_nobody_waits_past_its_ageing_bound(run: Run) -> None:
    # Once aged, nobody passes: what is left is for slots in use to end, each at most 350 tokens of 0.2 s.
    longest_occupation_s = 70.0
    for one in run.everyone:
        assert waited(one) < ageing_bound_s(one, run.batch.config) + longest_occupation_s


@pytest.mark.timeout(120)
def test_lanes_keep_their_order_in_the_tail(run: Run) -> None:
    fast, slow, batch = (
        p99([ttft(one) for one in run.everyone if one.lane == lane]) for lane in ("fast", "slow", "batch")
    )
    assert fast < slow / 2 < batch / 4


@pytest.mark.timeout(120)
def test_it_is_ageing_that_keeps_the_lowest_lane_from_starving() -> None:
    endless = 1e9
    run = three_hours(1, BatchConfig(draft_batch=0, ageing_s=endless, starve_after_s=endless), per_second=0.56)
    assert max(waited(one) for one in run.everyone) > 300.0 + 70.0


@pytest.mark.timeout(240)
def test_slow_prompts_keep_their_promise_beside_long_ones_for_three_hours() -> None:
    """On an emulated H100 that is three quarters busy, most of it with prompts of 30 000 tokens and more."""
    everyone = arrivals(random.Random(7), 1.4, LONG_MIX)
    for one in everyone:
        one.tokens = []  # until it comes
    run = played(H100.batcher(H100.batch_config()), everyone, lambda step: H100.step_s(shape(step)))
    assert all(one.finish is Finish.LENGTH for one in everyone)
    assert 0.6 < run.busy_s / (HOURS * 3600) < 0.9
    calm = [one for one in everyone if one.arrived % 1800.0 > 30.0]  # not of a burst, or while one is worked off
    fast, slow = ([ttft(one) for one in calm if one.lane == lane] for lane in ("fast", "slow"))
    assert p99(fast) < 0.3
    assert sorted(slow)[int(0.95 * len(slow))] < LANES["slow"].ttft_target_s
    assert p99(slow) < 5.0
    assert run.batch.counts.swaps + run.batch.counts.recomputes == 0
