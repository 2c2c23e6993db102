"""Does the store's work on one thread, off the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from headgate.batches.store import BatchStore, StorageTrouble

MOST_WAITING: Final = 256
"""Pieces of work that may wait; a client's further question is refused."""
T = TypeVar("T")


class Desk:
    """Built and used within one running loop."""

    def __init__(self, store: BatchStore) -> None:
        self.store = store
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._loop = asyncio.get_running_loop()
        self._waiting = 0

    @property
    def busy(self) -> bool:
        """Whether as much waits as may."""
        return self._waiting >= MOST_WAITING

    async def do(self, work: Callable[[], T]) -> T:
        """What `work` returns, or raises, on the store's thread."""
        self._waiting += 1
        try:
            return await self._loop.run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1

    async def open(self) -> str:
        """Opens the store. Returns why that is not possible; empty: it is open."""
        try:
            await self.do(self.store.open)
        except StorageTrouble as trouble:
            return str(trouble)
        return ""

    async def close(self) -> None:
        await self.do(self.store.close)
        self._thread.shutdown(wait=False)
