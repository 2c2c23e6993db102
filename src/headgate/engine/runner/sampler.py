"""Draws the next token: one row of logits in, one token out.

The order is vLLM's: logit bias, penalties, temperature, min_p, top_k, top_p. A draw depends on the logits, the settings
and (seed, position), on nothing else: not on batch neighbours, not on the number of draws before. So a continuation, a
retry on another replica and a verified draft draw alike.
"""

import math
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headgate.model.errors import EngineFailed
from headgate.model.sampling import Sampling, TokenLogprob

Logits = NDArray[np.float32]

_COLD = 1e-5
"""Temperature below which only the most likely token is left; dividing by it would overflow."""
_LIKELY = np.float32(1e-3)
"""Weight relative to the most likely token. Usually some dozens of tokens are above it and carry nearly all mass."""
_FLOORS = tuple(np.float32(floor) for floor in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-12, 1e-45))
"""Floors above which the heaviest weights are searched: first a high one, above which there are few; the last is the
least weight that is not 0. Comparing all weights with one floor takes 5 µs, sorting all takes 1 000 µs."""
_SORTED = 1024
"""Up to this number of values, sorting is used instead of another partition."""
_BLOCK = 256
_CONFIDENT = 0.9
"""Probability of an end token above which the end is taken without a draw: another token would be an accident, and what
follows is seldom worth reading."""


class Constraint(Protocol):
    """Restricts the next token; `grammar.Grammar` is one."""

    def allows(self, token: int) -> bool: ...
    def mask(self) -> NDArray[np.bool_]: ...
    def accept(self, token: int) -> None: ...
    def close(self) -> None: ...
    @property
    def stuck(self) -> bool:
        """True if the constraint can't be followed any further."""


def uniform(seed: int, position: int, attempt: int = 0) -> float:
    """Returns a number in [0, 1) that is the same for the same arguments, on every machine and at all times."""
    key = b"".join((part % 2**64).to_bytes(8, "little") for part in (seed, position, attempt))
    return (int.from_bytes(blake2b(key, digest_size=8).digest(), "little") >> 11) * 2.0**-53


class Sampler:
    """One sequence's settings and the little state that its draws need."""

    def __init__(
        self,
        sampling: Sampling,
        tokens: Sequence[int],
        prompt_len: int,
        *,
        eog: Iterable[int],
        constraint: Constraint | None = None,
    ) -> None:
        self.sampling = sampling
        self.constraint = constraint
        self._bias_ids = np.fromiter(sampling.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float32)
        self._first = prompt_len
        ends = frozenset(eog)
        self._banned = np.array(sorted(ends) if sampling.ignore_eos else (), np.int64)
        early = ends | sampling.stop_token_ids if sampling.min_tokens else ()
        self._banned_early = np.array(sorted(early), np.int64)
        """Tokens banned until there are `min_tokens`."""
        self._penalties = _Penalties(sampling, tokens, prompt_len) if _penalises(sampling) else None
        self.greedy = sampling.temperature < _COLD
        self._ends = ends if sampling.confident_end and not self.greedy else frozenset()
        self.plain = (
            self.greedy
            and constraint is None
            and self._penalties is None
            and not (self._banned.size or self._banned_early.size or self._bias.size)
        )
        """Plain greedy: the drawn token is simply the row's argmax."""
        self.attends = False
        """True if the engine wants the probabilities of the drawn tokens."""
        if constraint is not None:
            for token in tokens[prompt_len:]:
                constraint.accept(token)

    def draw(self, logits: Logits, position: int) -> int:
        """Draws the token at `position` of the sequence and takes it as the next one."""
        scores = logits if self.plain else self._adjusted(logits, position)
        token = self._pick(scores, position, 0)
        if self.constraint is not None and not self.constraint.allows(token):
            # Rejection first, as in llama.cpp: most draws are legal, and checking one token is far cheaper than masking
            # all. The second draw has a number of its own: reusing the first, which fell on a forbidden token, would
            # bias it.
            allowed = self.constraint.mask()
            scores = np.where(allowed, scores, np.float32(-np.inf))
            if scores.max() == -np.inf:  # only an end token is allowed, and is banned so far: it is drawn all the same
                scores = np.where(allowed, logits, np.float32(-np.inf))
            token = self._pick(scores, position, 1)
        self.take(token)
        return token

    def take(self, token: int) -> None:
        """Counts `token` as drawn, whether `draw` chose it or not."""
        if self._penalties is not None:
            self._penalties.count(token)
        if self.constraint is not None:
            self.constraint.accept(token)

    def close(self) -> None:
        if self.constraint is not None:
            self.constraint.close()

    @property
    def stuck(self) -> bool:
        return self.constraint is not None and self.constraint.stuck

    def _adjusted(self, logits: Logits, position: int) -> Logits:
        scores = logits.copy()
        if self._bias.size:
            scores[self._bias_ids] += self._bias
        if self._penalties is not None:
            self._penalties.apply(scores)
        if self._banned.size:
            scores[self._banned] = -np.inf
        if self._banned_early.size and position - self._first < self.sampling.min_tokens:
            scores[self._banned_early] = -np.inf
        return scores

    def _pick(self, scores: Logits, position: int, attempt: int) -> int:
        best = int(scores.argmax())
        top = scores[best]
        if not math.isfinite(top):
            raise EngineFailed("the model gave no finite logits")
        if self.greedy:
            return best
        if best in self._ends and float(np.exp(scores - top).sum(dtype=np.float64)) <= 1 / _CONFIDENT:
            return best
        weights = scores - top
        weights *= np.float32(1 / self.sampling.temperature)
        np.exp(weights, out=weights)
        if self.sampling.min_p > 0:
            weights[weights < self.sampling.min_p] = 0
        return choose(weights, self.sampling.top_k, self.sampling.top_p, uniform(self.sampling.seed, position, attempt))


