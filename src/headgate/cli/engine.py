"""Adds `headgate engine`, which runs one engine replica by itself, and the flags about engines that `serve` has too."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter, validators

from headgate.cli.setup.groups import EMULATION, LISTEN, RUN, engine_group
from headgate.cli.setup.log_flags import LogFlags
from headgate.cli.setup.quantities import Duration, milliseconds
from headgate.config.engine import ENGINE_PORT, EngineConfig, contradictions
from headgate.config.forms.flags import Flag, flags_of
from headgate.config.listen import ListenConfig
from headgate.logs import LogOptions
from headgate.model.clock import monotonic
from headgate.model.errors import UsageError
from headgate.progress import Progress

FLAGS = flags_of(EngineConfig)
port_number = Parameter(validator=validators.Number(gte=0, lte=65535))
FILES = {
    "model": "a GGUF file or a Hugging Face folder",
    "loras": "an adapter (GGUF)",
    "chat_template": "a Jinja template",
}
NOT_EMULATED = ("model", "device", "loras", "system_prompts", "gpu_layers", "kv_type")
"""Settings that an emulated engine refuses: it computes nothing."""


def add_to(app: App) -> None:
    app.command(engine, group=RUN)


def _parameter(flag: Flag) -> Any:
    """The annotation from which cyclopts makes the option."""
    shown = Parameter(group=engine_group(flag.group), help=flag.help, negative="", validator=_within(flag))
    if flag.in_ms:
        return Annotated[flag.type | None, Parameter(converter=milliseconds, metavar="MS"), shown]
    if flag.type is bool or flag.default == ():
        return Annotated[flag.type, shown]
    return Annotated[flag.type | None, shown]


def _within(flag: Flag) -> Callable[[Any, Any], None]:
    def validate(_: Any, given: Any) -> None:
        values = given if isinstance(given, tuple) else () if given is None else (given,)
        if flag.check is not None and not all(flag.check.allows(flag.value(value)) for value in values):
            raise ValueError(f"must be {flag.check.expected}{', in seconds' if flag.in_ms else ''}.")

    return validate


def _with_fields(cls: Any) -> Any:
    """Gives the class a field for each flag. A flag that is not given is None, False or ()."""
    cls.__annotations__ = {flag.name: _parameter(flag) for flag in FLAGS}
    for flag in FLAGS:
        setattr(cls, flag.name, flag.default if flag.type is bool or flag.default == () else None)
    return dataclass(frozen=True, kw_only=True)(cls)


@Parameter(name="*")
@_with_fields
class EngineFlags:
    """The engine flags of a command line. The fields come from EngineConfig."""

    def given(self) -> dict[str, Any]:
        """Returns the fields of EngineConfig that the command line sets."""
        said = [(flag, getattr(self, flag.name)) for flag in FLAGS]
        return {
            flag.field: flag.value(value)
            for flag, value in said
            if value is not None and value is not False and value != ()
        }

    def config(self) -> EngineConfig:
        return EngineConfig(**self.given())


def checked(config: EngineConfig) -> EngineConfig:
    """Raises UsageError where the flags of this config contradict each other, or name a file that is not there."""
    spelled = {flag.field: flag.spelled for flag in FLAGS}
    for name, problem in contradictions(config):
        raise UsageError(f"{spelled[name]}: {problem}")
    named = {"model": (config.model,), "loras": config.loras, "chat_template": (config.chat_template,)}
    for name, paths in named.items():
        for path in paths:
            if path is not None and not path.is_file() and not (name == "model" and (path / "config.json").is_file()):
                what = "is a folder" if path.is_dir() else "is not there"
                raise UsageError(f"{spelled[name]}: {path} {what}; give the path of {FILES[name]}")
    return config


DEFAULTS = EngineFlags()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    host: Annotated[str, Parameter(group=LISTEN)] = field(default_factory=lambda: ListenConfig().host)
    """Address to listen on."""
    port: Annotated[int, port_number, Parameter(group=LISTEN)] = ENGINE_PORT
    """Port to listen on; 0 takes a free one."""
    uds: Annotated[Path | None, Parameter(group=LISTEN)] = None
    """Unix socket to listen on instead of host and port."""
    banner: Annotated[bool, Parameter(group=LISTEN)] = True
    """Say hello and how to try it; a gateway that starts an engine for itself says that on its own."""
    emulate: Annotated[str | None, Parameter(group=EMULATION)] = None
    """Take a GPU's time instead of computing: h100-llama3-8b, h100x4-llama3-70b or another profile that comes with
    Headgate, or a file made by `headgate fit`. Answers are placeholder words, and everything that shows says that it is
    emulated."""
    dilate: Annotated[float, Parameter(group=EMULATION, validator=validators.Number(gt=0))] = 1.0
    """How many seconds pass for one of the emulated GPU's, on a machine too slow for its pace."""
    cold_start: Annotated[float, Duration, Parameter(group=EMULATION, validator=validators.Number(gte=0))] = 0.0
    """Time that an emulated engine takes to load its weights, so that cold starts can be tried out: seconds, or 5m."""
    wake: Annotated[float, Duration, Parameter(group=EMULATION, validator=validators.Number(gte=0))] = 0.0
    """Time that an emulated engine takes to wake up from /sleep: seconds, or 5m."""
    step_log: Annotated[Path | None, Parameter(group=EMULATION)] = None
    """File for a line about every step: what was computed, and how long it took. `headgate fit` makes a profile of
    it."""


