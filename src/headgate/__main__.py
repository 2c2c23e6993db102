"""Turns arguments into a config and runs it; a StartupError is printed as one line."""

import logging
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from headgate.compiled import prefer_compiled, version

if __name__ == "__main__":
    prefer_compiled()  # before anything else is imported: it may start anew

from cyclopts import App, Group, Parameter, validators

from headgate.cli import export, fleet, load, look, rollout, simulate, tune
from headgate.config.engine import BatchConfig, EngineConfig, ListenConfig
from headgate.config.gateway import EmbeddedConfig
from headgate.model.clock import monotonic
from headgate.model.errors import StartupError
from headgate.progress import Progress

if TYPE_CHECKING:
    from headgate.machine.profile import Profile

app = App(
    name="headgate",
    version=version,
    help="Serve language models with a predictable latency distribution: P95 and P99 stay put.",
    help_epilogue="Start with `headgate serve`, then open http://127.0.0.1:8000/.",
)

look.add_to(app)
export.add_to(app)
fleet.add_to(app)
export.export.command(fleet.usage)
load.add_to(app)
simulate.add_to(app)
tune.add_to(app)
rollout.add_to(app)

positive = Parameter(validator=validators.Number(gte=1))
or_none_at_all = Parameter(validator=validators.Number(gte=0))
at_least_a_block = Parameter(validator=validators.Number(gte=32))
port_number = Parameter(validator=validators.Number(gte=0, lte=65535))
MODEL = Group("Model")
MEMORY = Group("Memory and batching")
LISTEN = Group("Where it listens")
FLEET = Group("What it serves")
EMULATION = Group("Emulation and measurement")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    model: Annotated[Path | None, Parameter(group=MODEL)] = None
    """GGUF file to serve. Default: the bundled SmolLM2-135M-Instruct."""
    model_name: Annotated[str | None, Parameter(group=MODEL)] = None
    """Name clients use. Default: the file's name."""
    lora: Annotated[tuple[Path, ...], Parameter(group=MODEL, negative="")] = ()
    """LoRA adapter (GGUF) to apply; may be given several times."""
    chat_template: Annotated[Path | None, Parameter(group=MODEL)] = None
    """Jinja file to write chats with, instead of the model's own template: one with tools, for example."""
    system_prompt: Annotated[tuple[str, ...], Parameter(group=MODEL, negative="")] = ()
    """System prompt to prefill and keep in the prefix cache for good; may be given several times."""
    max_tokens: Annotated[int | None, positive, Parameter(group=MODEL)] = None
    """Output limit of a request that names none. Default: 512; with serve, 384 for chats and 256 for text."""
    truncate: Annotated[bool, Parameter(group=MODEL, negative="")] = False
    """Cut an over-long prompt from the left instead of refusing it."""
    slots: Annotated[int | None, positive, Parameter(group=MEMORY)] = None
    """Sequences in KV memory at once. Default: 8."""
    context: Annotated[int | None, at_least_a_block, Parameter(group=MEMORY)] = None
    """Tokens each slot holds: the longest prompt plus its output. Default: 4096."""
    kv_tokens: Annotated[int | None, at_least_a_block, Parameter(group=MEMORY)] = None
    """KV memory to hand out, in tokens. Default: slots × context."""
    host_tokens: Annotated[int | None, Parameter(group=MEMORY)] = None
    """Host memory for swapped and cached KV, in tokens. Default: half of slots × context."""
    threads: Annotated[int | None, positive, Parameter(group=MEMORY)] = None
    """Threads that compute. Default: one per core."""
    gap_target_ms: Annotated[float | None, positive, Parameter(group=MEMORY)] = None
    """Longest gap between two tokens of a running stream to aim for. Default: its lane's, 200 ms."""
    step_limit_ms: Annotated[float | None, positive, Parameter(group=MEMORY)] = None
    """Longest step to aim for while no sequence is decoding. Default: 500."""
    longest_shared: Annotated[int | None, positive, Parameter(group=MEMORY)] = None
    """Sequences longer than this don't share a batch with shorter ones. Default: any may."""
    in_order: Annotated[bool, Parameter(group=MEMORY, negative="")] = False
    """First come, first served, as most engines do it, for requests that name no lane. Default: short ones first."""
    draft_batch: Annotated[int | None, or_none_at_all, Parameter(group=MEMORY)] = None
    """Speculative decoding while at most this many sequences decode; 0 turns it off. Default: 2."""

    def config(self) -> EngineConfig:
        from headgate.wiring.common import BUNDLED_NAME, bundled_model

        model = self.model or bundled_model()
        bundled = self.model is None
        return EngineConfig(
            model=model,
            model_name=self.model_name or (BUNDLED_NAME if bundled else model.stem),
            bundled=bundled,
            slots=self.slots or EngineConfig.slots,
            context=self.context or EngineConfig.context,
            threads=self.threads or len(os.sched_getaffinity(0)),
            kv_tokens=self.kv_tokens,
            host_tokens=self.host_tokens,
            default_max_tokens=self.max_tokens or EngineConfig.default_max_tokens,
            truncate=self.truncate,
            loras=self.lora,
            chat_template=self.chat_template,
            system_prompts=self.system_prompt,
            gap_target_s=_seconds(self.gap_target_ms),
            in_order=self.in_order,
            batch=self._batching(BatchConfig()),
        )

    def emulated(self, profile: "Profile", dilation: float) -> EngineConfig:
        """The same config for an engine that emulates a GPU's timing; a flag that is not given keeps the profile's
        value."""
        from headgate.engine.emulation import emulated_config

        config = emulated_config(profile, dilation)
        return replace(
            config,
            model_name=self.model_name or config.model_name,
            default_max_tokens=self.max_tokens or EngineConfig.default_max_tokens,
            truncate=self.truncate,
            gap_target_s=_seconds(self.gap_target_ms),
            in_order=self.in_order,
            batch=replace(self._batching(config.batch), draft_batch=config.batch.draft_batch),  # there is no text
        )

    def _batching(self, usual: BatchConfig) -> BatchConfig:
        return replace(
            usual,
            step_limit_s=usual.step_limit_s if self.step_limit_ms is None else self.step_limit_ms / 1e3,
            longest_shared=self.longest_shared,
            draft_batch=usual.draft_batch if self.draft_batch is None else self.draft_batch,
        )

    def embedded(self) -> EmbeddedConfig:
        """The same flags as the config of the engine that a gateway runs itself."""
        return EmbeddedConfig(
            model=self.model,
            model_name=self.model_name,
            slots=self.slots or EngineConfig.slots,
            context=self.context or EngineConfig.context,
            threads=self.threads,
            kv_tokens=self.kv_tokens,
            host_tokens=self.host_tokens,
            default_max_tokens=self.max_tokens,
            truncate=self.truncate,
            loras=self.lora,
            chat_template=self.chat_template,
            system_prompts=self.system_prompt,
            gap_target_s=_seconds(self.gap_target_ms),
            step_limit_s=_seconds(self.step_limit_ms) or BatchConfig.step_limit_s,
            longest_shared=self.longest_shared,
            in_order=self.in_order,
            draft_batch=BatchConfig.draft_batch if self.draft_batch is None else self.draft_batch,
        )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


