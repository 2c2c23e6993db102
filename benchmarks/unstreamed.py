"""Whether anything goes wrong because answers are not streamed. A healthy fleet, with any share of unstreamed requests.

The first token of an answer in one piece is not heard, and most engines do not say when it was there. Nothing that is
made of first tokens (health, found limits, promises) may take that for slowness: with any share of such requests no
replica is put out, no alert is raised, and the found limits are those of the same requests streamed.

    python benchmarks/unstreamed.py            an hour of virtual time of each case and share: half an hour
    python benchmarks/unstreamed.py --resume   the same from where it was broken off: each simulation is kept
    python benchmarks/unstreamed.py --quick    five minutes of each, and keeps no results

The same live, over sockets: benchmarks/unstreamed_live.py.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks.unstreamed_cases import CASES, Case

from headgate.config.gateway import GatewayConfig
from headgate.gateway.account import Account
from headgate.machine.profile import Profile
from headgate.measure.figures import Figures
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.promises.alert import Severity
from headgate.publish.alarms import Alarms
from headgate.report.results import KINDS
from headgate.sim.fleet import SimFleet
from headgate.sim.gateway import SimTicket
from headgate.sim.run import Level, run
from headgate.sim.world import World

QUICK_S = 300.0
WITHIN = 0.1
"""How far found limits may be from those of the same requests, all of them streamed."""
START = 64.0
"""What a found limit starts at."""
TOP = (
    "# Unstreamed requests in a healthy fleet",
    "",
    "Written by `benchmarks/unstreamed.py`. Limits: the median over seeds of the mean over time and replicas, and of",
    "the mean over replicas at the end, each within 10 % of the same requests all streamed; then the lowest and the",
    "highest at the end. A limit that is in use is cut now and then to see whether that helps, so the end of one run",
    "says little.",
    "",
    "| case | minutes | unstreamed | seeds | requests | refused | ejections | alerts | limit | at the end | range | |",
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
)
TUPLES = ("alerts", "limits", "prefill_token_ms")
RESULTS = Path(__file__).resolve().parent / "results" / "unstreamed.json"


@dataclass
class Watching:
    """The gateway's own figures and alarms, over what is simulated. An Onlooker."""

    config: GatewayConfig
    raised: list[str] = field(default_factory=list)
    lowest: float = START
    """Limit that any replica had at any time."""
    limits_s: float = 0.0
    """Limits over time, added up; of all replicas."""
    looks: int = 0
    prefill_token_s: tuple[float, ...] = ()
    """By replica, as measured for routing, at the end."""
    _account: Account = field(default_factory=Account)

    def begin(self, world: World, dispatcher: Dispatcher) -> None:
        self._world, self._dispatcher = world, dispatcher
        self._figures = Figures(dispatcher.lanes, self.config.observe, 0.0)
        self._alarms = Alarms(self._figures, dispatcher, self._account, self.config.observe, lambda: world.now)
        world.at(1.0, self._look)

    def _look(self, _: object) -> None:
        now = self._world.now
        self._figures.take(self._account.fresh(), now)
        for change in self._alarms.look(now):
            if change.severity is not Severity.OK:
                self.raised.append(f"{now:.0f} s: {change.lane} {change.alert}: {change.message}")
        loads = self._dispatcher.index.loads.values()
        self.limits_s += fmean(load.limit for load in loads)
        self.looks += 1
        self.lowest = min([self.lowest, *(load.limit for load in loads)])
        self.prefill_token_s = tuple(load.prefill_token_s for load in loads)
        self._world.at(now + 1.0, self._look)

    def closed(self, ticket: SimTicket, outcome: Outcome, now: float) -> None:
        self._account.open()
        self._account.close(record_of(ticket, outcome, now))


