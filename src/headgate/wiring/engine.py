"""Builds and runs an engine replica. Knows every class it is made of; decides nothing."""

import asyncio
import atexit
import contextlib
import gc
import itertools
import logging
import os
import random
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from headgate.config.engine import BatchConfig, EngineConfig
from headgate.config.listen import ListenConfig, is_loopback
from headgate.engine.emulation import emulated_engine
from headgate.engine.engine import Engine
from headgate.engine.intake import Intake
from headgate.engine.recommended import recommended
from headgate.engine.runner.step_log import StepLog, header_of
from headgate.engine.server import EngineServer
from headgate.engine.status import Emulation
from headgate.logs import LogOptions, LogWriter, logging_to
from headgate.machine.profile import Profile
from headgate.model.clock import Clock, monotonic, wall
from headgate.model.errors import ServeError, StartupError, UsageError
from headgate.policy.compose import batcher_for, host_tokens_of
from headgate.progress import Progress
from headgate.publish.access_log import AccessLog
from headgate.publish.turned_away import RefusalLog
from headgate.wire.origin import Door
from headgate.wire.server import HttpServer
from headgate.wiring.common import HEALTH, bundled_model, cores, listen_on, process_age_s, wait

if TYPE_CHECKING:
    from headgate.engine.runner.llama import Model

MOVED_BYTES_PER_S = 1e9
"""Bytes of KV that llama.cpp saves or restores per second, before any is measured: what two cores did with
SmolLM2's."""

LOGS = LogOptions()
SURFACES = (("page", "/"), ("figures", "/metrics"))
LOOK_EVERY_S = 1.0
log = logging.getLogger(__name__)

Load = Callable[[EngineServer], tuple[Engine, Intake]]


def run_engine(
    config: EngineConfig,
    listen: ListenConfig,
    progress: Progress,
    step_log: Path | None = None,
    logs: LogOptions = LOGS,
) -> None:
    """Runs one engine replica until SIGTERM or SIGINT. Raises StartupError when it can't start, or later fails."""
    load = partial(_load, config=config, progress=progress, clock=monotonic)
    run_loaded(load, config, listen, progress, step_log, None, logs)


def run_emulated(
    profile: Profile,
    emulation: Emulation,
    config: EngineConfig,
    listen: ListenConfig,
    progress: Progress,
    step_log: Path | None = None,
    logs: LogOptions = LOGS,
) -> None:
    """Runs one around a runner that computes nothing and takes a GPU's time."""

    def load(server: EngineServer) -> tuple[Engine, Intake]:
        with progress.phase("emulated", f"{profile.name}, {config.slots} slots × {config.context} tokens"):
            rng, dilation = random.Random(os.urandom(16)), emulation.dilation
            return emulated_engine(
                profile, config, clock=monotonic, sink=server.sink, ids=itertools.count(1), rng=rng, dilation=dilation
            )

    run_loaded(load, config, listen, progress, step_log, emulation, logs)


def run_loaded(
    load: Load,
    config: EngineConfig,
    listen: ListenConfig,
    progress: Progress,
    step_log: Path | None,
    emulation: Emulation | None,
    logs: LogOptions,
) -> None:
    """Runs the engine that `load` makes until SIGTERM or SIGINT."""
    # A thread that wants the GIL back after a step gets it within 0.5 ms; the default would be half a decode step.
    sys.setswitchinterval(0.0005)

    def loading(server: EngineServer) -> tuple[Engine, Intake]:
        engine, intake = load(server)
        engine.report_steps_to(server.steps.take)
        if step_log is not None:
            emulated, dilation = (None, 1.0) if emulation is None else (emulation.profile, emulation.dilation)
            header = header_of(engine, config.served_name, engine.runner.bytes_per_token, emulated, dilation)
            steps = StepLog(step_log, header, monotonic())
            engine.report_steps_to(steps.take)
            atexit.register(steps.close)
        return engine, intake

    with logging_to(logs) as writer:
        lines = writer if logs.access else None
        uvloop.run(_serve(loading, emulation, config, listen, progress, monotonic, lines))