DEFAULTS = EngineFlags()


@app.command
def serve(
    *,
    replica: Annotated[tuple[str, ...], Parameter(group=FLEET, negative="")] = (),
    replica_key_file: Annotated[Path | None, Parameter(group=FLEET)] = None,
    config: Annotated[Path | None, Parameter(group=FLEET)] = None,
    engines: Annotated[int | None, positive, Parameter(group=FLEET)] = None,
    watch: Annotated[bool, Parameter(group=FLEET, negative="")] = False,
    check: Annotated[bool, Parameter(group=FLEET, negative="")] = False,
    record: Annotated[Path | None, Parameter(group=FLEET)] = None,
    event_log: Annotated[Path | None, Parameter(group=FLEET)] = None,
    host: Annotated[str | None, Parameter(group=LISTEN)] = None,
    port: Annotated[int | None, port_number, Parameter(group=LISTEN)] = None,
    uds: Annotated[Path | None, Parameter(group=LISTEN)] = None,
    insecure: Annotated[bool, Parameter(group=LISTEN, negative="")] = False,
    flags: EngineFlags = DEFAULTS,
) -> None:
    """Serve models on one OpenAI-compatible address: the gateway, in front of running engines or with one of its own.

    Parameters
    ----------
    replica
        A running engine, such as http://10.0.0.7:8000; may be given several times. Without any, Headgate runs its own.
    replica_key_file
        File with the API key that every --replica wants. It is sent to them, and never shown.
    config
        YAML file for everything: lanes, tenants, replicas, limits (see headgate.example.yaml).
    engines
        Run this many engines of its own, each in a process, and keep them running. Default: one.
    watch
        Take the config file whenever it changes.
    check
        Say whether the config is fine, and stop.
    record
        File to append a JSON line to for every request, without what was asked; rotated.
    event_log
        File for every decision and what it was made from, for `headgate replay`.
    host
        Address to listen on. Default: 127.0.0.1.
    port
        Port to listen on; 0 takes a free one. Default: 8000.
    uds
        Unix socket to listen on instead of host and port; only this user may connect (listen.uds_for).
    insecure
        Listen beyond this machine without any API key.
    """
    from headgate.config import file as config_file
    from headgate.config.fleet import FleetConfig
    from headgate.config.gateway import GatewayConfig
    from headgate.config.scale import ScaleConfig
    from headgate.replica.credentials import Credentials

    chosen = config_file.load(config) if config is not None else GatewayConfig()
    if replica:
        found = tuple(replace(config_file.replica_at(url), api_key_file=replica_key_file) for url in replica)
        chosen = replace(chosen, replicas=found, embedded=None)
    elif replica_key_file is not None:
        raise StartupError("--replica-key-file is for --replica; in a config each replica has its api_key_file")
    listen = replace(chosen.listen, host=host or chosen.listen.host, port=chosen.listen.port if port is None else port)
    if uds is not None:
        if host is not None or port is not None:
            raise StartupError("--uds is instead of --host and --port: give one or the other")
        listen = replace(listen, uds=uds)
    elif host is not None or port is not None:
        listen = replace(listen, uds=None)
    chosen = replace(chosen, listen=listen)
    if record is not None:
        chosen = replace(chosen, record=replace(chosen.record, path=record))
    own_engine = not chosen.replicas and config is None
    if engines is not None:
        if not own_engine:
            raise StartupError("--engines has no effect with --replica or --config: give the config a fleet")
        scale = ScaleConfig(min=engines, max=engines, forecast=False)
        chosen = replace(chosen, fleet=FleetConfig(kind="processes", scale=scale))
    if watch and config is None:
        raise StartupError("--watch wants a file to watch: give --config FILE")
    if own_engine:
        chosen = replace(chosen, embedded=flags.embedded())
    elif flags != DEFAULTS:
        raise StartupError(
            "engine options have no effect with --replica or --config: give them to that engine, or there"
        )
    config_file.check_exposure(chosen, insecure)
    for one in chosen.replicas:
        Credentials(one)  # says which file can't be used, before anything starts
    if check:
        print(config_file.describe(chosen))
        return
    from headgate.wiring.common import bundled_model
    from headgate.wiring.gateway import run_gateway

    if chosen.embedded is not None and chosen.embedded.model is None:
        bundled_model()  # says what to do if there is none, before anything starts
    progress = Progress(monotonic)
    progress.title()
    reload = None if config is None else lambda: config_file.load(config)
    run_gateway(chosen, progress, reload, event_log, config if watch else None)


