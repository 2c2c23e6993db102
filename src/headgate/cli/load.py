"""Adds `headgate bench`, which puts a load on any OpenAI-compatible server and reports what came of it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from secrets import randbelow
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter, validators

from headgate.cli.setup.groups import MEASURE
from headgate.cli.setup.quantities import Duration

bench = App(
    name="bench", group=MEASURE, help="Put a load on any OpenAI-compatible server and say how it was, lane by lane."
)
WORK = Group("The load")
TARGET = Group("The server")
REPORT = Group("What is said about it")
Repeated = Parameter(negative="", consume_multiple=True)
Above = Parameter(validator=validators.Number(gt=0))
AtLeastOne = Parameter(validator=validators.Number(gte=1))
SEEDS = 1_000_000
"""Seeds are drawn below this number, so that they are short enough to be written down."""


def add_to(app: App) -> None:
    app.command(bench)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BenchFlags:
    load: Annotated[str, Parameter(name=("--load", "--trace", "--mix"), group=WORK)] = "poisson:rate=2"
    """catalog:NAME (catalog: lists them), poisson, gamma, constant, agents, azure-conv, azure-code, mooncake, sharegpt,
    servegen:MODEL, azure:file=TRACE, mooncake:file=TRACE or file:RECORDS, with options after a colon; several, named
    and separated by semicolons, are mixed: "chat=poisson:rate=8,prompt=120,output=64,lane=fast;
    long=azure-conv:rate=0.5". See docs/loads.md."""
    rate: Annotated[float | None, Above, Parameter(group=WORK)] = None
    """Requests a second, all streams together."""
    time_scale: Annotated[float | None, Above, Parameter(group=WORK)] = None
    """Play a trace this many times as fast."""
    duration: Annotated[float | None, Duration, Above, Parameter(group=WORK)] = None
    """How long: seconds, or a time such as 5m. Default: as long as the trace is, or a minute."""
    requests: Annotated[int | None, AtLeastOne, Parameter(group=WORK)] = None
    """Maximum number of requests."""
    concurrency: Annotated[int | None, Parameter(group=WORK, validator=validators.Number(gte=1))] = None
    """A closed loop: this many requests at once, the next when one ends, for --duration or --requests. The load says
    only what they are."""
    seed: Annotated[int | None, Parameter(group=WORK)] = None
    """The same seed asks the same at the same times, which a server may have in its prefix cache by then. Default:
    another one each time, which the result says."""
    stream: Annotated[bool | None, Parameter(group=WORK)] = None
    """Stream every answer, or none. Default: as the load says."""
    ignore_eos: Annotated[bool, Parameter(group=WORK, negative="")] = False
    """Ask engines that can for exactly as many tokens as the load says."""
    extra_body: Annotated[str, Parameter(group=WORK)] = ""
    """A JSON object added to every request."""
    direct: Annotated[tuple[str, ...], Repeated, Parameter(group=TARGET)] = ()
    """An engine behind the gateway, which gets the same load in turns with it; may be given several times. Says what
    the gateway adds."""
    slice_s: Annotated[float, Duration, Above, Parameter(name="--slice", group=TARGET)] = 15.0
    """Length of the slices in which the two ways take turns, where there is --direct."""
    model: Annotated[str | None, Parameter(group=TARGET)] = None
    """Model to ask for. Default: the first that the server names."""
    pin: Annotated[str | None, Parameter(group=TARGET)] = None
    """Version of that model to ask for, such as a canary alone; needs a key that Headgate trusts."""
    endpoint: Annotated[Literal["chat", "completions"], Parameter(group=TARGET)] = "chat"
    """chat or completions."""
    key: Annotated[tuple[str, ...], Repeated, Parameter(group=TARGET)] = ()
    """KEY, or TENANT=KEY for loads with tenants; env:NAME reads it from the environment."""
    timeout: Annotated[float, Duration, Above, Parameter(group=TARGET)] = 600.0
    """How long one request may take from when it was due: seconds, or a time such as 5m."""
    goodput: Annotated[tuple[str, ...], Repeated, Parameter(group=REPORT)] = ()
    """What counts as good, in milliseconds, such as ttft:500 tpot:80. Default: as the catalog says."""
    allow_lag: Annotated[bool, Parameter(group=REPORT, negative="")] = False
    """Don't fail a run in which this client could not keep up."""
    json: Annotated[Path | None, Parameter(group=REPORT)] = None
    """File for the result, with the keys of `vllm bench serve` and ours."""
    html: Annotated[Path | None, Parameter(group=REPORT)] = None
    """File for a report with plots."""
    title: Annotated[str, Parameter(group=REPORT)] = ""
    """Title of the result."""
    progress: Annotated[bool, Parameter(group=REPORT)] = True
    """Show progress during the run."""


@bench.default
def run(
    url: Annotated[str, Parameter(group=TARGET)] = "http://127.0.0.1:8000", *, flags: BenchFlags | None = None
) -> None:
    """Open-loop load: requests are sent when they are due, and every latency counts from then.

    With --concurrency it is a closed loop instead.

    Parameters
    ----------
    url
        Where the server listens.
    """
    from headgate.bench.options import BenchOptions
    from headgate.bench.run import run as run_bench
    from headgate.report.first import command_line

    flags = flags or BenchFlags()
    options = BenchOptions(
        url=url,
        workload=flags.load,
        rate=flags.rate,
        time_scale=flags.time_scale,
        duration_s=flags.duration,
        requests=flags.requests,
        concurrency=flags.concurrency,
        seed=randbelow(SEEDS) if flags.seed is None else flags.seed,
        model=flags.model,
        pin=flags.pin,
        endpoint=flags.endpoint,
        keys=flags.key,
        goodput=flags.goodput,
        direct=flags.direct,
        slice_s=flags.slice_s,
        stream=flags.stream,
        ignore_eos=flags.ignore_eos,
        extra_body=flags.extra_body,
        timeout_s=flags.timeout,
        allow_lag=flags.allow_lag,
        json=flags.json,
        html=flags.html,
        title=flags.title,
        progress=flags.progress,
        command=command_line(sys.argv),
    )
    sys.exit(run_bench(options))


@bench.command
def compare(*files: Path, html: Path | None = None, seed: int = 0) -> None:
    """Say which differences between runs are real.

    Parameters
    ----------
    files
        Two or more results written by `headgate bench --json`; the first is what the others are compared with.
    html
        File for a report with plots.
    seed
        Seed of the resampling.
    """
    from headgate.bench.compare import run as run_compare

    sys.exit(run_compare(files, page=html, seed=seed))
