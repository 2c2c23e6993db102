"""Runs `headgate simulate`, `plan` and `replay`: from options to tables, files and an exit code."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from headgate.config.gateway import GatewayConfig
from headgate.garbage import rarely_collected
from headgate.machine.profile import Profile
from headgate.model.errors import UsageError
from headgate.replay.event_log import EventLog
from headgate.replay.replay import DecisionDifference, replay
from headgate.report import goodput, html_page, json_file, table
from headgate.report.compare import compare, pairs, same_arrivals
from headgate.report.results import Results, Target
from headgate.report.summary import summarise
from headgate.sim.fleet import Failure, SimFleet, batch_from, dilated, fleet_from, fleet_of
from headgate.sim.planning import report as plan_report
from headgate.sim.planning.impossible import Impossible
from headgate.sim.planning.mix import cheapest_mix, fleet_of_pools
from headgate.sim.planning.plan import plan
from headgate.sim.planning.sentence import compared, planned, simulated
from headgate.sim.run import Level, Simulated, run
from headgate.sim.slo import parse
from headgate.workload.arrival import Arrival
from headgate.workload.load import Workload

STANDARD = 4000
"""Minimum requests by which a steady load is planned, unless the operator names a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """The workload to simulate; see workload/spec.py."""

    workload: str
    rate: float | None = None
    time_scale: float | None = None
    duration_s: float | None = None
    requests: int | None = None
    seed: int = 0

    def made(self) -> Workload:
        return Workload(
            self.workload,
            rate=self.rate,
            time_scale=self.time_scale,
            duration_s=self.duration_s,
            requests=self.requests,
        )

    def usual(self) -> Workload | None:
        """Returns STANDARD requests of a steady load, however long it is to last. None: the load is a trace, of which
        another length is another load."""
        made = Workload(self.workload, rate=self.rate, time_scale=self.time_scale, requests=STANDARD)
        return made if made.steady else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    load: WorkloadOptions
    config: GatewayConfig
    profile: Profile
    what_if: GatewayConfig | None = None
    """Another config, simulated too and shown beside the first; None: no other config."""
    what_if_profile: Profile | None = None
    what_if_replicas: int | None = None
    replicas: int | None = None
    """None: the replicas that the config names."""
    slots: int | None = None
    """Requests that each replica is given at once; None: as config or profile say."""
    level: Level = "step"
    failures: tuple[str, ...] = ()
    """REPLICA@SECONDS: the replica dies then; REPLICA@SECONDS-SECONDS: and is started again. Replicas count from 0."""
    cold_start_s: float = 0.0
    """Seconds from a replica's start until it answers."""
    dilation: float = 1.0
    """Seconds that pass per second of the profile, as in an emulated engine."""
    goodput: tuple[str, ...] = ()
    by_stream: bool = False
    """Rows are named as the workload names its streams, not by the lanes they were given."""
    events: Path | None = None
    """Where to write the run's event log, for `replay`; None: no log."""
    json: Path | None = None
    html: Path | None = None
    title: str = ""
    command: str = ""
    """The command line, without secrets, for the report; empty: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    load: WorkloadOptions
    config: GatewayConfig
    profile: Profile
    slos: tuple[str, ...] = ()
    """LANE:FIGURE:PERCENTILE:SECONDS; none: the targets that the config promises its lanes."""
    price: float | None = None
    """Price of a replica per hour; None: costs are not reported."""
    slots: int | None = None
    level: Level = "gateway"
    draws: int = 1
    """Workloads to draw, each with a seed of its own; all must keep the SLOs."""
    json: Path | None = None
    html: Path | None = None
    command: str = ""
    """The command line, without secrets, for the report; empty: unknown."""


# -- simulate ---------------------------------------------------------------------------------------------------


def run_simulate(options: SimulateOptions, out: Console | None = None, err: Console | None = None) -> int:
    """Simulates and returns the exit code. Raises StartupError, one line, for options that can't be run."""
    out, err = out or Console(highlight=False), err or Console(stderr=True, highlight=False)
    check_folders(options.json, options.html, options.events)
    found = [_simulated(options, err)]
    if options.what_if is not None or options.what_if_profile is not None or options.what_if_replicas is not None:
        other = replace(
            options,
            config=options.what_if or options.config,
            profile=options.what_if_profile or options.profile,
            replicas=options.what_if_replicas or options.replicas,
            events=None,
            title="what if",
        )
        found.append(_simulated(other, err))
    seed = options.load.seed
    summaries = [summarise(results, seed) for results in found]
    said = [(one.title, simulated(one, summary)) for one, summary in zip(found, summaries, strict=True)]
    first = compared(said)
    for line in first:
        out.print(Text(line, "bold"))
    for results, summary in zip(found, summaries, strict=True):
        out.print()
        out.print(table.render(results, summary, out.width))
    out.print()
    for results in found[1:]:
        show_compared(found[0], results, seed, out)
    if options.json is not None:
        more = {"what_if": json_file.as_dict(found[1], summarise(found[1], seed))} if len(found) > 1 else {}
        json_file.write(options.json, found[0], summarise(found[0], seed), more=more)
        err.print(f"wrote {options.json}", markup=False)
    if options.html is not None:
        html_page.write(options.html, found, seed=seed, first=first, command=options.command)
        err.print(f"wrote {options.html}", markup=False)
    if not found[0].ok.any():
        err.print("headgate: not one request was completed", markup=False)
        return 1
    return 0


