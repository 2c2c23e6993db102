"""Whether prompts of 100 000 tokens keep more urgent ones waiting. An emulated H100 in virtual time.

Long prompts come at once; chats and prompts of 513 to 16 000 tokens come while they are prefilled. Each case is run
three times: all of them, the long ones alone, and the others alone.

    python benchmarks/inversion.py           some minutes; writes results/inversion.json and .md
"""

import argparse
import json
import math
import random
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks.stepped import Come, Served, serve, ttft

from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import PROFILES
from headgate.model.lane import LANES
from headgate.sim.fleet import fleet_of
from headgate.sim.run import run
from headgate.workload.arrival import Arrival

SEEDS = (61, 62, 63, 64, 65)
"""None that a setting was chosen on: shares and limits were chosen on seeds 1 to 3."""
PROFILE = PROFILES["h100-llama3-8b"]
RESULTS = Path(__file__).resolve().parent / "results" / "inversion.json"
FAST_P99_S = 0.3
LONGER = 1.3
"""Most that a long prompt's first token may be later for the others."""
MOST_REFUSED = 0.001
SLOW = LANES["slow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    long: int
    """How many come at once."""
    prompt: int = 100_000
    output: int = 100
    """Tokens of a long prompt's answer."""
    lane: str = "long"
    fast_s: float = 4.0
    """Chats each second."""
    slow_s: float = 0.25
    seconds: float = 20.0
    """How long the others come."""
    judge_long: bool = True
    """Where the others' own prefill takes a third of the time, long prompts can't end within 1.3 times theirs."""


CASES = (
    Case(name="2 of 60 000", long=2, prompt=60_000, seconds=8.0),
    Case(name="2 of 100 000", long=2, seconds=16.0),
    Case(name="12 of 100 000", long=12, seconds=100.0),
    Case(name="24 of 100 000", long=24, seconds=200.0),
    Case(name="12 of 100 000 with answers of 1 500", long=12, output=1500, seconds=100.0),
    Case(name="12 of 100 000 of batch", long=12, lane="batch", seconds=100.0),
    Case(name="12 of 100 000, more others", long=12, fast_s=12.0, slow_s=0.75, seconds=100.0, judge_long=False),
)


def long_ones(case: Case) -> list[Come]:
    return [Come(0.001 * n, case.lane, case.prompt, case.output, name="long") for n in range(case.long)]


def others(case: Case, seed: int) -> list[Come]:
    rng, made = random.Random(seed), []
    for lane, rate, least, most in (("fast", case.fast_s, 20, 2000), ("slow", case.slow_s, 513, 16_000)):
        now = 0.5
        while (now := now + rng.expovariate(rate)) < case.seconds:
            prompt = int(math.exp(rng.uniform(math.log(least), math.log(most))))
            made.append(Come(now, lane, prompt, rng.randint(20, 200)))
    return sorted(made, key=lambda come: come.at_s)


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


def idle_ttft(prompt: int, known: dict[int, float]) -> float:
    """With the engine to itself."""
    if prompt not in known:
        known[prompt] = ttft(serve(PROFILE, [Come(0.0, "fast", prompt, 1)]).sequences[0][1])
    return known[prompt]


def longer(both: Served, alone: Served) -> list[float]:
    """Each long prompt's first token with the others over without."""
    return [a / b for a, b in zip(both.ttfts("long"), alone.ttfts("long"), strict=True)]


def engine_figures(case: Case, seeds: tuple[int, ...], known: dict[int, float]) -> dict[str, float]:
    """All that seeds gave, together; of the long ones the worst."""
    found: dict[str, list[float]] = {}
    alone = serve(PROFILE, long_ones(case))
    excess: list[float] = []
    fast: list[float] = []
    slow: list[float] = []
    gaps: list[float] = []
    ratios: list[float] = []
    swaps, work = 0, 0.0
    for seed in seeds:
        come_too = others(case, seed)
        both = serve(PROFILE, long_ones(case) + come_too)
        without = serve(PROFILE, come_too)
        fast += both.ttfts("fast")
        slow += both.ttfts("slow")
        gaps += both.gaps["fast"] + both.gaps["slow"]
        ratios += longer(both, alone)
        swaps += both.swaps + both.recomputes
        for (come, one), (_, lone) in zip(both.sequences[case.long :], without.sequences, strict=True):
            if come.lane == "fast":
                excess.append(ttft(one) - ttft(lone) - idle_ttft(come.prompt, known))
        work += sum(idle_ttft(come.prompt, known) for come, _ in both.sequences if come.name != "long") / case.seconds
        found.setdefault("tokens_s", []).append(sum(c.prompt + c.output for c, _ in both.sequences) / both.ended_s)
    return {
        "fast_p50_ms": 1e3 * quantile(fast, 0.5),
        "fast_p95_ms": 1e3 * quantile(fast, 0.95),
        "fast_p99_ms": 1e3 * quantile(fast, 0.99),
        "fast_excess_p95_ms": 1e3 * quantile(excess, 0.95),
        "longest_step_ms": 1e3 * alone.longest_step_s,
        "slow_p50_s": quantile(slow, 0.5),
        "slow_p95_s": quantile(slow, 0.95),
        "slow_p99_s": quantile(slow, 0.99),
        "gap_p50_ms": 1e3 * quantile(gaps, 0.5),
        "gap_p99_ms": 1e3 * quantile(gaps, 0.99),
        "long_longer": max(ratios),
        "others_work": work / len(seeds),
        "swaps": swaps,
        "tokens_s": statistics.median(found["tokens_s"]),
    }


def kept(case: Case, made: dict[str, float]) -> bool:
    return (
        made["fast_excess_p95_ms"] <= made["longest_step_ms"]
        and made["fast_p99_ms"] <= 1e3 * FAST_P99_S
        and made["slow_p95_s"] <= SLOW.ttft_target_s
        and made["slow_p99_s"] <= (SLOW.ttft_p99_s or 0.0)
        and (made["long_longer"] <= LONGER or not case.judge_long)
    )


# -- through the gateway ----------------------------------------------------------------------------------


def gateway_figures(case: Case, seeds: tuple[int, ...]) -> dict[str, float]:
    """The same requests come to a gateway before one such engine; refusals by lane."""
    refused = {"fast": 0, "slow": 0, "long": 0}
    asked = {"fast": 0, "slow": 0, "long": 0}
    ttfts: dict[str, list[float]] = {"fast": [], "slow": [], "long": []}
    good = tokens = span = 0.0
    for seed in seeds:
        comes = [
            Arrival(come.at_s, come.prompt, come.output, lane=come.lane)
            for come in sorted(long_ones(case) + others(case, seed), key=lambda come: come.at_s)
        ]
        simulated = run(GatewayConfig(), comes, fleet_of(PROFILE, 1), seed, "step")
        results = simulated.results
        for name in refused:
            lane = case.lane if name == "long" else name
            mask = results.of_lane(lane)
            asked[name] += int(mask.sum())
            refused[name] += int((mask & ~results.ok).sum())
            ttfts[name] += [float(value) for value in results.values("ttft", lane)]
        tokens += float(results.output_tokens[results.ok].sum())
        span += simulated.span_s
    good = tokens / span
    figures: dict[str, float] = {"goodput_tokens_s": good}
    for name in refused:
        figures[f"{name}_asked"], figures[f"{name}_refused"] = asked[name], refused[name]
        for q in (0.5, 0.95, 0.99):
            figures[f"{name}_p{round(100 * q)}_s"] = quantile(ttfts[name], q)
    return figures


GATEWAY_CASES = (
    Case(name="2 of 100 000", long=2, seconds=16.0),
    Case(name="12 of 100 000 of batch", long=12, lane="batch", seconds=100.0),
    Case(name="12 of 100 000 of batch, more others", long=12, lane="batch", fast_s=12.0, slow_s=0.75, seconds=100.0),
)


def gateway_kept(made: dict[str, float]) -> bool:
    return (
        made["fast_refused"] + made["slow_refused"] <= MOST_REFUSED * (made["fast_asked"] + made["slow_asked"])
        and made["fast_p99_s"] <= FAST_P99_S
        and made["slow_p95_s"] <= SLOW.ttft_target_s
        and made["slow_p99_s"] <= (SLOW.ttft_p99_s or 0.0)
    )


# -- the command ------------------------------------------------------------------------------------------

ENGINE_HEAD = (
    "| case | fast TTFT p50 / p95 / p99, ms | beyond alone and its own prefill, p95, ms | longest step, ms "
    "| slow TTFT p50 / p95 / p99, s | gap p50 / p99, ms | long TTFT, worst ratio | others' own prefill | swaps "
    "| tokens/s | |"
)
GATEWAY_HEAD = (
    "| case | fast TTFT p50 / p95 / p99, ms | refused | slow TTFT p50 / p95 / p99, s | refused "
    "| long TTFT p50 / p99, s | refused | goodput, tokens/s | |"
)


def engine_line(case: Case, made: dict[str, float]) -> str:
    f = made
    return (
        f"| {case.name} | {f['fast_p50_ms']:.0f} / {f['fast_p95_ms']:.0f} / {f['fast_p99_ms']:.0f} "
        f"| {f['fast_excess_p95_ms']:.0f} | {f['longest_step_ms']:.0f} "
        f"| {f['slow_p50_s']:.2f} / {f['slow_p95_s']:.2f} / {f['slow_p99_s']:.2f} "
        f"| {f['gap_p50_ms']:.0f} / {f['gap_p99_ms']:.0f} | {f['long_longer']:.2f} | {f['others_work']:.0%} "
        f"| {f['swaps']:.0f} | {f['tokens_s']:.0f} | {'pass' if kept(case, made) else 'missed'} |"
    )


def gateway_line(case: Case, made: dict[str, float]) -> str:
    f = made
    return (
        f"| {case.name} | {1e3 * f['fast_p50_s']:.0f} / {1e3 * f['fast_p95_s']:.0f} / {1e3 * f['fast_p99_s']:.0f} "
        f"| {f['fast_refused']:.0f} of {f['fast_asked']:.0f} "
        f"| {f['slow_p50_s']:.2f} / {f['slow_p95_s']:.2f} / {f['slow_p99_s']:.2f} "
        f"| {f['slow_refused']:.0f} of {f['slow_asked']:.0f} | {f['long_p50_s']:.1f} / {f['long_p99_s']:.1f} "
        f"| {f['long_refused']:.0f} of {f['long_asked']:.0f} | {f['goodput_tokens_s']:.0f} "
        f"| {'pass' if gateway_kept(made) else 'missed'} |"
    )


def rule(head: str) -> str:
    return "|---" * (head.count("|") - 1) + "|"


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="one seed, 1, on which settings were chosen; keeps none")
    options.add_argument("--seeds", type=int, nargs="+", help="other seeds; keeps nothing")
    options.add_argument("--out", type=Path, help="a JSON file instead of results/inversion.json")
    args = options.parse_args()
    seeds = (1,) if args.quick else tuple(args.seeds or SEEDS)
    known: dict[int, float] = {}
    found: list[dict[str, object]] = []
    lines, missed = ["## The engine", "", ENGINE_HEAD, rule(ENGINE_HEAD)], 0
    for case in CASES:
        made = engine_figures(case, seeds, known)
        found.append({"at": "engine", "case": asdict(case), **made})
        lines.append(engine_line(case, made))
        print(lines[-1], flush=True)
        missed += not kept(case, made)
    lines += ["", "## Through the gateway", "", GATEWAY_HEAD, rule(GATEWAY_HEAD)]
    for case in GATEWAY_CASES:
        made = gateway_figures(case, seeds)
        found.append({"at": "gateway", "case": asdict(case), **made})
        lines.append(gateway_line(case, made))
        print(lines[-1], flush=True)
        missed += not gateway_kept(made)
    out = args.out or (None if args.quick or args.seeds else RESULTS)
    if out is not None:
        out.write_text(json.dumps({"seeds": seeds, "cases": found}, indent=1) + "\n")
        head = ["# Long prompts beside more urgent ones", "", "Written by `benchmarks/inversion.py`.", ""]
        head += [f"- profile: {PROFILE.name}, virtual time", f"- seeds: {', '.join(map(str, seeds))}", ""]
        out.with_suffix(".md").write_text("\n".join(head + lines) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
