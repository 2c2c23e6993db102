"""Whether capacity is up before the peak, and what that costs. A day of ServeGen's traffic on a pool that scales
itself.

Four variants of the same Scaler as production's (with and without forecast and warm pool) and an oracle, which knows
every request beforehand and holds the fewest replicas that keep the promise. Replicas take 90 s to start. The forecast
has seen the eight days before, each with other arrivals; the day itself is the ninth, and unseen.

Rates are those of ServeGen's m-small, all clients together, on nine days in a row (benchmarks/data; Alibaba,
Apache-2.0, arXiv 2505.09999), shared among its clients as on its second day. Each client keeps its own burstiness while
its rate is scaled down, so bursts last longer than they really do: harder than reality. Lengths are Azure's
conversations times four: long chats. In virtual time: the result is the same on any machine.
"""

import argparse
import csv
import json
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from math import inf
from pathlib import Path

import msgspec
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.report import machine

from headgate.config.gateway import GatewayConfig
from headgate.config.scale import ScaleConfig
from headgate.garbage import rarely_collected
from headgate.machine.profile import PROFILES
from headgate.model.lane import LANES
from headgate.policy.scaling.forecast import Forecast
from headgate.report import svg
from headgate.report.results import Target
from headgate.sim.fleet import dilated
from headgate.sim.scaling import report
from headgate.sim.scaling.autoscale import MONDAY, learn
from headgate.sim.scaling.compare import BOTH, ORACLE, VARIANTS, ScaledDay, Setting, one, with_foresight
from headgate.workload import servegen
from headgate.workload.arrival import Arrival
from headgate.workload.finish import WorkloadFinish
from headgate.workload.spec import parse

HERE = Path(__file__).resolve().parent
DAYS = HERE / "data" / "servegen_m-small_days.csv"
MODEL, DAY, DAY_S, WINDOW_S = "m-small", 8, 86_400.0, 600.0
RATE = 2.0
"""Mean requests a second on the day."""
LENGTHS = f"servegen:{MODEL},lengths=azure-conv,length_scale=4,max_prompt=8192,unstreamed=0.35"
PROFILE, SLOWER, SLOTS, COLD_START_S = "h100-llama3-8b", 4.0, 4, 90.0
WITHIN_S = 5.0
"""TTFT p99 that is promised: the slow lane's default."""
MORE = 0.15
"""Replica-hours that forecast and warm pool may cost more than the oracle."""
SCALE = ScaleConfig(min=4, max=120, warm=3)
AT_FIRST = 30
CSS = (
    "svg{background:#fff;font:11px sans-serif}.grid{stroke:#ddd;fill:none}text{fill:#444}"
    ":root{--c0:#8a8a8a;--c1:#1f77b4;--c2:#ff7f0e;--c3:#2ca02c;--c4:#111;--c5:#9467bd;--critical:#d62728}"
)


def config() -> GatewayConfig:
    """The default lanes; long chats are promised their first token a second later than usual ones."""
    lanes = [replace(lane, ttft_target_s=3.0) if lane.name == "slow" else lane for lane in LANES.values()]
    return GatewayConfig(lanes=tuple(lanes))


def rates() -> list[list[float]]:
    """Requests a second, by day and ten minutes."""
    with DAYS.open() as file:
        return [[float(rate) for rate in row] for row in csv.reader(file)]


def arrivals(day: int, seed: int) -> Iterator[Arrival]:
    known = rates()
    own = [0.0] * len(known[day])
    for client in servegen.clients(MODEL):
        for begin, rate, _, _ in client.windows:
            own[int(begin / WINDOW_S)] += rate
    factor = RATE / (sum(known[DAY]) / len(known[DAY]))

    def windows() -> Iterator[Arrival]:
        for number, rate in enumerate(known[day]):
            if rate and own[number]:
                begin = number * WINDOW_S
                scale = factor * rate / own[number]
                yield from servegen.day(MODEL, f"{seed}/{day}/{number}", scale, begin, begin + WINDOW_S)

    return map(WorkloadFinish(parse(LENGTHS)[0], "", random.Random(f"{seed}/{day}")), windows())


