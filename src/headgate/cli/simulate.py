"""Adds `headgate simulate`, `plan`, `replay` and `fit`: production's own policies in virtual time."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Group, Parameter, validators

from headgate.cli.setup.groups import DECIDE
from headgate.cli.setup.quantities import Duration
from headgate.config.gateway import GatewayConfig
from headgate.model.errors import UsageError

if TYPE_CHECKING:
    from headgate.machine.observed import FittedProfile

WORK = Group("The load")
FLEET = Group("The fleet")
SCALE = Group("A pool that grows and shrinks")
REPORT = Group("What is said about it")
Repeated = Parameter(negative="", consume_multiple=True)
Workload = Annotated[str, Parameter(name=("--load", "--trace", "--mix"), group=WORK)]
Above = Parameter(validator=validators.Number(gt=0))
AtLeastOne = Parameter(validator=validators.Number(gte=1))
Rate = Annotated[float | None, Above, Parameter(group=WORK)]
Span = Annotated[float | None, Duration, Above, Parameter(group=WORK)]
Requests = Annotated[int | None, AtLeastOne, Parameter(group=WORK)]
Seed = Annotated[int, Parameter(group=WORK)]
Config = Annotated[Path | None, Parameter(group=FLEET)]
ProfileName = Annotated[str, Parameter(group=FLEET)]
Count = Annotated[int | None, AtLeastOne, Parameter(group=FLEET)]
Level = Annotated[Literal["step", "gateway"], Parameter(group=FLEET)]
File = Annotated[Path | None, Parameter(group=REPORT)]
H100 = "h100-llama3-8b"


def add_to(app: App) -> None:
    for command in (simulate, plan, replay, fit):
        app.command(command, group=DECIDE)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SimulateFlags:
    load: Workload
    """As for `headgate bench`: catalog:agent, poisson:rate=20, azure-code, mooncake, file:RECORDS, or a mix."""
    rate: Rate = None
    """Requests a second, all streams together."""
    time_scale: Rate = None
    """Play a trace this many times as fast."""
    duration: Span = None
    """How long the load is: seconds, or a time such as 5m."""
    requests: Requests = None
    """Maximum number of requests."""
    seed: Seed = 0
    """The same seed gives the same result, on any machine."""
    config: Config = None
    """The gateway's YAML file. Default: the default lanes."""
    profile: ProfileName = H100
    """What the replicas are: h100-llama3-8b (also a100, h200), h100x4-llama3-70b (also h100x8, a100x4, a100x8), or a
    file made by `headgate fit`."""
    replicas: Count = None
    """Number of replicas. Default: those in the config, or one."""
    slots: Count = None
    """Requests that a replica is given at once. Default: as config or profile say."""
    level: Annotated[Literal["step", "gateway"] | None, Parameter(group=FLEET)] = None
    """step: every step of every engine. gateway: modelled service times, within 15 % of the engine's own, for many
    requests. Default: step, and gateway where the pool is scaled."""
    fail: Annotated[tuple[str, ...], Repeated, Parameter(group=FLEET)] = ()
    """REPLICA@SECONDS, or REPLICA@SECONDS-SECONDS: it dies then, and is started again."""
    cold_start: Annotated[float, Duration, Parameter(group=FLEET)] = 0.0
    """Time from when a replica is started until it answers."""
    what_if: Config = None
    """Another config, to be put beside the first."""
    what_if_replicas: Count = None
    """Another number of replicas, likewise."""
    scale: Annotated[bool, Parameter(negative="", group=SCALE)] = False
    """The pool grows and shrinks as the config's fleet.scale says; a start takes --cold-start. Says what every change
    was for, and what the replicas cost."""
    compare_scaling: Annotated[bool, Parameter(negative="", group=SCALE)] = False
    """The same with and without forecast and warm pool, and by an oracle that knows the load beforehand."""
    history: Annotated[int, Parameter(group=SCALE)] = 0
    """Days of the same load, each with a seed of its own, that the forecast has seen before. Default: none."""
    goodput: Annotated[tuple[str, ...], Repeated, Parameter(group=REPORT)] = ()
    """What counts as good, in milliseconds, such as ttft:500 tpot:80. Default: as the catalog says."""
    event_log: File = None
    """File for every decision, for `headgate replay`."""
    json: File = None
    """File for the result, as of `headgate bench`."""
    html: File = None
    """File for a report with plots."""


