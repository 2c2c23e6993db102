"""A small API server of ours. Not Kubernetes: it speaks the parts of its API that headgate's fleet uses, as documented.

One Deployment or StatefulSet with its scale, pods with list (pages, versions), watch (from a version on, bookmarks,
410), patch and delete; status objects for errors. Behind it, in a few lines each, what a controller and a kubelet would
do: pods come and go with the scale, the one with the lowest deletion cost first, and get an address once placed.
"""

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

COST = "controller.kubernetes.io/pod-deletion-cost"
LABELS = {"app": "engine"}
Object = dict[str, Any]


@dataclass(eq=False)
class Cluster:
    kind: str = "Deployment"
    name: str = "engine"
    """The workload's."""
    replicas: int = 0
    placing: bool = True
    """Whether pods get an address at once."""
    lingering: bool = False
    """Whether deleted pods stay until `finish`, as those do that have requests to end."""
    token: str | None = None
    refuse: tuple[int, str] | None = None
    """Answer everything with this status and message."""
    page: int = 500
    pods: dict[str, Object] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """Methods and paths, in order."""
    version: int = 100
    oldest: int = 100
    """Changes before this version are forgotten."""
    history: list[tuple[int, str, Object]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    watches: set[asyncio.StreamWriter] = field(default_factory=set)
    url: str = ""
    _made: int = 0

    # -- what a test does --------------------------------------------------------------------------------------

    def place(self, name: str) -> None:
        """Give it an address, as the kubelet does once a pod has a machine."""
        number = int(self.pods[name]["metadata"]["uid"].removeprefix("uid-"))
        self._set(name, "MODIFIED", status={"phase": "Running", "podIP": f"127.0.1.{number}"})

    def change(self, name: str, **status: Any) -> None:
        self._set(name, "MODIFIED", status=status)

    def delete(self, name: str) -> None:
        """As a node that is drained, or `kubectl delete pod`."""
        pod = self.pods.get(name)
        if pod is None:
            return
        if self.lingering and not pod["metadata"].get("deletionTimestamp"):
            self._set(name, "MODIFIED", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
        elif not self.lingering:
            self.finish(name)
        self.reconcile()

    def finish(self, name: str) -> None:
        if not self.pods[name]["metadata"].get("deletionTimestamp"):
            self._set(name, "MODIFIED", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
        self._set(name, "DELETED")

    def forget(self) -> None:
        """Etcd is compacted: who asks for older changes is told that they are gone."""
        self.version += 1
        self.oldest = self.version
        self.history.clear()

    def cut(self) -> None:
        """All watches break off."""
        for writer in list(self.watches):
            writer.transport.abort()

    def scale(self, replicas: int) -> None:
        self.replicas = replicas
        self.reconcile()

    def reconcile(self) -> None:
        """What the workload's controller does."""
        staying = [pod for pod in self.pods.values() if not pod["metadata"].get("deletionTimestamp")]
        for _ in range(self.replicas - len(staying)):
            self._make()
        for pod in sorted(staying, key=self._last_to_stay)[: max(0, len(staying) - self.replicas)]:
            self.delete(pod["metadata"]["name"])

    # --------------------------------------------------------------------------------------------------------------

    def _last_to_stay(self, pod: Object) -> tuple[Any, ...]:
        meta = pod["metadata"]
        if self.kind == "StatefulSet":
            return (-int(meta["name"].rpartition("-")[2]),)
        return bool(pod["status"].get("podIP")), int(meta.get("annotations", {}).get(COST, 0)), meta["name"]

    def _make(self) -> None:
        self._made += 1
        ordinals = {int(name.rpartition("-")[2]) for name in self.pods} if self.kind == "StatefulSet" else set()
        free = next(number for number in range(10_000) if number not in ordinals)
        name = f"{self.name}-{free}" if self.kind == "StatefulSet" else f"{self.name}-7d9f-{self._made:05d}"
        meta = {"name": name, "uid": f"uid-{self._made}", "labels": dict(LABELS), "annotations": {}}
        self.pods[name] = {"metadata": meta, "status": {"phase": "Pending"}}
        self._set(name, "ADDED")
        if self.placing:
            self.place(name)

    def _set(self, name: str, event: str, **parts: Object) -> None:
        self.version += 1
        pod = self.pods[name] = json.loads(json.dumps(self.pods[name]))
        for part, values in parts.items():
            _merge(pod[part], values)
        pod["metadata"]["resourceVersion"] = str(self.version)
        if event == "DELETED":
            del self.pods[name]
        self.history.append((self.version, event, pod))
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    # -- HTTP --------------------------------------------------------------------------------------------------

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, target, _ = head[0].split(" ")
            path, query = urlsplit(target).path, dict(parse_qsl(urlsplit(target).query))
            self.asked.append(f"{method} {path}")
            if query.get("watch") == "true":
                await self._watch(writer, query)
            else:
                status, answer = self._answer(method, path, query, headers, body)
                data = json.dumps(answer).encode()
                writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
                await writer.drain()
        writer.close()

    def _answer(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> tuple[int, Object]:
        if self.refuse is not None:
            return _failure(*self.refuse)
        if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
            return _failure(401, "Unauthorized")
        kind = f"{self.kind.lower()}s"
        if found := re.fullmatch(rf"/apis/apps/v1/namespaces/prod/{kind}/{self.name}(/scale)?", path):
            if not found[1]:
                return 200, {
                    "kind": self.kind,
                    "spec": {"replicas": self.replicas, "selector": {"matchLabels": LABELS}},
                }
            if method == "PATCH":
                assert headers["content-type"] == "application/merge-patch+json"
                self.scale(int(json.loads(body)["spec"]["replicas"]))
            return 200, {"kind": "Scale", "spec": {"replicas": self.replicas} if self.replicas else {}}
        if path == "/apis/inference.networking.k8s.io/v1/namespaces/prod/inferencepools/pool":
            spec = {"selector": {"matchLabels": LABELS}, "targetPorts": [{"number": 8123}]}
            return 200, {"kind": "InferencePool", "spec": spec}
        if found := re.fullmatch(r"/api/v1/namespaces/prod/pods(?:/(.+))?", path):
            return self._pods(method, found[1], query, body)
        return _failure(404, f'the server could not find "{path}"')

    def _pods(self, method: str, name: str | None, query: dict[str, str], body: bytes) -> tuple[int, Object]:
        if name is None:
            assert query["labelSelector"] == "app=engine"
            begin = int(query.get("continue", 0))
            page = sorted(self.pods)[begin : begin + min(self.page, int(query["limit"]))]
            meta = {"resourceVersion": str(self.version)}
            if begin + len(page) < len(self.pods):
                meta["continue"] = str(begin + len(page))
            return 200, {"kind": "PodList", "metadata": meta, "items": [self.pods[it] for it in page]}
        if name not in self.pods:
            return _failure(404, f'pods "{name}" not found')
        if method == "PATCH":
            self._set(name, "MODIFIED", **json.loads(body))
        elif method == "DELETE":
            force = json.loads(body).get("gracePeriodSeconds") == 0
            pod = self.pods[name]
            if force:
                self.finish(name)
                self.reconcile()
            else:
                self.delete(name)
            return 200, pod
        return 200, self.pods[name]

    async def _watch(self, writer: asyncio.StreamWriter, query: dict[str, str]) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        self.watches.add(writer)
        seen = int(query["resourceVersion"])
        try:
            while not writer.is_closing():
                if seen < self.oldest:
                    _, status = _failure(410, f"too old resource version: {seen} ({self.version})")
                    _send(writer, {"type": "ERROR", "object": status})
                    writer.write(b"0\r\n\r\n")
                    return
                for version, event, pod in [it for it in self.history if it[0] > seen]:
                    _send(writer, {"type": event, "object": pod})
                    seen = version
                await self.changed.wait()
        finally:
            self.watches.discard(writer)

    def bookmark(self) -> None:
        for writer in self.watches:
            _send(writer, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.version)}}})


def _send(writer: asyncio.StreamWriter, event: Object) -> None:
    """In two pieces: where a line ends and where a chunk does has nothing to do with each other."""
    data = json.dumps(event).encode() + b"\n"
    for piece in (data[:20], data[20:]):
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))


def _failure(code: int, message: str) -> tuple[int, Object]:
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}


def _merge(into: Object, values: Object) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


@contextlib.asynccontextmanager
async def cluster(tls: ssl.SSLContext | None = None, **settings: Any) -> AsyncIterator[Cluster]:
    it = Cluster(**settings)
    it.reconcile()
    server = await asyncio.start_server(it.handle, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    it.url = f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}"
    try:
        yield it
    finally:
        server.close()
        it.cut()
        it.changed.set()
