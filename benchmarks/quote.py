"""Measures how often requests keep the p99 that they were told, in virtual time.

The dispatcher tells every request once when its first token is expected (policy/promises/quotes.py). A run counts, for
each lane in which something was told, how many kept their p99, and how wide what was told is. Settings were chosen on
seeds 1 to 6; the seeds here were not looked at for that. Each run is kept in `.bench/quotes`, so that `--resume` goes
on after an interruption.
"""

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks.league_mix import MIXES
from benchmarks.tail_mix import EMULATED, LANES

from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import PROFILES
from headgate.model.outcome import Outcome
from headgate.model.record import QuoteTold
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.promises.quotes import judged
from headgate.sim.fleet import Failure, SimFleet, SimGroup, dilated
from headgate.sim.gateway import SimTicket
from headgate.sim.run import Level, run
from headgate.sim.world import World
from headgate.workload.arrival import Arrival
from headgate.workload.load import Workload

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (21, 22, 23)
LOADS = (0.5, 1.0, 1.5, 2.0)
PROFILE = PROFILES["h100-llama3-8b"]
LEAST, LEAST_KEPT, MOST_KEPT = 5000, 0.985, 0.995
"""From this many judged requests on, a lane's kept share has to be within these."""
SHOWN = 30
"""Judged requests below which a run is left out of the tables."""
APART_S = 30.0
"""Misses of what was told before a death, or this long after it, are shown apart."""
TELLS = 0.5
"""Share of unstreamed answers whose engine reports when their first token was there; the others are not judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    says: str
    replicas: int
    seconds: float
    level: Level = "gateway"
    mix: str = "tail"
    slow: float = 1.0
    """How many times as slow as the profile the machines are."""
    slots: int | None = None
    loads: tuple[float, ...] = LOADS
    dies: bool = False
    """One replica dies in the middle, and is back a minute later."""

    def arrivals(self, load: float, seed: int) -> Iterator[Arrival]:
        if self.mix == "tail":
            return iter(EMULATED.workload(load, self.seconds).arrivals(seed))
        if self.mix == "own":
            return iter(Workload(CHATS, rate=load * 30.0, duration_s=self.seconds).arrivals(seed))
        return iter(MIXES[self.mix].play(load, seed, self.seconds))

    def fleet(self) -> SimFleet:
        group = replace(dilated(PROFILE, self.slow), count=self.replicas, slots=self.slots, tells=TELLS)
        members: tuple[SimGroup, ...] = (group,)
        if self.mix == "own":  # two generations of machines, the older at a third of the speed
            old = replace(dilated(PROFILE, 3.0), count=self.replicas, slots=16, tells=TELLS)
            members = (replace(group, slots=32), old)
        failures = (Failure(1, self.seconds / 2, self.seconds / 2 + 60.0),) if self.dies else ()
        return SimFleet(members=members, failures=failures)


CHATS = (
    "chat=poisson:rate=24,prompt=50-2500,output=20-200,unstreamed=0.33; "
    "code=azure-code:rate=6,time_scale=4,start=1800,max_prompt=7000,max_output=400,unstreamed=0.33"
)
"""Lanes by length, as a gateway chooses them where clients name none."""
HOUR_S = 3600.0
CASES = {
    case.name: case
    for case in (
        Case(
            name="tail mix",
            says="an hour of benchmarks/tail_mix.py's chats, bursts of code, documents and batch, a third unstreamed; "
            "4 × H100 at half speed, 32 slots",
            replicas=4, slow=2.0, slots=32, seconds=HOUR_S,
        ),
        Case(
            name="tail mix, a death",
            says="the same; one of the four dies after half an hour, and is back after a minute",
            replicas=4, slow=2.0, slots=32, seconds=HOUR_S, loads=(0.5, 1.0), dies=True,
        ),
        Case(
            name="tail mix, steps",
            says="the same for 20 minutes, every engine step by step with its own Batcher",
            replicas=4, slow=2.0, slots=32, seconds=1200.0, level="step", loads=(1.0, 2.0),
        ),
        Case(
            name="two generations",
            says="chats and bursts of code without a lane of their own, a third unstreamed; 2 × H100 and 2 at a third "
            "of its speed",
            replicas=2, seconds=1800.0, mix="own",
        ),
        Case(
            name="shared prefix",
            says="150 beginnings of 6 144 tokens, prompts of 7 200, answers of 100; 8 × H100",
            replicas=8, seconds=600.0, mix="shared prefix",
        ),
        Case(
            name="code",
            says="64 repositories of 3 to 9 thousand tokens, prompts of 500 to 3 000 more; 8 × H100",
            replicas=8, seconds=600.0, mix="code",
        ),
    )
}  # fmt: skip


class Told:
    """What requests were told, and what became of them."""

    def __init__(self) -> None:
        self.judged: dict[str, list[tuple[QuoteTold, float | None, float, float]]] = defaultdict(list)
        """By lane in which it was told: the quote, the time to first token, when the request arrived, and when its
        first token came or it was over without."""
        self.nothing: dict[str, int] = defaultdict(int)
        """Requests refused before they were told anything, by lane."""

    def begin(self, world: World, dispatcher: Dispatcher) -> None:
        """There is nothing to prepare."""

    def closed(self, ticket: SimTicket, outcome: Outcome, now: float) -> None:
        request, quote, ttft_s = ticket.request, ticket.quote, None
        if quote is None:
            self.nothing[request.lane] += 1
            return
        if request.stream and ticket.first_at is not None:
            ttft_s = ticket.first_at - request.arrived
        elif outcome is Outcome.COMPLETED and ticket.told_s is not None:
            ttft_s = ticket.since + ticket.told_s - request.arrived
        over = now if ttft_s is None else request.arrived + ttft_s
        became = judged(quote, ttft_s, now - request.arrived, outcome)
        assert became is not None
        self.judged[quote.lane].append((became, ttft_s, request.arrived, over))


def at(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def loss(ttft_s: float, p99_s: float) -> float:
    """The pinball loss of a p99: the smaller, the nearer it is to the truth."""
    return 0.99 * (ttft_s - p99_s) if ttft_s > p99_s else 0.01 * (p99_s - ttft_s)


def figures(told: Told, death_at: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for lane, rows in told.judged.items():
        quoted = [row for row in rows if row[0].kept is not None]
        with_p99 = [row for row in rows if row[0].p99_s is not None]
        one: dict[str, Any] = {
            "requests": len(rows) + told.nothing.get(lane, 0),
            "told": len(rows),
            "told_p99": len(with_p99),
            "judged": len(quoted),
            "kept": sum(bool(row[0].kept) for row in quoted),
            "lost": sum(row[0].kept is False and row[1] is None for row in quoted),
        }
        firsts = [(row[1], row[0]) for row in quoted if row[1] is not None]
        if firsts:
            times = [ttft_s for ttft_s, _ in firsts]
            real = at(times, 0.99)
            one["ttft_p50_s"], one["ttft_p99_s"] = at(times, 0.5), real
            one["quoted_p99_s"] = statistics.median(quote.p99_s or 0.0 for _, quote in firsts)
            one["quoted_expected_over_ttft"] = at(
                [quote.expected_s / max(1e-4, ttft_s) for ttft_s, quote in firsts], 0.5
            )
            own = statistics.fmean(loss(ttft_s, quote.p99_s or 0.0) for ttft_s, quote in firsts)
            one["loss_over_constant"] = own / max(1e-9, statistics.fmean(loss(ttft_s, real) for ttft_s in times))
        if death_at is not None:
            apart = [row for row in quoted if row[2] <= death_at + APART_S and row[3] >= death_at]
            one["after_death"] = {"judged": len(apart), "missed": sum(not row[0].kept for row in apart)}
        found[lane] = one
    return found


def place(case: Case, load: float, seed: int, folder: Path) -> Path:
    return folder / f"{case.name}-{load:g}-{seed}.json".replace(" ", "_")


def measure(case: Case, load: float, seed: int, folder: Path, resume: bool) -> dict[str, Any]:
    kept = place(case, load, seed, folder)
    if resume and kept.exists():
        old: dict[str, Any] = json.loads(kept.read_text())
        return old
    began, told = time.process_time(), Told()
    run(GatewayConfig(), case.arrivals(load, seed), case.fleet(), seed, case.level, onlooker=told)
    death_at = case.seconds / 2 if case.dies else None
    found = {"case": case.name, "load": load, "seed": seed, "lanes": figures(told, death_at)}
    found["cpu_s"] = round(time.process_time() - began, 1)
    kept.write_text(json.dumps(found) + "\n")
    return found


# -- the tables -------------------------------------------------------------------------------------------


def rows(case: Case, runs: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """The rows of a case's table, and what is not within the bounds."""
    lines: list[str] = []
    wrong: list[str] = []
    for load in case.loads:
        for lane in LANES:
            found = [run["lanes"][lane] for run in runs if run["load"] == load and lane in run["lanes"]]
            some = [one for one in found if one["judged"] >= SHOWN]
            if not some:
                continue
            shares = [one["kept"] / one["judged"] for one in some]
            for share, one in zip(shares, some, strict=True):
                if one["judged"] >= LEAST and not LEAST_KEPT <= share <= MOST_KEPT:
                    wrong.append(f"{case.name} {load:g}× {lane}: {share:.2%} of {one['judged']}")
            if case.dies and not all("after_death" in one for one in some):
                continue
            numbers = ", ".join(f"{share:.2%}" for share in shares)
            judged_, total = sum(one["judged"] for one in some), sum(one["requests"] for one in found)
            timed = [one for one in some if "ttft_p99_s" in one]
            mean = {
                name: statistics.fmean(one[name] for one in timed)
                for name in (
                    "ttft_p50_s", "ttft_p99_s", "quoted_p99_s", "quoted_expected_over_ttft", "loss_over_constant"
                )
            }  # fmt: skip
            apart = ""
            if case.dies:
                apart = f" {sum(one['after_death']['missed'] for one in some)} of "
                apart += f"{sum(one['after_death']['judged'] for one in some)} |"
            lines.append(
                f"| {load:g}× | {lane} | {numbers} | {judged_:,} | {sum(one['told_p99'] for one in found) / total:.0%}"
                f" | {mean['quoted_p99_s']:.2f} | {mean['ttft_p99_s']:.2f} | {mean['loss_over_constant']:.2f} | "
                f"{mean['quoted_expected_over_ttft']:.2f} | {sum(one['lost'] for one in some)} |{apart}"
            )
    return lines, wrong


