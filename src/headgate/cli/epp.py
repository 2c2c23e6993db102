"""Adds `headgate epp`: the gateway's policies as an endpoint picker for Envoy and gateways built on it."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from headgate.cli.engine import DEFAULTS, port_number
from headgate.cli.serve import ServeOptions, chosen_config, run
from headgate.cli.setup.groups import LISTEN, RUN
from headgate.cli.setup.log_flags import LogFlags
from headgate.model.errors import UsageError

if TYPE_CHECKING:
    from headgate.config.gateway import GatewayConfig


def add_to(app: App) -> None:
    app.command(epp, group=RUN)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PickerOptions:
    grpc_host: Annotated[str | None, Parameter(group=LISTEN)] = None
    """Address on which proxies ask over gRPC. Default: 127.0.0.1."""
    grpc_port: Annotated[int | None, port_number, Parameter(group=LISTEN)] = None
    """Port on which proxies ask over gRPC; 0 takes a free one. Default: 9002."""


def epp(
    *, options: ServeOptions | None = None, picker: PickerOptions | None = None, logs: LogFlags | None = None
) -> None:
    """Tell Envoy where each request may go (ext_proc, Inference Extension): same lanes, limits, fairness and figures.

    Envoy sends the requests itself. Page, /metrics and /admin are at --port, as with `headgate serve`.
    """
    given, asked = options or ServeOptions(), picker or PickerOptions()
    if not given.replica and given.config is None:
        raise UsageError("headgate epp picks among running replicas: give --replica URL, or --config FILE with them")
    run(lambda: _with_picker(chosen_config(given, DEFAULTS), asked), given, logs)


def _with_picker(chosen: "GatewayConfig", asked: PickerOptions) -> "GatewayConfig":
    from headgate.config.listen import EppConfig

    if not chosen.replicas and chosen.fleet.kind == "fixed" and not chosen.fleet.pools:
        raise UsageError("there are no replicas in the config: a proxy can't send to an engine inside this process")
    epp = chosen.epp or EppConfig()
    host, port = asked.grpc_host or epp.host, epp.port if asked.grpc_port is None else asked.grpc_port
    return replace(chosen, epp=replace(epp, host=host, port=port))
