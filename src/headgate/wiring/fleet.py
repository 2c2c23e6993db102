"""Builds the fleet and its controller, and connects the controller to the gateway. Decides nothing."""

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.config.engine import BATCHING, EngineConfig
from headgate.config.fleet import FleetConfig, PoolConfig
from headgate.config.forms.flags import words_of
from headgate.config.gateway import GatewayConfig
from headgate.engine.runner.profile_file import find
from headgate.fleet.controller import Controller, Nap
from headgate.fleet.follow import Follow
from headgate.fleet.history import History
from headgate.fleet.pools import FleetPools
from headgate.fleet.port import FleetError, Launcher, Spec
from headgate.fleet.processes import ProcessFleet
from headgate.fleet.vllm_program import VllmProgram, devices_here, devices_left, slots_of
from headgate.gateway.gateway import Gateway
from headgate.measure.conditions import Conditions
from headgate.measure.figures import Figures
from headgate.model.clock import Clock, wall
from headgate.model.errors import ReplicaFailed, StartupError
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.scaling.board import PoolBoard
from headgate.policy.scaling.orders import PoolReader, ScalingPolicy
from headgate.policy.scaling.scale import Scaler
from headgate.policy.scaling.signals import P95_WINDOW_S, PoolSignals
from headgate.replica.gauges import read_gauges, text_of_gauges
from headgate.surface.access import AdminAccess
from headgate.surface.fleet_admin import FleetAdmin, as_told
from headgate.upkeep.replica_set import ReplicaSet
from headgate.upkeep.warm_now import WarmNow
from headgate.wiring.change import ConfigChange
from headgate.wiring.common import cores

ASK_S = 1.0
PHASES = {"process": "process", "weights": "weights", "KV": "kv", "warm-up": "warm_up"}


class GatewayHands:
    """Implements `fleet.controller.Hands`."""

    def __init__(self, reader: PoolReader, roster: ReplicaSet) -> None:
        self.waiting = reader.waiting
        self.strained = reader.strained
        self.demand = reader.demand
        self.work = reader.work
        self._roster = roster

    def join(self, replica: Replica, ready: Callable[[], None]) -> None:
        self._roster.join(replica, parked=True, ready=ready)

    def leave(self, replica_id: ReplicaId) -> None:
        if replica_id in self._roster.watches:
            self._roster.leave(replica_id)

    def route(self, replica_id: ReplicaId, on: bool, ramp: bool = False) -> None:
        self._roster.route(replica_id, on, ramp)

    async def sleep(self, replica_id: ReplicaId, wake_s: float) -> Nap:
        rested = await self._roster.sleep(replica_id, wake_s)
        return Nap(rested.rest.value, rested.why)

    async def wake(self, replica_id: ReplicaId, wake_s: float, limit_s: float) -> str:
        return await self._roster.wake(replica_id, wake_s, limit_s)

    async def answers(self, replica_id: ReplicaId) -> bool:
        return await self._ask(replica_id, "/health/live") is not None

    async def cold_start(self, replica_id: ReplicaId) -> dict[str, float]:
        watch, body = self._roster.watches.get(replica_id), await self._ask(replica_id, "/metrics")
        if watch is None or body is None:
            return {}
        said = read_gauges(watch.replica.kind, text_of_gauges(body))
        return {name: took for name, key in PHASES.items() if (took := said.get(f"cold_start_{key}_s")) is not None}

    async def _ask(self, replica_id: ReplicaId, path: str) -> bytes | None:
        watch = self._roster.watches.get(replica_id)
        if watch is None:
            return None
        try:
            _, body = await watch.connections.get(path, ASK_S)
        except (ReplicaFailed, TimeoutError, OSError):
            return None
        return body


class FleetWiring:
    """The fleet of a gateway that has one."""

    def __init__(
        self,
        config: GatewayConfig,
        gateway: Gateway,
        roster: ReplicaSet,
        figures: Figures,
        folder: Path,
        clock: Clock,
    ) -> None:
        def ttft_p95(lane: str, now: float) -> float | None:
            return figures.sketch("ttft", P95_WINDOW_S, now, lane=lane).quantile(0.95)

        pools = {pool.name: pool for pool in config.fleet.every}
        self.board = PoolBoard(gateway.dispatcher, list(pools.values()), ttft_p95)
        self.histories = {name: History(pool.history, pool.scale.forecast_quantile) for name, pool in pools.items()}
        self.scalers: dict[str, Scaler] = {}
        """By pool; those that something else scales have none."""
        controllers = {}
        for name, pool in pools.items():
            # A pool that is the whole fleet is scaled by all requests, whatever they ask for.
            reader = self.board.reader(name) if config.fleet.pools else PoolSignals(gateway.dispatcher, ttft_p95)
            launcher, spec = _launched(config, pool, folder, clock)
            hands, scaler = GatewayHands(reader, roster), self._scaler(pool)
            controllers[name] = controller = Controller(launcher, scaler, spec, hands, pool, clock, wall)
            self.board.enter(name, controller.pool)
        self.pools = FleetPools(controllers, pools, self.board)

    def _scaler(self, pool: PoolConfig) -> ScalingPolicy:
        if pool.kind == "kubernetes" and not pool.kubernetes.scaled_here:
            return Follow()
        forecast = self.histories[pool.name].forecast if pool.scale.forecast else None
        scaler = self.scalers[pool.name] = Scaler(pool.scale, forecast)
        return scaler

    @property
    def history(self) -> History:
        """The history that keeps the measured start from zero: the first pool's."""
        return next(iter(self.histories.values()))

    def start(self, stack: AsyncExitStack) -> list[asyncio.Future[None]]:
        """Starts the fleet. Returns futures that fail if the fleet does; the stack stops all that was started."""
        loop = asyncio.get_running_loop()
        for history in self.histories.values():
            stack.callback(history.save)
        stack.push_async_callback(self.pools.close)
        running: list[asyncio.Future[None]] = [loop.create_task(self._run())]
        running += [controller.broken for controller in self.pools.controllers.values()]
        return running + [loop.create_task(history.keep()) for history in self.histories.values() if history.kept]

    def ready(self) -> list[asyncio.Event]:
        """One event for each pool: set once any of its replicas can be used."""
        return [controller.was_ready for controller in self.pools.controllers.values()]

    def rescale(self, fleet: FleetConfig) -> None:
        """Applies scales and prices of the pools that are there from the next decision on."""
        for pool in fleet.every:
            before = self.pools.pools.get(pool.name)
            if before is not None:
                self.pools.pools[pool.name] = replace(before, scale=pool.scale, price=pool.price)
                if pool.name in self.scalers:
                    self.scalers[pool.name].reconfigure(pool.scale)
        self.board.reconfigure(list(self.pools.pools.values()))

    async def _run(self) -> None:
        try:
            await self.pools.run()
        except* FleetError as errors:
            raise StartupError(f"fleet: {errors.exceptions[0]}") from errors


