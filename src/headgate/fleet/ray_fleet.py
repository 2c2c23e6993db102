"""Runs replicas as actors on a Ray cluster, placed by the resources that each takes.

An actor has a name in the fleet's namespace, so every gateway with the same namespace finds all actors, whichever
gateway started them. An actor belongs to the gateway that started it: when that gateway ends, Ray ends the actor too.
Until then Ray keeps it alive: the replicas of a lost node come back under their names wherever there is room.

Ray's own calls block, so they are made in a thread; answers of actors are awaited.
"""

import asyncio
import contextlib
import importlib
import logging
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from headgate.config.cluster import RayConfig
from headgate.fleet.port import Appeared, Callback, Change, FleetError, Spec, Started, Vanished
from headgate.fleet.ray_engine import EngineActor, RayPlace
from headgate.model.labels import plain
from headgate.model.replica import Replica, ReplicaId

log = logging.getLogger(__name__)

PREFIX = "headgate:"
LOOK_EVERY_S = 1.0
"""Seconds between searches for new names. Ray reports changes of known replicas at once."""
AGAIN_S = 0.2
"""Seconds until a replica that is between two places is asked again where it is."""
CALLS = 64
"""Concurrent calls to one actor: each gateway keeps one open to learn of its end."""
T = TypeVar("T")


