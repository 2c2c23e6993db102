"""Which lane does a request belong to?"""

LONG_ABOVE = 16_384
"""Prompt tokens above which a request is long whatever else it is."""
FAST_BELOW = 512
"""Prompt tokens below which a streaming request is fast."""


class Classifier:
    """With the lines where a config draws them."""

    __slots__ = ("_fast_below", "_long_above")

    def __init__(self, long_above: int, fast_below: int) -> None:
        self._long_above = long_above
        self._fast_below = fast_below

    def lane_of(self, prompt_tokens: int, streaming: bool, says_batch: bool) -> str:
        return classify(
            prompt_tokens=prompt_tokens,
            streaming=streaming,
            says_batch=says_batch,
            long_above=self._long_above,
            fast_below=self._fast_below,
        )


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
