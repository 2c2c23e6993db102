"""Predicts the duration of a step, with a model fitted as steps are run.

    step = fixed + per_prefill · prefill tokens + per_decode · decode sequences + per_context · context tokens

Coefficients are never negative, and fitted on relative error, so that a 10 ms decode step counts as much as a 2 s
prefill. Steps with and without prefill are remembered separately: an hour of pure decoding must not wash out what is
known about prefill, which is needed at exactly the moment the hour ends.
"""

from bisect import bisect_left, insort
from collections import deque
from typing import Final

from headgate.model.step import Step
from headgate.policy.batching.move_time import MoveTime

MEMORY = 200.0
"""Steps of each kind that the fit effectively remembers."""

RATIOS: Final = 128
"""Steps with prefill whose ratios real/predicted are remembered."""
UPPER: Final = 0.95
"""Quantile of the ratios by which a step's length is chosen: this share of steps is in time."""
TAIL: Final = 0.985
"""Quantile of the ratios that may exceed the caution by a factor of TAIL_LATE at most: so nearly no step is late by
more than half, even in a stretch of bad luck. Not the maximum: one step delayed by something else would make every
chunk small for the next hundred."""
TAIL_LATE: Final = 1.4
FIRST_CAUTION: Final = 1.2
"""Caution before any ratio is known; the minimum while fewer than 16 are."""
MOST_CAUTION: Final = 3.0


class StepShape:
    """What the duration of a step depends on. Never changed once made."""

    __slots__ = ("context", "decodes", "prefill")

    def __init__(self, prefill: int, decodes: int, context: int) -> None:
        self.prefill = prefill
        self.decodes = decodes
        self.context = context
        """Token pairs that the step attends to: the sum of each row's width times its context."""

    @property
    def features(self) -> tuple[float, float, float, float]:
        return (1.0, float(self.prefill), float(self.decodes), self.context / 1000.0)


def shape_of(step: Step) -> StepShape:
    prefill = decodes = context = 0
    for row in step.rows:
        width = row.count + len(row.draft)
        if row.sequence.decoding:
            decodes += 1
            prefill += width - 1
        else:
            prefill += width
        context += width * (row.start + width)
    return StepShape(prefill, decodes, context)


class _Memory:
    """Decayed sums from which a least-squares fit is solved."""

    __slots__ = ("moments", "targets")

    def __init__(self) -> None:
        self.moments = [[0.0] * 4 for _ in range(4)]
        self.targets = [0.0] * 4

    def add(self, features: tuple[float, float, float, float], seconds: float, weight: float) -> None:
        keep = 1.0 - 1.0 / MEMORY
        f0, f1, f2, f3 = features
        for i, left in enumerate(features):
            row, part = self.moments[i], weight * left
            row[0] = row[0] * keep + part * f0
            row[1] = row[1] * keep + part * f1
            row[2] = row[2] * keep + part * f2
            row[3] = row[3] * keep + part * f3
            self.targets[i] = self.targets[i] * keep + part * seconds


