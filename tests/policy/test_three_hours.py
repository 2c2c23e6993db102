"""Three hours of mixed load in virtual time: nobody starves, and the fast lane stays fast."""

import heapq
import random
from dataclasses import dataclass

import pytest

from headgate.model.config import BatchConfig
from headgate.model.lane import LANES
from headgate.model.sampling import Sampled
from headgate.model.sequence import Finish, Sequence
from headgate.policy.batch import Batcher
from headgate.policy.urgency import ageing_bound_s
from tests.scripted import batcher, sequence, step_seconds

HOURS = 3
MIX = [  # share, lane, prompt tokens, output tokens
    (0.70, "fast", (20, 100), (10, 70)),
    (0.15, "slow", (100, 500), (20, 180)),
    (0.10, "batch", (200, 800), (50, 350)),
    (0.05, "long", (1000, 2000), (20, 180)),
]
PER_SECOND = 0.5
"""Keeps the scripted machine about nine tenths busy."""


@dataclass
class Run:
    everyone: list[Sequence]
    batch: Batcher
    ended_at: float
    busy_s: float


def arrivals(rng: random.Random, per_second: float) -> list[Sequence]:
    """Poisson, with a burst of twenty every half hour."""
    times, now = [], 0.0
    while (now := now + rng.expovariate(per_second)) < HOURS * 3600:
        times.append(now)
    times += [half * 1800.0 + 0.001 * n for half in range(2 * HOURS) for n in range(20)]
    made = []
    for number, when in enumerate(sorted(times)):
        _, lane, prompt, output = rng.choices(MIX, [share for share, *_ in MIX])[0]
        promise = LANES[lane]
        made.append(
            sequence(
                number,
                [number % 49 + 1] * rng.randint(*prompt),
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
    everyone = arrivals(random.Random(seed), per_second)
    coming = [(one.arrived, one.id) for one in everyone]
    heapq.heapify(coming)
    now = busy = 0.0
    while coming or batch.running or batch.waiting:
        while coming and coming[0][0] <= now:
            assert batch.add(everyone[heapq.heappop(coming)[1]]) is None
        step = batch.plan(now)
        if step is None:
            now = coming[0][0]
            continue
        once = step_seconds(step)
        until = coming[0][0] - now if coming else float("inf")
        times = max(1, min(step.repeat, int(until / once) if until < 1e9 else step.repeat))
        now, busy = now + once * times, busy + once * times
        sampled = [Sampled(row.sequence.id, (0,) * times) for row in step.rows if row.samples]
        batch.done(step, sampled, frozenset(), now, once * times)
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
