"""What separate pools are worth, in virtual time: of lanes on the tail's mix, and of two GPU types on a ServeGen day.

lanes   the tail's mix on four emulated H100s at half their speed: one pool for all, against two replicas for fast
        and slow, one for long and one for batch. Step level: the Batcher decides every step.
prices  a day of ServeGen traffic on two pools of A100s and H100s that serve the same: cheapest first, against an even
        spread over both. Each pool is scaled by headgate. Pass: 10 % cheaper at no more than 1.1 times the TTFT p99.
"""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.day import DAY, arrivals, config
from benchmarks.tail_mix import EMULATED, LANES, SEED

from headgate.config.fleet import EmulateConfig, FleetConfig, PoolConfig
from headgate.config.gateway import GatewayConfig
from headgate.config.scale import ScaleConfig
from headgate.garbage import rarely_collected
from headgate.machine.profile import PROFILES
from headgate.report.results import Results
from headgate.sim.fleet import SimFleet, dilated
from headgate.sim.run import run
from headgate.sim.scaling.autoscale import MONDAY
from headgate.sim.scaling.pools import run_pools

HERE = Path(__file__).resolve().parent
LOADS = (0.5, 1.0, 1.5, 2.0)
SECONDS = 20.0
POOLS = {"fast": (frozenset({"fast", "slow"}), 2), "long": (frozenset({"long"}), 1), "batch": (frozenset({"batch"}), 1)}
PRICES = {"a100": 1.8, "h100": 4.0}
"""Dollars an hour. An H100 does about 1.7 times as much of this as an A100, so an A100's tokens are cheaper."""
SCALE = ScaleConfig(min=1, max=60, warm=0, forecast=False)
AT_FIRST = 5
"""Replicas of each pool that serve when the day begins."""
COLD_START_S = 90.0
SLOWER = 4.0
EVERY = 4
"""Every fourth arrival of the day is played, about one in two seconds."""
LEAST_SAVED, MOST_P99 = 0.10, 1.10


def lanes_fleet(separate: bool) -> SimFleet:
    made = replace(dilated(PROFILES["h100-llama3-8b"], 2.0), slots=EMULATED.slots)
    if not separate:
        return SimFleet(members=(replace(made, count=EMULATED.replicas),))
    return SimFleet(members=tuple(replace(made, lanes=lanes, count=count) for lanes, count in POOLS.values()))


def lanes_case(case: tuple[bool, float]) -> dict[str, Any]:
    separate, load = case
    with rarely_collected():
        workload = EMULATED.workload(load, SECONDS)
        found = run(GatewayConfig(), workload.arrivals(SEED), lanes_fleet(separate), SEED, "step").results
    good = {lane: good_share(found, lane, ttft_s, tpot_s) for lane, ttft_s, tpot_s in EMULATED.good}
    return {
        "pools": "three" if separate else "one",
        "load": load,
        "p99_s": {lane: ttft_p99(found, lane) for lane in LANES},
        "good": good,
        "goodput_per_s": float(sum(good[lane] * of_lane(found, lane).sum() for lane in LANES)) / SECONDS,
    }


def of_lane(results: Results, lane: str) -> np.ndarray[Any, Any]:
    if lane not in results.lanes:
        return np.zeros(len(results), bool)
    return np.asarray(results.lane == results.lanes.index(lane))


def ttft_p99(results: Results, lane: str) -> float:
    """Over the streamed arrivals; infinite where more than 1 % were refused or failed."""
    mine = of_lane(results, lane)
    values = np.where(results.ok[mine], results.ttft_s[mine], np.inf)
    values = values[~np.isnan(values)]
    return float(np.quantile(values, 0.99, method="higher")) if len(values) else nan


def good_share(results: Results, lane: str, ttft_s: float, tpot_s: float | None) -> float:
    """Share of a lane's arrivals that were answered in time; of unstreamed ones, that were answered."""
    mine = of_lane(results, lane)
    late = np.nan_to_num(results.ttft_s[mine], nan=0.0) > ttft_s
    slow = np.nan_to_num(results.tpot_s[mine], nan=0.0) > (tpot_s or np.inf)
    return float((results.ok[mine] & ~late & ~slow).mean()) if mine.any() else nan


