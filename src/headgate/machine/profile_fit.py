"""Fits a machine profile to a step log by least squares, and keeps the residuals as noise.

Like the Batcher's own estimate (`estimate.py`) the fit never gives negative coefficients and minimises relative error,
so that a 10 ms decode step counts as much as a 2 s prefill. Unlike that estimate it sees all steps at once: it need not
forget any, decode and prefill have their own context terms, and it can look for a knee.
"""

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from itertools import combinations

from headgate.machine.profile import Profile, Residuals, StepCost, batch_size
from headgate.machine.step_features import StepFeatures

FEWEST = 50
"""Minimum steps in the log; with fewer a fit would be a guess."""
MOST = 200_000
"""Maximum steps fitted, the latest: half an hour of a busy GPU."""
RUN = 16
RUNS = 512
"""Residuals kept of each kind of step: RUNS runs of RUN consecutive steps, enough for a p99.9 in a file of about 100
KB."""
KNEES = tuple(round(24 * 1.12**power) for power in range(36))
"""Knees that are tried, in tokens. The nearest is never further than 6 % away, which moves a step by less than that."""
ENOUGH = 3_000
"""Maximum steps of each kind that the formula is fitted on, taken evenly. Residuals are computed from all steps."""
ROUNDS = 6
FEW = 8
"""Weight of the straight line against a batch size's own steps, in steps."""
BELIEVED = 0.2
"""Relative error up to which a step counts in full."""

Row = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StepLine:
    """One step of a step log."""

    at: float
    """When the step began, in seconds since the log did."""
    took_s: float
    """Seconds for choosing, computing, sampling and handing over, until the next step could begin."""
    run_s: float
    """Part of `took_s` spent in the runner."""
    shape: StepFeatures


class TooFewSteps(ValueError):
    """The log has too few steps for a fit; the message says what to do."""


def fit(lines: Iterable[StepLine], of: Profile) -> Profile:
    """Returns `of` with its times fitted to the log; its sizes and name stay."""
    kept = [line for line in deque(lines, MOST) if line.took_s > 0]
    plain = [line for line in kept if line.shape.tokens and not _moves(line.shape)]
    if len(plain) < FEWEST:
        raise TooFewSteps(f"{len(plain)} steps are too few to fit a profile; log at least {FEWEST}, prefill and decode")
    cost = _cost(plain)
    expected = [(cost.seconds(line.shape), line) for line in plain]
    prefills = [one for one in expected if one[1].shape.prefill]
    long_s = _long_s(sorted(seconds for seconds, _ in prefills))
    made = replace(
        of,
        cost=cost,
        with_prefill=_residuals(line.took_s / s for s, line in prefills if long_s is None or s < long_s),
        long_prefill=_residuals(line.took_s / s for s, line in prefills if long_s is not None and s >= long_s),
        long_s=long_s,
        decode_only=_residuals(line.took_s / s for s, line in expected if not line.shape.prefill),
        saves_overlap=False,
        load_bytes_per_s=None,
        save_bytes_per_s=None,
        copy_bytes_per_s=None,
    )
    return _with_moves(made, [line for line in kept if _moves(line.shape)])


def _long_s(seconds: Items[float]) -> float | None:
    """The duration that splits the total time in half: steps of this duration or longer take half of it. None: too few
    steps on either side."""
    left = sum(seconds) / 2
    for one in seconds:
        left -= one
        if left < 0:
            shorter = bisect_left(seconds, one)
            return one if min(shorter, len(seconds) - shorter) >= RUN else None
    return None


def _moves(shape: StepFeatures) -> int:
    return shape.saved + shape.loaded + shape.copied


