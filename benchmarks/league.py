"""Plays Headgate's routing against rivals' published rules on one simulator: same traces, engines and SLOs.

The oracle is Headgate's own dispatcher, told what engines really have in their caches and how long each answer will be.
The catalog's workloads, and half and three times the load, are played against the oracle alone. Each run is kept in
`.bench/league`, so that `--resume` goes on after an interruption.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections import defaultdict
from math import exp, inf, log
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks.league_mix import MIXES, Mix
from benchmarks.league_rivals import RIVALS
from benchmarks.league_world import ORACLE, OURS, PLAIN, Played, play

from headgate.model.outcome import Outcome

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (21, 22, 23)
LOADS = (0.5, 1.0, 2.0, 3.0)
WITH_RIVALS = (1.0, 2.0)
"""Loads at which rivals play, too; at the others, and with the catalog's workloads, the oracle alone does."""
ENTRIES = (OURS, *RIVALS, ORACLE)
LEAST_OF_BEST = 0.97
LEAST_OF_ORACLE = 0.85


def figures(mix: Mix, played: Played) -> dict[str, Any]:
    """What one run comes to."""
    answers = played.answers
    good = [mix.slo(answer.arrival).good(answer) for answer in answers]
    done = [answer for answer in answers if answer.outcome is Outcome.COMPLETED]
    cached, computed = sum(answer.cached for answer in done), sum(answer.computed for answer in done)
    by_tenant: dict[str, list[bool]] = defaultdict(list)
    ttfts: dict[str, list[float]] = defaultdict(list)
    for answer, fine in zip(answers, good, strict=True):
        by_tenant[answer.arrival.tenant or ""].append(fine)
        if answer.ttft_s is not None:
            ttfts[mix.label(answer.arrival)].append(answer.ttft_s)
    shares = [statistics.fmean(fine) for fine in by_tenant.values()]
    squares = sum(share * share for share in shares)
    return {
        "offered_per_s": len(answers) / played.span_s,
        "good_per_s": sum(good) / played.span_s,
        "refused": sum(answer.outcome not in (None, Outcome.COMPLETED) for answer in answers) / len(answers),
        "unfinished": sum(answer.outcome is None for answer in answers) / len(answers),
        "cache_hit": cached / max(1, cached + computed),
        "jain": sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0,
        "ttft_p99_s": {label: sorted(found)[int(0.99 * len(found))] for label, found in sorted(ttfts.items())},
    }


def measure(mix: Mix, load: float, entry: str, seed: int, folder: Path, resume: bool) -> dict[str, Any]:
    kept = folder / f"{mix.name}-{load:g}-{entry}-{seed}.json".replace(" ", "_")
    if resume and kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    began = time.process_time()
    made = figures(mix, play(entry, mix.play(load, seed), mix.replicas, seed, mix.grace_s))
    found = {"mix": mix.name, "load": load, "entry": entry, "seed": seed, **made}
    found["cpu_s"] = round(time.process_time() - began, 1)
    kept.write_text(json.dumps(found) + "\n")
    gc.collect()
    return found


# -- the table --------------------------------------------------------------------------------------------


def mean(runs: list[dict[str, Any]], figure: str) -> float:
    return statistics.fmean(run[figure] for run in runs)


