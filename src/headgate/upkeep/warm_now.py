"""POST /admin/replicas/ID/warmup: warms one replica up now, and says how it went.

For platforms that scale to zero and want to know when a replica may be sent to. The warm-up continues if the caller
disconnects.
"""

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from headgate.model.errors import EngineFailed, QueueFull
from headgate.model.replica import ReplicaId
from headgate.upkeep.prober import Prober
from headgate.wire.exchange import Exchange

log = logging.getLogger(__name__)

MOST = 8
"""Maximum warm-ups at once that callers asked for."""


class WarmNow:
    def __init__(self, watches: Mapping[ReplicaId, Prober]) -> None:
        self._watches = watches
        self._tasks: set[asyncio.Task[None]] = set()

    def act(self, exchange: Exchange, replica_id: ReplicaId) -> None:
        """Warms a known replica. The caller is answered when that is over: 200 with what was done, 502 with what
        failed."""
        if len(self._tasks) >= MOST:
            raise QueueFull(f"{MOST} replicas are being warmed already: ask again in a few seconds")
        task = asyncio.get_running_loop().create_task(self._warm(exchange, self._watches[replica_id]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _warm(self, exchange: Exchange, watch: Prober) -> None:
        try:
            warmed = await watch.warm(asked=True)
        except Exception as error:
            log.exception("replica %s could not be warmed", watch.replica.id)
            exchange.fail(EngineFailed(f"internal error: {type(error).__name__}"))
            return
        if exchange.done:
            return
        body = {"replica": watch.replica.id, "kind": watch.replica.kind, **msgspec.to_builtins(warmed)}
        exchange.respond(200 if warmed.ok else 502, msgspec.json.encode(body))
