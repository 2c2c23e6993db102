"""Estimates the tokens of prompts and answers, learned from the replicas' counts.

Tokens of a prompt are estimated from its bytes, by model. The estimate is a line and not a ratio: a chat template adds
the same few tokens to every prompt, which is most of a short one. Each model has two lines: many templates write a
system message of their own where the chat has none.
docs/decisions/0015 says why the gateway does not count tokens exactly.
"""

from typing import Final

MOST_RATIOS: Final = 256
"""Maximum names of a Ratio: names come from clients, so their number must be bounded."""
START: Final = 0.25
"""Tokens per byte before any prompt is known."""
PACE: Final = 0.02
"""Weight of the newest prompt, once there have been 1 / PACE prompts; before that all weigh the same."""
ENOUGH: Final = 8
"""Minimum prompts for a line; before that the estimate is a ratio."""
SPREAD: Final = 0.01
"""Minimum relative spread of the sizes for a line: with equal sizes any slope fits."""
FLATTEST: Final = 0.05
STEEPEST: Final = 1.0
"""FLATTEST and STEEPEST bound the slope, in tokens per byte of text."""
FEWEST: Final = 0.02
MOST: Final = 4.0
"""FEWEST and MOST bound the tokens per byte of a whole prompt; others are not learned from. A picture in base64 has
fewer, and says nothing about text."""
MOST_NAMES: Final = 1024
"""Maximum lines: model names come from clients, so their number must be bounded."""


class TokenFit:
    """A weighted least-squares line over recent prompts; relative errors of short and long prompts count the same."""

    __slots__ = ("_count", "_intercept", "_slope", "_w", "_wxx", "_wxy", "_wy")

    def __init__(self) -> None:
        self._count = 0
        self._intercept = 0.0
        self._slope = START
        # Means, weighted by 1 / bytes: of 1, of tokens, of bytes², and of bytes · tokens. That of bytes is always 1.
        self._w = 0.0
        self._wy = 0.0
        self._wxx = 0.0
        self._wxy = 0.0

    def of(self, size: int) -> int:
        return max(1, int(self._intercept + self._slope * size + 1e-6))

    def learn(self, size: int, tokens: int) -> None:
        self._count += 1
        pace = max(PACE, 1.0 / self._count)
        self._w += pace * (1.0 / size - self._w)
        self._wy += pace * (tokens / size - self._wy)
        self._wxx += pace * (size - self._wxx)
        self._wxy += pace * (tokens - self._wxy)
        spread = self._w * self._wxx - 1.0
        self._slope, self._intercept = self._wy, 0.0
        if self._count >= ENOUGH and spread > SPREAD:
            self._slope = min(STEEPEST, max(FLATTEST, (self._w * self._wxy - self._wy) / spread))
            self._intercept = max(0.0, (self._wy - self._slope) / self._w)


class PromptSizes:
    def __init__(self) -> None:
        self._known: dict[tuple[str, bool], TokenFit] = {}
        self._overall = (TokenFit(), TokenFit())

    def of(self, model: str, opened: bool, size: int) -> int:
        """Estimated tokens of a prompt of `size` bytes. `opened`: the prompt has its own system message."""
        line = self._known.get((model, opened))
        return (self._overall[opened] if line is None else line).of(size)

    def learn(self, model: str, opened: bool, size: int, tokens: int) -> None:
        if size <= 0 or not FEWEST <= tokens / size <= MOST:
            return
        self._overall[opened].learn(size, tokens)
        line = self._known.get((model, opened))
        if line is None and len(self._known) < MOST_NAMES:
            line = self._known[model, opened] = TokenFit()
        if line is not None:
            line.learn(size, tokens)


class Ratio:
    """A figure learned per name, with an overall one to start from, such as the tokens per answer of a lane."""

    def __init__(self, start: float, pace: float = 0.05) -> None:
        self._overall = start
        self._pace = pace
        self._by_name: dict[str, float] = {}

    def of(self, name: str) -> float:
        return self._by_name.get(name, self._overall)

    def learn(self, name: str, value: float) -> None:
        self._overall += self._pace * (value - self._overall)
        known = self._by_name.get(name)
        if known is not None:
            self._by_name[name] = known + self._pace * (value - known)
        elif len(self._by_name) < MOST_RATIOS:
            self._by_name[name] = value
