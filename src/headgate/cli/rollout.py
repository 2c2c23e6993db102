"""`headgate rollout`: try a new version out, see how it does, give it everything, or take it back."""

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
        Which of its versions.
    mode
        canary: in steps, promoted or rolled back by itself. split: a fixed share (A/B). blue-green: everything at once,
        the old one kept warm. shadow: copies of requests, answers thrown away.
    share
        Of a split or a shadow, between 0 and 1. Default: the config's.
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
        Only of this one. Default: of all.
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
    """Back to what there was before, from the next request on.

    Parameters
    ----------
    name
        What clients ask for.
    """
    from headgate.cli import rollout_client

    rollout_client.act(url, key, name, "rollback", {})