def simulate(*, flags: SimulateFlags) -> None:
    """Say how a load would be served: the dispatcher, batcher and block ledger of production, in virtual time."""
    from headgate.engine.runner.profile_file import find
    from headgate.report.first import command_line
    from headgate.sim.planning.command import SimulateOptions, WorkloadOptions, run_simulate

    scaled = flags.scale or flags.compare_scaling
    options = SimulateOptions(
        load=WorkloadOptions(
            workload=flags.load,
            rate=flags.rate,
            time_scale=flags.time_scale,
            duration_s=flags.duration,
            requests=flags.requests,
            seed=flags.seed,
        ),
        config=_load(flags.config),
        profile=find(flags.profile),
        what_if=None if flags.what_if is None else _load(flags.what_if),
        what_if_replicas=flags.what_if_replicas,
        replicas=flags.replicas,
        slots=flags.slots,
        level=flags.level or ("gateway" if scaled else "step"),
        failures=flags.fail,
        cold_start_s=flags.cold_start,
        goodput=flags.goodput,
        events=flags.event_log,
        json=flags.json,
        html=flags.html,
        title=str(flags.config or "default config"),
        command=command_line(sys.argv),
    )
    if scaled:
        from headgate.sim.scaling.command import ScaleOptions, run_scaled

        sys.exit(run_scaled(ScaleOptions(simulate=options, compare=flags.compare_scaling, history=flags.history)))
    sys.exit(run_simulate(options))


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PlanFlags:
    load: Workload
    """As for `headgate bench`."""
    rate: Rate = None
    """Requests a second, all streams together."""
    time_scale: Rate = None
    """Play a trace this many times as fast."""
    duration: Span = None
    """How long the load is: seconds, or a time such as 5m. One that is the same at any time is played
    for 4 000 requests at least."""
    requests: Requests = None
    """Maximum number of requests."""
    seed: Seed = 0
    """Seed of the first draw."""
    draws: Annotated[int, AtLeastOne, Parameter(group=WORK)] = 2
    """Number of random draws of the same load for which every promise must be kept."""
    slo: Annotated[tuple[str, ...], Repeated, Parameter(group=FLEET)] = ()
    """LANE:FIGURE:pNN:SECONDS, such as fast:ttft:p99:0.5, or * for all lanes. Default: the config's promises."""
    config: Config = None
    """The gateway's YAML file, for lanes and limits."""
    profile: ProfileName = H100
    """What a replica is: h100-llama3-8b (also a100, h200), h100x4-llama3-70b (also h100x8, a100x4, a100x8), or a
    file made by `headgate fit`."""
    slots: Count = None
    """Requests that a replica is given at once. Default: the profile's."""
    level: Level = "gateway"
    """gateway: modelled service times, within 15 % of the engine's own; real gaps between tokens may be longer. step:
    every step of every engine, by its own batcher, which takes longer."""
    price: Annotated[float | None, Parameter(group=REPORT, validator=validators.Number(gte=0))] = None
    """Price of one replica for an hour, in any currency."""
    json: File = None
    """File for the plan."""
    html: File = None
    """File for a report with plots."""