def show_compared(before: Results, after: Results, seed: int, out: Console) -> None:
    """Prints which differences are real, and each request's change between the runs."""
    how = "  the same arrivals, compared pairwise" if same_arrivals(before, after) else ""
    out.print(Text.assemble((f"{before.title} → {after.title}", "bold"), how))
    for difference in compare(before, after, seed=seed):
        out.print(Text(f"  {difference}", style="" if difference.verdict == "real" else "dim"), soft_wrap=True)
    for pair in pairs(before, after):
        out.print(Text(f"  {pair}"), soft_wrap=True)


def _simulated(options: SimulateOptions, err: Console) -> Results:
    workload, seed = options.load.made(), options.load.seed
    log = None if options.events is None else EventLog(options.events, options.config, seed)
    title = options.title or "simulation"
    with rarely_collected(), err.status(title) as status:

        def progress(number: int, at_s: float) -> None:
            status.update(f"{title}: {number} requests, {at_s:.0f} s")

        try:
            simulated = run(
                options.config,
                workload.arrivals(seed),
                _fleet(options),
                seed,
                options.level,
                title=title,
                by_stream=options.by_stream,
                log=log,
                progress=progress,
            )
        finally:
            if log is not None:
                log.close()
    results = simulated.results
    facts = {"workload": options.load.workload, **results.facts, **_use(simulated)}
    return replace(results, goodput=goodput.parse(options.goodput or workload.goodput), facts=facts)


def _use(simulated: Simulated) -> dict[str, str]:
    """Returns how full the fleet was, and in which resource."""
    known = {**simulated.utilisation.known, "slots": simulated.slots_use}
    each = ", ".join(f"{name} {value:.1%}" for name, value in known.items())
    return {"utilisation": f"{simulated.use:.1%} ({each})"}


def _fleet(options: SimulateOptions) -> SimFleet:
    failures = tuple(failure(text) for text in options.failures)
    if options.replicas is not None:
        made = fleet_of(options.profile, options.replicas, options.slots)
    elif options.config.fleet.pools:
        pooled = fleet_of_pools(options.config, options.profile, cold_start_s=options.cold_start_s)
        return replace(pooled, failures=failures)
    else:
        made = fleet_from(options.config, options.profile)
    stretched = dilated(options.profile, options.dilation)
    members = [
        replace(
            member,
            profile=stretched.profile,
            batch=batch_from(options.config, stretched.batch or options.profile.batch_config()) or stretched.batch,
            cold_start_s=options.cold_start_s,
            slots=options.slots or member.slots,
            find_slots=member.find_slots and options.slots is None,
        )
        for member in made.members
    ]
    return replace(made, members=tuple(members), failures=failures)


def failure(text: str) -> Failure:
    parts = re.fullmatch(r"(\d{1,6})@(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?", text.strip())
    if parts is None or (parts[3] is not None and float(parts[3]) <= float(parts[2])):
        raise UsageError(f"{text!r}: a failure is REPLICA@SECONDS or REPLICA@SECONDS-SECONDS, such as 0@60-90")
    return Failure(int(parts[1]), float(parts[2]), None if parts[3] is None else float(parts[3]))


