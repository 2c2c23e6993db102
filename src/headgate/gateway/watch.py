"""Are the replicas well? Probes on a clock of their own, never on the request path."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from headgate.model.errors import ReplicaFailed
from headgate.model.event import Event, Probed
from headgate.model.replica import Replica
from headgate.replica.http import Pool

_encode = msgspec.json.Encoder().encode

PROBE_TIMEOUT_S = 2.0
DEEP_TIMEOUT_S = 20.0
FIRST_PAUSE_S = 0.05
"""A replica that is just starting is asked often, so that nobody waits longer than it takes."""
HEALTH_PATHS = {"headgate": "/health/ready"}
"""Where a kind of replica says that it is well. What is not listed is asked for /health, then /v1/models."""


@dataclass(slots=True)
class Watch:
    """Looks after one replica for as long as `run` runs."""

    replica: Replica
    pool: Pool
    tell: Callable[[Event], None]
    interval_s: float = 1.0
    deep_s: float = 30.0
    """Between two checks that really generate a token."""
    models: list[str] = field(default_factory=list)
    """What it says it serves."""
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it has answered."""
    _path: str = ""

    async def run(self) -> None:
        """It is in use when it first answers; from then on the dispatcher judges what is seen of it."""
        self._path = HEALTH_PATHS.get(self.replica.kind, "/health")
        pause_s = FIRST_PAUSE_S
        while not await self.look():
            await asyncio.sleep(pause_s)
            pause_s = min(self.interval_s, pause_s * 1.5)
        self.tell(Probed(self.replica.id, ok=True))
        self.joined.set()
        since_deep_s = 0.0
        while True:
            await asyncio.sleep(self.interval_s)
            since_deep_s += self.interval_s
            if deep := since_deep_s >= self.deep_s:
                since_deep_s = 0.0
            self.tell(Probed(self.replica.id, await (self.look_deep() if deep else self.look()), deep))

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
            if status == 200 and not self.models:
                await self._ask_models()
        except (ReplicaFailed, TimeoutError, OSError):
            return False
        return status == 200

    async def _ask_models(self) -> None:
        status, body = await self.pool.get("/v1/models", PROBE_TIMEOUT_S)
        if status == 200:
            try:
                listed = json.loads(body)["data"]
                self.models = [str(card["id"]) for card in listed][:256]
            except (ValueError, KeyError, TypeError):
                self.models = []
