"""Runs `headgate tune`: measures these replicas within a time budget, and says which limits to set.

First, one request at a time with longer and longer prompts, to find the length at which prefill dominates. Then, more
and more requests at once, to find how many keep the promise. No prompt is sent twice, so that no prefix cache flatters
the figures.
"""

import asyncio
import math
import os
from collections.abc import Callable, Sequence
from statistics import quantiles

import uvloop
from rich.console import Console

from headgate.bench.asker import Asker, Asking
from headgate.bench.lines import Alone, Level, advise, next_level, prefill_of
from headgate.bench.options import read_keys
from headgate.bench.shot import Shot
from headgate.bench.tune_report import show, write_html, write_json
from headgate.bench.tuned import Tuned, TuneOptions
from headgate.model.clock import Clock, monotonic
from headgate.model.errors import StartupError, UsageError
from headgate.report import goodput
from headgate.workload.arrival import Arrival

SHORTEST = 16
TIMES = 3
"""Requests per prompt length; the median counts."""
A_FEW = 4
"""Output tokens of a request that is sent for its first token."""
LENGTHS_SHARE = 0.4
"""Share of the time budget for the first part."""
ENOUGH = 30
"""Requests that a level needs at least for a p95, if the time allows them."""
LEVELS = 10
"""Number of levels that the second part's time is divided by."""
INTERRUPTED = 130


def run(options: TuneOptions, out: Console | None = None, err: Console | None = None, clock: Clock = monotonic) -> int:
    """Returns the exit code. Raises StartupError, with a message of one line, for a run that can't start."""
    out, err = out or Console(highlight=False), err or Console(stderr=True, highlight=False)
    for path in (options.json, options.html):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"{path} can't be written: there is no folder {path.absolute().parent}")
    try:
        tuned = uvloop.run(tune(options, lambda text: err.print(f"  {text}", markup=False, soft_wrap=True), clock))
    except KeyboardInterrupt:
        err.print("headgate: interrupted; nothing to say yet", markup=False)
        return INTERRUPTED
    show(tuned, out)
    for path, write in ((options.json, write_json), (options.html, write_html)):
        if path is not None:
            write(path, tuned)
            err.print(f"wrote {path}", markup=False)
    return 0 if tuned.advice is not None and tuned.advice.slots is not None else 1


async def tune(options: TuneOptions, say: Callable[[str], None], clock: Clock = monotonic) -> Tuned:
    ttft_s, tpot_s = promises(options.sla)
    asking = Asking(
        endpoint=options.endpoint, model=options.model, keys=read_keys(options.keys, os.environ), ignore_eos=True
    )
    asker = Asker(options.urls, asking, clock, salt=int(clock() * 1e6))
    try:
        await asker.probe()
        tuned = Tuned(options, asker.model, ttft_s, tpot_s)
        client = _Client(asker, tuned, clock, clock() + options.budget_s)
        first_s = LENGTHS_SHARE * options.budget_s
        say(
            f"takes {options.budget_s:.0f} s at most (--budget): up to {first_s:.0f} s for one request at a time, and "
            "what is left for many at once"
        )
        await _lengths(client, say)
        assert tuned.prefill is not None
        await _levels(client, say)
        tuned.advice = advise(tuned.prefill, tuned.levels, ttft_s, tpot_s, options.slow_ttft_ms / 1e3)
    finally:
        await asker.close()
    return tuned


def promises(sla: Sequence[str]) -> tuple[float, float | None]:
    targets = {target.figure: target.within_s for target in goodput.parse(sla, "--sla")}
    if unknown := sorted(set(targets) - {"ttft", "tpot"}):
        raise UsageError(f"--sla is about ttft and tpot, such as ttft:500 tpot:80, not {unknown[0]}")
    if "ttft" not in targets:
        raise UsageError("--sla needs a ttft, such as ttft:500: in milliseconds, at p95")
    return targets["ttft"], targets.get("tpot")


class _Client:
    def __init__(self, asker: Asker, tuned: Tuned, clock: Clock, until: float) -> None:
        self.asker, self.tuned, self.clock, self.until = asker, tuned, clock, until

    @property
    def left_s(self) -> float:
        return self.until - self.clock()

    @property
    def spent(self) -> bool:
        return self.left_s <= 0 or self.tuned.asked >= self.tuned.options.requests

    async def ask(self, prompt: int, output: int) -> Shot:
        """Sends one request and returns when it is over, at the latest when the time budget is spent."""
        over: asyncio.Future[Shot] = asyncio.get_running_loop().create_future()
        arrival = Arrival(0.0, prompt, output)
        prepared = self.asker.prepare(arrival)

        def settle(it: Shot) -> None:
            if not over.done():
                over.set_result(it)

        shot = Shot(arrival, self.clock(), True, self.clock, settle)
        self.tuned.asked += 1
        shot.call = self.asker.send(prepared, shot)
        shot.call.late_at = self.until
        try:
            return await over
        finally:
            if not over.done():
                shot.cut_off("interrupted")