class Upper:
    """The upper quantile of the latest ratios real/predicted."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self.value = FIRST_CAUTION

    def add(self, ratio: float) -> None:
        self._latest.append(ratio)
        insort(self._sorted, ratio)
        if len(self._latest) > RATIOS:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        count = len(self._sorted)
        found = max(self._sorted[int(UPPER * count)], self._sorted[int(TAIL * count)] / TAIL_LATE)
        if count < RATIOS // 8:  # too few to show that nearly all are in time
            found = max(found, FIRST_CAUTION)
        self.value = min(MOST_CAUTION, max(1.0, found))


class StepTime:
    def __init__(
        self,
        prior: tuple[float, float, float, float] = (0.005, 0.005, 0.005, 0.001),
        moves: MoveTime | None = None,
    ) -> None:
        """`prior`: the coefficients' first values, each about the right size. A coefficient is held to its prior by the
        square of its relative distance: a context cost whose prior was a hundredth of the real one was never
        learned."""
        self.coefficients = list(prior)
        self._prior = prior
        self._mixed, self._decode = _Memory(), _Memory()
        self.moves = moves or MoveTime()
        self.observed = 0
        self._upper = Upper()

    @property
    def caution(self) -> float:
        """The factor by which a step with prefill may exceed its prediction: the upper quantile of the ratios seen."""
        return self._upper.value

    def predict(self, shape: StepShape) -> float:
        fixed, prefill, decode, context = self.coefficients
        return fixed + prefill * shape.prefill + decode * shape.decodes + context * shape.context / 1000.0

    def learn(self, shape: StepShape, seconds: float) -> None:
        expected = self.predict(shape)
        error = abs(seconds - expected) / expected
        if self.observed and shape.prefill:  # the first step tells of the prior, not of the fit
            self._upper.add(seconds / expected)
        self.observed += 1
        # A step several times slower than expected was delayed by something else (a neighbour on the machine, a page
        # fault); it may move the fit, but not by its full square.
        trust = 1.0 if self.observed < 8 or error < 1.0 else 1.0 / error
        memory = self._mixed if shape.prefill else self._decode
        memory.add(shape.features, seconds, trust / max(seconds, 1e-6) ** 2)
        if self.observed < 32 or self.observed % 8 == 0:
            self._solve()

    def largest_prefill(
        self, within_s: float, decodes: int, context: int, start: int, most: int, beside: int = 0
    ) -> int:
        """Returns the maximum prompt tokens, after `start` cached ones, with which a step of these decodes, and
        `beside` prompt tokens of others, takes at most `within_s`."""
        fixed, prefill, decode, per_context = self.coefficients

        def step_s(tokens: int) -> float:  # `predict`, without a shape for every try
            pairs = context + tokens * (start + tokens)
            return fixed + prefill * (beside + tokens) + decode * decodes + per_context * pairs / 1000.0

        if step_s(most) <= within_s:
            return max(0, most)
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if step_s(middle) <= within_s:
                low = middle
            else:
                high = middle - 1
        return low

    def _solve(self) -> None:
        """Solves a non-negative ridge regression towards the prior, by coordinate descent from the current
        coefficients."""
        # Written out: it is done after every eighth step, and loops over loops took a third of a simulated step.
        mixed, decode, prior = self._mixed, self._decode, self._prior
        a = [[m + d for m, d in zip(*rows, strict=True)] for rows in zip(mixed.moments, decode.moments, strict=True)]
        ridge = [1e-3 / max(p, 1e-9) ** 2 for p in prior]
        pulls = [mixed.targets[i] + decode.targets[i] + ridge[i] * prior[i] for i in range(4)]
        ((a00, a01, a02, a03), (a10, a11, a12, a13), (a20, a21, a22, a23), (a30, a31, a32, a33)) = a
        d0, d1, d2, d3 = a00 + ridge[0], a11 + ridge[1], a22 + ridge[2], a33 + ridge[3]
        b0, b1, b2, b3 = pulls
        s0, s1, s2, s3 = (1e-4 * (p or 1.0) for p in prior)
        x0, x1, x2, x3 = self.coefficients
        for _ in range(60):
            w0, w1, w2, w3 = x0, x1, x2, x3
            x0 = max(0.0, (b0 - (a01 * x1 + a02 * x2 + a03 * x3)) / d0)
            x1 = max(0.0, (b1 - (a10 * x0 + a12 * x2 + a13 * x3)) / d1)
            x2 = max(0.0, (b2 - (a20 * x0 + a21 * x1 + a23 * x3)) / d2)
            x3 = max(0.0, (b3 - (a30 * x0 + a31 * x1 + a32 * x2)) / d3)
            if abs(x0 - w0) < s0 and abs(x1 - w1) < s1 and abs(x2 - w2) < s2 and abs(x3 - w3) < s3:
                break
        self.coefficients = [max(x0, 1e-6), x1, x2, x3]
