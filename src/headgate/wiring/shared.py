"""Joins a gateway to the others that share its tenants' limits and replicas."""

import asyncio
import os
import socket
from contextlib import AsyncExitStack

from headgate.config.gateway import SharedConfig
from headgate.gateway.gateway import Gateway
from headgate.model.clock import Clock
from headgate.upkeep.shared import Sharing
from headgate.upkeep.shared_store import RedisStore


async def share(config: SharedConfig, gateway: Gateway, stack: AsyncExitStack, clock: Clock) -> "asyncio.Task[None]":
    """Returns the task that keeps sharing up; it ends only when cancelled. The gateway starts even if the store can't
    be reached."""
    name = f"{socket.gethostname()}-{os.urandom(4).hex()}"
    store = RedisStore(config.redis, config.prefix)
    sharing = Sharing(name, store, gateway.dispatcher, gateway.hear, gateway.let_in, clock)
    stack.push_async_callback(sharing.close)
    await sharing.start()
    gateway.hold = sharing.hold
    return asyncio.get_running_loop().create_task(sharing.run())
