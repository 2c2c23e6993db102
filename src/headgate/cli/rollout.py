"""Adds `headgate rollout`, which tries a new version out, compares it, promotes it, or rolls it back."""

from typing import Annotated, Any, Literal

from cyclopts import App

from headgate.cli.look import HERE, AsJson, Key, Url
from headgate.cli.setup.groups import OPERATE
from headgate.cli.setup.quantities import Share

rollout = App(
    name="rollout", group=OPERATE, help="Change which version of a model clients get: start, status, promote, rollback."
)


def add_to(app: App) -> None:
    app.command(rollout)


@rollout.command
def start(
    name: str,
    version: str,
    *,
    mode: Literal["canary", "split", "blue-green", "shadow"] = "canary",
    share: Annotated[float | None, Share] = None,
    as_json: AsJson = False,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Try a version out.

    Parameters
    ----------
    name
        What clients ask for: a name under `models` in the gateway's config.
    version
        The version to try out.
    mode
        canary: in steps, promoted or rolled back by itself. split: a fixed share (A/B). blue-green: everything at once,
        the old one kept warm. shadow: copies of requests, answers thrown away.
    share
        Share of requests in a split or a shadow, such as 0.2 or 20%. Default: the config's.
    """
    from headgate.cli import rollout_client

    body: dict[str, Any] = {"version": version, "mode": mode.replace("-", "_"), "share": share}
    rollout_client.act(url, key, name, "start", body, as_json=as_json)


@rollout.command
def status(name: str | None = None, *, as_json: AsJson = False, url: Url = HERE, key: Key = None) -> None:
    """Say which version gets what, and how a new one compares.

    Parameters
    ----------
    name
        Only this model. Default: all models.
    """
    from headgate.cli import rollout_client

    rollout_client.status(url, key, name, as_json=as_json)


@rollout.command
def promote(name: str, *, as_json: AsJson = False, url: Url = HERE, key: Key = None) -> None:
    """Give the version that is being tried out all requests, now.

    Parameters
    ----------
    name
        What clients ask for.
    """
    from headgate.cli import rollout_client

    rollout_client.act(url, key, name, "promote", {}, as_json=as_json)


@rollout.command
def rollback(name: str, *, as_json: AsJson = False, url: Url = HERE, key: Key = None) -> None:
    """Go back to the previous version, from the next request on.

    Parameters
    ----------
    name
        What clients ask for.
    """
    from headgate.cli import rollout_client

    rollout_client.act(url, key, name, "rollback", {}, as_json=as_json)