def fleet_admin(
    access: AdminAccess,
    change: ConfigChange,
    roster: ReplicaSet,
    fleet: FleetWiring | None,
    conditions: Conditions,
    clock: Clock,
) -> FleetAdmin:
    def known() -> list[dict[str, Any]]:
        now = clock()
        standings = conditions.standings(now)
        return [
            as_told(standings[replica_id], watch.replica.url, now)
            for replica_id, watch in roster.watches.items()
            if replica_id in standings
        ]

    def outage() -> str:
        return conditions.outage(clock())

    def baseline(figures: dict[str, Any] | None) -> dict[str, Any] | None:
        if fleet is None:
            return None
        if figures is not None:
            fleet.history.keep_baseline(figures)
        return fleet.history.baseline

    admin = FleetAdmin(access, change, known, outage, None if fleet is None else fleet.pools, baseline)
    admin.more["warmup"] = WarmNow(roster.watches).act
    return admin


def _launched(config: GatewayConfig, pool: PoolConfig, folder: Path, clock: Clock) -> tuple[Launcher, Spec]:
    if pool.kind == "ray":
        from headgate.fleet.ray_fleet import RayFleet

        return RayFleet(pool.ray, pool.name or None), ray_spec(config, pool)
    if pool.kind == "kubernetes":
        from headgate.fleet.kubernetes_fleet import KubernetesFleet

        spec = Spec(
            pool=pool.kubernetes.name,
            kind=None,  # detected: a pod may hold any engine
            api_key_file=pool.access.api_key_file,
            headers=pool.access.headers,
            ca=pool.access.ca,
        )
        spec = described(pool, spec)
        return KubernetesFleet(pool.kubernetes, spec, pool.scale.max), spec
    vllm = pool.vllm
    if vllm is not None:
        folder = folder / pool.name
        folder.mkdir(exist_ok=True)
        pools = [(one.vllm, one.scale.max) for one in config.fleet.every if one.vllm is not None]
        here = devices_left(vllm, pools, devices_here(os.environ))
        program = VllmProgram(vllm, pool.scale.max, folder, os.environ, here)
        fleet = ProcessFleet(folder, clock, spawn=program.spawn, first_tries=1, last_words=program.last_words)
        spec = Spec(pool="vllm", kind="vllm", slots=slots_of(vllm), flags=vllm.flags)
        return fleet, described(pool, spec, pool.own_name(None))
    return ProcessFleet(folder, clock), process_spec(config, pool)


def described(pool: PoolConfig, spec: Spec, own_name: str | None = None) -> Spec:
    """The spec with what the pool says of its replicas. `own_name`: the name of its model in the engines started here;
    None: as the pool says."""
    served_as = pool.served_as or (own_name if pool.model is not None and own_name != pool.model else None)
    return replace(
        spec,
        pool=pool.name or spec.pool,
        model=pool.model,
        served_as=served_as,
        slots=pool.slots or spec.slots,
        token_limit=pool.token_limit,
        lanes=pool.lanes,
        tags=pool.labels,
        price=pool.price,
    )


def ray_spec(config: GatewayConfig, pool: PoolConfig) -> Spec:
    engine = pool.engine or config.embedded or EngineConfig()
    threads = engine.threads or max(1, int(pool.ray.cpus))
    flags = tuple(words_of(replace(engine, threads=threads)))
    return described(pool, Spec(pool="ray", flags=flags, slots=engine.slots), engine.served_name)


def process_spec(config: GatewayConfig, pool: PoolConfig | None = None) -> Spec:
    """The engine processes of a pool. None: of the fleet that is one pool."""
    pool = pool or config.fleet.every[0]
    engine, emulate = pool.engine or config.embedded or EngineConfig(), pool.emulate
    if emulate is None:
        most = sum(one.scale.max for one in config.fleet.every if one.kind == "processes")
        threads = engine.threads or max(1, cores() // most)
        spec = Spec(pool="local", flags=tuple(words_of(replace(engine, threads=threads))), slots=engine.slots)
        return described(pool, spec, engine.served_name)
    profile = find(emulate.profile)
    flags = [*emulate.words, *words_of(engine, BATCHING["group"])]
    spec = Spec(pool="emulated", flags=tuple(flags), slots=emulate.slots or profile.slots)
    return described(pool, spec, f"emulated-{profile.name}")
