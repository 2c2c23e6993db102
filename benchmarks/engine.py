"""Headgate's engine beside llama.cpp's own server: speed, and gaps between tokens.

Both run on the same weights, slots and threads, one at a time and alternately, and are asked over
HTTP by the same client. README.md beside this file says what each figure means.
"""

import argparse
import asyncio
import gc
import importlib.metadata
import os
import random
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import uvloop
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks.peers import ROOT, Client, Setup, Stream, Unusable, bundled_model, child_json, running, servers
from benchmarks.report import CpuTime, Facts, Report, Row, Samples, judge, machine, number, verdict_grid
from benchmarks.stolen import Watch

SHORT, LONG = 40, 1500
PREFIX, PREFIXED = 900, 1000
GAP_TARGET_MS = 200.0
"""What the fast lane is promised."""
LEAST_GAPS = 20
"""Fewer gaps that lost no CPU to others tell nothing of the last twentieth."""
TITLE = "Headgate's engine and llama.cpp's server"
RESULTS = ROOT / "benchmarks" / "results" / "engine.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    rounds: int
    repeats: int  # within a round
    decode_tokens: int
    figures: tuple[str, ...]
    servers: tuple[str, ...]


# -- prompts --------------------------------------------------------------------------------------

WORDS = """amber anchor autumn basket beacon border bridge candle canyon castle cedar chapel cloud copper
desert diamond doctor dragon ember engine evening falcon farmer feather forest fountain garden glacier harbor
harvest hunter island journey kettle lantern letter market meadow mirror mountain ocean orchard palace pepper
river sailor shadow silver station summer temple thunder tower tunnel valley village walnut winter"""


TOKEN_AT = "token_at_s"


