"""How many tokens is a prompt of so many bytes? Learned per model, from what replicas count.

A line and not a ratio: a chat template adds the same few tokens to every prompt, which is most of a short one. And two
lines for each model: many templates write a system message of their own where the chat has none. docs/decisions/0015
says why nobody counts exactly.
"""

from typing import Final

START: Final = 0.25
"""Tokens per byte before anything is known."""
PACE: Final = 0.02
"""What the newest prompt counts for, once there have been enough."""
ENOUGH: Final = 8
"""Prompts that a line is made of; before that it is a ratio."""
SPREAD: Final = 0.01
"""How much sizes have to differ before a line is made of them: among equals any slope fits."""
FLATTEST: Final = 0.05
STEEPEST: Final = 1.0
"""Tokens per byte that text can have."""
FEWEST: Final = 0.02
MOST: Final = 4.0
"""Of a whole prompt. A picture in base64 has fewer, and says nothing about text."""
MOST_NAMES: Final = 1024
"""Names come from clients: there is an end to them."""


class TokenFit:
    """Least squares over what came last, relative errors counting the same for short prompts and long ones."""

    __slots__ = ("_count", "_intercept", "_slope", "_w", "_wxx", "_wxy", "_wy")

    def __init__(self) -> None:
        self._count = 0
        self._intercept = 0.0
        self._slope = START
        # Means, weighted by 1 / bytes: of one (that of bytes is always 1), of tokens, and of their products.
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
        """`opened`: the prompt has a system message of its own."""
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
