"""Gives the duration of a replica's step at the gateway's level, and the prompt tokens that a step may hold."""

from headgate.config.engine import BatchConfig
from headgate.machine.profile import Noise, Profile

CAREFUL = 1.1
"""A chunk is chosen so that its step would be in time even if it took this many times as long."""
DRAWS = 16
"""Maximum random draws for the steps of one run."""


class ServicePace:
    __slots__ = (
        "_chance",
        "_config",
        "_fixed",
        "_gap_s",
        "_knee",
        "_per_beyond",
        "_per_decode",
        "_per_prefill",
        "_profile",
        "per_context",
        "per_pair",
    )

    def __init__(self, profile: Profile, config: BatchConfig, tightest_s: float, chance: Noise | None) -> None:
        """`tightest_s`: the shortest gap target, in seconds."""
        self._profile = profile
        self._config = config
        self._chance = chance
        self._gap_s = tightest_s / CAREFUL
        cost = profile.cost
        self._fixed = cost.fixed
        self._knee = cost.knee
        self._per_beyond = cost.per_token_beyond
        self._per_prefill = cost.per_prefill
        self._per_decode = cost.per_decode
        self.per_context = cost.per_context
        self.per_pair = cost.per_pair

    def step(self, prefill: int, decodes: int, context: int, pairs: int, count: int) -> tuple[float, float]:
        """Returns the seconds of a step by the profile's formula, and the factor by which the `count` steps of a run
        take longer by chance."""
        first_s = (
            self._fixed
            + self._per_prefill * prefill
            + self._per_decode * decodes
            + self.per_context * context
            + self.per_pair * pairs
        )
        if prefill + decodes > self._knee:
            first_s += self._per_beyond * (prefill + decodes - self._knee)
        residuals = self._profile.residuals(prefill, first_s)
        chance = self._chance
        if chance is None or not residuals.runs:
            return first_s, residuals.median
        draws = min(count, DRAWS)
        return first_s, sum(chance.ratio(residuals) for _ in range(draws)) / draws

    def room(self, decodes: int, context: int, done: int) -> int:
        """Returns the prompt tokens that a step may hold so that every stream's next token is in time. `done`: the
        prompt's tokens computed before."""
        config, per_pair = self._config, self.per_pair
        most = min(config.chunk_limit, config.step_tokens - decodes)
        within_s = (self._gap_s if decodes else config.step_limit_s) - self._fixed
        within_s -= self._per_decode * decodes + self.per_context * context
        each_s = self._per_prefill + self._per_beyond + 2.0 * per_pair * done
        if (each_s + per_pair * most) * most > within_s:
            low, high = 0, most
            while low < high:
                middle = (low + high + 1) // 2
                if (each_s + per_pair * middle) * middle <= within_s:
                    low = middle
                else:
                    high = middle - 1
            most = low
        return most if most > config.chunk_floor else config.chunk_floor
