"""Runs `headgate simulate --scale`: a pool that grows and shrinks as the config's fleet.scale says, and its cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.text import Text

from headgate.config.gateway import GatewayConfig
from headgate.config.scale import contradictions
from headgate.garbage import rarely_collected
from headgate.model.errors import UsageError
from headgate.policy.scaling.forecast import Forecast
from headgate.report import html_page, table
from headgate.report.results import Results, Target
from headgate.report.summary import summarise
from headgate.sim.fleet import SimGroup, batch_from
from headgate.sim.planning.command import SimulateOptions, check_folders, show_compared, write_json
from headgate.sim.scaling import report
from headgate.sim.scaling.autoscale import MONDAY, learn
from headgate.sim.scaling.compare import VARIANTS, ScaledDay, Setting, one, with_foresight
from headgate.sim.scaling.pools import run_pools
from headgate.sim.slo import promised

DAY_S = 86_400.0
AS_SET = "as configured"
MOST_DAYS = 42
"""Days that a forecast remembers."""
SHOWN = 20
"""Maximum decisions shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOptions:
    simulate: SimulateOptions
    compare: bool = False
    """Also simulate without forecast, without warm pool, without both, and with an oracle's foresight."""
    history: int = 0
    """Days of the same load, drawn with other seeds, that the forecast has seen before."""


def run_scaled(options: ScaleOptions, out: Console | None = None, err: Console | None = None) -> int:
    """Simulates and returns the exit code. Raises StartupError, one line, for options that can't be run."""
    out, err = out or Console(highlight=False), err or Console(stderr=True, highlight=False)
    base = options.simulate
    if not 0 <= options.history <= MOST_DAYS:
        raise UsageError(f"--history is a number of days from 0 to {MOST_DAYS}, not {options.history}")
    _check(base)
    check_folders(base.json, base.html)
    if base.config.fleet.pools:
        return _run_pools(options, out, err)
    with rarely_collected(), err.status("simulating") as status:
        cases = _cases(options, lambda text: status.update(text))
    for line in report.sentences(cases):
        out.print(Text(line, "bold"))
    out.print()
    for case in cases if not options.compare else []:
        results = replace(case.outcomes.simulated.results, title=case.name)
        out.print(table.render(results, summarise(results, base.load.seed), out.width))
        out.print()
        for line in report.decisions(case, SHOWN):
            out.print(Text(line, style="dim"), soft_wrap=True)
        out.print()
    out.print(report.table(cases, out.width))
    if not options.compare and len(cases) == 2:
        first, other = (replace(case.outcomes.simulated.results, title=case.name) for case in cases)
        out.print()
        show_compared(first, other, base.load.seed, out)
    _write(base, cases, err)
    if not any(case.outcomes.simulated.results.ok.any() for case in cases):
        err.print("headgate: not one request was completed", markup=False)
        return 1
    return 0


def _run_pools(options: ScaleOptions, out: Console, err: Console) -> int:
    base = options.simulate
    for name, given in (("--compare", options.compare), ("--history", options.history), ("--what-if", base.what_if)):
        if given:
            raise UsageError(f"{name} can't be used with fleet.pools: leave it out, or simulate one pool")
    workload, seed = base.load.made(), base.load.seed
    with rarely_collected(), err.status("simulating"):
        run = run_pools(
            base.config,
            workload.arrivals(seed),
            base.profile,
            seed,
            base.level,
            cold_start_s=base.cold_start_s,
            wall_s=MONDAY + 7 * DAY_S,
        )
    results = run.simulated.results
    cost = "" if run.cost is None else f", for {run.cost:.1f} {base.config.observe.currency}"
    out.print(Text(f"{len(run.pools)} pools: {run.replica_hours:.1f} replica-hours{cost}.", "bold"))
    out.print()
    out.print(table.render(results, summarise(results, seed), out.width))
    out.print()
    out.print(run.table())
    if base.json is not None:
        write_json(base.json, {"workload": base.load.workload, "seed": seed, **run.as_dict()}, err)
    if base.html is not None:
        html_page.write(base.html, [results], seed=seed, command=base.command)
        err.print(f"wrote {base.html}", markup=False)
    if not results.ok.any():
        err.print("headgate: not one request was completed", markup=False)
        return 1
    return 0


