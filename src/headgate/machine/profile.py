"""Models a machine: the duration of a step, and the memory that goes with it.

    step = fixed + per_token_beyond · max(0, n − knee) + per_prefill · prompt tokens + per_decode · sequences decoding
           + per_context · Σ context of those + per_pair · Σ(2pc + c²) over chunks of c prompt tokens after p cached

n is the number of all tokens in the step. Up to the knee, reading the weights hides the arithmetic, so that a step
costs the same for 1 token as for 200; a CPU has no knee, but blocks (`by_batch`). The result is multiplied by the ratio
real/predicted of steps that were seen, if any were: that is the noise. Loads from host memory and copies come on top,
and so do saves that do not overlap.

The emulated engine waits for this duration; the simulator advances its clock by it.
"""

import random
from bisect import bisect
from dataclasses import dataclass

from headgate.config.engine import BatchConfig
from headgate.machine.step_features import StepFeatures
from headgate.policy.batching.batch import Batcher
from headgate.policy.compose import batcher_for

SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)


def batch_size(decodes: int) -> int:
    """Index of a batch's size class: none, 1, 2, 3, 4, 5, 6 and 7, 8 and 9, …"""
    return bisect(SIZES, decodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """The formula's coefficients, in seconds."""

    fixed: float = 0.0
    knee: int = 0
    per_token_beyond: float = 0.0
    per_prefill: float = 0.0
    per_decode: float = 0.0
    per_context: float = 0.0
    per_pair: float = 0.0
    by_batch: tuple[float, ...] = ()
    """Real duration of decode-only steps as a ratio to this formula, by `batch_size`: a CPU computes in blocks, so that
    five sequences may cost hardly more than four. Empty: the formula holds as it is."""

    def seconds(self, shape: StepFeatures) -> float:
        tokens = shape.prefill + shape.decodes
        if not tokens:
            return 0.0
        seconds = self._straight(shape, tokens)
        if self.by_batch and not shape.prefill:
            seconds *= self.by_batch[min(batch_size(shape.decodes), len(self.by_batch) - 1)]
        return seconds

    def _straight(self, shape: StepFeatures, tokens: int) -> float:
        seconds = (
            self.fixed
            + self.per_prefill * shape.prefill
            + self.per_decode * shape.decodes
            + self.per_context * shape.context
            + self.per_pair * shape.pairs
        )
        return seconds + self.per_token_beyond * (tokens - self.knee) if tokens > self.knee else seconds


@dataclass(frozen=True, slots=True)
class Residuals:
    """How far real steps were from the formula, as ratios real/predicted."""

    median: float = 1.0
    runs: tuple[tuple[float, ...], ...] = ()
    """Ratios of consecutive steps: a machine that is slow for one step is slow for the next, and such stretches make
    the tail of a whole answer. Empty: there is no noise."""


class Noise:
    """Draws residuals run by run, so that slow steps stay together."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._left: dict[int, list[float]] = {}
        """The rest of the run being drawn from, by kind of step."""

    def ratio(self, residuals: Residuals) -> float:
        left = self._left.get(id(residuals))
        if not left:
            runs = residuals.runs
            if not runs:
                return residuals.median
            left = self._left[id(residuals)] = list(reversed(runs[int(self._rng.random() * len(runs))]))
        return left.pop()


Chance = random.Random | Noise
"""The source of noise. A plain `random.Random` draws each step independently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    name: str
    model: str
    """The model and precision that the profile describes, for people."""
    cost: StepCost
    with_prefill: Residuals = Residuals()
    """Residuals of steps that prefill or verify drafts."""
    long_prefill: Residuals = Residuals()
    """Residuals of prefill steps predicted to take `long_s` or longer: a disturbance that doubles a short step hardly
    matters to a long one."""
    long_s: float | None = None
    """Predicted seconds from which on a prefill step is long; None: `with_prefill` applies to all."""
    decode_only: Residuals = Residuals()
    slots: int = 256
    context: int = 8192
    """Tokens of the longest sequence, prompt and output."""
    kv_tokens: int = 400_000
    """KV memory on the device, in tokens."""
    host_tokens: int = 0
    """Host memory for swapped and cached KV, in tokens."""
    block_tokens: int = 16
    paged: bool = False
    """Sequences that begin alike share the blocks of KV memory, as in GPU engines. False: each has its own, as in
    llama.cpp."""
    bytes_per_token: int = 131_072
    load_bytes_per_s: float | None = None
    """Speed of loads from host memory, for which the step waits; None: loads take no time."""
    save_bytes_per_s: float | None = None
    copy_bytes_per_s: float | None = None
    saves_overlap: bool = False
    """Saving overlaps with computing; the step waits only for the part of a save that takes longer than the step."""
    step_tokens: int = BatchConfig.step_tokens
    chunk_limit: int = BatchConfig.chunk_limit

    def __post_init__(self) -> None:
        for residuals in (self.with_prefill, self.long_prefill, self.decode_only):
            if not all(run and min(run) > 0 for run in residuals.runs) or residuals.median <= 0:
                raise ValueError("ratios must be greater than 0, and no run of them empty")
        speeds = (self.load_bytes_per_s, self.save_bytes_per_s, self.copy_bytes_per_s)
        if min(self.slots, self.block_tokens, self.bytes_per_token, self.step_tokens, self.chunk_limit) < 1:
            raise ValueError("slots, block_tokens, bytes_per_token, step_tokens and chunk_limit must be at least 1")
        if min(self.context, self.kv_tokens) < self.block_tokens or self.host_tokens < 0:
            raise ValueError("context and kv_tokens must hold a block of tokens, and host_tokens not be negative")
        if any(speed is not None and speed <= 0 for speed in speeds):
            raise ValueError("bytes per second must be greater than 0")
        cost = self.cost
        terms = (cost.fixed, cost.per_token_beyond, cost.per_prefill, cost.per_decode, cost.per_context, cost.per_pair)
        if not all(0 <= term < 1e3 for term in terms) or cost.knee < 0:
            raise ValueError("a cost is in seconds and never negative")
        if cost.by_batch and min(cost.by_batch) <= 0:
            raise ValueError("shares by batch must be greater than 0")

    def step_s(self, shape: StepFeatures, chance: Chance | None = None) -> float:
        """Seconds that a step takes. Without `chance`: the median."""
        return self.steps_s(shape, 1, chance)

    def steps_s(self, shape: StepFeatures, count: int, chance: Chance | None = None) -> float:
        """Seconds of `count` steps in a row, the first of this shape, in which the same sequences decode."""
        # The formula is linear in the context, the only term that grows, so the middle step is the mean step.
        middle = shape.later((count - 1) / 2) if count > 1 else shape
        seconds = self.cost.seconds(middle)
        seconds *= self._ratios(self.residuals(shape.prefill, seconds), count, chance)
        if not (shape.saved or shape.loaded or shape.copied):
            return seconds
        before = self._bytes_s(shape.loaded, self.load_bytes_per_s) + self._bytes_s(shape.copied, self.copy_bytes_per_s)
        saving = self._bytes_s(shape.saved, self.save_bytes_per_s)
        return before + (max(seconds, saving) if self.saves_overlap else seconds + saving)

    def residuals(self, prefill: int, seconds: float) -> Residuals:
        """The residuals that apply to a step with this predicted duration."""
        if not prefill:
            return self.decode_only
        return self.with_prefill if self.long_s is None or seconds < self.long_s else self.long_prefill

    def _ratios(self, residuals: Residuals, count: int, chance: Chance | None) -> float:
        runs, total = residuals.runs, 0.0
        if chance is None or not runs:
            return count * residuals.median
        if isinstance(chance, Noise):
            return sum(chance.ratio(residuals) for _ in range(count))
        for _ in range(count):
            run = runs[int(chance.random() * len(runs))]
            total += run[int(chance.random() * len(run))]
        return total

    def _bytes_s(self, tokens: int, bytes_per_s: float | None) -> float:
        return 0.0 if bytes_per_s is None else tokens * self.bytes_per_token / bytes_per_s

    # -- the engine that goes with it ---------------------------------------------------------------------

    def batch_config(self, dilation: float = 1.0) -> BatchConfig:
        """The batch settings for this machine. `dilation`: seconds that pass for one second of the profile. All
        settings in seconds are stretched alike, so that the choices are the same at any speed."""
        usual = BatchConfig()
        return BatchConfig(
            step_tokens=self.step_tokens,
            chunk_limit=self.chunk_limit,
            step_limit_s=usual.step_limit_s * dilation,
            save_limit_s=usual.save_limit_s * dilation,
            starve_after_s=usual.starve_after_s * dilation,
            ageing_s=usual.ageing_s * dilation,
            draft_batch=0,  # there is no text in which a draft could be right
        )

    def batcher(self, config: BatchConfig, dilation: float = 1.0) -> Batcher:
        """The batcher of an engine on this machine, emulated or simulated."""
        return batcher_for(
            slots=self.slots,
            slot_tokens=self.context,
            kv_tokens=self.kv_tokens,
            host_tokens=self.host_tokens,
            block_tokens=self.block_tokens,
            paged=self.paged,
            batch=config,
            step_s=self._prior(dilation),
            move_s=(
                self._bytes_s(1, self.save_bytes_per_s) * dilation,
                self._bytes_s(1, self.load_bytes_per_s) * dilation,
                self._bytes_s(1, self.copy_bytes_per_s) * dilation,
            ),
        )

    def _prior(self, dilation: float) -> tuple[float, float, float, float]:
        """The starting point of the Batcher's own estimate, which has one context term for prefill and decode. The
        prefill term is used, because the size of a chunk depends on it."""
        cost = self.cost
        tokens = cost.per_token_beyond + cost.per_prefill
        terms = (cost.fixed, tokens, cost.per_decode, 2000.0 * cost.per_pair)
        return tuple(max(term * dilation, 1e-9) for term in terms)  # type: ignore[return-value]


def gpu(
    name: str,
    *,
    t0: float,
    fixed: float,
    weights: float,
    a: float,
    e: float,
    k: float,
    g: float,
    kv_tokens: int,
    copy_bytes_per_s: float,
    factor: float = 1.2,
) -> Profile:
    """Llama 3 8B in bf16 on one GPU, from sums of measured kernels, in ms.

        step = factor · (t0 + fixed + max(weights, a·n) + e·n + k·Σctx + g·Σ(2pc + c²))

    t0: the host's time per step. factor: the ratio of end-to-end measurements to sums of kernels.
    """
    ms = factor / 1e3
    return Profile(
        name=name,
        model="Llama 3 8B, bf16",
        cost=StepCost(
            fixed=(t0 + fixed + weights) * ms,
            knee=round(weights / a),
            per_token_beyond=a * ms,
            per_prefill=e * ms,
            per_decode=e * ms,
            per_context=k * ms,
            per_pair=g * ms,
        ),
        slots=256,
        context=131_072,
        kv_tokens=kv_tokens,
        host_tokens=524_288,
        paged=True,
        bytes_per_token=131_072,
        load_bytes_per_s=25e9,
        save_bytes_per_s=25e9,
        copy_bytes_per_s=copy_bytes_per_s,
        saves_overlap=True,
        step_tokens=512 + 256,
        chunk_limit=512,
    )


def large(
    name: str, *, fixed: float, knee: int, beyond: float, token: float, k: float, g: float, kv_tokens: int, gpus: int
) -> Profile:
    """Llama 3 70B in bf16 on several GPUs of one machine, from sums of measured kernels, in ms
    (benchmarks/large_profiles.py).

        step = 1.2 · (1 + fixed + token·n + beyond·max(0, n − knee) + k·Σctx + g·Σ(2pc + c²))

    Communication between the GPUs was not measured, and is in the factor like all else that is not.
    """
    ms = 1.2 / 1e3
    return Profile(
        name=name,
        model=f"Llama 3 70B, bf16, {gpus} GPUs",
        cost=StepCost(
            fixed=(1.0 + fixed) * ms,
            knee=knee,
            per_token_beyond=beyond * ms,
            per_prefill=token * ms,
            per_decode=token * ms,
            per_context=k * ms,
            per_pair=g * ms,
        ),
        slots=256,
        context=131_072,
        kv_tokens=kv_tokens,
        host_tokens=524_288,
        paged=True,
        bytes_per_token=327_680,
        load_bytes_per_s=gpus * 25e9,
        save_bytes_per_s=gpus * 25e9,
        copy_bytes_per_s=gpus * 1.0e12,
        saves_overlap=True,
        step_tokens=512 + 256,
        chunk_limit=512,
    )


# KV memory: 90 % of the card less 16 GB of weights and 3 GB of working memory, at 128 KiB a token. Host memory: 64 GiB,
# over PCIe at 25 GB/s. A copy reads and writes device memory at its bandwidth. A chunk of 512 is well past the knee: 1
# 024 would prefill about 15 % faster, and nearly double the gap of every running stream.
PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        gpu(
            "a100-llama3-8b", t0=1.0, fixed=1.5, weights=9.74, a=0.0523, e=0.0055, k=8.6e-5, g=1.49e-6,
            kv_tokens=400_000, copy_bytes_per_s=1.0e12,
        ),
        gpu(
            "h100-llama3-8b", t0=1.0, fixed=1.2, weights=5.38, a=0.0198, e=0.0033, k=4.4e-5, g=4.0e-7,
            kv_tokens=400_000, copy_bytes_per_s=1.65e12,
        ),
        gpu(
            "h200-llama3-8b", t0=1.0, fixed=1.1, weights=4.12, a=0.0192, e=0.0023, k=3.2e-5, g=4.05e-7,
            kv_tokens=820_000, copy_bytes_per_s=2.4e12,
        ),
        # KV memory: 90 % of 80 GB a card less 141 GB of weights and 3 GB a card of working memory, at 320 KiB a token.
        large(
            "a100x4-llama3-70b", fixed=24.96, knee=232, beyond=0.0538, token=0.1146, k=5.38e-5, g=1.86e-6,
            kv_tokens=410_000, gpus=4,
        ),
        large(
            "a100x8-llama3-70b", fixed=14.73, knee=185, beyond=0.0351, token=0.0577, k=2.69e-5, g=9.31e-7,
            kv_tokens=1_250_000, gpus=8,
        ),
        large(
            "h100x4-llama3-70b", fixed=14.97, knee=131, beyond=0.0398, token=0.0162, k=2.75e-5, g=5.0e-7,
            kv_tokens=410_000, gpus=4,
        ),
        large(
            "h100x8-llama3-70b", fixed=8.79, knee=131, beyond=0.0117, token=0.0206, k=1.37e-5, g=2.5e-7,
            kv_tokens=1_250_000, gpus=8,
        ),
    )
}  # fmt: skip