def history() -> dict[str, object]:
    """What a gateway would know that had been there for the eight days before."""
    forecast = Forecast()
    for day in range(DAY):
        learn(forecast, config(), arrivals(day, seed=100 + day), MONDAY + day * DAY_S, DAY_S)
    return forecast.to_dict()


def setting(known: dict[str, object], seed: int) -> Setting:
    rows = list(arrivals(DAY, seed))
    return Setting(
        config=config(),
        scale=SCALE,
        member=replace(dilated(PROFILES[PROFILE], SLOWER), slots=SLOTS, cold_start_s=COLD_START_S),
        arrivals=lambda: rows,
        targets=(Target("ttft", WITHIN_S, None, 0.99),),
        history=known,
        at_first=AT_FIRST,
        seed=seed,
        wall_s=MONDAY + DAY * DAY_S,
    )


def measured(name: str, known: dict[str, object], seed: int) -> ScaledDay | None:
    """In a process of its own."""
    with rarely_collected():
        made = setting(known, seed)
        if name == ORACLE:
            return with_foresight(made, lambda text: print(f"seed {seed}: {text}", flush=True))
        return one(made, name)


def dearer(known: dict[str, object], seed: int) -> tuple[float, bool]:
    """Than the oracle, with other arrivals; and whether the promise is kept. In a process of its own."""
    both, best = measured(BOTH, known, seed), measured(ORACLE, known, seed)
    assert both is not None
    return (inf if best is None else both.replica_hours / best.replica_hours - 1), both.kept


def before_the_peak(case: ScaledDay) -> tuple[float, float]:
    """How far, at the busiest hour of the days before, replicas that serve were towards what that hour took; and when,
    in hours, that hour began."""
    known = rates()
    mean = [sum(row[slot] for row in known[:DAY]) / DAY for slot in range(len(known[0]))]
    hour = max(range(24), key=lambda hour: sum(mean[6 * hour : 6 * hour + 6]))
    samples = case.outcomes.samples
    at_begin = [sample.serving for sample in samples if hour * 3600 <= sample.at_s < hour * 3600 + 60]
    within = [sample.serving for sample in samples if hour * 3600 <= sample.at_s < (hour + 1) * 3600]
    return at_begin[0] / (sum(within) / len(within)), float(hour)


def plots(cases: list[ScaledDay]) -> str:
    """One file, light, that needs no page around it."""
    parts = [report.replicas_plot(cases), report.p99_plot(cases, WITHIN_S)]
    height = svg.HEIGHT
    names = "".join(
        f'<text x="{60 + 100 * index}" y="14" style="fill:{svg.colour(index)};font-weight:bold">{case.name}</text>'
        for index, case in enumerate(cases)
    )
    inner = "".join(
        part.replace("<svg ", f'<svg x="0" y="{30 + index * (height + 34)}" width="{svg.WIDTH}" height="{height}" ', 1)
        + f'<text x="{svg.LEFT}" y="{26 + index * (height + 34)}">{title}</text>'
        for index, (part, title) in enumerate(zip(parts, ("replicas", "TTFT p99, half hours"), strict=True))
    )
    total = 30 + 2 * (height + 34)
    size = f'viewBox="0 0 {svg.WIDTH} {total}" width="{svg.WIDTH}" height="{total}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{CSS}</style>{names}{inner}</svg>\n'


