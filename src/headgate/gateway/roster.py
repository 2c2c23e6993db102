"""Which replicas are there? Joins and retires them, each with its connections and somebody who watches it."""

import asyncio
from collections.abc import Callable

from headgate.gateway.catalog import Catalog
from headgate.gateway.gateway import Gateway
from headgate.gateway.watch import Watch
from headgate.model.event import ReplicaJoined, ReplicaLeft
from headgate.model.replica import Replica, ReplicaId
from headgate.replica.http import Pool


class Roster:
    def __init__(
        self, gateway: Gateway, new_pool: Callable[[Replica], Pool], probe_interval_s: float, deep_interval_s: float
    ) -> None:
        self.catalog = Catalog(gateway.hear)
        self.watches: dict[ReplicaId, Watch] = {}
        self.urls: dict[ReplicaId, str] = {}
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails if somebody who watches does: nobody would notice any more what becomes of that replica."""
        self._gateway = gateway
        self._new_pool = new_pool
        self._intervals = (probe_interval_s, deep_interval_s)
        self._tasks: dict[ReplicaId, asyncio.Task[None]] = {}

    def join(self, replica: Replica) -> Watch:
        """It is used once it has answered."""
        if replica.id in self.watches:
            raise ValueError(f"replica {replica.id} is here already")
        pool = self._new_pool(replica)
        self._gateway.join(replica, pool)
        self.catalog.add(replica)
        self.urls[replica.id] = replica.url
        watch = self.watches[replica.id] = Watch(replica, pool, self._gateway.hear, self.catalog.said, *self._intervals)
        self._gateway.hear(ReplicaJoined(replica))
        task = self._tasks[replica.id] = asyncio.get_running_loop().create_task(watch.run())
        task.add_done_callback(self._on_done)
        return watch

    def leave(self, replica_id: ReplicaId) -> None:
        """No more requests for it; those it has may finish."""
        watch = self.watches.pop(replica_id)
        self._tasks.pop(replica_id).cancel()
        self._gateway.hear(ReplicaLeft(replica_id))
        self.catalog.remove(replica_id)
        del self.urls[replica_id]
        watch.pool.retire()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for watch in self.watches.values():
            watch.pool.close()
        self.broken.cancel()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.broken.done():
            self.broken.set_exception(error)
