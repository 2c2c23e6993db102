"""Does anything go wrong because answers are not streamed? A healthy fleet, with any share of unstreamed requests.

Of an answer in one piece nobody hears the first token, and most engines do not say when it was there. Nothing that is
made of first tokens (health, found limits, promises) may take that for slowness: with any share of such requests no
replica is put out, no alert is raised, and the found limits are those of the same requests streamed.

    python benchmarks/unstreamed.py            an hour of virtual time for each share: some minutes
    python benchmarks/unstreamed.py --quick    five minutes of each, and keeps no results

The same live, over sockets: benchmarks/unstreamed_live.py.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from headgate.gateway.account import Account
from headgate.model.gateway_config import GatewayConfig
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.observe.alarms import Alarms
from headgate.observe.figures import Figures
from headgate.policy.alert import Severity
from headgate.policy.dispatcher import Dispatcher
from headgate.policy.profile import PROFILES, Profile
from headgate.report.results import KINDS
from headgate.sim.fleet import Fleet, Member
from headgate.sim.gateway import Ticket
from headgate.sim.run import Level, run
from headgate.sim.world import World
from headgate.workload.arrival import Arrival
from headgate.workload.load import load

SHARES = (0.0, 0.3, 0.6, 0.9, 0.95, 1.0)
HOUR_S = 3600.0
WITHIN = 0.1
"""How far found limits may be from those of the same requests, all of them streamed."""
START = 64.0
"""What a found limit starts at."""
RESULTS = Path(__file__).resolve().parent / "results" / "unstreamed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    workload: str
    """Without the share."""
    replicas: int = 4
    profile: str = "h100-llama3-8b"
    tells: bool = False
    seed: int = 1


CASES = (
    Case(name="answers of 300 tokens", workload="poisson:rate=20,prompt=50-800,output=300"),
    Case(name="answers of 1 to 400 tokens", workload="poisson:rate=20,prompt=20-2000,output=1-400", seed=2),
    Case(name="two replicas, sessions", workload="poisson:rate=8,prompt=100-3000,output=20-300,sessions=8", replicas=2),
    Case(name="short answers", workload="poisson:rate=30,prompt=100-1500,output=1-12", seed=3),
    Case(name="busy", workload="poisson:rate=45,prompt=50-800,output=300", seed=4),
    Case(name="the engine tells", workload="poisson:rate=20,prompt=50-800,output=300", tells=True, seed=5),
)


@dataclass
class Watching:
    """The gateway's own figures and alarms, over what is simulated. An Onlooker."""

    config: GatewayConfig
    raised: list[str] = field(default_factory=list)
    lowest: float = START
    """Limit that any replica had at any time."""
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
        loads = self._dispatcher.fleet.loads.values()
        self.lowest = min([self.lowest, *(load.limit for load in loads)])
        self.prefill_token_s = tuple(load.prefill_token_s for load in loads)
        self._world.at(now + 1.0, self._look)

    def closed(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        self._account.open()
        self._account.close(record_of(ticket, outcome, now))


def record_of(ticket: Ticket, outcome: Outcome, now: float) -> Record:
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
    requests: int
    refused: int
    ejections: int
    alerts: tuple[str, ...]
    limits: tuple[float, ...]
    """By replica, at the end."""
    lowest: float
    prefill_token_ms: tuple[float, ...]


def arrivals(case: Case, share: float, for_s: float) -> Iterator[Arrival]:
    return load(f"{case.workload},unstreamed={share:g}", seed=case.seed, duration_s=for_s)


def simulated(case: Case, share: float, for_s: float, level: Level = "gateway", slowed: Profile | None = None) -> Found:
    """`slowed`: the first replica is this one instead."""
    config = GatewayConfig()
    usual = Member(profile=PROFILES[case.profile], count=case.replicas, find_slots=True, tells=case.tells)
    members: tuple[Member, ...] = (usual,)
    if slowed is not None:
        members = (replace(usual, profile=slowed, count=1), replace(usual, count=case.replicas - 1))
    watching = Watching(config)
    made = run(config, arrivals(case, share, for_s), Fleet(members=members), case.seed, level, onlooker=watching)
    refused = int((made.results.kind == KINDS.index("refused")).sum())
    return Found(
        case=case.name,
        share=share,
        requests=len(made.results.kind),
        refused=refused,
        ejections=made.ejections,
        alerts=tuple(watching.raised),
        limits=tuple(round(limit, 1) for limit in made.limits),
        lowest=round(watching.lowest, 1),
        prefill_token_ms=tuple(round(1e3 * each, 4) for each in watching.prefill_token_s),
    )


def flaws(found: Found, streamed: Found) -> list[str]:
    """Where it is not as if all had been streamed. Alerts that those raise too are about the load."""
    said = []
    if found.ejections:
        said.append(f"{found.ejections} ejections")
    if found.alerts and not streamed.alerts:
        said.append(f"{len(found.alerts)} alerts, the first: {found.alerts[0]}")
    limit, usual = fmean(found.limits), fmean(streamed.limits)
    if abs(limit / usual - 1) > WITHIN and not (found.share == 1.0 and limit >= START):
        said.append(f"limits of {limit:.0f}, and {usual:.0f} where all is streamed")
    if found.refused > streamed.refused + 0.01 * found.requests:
        said.append(f"{found.refused} refused, and {streamed.refused} where all is streamed")
    return said


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="five minutes of each; keeps no results")
    options.add_argument("--only", default="", help="cases whose name has this in it")
    options.add_argument("--jobs", type=int, default=2, help="simulations at the same time")
    options.add_argument("--out", type=Path, help="a JSON file instead of results/unstreamed.json")
    args = options.parse_args()
    for_s = 300.0 if args.quick else HOUR_S
    cases = [case for case in CASES if args.only in case.name]
    lines = [
        "| case | unstreamed | requests | refused | ejections | alerts | limits | |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    all_found, missed = [], 0
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        runs = {(case, share): pool.submit(simulated, case, share, for_s) for case in cases for share in SHARES}
        for (case, share), made in runs.items():
            found, streamed = made.result(), runs[case, 0.0].result()
            wrong = flaws(found, streamed)
            missed += bool(wrong)
            all_found.append(asdict(found) | {"flaws": wrong})
            limits = f"{min(found.limits):g} – {max(found.limits):g}"
            lines.append(
                f"| {case.name} | {share:.0%} | {found.requests} | {found.refused} | {found.ejections} "
                f"| {len(found.alerts)} | {limits} | {'; '.join(wrong) or 'pass'} |"
            )
            print(lines[-1], flush=True)
    kept: dict[str, object] = {"for_s": for_s, "simulated": all_found}
    out = args.out or (None if args.quick else RESULTS)
    if out is not None:
        out.write_text(json.dumps(kept, indent=1) + "\n")
        top = ["# Unstreamed requests in a healthy fleet", "", "Written by `benchmarks/unstreamed.py`.", ""]
        out.with_suffix(".md").write_text("\n".join(top + lines) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