def table(runs: list[dict[str, Any]]) -> tuple[str, bool]:
    """The tables in Markdown, and whether Headgate leads."""
    by: dict[tuple[str, float, str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        by[run["mix"], run["load"], run["entry"]].append(run)
    lines: list[str] = []
    ratios: dict[str, list[float]] = defaultdict(list)
    verdicts: list[str] = []
    for mix, load in dict.fromkeys((mix, load) for mix, load, _ in by):
        good = {entry: mean(by[mix, load, entry], "good_per_s") for entry in ENTRIES if (mix, load, entry) in by}
        best = max((value for entry, value in good.items() if entry in RIVALS), default=None)
        offered = mean(by[mix, load, OURS], "offered_per_s")
        lines += [
            f"\n### {mix}, {load:g}× ({offered:.1f} requests/s offered)\n",
            "| | good/s | of the oracle's | refused | unfinished | TTFT p99, s | cache hit | Jain |",
            "|---|--:|--:|--:|--:|---|--:|--:|",
        ]
        for entry, value in sorted(good.items(), key=lambda pair: -pair[1]):
            found = by[mix, load, entry]
            if best is not None:
                ratios[entry].append(max(value, 1e-3) / best)
            labels = found[0]["ttft_p99_s"]
            ttft = ", ".join(
                f"{label} {statistics.fmean(run['ttft_p99_s'].get(label, 0.0) for run in found):.2f}"
                for label in labels
            )
            name = f"**{entry}**" if entry == OURS else entry
            lines.append(
                f"| {name} | {value:.2f} | {value / good[ORACLE]:.2f} | {mean(found, 'refused'):.1%} | "
                f"{mean(found, 'unfinished'):.1%} | {ttft} | {mean(found, 'cache_hit'):.3f} | "
                f"{mean(found, 'jain'):.3f} |"
            )
        ours = good[OURS]
        beside = " | "
        if best is not None:
            beside = f"{ours / best:.2f} | {'yes' if ours >= LEAST_OF_BEST * best else '**no**'}"
        verdicts.append(
            f"| {mix} {load:g}× | {beside} | "
            f"{ours / good[ORACLE]:.2f} | {'yes' if ours >= LEAST_OF_ORACLE * good[ORACLE] else '**no**'} |"
        )
    means = {entry: exp(statistics.fmean(map(log, found))) for entry, found in ratios.items()}
    order = sorted(means.items(), key=lambda pair: -pair[1])
    head = [
        "| | ours over the best rival's | ≥ 0.97 | over the oracle's | ≥ 0.85 |",
        "|---|--:|---|--:|---|",
        *verdicts,
    ]
    if order:
        shown = ", ".join(f"{entry} {value:.3f}" for entry, value in order)
        head.append(f"\nGeometric mean of goodput over the best rival's: {shown}.")
    leads = not any("**no**" in verdict for verdict in verdicts)
    best_mean = max((means[entry] for entry in RIVALS if entry in means), default=0.0)
    return "\n".join([*head, *lines]) + "\n", leads and means.get(OURS, inf) >= best_mean


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    parser.add_argument("--mixes", nargs="+", choices=list(MIXES), default=list(MIXES))
    parser.add_argument("--entries", nargs="+", choices=[*ENTRIES, PLAIN], default=list(ENTRIES))
    parser.add_argument("--resume", action="store_true", help="keep runs that are there")
    parser.add_argument("--no-table", action="store_true", help="only run, for a process beside another")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "league.json")
    args = parser.parse_args()
    folder = ROOT / ".bench" / "league"
    folder.mkdir(parents=True, exist_ok=True)
    gc.set_threshold(50_000, 20, 100)
    runs = []
    for seed in args.seeds:
        for name in args.mixes:
            for load in args.loads:
                rivals = load in WITH_RIVALS and not MIXES[name].catalog
                for entry in [one for one in args.entries if rivals or one not in RIVALS]:
                    run = measure(MIXES[name], load, entry, seed, folder, args.resume)
                    runs.append(run)
                    print(f"{seed} {name} {load:g}x {entry}: {run['good_per_s']:.2f} good/s", flush=True)
    if args.no_table:
        return 0
    text, leads = table(runs)
    about = "\n".join(f"- {name}: {MIXES[name].says}" for name in args.mixes)
    seeds = ", ".join(map(str, args.seeds))
    text = f"# League\n\nSeeds {seeds}; 8 × h100-llama3-8b (2 for the catalog), step by step.\n\n{about}\n\n{text}"
    args.out.write_text(json.dumps(runs, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(text)
    print(text)
    return 0 if leads else 1


if __name__ == "__main__":
    sys.exit(main())