def record_of(ticket: SimTicket, outcome: Outcome, now: float) -> Record:
    """As gateway/gateway.py closes it."""
    request, at = ticket.request, ticket.arrival.at_s
    first_at = ticket.first_at if request.stream else None
    if ticket.told_s is not None:
        first_at = ticket.since + ticket.told_s
    each, placed = ticket.said // request.choices, ticket.replica is not None and outcome.kind != "refused"
    first_s = (now if first_at is None else first_at) - ticket.since if placed else 0.0
    stream_s = 0.0 if first_at is None else now - first_at
    return Record(
        id=request.id,
        at=at,
        lane=request.lane,
        tenant=request.tenant,
        tier=request.tier,
        model=request.model,
        replica=None if ticket.replica is None else ticket.replica.id,
        stream=request.stream,
        outcome=outcome,
        attempts=ticket.attempts,
        cold=ticket.cold,
        prompt_tokens=ticket.arrival.prompt_tokens,
        output_tokens=ticket.said,
        choices=request.choices,
        accept_s=max(0.0, now - at - ticket.queue_s - ticket.retry_s - first_s - stream_s),
        queue_s=ticket.queue_s,
        retry_s=ticket.retry_s,
        first_s=first_s,
        stream_s=stream_s,
        ttft_s=None if first_at is None else first_at - at,
        tpot_s=stream_s / (each - 1) if first_at is not None and each > 1 else None,
        e2e_s=now - at,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    case: str
    share: float
    seed: int
    requests: int
    refused: int
    ejections: int
    alerts: tuple[str, ...]
    limits: tuple[float, ...]
    """By replica, at the end."""
    mean_limit: float
    """Over time and replicas."""
    lowest: float
    prefill_token_ms: tuple[float, ...]


def simulated(
    case: Case,
    share: float,
    level: Level = "gateway",
    slowed: Profile | None = None,
    seed: int | None = None,
) -> Found:
    """`slowed`: the first replica is this one instead. `seed` None: the case's first."""
    config, seed = GatewayConfig(), case.seeds[0] if seed is None else seed
    members = tuple(kind.member for kind in case.fleet)
    if slowed is not None:
        first = members[0]
        members = (replace(first, profile=slowed, count=1), replace(first, count=first.count - 1), *members[1:])
    watching = Watching(config)
    made = run(config, case.arrivals(share, seed), SimFleet(members=members), seed, level, onlooker=watching)
    refused = int((made.results.kind == KINDS.index("refused")).sum())
    return Found(
        case=case.name,
        share=share,
        seed=seed,
        requests=len(made.results.kind),
        refused=refused,
        ejections=made.ejections,
        alerts=tuple(watching.raised),
        limits=tuple(round(limit, 1) for limit in made.limits),
        mean_limit=round(watching.limits_s / watching.looks, 2),
        lowest=round(watching.lowest, 1),
        prefill_token_ms=tuple(round(1e3 * each, 4) for each in watching.prefill_token_s),
    )


def median_limits(found: Sequence[Found]) -> tuple[float, float]:
    """Over seeds: of the mean over time and replicas, and of that over replicas at the end."""
    return median(one.mean_limit for one in found), median(fmean(one.limits) for one in found)


def flaws(found: Sequence[Found], streamed: Sequence[Found]) -> list[str]:
    """What is wrong with the same requests under each seed, or not as if all had been streamed."""
    said = []
    ejections, alerts = sum(one.ejections for one in found), [alert for one in found for alert in one.alerts]
    if ejections:
        said.append(f"{ejections} ejections")
    if alerts:
        said.append(f"{len(alerts)} alerts, the first: {alerts[0]}")
    for limit, usual, when in zip(median_limits(found), median_limits(streamed), ("", " at the end"), strict=True):
        if abs(limit / usual - 1) > WITHIN and not (found[0].share == 1.0 and limit >= START):
            said.append(f"limits of {limit:.0f}{when}, and {usual:.0f} where all is streamed")
    refused, usual_refused = sum(one.refused for one in found), sum(one.refused for one in streamed)
    if refused > usual_refused + 0.01 * sum(one.requests for one in found):
        said.append(f"{refused} refused, and {usual_refused} where all is streamed")
    return said


Done = dict[tuple[str, float, int], Found]


def kept(path: Path, cases: Sequence[Case]) -> Done:
    """What a run that was broken off has found of these very cases."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    same = {case.name for case in cases if data.get("cases", {}).get(case.name) == repr(case)}
    runs = [Found(**{**one, **{name: tuple(one[name]) for name in TUPLES}}) for one in data.get("runs", ())]
    return {(one.case, one.share, one.seed): one for one in runs if one.case in same}


def line(case: Case, share: float, found: Sequence[Found], wrong: Sequence[str]) -> str:
    limits, (average, end) = [limit for one in found for limit in one.limits], median_limits(found)
    return (
        f"| {case.name} | {case.for_s / 60:g} | {share:.0%} | {len(found)} | {sum(one.requests for one in found)} "
        f"| {sum(one.refused for one in found)} | {sum(one.ejections for one in found)} "
        f"| {sum(len(one.alerts) for one in found)} | {average:.0f} | {end:.0f} | {min(limits):g} – {max(limits):g} "
        f"| {'; '.join(wrong) or 'pass'} |"
    )


def write(out: Path, cases: Sequence[Case], done: Done) -> int:
    """What there is so far. How many shares of cases are not as they should be."""
    lines, missed, verdicts = list(TOP), 0, []
    for case in cases:
        for share in case.shares:
            found = [done[key] for seed in case.seeds if (key := (case.name, share, seed)) in done]
            streamed = [done[key] for seed in case.seeds if (key := (case.name, 0.0, seed)) in done]
            if len(found) == len(streamed) == len(case.seeds):
                wrong = flaws(found, streamed)
                missed += bool(wrong)
                verdicts.append({"case": case.name, "share": share, "limits": median_limits(found), "flaws": wrong})
                lines.append(line(case, share, found, wrong))
    lines += ["", *(f"- {case.name}: `{case.workload}`; {case.about}" for case in cases)]
    data = {
        "cases": {case.name: repr(case) for case in cases},
        "verdicts": verdicts,
        "runs": [asdict(one) for one in done.values()],
    }
    out.write_text(json.dumps(data, indent=1) + "\n")
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    return missed


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="five minutes of each; keeps no results")
    options.add_argument("--only", default="", help="cases whose name has this in it")
    options.add_argument("--jobs", type=int, default=2, help="simulations at the same time")
    options.add_argument("--resume", action="store_true", help="go on where a run was broken off")
    options.add_argument("--out", type=Path, help="a JSON file instead of results/unstreamed.json")
    args = options.parse_args()
    known = [replace(case, for_s=QUICK_S, idle=None) for case in CASES] if args.quick else list(CASES)
    cases = [case for case in known if args.only in case.name]
    with tempfile.TemporaryDirectory() as folder:
        out = args.out or (Path(folder) / "quick.json" if args.quick else RESULTS)
        done = kept(out, known)
        if not args.resume:
            done = {key: one for key, one in done.items() if key[0] not in {case.name for case in cases}}
        wanted = [(case, share, seed) for case in cases for share in case.shares for seed in case.seeds]
        missing = [each for each in wanted if (each[0].name, *each[1:]) not in done]
        with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
            runs = [pool.submit(simulated, case, share, seed=seed) for case, share, seed in missing]
            for made in as_completed(runs):
                found = made.result()
                done[found.case, found.share, found.seed] = found
                said = f"{found.ejections} ejections, {len(found.alerts)} alerts, limits {found.limits}"
                print(f"{found.case}, {found.share:.0%}, seed {found.seed}: {said}", flush=True)
                write(out, known, done)
        missed = write(out, known, done)
        print(out.with_suffix(".md").read_text())
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
