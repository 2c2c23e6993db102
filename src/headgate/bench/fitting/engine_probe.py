"""Runs `headgate fit URL`: measures a running server from outside, within a time budget, and fits a machine profile.

First one request at a time, with longer and longer prompts, for first tokens; then more and more at once, for the gaps
while a batch of known size decodes. No prompt is sent twice, so that no prefix cache flatters the figures.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import Final

from headgate.bench.asker import Asker, Asking, Endpoint
from headgate.bench.options import read_keys
from headgate.bench.shot import Shot
from headgate.machine.observed import FittedProfile, Observation, TooFewObservations, first_token, fit_observed, gap
from headgate.machine.profile import Profile
from headgate.model.clock import Clock, monotonic
from headgate.model.errors import StartupError
from headgate.workload.arrival import Arrival

SHORTEST: Final = 16
TIMES: Final = 3
"""Requests per prompt length."""
ALONE_OUTPUT: Final = 12
"""Output tokens of a request that is sent alone."""
TOKENS: Final = 40
"""Output tokens during which all of a batch decode."""
ALONE_SHARE: Final = 0.45
"""Share of the time for prompts alone."""
SETTLE: Final = 2
"""Gaps left out after the last of a batch has its first token: other streams' events are still under way."""
FEWEST_GAPS: Final = 6
AT_ONCE_S: Final = 1e-4
"""Seconds between tokens below which they did not come one by one."""
SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
MOST_TIMES: Final = 4
MOST_MORE: Final = 4096
"""A server may count several times as many prompt tokens as were asked for, and those of a template."""
SHORT: Final = 64
"""Prompt tokens of a batch."""
LONG: Final = 1024
"""Prompt tokens of those batches that show what a longer context costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    url: str
    of: Profile
    """The profile whose sizes are taken: slots, context, KV memory, chunk."""
    longest: int = 8192
    """Longest prompt to try, in tokens."""
    concurrency: int = 128
    """Most requests at once."""
    budget_s: float = 180.0
    requests: int = 3000
    model: str | None = None
    endpoint: Endpoint = "completions"
    keys: tuple[str, ...] = ()


class EngineProbe:
    def __init__(self, options: ProbeOptions, say: Callable[[str], None], clock: Clock = monotonic) -> None:
        self.seen: list[Observation] = []
        self.notes: list[str] = []
        self.asked = 0
        self._options = options
        self._say = say
        self._clock = clock
        self._until = clock() + options.budget_s
        asking = Asking(
            endpoint=options.endpoint, model=options.model, keys=read_keys(options.keys, os.environ), ignore_eos=True
        )
        self._asker = Asker((options.url,), asking, clock, salt=int(clock() * 1e6))
        self._token_s = 0.0
        """Seconds per prompt token of the longest prompt that was measured."""
        self._gap_s = 0.0
        """Seconds per token of the last batch."""

    async def run(self) -> FittedProfile:
        """Raises StartupError where the server does not answer, or too little could be measured."""
        options = self._options
        try:
            await self._asker.probe()
            self._say(
                f"takes {options.budget_s:.0f} s at most (--budget) and {options.requests} requests; "
                f"sizes and chunks of {options.of.chunk_limit} tokens as in {options.of.name}"
            )
            await self._alone()
            await self._batches()
        finally:
            await self._asker.close()
        try:
            return fit_observed(self.seen, options.of)
        except TooFewObservations as error:
            why = f": {self.notes[-1]}" if self.notes else ""
            raise StartupError(f"{error}{why}; allow more time with --budget") from None

    # -- one at a time ---------------------------------------------------------------------------------------------

    async def _alone(self) -> None:
        options = self._options
        until = self._clock() + ALONE_SHARE * options.budget_s
        first = await self._ask(SHORTEST, ALONE_OUTPUT)  # warms up what is cold
        if first.kind != "ok" or first.ttft_s is None:
            raise StartupError(f"{self._asker.urls[0]} does not answer as it should: {first.message or first.why}")
        longest = min(options.longest, options.of.context - TOKENS)
        for length in _lengths(longest):
            shots = [await self._ask(length, ALONE_OUTPUT) for _ in range(TIMES)]
            good = [shot for shot in shots if shot.kind == "ok" and shot.ttft_s is not None]
            if len(good) < TIMES:
                bad = next(shot for shot in shots if shot not in good)
                self._note(f"prompts of {length} tokens: {bad.message or bad.why}")
                return
            ttfts = [shot.ttft_s for shot in good if shot.ttft_s is not None]
            for shot, ttft_s in zip(good, ttfts, strict=True):
                tokens = _counted(shot, length)
                self.seen.append(first_token(tokens, ttft_s, options.of.chunk_limit))
                gaps = list(shot.gaps)[1:]
                if len(gaps) >= SETTLE and fmean(gaps) >= AT_ONCE_S:
                    self.seen.append(gap(1, tokens + len(gaps) / 2 + 1, fmean(gaps), [gaps]))
            self._token_s = median(ttfts) / length
            self._say(f"prompt of {_counted(good[0], length)} tokens alone: {median(ttfts) * 1e3:.1f} ms")
            if self._clock() + 1.6 * TIMES * max(shot.e2e_s for shot in shots) > until or self._spent:
                if length < longest:
                    self._note(f"no time was left for prompts of more than {length} tokens (--budget)")
                return

    # -- many at once ----------------------------------------------------------------------------------------------

    async def _batches(self) -> None:
        most = min(self._options.concurrency, self._options.of.slots)
        for batch in [size for size in SIZES if size <= most]:
            for prompt in (SHORT, LONG) if batch in (4, 16, 64) else (SHORT,):
                if prompt + 2 * TOKENS > self._options.of.context:
                    continue
                if self._estimate_s(batch, prompt) > self._until - self._clock() or self._spent:
                    if prompt == SHORT:
                        self._note(f"no time was left for {batch} at once (--budget)")
                        return
                    continue
                await self._batch(batch, prompt)

    def _estimate_s(self, batch: int, prompt: int) -> float:
        return batch * prompt * self._token_s + 2 * TOKENS * max(self._gap_s * 1.5, self._token_s)

    async def _batch(self, batch: int, prompt: int) -> None:
        """Has `batch` requests decode together, the first for as long as it takes until the last one does."""
        # Prompts are computed while others decode: the first must not end before the last begins.
        lead = int(batch * prompt * self._token_s / max(self._gap_s, 1e-3)) if batch > 1 else 0
        output = min(TOKENS + lead + 2 * batch, self._options.of.context - prompt - SETTLE)
        shots = await asyncio.gather(*(self._ask(prompt, output) for _ in range(batch)))
        good = [shot for shot in shots if shot.kind == "ok" and shot.first_at is not None]
        if len(good) < batch:
            bad = next(shot for shot in shots if shot not in good)
            self._note(f"{batch} at once: {bad.message or bad.why}")
            return
        begin = max(shot.first_at for shot in good if shot.first_at is not None)
        end = min(shot.last_at for shot in good if shot.last_at is not None)
        runs, contexts = [], []
        for shot in good:
            times = _times(shot)
            inside = [at for at in times if begin <= at <= end][SETTLE:]
            if len(inside) > FEWEST_GAPS:
                runs.append([after - before for before, after in pairwise(inside)])
                before = sum(at < inside[0] for at in times)
                contexts.append(_counted(shot, prompt) + before + len(inside) / 2)
        if not runs:
            self._note(f"{batch} at once: the first ended before the last began to answer")
            return
        mean_s = fmean(fmean(run) for run in runs)
        if mean_s < AT_ONCE_S:
            self._note(f"{batch} at once: all tokens came at once; is there a proxy that buffers?")
            return
        self._gap_s = mean_s
        self.seen.append(gap(batch, fmean(contexts), mean_s, [runs[-1]]))
        self._say(f"{batch} at once after {prompt} tokens: a token every {mean_s * 1e3:.1f} ms each")

    async def _ask(self, prompt: int, output: int) -> Shot:
        over: asyncio.Future[Shot] = asyncio.get_running_loop().create_future()
        arrival = Arrival(0.0, prompt, output)
        prepared = self._asker.prepare(arrival)

        def settle(it: Shot) -> None:
            if not over.done():
                over.set_result(it)

        shot = Shot(arrival, self._clock(), True, self._clock, settle)
        self.asked += 1
        shot.call = self._asker.send(prepared, shot)
        shot.call.late_at = self._until
        try:
            return await over
        finally:
            if not over.done():
                shot.cut_off("interrupted")

    @property
    def _spent(self) -> bool:
        return self._clock() >= self._until or self.asked >= self._options.requests

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._say(text)


def _lengths(longest: int) -> Iterator[int]:
    """16, 24, 32, 48, 64, … up to the longest."""
    length = SHORTEST
    while length <= longest:
        yield length
        if length * 3 // 2 <= longest:
            yield length * 3 // 2
        length *= 2


def _counted(shot: Shot, asked: int) -> int:
    """Prompt tokens as the server counted them; as many as were asked for where it says nothing plausible."""
    told = shot.prompt_tokens
    return told if told is not None and 0 < told <= MOST_TIMES * asked + MOST_MORE else asked


def _times(shot: Shot) -> list[float]:
    """When each of its tokens came."""
    assert shot.first_at is not None
    return list(accumulate(shot.gaps, initial=shot.first_at))
