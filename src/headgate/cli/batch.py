"""Adds `headgate batch`, which shows the batches of all tenants, and cancels them."""

from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from headgate.cli.look import HERE, AsJson, Key, Url
from headgate.cli.setup.groups import OPERATE

batch = App(name="batch", group=OPERATE, help="Show how far batches are and what they wait for: ls, show, cancel.")


def add_to(app: App) -> None:
    app.command(batch)


@batch.command
def ls(
    *,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=100))] = 20,
    as_json: AsJson = False,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """List batches, the newest first.

    Parameters
    ----------
    limit
        How many at most, up to 100.
    """
    from headgate.cli import batch_client

    batch_client.ls(url, key, limit, as_json=as_json)


@batch.command
def show(batch_id: str, *, as_json: AsJson = False, url: Url = HERE, key: Key = None) -> None:
    """Show one batch: how far it is, what it waits for, which lines are malformed.

    Parameters
    ----------
    batch_id
        As the API and `headgate batch ls` name it.
    """
    from headgate.cli import batch_client

    batch_client.show(url, key, batch_id, as_json=as_json)


@batch.command
def cancel(batch_id: str, *, as_json: AsJson = False, url: Url = HERE, key: Key = None) -> None:
    """Cancel a batch; what has a result keeps it.

    Parameters
    ----------
    batch_id
        As the API and `headgate batch ls` name it.
    """
    from headgate.cli import batch_client

    batch_client.cancel(url, key, batch_id, as_json=as_json)
