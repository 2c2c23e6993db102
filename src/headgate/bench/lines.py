"""Derives a config's limits (lane boundaries, slots) from measurements. Pure: no clock, no server.

Alone on a replica, a prompt of n tokens has its first token after `fixed + per_token · n`: the fixed cost of every
request, plus its prefill. From n = fixed / per_token on, prefill is more than half of that time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from headgate.model.labels import plain

LITTLE: float = 0.2
"""Share of the promised TTFT. A prompt whose whole prefill takes less always counts as short: it can't break the
promise."""
LONG_SHARE = 0.25
"""Share of all slots that long prompts may use at once."""


@dataclass(frozen=True, slots=True)
class Alone:
    """One request, measured with no other request on the replica."""

    prompt_tokens: int
    ttft_s: float


@dataclass(frozen=True, slots=True)
class Prefill:
    fixed_s: float
    token_s: float
    """Seconds for each token of the prompt; 0: no slope could be measured."""
    shortest: int
    longest: int
    """Lengths of the shortest and longest prompt measured, in tokens."""

    def ttft_s(self, prompt_tokens: float) -> float:
        return self.fixed_s + self.token_s * prompt_tokens

    @property
    def dominates_from(self) -> int | None:
        """Prompt tokens from which prefill is more than half of the time to the first token; None: not up to four times
        the longest prompt measured."""
        if self.token_s <= 0:
            return None
        at = self.fixed_s / self.token_s
        return max(1, round(at)) if at <= 4 * self.longest else None

    def within(self, seconds: float) -> int | None:
        """The longest prompt, in tokens, whose prefill takes at most `seconds`; None: longer than four times the
        longest prompt measured."""
        if self.token_s <= 0 or seconds / self.token_s > 4 * self.longest:
            return None
        return max(1, int(seconds / self.token_s))


def prefill_of(measured: Sequence[Alone]) -> Prefill:
    """A line through the median of each length, fitted by relative error: ten percent count as much at a millisecond as
    at a second. Raises ValueError with fewer than two lengths."""
    by_length: dict[int, list[float]] = {}
    for one in measured:
        by_length.setdefault(one.prompt_tokens, []).append(one.ttft_s)
    if len(by_length) < 2:
        raise ValueError("prompts of at least two lengths are needed")
    points = [(length, median(times)) for length, times in sorted(by_length.items())]
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    mean_n = sum(w * n for w, (n, _) in zip(weights, points, strict=True)) / total
    mean_s = sum(w * s for w, (_, s) in zip(weights, points, strict=True)) / total
    spread = sum(w * (n - mean_n) ** 2 for w, (n, _) in zip(weights, points, strict=True))
    common = sum(w * (n - mean_n) * (s - mean_s) for w, (n, s) in zip(weights, points, strict=True))
    token_s = max(0.0, common / spread)
    fixed_s = mean_s - token_s * mean_n
    if fixed_s <= 0:  # as far as can be measured, all of it is prefill
        fixed_s, token_s = (
            0.0,
            sum(w * n * s for w, (n, s) in zip(weights, points, strict=True))
            / sum(w * n * n for w, (n, _) in zip(weights, points, strict=True)),
        )
    return Prefill(fixed_s, token_s, points[0][0], points[-1][0])


@dataclass(frozen=True, slots=True)
class Level:
    """The measurement at one number of requests at once, kept constant."""

    concurrency: int
    requests: int
    ttft_p50_s: float
    ttft_p95_s: float
    tpot_p50_s: float | None
    tpot_p95_s: float | None
    tokens_per_s: float
    """Output tokens per second."""
    failed: int = 0
    """Requests that failed or were refused: a level with any of them is too high."""

    def keeps(self, ttft_s: float, tpot_s: float | None) -> bool:
        slow = tpot_s is not None and self.tpot_p95_s is not None and self.tpot_p95_s > tpot_s
        return not self.failed and self.ttft_p95_s <= ttft_s and not slow


def next_level(levels: Sequence[Level], ttft_s: float, tpot_s: float | None, most: int) -> int | None:
    """The concurrency to measure next: doubled until a level breaks the promise, then bisected between kept and broken.
    None: the search is over, because the bounds are close, more brings no more throughput, `most` is reached, or even
    one at a time breaks the promise."""
    if not levels:
        return 1
    good = max((level.concurrency for level in levels if level.keeps(ttft_s, tpot_s)), default=0)
    bad = min((level.concurrency for level in levels if not level.keeps(ttft_s, tpot_s)), default=0)
    if not good:
        return None  # not even one at a time
    if bad:
        middle = (good + bad) // 2
        return middle if middle not in (good, bad) and bad - good > max(1, good // 8) else None
    if good >= most or _brings_nothing(levels):
        return None
    return min(2 * good, most)


def _brings_nothing(levels: Sequence[Level]) -> bool:
    """Two doublings raised the throughput by less than a twentieth."""
    rising = sorted(levels, key=lambda level: level.concurrency)
    return len(rising) >= 3 and rising[-1].tokens_per_s < 1.05 * rising[-3].tokens_per_s


@dataclass(frozen=True, slots=True)
class Advice:
    fast_below_tokens: int
    long_above_tokens: int
    slots: int | None
    """Requests at once that keep the promise, all replicas together; None: not even one request at a time keeps it."""
    long_concurrency: int | None
    why: tuple[str, ...]


def advise(prefill: Prefill, levels: Sequence[Level], ttft_s: float, tpot_s: float | None, slow_s: float) -> Advice:
    """Recommends limits. `slow_s`: the TTFT that the slow lane promises, in seconds."""
    why: list[str] = []
    dominates, little = prefill.dominates_from, prefill.within(LITTLE * ttft_s)
    if dominates is None:
        fast = 4 * prefill.longest
        why.append(f"prefill is never most of the first token's time, up to {prefill.longest} tokens and well beyond")
    else:
        why.append(f"from {dominates} tokens on, prefill is most of the time to the first token")
        fast = dominates
        if little is not None and little > dominates:
            fast = little
            why.append(f"but {little} tokens take a fifth of the {ttft_s * 1e3:.0f} ms promised, so they are short too")
    longest = prefill.within(slow_s - prefill.fixed_s) if slow_s > prefill.fixed_s else fast
    if longest is None:
        long_above = 4 * prefill.longest
        why.append(f"no prompt up to {long_above} tokens takes {plain(slow_s, 6)} s alone, so none up to there is long")
    else:
        long_above = max(longest, fast)
        why.append(f"a prompt of {longest} tokens takes {plain(slow_s, 6)} s alone, all that the slow lane promises")
    kept = [level.concurrency for level in levels if level.keeps(ttft_s, tpot_s)]
    if not kept:
        why.append("the promise is not kept even by one request at a time: promise less, or use faster replicas")
        return Advice(fast, long_above, None, None, tuple(why))
    slots = max(kept)
    broken = [level.concurrency for level in levels if not level.keeps(ttft_s, tpot_s)]
    why.append(f"{slots} at once keep the promise" + (f", {min(broken)} do not" if broken else "; more were not tried"))
    return Advice(fast, long_above, slots, max(1, int(LONG_SHARE * slots)), tuple(why))
