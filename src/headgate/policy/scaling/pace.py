"""Learns what one replica carries: the tokens per second of the requests that keep it at its target.

The pace is learned from how full replicas are at a given demand. Fullness is not proportional to demand: a fuller batch
is slower, and so holds more requests for the same rate. So only observations at half the target and above count, and
count more the nearer they are to it. While requests wait, demand exceeds what is carried, and nothing is learned.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Any

NEAR = 0.5
"""Share of the target below which an observation says nothing."""
MEMORY_S = 3600.0
ENOUGH_S = 300.0
"""Seconds near the target before the pace is believed."""


class Pace:
    def __init__(self, tokens_per_s: float = 0.0, learned_s: float = 0.0) -> None:
        self.tokens_per_s = tokens_per_s
        self.learned_s = learned_s
        """Seconds that the pace was learned from, those near the target counted in full."""

    @property
    def known(self) -> bool:
        return self.learned_s >= ENOUGH_S and self.tokens_per_s > 0

    def observe(self, tokens_per_s: float, replicas: float, use: float, passed_s: float) -> None:
        """Records that for `passed_s` this demand came to `replicas` replicas and filled them to `use`, a share of the
        target."""
        if use < NEAR or replicas <= 0 or passed_s <= 0 or tokens_per_s <= 0:
            return
        near = min(use, 1 / use) ** 2
        weight_s = near * passed_s
        before_s = min(self.learned_s, MEMORY_S)
        carried = tokens_per_s / replicas / use
        self.tokens_per_s += (carried - self.tokens_per_s) * weight_s / (before_s + weight_s)
        self.learned_s = before_s + weight_s

    def to_list(self) -> list[float]:
        return [self.tokens_per_s, self.learned_s]

    @classmethod
    def from_list(cls, data: Sequence[Any]) -> "Pace":
        tokens_per_s, learned_s = (float(value) for value in data)
        if not (isfinite(tokens_per_s) and isfinite(learned_s)) or min(tokens_per_s, learned_s) < 0:
            raise ValueError(f"{data!r} is no pace")
        return cls(tokens_per_s, learned_s)