def engine(
    *, options: EngineOptions | None = None, flags: EngineFlags = DEFAULTS, logs: LogFlags | None = None
) -> None:
    """Run one engine replica by itself."""
    options, logged = options or EngineOptions(), (logs or LogFlags()).options()
    listen = ListenConfig(host=options.host, port=options.port, uds=options.uds)
    progress = Progress(monotonic, banner=options.banner, shown=logged.banner)
    if options.emulate is not None:
        _emulate(options.emulate, options, flags.given(), listen, progress, logged)
        return
    from headgate.wiring.common import bundled_model
    from headgate.wiring.engine import run_engine

    if options.wake:
        raise UsageError("--wake has no effect without --emulate: an engine with real weights does not sleep")
    if options.cold_start:
        raise UsageError("--cold-start has no effect without --emulate: a real engine takes the time it takes")
    config = checked(flags.config())
    if config.model is not None and config.model.is_dir():
        from headgate.wiring.folder import run_folder

        progress.title()
        run_folder(config, frozenset(flags.given()), listen, progress, options.step_log, logged)
        return
    if config.device is not None:
        raise UsageError("--device is for a Hugging Face folder; a GGUF file is computed by the CPU")
    if config.model is None:
        bundled_model()  # says what to do if there is none, before anything starts
    progress.title()
    run_engine(config, listen, progress, options.step_log, logged)


def _emulate(
    name: str,
    options: EngineOptions,
    given: dict[str, Any],
    listen: ListenConfig,
    progress: Progress,
    logged: LogOptions,
) -> None:
    from headgate.engine.emulation import emulated_config
    from headgate.engine.runner.profile_file import find
    from headgate.engine.status import Emulation
    from headgate.wiring.engine import run_emulated

    if any(name in given for name in NOT_EMULATED):
        raise UsageError(
            "--model, --device, --lora, --system-prompt, --gpu-layers and --kv-type have no effect with --emulate: it "
            "computes nothing"
        )
    profile = find(name)
    sizes = {one.name: given[one.name] for one in fields(profile) if one.name in given}
    profile = replace(profile, **sizes)
    progress.title()
    config = checked(replace(emulated_config(profile), **given))
    emulation = Emulation(profile.name, options.dilate, options.cold_start, options.wake)
    run_emulated(profile, emulation, config, listen, progress, options.step_log, logged)
