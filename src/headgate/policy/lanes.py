"""Which lane does a request belong to?"""

LONG_ABOVE = 16_384
"""Prompt tokens above which a request is long whatever else it is."""
FAST_BELOW = 512
"""Prompt tokens below which a streaming request is fast."""


def classify(
    *,
    prompt_tokens: int,
    streaming: bool,
    says_batch: bool,
    long_above: int = LONG_ABOVE,
    fast_below: int = FAST_BELOW,
) -> str:
    """The name of the first that matches, in this order."""
    if prompt_tokens > long_above:
        return "long"
    if says_batch:
        return "batch"
    if streaming and prompt_tokens < fast_below:
        return "fast"
    return "slow"
