"""Whether a loud tenant moves a quiet one. In virtual time, with the very policies that serve.

A loud tenant offers four times what a pool can run, in generations of some ten seconds; a quiet one sends a 10-token
request each second. Measured is the quiet one's share of refusals and its p99 TTFT against the same tenant beside a
neighbour held to its fair share (`concurrency`: half the slots), and the tokens/s of both against the loud one alone.

    python benchmarks/fairness.py            a minute; writes results/fairness.json and .md
"""

import argparse
import json
import random
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from headgate.config.gateway import GatewayConfig, Tenant
from headgate.machine.profile import PROFILES
from headgate.model.lane import LANES, Lane
from headgate.sim.fleet import SimFleet, SimGroup
from headgate.sim.run import run
from headgate.workload.arrival import BLOCK_TOKENS, Arrival

SEEDS = (31, 32, 33, 34, 35)
"""None that a setting was chosen on: the standing room, and which cases are judged, were chosen on seed 11."""
SECONDS = 300.0
QUIET_FROM_S = 15.0
HELD_S = 10.0
"""How long one of the loud tenant's generations takes, about."""
OVERLOAD = 4.0
PROFILE = PROFILES["h100-llama3-8b"]
VIP = Lane(name="vip", priority=0, ttft_target_s=0.5, gap_target_s=0.2, wait_bound_s=0.4, weight=4, reserve=0.25)
BOUNDS = {8: 0.85, 64: 0.95}
"""Least tokens/s, of the loud tenant's alone, by slots."""
MOST_REFUSED = 0.01
MOST_TTFT = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    quiet_lane: str = "fast"
    loud_prompt: int = 60
    """Below 512 tokens it is of the fast lane, above of the slow one."""
    named: bool = True
    """The config names both tenants; otherwise the quiet one is known from its first request on."""
    steady: bool = True
    """Exactly one request each second; otherwise one on average."""
    judged_from: int | None = 8
    """Slots from which on it is judged; None: only shown."""
    replicas: int = 1
    """Replicas, which have the slots together."""
    shared: bool = False
    """The loud tenant's prompts begin alike but for their last 60 tokens, so that its requests prefer one replica."""


CASES = (
    Case(name="same lane"),
    # One of eight slots stays free, and two requests at once want two: more would cost more than is allowed.
    Case(name="same lane, requests at random", steady=False, judged_from=64),
    # Nothing is kept for a tenant before it is first seen: until then it waits for a generation to end.
    Case(name="same lane, not named in the config", named=False, judged_from=64),
    Case(name="own lane with a reserve of 0.25", quiet_lane="vip"),
    # The neighbour's prompts are ten times as long here, and it has twice the room: what differs is the engine's steps.
    Case(name="own lane with a reserve of 0.25, beside slow", quiet_lane="vip", loud_prompt=600, judged_from=None),
    Case(name="fast beside slow", loud_prompt=600, judged_from=None),
    # What is new in its prompts is short, so they are of the same lane as the quiet one's.
    Case(name="same lane, four replicas, its prompts begin alike", loud_prompt=4156, replicas=4, shared=True),
)


@dataclass(frozen=True, slots=True)
class Measured:
    refused: float
    ttft_p99_s: float
    tokens_s: float


def config_of(case: Case, loud_concurrency: int | None = None) -> GatewayConfig:
    loud = Tenant(name="loud", concurrency=loud_concurrency)
    quiet = Tenant(name="quiet", default_lane=case.quiet_lane)
    lanes = (*LANES.values(), VIP) if case.quiet_lane == VIP.name else tuple(LANES.values())
    # A tenant that is not named can't have a lane of its own here: the workload's prompt is short enough for `fast`.
    return GatewayConfig(lanes=lanes, tenants=(loud, quiet) if case.named else (loud,))