def _cost(lines: Items[StepLine]) -> StepCost:
    """Fits the formula in several rounds, each weighted by the residuals of the last: a step that took several times
    more or less than predicted was disturbed from outside, and counts the less the further off it is."""
    used = [
        *_thinned([line for line in lines if line.shape.prefill]),
        *_thinned([line for line in lines if not line.shape.prefill]),
    ]
    # The first weights come from the durations, with a floor at half of the shortest tenth: otherwise a few steps of
    # almost no time would decide the fit.
    shortest = sorted(line.took_s for line in used)[len(used) // 10] / 2
    weights = [max(line.took_s, shortest) ** -2 for line in used]
    cost = _solved(used, weights, knee=0)
    for turn in range(ROUNDS):
        for at, line in enumerate(used):
            expected = cost.seconds(line.shape)
            off = abs(line.took_s / expected - 1.0)
            weights[at] = expected**-2 * (1.0 if off < BELIEVED else BELIEVED / off)
        knee = _knee(used, weights) if turn == ROUNDS // 2 else cost.knee
        cost = _solved(used, weights, knee)
    return replace(cost, by_batch=_by_batch(lines, cost))


def _by_batch(lines: Items[StepLine], cost: StepCost) -> tuple[float, ...]:
    """The ratio of decode steps to the straight line by batch size, from the middle half of each size's steps; the
    fewer steps there are, the closer the ratio is to 1."""
    ratios: list[list[float]] = []
    for line in lines:
        size = batch_size(line.shape.decodes)
        ratios += [[] for _ in range(size + 1 - len(ratios))]
        if not line.shape.prefill:
            ratios[size].append(line.took_s / cost.seconds(line.shape))
    shares = []
    for seen in ratios:
        middle = sorted(seen)[len(seen) // 4 : len(seen) - len(seen) // 4]
        shares.append(round((sum(middle) + FEW) / (len(middle) + FEW), 4))
    return tuple(shares)


def _thinned(lines: Items[StepLine]) -> Items[StepLine]:
    return lines[:: -(-len(lines) // ENOUGH)] if lines else lines


def _solved(lines: Items[StepLine], weights: Items[float], knee: int) -> StepCost:
    sums = LeastSquares(6)
    for line, weight in zip(lines, weights, strict=True):
        beyond = max(0, line.shape.tokens - knee) if knee else 0
        sums.add((*_terms(line.shape), float(beyond)), line.took_s, weight)
    fixed, per_prefill, per_decode, per_context, per_pair, per_token_beyond = sums.solved()[1]
    return StepCost(
        fixed=max(fixed, 1e-6),
        knee=knee,
        per_token_beyond=per_token_beyond,
        per_prefill=per_prefill,
        per_decode=per_decode,
        per_context=per_context,
        per_pair=per_pair,
    )


def _knee(lines: Items[StepLine], weights: Items[float]) -> int:
    """The knee with the smallest squared error; 0 where none improves on a straight line by 2 %."""
    base = LeastSquares(5)
    for line, weight in zip(lines, weights, strict=True):
        base.add(_terms(line.shape), line.took_s, weight)
    best, knee = base.solved()[0] * 0.98, 0
    longest = max(line.shape.tokens for line in lines)
    for candidate in [one for one in KNEES if one < longest]:
        sums = base.widened()  # the other terms' sums are the same for every knee
        for line, weight in zip(lines, weights, strict=True):
            if (over := line.shape.tokens - candidate) > 0:
                sums.add_last(_terms(line.shape), float(over), line.took_s, weight)
        if (error := sums.solved()[0]) < best:
            best, knee = error, candidate
    return knee


def _terms(shape: StepFeatures) -> Row:
    return (1.0, float(shape.prefill), float(shape.decodes), float(shape.context), float(shape.pairs))


def _with_moves(profile: Profile, lines: Items[StepLine]) -> Profile:
    """Fits how fast KV moves, from the time that steps with moves took beyond computing."""
    sums = LeastSquares(3)
    for line in lines:
        shape = line.shape
        excess = max(0.0, line.took_s - profile.step_s(shape))
        moved = [float(tokens * profile.bytes_per_token) for tokens in (shape.saved, shape.loaded, shape.copied)]
        sums.add(tuple(moved), excess, 1.0 / line.took_s**2)
    saved, loaded, copied = (1.0 / seconds if seconds else None for seconds in sums.solved()[1])
    return replace(profile, save_bytes_per_s=saved, load_bytes_per_s=loaded, copy_bytes_per_s=copied)


def _residuals(ratios: Iterable[float]) -> Residuals:
    """Draws a bounded, even sample of runs from all ratios; the same log gives the same sample."""
    rng = random.Random(0)
    kept: list[tuple[float, ...]] = []
    run: list[float] = []
    seen = 0
    for ratio in ratios:
        run.append(round(ratio, 5))
        if len(run) == RUN:
            seen += 1
            if len(kept) < RUNS:
                kept.append(tuple(run))
            elif (place := int(rng.random() * seen)) < RUNS:
                kept[place] = tuple(run)
            run = []
    if run and len(kept) < RUNS:
        kept.append(tuple(run))
    if not kept:
        return Residuals()
    flat = sorted(ratio for one in kept for ratio in one)
    return Residuals(flat[len(flat) // 2], tuple(kept))


class LeastSquares:
    """The sums from which a least-squares fit is solved: Σ weight·(seconds − x·terms)²."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.moments = [[0.0] * size for _ in range(size)]
        self.targets = [0.0] * size
        self.square = 0.0

    def add(self, terms: Row, seconds: float, weight: float) -> None:
        self.square += weight * seconds * seconds
        for i, left in enumerate(terms):
            if left:
                row, weighted = self.moments[i], weight * left
                self.targets[i] += weighted * seconds
                for j, right in enumerate(terms):
                    row[j] += weighted * right

    def widened(self) -> "LeastSquares":
        wide = LeastSquares(self.size + 1)
        wide.moments = [[*row, 0.0] for row in self.moments] + [[0.0] * (self.size + 1)]
        wide.targets = [*self.targets, 0.0]
        wide.square = self.square
        return wide

    def add_last(self, terms: Row, last: float, seconds: float, weight: float) -> None:
        """Adds a row's last term, where `add` has already seen the others."""
        weighted, row = last * weight, self.moments[-1]
        self.targets[-1] += weighted * seconds
        for j, term in enumerate(terms):
            row[j] += weighted * term
            self.moments[j][-1] = row[j]
        row[-1] += weighted * last

    def solved(self) -> tuple[float, list[float]]:
        """Returns the remaining squared error and the coefficients, none of them negative.

        With this few terms every subset can be tried: the answer is the best one whose plain solution is not negative.
        """
        scale = [self.moments[i][i] ** -0.5 if self.moments[i][i] > 0 else 0.0 for i in range(self.size)]
        used = [i for i in range(self.size) if scale[i]]
        best, coefficients = self.square, [0.0] * self.size
        for count in range(1, len(used) + 1):
            for chosen in combinations(used, count):
                a = [[self.moments[i][j] * scale[i] * scale[j] for j in chosen] for i in chosen]
                for i in range(count):
                    a[i][i] += 1e-10  # terms that always occur together cannot be told apart: any split will do
                b = [self.targets[i] * scale[i] for i in chosen]
                x = _solve(a, list(b))
                if min(x) < 0:
                    continue
                error = self.square - sum(one * target for one, target in zip(x, b, strict=True))
                if error < best:
                    best, coefficients = error, [0.0] * self.size
                    for i, value in zip(chosen, x, strict=True):
                        coefficients[i] = value * scale[i]
        return max(best, 0.0), coefficients


def _solve(a: list[list[float]], b: list[float]) -> list[float]:
    """Gaussian elimination with pivoting; it overwrites `a` and `b`."""
    size = len(b)
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(a[row][i]))
        a[i], a[pivot], b[i], b[pivot] = a[pivot], a[i], b[pivot], b[i]
        for row in range(i + 1, size):
            factor = a[row][i] / a[i][i]
            for column in range(i, size):
                a[row][column] -= factor * a[i][column]
            b[row] -= factor * b[i]
    for i in reversed(range(size)):
        b[i] = (b[i] - sum(a[i][j] * b[j] for j in range(i + 1, size))) / a[i][i]
    return b