# -- plan -----------------------------------------------------------------------------------------------------------


def run_plan(options: PlanOptions, out: Console | None = None, err: Console | None = None) -> int:
    """Plans and returns 0 if there is a plan; 1 if no number of replicas suffices, with the reason printed."""
    out, err = out or Console(highlight=False), err or Console(stderr=True, highlight=False)
    check_folders(options.json, options.html)
    slos = parse(options.slos, options.config)
    workload, seed = options.load.made(), options.load.seed
    usual = options.load.usual() if options.load.requests is None else None
    if usual is not None and workload.rate * (workload.duration_s or 0.0) < STANDARD:
        workload = usual  # a shorter workload would be an answer about a few requests
    draws = [list(workload.arrivals(seed + number)) for number in range(max(1, options.draws))]
    if options.config.fleet.pools:
        return _plan_pools(options, draws[0], slos, out, err)
    with rarely_collected(), err.status("planning") as status:
        answer = plan(
            options.config,
            draws,
            options.profile,
            slos=slos,
            price=options.price,
            slots=options.slots,
            level=options.level,
            say=_saying(err, status.update),
            usual=None if usual is None else list(usual.arrivals(seed)),
        )
    if isinstance(answer, Impossible):
        out.print(Text(str(answer), style="bold red"), soft_wrap=True)
        if options.json is not None:
            write_json(options.json, {"impossible": str(answer)}, err)
        return 1
    out.print(plan_report.render(answer))
    if options.json is not None:
        write_json(options.json, plan_report.as_dict(answer), err)
    if options.html is not None:
        results = replace(answer.case.simulated.results, title=f"{answer.replicas} × {answer.profile}")
        more = [("Plan", plan_report.section(answer)), ("Latency against load", plan_report.plot(answer.curve))]
        first = [planned(answer)]
        html_page.write(options.html, [results], seed=seed, more=more, first=first, command=options.command)
        err.print(f"wrote {options.html}", markup=False)
    return 0


def _plan_pools(
    options: PlanOptions, arrivals: list[Arrival], slos: tuple[Target, ...], out: Console, err: Console
) -> int:
    for name, given in (("--html", options.html), ("--draws", options.draws > 1), ("--price", options.price)):
        if given:
            raise UsageError(f"{name} can't be used with fleet.pools: leave it out, or plan one pool")
    config, profile, seed = options.config, options.profile, options.load.seed
    with rarely_collected(), err.status("planning") as status:
        say = _saying(err, status.update)
        mix = cheapest_mix(config, arrivals, profile, slos, seed=seed, level=options.level, say=say)
    out.print(Text(mix.sentence(config.observe.currency), "bold" if mix.kept else "bold red"))
    out.print()
    out.print(table.render(mix.simulated.results, summarise(mix.simulated.results, seed), out.width))
    if options.json is not None:
        write_json(options.json, mix.as_dict(), err)
    return 0 if mix.kept else 1


def _saying(err: Console, update: Callable[[str], None]) -> Callable[[str], None]:
    """Returns a function that prints each step of planning on a line, if a person watches the terminal."""

    def say(text: str) -> None:
        update(text)
        if err.is_terminal:
            err.print(Text(f"  {text}", style="dim"), soft_wrap=True)

    return say


def write_json(path: Path, data: object, err: Console) -> None:
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n")
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror or error}") from None
    err.print(f"wrote {path}", markup=False)


# -- replay ---------------------------------------------------------------------------------------------------------


def run_replay(path: Path, out: Console | None = None) -> int:
    """Replays an event log. Returns 0 if every decision was the same, else 1 with the first difference printed."""
    out = out or Console(highlight=False)
    with rarely_collected():
        found = replay(path)
    if isinstance(found, DecisionDifference):
        out.print(Text("not the same:", style="bold red"))
        out.print(Text(str(found)), soft_wrap=True)
        return 1
    cut = "; its last line was cut off" if found.truncated else ""
    out.print(
        f"{found.events} events over {found.span_s:.1f} s, {found.commands} decisions: all the same{cut}",
        soft_wrap=True,
    )
    return 0


# ---------------------------------------------------------------------------------------------------------------


def check_folders(*paths: Path | None) -> None:
    for path in paths:
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"{path} can't be written: there is no folder {path.absolute().parent}")