def arrivals(case: Case, slots: int, seed: int, *, quiet: bool = True) -> list[Arrival]:
    rng, now, made = random.Random(seed), 0.0, []
    output = int(HELD_S / 0.0078)
    while (now := now + rng.expovariate(OVERLOAD * slots / HELD_S)) < SECONDS:
        prefix = tuple(range(case.loud_prompt // BLOCK_TOKENS)) if case.shared else ()
        made.append(Arrival(now, case.loud_prompt, output, tenant="loud", name="loud", prefix=prefix))
    now = QUIET_FROM_S
    while quiet and (now := now + (1.0 if case.steady else rng.expovariate(1.0))) < SECONDS:
        made.append(Arrival(now, 60, 10, tenant="quiet", name="quiet"))
    return sorted(made, key=lambda arrival: arrival.at_s)


def measure(config: GatewayConfig, comes: list[Arrival], slots: int, seed: int, replicas: int) -> Measured:
    group = SimGroup(profile=PROFILE, count=replicas, slots=slots // replicas)
    simulated = run(config, comes, SimFleet(members=(group,)), seed, "gateway", by_stream=True)
    results = simulated.results
    of_quiet = results.of_lane("quiet")
    asked = int(of_quiet.sum())
    refused = 1.0 - int((of_quiet & results.ok).sum()) / asked if asked else 0.0
    ttfts = results.values("ttft", "quiet")
    p99 = float(np.quantile(ttfts, 0.99)) if len(ttfts) else float("nan")
    return Measured(refused, p99, float(results.output_tokens[results.ok].sum()) / simulated.span_s)


def judged(case: Case, slots: int, seeds: tuple[int, ...]) -> dict[str, float]:
    """Medians over the seeds, and the worst share of refusals."""
    both, fair, alone = [], [], []
    for seed in seeds:
        comes = arrivals(case, slots, seed)
        both.append(measure(config_of(case), comes, slots, seed, case.replicas))
        half = config_of(replace(case, named=True), slots // 2)
        fair.append(measure(half, comes, slots, seed, case.replicas))
        lone = GatewayConfig(tenants=(Tenant(name="loud"),))
        alone.append(measure(lone, arrivals(case, slots, seed, quiet=False), slots, seed, case.replicas))
    return {
        "refused": max(one.refused for one in both),
        "ttft_p99_ms": 1000 * statistics.median(one.ttft_p99_s for one in both),
        "ttft_p99_fair_ms": 1000 * statistics.median(one.ttft_p99_s for one in fair),
        "ttft_ratio": statistics.median(one.ttft_p99_s / its.ttft_p99_s for one, its in zip(both, fair, strict=True)),
        "tokens_ratio": statistics.median(one.tokens_s / its.tokens_s for one, its in zip(both, alone, strict=True)),
    }


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="one seed; keeps nothing")
    quick = options.parse_args().quick
    kept, missed = [], 0
    lines = [
        "| slots | case | refused (worst) | p99 TTFT, ms | beside a fair share, ms | ratio | tokens/s ratio | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for slots, least in BOUNDS.items():
        for case in CASES:
            made = judged(case, slots, SEEDS[:1] if quick else SEEDS)
            good = made["refused"] <= MOST_REFUSED and made["ttft_ratio"] <= MOST_TTFT and made["tokens_ratio"] >= least
            counts = case.judged_from is not None and slots >= case.judged_from
            missed += counts and not good
            verdict = ("pass" if good else "missed") if counts else "not judged"
            kept.append({"slots": slots, "case": asdict(case), **made, "verdict": verdict})
            figures = (
                f"{made['refused']:.1%}",
                f"{made['ttft_p99_ms']:.1f}",
                f"{made['ttft_p99_fair_ms']:.1f}",
                f"{made['ttft_ratio']:.2f}",
                f"{made['tokens_ratio']:.3f}",
            )
            lines.append(f"| {slots} | {case.name} | {' | '.join(figures)} | {verdict} |")
            print(lines[-1], flush=True)
    if not quick:
        folder = Path(__file__).parent / "results"
        (folder / "fairness.json").write_text(json.dumps(kept, indent=1) + "\n")
        bounds = (
            f"Bounds: refused ≤ {MOST_REFUSED:.0%}, ratio ≤ {MOST_TTFT}, tokens/s ≥ 0.85 at 8 slots and ≥ 0.95 at 64."
        )
        chosen = (
            "The slots that stay free, and which cases are judged, were chosen after a look at seed 11; these figures"
            f" are of seeds {SEEDS[0]} to {SEEDS[-1]}. Cases that are not judged missed a bound at one of the sizes."
        )
        text = ["# A loud tenant and a quiet one", "", *lines, "", bounds, "", chosen, ""]
        (folder / "fairness.md").write_text("\n".join(text))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
