"""Adds `headgate serve`: arguments and a config file in, a running gateway out."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter, validators

from headgate.cli.engine import DEFAULTS, EngineFlags, checked, port_number
from headgate.cli.setup.groups import FIRST, LISTEN, RUN, SERVES
from headgate.cli.setup.log_flags import LogFlags
from headgate.model.clock import monotonic
from headgate.model.errors import UsageError
from headgate.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.config.fleet import FleetConfig
    from headgate.config.gateway import GatewayConfig

positive = Parameter(validator=validators.Number(gte=1))


def add_to(app: App) -> None:
    app.command(serve, group=RUN)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    replica: Annotated[tuple[str, ...], Parameter(group=FIRST, negative="")] = ()
    """A running engine, such as http://10.0.0.7:8000; may be given several times. Without any, Headgate runs its
    own."""
    config: Annotated[Path | None, Parameter(group=FIRST)] = None
    """YAML file for everything: lanes, tenants, replicas, limits. `headgate init` writes one."""
    port: Annotated[int | None, port_number, Parameter(group=FIRST)] = None
    """Port to listen on; 0 takes a free one. Default: 8000."""
    replica_key_file: Annotated[Path | None, Parameter(group=SERVES)] = None
    """File with the API key that every --replica wants. It is sent to them, and never shown."""
    vllm: Annotated[str | None, Parameter(group=FIRST)] = None
    """Start vLLM with this model, and keep it running; flags behind -- are vLLM's own."""
    engines: Annotated[int | None, positive, Parameter(group=SERVES)] = None
    """Run this many engines of its own, or of vLLM, each in a process, and keep them running. Default: one."""
    vllm_bin: Annotated[str | None, Parameter(group=SERVES)] = None
    """vLLM's command, such as /opt/vllm/bin/vllm. Default: vllm, on the PATH."""
    watch: Annotated[bool, Parameter(group=SERVES, negative="")] = False
    """Take the config file whenever it changes."""
    check: Annotated[bool, Parameter(group=SERVES, negative="")] = False
    """Say whether the config is fine, and stop."""
    record: Annotated[Path | None, Parameter(group=SERVES)] = None
    """File to append a JSON line to for every request, without what was asked; rotated."""
    event_log: Annotated[Path | None, Parameter(group=SERVES)] = None
    """File for every decision and what it was made from, for `headgate replay`."""
    workers: Annotated[int | None, positive, Parameter(group=LISTEN)] = None
    """Processes that serve clients, on as many cores; one more decides for all of them. Default: 1, which does both."""
    host: Annotated[str | None, Parameter(group=LISTEN)] = None
    """Address to listen on. Default: 127.0.0.1."""
    uds: Annotated[Path | None, Parameter(group=LISTEN)] = None
    """Unix socket to listen on instead of host and port; only this user may connect (listen.uds_for)."""
    insecure: Annotated[bool, Parameter(group=LISTEN, negative="")] = False
    """Listen beyond this machine without any API key."""


def serve(
    *words: Annotated[str, Parameter(show=False)],
    options: ServeOptions | None = None,
    flags: EngineFlags = DEFAULTS,
    logs: LogFlags | None = None,
) -> None:
    """Serve models on one OpenAI-compatible address: the gateway, in front of running engines or with its own."""
    given = options or ServeOptions()
    run(lambda: chosen_config(given, flags, words), given, logs)


def run(made: "Callable[[], GatewayConfig]", options: ServeOptions, logs: LogFlags | None) -> None:
    """Runs a gateway with the config that file and arguments make, now and at each reload."""
    from headgate.config import file as config_file
    from headgate.config.listen import check_exposure
    from headgate.replica.credentials import Credentials
    from headgate.surface.drift import profiles_of

    logged, chosen = (logs or LogFlags()).options(), made()
    check_exposure(chosen.listen, chosen.has_keys, options.insecure)
    for one in chosen.replicas:
        Credentials(one)  # says which file can't be used, before anything starts
    Credentials(chosen.fleet.access.replica("fleet.access", "https:"))
    profiles_of(chosen.observe)
    if options.check:
        print(config_file.describe(chosen))
        return
    from headgate.wiring.common import bundled_model
    from headgate.wiring.gateway import run_gateway
    from headgate.wiring.several import run_several

    if chosen.embedded is not None and chosen.embedded.model is None:
        bundled_model()  # says what to do if there is none, before anything starts
    progress = Progress(monotonic, shown=logged.banner)
    progress.title()
    path = options.config
    start = run_gateway if chosen.listen.workers == 1 else run_several
    start(chosen, progress, None if path is None else made, options.event_log, path if options.watch else None, logged)


