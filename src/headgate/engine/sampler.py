"""Which token comes next? One row of logits in, one token out.

The order is vLLM's: logit bias, penalties, temperature, min_p, top_k, top_p. A draw depends on the
logits, the settings and (seed, position), on nothing else: not on batch neighbours, not on how many
draws came before. So a continuation, a retry on another replica and a verified draft draw alike.
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
"""Below this temperature only the most likely token is left, and dividing by it would overflow."""
_LIKELY = np.float32(1e-3)
"""Relative to the most likely token. Tokens above it are usually some dozens and carry nearly all mass."""
_TINY = np.float32(1e-45)
"""The least a weight can be that is not 0."""
_CONFIDENT = 0.9
"""Of an end that is this likely, a draw that says otherwise is an accident: what follows is seldom worth reading."""


class Constraint(Protocol):
    """What may come next; `grammar.Grammar` is one."""

    def allows(self, token: int) -> bool: ...
    def mask(self) -> NDArray[np.bool_]: ...
    def accept(self, token: int) -> None: ...
    def close(self) -> None: ...
    @property
    def stuck(self) -> bool:
        """It can't be followed any further."""


def uniform(seed: int, position: int, attempt: int = 0) -> float:
    """A number in [0, 1) that is the same for the same arguments, everywhere and always."""
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
        """Until there are `min_tokens`."""
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
        """Whether somebody wants to know how likely its tokens are."""
        if constraint is not None:
            for token in tokens[prompt_len:]:
                constraint.accept(token)

    def draw(self, logits: Logits, position: int) -> int:
        """Draw the token at `position` of the sequence and take it as the next one."""
        scores = logits if self.plain else self._adjusted(logits, position)
        token = self._pick(scores, position, 0)
        if self.constraint is not None and not self.constraint.allows(token):
            # Rejection first, as in llama.cpp: most draws are legal, and checking one token is far
            # cheaper than masking all. The second draw has a number of its own: reusing the first,
            # which fell on a forbidden token, would bias it.
            allowed = self.constraint.mask()
            scores = np.where(allowed, scores, np.float32(-np.inf))
            if scores.max() == -np.inf:  # only an end may follow that is not wanted yet: it comes all the same
                scores = np.where(allowed, logits, np.float32(-np.inf))
            token = self._pick(scores, position, 1)
        self.take(token)
        return token

    def take(self, token: int) -> None:
        """Count `token` as drawn, whoever drew it."""
        if self._penalties is not None:
            self._penalties.count(token, output=True)
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
    """Of the `top_k` heaviest tokens keep the fewest that carry `top_p` of their mass (of equal ones, the
    lower ids), and return the one where the mass of those kept passes the share `u`. The heaviest weighs 1."""
    if not top_k and top_p >= 1:
        return _at(weights, u)
    ids = _kept(weights, top_k, top_p)
    return int(ids[_at(weights[ids], u)])


def _at(weights: Logits, u: float) -> int:
    """Any order of the tokens gives the same distribution; likely ones first lets most draws skip the rest."""
    target = u * float(weights.sum(dtype=np.float64))
    ids = np.flatnonzero(weights >= _LIKELY)
    mass = np.cumsum(weights[ids], dtype=np.float64)
    if target >= mass[-1]:
        ids = np.concatenate((ids, np.flatnonzero((weights < _LIKELY) & (weights > 0))))
        mass = np.cumsum(weights[ids], dtype=np.float64)
    # A sum depends on its order in the last bit, so the target may lie a hair beyond the end.
    return int(ids[min(int(np.searchsorted(mass, target, side="right")), ids.size - 1)])


def _kept(weights: Logits, top_k: int, top_p: float) -> NDArray[np.int64]:
    """The ids that top_k and top_p leave. Values are sorted, never ids, which takes ten times as long;
    and of the values only the likely ones, if those hold the answer for certain."""
    total = 0.0 if top_k else float(weights.sum(dtype=np.float64))
    for floor in (_LIKELY, _TINY):
        values = np.sort(weights[weights >= floor])[::-1]
        if floor != _TINY and values.size < top_k:
            continue
        mass = np.cumsum(values[: top_k or None], dtype=np.float64)
        total = float(mass[-1]) if top_k else total
        if mass[-1] >= top_p * total and (top_k or top_p < 1):
            break
    count = min(int(np.searchsorted(mass, top_p * total)) + 1, mass.size) if top_p < 1 else mass.size
    lightest = values[count - 1]
    ids = np.flatnonzero(weights >= lightest)
    surplus = ids.size - count
    return np.delete(ids, np.flatnonzero(weights[ids] == lightest)[-surplus:]) if surplus else ids


def chance(logits: Logits, token: int) -> float:
    """How likely the model itself thought this token."""
    peak = logits.max()
    return float(np.exp(logits[token] - peak)) / float(np.exp(logits - peak).sum(dtype=np.float64))


def logprobs(logits: Logits, token: int, count: int) -> TokenLogprob:
    """Of the model itself, before bias, penalties and temperature; with the `count` most likely."""
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
    """Repetition looks at prompt and output, presence and frequency at the output only (as in vLLM).
    Counting a token is O(1); applying is one pass over the distinct tokens."""

    def __init__(self, sampling: Sampling, tokens: Sequence[int], prompt_len: int) -> None:
        self._sampling = sampling
        self._index: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.float32)
        for token in tokens[:prompt_len] if sampling.repetition_penalty != 1.0 else ():
            self.count(token, output=False)
        for token in tokens[prompt_len:]:
            self.count(token, output=True)

    def count(self, token: int, *, output: bool) -> None:
        at = self._index.setdefault(token, len(self._index))
        if at == self._ids.size:
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[at] = token
        self._counts[at] += output

    def apply(self, scores: Logits) -> None:
        ids, counts = self._ids[: len(self._index)], self._counts[: len(self._index)]
        seen = scores[ids]
        repeated = np.float32(self._sampling.repetition_penalty)
        seen = np.where(seen > 0, seen / repeated, seen * repeated)
        seen -= np.float32(self._sampling.frequency_penalty) * counts
        seen -= np.float32(self._sampling.presence_penalty) * (counts > 0)
        scores[ids] = seen
