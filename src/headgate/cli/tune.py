"""Adds `headgate tune`, which measures replicas and recommends a config's limits."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter, validators

Repeated = Parameter(negative="", consume_multiple=True)
Above = Parameter(validator=validators.Number(gt=0))


def add_to(app: App) -> None:
    app.command(tune)


def tune(
    *urls: str,
    sla: Annotated[tuple[str, ...], Repeated] = ("ttft:500",),
    slow_ttft: Annotated[float, Above] = 2000.0,
    longest: Annotated[int, Above] = 8192,
    prompt: Annotated[int | None, Above] = None,
    output: Annotated[int, Above] = 64,
    concurrency: Annotated[int, Above] = 256,
    budget: Annotated[float, Above] = 180.0,
    requests: Annotated[int, Above] = 5000,
    model: str | None = None,
    endpoint: Literal["chat", "completions"] = "chat",
    key: Annotated[tuple[str, ...], Repeated] = (),
    json: Path | None = None,
    html: Path | None = None,
) -> None:
    """Find the line between short and long prompts, and how many at once keep the promise, on running replicas.

    Point it at the replicas themselves, not at a gateway, whose queue would be measured too. No other client should
    use them meanwhile.

    Parameters
    ----------
    urls
        Replicas of one kind, asked in turn. Default: http://127.0.0.1:8001.
    sla
        What is promised at p95, in milliseconds, such as ttft:500 tpot:80.
    slow_ttft
        What the slow lane promises at p95, in milliseconds: a prompt that takes this long alone is long.
    longest
        Longest prompt to try, in tokens.
    prompt
        Prompt tokens while many are asked at once. Default: half of what turns out to be short, 16 to 512.
    output
        Output tokens while many are asked at once.
    concurrency
        Most requests at once, all replicas together.
    budget
        Seconds it may take.
    requests
        Requests it may send.
    model
        Model to ask for. Default: the first that the server names.
    endpoint
        chat or completions.
    key
        API key; env:NAME reads it from the environment.
    json
        File for all that was found.
    html
        File for a page with two plots.
    """
    from headgate.bench.tune import run as run_tune
    from headgate.bench.tuned import TuneOptions

    options = TuneOptions(
        urls=urls or ("http://127.0.0.1:8001",), sla=sla, slow_ttft_ms=slow_ttft, longest=longest, prompt=prompt,
        output=output, concurrency=concurrency, budget_s=budget, requests=requests, model=model, endpoint=endpoint,
        keys=key, json=json, html=html,
    )  # fmt: skip
    sys.exit(run_tune(options))