# -- one at a time ----------------------------------------------------------------------------------------------


async def _lengths(client: _Client, say: Callable[[str], None]) -> None:
    tuned, options = client.tuned, client.tuned.options
    until = client.clock() + LENGTHS_SHARE * options.budget_s
    first = await client.ask(SHORTEST, A_FEW)  # warms up what is cold
    if first.kind != "ok" or first.ttft_s is None:
        raise StartupError(f"{client.asker.urls[0]} does not answer as it should: {first.message or first.why}")
    length = SHORTEST
    while length <= options.longest:
        found: list[Alone] = []
        for _ in range(TIMES):
            shot = await client.ask(length, A_FEW)
            if shot.kind != "ok" or shot.ttft_s is None:
                tuned.notes.append(f"prompts of {length} tokens: {shot.message or shot.why}")
                break
            found.append(Alone(shot.prompt_tokens or length, shot.ttft_s))
        tuned.alone += found
        if len(found) < TIMES:
            break
        times = sorted(one.ttft_s for one in found)
        say(f"prompt of {found[0].prompt_tokens} tokens alone: first token after {times[1] * 1e3:.0f} ms")
        if client.clock() + 2.2 * TIMES * times[-1] > until or client.spent:
            if length < options.longest:
                tuned.notes.append(f"no time was left for prompts of more than {length} tokens: --budget")
            break
        length *= 2
    try:
        tuned.prefill = prefill_of(tuned.alone)
    except ValueError:
        why = tuned.notes[-1] if tuned.notes else "too slow"
        raise StartupError(f"not enough could be measured ({why}): allow more time with --budget") from None


# -- many at once -----------------------------------------------------------------------------------------------


async def _levels(client: _Client, say: Callable[[str], None]) -> None:
    tuned, options = client.tuned, client.tuned.options
    assert tuned.prefill is not None
    line = advise(tuned.prefill, (), tuned.ttft_s, tuned.tpot_s, options.slow_ttft_ms / 1e3).fast_below_tokens
    tuned.prompt = options.prompt or max(SHORTEST, min(line // 2, 512))
    each_s = max(2.0, client.left_s / LEVELS)
    say(f"{client.left_s:.0f} s more at most, up to {each_s:.0f} s for each number of requests at once")
    while not client.spent:
        many = next_level(tuned.levels, tuned.ttft_s, tuned.tpot_s, options.concurrency)
        if many is None:
            return
        level = await _at(client, many, each_s)
        if level is None:
            break
        tuned.levels.append(level)
        kept = "kept" if level.keeps(tuned.ttft_s, tuned.tpot_s) else "broken"
        tpot = "" if level.tpot_p95_s is None else f", between tokens {level.tpot_p95_s * 1e3:.1f} ms"
        say(
            f"{many} at once: p95 of the first token {level.ttft_p95_s * 1e3:.0f} ms{tpot}, "
            f"{level.tokens_per_s:.0f} tokens/s: {kept}; {max(0.0, client.left_s):.0f} s left at most"
        )
    tuned.notes.append("the time or the requests allowed were used up before the limit was found: --budget, --requests")


async def _at(client: _Client, many: int, each_s: float) -> Level | None:
    """Measures `many` requests at once for at most `each_s` seconds. None: there was no time for it."""
    began = client.clock()
    until = min(began + each_s, client.until)
    done: list[Shot] = []
    wanted = max(ENOUGH, 6 * many) + many

    async def keep_asking() -> None:
        while client.clock() < until and not client.spent and len(done) < wanted:
            done.append(await client.ask(client.tuned.prompt, client.tuned.options.output))

    async with asyncio.TaskGroup() as group:
        for _ in range(many):
            group.create_task(keep_asking())
    took_s = client.clock() - began
    if client.left_s <= 0 and len(done) < 2 * many:
        return None
    # The first request of each task began together, as in no real load; where there are few others, they count too.
    steady = done[many:] if len(done) >= 2 * many + 8 else done
    good = [shot for shot in steady if shot.kind == "ok" and shot.ttft_s is not None]
    ttfts = [shot.ttft_s for shot in good if shot.ttft_s is not None]
    tpots = [shot.tpot_s for shot in good if shot.tpot_s is not None]
    return Level(
        concurrency=many,
        requests=len(done),
        ttft_p50_s=_at_share(ttfts, 50) if ttfts else math.inf,
        ttft_p95_s=_at_share(ttfts, 95) if ttfts else math.inf,
        tpot_p50_s=_at_share(tpots, 50) if tpots else None,
        tpot_p95_s=_at_share(tpots, 95) if tpots else None,
        tokens_per_s=sum(shot.tokens for shot in done if shot.kind == "ok") / took_s,
        failed=len(steady) - len(good),
    )


def _at_share(values: list[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else values[0]
