"""How long a replica takes for a prompt token, by the first tokens that came from it.

    first token = fixed + token_s · (its own prompt + half of what was outstanding there when it was sent)

fitted by least squares over the last few hundred. Its own prompt's length alone would not tell: a short prompt waits
for a step and a round trip, and a hundred of them at once take hardly longer than one. Half, because what is
outstanding is on the average half done.
"""

from typing import Final

KEEP: Final = 0.995
"""What is left of a first token's weight with each one after it."""
LEAST: Final = 4.0
"""First tokens before anything is said."""
PRIOR_TOKENS: Final = 64.0
PRIOR: Final = 8.0
"""Until outstanding tokens differ by about so many, the fit leans on the mean, as if so many first tokens said so."""
FIXED_TOKENS: Final = 100.0
"""What a first token takes beside its prompt, in prompt tokens, where nothing else tells."""


class PrefillPace:
    """Written out, not a dataclass: it is on a request's path."""

    __slots__ = ("_count", "_tokens", "_tokens_squared", "_tokens_took", "_took_s")

    def __init__(self) -> None:
        self._count = 0.0
        self._tokens = 0.0
        self._took_s = 0.0
        self._tokens_squared = 0.0
        self._tokens_took = 0.0

    def see(self, prompt: int, before: int, took_s: float) -> None:
        """A first token came this long after its prompt was sent, with so many tokens outstanding before it."""
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
        """Seconds that each further prompt token takes; None: too few first tokens were seen."""
        count = self._count
        if count < LEAST:
            return None
        mean, mean_s = self._tokens / count, self._took_s / count
        spread = max(0.0, self._tokens_squared - count * mean * mean)
        together = self._tokens_took - count * mean * mean_s
        weight = PRIOR * PRIOR_TOKENS * PRIOR_TOKENS
        usual_s = mean_s / (mean + FIXED_TOKENS)
        return max(0.0, (together + weight * usual_s) / (spread + weight))
