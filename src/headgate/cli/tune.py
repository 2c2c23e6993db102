"""Adds `headgate tune`, which measures replicas and recommends a config's limits."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter, validators

from headgate.cli.setup.groups import MEASURE
from headgate.cli.setup.quantities import Duration

Repeated = Parameter(negative="", consume_multiple=True)
Above = Parameter(validator=validators.Number(gt=0))


def add_to(app: App) -> None:
    app.command(tune, group=MEASURE)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TuneFlags:
    sla: Annotated[tuple[str, ...], Repeated] = ("ttft:500",)
    """What is promised at p95, in milliseconds, such as ttft:500 tpot:80."""
    slow_ttft: Annotated[float, Above] = 2000.0
    """What the slow lane promises at p95, in milliseconds: a prompt that takes this long alone is long."""
    longest: Annotated[int, Above] = 8192
    """Longest prompt to try, in tokens."""
    prompt: Annotated[int | None, Above] = None
    """Prompt tokens while many are asked at once. Default: half of what turns out to be short, 16 to 512."""
    output: Annotated[int, Above] = 64
    """Output tokens while many are asked at once."""
    concurrency: Annotated[int, Above] = 256
    """Most requests at once, all replicas together."""
    budget: Annotated[float, Duration, Above] = 180.0
    """How long it may take: seconds, or a time such as 5m."""
    requests: Annotated[int, Above] = 5000
    """Requests it may send."""
    model: str | None = None
    """Model to ask for. Default: the first that the server names."""
    endpoint: Literal["chat", "completions"] = "chat"
    """chat or completions."""
    key: Annotated[tuple[str, ...], Repeated] = ()
    """API key; env:NAME reads it from the environment."""
    json: Path | None = None
    """File for all that was found."""
    html: Path | None = None
    """File for a page with two plots."""


def tune(*urls: str, flags: TuneFlags | None = None) -> None:
    """Find the line between short and long prompts, and how many at once keep the promise, on running replicas.

    Point it at the replicas themselves, not at a gateway, whose queue would be measured too. No other client should
    use them meanwhile.

    Parameters
    ----------
    urls
        Replicas of one kind, asked in turn. Default: http://127.0.0.1:8001.
    """
    from headgate.bench.tune import run as run_tune
    from headgate.bench.tuned import TuneOptions

    flags = flags or TuneFlags()
    options = TuneOptions(
        urls=urls or ("http://127.0.0.1:8001",),
        sla=flags.sla,
        slow_ttft_ms=flags.slow_ttft,
        longest=flags.longest,
        prompt=flags.prompt,
        output=flags.output,
        concurrency=flags.concurrency,
        budget_s=flags.budget,
        requests=flags.requests,
        model=flags.model,
        endpoint=flags.endpoint,
        keys=flags.key,
        json=flags.json,
        html=flags.html,
    )
    sys.exit(run_tune(options))
