"""Profiles fitted to what a client sees of an engine."""

import random

import pytest

from headgate.machine.observed import (
    Observation,
    TooFewObservations,
    first_token,
    fit_observed,
    gap,
)
from headgate.machine.profile import PROFILES, StepCost
from headgate.machine.step_features import StepFeatures

H100 = PROFILES["h100-llama3-8b"]
LENGTHS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def seen(cost: StepCost, request_s: float = 0.0, noise: float = 0.0, chunk: int = 512) -> list[Observation]:
    """What a client sees of an engine with this cost."""
    rng = random.Random(7)

    def off() -> float:
        return 1.0 + rng.uniform(-noise, noise)

    found = []
    for length in LENGTHS:
        steps = first_token(length, 1.0, chunk).steps
        found.append(first_token(length, (request_s + sum(map(cost.seconds, steps))) * off(), chunk))
    for batch in BATCHES:
        for context in (64, 1024):
            step_s = cost.seconds(gap(batch, context, 1.0).steps[0])
            found.append(gap(batch, context, step_s * off(), [[step_s] * 40]))
    return found


def test_a_prompt_is_as_many_steps_as_it_has_chunks() -> None:
    steps = first_token(1200, 1.0, 512).steps
    assert [step.prefill for step in steps] == [512, 512, 176]
    assert sum(step.pairs for step in steps) == 1200**2


def test_the_cost_is_found_again() -> None:
    fitted = fit_observed(seen(H100.cost, request_s=0.004), H100)
    assert fitted.request_s == pytest.approx(0.004, rel=0.03)
    assert fitted.error < 0.002
    assert abs(fitted.profile.cost.knee - H100.cost.knee) < 20
    for shape in (StepFeatures(decodes=20, context=9000), StepFeatures(prefill=500, pairs=250_000, decodes=30)):
        assert fitted.profile.cost.seconds(shape) == pytest.approx(H100.cost.seconds(shape), rel=0.01)


def test_noise_is_averaged_and_kept_as_noise() -> None:
    fitted = fit_observed(seen(H100.cost, request_s=0.004, noise=0.05), H100)
    assert fitted.error < 0.05
    shape = StepFeatures(prefill=400, pairs=160_000, decodes=10, context=5000)
    assert fitted.profile.cost.seconds(shape) == pytest.approx(H100.cost.seconds(shape), rel=0.05)
    assert len(fitted.profile.decode_only.runs) == len(BATCHES) * 2 * 3  # 40 gaps in runs of 16
    assert 0.9 < fitted.profile.decode_only.median < 1.1
    assert len(fitted.profile.with_prefill.runs) == len(LENGTHS)


def test_a_first_token_that_was_disturbed_counts_less() -> None:
    told = seen(H100.cost)
    told[5] = Observation(told[5].seconds * 6, told[5].steps, 1)
    fitted = fit_observed(told, H100)
    assert fitted.profile.cost.seconds(StepFeatures(prefill=256, pairs=65_536)) == pytest.approx(
        H100.cost.seconds(StepFeatures(prefill=256, pairs=65_536)), rel=0.05
    )


def test_a_machine_that_computes_in_blocks_has_its_ratio_by_batch() -> None:
    cost = StepCost(fixed=0.008, per_prefill=0.004, per_decode=0.003, per_context=1e-7)
    told = [
        one if not one.decodes or one.decodes != 8 else gap(8, one.steps[0].context / 8, one.seconds * 1.3)
        for one in seen(cost)
    ]
    fitted = fit_observed(told, H100)
    by_batch = fitted.profile.cost.by_batch
    assert fitted.profile.cost.knee == 0
    assert by_batch[7] > 1.15 * by_batch[4]  # 8 at once, and 4
    assert by_batch[4] < by_batch[6] < by_batch[7]  # 6, which was not seen, is between them
    assert by_batch[0] == 1.0


def test_a_table_has_no_noise() -> None:
    told = [Observation(one.seconds, one.steps, one.requests) for one in seen(H100.cost)]
    profile = fit_observed(told, H100).profile
    assert profile.decode_only.runs == ()
    assert (profile.slots, profile.name) == (H100.slots, H100.name)


def test_batches_that_begin_above_one_have_a_ratio_for_one_too() -> None:
    told = [one for one in seen(H100.cost) if one.decodes not in (1, 2)]
    assert fit_observed(told, H100).profile.cost.by_batch[1] == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("kind", ["gaps", "first tokens"])
def test_too_few_are_refused_in_words(kind: str) -> None:
    told = [one for one in seen(H100.cost) if bool(one.decodes) == (kind == "first tokens")]
    with pytest.raises(TooFewObservations, match="too few to fit a profile; 4 of each"):
        fit_observed(told, H100)
