"""The built-in profiles of 70B models are what measured kernels say."""

import pytest
from benchmarks.large_profiles import fit, read

from headgate.machine.profile import PROFILES
from headgate.machine.step_features import StepFeatures

ROWS = read()


@pytest.mark.parametrize(("gpu", "gpus"), ROWS)
def test_the_fit_to_the_kernels_is_as_good_as_is_said(gpu: str, gpus: int) -> None:
    found = fit(ROWS[gpu, gpus], gpu, gpus)
    assert found.mean_error < 0.05
    assert found.largest_error < 0.23


@pytest.mark.parametrize(("gpu", "gpus"), ROWS)
def test_the_profile_has_the_numbers_of_the_fit(gpu: str, gpus: int) -> None:
    found, profile = fit(ROWS[gpu, gpus], gpu, gpus), PROFILES[f"{gpu}x{gpus}-llama3-70b"]
    for tokens, ms in ROWS[gpu, gpus]:
        expected_ms = 1.2 * (
            1.0 + found.fixed_ms + found.token_ms * tokens + found.beyond_ms * max(0, tokens - found.knee)
        )
        assert profile.cost.seconds(StepFeatures(prefill=tokens)) * 1e3 == pytest.approx(expected_ms, rel=0.002)
        assert expected_ms > 0.95 * ms
    assert profile.cost.per_context == pytest.approx(1.2e-3 * found.k, rel=0.01)
    assert profile.cost.per_pair == pytest.approx(1.2e-3 * found.g, rel=0.01)


def test_more_gpus_are_faster_and_hold_more() -> None:
    for gpu in ("a100", "h100"):
        four, eight = PROFILES[f"{gpu}x4-llama3-70b"], PROFILES[f"{gpu}x8-llama3-70b"]
        step = StepFeatures(decodes=32, context=32_000)
        assert 0.5 < eight.cost.seconds(step) / four.cost.seconds(step) < 0.75
        assert eight.kv_tokens > 2 * four.kv_tokens