class RayFleet:
    """Implements `Launcher`."""

    def __init__(self, config: RayConfig, pool: str | None = None) -> None:
        """`pool`: finds only replicas of this pool; None: all in the namespace."""
        self._config = config
        self._pool = pool
        self._ray: Any = None
        self._actor: Any = None
        self._joined = False
        self._handles: dict[ReplicaId, Any] = {}
        self._started: set[ReplicaId] = set()
        self._stopping: set[ReplicaId] = set()
        self._replicas: dict[ReplicaId, Replica] = {}
        self._followers: dict[ReplicaId, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._callback: Callback | None = None

    async def open(self) -> None:
        try:
            self._ray = ray = importlib.import_module("ray")
        except ImportError:
            raise FleetError("Ray is not installed here: pip install 'headgate[ray]'") from None
        if not ray.is_initialized():
            await self._in_thread(self._join)
            self._joined = True
        self._actor = ray.remote(EngineActor)
        self._looking = asyncio.get_running_loop().create_task(self._look())

    def watch(self, callback: Callback) -> None:
        self._callback = callback
        for replica in self._replicas.values():
            callback(Appeared(replica))

    def list(self) -> tuple[Replica, ...]:
        return tuple(self._replicas.values())

    def where(self, replica_id: ReplicaId) -> "asyncio.Future[RayPlace]":
        """The replica's node, and its engine's process there."""
        handle = self._handles[replica_id]
        return asyncio.ensure_future(_answer(handle.where))

    async def start(self, spec: Spec) -> Started:
        replica_id = f"{spec.pool}-{uuid.uuid4().hex[:8]}"
        config = self._config
        options = self._actor.options(
            name=PREFIX + replica_id,
            namespace=config.namespace,
            num_cpus=config.cpus,
            num_gpus=config.gpus,
            resources=config.resources or None,
            max_restarts=-1,
            max_concurrency=CALLS,
            scheduling_strategy="SPREAD",  # so that a lost node takes few replicas along
        )
        handle = await self._in_thread(lambda: options.remote(spec))
        self._started.add(replica_id)
        try:
            async with asyncio.timeout(config.place_s):
                place = await _answer(handle.where)
        except (TimeoutError, self._ray.exceptions.RayError) as error:
            self._started.discard(replica_id)
            await self._in_thread(lambda: self._ray.kill(handle, no_restart=True))
            raise FleetError(await self._no_place(error)) from None
        self._found(replica_id, handle, spec, place)
        return Started(replica_id, place.url)

    async def stop(self, replica_id: ReplicaId, grace_s: float) -> None:
        handle, follower = self._handles.get(replica_id), self._followers.get(replica_id)
        if handle is None or follower is None:
            return
        self._stopping.add(replica_id)
        with contextlib.suppress(self._ray.exceptions.RayError, TimeoutError):
            async with asyncio.timeout(grace_s + 5.0):
                await handle.stop.remote(grace_s)
        await self._in_thread(lambda: self._ray.kill(handle, no_restart=True))
        await asyncio.gather(follower, return_exceptions=True)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await asyncio.gather(*(self.stop(replica_id, 5.0) for replica_id in tuple(self._started)))
        for follower in self._followers.values():
            follower.cancel()
        await asyncio.gather(*self._followers.values(), return_exceptions=True)
        if self._joined:
            await self._in_thread(self._ray.shutdown)

    # ------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        config = self._config
        try:
            self._ray.init(
                address=config.address, namespace=config.namespace, log_to_driver=False, logging_level=logging.WARNING
            )
        except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
            what = " ".join(str(error).split())[:200]
            raise FleetError(
                f"no Ray cluster at {config.address}: {what}; start one with `ray start --head`"
            ) from error

    async def _no_place(self, error: Exception) -> str:
        config, free = self._config, await self._in_thread(self._ray.available_resources)
        wants = {"CPU": config.cpus, "GPU": config.gpus, **config.resources}
        asked = ", ".join(f"{plain(amount, 6)} {name}" for name, amount in wants.items() if amount)
        there = ", ".join(f"{plain(free.get(name, 0.0), 6)} {name}" for name, amount in wants.items() if amount)
        if not isinstance(error, TimeoutError):
            return f"a replica could not be placed: {' '.join(str(error).split())[:300]}"
        hint = f"free in all: {there}; add nodes, or let a replica take less (fleet.ray)"
        return f"no node had {asked} free within {plain(config.place_s, 6)} s; {hint}"

    async def _look(self) -> None:
        """Finds replicas that other gateways started."""
        while True:
            try:
                names = await self._in_thread(self._names)
            except Exception as error:  # Ray raises many kinds of error while its head is away
                log.warning("Ray can't be asked right now: %s", error)
                names = ()
            for name in names:
                replica_id = name.removeprefix(PREFIX)
                if replica_id not in self._handles and replica_id not in self._started:
                    await self._discover(name, replica_id)
            await asyncio.sleep(LOOK_EVERY_S)

    def _names(self) -> tuple[str, ...]:
        # All namespaces, because ours may not be this driver's own, which may have been initialized elsewhere in the
        # process.
        found = self._ray.util.list_named_actors(all_namespaces=True)
        names = (it["name"] for it in found if it["namespace"] == self._config.namespace)
        return tuple(name for name in names if name.startswith(PREFIX) and self._ours(name.removeprefix(PREFIX)))

    def _ours(self, replica_id: ReplicaId) -> bool:
        return self._pool is None or replica_id.rpartition("-")[0] == self._pool

    async def _discover(self, name: str, replica_id: ReplicaId) -> None:
        try:
            handle = await self._in_thread(lambda: self._ray.get_actor(name, namespace=self._config.namespace))
            async with asyncio.timeout(LOOK_EVERY_S):
                spec, place = await handle.spec.remote(), await _answer(handle.where)
        except (ValueError, TimeoutError, self._ray.exceptions.RayError):
            return  # it has no place yet, or is gone again
        self._found(replica_id, handle, spec, place)

    def _found(self, replica_id: ReplicaId, handle: Any, spec: Spec, place: RayPlace) -> None:
        self._handles[replica_id] = handle
        self._appear(replica_id, spec, place)
        follower = self._follow(replica_id, handle, spec)
        self._followers[replica_id] = asyncio.get_running_loop().create_task(follower)

    async def _follow(self, replica_id: ReplicaId, handle: Any, spec: Spec) -> None:
        """Follows the replica from one place to the next, until it is gone for good."""
        died = self._ray.exceptions.ActorDiedError
        while True:
            try:
                await handle.until_end.remote()
                ended: Exception | None = None
            except self._ray.exceptions.RayError as error:
                ended = error
            if replica_id in self._stopping or isinstance(ended, died):
                break
            if ended is None:  # another gateway stops it
                await asyncio.sleep(AGAIN_S)
                continue
            self._vanish(replica_id, "its engine or its node has ended; Ray starts it again", comes_back=True)
            place = await self._again(handle)
            if place is None:
                break
            self._appear(replica_id, spec, place)
        for kept in (self._handles, self._followers):
            kept.pop(replica_id, None)
        self._started.discard(replica_id)
        stopped = replica_id in self._stopping
        self._stopping.discard(replica_id)
        self._vanish(replica_id, "stopped" if stopped else "its actor has ended for good")

    async def _again(self, handle: Any) -> RayPlace | None:
        """Its next place; None: there will be none."""
        while True:
            try:
                return await _answer(handle.where)
            except self._ray.exceptions.ActorDiedError:
                return None
            except self._ray.exceptions.RayError:
                await asyncio.sleep(AGAIN_S)

    def _appear(self, replica_id: ReplicaId, spec: Spec, place: RayPlace) -> None:
        replica = spec.replica(replica_id, place.url)
        self._replicas[replica_id] = replica
        self._tell(Appeared(replica))

    def _vanish(self, replica_id: ReplicaId, why: str, comes_back: bool = False) -> None:
        self._replicas.pop(replica_id, None)
        self._tell(Vanished(replica_id, why, comes_back))

    def _tell(self, change: Change) -> None:
        if self._callback is not None:
            self._callback(change)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, call)


async def _answer(method: Any) -> RayPlace:
    place: RayPlace = await method.remote()
    return place
