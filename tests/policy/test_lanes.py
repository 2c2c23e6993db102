import pytest

from headgate.policy.dispatch.lanes import classify


@pytest.mark.parametrize(
    ("prompt_tokens", "streaming", "says_batch", "lane"),
    [
        (20_000, True, True, "long"),
        (100, True, True, "batch"),
        (511, True, False, "fast"),
        (512, True, False, "slow"),
        (100, False, False, "slow"),
    ],
)
def test_the_first_lane_that_matches_takes_the_request(
    prompt_tokens: int, streaming: bool, says_batch: bool, lane: str
) -> None:
    assert classify(prompt_tokens=prompt_tokens, streaming=streaming, says_batch=says_batch) == lane