class Prompts:
    """Exact numbers of token ids of made-up prose. The same seed gives the same prompts, in order; no two begin
    alike, so no prefix cache helps by accident."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._rng = random.Random(seed)
        self._words = WORDS.split()

    async def of(self, tokens: int) -> list[int]:
        text = " ".join(self._sentence() for _ in range(tokens // 8 + 4))
        return (await self._client.tokenize(text))[:tokens]

    def _sentence(self) -> str:
        a, b, c, d = self._rng.sample(self._words, 4)
        verb = self._rng.choice(("finds", "follows", "leaves", "remembers", "builds", "watches"))
        return f"{a.capitalize()} {b} {verb} the {c} of the {d}."


# -- measurements ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bench:
    client: Client
    prompts: Prompts
    plan: Plan
    server: str
    samples: Samples

    def add(self, figure: str, value: float) -> None:
        self.samples[f"{self.server}.{figure}"].append(value)


async def warm_up(bench: Bench) -> None:
    await bench.client.complete(await bench.prompts.of(600), 8)
    prompts = [await bench.prompts.of(SHORT) for _ in range(8)]
    await asyncio.gather(*(bench.client.complete(prompt, 16) for prompt in prompts))


async def measure_gap(bench: Bench) -> None:
    """A stream is decoding when a long prompt arrives."""
    short, long = await bench.prompts.of(SHORT), await bench.prompts.of(LONG)
    decoding = await bench.client.start(short, 3000)  # more than it can say before it is cut
    await decoding.more(24)
    watch = Watch(bench.client.pid)
    watching = asyncio.create_task(watch.run())
    arrived = await bench.client.complete(long, 4)
    watching.cancel()
    await decoding.more(8)
    stamps = decoding.cut()
    if stamps[-1] < arrived.stamps[-1]:
        raise Unusable("the running stream ended before the long prompt was served")
    gaps = [later - earlier for earlier, later in pairwise(stamps) if later > arrived.sent_at]
    bench.add("gap_ms", 1e3 * max(gaps))
    add_gaps(bench, stamps, arrived, watch)
    # For benchmarks/picture.py: when the stream's tokens came, in the last round, from the long prompt's sending.
    bench.samples[f"{bench.server}.{TOKEN_AT}"] = [stamp - arrived.sent_at for stamp in stamps]
    bench.add("beside_ms", 1e3 * arrived.ttft_s)
    await asyncio.sleep(1)  # for the server to see that the stream was cut
    if bench.server != "llama":
        await measure_long(bench)


def add_gaps(bench: Bench, stamps: tuple[float, ...], arrived: Stream, watch: Watch) -> None:
    """The gaps while the prompt was prefilled that lost no CPU to others."""
    beside = [
        (earlier, later)
        for earlier, later in pairwise(stamps)
        if later > arrived.sent_at and earlier < arrived.stamps[0]
    ]
    own = sorted(later - earlier for earlier, later in beside if not watch.stolen(earlier, later))
    bench.add("gaps_stolen", 1.0 - len(own) / len(beside))
    if len(own) >= LEAST_GAPS:
        bench.add("gap_p50_ms", 1e3 * own[len(own) // 2])
        bench.add("gap_p95_ms", 1e3 * own[int(0.95 * len(own))])
        bench.add("gap_p99_ms", 1e3 * own[int(0.99 * len(own))])


async def measure_long(bench: Bench) -> None:
    """The long prompt with the server to itself."""
    alone = await bench.client.complete(await bench.prompts.of(LONG), 4)
    bench.add("idle_ms", 1e3 * alone.ttft_s)


async def measure_decode(bench: Bench, streams: int) -> None:
    tokens = bench.plan.decode_tokens
    prompts = [await bench.prompts.of(SHORT) for _ in range(streams)]
    done = await asyncio.gather(*(bench.client.complete(prompt, tokens) for prompt in prompts))
    per_event = streams * tokens / sum(len(stream.stamps) for stream in done)
    bench.add(f"event_tokens{streams}", per_event)
    # Only while all of them decode: one server prefills all prompts first, the other mixes both, and the
    # whole run is the next figure.
    begin = max(stream.stamps[0] for stream in done)
    end = min(stream.stamps[-1] for stream in done)
    events = sum(begin < stamp <= end for stream in done for stamp in stream.stamps)
    if events < streams * 8:
        raise Unusable(f"the {streams} streams hardly overlapped")
    bench.add(f"decode{streams}", events * per_event / (end - begin))
    sent = min(stream.sent_at for stream in done)
    bench.add(f"total{streams}", streams * tokens / (max(stream.stamps[-1] for stream in done) - sent))


async def measure_decode1(bench: Bench) -> None:
    for _ in range(2 * bench.plan.repeats):
        await measure_decode(bench, 1)


async def measure_decode8(bench: Bench) -> None:
    for _ in range(bench.plan.repeats):
        await measure_decode(bench, 8)


async def measure_overhead(bench: Bench) -> None:
    """Eight streams, and what the engine counted meanwhile."""
    before = await step_seconds(bench)
    await measure_decode8(bench)
    whole, inside = (b - a for a, b in zip(before, await step_seconds(bench), strict=True))
    bench.add("step_overhead", (whole - inside) / whole)


async def measure_sampled(bench: Bench) -> None:
    """The same with every row drawn by chance."""
    before = await step_seconds(bench)
    for at in range(bench.plan.repeats):
        prompts = [await bench.prompts.of(SHORT) for _ in range(8)]
        tokens = bench.plan.decode_tokens
        await asyncio.gather(
            *(bench.client.complete(prompt, tokens, **DRAWN, seed=8 * at + one) for one, prompt in enumerate(prompts))
        )
    whole, inside = (b - a for a, b in zip(before, await step_seconds(bench), strict=True))
    bench.add("sampled_overhead", (whole - inside) / whole)


async def step_seconds(bench: Bench) -> tuple[float, float]:
    """Seconds in whole steps and inside the model library so far."""
    _, body = await bench.client.ask("GET", "/metrics")
    found = dict(re.findall(r"^headgate_engine_(step|run)_seconds_sum (\S+)", body.decode(), re.MULTILINE))
    if len(found) != 2:
        raise Unusable("/metrics lacks headgate_engine_step_seconds_sum or headgate_engine_run_seconds_sum")
    return float(found["step"]), float(found["run"])


async def measure_prefix(bench: Bench) -> None:
    for _ in range(bench.plan.repeats):
        cold = await bench.prompts.of(PREFIXED)
        other = await bench.prompts.of(PREFIXED - PREFIX)
        first = await bench.client.complete(cold, 4)
        second = await bench.client.complete(cold[:PREFIX] + other, 4)
        bench.add("cold_ms", 1e3 * first.ttft_s)
        bench.add("warm_ms", 1e3 * second.ttft_s)


Measurement = Callable[[Bench], Awaitable[None]]
FIGURES: dict[str, Measurement] = {
    "gap": measure_gap,
    "decode1": measure_decode1,
    "decode8": measure_decode8,
    "prefix": measure_prefix,
}
DRAWN = {"temperature": 0.8, "top_p": 0.95, "top_k": 40}
SAMPLED = "sampled8"
SWAP = "swap"  # on the runner itself, in a child process, not through a server
MEASURED: dict[str, dict[str, Measurement]] = {
    "llama": FIGURES,
    "headgate": FIGURES | {"decode8": measure_overhead, SAMPLED: measure_sampled},
    "unchunked": {"gap": measure_long},
}

# -- the rounds -----------------------------------------------------------------------------------


async def measure(plan: Plan, setup: Setup, console: Console) -> Samples:
    """One server alive at a time, alternately, so that drift of the machine meets both."""
    samples: Samples = defaultdict(list)
    for index in range(plan.rounds):
        for server in plan.servers:
            console.rule(f"round {index + 1} of {plan.rounds}: {server}", align="left")
            await measure_server(plan, setup, server, index, samples, console)
            if server == "headgate" and SWAP in plan.figures:
                console.print("swap …")
                await measure_swap(setup, samples)
            console.print(summary(samples, server), style="dim", highlight=False)
    return dict(samples)


async def measure_server(plan: Plan, setup: Setup, name: str, index: int, samples: Samples, console: Console) -> None:
    wanted = {figure: run for figure, run in MEASURED[name].items() if figure in plan.figures}
    if not wanted:
        return
    console.print("start and warm-up …")  # lines, not a spinner: its thread would take turns with the stamps
    async with running(servers(setup)[name]) as client:
        bench = Bench(client, Prompts(client, seed=index), plan, name, samples)
        await warm_up(bench)
        for figure, run in wanted.items():
            console.print(f"{figure} …")
            await run(bench)


async def measure_swap(setup: Setup, samples: Samples) -> None:
    flags = ("--model", str(setup.model), "--threads", str(setup.threads))
    for figure, value in (await child_json("swap", *flags)).items():
        samples[f"headgate.{figure}"].append(value)


def summary(samples: Samples, server: str) -> str:
    mine = {key.split(".")[1]: values[-1] for key, values in samples.items() if key.startswith(f"{server}.")}
    return ", ".join(f"{figure} {number(value)}" for figure, value in mine.items() if figure != TOKEN_AT)


# -- the verdict ----------------------------------------------------------------------------------


ROWS = (
    Row("gap beside a 1 500-token prompt, ms, over llama.cpp", "headgate.gap_ms", "llama.gap_ms", "≤", 0.15),
    Row("gaps there, p50, ms", "headgate.gap_p50_ms", None),
    Row("gaps there, p95, ms: 1.1 times the target", "headgate.gap_p95_ms", None, "≤", 1.1 * GAP_TARGET_MS),
    Row("gaps there, p99, ms: 1.5 times the target", "headgate.gap_p99_ms", None, "≤", 1.5 * GAP_TARGET_MS),
    Row("of all gaps, those left out since others used the CPU", "headgate.gaps_stolen", None),
    Row("that prompt's TTFT, ms, over unchunked", "headgate.beside_ms", "unchunked.idle_ms", "≤", 2.5),
    Row("its TTFT on an idle engine, ms, over unchunked", "headgate.idle_ms", "unchunked.idle_ms"),
    Row("that prompt's TTFT, ms, over llama.cpp", "headgate.beside_ms", "llama.beside_ms"),
    Row("tokens/s, 1 stream, decode", "headgate.decode1", "llama.decode1", "≥", 0.95),
    Row("tokens/s, 1 stream, in all", "headgate.total1", "llama.total1", "≥", 0.95),
    Row("tokens/s, 8 streams, decode", "headgate.decode8", "llama.decode8", "≥", 0.95),
    Row("tokens/s, 8 streams, in all", "headgate.total8", "llama.total8", "≥", 0.95),
    Row("tokens per event, 1 stream: above 1, drafts were right", "headgate.event_tokens1", None),
    Row("our Python's share of a step, 8 streams", "headgate.step_overhead", None, "≤", 0.05),
    Row("the same with temperature, top_p and top_k", "headgate.sampled_overhead", None, "≤", 0.05),
    Row("TTFT, 900 of 1 000 tokens seen, ms, over cold", "headgate.warm_ms", "headgate.cold_ms", "≤", 0.25),
    Row("the same on llama.cpp, ms", "llama.warm_ms", "llama.cold_ms"),
    Row("swap of 1 000 tokens, ms, over recompute", "headgate.swap_ms", "headgate.recompute_ms"),
)


def facts_of(setup: Setup, plan: Plan) -> Facts:
    return machine() | {
        "xllamacpp": importlib.metadata.version("xllamacpp"),
        "model": setup.model.name,
        "threads": setup.threads,
        "slots": f"{setup.slots} × {setup.context} tokens",
        "rounds": plan.rounds,
    }


# -- the command ----------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round with fewer tokens")
    parser.add_argument("--only", choices=(*FIGURES, SAMPLED, SWAP), help="measure one figure")
    parser.add_argument("--server", choices=tuple(MEASURED), help="measure one server")
    parser.add_argument("--model", type=Path, help="a GGUF; the bundled weights without it")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="a JSON file; a whole run is kept in benchmarks/results")
    return parser.parse_args()


async def run(args: argparse.Namespace, console: Console) -> bool:
    if task := asyncio.current_task():  # SIGTERM ends the servers too
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    setup = Setup(model=args.model or bundled_model(), threads=args.threads)
    plan = Plan(
        rounds=1 if args.quick else args.rounds,
        repeats=1 if args.quick else 2,
        decode_tokens=48 if args.quick else 128,
        figures=(args.only,) if args.only else (*FIGURES, SAMPLED, SWAP),
        servers=(args.server,) if args.server else tuple(MEASURED),
    )
    before = CpuTime.now()
    samples = await measure(plan, setup, console)
    facts = facts_of(setup, plan) | {"cpu_time_taken_by_others": f"{before.others_of_busy(CpuTime.now()):.0%}"}
    whole = not (args.quick or args.only or args.server)
    verdicts = [judge(row, samples) for row in ROWS if whole or row.value in samples or row.against in samples]
    console.print(verdict_grid(verdicts).table(TITLE), f"CPU time taken by others: {facts['cpu_time_taken_by_others']}")
    if out := args.out or (RESULTS if whole else None):
        Report(TITLE, "benchmarks/engine.py", facts, verdicts, samples).keep(out)
        console.print(f"written: {out} and {out.with_suffix('.md').name}", highlight=False)
    return all(verdict.passed is not False for verdict in verdicts)


def main() -> int:
    gc.disable()  # a collection here would be read as a gap there; the process is short
    console = Console()
    try:
        return 0 if uvloop.run(run(arguments(), console)) else 1
    except Unusable as error:
        console.print(f"no result: {error}", style="red", markup=False)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


if __name__ == "__main__":
    sys.exit(main())
