"""Runs replicas as pods of a Deployment or StatefulSet.

The number of pods is set through the workload's scale; the pods are found by its selector, with list and watch, so that
pods started or removed by others are known too. A pod that is being deleted, for whatever reason, is reported as
vanished at once: it gets no more requests, and those in flight may finish within the time that Kubernetes gives the pod
(terminationGracePeriodSeconds).

The pods belong to their workload, not to this process: they stay when the process ends, and the next one finds them.
"""

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import dataclass, replace

from headgate.config.cluster import KubernetesConfig
from headgate.fleet.kubernetes_api import Api, ApiError, Object, WatchExpired, find_access
from headgate.fleet.port import Appeared, Callback, Change, FleetError, Spec, Started, Vanished
from headgate.model.labels import plain
from headgate.model.replica import Replica, ReplicaId

log = logging.getLogger(__name__)

PAUSES_S = (0.2, 10.0)
"""Seconds until the next try after trouble with the API server: the first pause, which doubles up to the second."""
LAST = "-1000000"
"""The deletion cost of the pod that is to go: the lowest goes first."""
COST = "controller.kubernetes.io/pod-deletion-cost"
VERSION = "app.kubernetes.io/version"
POOLS = "/apis/inference.networking.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Pod:
    """The parts of a pod's status that the fleet uses."""

    name: str
    uid: str
    ip: str | None
    restarts: int
    going: str | None
    """Why it gets no requests; None: it may get them, as soon as it has an address."""
    trouble: str
    """Why it does not run, as Kubernetes reports it; empty: it has no trouble."""
    version: str | None

    @property
    def ordinal(self) -> int:
        """The number in the name of a StatefulSet's pod; -1: it has none."""
        number = self.name.rpartition("-")[2]
        return int(number) if number.isdigit() else -1


Pods = list[Pod]


def read_pod(pod: Object) -> Pod:
    meta, status = pod["metadata"], pod.get("status") or {}
    phase, containers = status.get("phase"), status.get("containerStatuses") or ()
    going = None
    if meta.get("deletionTimestamp"):
        going = "its pod is being deleted: no more requests, and what it has may finish"
    elif phase in ("Failed", "Succeeded"):
        going = f"its pod has ended: {status.get('reason') or phase}"
    return Pod(
        meta["name"],
        meta.get("uid", ""),
        status.get("podIP"),
        sum(int(it.get("restartCount", 0)) for it in containers),
        going,
        _trouble(status),
        (meta.get("labels") or {}).get(VERSION),
    )


