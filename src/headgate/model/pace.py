"""Estimates a replica's time per prompt token from the first tokens that it returned.

    first token = fixed + token_s · (own prompt + half of the tokens outstanding there when it was sent)

The fit is least squares over the last few hundred first tokens. A request's own prompt length alone would not tell: a
short prompt waits for a step and a round trip, and a hundred of them at once take hardly longer than one. Half, because
outstanding prompts are half done on average.
"""

from typing import Final

KEEP: Final = 0.995
"""Factor by which each new first token reduces the weight of those before it."""
LEAST: Final = 4.0
"""First tokens (weighted) below which there is no estimate."""
PRIOR_TOKENS: Final = 64.0
PRIOR: Final = 8.0
"""The prior: PRIOR first tokens' worth of weight on the mean. It dominates until prompt sizes differ by about
PRIOR_TOKENS tokens."""
FIXED_TOKENS: Final = 100.0
"""Fixed cost of a first token, in prompt tokens, where nothing else tells."""


class PrefillPace:
    """Running fit for one replica. Written out, not a dataclass, because every request calls it."""

    __slots__ = ("_count", "_tokens", "_tokens_squared", "_tokens_took", "_took_s")

    def __init__(self) -> None:
        self._count = 0.0
        self._tokens = 0.0
        self._took_s = 0.0
        self._tokens_squared = 0.0
        self._tokens_took = 0.0

    def see(self, prompt: int, before: int, took_s: float) -> None:
        """Records a first token: `took_s` after its prompt was sent, with `before` prompt tokens outstanding ahead of
        it."""
        tokens = prompt + 0.5 * before
        self._count = KEEP * self._count + 1.0
        self._tokens = KEEP * self._tokens + tokens
        self._took_s = KEEP * self._took_s + took_s
        self._tokens_squared = KEEP * self._tokens_squared + tokens * tokens
        self._tokens_took = KEEP * self._tokens_took + tokens * took_s

    def first_s(self, prompt: int, before: int) -> float | None:
        """How long after its sending the first token of such a prompt comes; None: too few first tokens were seen."""
        token_s = self.token_s
        if token_s is None:
            return None
        mean, mean_s = self._tokens / self._count, self._took_s / self._count
        return max(0.0, mean_s + token_s * (prompt + 0.5 * before - mean))

    @property
    def token_s(self) -> float | None:
        """Seconds per further prompt token; None: too few first tokens were seen."""
        count = self._count
        if count < LEAST:
            return None
        mean, mean_s = self._tokens / count, self._took_s / count
        spread = max(0.0, self._tokens_squared - count * mean * mean)
        together = self._tokens_took - count * mean * mean_s
        weight = PRIOR * PRIOR_TOKENS * PRIOR_TOKENS
        usual_s = mean_s / (mean + FIXED_TOKENS)
        return max(0.0, (together + weight * usual_s) / (spread + weight))
