"""Chooses the lane of a request."""

LONG_ABOVE = 16_384
"""Prompt tokens above which a request is in the long lane, whatever else it is."""
FAST_BELOW = 512
"""Prompt tokens below which a streaming request that is neither long nor batch is in the fast lane."""


class Classifier:
    """Chooses lanes with the token limits of a config."""

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
    """The name of the first lane that matches, in this order."""
    if prompt_tokens > long_above:
        return "long"
    if says_batch:
        return "batch"
    if streaming and prompt_tokens < fast_below:
        return "fast"
    return "slow"
