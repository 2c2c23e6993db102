"""Joins a gateway to the others that share its tenants' limits and replicas."""

import asyncio
import os
import socket
from contextlib import AsyncExitStack

from headgate.config.gateway import SharedConfig
from headgate.gateway.gateway import Gateway
from headgate.model.clock import Clock
from headgate.model.request import Request
from headgate.upkeep.shared import Sharing
from headgate.upkeep.shared_store import RedisStore


class SharedWiring:
    """Made before the gateway, which asks it about every arrival; joined to the others by `start`."""

    def __init__(self, config: SharedConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._sharing: Sharing | None = None

    def hold(self, request: Request) -> bool:
        """Whether an arrival has to wait for its tenant's share of the limits."""
        return self._sharing is not None and self._sharing.hold(request)

    async def start(self, gateway: Gateway, stack: AsyncExitStack) -> "asyncio.Task[None]":
        """Returns the task that keeps sharing up; it ends only when cancelled. The gateway starts even if the store
        can't be reached."""
        name = f"{socket.gethostname()}-{os.urandom(4).hex()}"
        store = RedisStore(self._config.redis, self._config.prefix)
        sharing = Sharing(name, store, gateway.dispatcher, gateway.hear, gateway.let_in, self._clock)
        stack.push_async_callback(sharing.close)
        await sharing.start()
        self._sharing = sharing
        return asyncio.get_running_loop().create_task(sharing.run())