def _trouble(status: Object) -> str:
    for it in status.get("containerStatuses") or ():
        waiting = (it.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".strip(": ")
    for it in status.get("conditions") or ():
        if it.get("type") == "PodScheduled" and it.get("status") == "False":
            return f"{it.get('reason', '')}: {it.get('message', '')}".strip(": ")
    return ""


class KubernetesFleet:
    """Implements `Launcher`. `spec` describes the pods, including those that were there before."""

    def __init__(self, config: KubernetesConfig, spec: Spec, most: int | None = None) -> None:
        """`most`: maximum pods of the workload; None: unlimited."""
        self._config = config
        self._most = most
        self._spec = spec
        self._api: Api
        self._workload = self._path = ""
        self._selector, self._port = config.selector or "", config.port
        self._pods: dict[str, Pod] = {}
        self._replicas: dict[ReplicaId, Replica] = {}
        """Pods with an address, as reported to the watcher."""
        self._claims: deque[asyncio.Future[Replica]] = deque()
        """Starts that wait for a pod, the oldest first."""
        self._leaving: set[str] = set()
        """Uids of pods that the workload was told to remove and that still exist."""
        self._scaling = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._callback: Callback | None = None
        self._following: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._api = Api(find_access(self._config))
        space = f"/namespaces/{self._api.namespace}"
        self._workload = f"/apis/apps/v1{space}/{self._config.workload.lower()}s/{self._config.name}"
        self._path = f"/api/v1{space}/pods"
        pool = self._config.inference_pool
        if pool is not None:
            found = await self._get(f"{POOLS}{space}/inferencepools/{pool}", f"InferencePool {pool}", "apply it first")
            self._port = int(found["spec"]["targetPorts"][0]["number"])
        else:
            what = f"{self._config.workload} {self._config.name}"
            found = await self._get(self._workload, what, "`headgate export kubernetes` prints one to apply")
        self._selector = self._selector or _as_text(found["spec"]["selector"])
        version = await self._relist()
        self._following = asyncio.get_running_loop().create_task(self._follow(version))

    async def _get(self, path: str, what: str, else_: str) -> Object:
        try:
            return await self._api.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            raise FleetError(f"there is no {what} in namespace {self._api.namespace}: {else_}") from error

    def watch(self, callback: Callback) -> None:
        self._callback = callback
        for replica in self._replicas.values():
            callback(Appeared(replica))

    def list(self) -> tuple[Replica, ...]:
        return tuple(self._replicas.values())

    async def start(self, spec: Spec) -> Started:
        """Adds one pod. A pod that the workload owes already, because another was lost, is waited for and not requested
        again."""
        if not self._config.scaled_here:
            raise FleetError("fleet.kubernetes.scaled_here is false: whatever scales this workload has to start more")
        claim: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        self._claims.append(claim)
        try:
            async with self._scaling:
                there = self._staying()
                unplaced = sum(pod.ip is None for pod in there)
                wanted = len(there) + max(0, len(self._claims) - unplaced)
                if self._most is not None and wanted > self._most:
                    # The workload has replaced a pod by itself since the caller last looked.
                    raise FleetError(f"{self._workload} has {len(there)} pods, as many as it may")
                if await self._scale() < wanted:
                    await self._scale(wanted)
            async with asyncio.timeout(self._config.place_s):
                replica = await claim
        except TimeoutError:
            await self._take_back()
            why = next((f": {pod.trouble}" for pod in self._pods.values() if pod.trouble), "")
            hint = f"look at it with `kubectl -n {self._api.namespace} get pods -l {self._selector}`"
            raise FleetError(f"no pod got a place within {plain(self._config.place_s, 6)} s{why}; {hint}") from None
        finally:
            if claim in self._claims:
                self._claims.remove(claim)
        return Started(replica.id, replica.url)

    async def stop(self, replica_id: ReplicaId, grace_s: float) -> None:
        pod = self._pods.get(replica_id)
        if pod is None:
            return
        if not self._config.scaled_here:
            raise FleetError("fleet.kubernetes.scaled_here is false: whatever scales this workload has to stop it")
        victim = await self._give_up_one(pod)
        if not await self._is_gone(victim, grace_s):
            with contextlib.suppress(ApiError):  # the pod has gone meanwhile
                await self._api.delete(self._at(victim.name), {"gracePeriodSeconds": 0})
            await self._is_gone(victim, grace_s)
        self._leaving.discard(victim.uid)
        if victim is not pod and (kept := self._replicas.get(pod.name)) is not None:
            # A StatefulSet removed another pod: this one, empty by now, continues in its place.
            self._tell(Vanished(pod.name, f"{victim.name} was taken in its place", comes_back=True))
            self._tell(Appeared(kept))

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        for claim in self._claims:
            claim.cancel()

    # -- how many ------------------------------------------------------------------------------------------

    async def _scale(self, wanted: int | None = None) -> int:
        """The number of pods that the workload should have; with `wanted`, sets it first."""
        path = f"{self._workload}/scale"
        if wanted is None:
            return int((await self._api.get(path))["spec"].get("replicas", 0))
        await self._api.patch(path, {"spec": {"replicas": wanted}})
        return wanted

    async def _give_up_one(self, pod: Pod) -> Pod:
        """Scales down by one, choosing this pod where that is possible. Returns the pod that goes."""
        async with self._scaling:
            if pod.going is not None:
                return pod
            if self._config.workload == "StatefulSet":
                pod = max(self._staying(), key=lambda it: it.ordinal)
            else:
                await self._api.patch(self._at(pod.name), {"metadata": {"annotations": {COST: LAST}}})
            await self._scale(max(0, await self._scale() - 1))
            self._leaving.add(pod.uid)
            return pod

    async def _take_back(self) -> None:
        """Scales down by one for a pod that never got a place."""
        with contextlib.suppress(FleetError):
            async with self._scaling:
                placed = sum(pod.ip is not None for pod in self._staying())
                wanted, others = await self._scale(), max(0, len(self._claims) - 1)
                if wanted > placed + others:
                    await self._scale(wanted - 1)

    def _staying(self) -> Pods:
        return [pod for pod in self._pods.values() if pod.going is None and pod.uid not in self._leaving]

    async def _is_gone(self, pod: Pod, within_s: float) -> bool:
        def gone() -> bool:
            now = self._pods.get(pod.name)
            return now is None or now.uid != pod.uid

        try:
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(gone)
        except TimeoutError:
            return False
        return True

    # -- which there are -----------------------------------------------------------------------------------

    async def _follow(self, version: str) -> None:
        pause_s = PAUSES_S[0]
        while True:
            try:
                version = await self._watch(version)
                pause_s = PAUSES_S[0]
                continue
            except WatchExpired:
                log.info("the watch of pods is too old: they are listed anew")
            except (FleetError, TimeoutError) as error:
                log.warning("pods can't be watched right now: %s", error or "it fell silent")
                await asyncio.sleep(pause_s)
                pause_s = min(PAUSES_S[1], 2.0 * pause_s)
            try:
                version = await self._relist()
            except FleetError as error:
                log.warning("pods can't be listed right now: %s", error)
                await asyncio.sleep(pause_s)

    async def _relist(self) -> str:
        found, version = await self._api.list(self._path, self._selector)
        pods = {pod.name: pod for pod in map(read_pod, found)}
        for name in [name for name in self._pods if name not in pods]:
            await self._lost(name)
        for pod in pods.values():
            await self._saw(pod)
        return version

    async def _watch(self, version: str) -> str:
        async with contextlib.aclosing(self._api.watch(self._path, self._selector, version)) as events:
            async for event in events:
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] == "DELETED":
                    await self._lost(event["object"]["metadata"]["name"])
                elif event["type"] in ("ADDED", "MODIFIED"):
                    await self._saw(read_pod(event["object"]))
        return version

    async def _saw(self, pod: Pod) -> None:
        before = self._pods.get(pod.name)
        if before is not None and before.uid != pod.uid:  # deleted and made again between two looks
            await self._lost(pod.name)
            before = None
        self._pods[pod.name] = pod
        told = self._replicas.get(pod.name)
        if told is not None and (pod.going is not None or pod.ip is None):
            self._vanish(pod.name, pod.going or "its pod has lost its address")
        elif told is not None and before is not None and pod.restarts > before.restarts:
            self._tell(Vanished(pod.name, "its container ended and is started again", comes_back=True))
            self._tell(Appeared(told))
        elif told is None and pod.going is None and pod.ip is not None:
            self._appear(pod)
        async with self._changed:
            self._changed.notify_all()

    async def _lost(self, name: str) -> None:
        self._pods.pop(name, None)
        if name in self._replicas:
            self._vanish(name, "its pod was deleted")
        async with self._changed:
            self._changed.notify_all()

    def _appear(self, pod: Pod) -> None:
        spec, host = self._spec, f"[{pod.ip}]" if pod.ip and ":" in pod.ip else pod.ip
        replica = spec.replica(pod.name, f"{self._config.scheme}://{host}:{self._port}")
        if pod.version is not None and "version" not in spec.tags:
            replica = replace(replica, tags={**spec.tags, "version": pod.version})
        self._replicas[pod.name] = replica
        self._tell(Appeared(replica))
        while self._claims:
            claim = self._claims.popleft()
            if not claim.done():
                claim.set_result(replica)
                break

    def _vanish(self, name: str, why: str) -> None:
        del self._replicas[name]
        self._tell(Vanished(name, why))

    def _tell(self, change: Change) -> None:
        if self._callback is not None:
            self._callback(change)

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"


def _as_text(selector: Object) -> str:
    """A label selector as text, for the query of a list."""
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for it in selector.get("matchExpressions") or ():
        key, values = it["key"], ",".join(it.get("values") or ())
        parts.append(
            {
                "In": f"{key} in ({values})",
                "NotIn": f"{key} notin ({values})",
                "Exists": key,
                "DoesNotExist": f"!{key}",
            }[it["operator"]]
        )
    return ",".join(parts)