def keep(out: Path, cases: list[ScaledDay], facts: dict[str, object], verdicts: dict[str, bool]) -> None:
    data = {"facts": facts, "verdicts": verdicts, "cases": [report.as_dict(case) for case in cases]}
    out.with_suffix(".json").write_text(json.dumps(msgspec.to_builtins(data), indent=1, ensure_ascii=False) + "\n")
    out.with_suffix(".svg").write_text(plots(cases))
    lines = ["# A day of ServeGen traffic, with 90 s cold starts", "", "Written by `benchmarks/day.py`.", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", f"| {' | '.join(report.HEADINGS)} |", f"|---|{'--:|' * (len(report.HEADINGS) - 1)}"]
    lines += [f"| {' | '.join(row)} |" for row in report.rows(cases)]
    lines += ["", "![replicas and TTFT p99 over the day](day.svg)", ""]
    lines += [f"- {'pass' if good else 'FAIL'}: {name}" for name, good in verdicts.items()]
    both = next(case for case in cases if case.name == BOTH)
    lines += ["", "What it decided first, with forecast and warm pool:", ""]
    lines += [f"- {line}" for line in report.decisions(both, 12)]
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[*range(1, 9)],
        help="arrivals: all variants on the first, two on others",
    )
    parser.add_argument("--only", action="append", choices=[*VARIANTS, ORACLE], help="keeps nothing")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "day.json")
    args = parser.parse_args()
    console = Console(highlight=False)
    known = history()
    seed, *others = args.seeds
    names = args.only or [ORACLE, *VARIANTS]
    with ProcessPoolExecutor(args.jobs) as pool:
        futures = {name: pool.submit(measured, name, known, seed) for name in names}
        more_of = {other: pool.submit(dearer, known, other) for other in others if not args.only}
        found = {name: future.result() for name, future in futures.items()}
        elsewhere = {other: future.result() for other, future in more_of.items()}
    cases = [case for name in (*VARIANTS, ORACLE) if (case := found.get(name)) is not None]
    console.print(report.table(cases))
    if args.only:
        return 0
    best, both = found[ORACLE], found[BOTH]
    assert both is not None
    if best is None:
        console.print("not even the oracle keeps what is promised")
        return 1
    ready, hour = before_the_peak(both)
    more = both.replica_hours / best.replica_hours - 1
    verdicts = {
        f"forecast and warm pool keep TTFT p99 within {WITHIN_S:g} s": both.kept,
        f"with {more:+.1%} replica-hours against the oracle, at most {MORE:+.0%}": more <= MORE,
        f"at {hour:.0f}:00, as the usual peak begins, {ready:.0%} of what it takes serve, at least 90 %": ready >= 0.9,
    }
    if elsewhere:
        costs = [cost for cost, _ in elsewhere.values()]
        told = f"{min(costs):+.1%} to {max(costs):+.1%}, at most {MORE:+.0%}"
        on = f"seeds {others[0]} to {others[-1]}"
        verdicts |= {
            f"so they do on {len(others)} other days of arrivals ({on})": all(kept for _, kept in elsewhere.values()),
            f"on those with {told}": max(costs) <= MORE,
        }
    facts: dict[str, object] = {
        "headgate": machine()["headgate"],
        "requests": len(both.outcomes.simulated.results),
        "replicas": f"{PROFILE} {SLOWER:g} times as slow, {SLOTS} requests each, {COLD_START_S:g} s to start",
        "scale": f"min {SCALE.min}, max {SCALE.max}, warm {SCALE.warm}, target {SCALE.utilisation_target:.0%}",
        "forecast": f"{DAY} days before, quantile {SCALE.forecast_quantile:g}",
        "promised": f"TTFT p99 within {WITHIN_S:g} s of all who came; whoever is turned away counts as late",
        "cost": "replica-hours from start to end: starting, parked and draining ones included",
        "seed": seed,
        "with other seeds": ", ".join(f"{other}: {cost:+.1%}" for other, (cost, _) in elsewhere.items()) or "not tried",
    }
    for name, good in verdicts.items():
        console.print(f"{'pass' if good else 'FAIL'}: {name}")
    keep(args.out, cases, facts, verdicts)
    console.print(f"wrote {args.out.with_suffix('')}.json, .md and .svg")
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