def plan(*, flags: PlanFlags) -> None:
    """Say how many replicas to run, the fewest that keep every promise, the cost, and twice the load or a loss."""
    from headgate.engine.runner.profile_file import find
    from headgate.report.first import command_line
    from headgate.sim.planning.command import PlanOptions, WorkloadOptions, run_plan

    options = PlanOptions(
        load=WorkloadOptions(
            workload=flags.load,
            rate=flags.rate,
            time_scale=flags.time_scale,
            duration_s=flags.duration,
            requests=flags.requests,
            seed=flags.seed,
        ),
        config=_load(flags.config),
        profile=find(flags.profile),
        slos=flags.slo,
        price=flags.price,
        slots=flags.slots,
        level=flags.level,
        draws=flags.draws,
        json=flags.json,
        html=flags.html,
        command=command_line(sys.argv),
    )
    sys.exit(run_plan(options))


def replay(events: Path) -> None:
    """Have a fresh dispatcher live through a recorded run: every decision must be the same.

    Parameters
    ----------
    events
        A file written by `headgate serve --event-log`.
    """
    from headgate.sim.planning.command import run_replay

    sys.exit(run_replay(events))


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FitFlags:
    name: str | None = None
    """What to call it. Default: the file's name."""
    like: ProfileName = H100
    """For a server or a table: the profile whose sizes are taken where the server does not say its own; a known one or
    a file."""
    chunk: Count = None
    """Tokens of a prompt in one step. Default: as the server says, else as in --like."""
    slots: Count = None
    """Sequences at once. Default: as the server says, else as in --like."""
    kv_tokens: Count = None
    """Tokens in KV memory. Default: as the server says, else as in --like."""
    longest: Annotated[int, AtLeastOne] = 8192
    """Longest prompt to try, in tokens."""
    concurrency: Annotated[int, AtLeastOne] = 128
    """Most requests at once."""
    budget: Annotated[float, Duration, Above] = 180.0
    """How long it may take to measure a server: seconds, or a time such as 5m."""
    requests: Annotated[int, AtLeastOne] = 3000
    """Requests it may send."""
    model: str | None = None
    """Model to ask for. Default: the first that the server names."""
    endpoint: Literal["chat", "completions"] = "completions"
    """chat or completions."""
    key: Annotated[tuple[str, ...], Repeated] = ()
    """API key; env:NAME reads it from the environment."""


def fit(source: str, out: Path, *, flags: FitFlags | None = None) -> None:
    """Make a profile of an engine for --emulate, simulate and plan: from its step log, a running server or a table.

    A running server should have no other client meanwhile.

    Parameters
    ----------
    source
        A file written by `headgate engine --step-log`; the address of an OpenAI-compatible server, which is measured;
        or a .csv file of TTFT and ITL by length and batch.
    out
        The profile, JSON.
    """
    from headgate.engine.runner.profile_file import dump, fitted

    flags = flags or FitFlags()
    if "://" not in source and not source.startswith("unix:") and Path(source).suffix != ".csv":
        profile = fitted(Path(source), flags.name or out.stem)
    else:
        if not out.absolute().parent.is_dir():  # not after three minutes
            raise UsageError(f"can't write {out}: there is no folder {out.absolute().parent}")
        profile = _observed(source, flags, out.stem).profile
    dump(profile, out)
    print(f"wrote {out}: headgate simulate --profile {out}")


def _observed(source: str, flags: FitFlags, name: str) -> "FittedProfile":
    from headgate.bench.fitting.engine_probe import ProbeOptions
    from headgate.bench.fitting.fit_run import Sizes, fit_server, fit_table
    from headgate.engine.runner.profile_file import find

    sizes = Sizes(flags.name or name, flags.chunk, flags.slots, flags.kv_tokens)
    of = sizes.of(find(flags.like))
    if Path(source).suffix == ".csv":
        return fit_table(Path(source), of)
    options = ProbeOptions(
        url=source,
        of=of,
        longest=flags.longest,
        concurrency=flags.concurrency,
        budget_s=flags.budget,
        requests=flags.requests,
        model=flags.model,
        endpoint=flags.endpoint,
        keys=flags.key,
    )
    return fit_server(options, sizes)


def _load(path: Path | None) -> GatewayConfig:
    from headgate.config import file as config_file

    return config_file.load(path) if path is not None else GatewayConfig()
