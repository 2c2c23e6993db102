"""How long will it take? A step-time model, fitted as steps are run.

    step = fixed + per_prefill · prefill tokens + per_decode · decode sequences + per_context · context tokens

Coefficients are never negative, and fitted on relative error, so that a 10 ms decode step counts as much as a
2 s prefill. Steps with and without prefill are remembered separately: an hour of pure decoding must not wash out
what is known about prefill, which is asked for at exactly the moment the hour ends.
"""

from dataclasses import dataclass

from headgate.model.step import Step

MOST_NAMES = 256
"""Models and lanes remembered: both come from clients, so there must be an end to them."""

MEMORY = 200.0
"""Steps of each kind that the fit effectively remembers."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the duration of a step depends on."""

    prefill: int
    decodes: int
    context: int
    """KV tokens that the step attends to, in thousands of token pairs: each row's width times its context."""

    @property
    def features(self) -> tuple[float, float, float, float]:
        return (1.0, float(self.prefill), float(self.decodes), self.context / 1000.0)


def shape_of(step: Step) -> StepShape:
    prefill = decodes = context = 0
    for row in step.rows:
        if row.sequence.decoding:
            decodes += 1
            prefill += len(row.draft)
        else:
            prefill += row.count
        context += row.width * (row.start + row.width)
    return StepShape(prefill, decodes, context)


class _Memory:
    """Decayed sums from which a least-squares fit is solved."""

    __slots__ = ("moments", "targets")

    def __init__(self) -> None:
        self.moments = [[0.0] * 4 for _ in range(4)]
        self.targets = [0.0] * 4

    def add(self, features: tuple[float, ...], seconds: float, weight: float) -> None:
        keep = 1.0 - 1.0 / MEMORY
        for i, left in enumerate(features):
            row = self.moments[i]
            for j, right in enumerate(features):
                row[j] = row[j] * keep + weight * left * right
            self.targets[i] = self.targets[i] * keep + weight * left * seconds


class StepTime:
    def __init__(self, prior: tuple[float, float, float, float] = (0.005, 0.005, 0.005, 0.00001)) -> None:
        self.coefficients = list(prior)
        self._prior = prior
        self._mixed, self._decode = _Memory(), _Memory()
        self.spread = 0.1
        """Smoothed |error| relative to the prediction: how far to trust it."""
        self.observed = 0

    def predict(self, shape: StepShape) -> float:
        fixed, prefill, decode, context = self.coefficients
        return fixed + prefill * shape.prefill + decode * shape.decodes + context * shape.context / 1000.0

    def learn(self, shape: StepShape, seconds: float) -> None:
        expected = self.predict(shape)
        error = abs(seconds - expected) / expected
        if self.observed:  # the first step tells of the prior, not of the fit
            self.spread += 0.05 * (min(error, 1.0) - self.spread)
        self.observed += 1
        # A step several times slower than expected is somebody else's doing (a neighbour on the machine, a
        # page fault); it may move the fit, but not by its full square.
        trust = 1.0 if self.observed < 8 or error < 1.0 else 1.0 / error
        memory = self._mixed if shape.prefill else self._decode
        memory.add(shape.features, seconds, trust / max(seconds, 1e-6) ** 2)
        if self.observed < 32 or self.observed % 8 == 0:
            self._solve()

    def largest_prefill(self, within_s: float, decodes: int, context: int, start: int, most: int) -> int:
        """The most prompt tokens, after `start` cached ones, that a step with these decodes fits in `within_s`."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            shape = StepShape(middle, decodes, context + middle * (start + middle))
            if self.predict(shape) <= within_s:
                low = middle
            else:
                high = middle - 1
        return low

    def _solve(self) -> None:
        """Non-negative ridge regression towards the prior, by coordinate descent from where we stand."""
        x, prior = self.coefficients, self._prior
        a = [
            [m + d for m, d in zip(*rows, strict=True)]
            for rows in zip(self._mixed.moments, self._decode.moments, strict=True)
        ]
        b = [m + d for m, d in zip(self._mixed.targets, self._decode.targets, strict=True)]
        ridge = [1e-3 / max(p, 1e-9) ** 2 for p in prior]
        for _ in range(60):
            moved = 0.0
            for i in range(4):
                row = a[i]
                rest = b[i] + ridge[i] * prior[i] - sum(row[j] * x[j] for j in range(4) if j != i)
                value = max(0.0, rest / (row[i] + ridge[i]))
                moved = max(moved, abs(value - x[i]) / (prior[i] or 1.0))
                x[i] = value
            if moved < 1e-4:
                break
        x[0] = max(x[0], 1e-6)


class Ratio:
    """A figure learned per name, with one for everybody to start from: tokens per byte of prompt, tokens per answer."""

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
        elif len(self._by_name) < MOST_NAMES:
            self._by_name[name] = value
