"""Builds the fleet and its controller, and connects the controller to the gateway. Decides nothing."""

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.config.engine import BATCHING, EngineConfig
from headgate.config.flags import words_of
from headgate.config.gateway import GatewayConfig
from headgate.config.scale import ScaleConfig
from headgate.engine.runner.profile_file import find
from headgate.fleet.controller import Controller
from headgate.fleet.follow import Follow
from headgate.fleet.history import History
from headgate.fleet.port import FleetError, Launcher, Spec
from headgate.fleet.processes import ProcessFleet
from headgate.fleet.vllm_program import VllmProgram, devices_here, slots_of
from headgate.gateway.gateway import Gateway
from headgate.measure.conditions import Conditions
from headgate.measure.figures import Figures
from headgate.model.clock import Clock, wall
from headgate.model.errors import ReplicaFailed, StartupError
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.scaling.scale import Scaler
from headgate.policy.scaling.signals import P95_WINDOW_S, PoolSignals
from headgate.replica.gauges import read_gauges, text_of_gauges
from headgate.surface.access import AdminAccess
from headgate.surface.fleet_admin import FleetAdmin, as_told
from headgate.upkeep.replica_set import ReplicaSet
from headgate.upkeep.warm_now import WarmNow
from headgate.wiring.change import ConfigChange

ASK_S = 1.0
PHASES = {"process": "process", "weights": "weights", "KV": "kv", "warm-up": "warm_up"}


class GatewayHands(PoolSignals):
    """Implements `fleet.controller.Hands`."""

    def __init__(self, gateway: Gateway, roster: ReplicaSet, figures: Figures) -> None:
        def ttft_p95(lane: str, now: float) -> float | None:
            return figures.sketch("ttft", P95_WINDOW_S, now, lane=lane).quantile(0.95)

        super().__init__(gateway.dispatcher, ttft_p95)
        self._roster = roster

    def join(self, replica: Replica, ready: Callable[[], None]) -> None:
        self._roster.join(replica, parked=True, ready=ready)

    def leave(self, replica_id: ReplicaId) -> None:
        if replica_id in self._roster.watches:
            self._roster.leave(replica_id)

    def route(self, replica_id: ReplicaId, on: bool, ramp: bool = False) -> None:
        self._roster.route(replica_id, on, ramp)

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
        scale = config.fleet.scale
        self.history = History(config.fleet.history, scale.forecast_quantile)
        self.scaler = Scaler(scale, self.history.forecast if scale.forecast else None)
        fleet, spec = _fleet(config, folder, clock)
        hands = GatewayHands(gateway, roster, figures)
        cluster = config.fleet.kubernetes
        followed = config.fleet.kind == "kubernetes" and not cluster.scaled_here
        scaler = Follow() if followed else self.scaler
        self.controller = Controller(fleet, scaler, spec, hands, config.fleet, clock, wall)

    def start(self, stack: AsyncExitStack) -> list[asyncio.Future[None]]:
        """Starts the fleet. Returns futures that fail if the fleet does; the stack stops all that was started."""
        loop = asyncio.get_running_loop()
        stack.callback(self.history.save)
        stack.push_async_callback(self.controller.close)
        running: list[asyncio.Future[None]] = [loop.create_task(self._run()), self.controller.broken]
        return running + ([loop.create_task(self.history.keep())] if self.history.kept else [])

    def rescale(self, scale: ScaleConfig) -> None:
        """Applies from the next decision on."""
        self.scaler.reconfigure(scale)

    async def _run(self) -> None:
        try:
            await self.controller.run()
        except FleetError as error:
            raise StartupError(f"fleet: {error}") from error


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

    admin = FleetAdmin(access, change, known, outage, None if fleet is None else fleet.controller, baseline)
    admin.more["warmup"] = WarmNow(roster.watches).act
    return admin


def _fleet(config: GatewayConfig, folder: Path, clock: Clock) -> tuple[Launcher, Spec]:
    if config.fleet.kind == "ray":
        from headgate.fleet.ray_fleet import RayFleet

        embedded = config.embedded or EngineConfig()
        threads = embedded.threads or max(1, int(config.fleet.ray.cpus))
        flags = tuple(words_of(replace(embedded, threads=threads)))
        return RayFleet(config.fleet.ray), Spec(pool="ray", flags=flags, slots=embedded.slots)
    if config.fleet.kind == "kubernetes":
        from headgate.fleet.kubernetes_fleet import KubernetesFleet

        access = config.fleet.access
        spec = Spec(
            pool=config.fleet.kubernetes.name,
            kind=None,  # detected: a pod may hold any engine
            api_key_file=access.api_key_file,
            headers=access.headers,
            ca=access.ca,
        )
        return KubernetesFleet(config.fleet.kubernetes, spec, config.fleet.scale.max), spec
    vllm = config.fleet.vllm
    if vllm is not None:
        most = config.fleet.scale.max
        program = VllmProgram(vllm, most, folder, os.environ, devices_here(os.environ))
        fleet = ProcessFleet(folder, clock, spawn=program.spawn, first_tries=1, last_words=program.last_words)
        return fleet, Spec(pool="vllm", kind="vllm", slots=slots_of(vllm), flags=vllm.flags)
    return ProcessFleet(folder, clock), process_spec(config)


def process_spec(config: GatewayConfig) -> Spec:
    embedded, emulate = config.embedded or EngineConfig(), config.fleet.emulate
    if emulate is None:
        threads = embedded.threads or max(1, len(os.sched_getaffinity(0)) // config.fleet.scale.max)
        return Spec(pool="local", flags=tuple(words_of(replace(embedded, threads=threads))), slots=embedded.slots)
    flags = [
        "--emulate",
        emulate.profile,
        "--dilate",
        f"{emulate.dilate:g}",
        "--cold-start",
        f"{emulate.cold_start_s:g}",
    ]
    flags += [] if emulate.slots is None else ["--slots", str(emulate.slots)]
    flags += [] if emulate.context is None else ["--context", str(emulate.context)]
    flags += words_of(embedded, BATCHING["group"])
    return Spec(pool="emulated", flags=tuple(flags), slots=emulate.slots or find(emulate.profile).slots)
