"""Decides for the workers of a gateway, which connect here.

    replicas, models or config change → each worker is told the whole state, before any command that follows from it

The process that has the Brain has all of a gateway but its clients: dispatcher, limits, replicas and their probes,
fleet, records, instruments and admin API.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headgate.config.gateway import GatewayConfig
from headgate.gateway.catalog import Catalog
from headgate.gateway.gateway import Gateway
from headgate.gateway.worker.frames import STATE
from headgate.gateway.worker.sessions import Worker
from headgate.gateway.worker.state import KnownReplica, WorkerState, frozen
from headgate.model.clock import Clock
from headgate.model.replica import ReplicaId

log = logging.getLogger(__name__)

KeepPrompt = Callable[[str, dict[str, Any]], None]


class Brain:
    """Built within the running loop."""

    def __init__(
        self, gateway: Gateway, catalog: Catalog, config: GatewayConfig, clock: Clock, keep: KeepPrompt | None = None
    ) -> None:
        """`keep`: keeps the prompt of a worker's request; None: prompts are not kept."""
        self.workers: list[Worker] = []
        """Those that are connected."""
        self._gateway = gateway
        self._catalog = catalog
        self._config = config
        self._version = 0
        self._clock = clock
        self._keep = keep
        self._loop = asyncio.get_running_loop()
        self._state: WorkerState | None = None
        """What workers should know. None: something has changed since it was made."""
        self._frozen: tuple[WorkerState, bytes] | None = None
        self._heard = asyncio.Event()
        """Set whenever a worker says how it is, or is gone."""
        self._server: asyncio.Server | None = None
        gateway.placing.tell_changes(self.changed)

    async def listen(self, path: Path) -> None:
        """Lets workers connect there: the folder says who can."""
        self._server = await self._loop.create_unix_server(self._new_link, str(path))

    def _new_link(self) -> asyncio.Protocol:
        return Worker(self, self._gateway, self._clock).link

    async def until_listening(self, workers: int) -> None:
        """Waits until this number of workers accept connections."""
        while sum(worker.listens for worker in self.workers) < workers:
            self._heard.clear()
            await self._heard.wait()

    async def until_gone(self, within_s: float) -> None:
        """Waits until no worker is connected, at most so long."""
        ends = self._loop.time() + within_s
        while self.workers and (left_s := ends - self._loop.time()) > 0:
            self._heard.clear()
            try:
                await asyncio.wait_for(self._heard.wait(), left_s)
            except TimeoutError:
                return

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for worker in tuple(self.workers):
            worker.link.close()

    # -- what workers are told -------------------------------------------------------------------------------

    def take(self, config: GatewayConfig) -> None:
        """Workers follow this config from now on."""
        self._config = config
        self._version += 1
        self.changed()

    def changed(self) -> None:
        """Replicas, their models or the config have changed."""
        if self._state is not None:
            self._state = None
            # Again in a moment: what has changed may not all be written down yet.
            self._loop.call_soon(self._tell_all)

    def _tell_all(self) -> None:
        self._state = None
        for worker in self.workers:
            self.tell_first(worker)

    def tell_first(self, worker: Worker) -> None:
        """Tells a worker the state, if it does not have it: before whatever it is told next."""
        state = self._state
        if state is not None and worker.told is state:
            return
        if state is None:
            made = WorkerState(self._version, self._config, self._replicas(), self._catalog.told())
            known = None if self._frozen is None else self._frozen[0]
            if self._frozen is None or made != known:
                self._frozen = (made, frozen(made))
            self._state = state = self._frozen[0]
        if worker.told is not state and self._frozen is not None:
            worker.told = state
            worker.link.send(STATE, self._frozen[1])

    def _replicas(self) -> tuple[KnownReplica, ...]:
        places = self._gateway.placing.places.values()
        return tuple(KnownReplica(place.replica, place.default_model) for place in places)

    # -- what workers ask and say ----------------------------------------------------------------------------

    def meet(self, worker: Worker) -> None:
        self.workers.append(worker)

    def forget(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self._heard.set()

    def heard_status(self) -> None:
        self._heard.set()

    def cached(
        self, prefix: tuple[bytes, ...], link_tokens: float, tokens: int, model: str, lanes: tuple[str, ...]
    ) -> tuple[int, dict[str, int]]:
        """Tokens of a prompt that the best of all replicas has cached, and the best of each of these lanes."""
        cached = self._gateway.dispatcher.cached_tokens
        most = cached(prefix, link_tokens, tokens, model, None)
        if not most:
            return 0, {}
        return most, {lane: cached(prefix, link_tokens, tokens, model, lane) for lane in lanes}

    def token_s(self, replica_id: ReplicaId) -> float:
        """Seconds that a replica takes for each token of an unstreamed answer."""
        return self._gateway.dispatcher.answer_pace(replica_id)

    def keep_prompt(self, request_id: str, body: dict[str, Any]) -> None:
        if self._keep is not None:
            self._keep(request_id, body)

    def held(self) -> dict[str, int]:
        """What all workers hold, by name."""
        total: dict[str, int] = {}
        for worker in self.workers:
            for name, count in worker.holds.items():
                total[name] = total.get(name, 0) + count
        return total