# -- prices -------------------------------------------------------------------------------------------------------


def prices_case(first: bool) -> dict[str, Any]:
    """`first`: the cheapest is filled first; otherwise both have one price, and share evenly."""
    pools = tuple(
        PoolConfig(
            name=name,
            price=PRICES[name] if first else 1.0,
            slots=4,
            scale=SCALE,
            emulate=EmulateConfig(profile=f"{name}-llama3-8b", dilate=SLOWER, cold_start_s=COLD_START_S),
        )
        for name in PRICES
    )
    made = replace(config(), fleet=FleetConfig(pools=pools))
    with rarely_collected():
        found = run_pools(
            made,
            islice(arrivals(DAY, SEED), 0, None, EVERY),
            PROFILES["h100-llama3-8b"],
            SEED,
            at_first=AT_FIRST,
            wall_s=MONDAY + DAY * 86_400.0,
        )
    hours = {name: one.replica_hours for name, one in found.outcomes.items()}
    results = found.simulated.results
    values = np.where(results.ok, results.ttft_s, np.inf)
    return {
        "order": "cheapest first" if first else "even",
        "hours": hours,
        "cost": sum(hours[name] * PRICES[name] for name in PRICES),
        "ttft_p99_s": float(np.quantile(values[~np.isnan(values)], 0.99, method="higher")),
        "answered": float(results.ok.mean()),
        "requests": len(results),
    }


# -- results ------------------------------------------------------------------------------------------------------


def lanes_lines(found: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["", "## Pools of lanes, tail mix, step level", ""]
    lines += ["| load | pools | fast p99, s | slow p99, s | long p99, s | batch p99, s | fast in time | goodput/s |"]
    lines += ["|--:|---|--:|--:|--:|--:|--:|--:|"]
    for case in sorted(found, key=lambda one: (one["load"], one["pools"])):
        p99 = " | ".join(f"{case['p99_s'][lane]:.2f}" for lane in LANES)
        good = f"{case['good']['fast']:.1%} | {case['goodput_per_s']:.1f}"
        lines.append(f"| {case['load']:g}× | {case['pools']} | {p99} | {good} |")
    return lines


def prices_lines(found: Sequence[dict[str, Any]], verdicts: dict[str, bool]) -> list[str]:
    lines = ["", "## Two GPU types, a ServeGen day", ""]
    lines += ["| order | A100 hours | H100 hours | cost, $ | TTFT p99, s | answered |", "|---|--:|--:|--:|--:|--:|"]
    for case in found:
        hours = case["hours"]
        lines.append(
            f"| {case['order']} | {hours['a100']:.1f} | {hours['h100']:.1f} | {case['cost']:.1f} "
            f"| {case['ttft_p99_s']:.2f} | {case['answered']:.2%} |"
        )
    return [*lines, "", *(f"- {'pass' if good else 'FAIL'}: {name}" for name, good in verdicts.items())]


def judged(found: Sequence[dict[str, Any]]) -> dict[str, bool]:
    first, even = found
    saved, p99 = 1 - first["cost"] / even["cost"], first["ttft_p99_s"] / even["ttft_p99_s"]
    return {
        f"cheapest first costs {saved:.1%} less; at least {LEAST_SAVED:.0%} is asked for": saved >= LEAST_SAVED,
        f"its TTFT p99 is {p99:.2f} times the even spread's; at most {MOST_P99:g}": p99 <= MOST_P99,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=["lanes", "prices"])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "pools.json")
    args = parser.parse_args()
    kept: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    with ProcessPoolExecutor(args.jobs) as pool:
        if args.only != "prices":
            kept["lanes"] = list(pool.map(lanes_case, [(one, load) for load in LOADS for one in (False, True)]))
        if args.only != "lanes":
            kept["prices"] = list(pool.map(prices_case, [True, False]))
    verdicts = judged(kept["prices"]) if "prices" in kept else {}
    lines = ["# Pools", "", "Written by `benchmarks/pools.py`; simulated, so the machine does not matter."]
    lines += lanes_lines(kept.get("lanes", ()))
    lines += prices_lines(kept["prices"], verdicts) if "prices" in kept else []
    args.out.write_text(json.dumps({**kept, "verdicts": verdicts}, indent=1) + "\n")
    args.out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