def choose(weights: Logits, top_k: int, top_p: float, u: float) -> int:
    """Keeps, of the `top_k` heaviest tokens, the fewest that carry `top_p` of their mass (of equal ones, the lower
    ids). Returns the one where the mass of those kept passes the share `u`. The heaviest weighs 1."""
    if not top_k and top_p >= 1:
        return _at(weights, u)
    ids = _kept(weights, top_k, top_p)
    return int(ids[_at(weights[ids], u)])


def _at(weights: Logits, u: float) -> int:
    """Returns the token where the mass passes the share `u`. Any order of the tokens gives the same distribution; with
    likely ones first, most draws skip the rest."""
    target = u * float(weights.sum(dtype=np.float64))
    ids = np.flatnonzero(weights >= _LIKELY)
    likely = weights[ids]
    mass = float(likely.sum(dtype=np.float64))
    if target >= mass:
        rest = np.flatnonzero((weights < _LIKELY) & (weights > 0))
        if rest.size:
            return int(rest[_passed(weights[rest], target - mass)])
    return int(ids[_passed(likely, target)])


def _passed(weights: Logits, target: float) -> int:
    """Returns the first index at which the sum of the weights is above `target`, or the last if rounding puts the
    target beyond the end. Many weights are first summed in blocks: summing one by one takes ten times as long as all
    the rest of a draw. Weights from 1/1000 to 1 add up exactly, so that nothing depends on the order."""
    first, before = 0, 0.0
    if weights.size > 2 * _BLOCK:
        whole = weights.size // _BLOCK
        mass = np.cumsum(weights[: whole * _BLOCK].reshape(whole, _BLOCK).sum(axis=1, dtype=np.float64))
        block = int(np.searchsorted(mass, target, side="right"))
        first, before = block * _BLOCK, float(mass[block - 1]) if block else 0.0
        weights = weights[first : first + _BLOCK] if block < whole else weights[first:]
        if not weights.size:
            return first - 1
    mass = np.cumsum(weights, dtype=np.float64)
    return first + min(int(np.searchsorted(mass, target - before, side="right")), weights.size - 1)


def _kept(weights: Logits, top_k: int, top_p: float) -> NDArray[np.int64]:
    """Returns the ids that top_k and top_p leave. Values are sorted, never ids, which takes ten times as long; and only
    those values among which the answer lies."""
    if 0 < top_k < weights.size:
        values = _heaviest(weights, top_k)
        total = float(values.sum(dtype=np.float64))
    else:
        total = float(weights.sum(dtype=np.float64))
        values = _carrying(weights, top_p, total)
    count, lightest = (values.size, values.min()) if top_p >= 1 else _fewest(values, top_p * total)
    ids = np.flatnonzero(weights >= lightest)
    surplus = ids.size - count
    return np.delete(ids, np.flatnonzero(weights[ids] == lightest)[-surplus:]) if surplus else ids


