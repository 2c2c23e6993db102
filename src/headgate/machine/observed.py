"""Fits a machine profile to what a client sees of an engine: first tokens of lone prompts, and gaps of batches.

No step is seen by itself. A lone prompt takes as many steps as it has chunks, and its first token comes after all of
them and what the server adds to each request; a batch takes one step per gap. So each observation is a sum of features
over its steps, in which the coefficients are linear, and they are found as from a step log: none negative, relative
error, the disturbed ones counting less (profile_fit.py).
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean, median

from headgate.machine.profile import Profile, Residuals, StepCost, batch_size
from headgate.machine.profile_fit import BELIEVED, KNEES, ROUNDS, RUN, RUNS, LeastSquares
from headgate.machine.step_features import StepFeatures

FEWEST = 4
"""Minimum observations of each kind: first tokens and gaps."""
SHORTEST_S = 1e-6
CLEARLY = 0.98
"""A knee is taken if the squared error with it is below this share of that without any."""


class TooFewObservations(ValueError):
    """The observations are too few for a fit; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Observation:
    seconds: float
    steps: tuple[StepFeatures, ...]
    """The steps that it took."""
    requests: int = 0
    """Requests whose fixed time is part of it: 1 for a first token, 0 for a gap."""
    runs: tuple[tuple[float, ...], ...] = ()
    """Seconds of consecutive steps of which `seconds` is the mean; empty: only the mean is known."""

    @property
    def decodes(self) -> int:
        """Sequences that decode. 0: it is a first token."""
        return self.steps[0].decodes


def first_token(prompt_tokens: int, seconds: float, chunk: int) -> Observation:
    """The first token of a prompt that has the engine to itself, and is computed in chunks of this many tokens."""
    steps = [
        StepFeatures(prefill=size, pairs=size * (2 * start + size))
        for start in range(0, prompt_tokens, chunk)
        for size in (min(chunk, prompt_tokens - start),)
    ]
    return Observation(max(SHORTEST_S, seconds), tuple(steps), 1)


def gap(batch: int, context: float, seconds: float, runs: Iterable[Items[float]] = ()) -> Observation:
    """The mean gap between tokens while `batch` sequences of `context` tokens each decode."""
    step = StepFeatures(decodes=batch, context=round(batch * context))
    return Observation(max(SHORTEST_S, seconds), (step,), 0, tuple(tuple(run) for run in runs if len(run) > 0))


@dataclass(frozen=True, slots=True)
class FittedProfile:
    profile: Profile
    request_s: float
    """Seconds that the server adds to each first token, beyond its steps; a profile does not have them."""
    errors: tuple[float, ...]
    """Relative error of each observation, in the order given: predicted over seen, less 1."""

    @property
    def error(self) -> float:
        """Mean relative error."""
        return fmean(abs(one) for one in self.errors)


def fit_observed(seen: Items[Observation], of: Profile) -> FittedProfile:
    """Returns `of` with its times fitted to what was seen; its sizes and name stay."""
    gaps, firsts = [one for one in seen if one.decodes], [one for one in seen if not one.decodes]
    if len(gaps) < FEWEST or len(firsts) < FEWEST:
        raise TooFewObservations(
            f"{len(firsts)} first tokens and {len(gaps)} gaps are too few to fit a profile; {FEWEST} of each are needed"
        )
    cost, request_s = _cost(seen)
    cost = replace(cost, by_batch=_by_batch(gaps, cost))
    errors = tuple(_predicted(one, cost, request_s) / one.seconds - 1.0 for one in seen)
    made = replace(
        of,
        cost=cost,
        with_prefill=_residuals([[_ratio(one, cost, request_s)] for one in firsts]),
        long_prefill=Residuals(),
        long_s=None,
        decode_only=_residuals([[s / cost.seconds(one.steps[0]) for s in run] for one in gaps for run in one.runs]),
    )
    return FittedProfile(made, request_s, errors)