def table(runs: list[dict[str, Any]]) -> tuple[str, bool]:
    text = [
        "# Quotes",
        "",
        "Share of requests that kept the p99 time to first token that they were told; seeds "
        f"{', '.join(map(str, SEEDS))}. Refused or failed after it was told: not kept. Bound, for each seed with at "
        "least "
        f"{LEAST} judged requests: {LEAST_KEPT:.1%} to {MOST_KEPT:.1%}.",
        "",
        "`told`: share of all requests, refused ones included, that were told a p99; the others wait where too few",
        "were seen or more than one in a hundred is lost, or were refused at once. `p99 told`: the median of those.",
        "`real`: the 99th percentile of the judged. `loss`: pinball loss over that of this percentile, told to every",
        "request of the lane by one who knows it beforehand: below 1 the quotes are better than that. `expected`:",
        "median of what was expected over what came. `lost`: told, and refused or failed. Runs with fewer than",
        f"{SHOWN} judged requests of a lane are left out.",
    ]
    all_wrong: list[str] = []
    for case in CASES.values():
        own = [run for run in runs if run["case"] == case.name]
        if not own:
            continue
        lines, wrong = rows(case, own)
        all_wrong += wrong
        more = (" missed of those told by 30 s after the death |", "--:|") if case.dies else ("", "")
        text += [
            "",
            f"## {case.name}",
            "",
            f"{case.says[0].upper()}{case.says[1:]}.",
            "",
            f"| load | lane | kept | judged | told | p99 told, s | real, s | loss | expected | lost |{more[0]}",
            f"|--:|---|---|--:|--:|--:|--:|--:|--:|--:|{more[1]}",
            *lines,
        ]
    verdict = ["", "## Outside the bound", "", *([f"- {one}" for one in all_wrong] or ["None."])]
    return "\n".join([*text, *verdict]) + "\n", not all_wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    parser.add_argument("--resume", action="store_true", help="keep runs that are there")
    parser.add_argument("--only-kept", action="store_true", help="make the tables of the runs that are there")
    parser.add_argument("--no-table", action="store_true", help="only run, for a process beside another")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "quote.json")
    args = parser.parse_args()
    folder = ROOT / ".bench" / "quotes"
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for name in args.cases:
        for load in [load for load in CASES[name].loads if load in args.loads]:
            for seed in args.seeds:
                if args.only_kept and not place(CASES[name], load, seed, folder).exists():
                    continue
                found = measure(CASES[name], load, seed, folder, args.resume or args.only_kept)
                runs.append(found)
                kept = {
                    lane: f"{one['kept'] / max(1, one['judged']):.2%} of {one['judged']}"
                    for lane, one in found["lanes"].items()
                }
                print(f"{name} {load:g}x seed {seed}: {kept} ({found['cpu_s']} s CPU)", flush=True)
    if args.no_table:
        return 0
    text, held = table(runs)
    args.out.write_text(json.dumps(runs, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(text)
    print(text)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
