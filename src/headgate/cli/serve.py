"""Adds `headgate serve`: arguments and a config file in, a running gateway out."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Group, Parameter, validators

from headgate.cli.engine import DEFAULTS, LISTEN, EngineFlags, port_number
from headgate.model.clock import monotonic
from headgate.model.errors import StartupError
from headgate.progress import Progress

if TYPE_CHECKING:
    from headgate.config.gateway import GatewayConfig

positive = Parameter(validator=validators.Number(gte=1))
FLEET = Group("What it serves")


def add_to(app: App) -> None:
    app.command(serve)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    replica: Annotated[tuple[str, ...], Parameter(group=FLEET, negative="")] = ()
    """A running engine, such as http://10.0.0.7:8000; may be given several times. Without any, Headgate runs its
    own."""
    replica_key_file: Annotated[Path | None, Parameter(group=FLEET)] = None
    """File with the API key that every --replica wants. It is sent to them, and never shown."""
    config: Annotated[Path | None, Parameter(group=FLEET)] = None
    """YAML file for everything: lanes, tenants, replicas, limits (see headgate.example.yaml)."""
    engines: Annotated[int | None, positive, Parameter(group=FLEET)] = None
    """Run this many engines of its own, each in a process, and keep them running. Default: one."""
    watch: Annotated[bool, Parameter(group=FLEET, negative="")] = False
    """Take the config file whenever it changes."""
    check: Annotated[bool, Parameter(group=FLEET, negative="")] = False
    """Say whether the config is fine, and stop."""
    record: Annotated[Path | None, Parameter(group=FLEET)] = None
    """File to append a JSON line to for every request, without what was asked; rotated."""
    event_log: Annotated[Path | None, Parameter(group=FLEET)] = None
    """File for every decision and what it was made from, for `headgate replay`."""
    host: Annotated[str | None, Parameter(group=LISTEN)] = None
    """Address to listen on. Default: 127.0.0.1."""
    port: Annotated[int | None, port_number, Parameter(group=LISTEN)] = None
    """Port to listen on; 0 takes a free one. Default: 8000."""
    uds: Annotated[Path | None, Parameter(group=LISTEN)] = None
    """Unix socket to listen on instead of host and port; only this user may connect (listen.uds_for)."""
    insecure: Annotated[bool, Parameter(group=LISTEN, negative="")] = False
    """Listen beyond this machine without any API key."""


def serve(*, options: ServeOptions | None = None, flags: EngineFlags = DEFAULTS) -> None:
    """Serve models on one OpenAI-compatible address: the gateway, in front of running engines or with one of its
    own."""
    from headgate.config import file as config_file
    from headgate.config.listen import check_exposure
    from headgate.replica.credentials import Credentials

    options = options or ServeOptions()
    chosen = _chosen(options, flags)
    check_exposure(chosen.listen, chosen.has_keys, options.insecure)
    for one in chosen.replicas:
        Credentials(one)  # says which file can't be used, before anything starts
    if options.check:
        print(config_file.describe(chosen))
        return
    from headgate.wiring.common import bundled_model
    from headgate.wiring.gateway import run_gateway

    if chosen.embedded is not None and chosen.embedded.model is None:
        bundled_model()  # says what to do if there is none, before anything starts
    progress = Progress(monotonic)
    progress.title()
    path = options.config
    reload = None if path is None else lambda: config_file.load(path)
    run_gateway(chosen, progress, reload, options.event_log, path if options.watch else None)


def _chosen(options: ServeOptions, flags: EngineFlags) -> "GatewayConfig":
    """The config that file and arguments make together."""
    from headgate.config import file as config_file
    from headgate.config.fleet import FleetConfig
    from headgate.config.gateway import GatewayConfig
    from headgate.config.scale import ScaleConfig

    chosen = config_file.load(options.config) if options.config is not None else GatewayConfig()
    if options.replica:
        found = (config_file.replica_at(url) for url in options.replica)
        replicas = tuple(replace(replica, api_key_file=options.replica_key_file) for replica in found)
        chosen = replace(chosen, replicas=replicas, embedded=None)
    elif options.replica_key_file is not None:
        raise StartupError("--replica-key-file is for --replica; in a config each replica has its api_key_file")
    chosen = _listening(chosen, options)
    if options.record is not None:
        chosen = replace(chosen, record=replace(chosen.record, path=options.record))
    own_engine = not chosen.replicas and options.config is None
    if options.engines is not None:
        if not own_engine:
            raise StartupError("--engines has no effect with --replica or --config: give the config a fleet")
        scale = ScaleConfig(min=options.engines, max=options.engines, forecast=False)
        chosen = replace(chosen, fleet=FleetConfig(kind="processes", scale=scale))
    if options.watch and options.config is None:
        raise StartupError("--watch wants a file to watch: give --config FILE")
    if own_engine:
        return replace(chosen, embedded=flags.config())
    if flags != DEFAULTS:
        raise StartupError(
            "engine options have no effect with --replica or --config: give them to that engine, or there"
        )
    return chosen


def _listening(chosen: "GatewayConfig", options: ServeOptions) -> "GatewayConfig":
    host, port, listen = options.host, options.port, chosen.listen
    given = host is not None or port is not None
    if options.uds is not None:
        if given:
            raise StartupError("--uds is instead of --host and --port: give one or the other")
        return replace(chosen, listen=replace(listen, uds=options.uds))
    if not given:
        return chosen
    listen = replace(listen, host=host or listen.host, port=listen.port if port is None else port, uds=None)
    return replace(chosen, listen=listen)