def _predicted(one: Observation, cost: StepCost, request_s: float) -> float:
    return one.requests * request_s + sum(cost.seconds(step) for step in one.steps)


def _ratio(one: Observation, cost: StepCost, request_s: float) -> float:
    """Real to predicted duration of a first token's steps."""
    steps_s = sum(cost.seconds(step) for step in one.steps)
    return max(0.1, (one.seconds - one.requests * request_s) / steps_s)


def _cost(seen: Items[Observation]) -> tuple[StepCost, float]:
    weights = [one.seconds**-2 for one in seen]
    knee = 0
    cost, request_s = _solved(seen, weights, knee)[1:]
    for turn in range(ROUNDS):
        for at, one in enumerate(seen):
            expected = _predicted(one, cost, request_s)
            off = abs(one.seconds / expected - 1.0)
            weights[at] = expected**-2 * (1.0 if off < BELIEVED else (BELIEVED / off) ** 2)
        if turn == ROUNDS // 2:
            knee = _knee(seen, weights)
        cost, request_s = _solved(seen, weights, knee)[1:]
    return cost, request_s


def _knee(seen: Items[Observation], weights: Items[float]) -> int:
    best, knee = _solved(seen, weights, 0)[0] * CLEARLY, 0
    longest = max(step.tokens for one in seen for step in one.steps)
    for candidate in [one for one in KNEES if one < longest]:
        error = _solved(seen, weights, candidate)[0]
        if error < best:
            best, knee = error, candidate
    return knee


def _solved(seen: Items[Observation], weights: Items[float], knee: int) -> tuple[float, StepCost, float]:
    """The remaining squared error, the cost of a step, and the fixed seconds of a request."""
    sums = LeastSquares(7)
    for one, weight in zip(seen, weights, strict=True):
        steps = one.steps
        sums.add(
            (
                float(len(steps)),
                float(sum(step.prefill for step in steps)),
                float(sum(step.decodes for step in steps)),
                float(sum(step.context for step in steps)),
                float(sum(step.pairs for step in steps)),
                float(one.requests),
                float(sum(max(0, step.tokens - knee) for step in steps)) if knee else 0.0,
            ),
            one.seconds,
            weight,
        )
    error, (fixed, per_prefill, per_decode, per_context, per_pair, request_s, per_token_beyond) = sums.solved()
    cost = StepCost(
        fixed=max(fixed, 1e-6),
        knee=knee,
        per_token_beyond=per_token_beyond,
        per_prefill=per_prefill,
        per_decode=per_decode,
        per_context=per_context,
        per_pair=per_pair,
    )
    return error, cost, request_s


def _by_batch(gaps: Items[Observation], cost: StepCost) -> tuple[float, ...]:
    """The ratio of gaps to the straight line by batch size; between two sizes that were seen, on the line between
    them."""
    sizes = sorted((batch_size(one.decodes), one.seconds / cost.seconds(one.steps[0])) for one in gaps)
    seen = {size: median(ratio for _, ratio in same) for size, same in groupby(sizes, key=lambda each: each[0])}
    known = sorted(seen)
    shares = [1.0]
    for size in range(1, known[-1] + 1):
        below = max((one for one in known if one <= size), default=known[0])
        above = min(one for one in known if one >= size)
        part = (size - below) / (above - below) if above > below else 0.0
        shares.append(round(seen[below] + part * (seen[above] - seen[below]), 4))
    return tuple(shares)


def _residuals(ratios: Items[Items[float]]) -> Residuals:
    parts = [run[start : start + RUN] for run in ratios for start in range(0, len(run), RUN)]
    runs = [tuple(round(ratio, 5) for ratio in part) for part in parts]
    kept = [run for run in runs[:: -(-len(runs) // RUNS)] if min(run) > 0] if runs else []
    if not kept:
        return Residuals()
    return Residuals(median(ratio for run in kept for ratio in run), tuple(kept))