def chosen_config(options: ServeOptions, flags: EngineFlags, words: tuple[str, ...] = ()) -> "GatewayConfig":
    """The config that file and arguments make together."""
    from headgate.config import file as config_file
    from headgate.config.contradictions import odd_workers
    from headgate.config.fleet import FleetConfig
    from headgate.config.gateway import GatewayConfig
    from headgate.config.scale import ScaleConfig

    chosen = config_file.load(options.config) if options.config is not None else GatewayConfig()
    if options.replica:
        found = (config_file.replica_at(url) for url in options.replica)
        replicas = tuple(replace(replica, api_key_file=options.replica_key_file) for replica in found)
        chosen = replace(chosen, replicas=replicas, embedded=None)
    elif options.replica_key_file is not None:
        raise UsageError("--replica-key-file is for --replica; in a config each replica has its api_key_file")
    chosen = _listening(chosen, options)
    if options.workers is not None:
        chosen = replace(chosen, listen=replace(chosen.listen, workers=options.workers))
        problems = [f"--workers {options.workers}: {path}: {problem}" for path, problem in odd_workers(chosen)]
        if problems:
            raise UsageError(problems[0])
    if options.record is not None:
        chosen = replace(chosen, record=replace(chosen.record, path=options.record))
    if options.watch and options.config is None:
        raise UsageError("--watch wants a file to watch: give --config FILE")
    if options.vllm is not None:
        return replace(chosen, embedded=None, fleet=_vllm_fleet(options.vllm, options, flags, words))
    if options.vllm_bin is not None or words:
        what = "--vllm-bin" if options.vllm_bin is not None else f"serve has no place for {words[0]!r}: it"
        raise UsageError(f"{what} is for --vllm MODEL; in a config there is fleet.vllm")
    own_engine = not chosen.replicas and options.config is None
    if options.engines is not None:
        if not own_engine:
            raise UsageError("--engines has no effect with --replica or --config: give the config a fleet")
        scale = ScaleConfig(min=options.engines, max=options.engines, forecast=False)
        chosen = replace(chosen, fleet=FleetConfig(kind="processes", scale=scale))
    if own_engine:
        return replace(chosen, embedded=checked(flags.config()))
    if flags != DEFAULTS:
        raise UsageError("engine options have no effect with --replica or --config: give them to that engine, or there")
    return chosen


def _vllm_fleet(model: str, options: ServeOptions, flags: EngineFlags, words: tuple[str, ...]) -> "FleetConfig":
    from headgate.config.fleet import FleetConfig, VllmConfig, contradictions
    from headgate.config.scale import ScaleConfig

    if options.replica or options.config is not None:
        raise UsageError("--vllm has no effect with --replica or --config: give the config fleet.vllm")
    if flags != DEFAULTS:
        raise UsageError("engine options have no effect with --vllm: give vLLM's own behind --")
    count = options.engines or 1
    vllm = VllmConfig(model=model, bin=options.vllm_bin or "vllm", flags=words)
    scale = ScaleConfig(min=count, max=count, forecast=False)
    made = FleetConfig(kind="processes", scale=scale, vllm=vllm)
    for _, problem in contradictions(made):
        raise UsageError(f"--vllm: {problem}")
    return made


def _listening(chosen: "GatewayConfig", options: ServeOptions) -> "GatewayConfig":
    host, port, listen = options.host, options.port, chosen.listen
    given = host is not None or port is not None
    if options.uds is not None:
        if given:
            raise UsageError("--uds is instead of --host and --port: give one or the other")
        return replace(chosen, listen=replace(listen, uds=options.uds))
    if not given:
        return chosen
    listen = replace(listen, host=host or listen.host, port=listen.port if port is None else port, uds=None)
    return replace(chosen, listen=listen)
