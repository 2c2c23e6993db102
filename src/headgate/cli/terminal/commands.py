"""Adds the commands for a terminal beside a running gateway: top, chat, blame, incident."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from headgate.cli.look import HERE, Key, Url
from headgate.cli.setup.groups import LOOK, RUN

incident = App(
    name="incident", group=LOOK, help="What the last minute was like when an alert turned critical: ls, show, record."
)
Json = Annotated[bool, Parameter(name="--json", negative="")]


def add_to(app: App) -> None:
    app.command(top, group=LOOK)
    app.command(chat, group=RUN)
    app.command(blame, group=LOOK)
    app.command(incident)


def top(*, once: Annotated[bool, Parameter(negative="")] = False, url: Url = HERE, key: Key = None) -> None:
    """Watch a running gateway: verdict, lanes, replicas, the slowest requests and why.

    Keys: q leaves, arrows choose a request, enter says where its time went, i records an incident, ? helps.

    Parameters
    ----------
    once
        Print one frame and leave; so does a command without a terminal.
    """
    from headgate.cli.terminal import top_client

    top_client.top(url, key, once=once)


def chat(
    *,
    url: Url = HERE,
    model: str = "default",
    lane: str | None = None,
    system: str | None = None,
    max_tokens: int | None = None,
    key: Annotated[str | None, Parameter(env_var="HEADGATE_API_KEY")] = None,
) -> None:
    """Talk to a model, streamed; says after each answer how long the first token took, and the pace.

    Ctrl-C stops an answer. With text on its input it answers that once: `headgate chat < question.txt`.

    Parameters
    ----------
    model
        Model to ask for.
    lane
        Lane to ask in, for keys that the gateway trusts. Default: the gateway chooses.
    system
        System prompt.
    max_tokens
        Maximum tokens of an answer. Default: the gateway's.
    key
        A tenant's key, if the gateway requires one.
    """
    from headgate.cli.terminal import chat_client

    settings = chat_client.ChatSettings(
        url=url, model=model, lane=lane, key=key, system=system, max_tokens=max_tokens
    )  # fmt: skip
    sys.exit(chat_client.chat(settings))


def blame(
    *,
    lane: str | None = None,
    last: str = "5m",
    by: Literal["ttft", "e2e"] = "ttft",
    url: Url = HERE,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Say which tenant cost which how much of its p99: by its prompts, by its place in the queue.

    Parameters
    ----------
    lane
        Only requests of this lane.
    last
        How far back: 90s, 5m, 1h.
    by
        The figure whose p99 it is: ttft, or e2e for the whole answer.
    as_json
        Print JSON.
    """
    from headgate.cli.terminal import blame_client

    blame_client.blame(url, key, lane=lane, last=last, by=by, as_json=as_json)


@incident.command
def ls(*, url: Url = HERE, key: Key = None, as_json: Json = False) -> None:
    """List the incidents that are kept, the newest first.

    Parameters
    ----------
    as_json
        Print JSON.
    """
    from headgate.cli.terminal import incident_client

    incident_client.ls(url, key, as_json=as_json)


@incident.command
def show(
    name: str | None = None, *, trace: Path | None = None, url: Url = HERE, key: Key = None, as_json: Json = False
) -> None:
    """Tell one incident in words: which alert, the queues, the replicas, the slowest requests and why.

    Parameters
    ----------
    name
        As `headgate incident ls` lists it. Default: the newest.
    trace
        File to save the trace to, which https://ui.perfetto.dev opens.
    as_json
        Print JSON.
    """
    from headgate.cli.terminal import incident_client

    incident_client.show(url, key, name, trace=trace, as_json=as_json)


@incident.command
def record(*, reason: str = "", url: Url = HERE, key: Key = None, as_json: Json = False) -> None:
    """Record the last minute now.

    Parameters
    ----------
    reason
        Why, for the list.
    as_json
        Print JSON.
    """
    from headgate.cli.terminal import incident_client

    incident_client.record(url, key, reason, as_json=as_json)