async def _serve(
    load: Load,
    emulation: Emulation | None,
    config: EngineConfig,
    listen: ListenConfig,
    progress: Progress,
    clock: Clock,
    access_lines: LogWriter | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = EngineServer(config, clock, emulation)
    server.record_phase("process", process_age_s())
    door = Door(server.router, loopback_only=listen.uds is None and is_loopback(listen.host))
    access = None if access_lines is None else AccessLog(access_lines, clock, wall).ended
    http = HttpServer(door, clock=clock, access=access, always=HEALTH)
    refusals = loop.create_task(_log_refusals(server, clock))
    try:
        where = await listen_on(http, listen)
        progress.listening(where, SURFACES)
        stopping = loop.create_task(wait(stop))
        running = loop.create_task(_run_engine(server, http, load, config, listen, where, stop, progress))
        await asyncio.wait([stopping, running], return_when=asyncio.FIRST_COMPLETED)
        if not running.done() and server.phase in ("loading", "warming up"):
            running.cancel()  # the model is no longer wanted
        stopping.cancel()
        await asyncio.gather(running, return_exceptions=running.cancelling() > 0)
    finally:
        refusals.cancel()
        http.close_listener()


async def _log_refusals(server: EngineServer, clock: Clock) -> None:
    """Logs what was refused and what failed, in summaries, until cancelled."""
    refusals = RefusalLog()
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        refusals.compare(server.figures.requests, clock())


async def _run_engine(
    server: EngineServer,
    http: HttpServer,
    load: Load,
    config: EngineConfig,
    listen: ListenConfig,
    where: str,
    stop: asyncio.Event,
    progress: Progress,
) -> None:
    loop = asyncio.get_running_loop()
    if server.emulation is not None and server.emulation.cold_start_s > 0:
        with progress.phase("weights", "none: a modelled start"):
            await asyncio.sleep(server.emulation.cold_start_s)
        server.record_phase("weights", server.emulation.cold_start_s)
    engine, intake = await loop.run_in_executor(None, load, server)
    server.adopt(engine, intake)
    engine.start()
    try:
        with progress.phase("warm-up"):
            await _warm(server, config)
        gc.collect()
        gc.freeze()  # what exists now stays: collections need not walk it while streams wait
        progress.ready(where, config.served_name, sum(server.figures.cold_start.values()))
        await _until(stop, engine)
        log.info("draining: running requests may finish within %g s", listen.drain_s)
        server.drain()
        await http.drain(listen.drain_s)
    finally:
        if server.compiling is not None:
            await loop.run_in_executor(None, server.compiling.close)
        await loop.run_in_executor(None, engine.stop)


async def _warm(server: EngineServer, config: EngineConfig) -> None:
    try:
        await server.warm()
    except ServeError as error:
        hint = "lower --system-prompt or raise --context, --kv-tokens and --host-tokens"
        raise StartupError(f"warm-up failed: {error.message}; {hint}") from error


def _load(server: EngineServer, config: EngineConfig, progress: Progress, clock: Clock) -> tuple[Engine, Intake]:
    # Imported here: loading llama.cpp's library takes longer than everything that `--help` needs.
    from headgate.engine.runner.llama import library
    from headgate.engine.runner.llama_runner import LlamaRunner

    path, note = _faster(server, bundled_model(), progress, clock) if config.model is None else (config.model, "")
    began = clock()
    model = _model(path, note, config.model or bundled_model(), progress, config)
    loaded = clock()
    with progress.phase("KV cache", f"{config.slots} slots × {config.context} tokens"):
        runner = LlamaRunner(
            model,
            slots=config.slots,
            slot_tokens=config.context,
            threads=config.threads or cores(),
            host_tokens=host_tokens_of(config.slots, config.context, config.host_tokens),
            loras=config.loras,
            chat_template=chat_template_in(config.chat_template),
        )
    server.compile_aside(runner.grammars, library().path)
    server.record_phase("weights", loaded - began)
    server.record_phase("KV", clock() - loaded)
    move_s = runner.bytes_per_token / MOVED_BYTES_PER_S
    batcher = batcher_for(
        slots=config.slots,
        slot_tokens=runner.slot_tokens,
        kv_tokens=config.kv_tokens,
        host_tokens=config.host_tokens,
        batch=config.batch(BatchConfig()),
        move_s=(move_s, move_s, move_s),
    )
    engine = Engine(runner, runner.tokenizer, batcher, clock, server.sink)
    rng = random.Random(os.urandom(16))
    said = recommended(model.meta, chats=config.chat_template is not None or model.chat_template() is not None)
    return engine, Intake(config, runner.tokenizer, batcher.ledger.longest, itertools.count(1), rng, said)


def _faster(server: EngineServer, bundled: Path, progress: Progress, clock: Clock) -> tuple[Path, str]:
    """The path to load the bundled weights from, and a note if that is not their fastest form; empty: it is."""
    from headgate.engine.runner.weights import FORM, make, place

    try:
        path = place(bundled, os.environ)
        if not path.exists():
            began = clock()
            with progress.phase("weights", f"{FORM} of {bundled.name}, once, to {path.parent}"):
                make(bundled, path)
            server.record_phase("requantize", clock() - began)
    except OSError as error:
        return (
            bundled,
            f"; {FORM} would be faster, but {error}: set HEADGATE_CACHE to a folder with 120 MB of room",
        )
    return path, ""


def _model(path: Path, note: str, original: Path, progress: Progress, config: EngineConfig) -> "Model":
    from headgate.engine.runner.llama import Model

    try:
        size_mb = path.stat().st_size / 1e6
    except OSError as error:
        raise StartupError(f"can't read {path}: {error.strerror}; give the path of a GGUF file") from error
    try:
        with progress.phase("weights", f"{path.name}, {size_mb:.0f} MB{note}"):
            return Model(path, gpu_layers=config.gpu_layers, kv_type=config.kv_type)
    except StartupError as error:
        if path == original or isinstance(error, UsageError):
            raise
        with contextlib.suppress(OSError):
            path.unlink()  # the kept copy can be made again
        return _model(
            original, f"; {path.name} is broken: it is made anew at the next start", original, progress, config
        )


def chat_template_in(path: Path | None) -> str | None:
    try:
        return None if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"--chat-template: can't read {path}; give a file with a Jinja template") from error


async def _until(stop: asyncio.Event, engine: Engine) -> None:
    """Waits until asked to stop. An engine that fails ends the process: its supervisor starts a new one."""
    while not stop.is_set():
        try:
            async with asyncio.timeout(0.5):
                await stop.wait()
        except TimeoutError:
            if engine.failed is not None:
                raise StartupError(f"{engine.failed.message}; start it again") from engine.failed