def _heaviest(weights: Logits, count: int) -> Logits:
    """Returns the `count` heaviest weights that are not 0, or all of them if there are fewer, in no order."""
    for floor in _FLOORS:
        heavy = weights >= floor
        if np.count_nonzero(heavy) >= count:
            break
    values = weights[heavy]
    return np.partition(values, values.size - count)[-count:] if values.size > count else values


def _carrying(weights: Logits, share: float, total: float) -> Logits:
    """Returns enough of the heaviest weights to carry that share of the total, in no order."""
    for floor in _FLOORS:
        values = weights[weights >= floor]
        if share < 1 and values.sum(dtype=np.float64) >= share * total:
            break
    return values


def _fewest(values: Logits, wanted: float) -> tuple[int, np.float32]:
    """Returns the least number of the heaviest values that carry `wanted`, and the lightest of those values."""
    above, count = 0.0, 0
    while values.size > _SORTED:
        pivot = np.partition(values[:: values.size // 63], 32)[32]
        heavy = values >= pivot
        if heavy.all():
            heavy = values > pivot
            if not heavy.any():
                break  # all weigh the same
        upper = values[heavy]
        mass = above + float(upper.sum(dtype=np.float64))
        if mass >= wanted:
            values = upper
        else:
            above, count, values = mass, count + upper.size, values[~heavy]
    values = np.sort(values)[::-1]
    sums = np.cumsum(values, dtype=np.float64)
    at = min(int(np.searchsorted(sums, wanted - above)), values.size - 1)
    return count + at + 1, values[at]


def chance(logits: Logits, token: int) -> float:
    """Returns the probability that the model itself gave this token."""
    peak = logits.max()
    return float(np.exp(logits[token] - peak)) / float(np.exp(logits - peak).sum(dtype=np.float64))


def logprobs(logits: Logits, token: int, count: int) -> TokenLogprob:
    """Returns the model's own log probabilities, before bias, penalties and temperature: of the token, and of the
    `count` most likely ones."""
    peak = float(logits.max())
    weights = np.exp(logits - np.float32(peak))
    base = peak + math.log(float(weights.sum(dtype=np.float64)))
    ids = np.flatnonzero(weights >= _LIKELY)
    if ids.size < count:
        count = min(count, logits.size)
        ids = np.flatnonzero(logits >= np.partition(logits, -count)[-count])
    ids = ids[np.argsort(-logits[ids], kind="stable")][:count]
    top = tuple((int(one), float(logits[one]) - base) for one in ids)
    return TokenLogprob(token, float(logits[token]) - base, top)


def _penalises(sampling: Sampling) -> bool:
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    return penalties != (1.0, 0.0, 0.0)


class _Penalties:
    """Repetition looks at prompt and output, presence and frequency at the output only (as in vLLM). Counting a token
    is O(1); applying is one pass over the distinct tokens."""

    def __init__(self, sampling: Sampling, tokens: Sequence[int], prompt_len: int) -> None:
        self._sampling = sampling
        # Not one by one: a prompt of 100 000 tokens would hold the step for a tenth of a second.
        seen = list(dict.fromkeys(tokens[:prompt_len])) if sampling.repetition_penalty != 1.0 else []
        self._index = dict(zip(seen, range(len(seen)), strict=True))
        self._ids = np.zeros(len(seen) + 64, np.int64)
        self._ids[: len(seen)] = seen
        self._counts = np.zeros(len(seen) + 64, np.float32)
        for token in tokens[prompt_len:]:
            self.count(token)

    def count(self, token: int) -> None:
        at = self._index.setdefault(token, len(self._index))
        if at == self._ids.size:
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[at] = token
        self._counts[at] += 1

    def apply(self, scores: Logits) -> None:
        ids, counts = self._ids[: len(self._index)], self._counts[: len(self._index)]
        seen = scores[ids]
        repeated = np.float32(self._sampling.repetition_penalty)
        seen = np.where(seen > 0, seen / repeated, seen * repeated)
        seen -= np.float32(self._sampling.frequency_penalty) * counts
        seen -= np.float32(self._sampling.presence_penalty) * (counts > 0)
        scores[ids] = seen