@app.command
def engine(
    *,
    host: Annotated[str, Parameter(group=LISTEN)] = "127.0.0.1",
    port: Annotated[int, port_number, Parameter(group=LISTEN)] = 8001,
    uds: Annotated[Path | None, Parameter(group=LISTEN)] = None,
    banner: Annotated[bool, Parameter(group=LISTEN)] = True,
    emulate: Annotated[str | None, Parameter(group=EMULATION)] = None,
    dilate: Annotated[float, Parameter(group=EMULATION, validator=validators.Number(gt=0))] = 1.0,
    cold_start: Annotated[float, Parameter(group=EMULATION, validator=validators.Number(gte=0))] = 0.0,
    step_log: Annotated[Path | None, Parameter(group=EMULATION)] = None,
    flags: EngineFlags = DEFAULTS,
) -> None:
    """Run one engine replica by itself.

    Parameters
    ----------
    host
        Address to listen on.
    port
        Port to listen on; 0 takes a free one.
    uds
        Unix socket to listen on instead of host and port.
    banner
        Say hello and how to try it; a gateway that starts an engine for itself says that on its own.
    emulate
        Take a GPU's time instead of computing: a100-llama3-8b, h100-llama3-8b, h200-llama3-8b, or a file made by
        `headgate fit`. Answers are placeholder words, and everything that shows says that it is emulated.
    dilate
        How many seconds pass for one of the emulated GPU's, on a machine too slow for its pace.
    cold_start
        Seconds that an emulated engine takes to load its weights, so that cold starts can be tried out.
    step_log
        File for a line about every step: what was computed, and how long it took. `headgate fit` makes a profile of it.
    """
    from headgate.wiring.engine import run_emulated, run_engine

    listen = ListenConfig(host=host, port=port, uds=uds)
    progress = Progress(monotonic, banner=banner)
    if emulate is None:
        if cold_start:
            raise StartupError("--cold-start has no effect without --emulate: a real engine takes the time it takes")
        config = flags.config()
        progress.title()
        run_engine(config, listen, progress, step_log)
        return
    if flags.model is not None or flags.lora or flags.system_prompt:
        raise StartupError("--model, --lora and --system-prompt have no effect with --emulate: it computes nothing")
    from headgate.engine.runner.profile_file import find

    sizes = {name: getattr(flags, name) for name in ("slots", "context", "kv_tokens", "host_tokens")}
    profile = replace(find(emulate), **{name: size for name, size in sizes.items() if size is not None})
    progress.title()
    run_emulated(profile, dilate, flags.emulated(profile, dilate), listen, progress, step_log, cold_start)


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        app()
    except StartupError as error:
        print(f"headgate: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
