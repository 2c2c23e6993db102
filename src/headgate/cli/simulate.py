"""`headgate simulate`, `plan`, `replay` and `fit`: production's own policies in virtual time."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Group, Parameter
from rich.console import Console
from rich.table import Table

from headgate.model.errors import StartupError
from headgate.model.gateway_config import GatewayConfig

if TYPE_CHECKING:
    from headgate.policy.profile import Profile
    from headgate.sim.plan import Plan

WORK = Group("The load")
FLEET = Group("The fleet")
REPORT = Group("What is said about it")
Repeated = Parameter(negative="", consume_multiple=True)
Load = Annotated[str, Parameter(name=("--load", "--trace", "--mix"), group=WORK)]
Rate = Annotated[float | None, Parameter(group=WORK)]
Seconds = Annotated[float | None, Parameter(group=WORK)]
Requests = Annotated[int | None, Parameter(group=WORK)]
Emulated = Annotated[str, Parameter(group=FLEET)]
Slots = Annotated[int | None, Parameter(group=FLEET)]
Level = Annotated[Literal["step", "gateway"], Parameter(group=FLEET)]
H100 = "h100-llama3-8b"


def add_to(app: App) -> None:
    app.command(simulate)
    app.command(plan)
    app.command(replay)
    app.command(fit)


def simulate(
    *,
    load: Load,
    config: Annotated[tuple[Path, ...], Repeated, Parameter(group=FLEET)] = (),
    profile: Emulated = H100,
    replicas: Annotated[int | None, Parameter(group=FLEET)] = None,
    slots: Slots = None,
    level: Level = "step",
    rate: Rate = None,
    duration: Seconds = None,
    requests: Requests = None,
    seed: Annotated[int, Parameter(group=WORK)] = 0,
    json: Annotated[Path | None, Parameter(group=REPORT)] = None,
    html: Annotated[Path | None, Parameter(group=REPORT)] = None,
) -> None:
    """Say how a load would be served: the dispatcher, batcher and block ledger of production, in virtual time.

    Parameters
    ----------
    load
        As for `headgate bench`: poisson:rate=20, azure-code, mooncake, file:RECORDS, or a mix.
    config
        The gateway's YAML file; several are put side by side, each with the same load.
    profile
        What the replicas are: a100-llama3-8b, h100-llama3-8b, h200-llama3-8b, or a file made by `headgate fit`.
    replicas
        How many. Default: those in the config, or one.
    slots
        Requests that a replica is given at once. Default: the profile's.
    level
        step: every step of every engine. gateway: service times only, for very many requests.
    rate
        Requests a second, all streams together.
    duration
        Seconds of load.
    requests
        At most so many.
    seed
        The same seed gives the same result, on any machine.
    json
        File for the result, as of `headgate bench`; of the first config.
    html
        File for a report with plots, all configs side by side.
    """
    from headgate.engine.profile_file import find
    from headgate.report import html_page, json_file, table
    from headgate.report.summary import summarise
    from headgate.sim.fleet import fleet_from, fleet_of
    from headgate.sim.run import run
    from headgate.workload.load import Workload

    console, model = Console(highlight=False), find(profile)
    workload = Workload(load, rate=rate, duration_s=duration, requests=requests)
    configs = {str(path): _load(path) for path in config} or {"default config": GatewayConfig()}
    results = []
    for name, chosen in configs.items():
        fleet = fleet_from(chosen, model) if replicas is None else fleet_of(model, replicas, slots)
        with console.status(f"{name}: {workload.describe()}") as status:
            simulated = run(
                chosen,
                workload.arrivals(seed),
                fleet,
                seed,
                level,
                title=name,
                progress=lambda count, now: status.update(f"{count:,} requests, {now:,.0f} s of virtual time"),
            )
        results.append(simulated.results)
        table.show(simulated.results, summarise(simulated.results, seed), console)
        console.print(f"{simulated.replicas} replicas, computing {simulated.busy:.0%} of the time", style="dim")
    if json is not None:
        json_file.write(json, results[0], summarise(results[0], seed))
    if html is not None:
        html_page.write(html, results, seed=seed, names=list(configs))


def plan(
    *,
    load: Load,
    slo: Annotated[tuple[str, ...], Repeated, Parameter(group=FLEET)] = (),
    config: Annotated[Path | None, Parameter(group=FLEET)] = None,
    profile: Emulated = H100,
    slots: Slots = None,
    price: Annotated[float | None, Parameter(group=REPORT)] = None,
    level: Level = "gateway",
    rate: Rate = None,
    duration: Seconds = None,
    requests: Requests = None,
    seeds: Annotated[int, Parameter(group=WORK)] = 2,
) -> None:
    """Say how many replicas keep every promise, what they cost, and how they take twice the load or a loss.

    Parameters
    ----------
    load
        As for `headgate bench`.
    slo
        LANE:FIGURE:pNN:SECONDS, such as fast:ttft:p99:0.5; may be given several times. Default: the config's promises.
    config
        The gateway's YAML file, for lanes and limits.
    profile
        What a replica is: a100-llama3-8b, h100-llama3-8b, h200-llama3-8b, or a file made by `headgate fit`.
    slots
        Requests that a replica is given at once. Default: the profile's.
    price
        Of a replica for an hour, in any currency.
    level
        gateway: service times. step: every step of every engine, which takes longer.
    rate
        Requests a second, all streams together.
    duration
        Seconds of load.
    requests
        At most so many.
    seeds
        How many days of the same load must be kept.
    """
    from headgate.engine.profile_file import find
    from headgate.sim import slo as targets
    from headgate.sim.impossible import Impossible
    from headgate.sim.plan import plan as make_plan
    from headgate.workload.load import Workload

    console, chosen, model = Console(highlight=False), _load(config), find(profile)
    workload = Workload(load, rate=rate, duration_s=duration, requests=requests)
    days = [list(workload.arrivals(seed)) for seed in range(max(1, seeds))]
    with console.status(workload.describe()) as status:
        found = make_plan(
            chosen,
            days,
            model,
            slos=targets.parse(slo, chosen),
            price=price,
            slots=slots,
            level=level,
            say=lambda text: status.update(text),
        )
    if isinstance(found, Impossible):
        raise StartupError(str(found))
    _show_plan(found, model, console)


def _show_plan(found: "Plan", model: "Profile", console: Console) -> None:
    console.print(f"[bold]{found.replicas}[/] × {model.name}: {found.split}")
    if found.other is not None:
        console.print(f"the other way: {found.other}", style="dim")
    if found.cost_per_hour is not None and found.cost_per_1000_tokens is not None:
        console.print(f"{found.cost_per_hour:.2f} an hour, {found.cost_per_1000_tokens:.5f} per 1 000 tokens")
    for judged in found.case.judged:
        console.print(f"  {'✓' if judged.kept else '✗'} {judged}")
    low, high = found.curve.points[0], found.curve.points[-1]
    table = Table(title=f"Latency against load; {found.curve.capacity_per_s:.1f} requests/s is all they can do")
    for heading in ("load", "requests/s", "TTFT p50", "p95", "p99", ""):
        table.add_column(heading, justify="right")
    for point in found.curve.points:
        mark = "← run it here" if point.operating else ""
        times = [f"{value * 1e3:.0f} ms" for value in point.ttft_s]
        table.add_row(f"{point.load:.0%}", f"{point.requests_per_s:.1f}", *times, mark)
    console.print(table)
    little = found.little
    console.print(f"this load is {found.curve.now:.0%} of that (measured from {low.load:.0%} to {high.load:.0%})")
    if found.comfortable > found.replicas:
        console.print(f"to run at 60–70 %, have {found.comfortable}")
    console.print(f"Little's law: L {little.l:.2f}, λ·W {little.lambda_ * little.w:.2f}, off by {little.residual:+.1%}")
    console.print(f"twice the traffic: {_kept(found.twice)}; it takes {found.twice_split or 'more than was tried'}")
    console.print(f"one replica lost: {'there is only one' if found.lost is None else _kept(found.lost)}")
    for note in found.notes:
        console.print(note, style="dim")


def _kept(case: object) -> str:
    from headgate.sim.trial import Case

    assert isinstance(case, Case)
    turned = f", {case.turned_away:.1%} turned away" if case.turned_away > 0 else ""
    return ("all is kept" if case.kept else "; ".join(str(one) for one in case.missed)) + turned


def replay(events: Path) -> None:
    """Have a fresh dispatcher live through a recorded run: every decision must be the same.

    Parameters
    ----------
    events
        A file written by `headgate serve --event-log`.
    """
    from headgate.sim.replay import Difference
    from headgate.sim.replay import replay as run_again

    found = run_again(events)
    if isinstance(found, Difference):
        print(found)
        sys.exit(1)
    cut = "; the last line was cut off" if found.truncated else ""
    print(f"identical: {found.events} events, {found.commands} decisions over {found.span_s:.1f} s{cut}")


def fit(step_log: Path, out: Path, *, name: str | None = None) -> None:
    """Make a profile of an engine from its step log, for --emulate, simulate and plan.

    Parameters
    ----------
    step_log
        A file written by `headgate engine --step-log`.
    out
        The profile, JSON.
    name
        What to call it. Default: the file's name.
    """
    from headgate.engine.profile_file import dump, fitted

    dump(fitted(step_log, name or out.stem), out)
    print(f"wrote {out}: headgate simulate --profile {out}")


def _load(path: Path | None) -> GatewayConfig:
    from headgate import config_file

    return config_file.load(path) if path is not None else GatewayConfig()
