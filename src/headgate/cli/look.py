"""Adds the commands that ask a running gateway: why, slow, doctor."""

import sys
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter, validators

from headgate.cli.setup.groups import LOOK

ASK = Group("Which gateway")
Url = Annotated[str, Parameter(group=ASK, env_var="HEADGATE_URL", help="Where the gateway listens.")]
Key = Annotated[
    str | None,
    Parameter(group=ASK, env_var="HEADGATE_ADMIN_KEY", help="An admin key, if the gateway wants one."),
]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print it as JSON, for scripts.")]
HERE = "http://127.0.0.1:8000"


def add_to(app: App) -> None:
    for command in (why, slow, doctor):
        app.command(command, group=LOOK)


def why(request_id: str, *, as_json: AsJson = False, url: Url = HERE, key: Key = None) -> None:
    """Say where each millisecond of one request went, and because of what.

    Parameters
    ----------
    request_id
        The x-request-id of its answer; `headgate slow` lists the worst.
    """
    from headgate.cli import client

    client.why(url, request_id, key, as_json=as_json)


def slow(
    *,
    lane: str | None = None,
    last: str = "5m",
    limit: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=1000))] = 20,
    by: Literal["ttft", "e2e", "gap"] = "e2e",
    as_json: AsJson = False,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """List the slowest requests, each with its reason in one line.

    Parameters
    ----------
    lane
        Only requests of this lane.
    last
        How far back: 90s, 5m, 1h.
    limit
        Maximum number of requests.
    by
        ttft, e2e or gap.
    """
    from headgate.cli import client

    client.slow(url, lane=lane, last=last, limit=limit, by=by, key=key, as_json=as_json)


def doctor(
    *,
    url: Annotated[str, Parameter(group=ASK, env_var="HEADGATE_URL")] = HERE,
    key: Key = None,
    gateway: Annotated[str | None, Parameter(group=ASK)] = None,
    api_key: Annotated[str | None, Parameter(group=ASK, env_var="HEADGATE_API_KEY")] = None,
    probe: Annotated[bool, Parameter(group=ASK)] = True,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with a running gateway, what speaks for it, and which knob to turn.

    Two short answers are asked for, to see whether anything in between holds tokens back or hides disconnects.

    Parameters
    ----------
    url
        Where clients reach the gateway, be it through a proxy.
    gateway
        The gateway's own address, where --url is that of a proxy which does not let the admin API through.
    api_key
        A tenant's key, if the gateway requires one.
    probe
        Whether to send these two requests.
    """
    from headgate.cli import client, proxy_probe

    def through(where: str, look: proxy_probe.Look) -> proxy_probe.ProbeReport:
        return proxy_probe.probe(where, api_key, look)

    if not client.doctor(url, key, own=gateway, probe=through if probe else None, as_json=as_json):
        sys.exit(1)
