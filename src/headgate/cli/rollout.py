"""Adds `headgate rollout`, which tries a new version out, compares it, promotes it, or rolls it back."""

from typing import Any, Literal

from cyclopts import App

from headgate.cli.look import HERE, Key, Url

rollout = App(name="rollout", help="Change which version of a model clients get: start, status, promote, rollback.")


def add_to(app: App) -> None:
    app.command(rollout)


@rollout.command
def start(
    name: str,
    version: str,
    *,
    mode: Literal["canary", "split", "blue-green", "shadow"] = "canary",
    share: float | None = None,
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
        Share of requests in a split or a shadow, between 0 and 1. Default: the config's.
    """
    from headgate.cli import rollout_client

    body: dict[str, Any] = {"version": version, "mode": mode.replace("-", "_"), "share": share}
    rollout_client.act(url, key, name, "start", body)


@rollout.command
def status(name: str | None = None, *, url: Url = HERE, key: Key = None) -> None:
    """Say which version gets what, and how a new one compares.

    Parameters
    ----------
    name
        Only this model. Default: all models.
    """
    from headgate.cli import rollout_client

    rollout_client.status(url, key, name)


@rollout.command
def promote(name: str, *, url: Url = HERE, key: Key = None) -> None:
    """Give the version that is being tried out all requests, now.

    Parameters
    ----------
    name
        What clients ask for.
    """
    from headgate.cli import rollout_client

    rollout_client.act(url, key, name, "promote", {})


@rollout.command
def rollback(name: str, *, url: Url = HERE, key: Key = None) -> None:
    """Go back to the previous version, from the next request on.

    Parameters
    ----------
    name
        What clients ask for.
    """
    from headgate.cli import rollout_client

    rollout_client.act(url, key, name, "rollback", {})
