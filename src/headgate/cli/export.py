"""`headgate export`: what other tools need, made from the one config."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from headgate.model.gateway_config import GatewayConfig

export = App(name="export", help="Print what other tools need, made from the gateway's own config.")
Config = Annotated[Path | None, Parameter(name="--config")]


def add_to(app: App) -> None:
    app.command(export)


@export.command(name="prometheus-rules")
def prometheus_rules(*, config: Config = None) -> None:
    """Recording and alerting rules for the promises of every lane.

    Parameters
    ----------
    config
        The gateway's YAML file. Default: the default lanes and promises.
    """
    from headgate.export.prometheus_rules import rules

    print(rules(_load(config)), end="")


@export.command
def grafana(*, config: Config = None) -> None:
    """A dashboard, as JSON to import.

    Parameters
    ----------
    config
        The gateway's YAML file. Default: the default lanes and promises.
    """
    from headgate.export.grafana import dashboard

    print(dashboard(_load(config)))


def _load(path: Path | None) -> GatewayConfig:
    from headgate import config_file

    return config_file.load(path) if path is not None else GatewayConfig()
