"""A stream keeps its gap beside a prompt of 1 500 tokens, though steps vary. benchmarks/engine.py measures it."""

import random

from benchmarks.stepped import Come, serve

from headgate.machine.profile import Noise, Profile, Residuals, StepCost
from headgate.model.lane import LANES
from headgate.policy.batching.estimate import StepTime

TARGET_S = LANES["fast"].gap_target_s
COST = StepCost(fixed=0.004, per_prefill=0.0105, per_decode=0.006, per_context=2e-6, per_pair=1.2e-6)
BY_CONTEXT = StepCost(fixed=0.004, per_prefill=0.002, per_decode=0.006, per_context=2e-6, per_pair=2.8e-6)
"""A token after 1 500 others takes five times as long as after none, as the bundled model's does on two cores."""


def two_cores(rng: random.Random, cost: StepCost = COST) -> Profile:
    """About SmolLM2 on two cores; one step in ten takes 1.6 times as long."""
    runs = tuple(
        tuple(rng.uniform(0.97, 1.03) * (1.6 if rng.random() < 0.1 else 1.0) for _ in range(8)) for _ in range(200)
    )
    return Profile(
        name="two cores",
        model="a test's",
        cost=cost,
        with_prefill=Residuals(1.0, runs),
        decode_only=Residuals(1.0, runs),
        slots=8,
        context=4096,
        kv_tokens=32_768,
        host_tokens=16_384,
        step_tokens=520,
    )


def gaps_beside(seed: int, cost: StepCost = COST, step_time: StepTime | None = None) -> list[float]:
    """The gaps of a stream while a prompt of 1 500 tokens is prefilled, on an engine that has been at work before."""
    profile = two_cores(random.Random(seed), cost)
    before = [Come(0.0, "slow", 600, 8), *(Come(12.0 + 0.01 * number, "fast", 40, 16) for number in range(8))]
    stream, long = Come(20.0, "fast", 40, 600, name="stream"), Come(24.0, "slow", 1500, 4)
    served = serve(profile, [*before, stream, long], noise=Noise(random.Random(seed)), step_time=step_time)
    one, other = (found for _, found in served.sequences[-2:])
    assert one.first_token_at is not None
    assert other.first_token_at is not None
    found, now = [], one.first_token_at
    for gap in served.gaps["stream"]:
        if now + gap > long.at_s and now < other.first_token_at:
            found.append(gap)
        now += gap
    return found


def test_the_gap_is_kept_though_steps_vary() -> None:
    gaps = sorted(gap for seed in range(6) for gap in gaps_beside(seed))
    assert len(gaps) > 500
    assert gaps[int(0.95 * len(gaps))] <= 1.1 * TARGET_S
    assert gaps[int(0.99 * len(gaps))] <= 1.5 * TARGET_S


def test_an_engine_that_starts_without_a_profile_learns_what_context_costs() -> None:
    gaps = sorted(gap for seed in range(6) for gap in gaps_beside(seed, BY_CONTEXT, StepTime()))
    assert len(gaps) > 300
    assert gaps[int(0.95 * len(gaps))] <= 1.1 * TARGET_S
    assert gaps[int(0.99 * len(gaps))] <= 1.5 * TARGET_S
