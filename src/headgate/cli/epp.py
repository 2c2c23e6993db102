"""Adds `headgate epp`: the gateway's policies as an endpoint picker for Envoy and gateways built on it."""

from dataclasses import dataclass, replace
from typing import Annotated

from cyclopts import App, Parameter

from headgate.cli.engine import DEFAULTS, port_number
from headgate.cli.serve import ServeOptions, chosen_config, run
from headgate.cli.setup.groups import LISTEN, RUN
from headgate.cli.setup.log_flags import LogFlags
from headgate.model.errors import UsageError


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
    from headgate.config.listen import EppConfig

    options, picker = options or ServeOptions(), picker or PickerOptions()
    if not options.replica and options.config is None:
        raise UsageError("headgate epp picks among running replicas: give --replica URL, or --config FILE with them")
    chosen = chosen_config(options, DEFAULTS)
    if not chosen.replicas and chosen.fleet.kind == "fixed" and not chosen.fleet.pools:
        raise UsageError("there are no replicas in the config: a proxy can't send to an engine inside this process")
    given = chosen.epp or EppConfig()
    host, port = picker.grpc_host or given.host, given.port if picker.grpc_port is None else picker.grpc_port
    run(replace(chosen, epp=replace(given, host=host, port=port)), options, logs)
