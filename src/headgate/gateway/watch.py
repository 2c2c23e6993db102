"""Are the replicas well? Probes on a clock of their own, never on the request path."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from headgate.model.errors import ReplicaFailed
from headgate.model.event import Event, Probed
from headgate.model.replica import Replica, ReplicaId
from headgate.replica.gauges import GAUGES, read_gauges
from headgate.replica.http import Pool

_encode = msgspec.json.Encoder().encode

PROBE_TIMEOUT_S = 2.0
DEEP_TIMEOUT_S = 20.0
FIRST_PAUSE_S = 0.05
"""A replica that is just starting is asked often, so that nobody waits longer than it takes."""
HEALTH_PATHS = {"headgate": "/health/ready"}
"""Where a kind of replica says that it is well. What is not listed is asked for /health, then /v1/models."""


class _Card(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Card]


@dataclass(slots=True)
class Watch:
    """Looks after one replica for as long as `run` runs."""

    replica: Replica
    pool: Pool
    tell: Callable[[Event], None]
    said: Callable[[ReplicaId, list[str]], None]
    """Told what models it lists: when it first answers, and with every deep check."""
    interval_s: float = 1.0
    deep_s: float = 30.0
    """Between two checks that really generate a token."""
    models: list[str] = field(default_factory=list)
    """What it says it serves."""
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it has answered."""
    load: dict[str, float] = field(default_factory=dict)
    """What it said last about its own load."""
    _path: str = ""

    async def run(self) -> None:
        """It is in use when it first answers; from then on the dispatcher judges what is seen of it."""
        self._path = HEALTH_PATHS.get(self.replica.kind, "/health")
        pause_s = FIRST_PAUSE_S
        while not await self.look():
            await asyncio.sleep(pause_s)
            pause_s = min(self.interval_s, pause_s * 1.5)
        await self._ask_models()
        self.tell(Probed(self.replica.id, ok=True))
        self.joined.set()
        async with asyncio.TaskGroup() as group:  # apart: a deep check takes its time, and a death must not wait for it
            group.create_task(self._keep_looking())
            group.create_task(self._keep_looking_deep())

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            self.tell(Probed(self.replica.id, await self.look()))
            await self._ask_load()

    async def _keep_looking_deep(self) -> None:
        while True:
            await asyncio.sleep(self.deep_s)
            self.tell(Probed(self.replica.id, await self.look_deep(), deep=True))
            await self._ask_models()

    async def look_deep(self) -> bool:
        """One real token. A replica that can only say it is well is not."""
        model = self.replica.model or (self.models[0] if self.models else "")
        body = _encode({"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0})
        try:
            status, _ = await self.pool.ask("POST", "/v1/completions", body, DEEP_TIMEOUT_S)
        except (ReplicaFailed, TimeoutError, OSError):
            return False
        return status < 500  # a 4xx is about our question: not every model takes this one

    async def look(self) -> bool:
        try:
            status, _ = await self.pool.get(self._path, PROBE_TIMEOUT_S)
            if status == 404 and self._path != "/v1/models":
                self._path = "/v1/models"  # no health check of its own: that it lists models must do
                status, _ = await self.pool.get(self._path, PROBE_TIMEOUT_S)
        except (ReplicaFailed, TimeoutError, OSError):
            return False
        return status == 200

    async def _ask_models(self) -> None:
        try:
            status, body = await self.pool.get("/v1/models", PROBE_TIMEOUT_S)
            if status == 200:
                listed = msgspec.json.decode(body, type=_Models).data
                self.models = [card.id for card in listed]
                self.said(self.replica.id, self.models)
        except (ReplicaFailed, TimeoutError, OSError, msgspec.DecodeError):
            pass  # what it said before still holds; whether it is well is asked elsewhere

    async def _ask_load(self) -> None:
        if self.replica.kind not in GAUGES:
            return
        try:
            status, body = await self.pool.get("/metrics", PROBE_TIMEOUT_S)
        except (ReplicaFailed, TimeoutError, OSError):
            status, body = 0, b""
        self.load = read_gauges(self.replica.kind, body.decode("utf-8", "replace")) if status == 200 else {}
