"""Adds the commands that change a running gateway's fleet and config, and that print its tenants' usage."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter, validators

from headgate.cli.look import HERE, AsJson, Key, Url
from headgate.cli.setup.groups import OPERATE
from headgate.cli.setup.quantities import Duration

Replica = Annotated[str, Parameter(help="Its id, as `headgate fleet` shows it.")]

fleet = App(name="fleet", group=OPERATE, help="Show and change the replicas of a running gateway.")


def add_to(app: App) -> None:
    app.command(fleet)
    app.command(reload, group=OPERATE)


@fleet.default
def show(*, as_json: AsJson = False, url: Url = HERE, key: Key = None) -> None:
    """Say which replicas there are, what was decided about them, and why."""
    from headgate.cli import fleet_client

    fleet_client.show(url, key, as_json=as_json)


@fleet.command
def add(replica: str, *, url: Url = HERE, key: Key = None) -> None:
    """Take a running engine into use.

    Parameters
    ----------
    replica
        Its address, such as http://10.0.0.7:8000.
    """
    from headgate.cli import fleet_client

    fleet_client.add(url, replica, key)


@fleet.command
def drain(replica: Replica, *, url: Url = HERE, key: Key = None) -> None:
    """Give a replica nothing new. One that the gateway has started is stopped once it is empty."""
    from headgate.cli import fleet_client

    fleet_client.act(url, replica, "drain", key)


@fleet.command
def activate(replica: Replica, *, url: Url = HERE, key: Key = None) -> None:
    """Give a replica requests again."""
    from headgate.cli import fleet_client

    fleet_client.act(url, replica, "activate", key)


@fleet.command
def sleep(replica: Replica, *, url: Url = HERE, key: Key = None) -> None:
    """Let a parked replica of the fleet give its GPU's memory back."""
    from headgate.cli import fleet_client

    fleet_client.act(url, replica, "sleep", key)


@fleet.command
def wake(replica: Replica, *, url: Url = HERE, key: Key = None) -> None:
    """Wake a replica of the fleet that sleeps. It stays parked."""
    from headgate.cli import fleet_client

    fleet_client.act(url, replica, "wake", key)


@fleet.command
def remove(replica: Replica, *, url: Url = HERE, key: Key = None) -> None:
    """Do without a replica from now on. What it is doing may finish."""
    from headgate.cli import fleet_client

    fleet_client.remove(url, replica, key)


@fleet.command
def zero(
    *,
    requests: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=1000))] = 10,
    patience: Annotated[float, Duration, Parameter(validator=validators.Number(gt=0))] = 600.0,
    url: Url = HERE,
    key: Key = None,
    api_key: Annotated[str | None, Parameter(env_var="OPENAI_API_KEY")] = None,
) -> None:
    """Stop every replica of the fleet on purpose, and measure what the next request pays for it.

    Sends a few requests while all is warm, stops everything, sends one, and keeps both figures at the gateway as its
    baseline. Any other client that sends a request meanwhile pays too: not for a gateway that is in use.

    Parameters
    ----------
    requests
        Number of requests to measure while warm.
    patience
        How long to wait for the first token afterwards: seconds, or a time such as 5m.
    api_key
        A tenant's key for the requests, if the gateway wants one.
    """
    from headgate.cli import fleet_client

    fleet_client.zero(url, key, api_key, requests, patience)


def reload(*, url: Url = HERE, key: Key = None) -> None:
    """Have a running gateway read its config file again. One that is wrong is refused, and the old one stays."""
    from headgate.cli import fleet_client

    fleet_client.reload(url, key)


def usage(
    *,
    last: str = "24h",
    format: Literal["jsonl", "csv"] = "jsonl",
    out: Path | None = None,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Print what each tenant has used of each model, by the hour.

    Parameters
    ----------
    last
        How far back: 90m, 24h, 7d.
    format
        jsonl or csv.
    out
        File to write to. Default: standard output.
    """
    from headgate.cli import fleet_client

    fleet_client.usage(url, last, format, out, key)
