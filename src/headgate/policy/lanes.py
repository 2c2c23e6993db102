"""Which lane does a request belong to?"""

from headgate.model.lane import LANES, Lane

LONG_FROM = 16_384
"""Prompt tokens from which a request is long whatever else it is."""
FAST_BELOW = 512
"""Prompt tokens below which a streaming request is fast."""


def classify(*, prompt_tokens: int, streaming: bool, says_batch: bool) -> Lane:
    """The first that matches, in this order."""
    if prompt_tokens > LONG_FROM:
        return LANES["long"]
    if says_batch:
        return LANES["batch"]
    if streaming and prompt_tokens < FAST_BELOW:
        return LANES["fast"]
    return LANES["slow"]