def _check(base: SimulateOptions) -> None:
    for name, given in (("--fail", base.failures), ("--event-log", base.events), ("--replicas", base.replicas)):
        if given:
            raise UsageError(f"{name} can't be used with --scale: how many there are is the scaler's to say")
    for config in filter(None, (base.config, base.what_if)):
        for path, problem in contradictions(config.fleet.scale, "fleet.scale"):
            raise UsageError(f"{path}: {problem}")


def _cases(options: ScaleOptions, say: Callable[[str], None]) -> list[ScaledDay]:
    base = options.simulate
    setting = _setting(options, base.config)
    if not options.compare:
        cases = [replace(_said(setting, AS_SET, say), name=AS_SET)]
        if base.what_if is not None:
            cases.append(replace(_said(_setting(options, base.what_if), "what if", say), name="what if"))
        return cases
    cases = [_said(setting, variant, say) for variant in VARIANTS]
    foresight = with_foresight(setting, say)
    return cases if foresight is None else [*cases, foresight]


def _said(setting: Setting, variant: str, say: Callable[[str], None]) -> ScaledDay:
    say(f"simulating: {variant}")
    return one(setting, variant)


def _setting(options: ScaleOptions, config: GatewayConfig) -> Setting:
    base = options.simulate
    workload, seed = base.load.made(), base.load.seed
    batch = batch_from(config, base.profile.batch_config())
    emulate = config.fleet.emulate
    wake_s = config.fleet.wake_s if emulate is None else emulate.wake_s
    member = SimGroup(
        profile=base.profile, slots=base.slots, cold_start_s=base.cold_start_s, wake_s=wake_s, batch=batch
    )
    wall_s = MONDAY + 7 * DAY_S
    known: dict[str, object] | None = None
    if options.history and config.fleet.scale.forecast:
        forecast = Forecast()
        for day in range(options.history):
            ago = options.history - day
            learn(forecast, config, workload.arrivals(seed + ago), wall_s - ago * DAY_S, workload.duration_s or DAY_S)
        known = forecast.to_dict()
    return Setting(
        config=config,
        scale=config.fleet.scale,
        member=member,
        arrivals=lambda: workload.arrivals(seed),
        targets=_targets(config),
        history=known,
        seed=seed,
        level=base.level,
        wall_s=wall_s,
    )


def _targets(config: GatewayConfig) -> tuple[Target, ...]:
    """Returns the p99 targets of the time to first token; if there are none, all its targets."""
    firsts = [target for target in promised(config) if target.figure == "ttft"]
    return tuple(target for target in firsts if target.level == 0.99) or tuple(firsts)


def _write(base: SimulateOptions, cases: Sequence[ScaledDay], err: Console) -> None:
    if base.json is not None:
        data = [{**report.as_dict(case), "changes": report.decisions(case, 1000)} for case in cases]
        write_json(base.json, {"workload": base.load.workload, "seed": base.load.seed, "cases": data}, err)
    if base.html is not None:
        results: list[Results] = [replace(case.outcomes.simulated.results, title=case.name) for case in cases]
        within_s = min((target.within_s for target in _targets(base.config)), default=1.0)
        drawn = report.legend(cases) + report.replicas_plot(cases) + report.p99_plot(cases, within_s)
        more = [("Scaling", report.section(cases)), ("Replicas, and TTFT p99, over time", drawn)]
        html_page.write(
            base.html, results, seed=base.load.seed, more=more, first=report.sentences(cases), command=base.command
        )
        err.print(f"wrote {base.html}", markup=False)
