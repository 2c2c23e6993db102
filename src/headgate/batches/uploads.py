"""Bounds the uploads that are under way, and reads files for downloads, on threads apart from the database's."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Final

from headgate.batches.forms.multipart import boundary_of
from headgate.batches.store import BatchStore
from headgate.batches.upload import Upload
from headgate.model.errors import QueueFull

THREADS: Final = 2
MOST: Final = 16
MOST_EACH: Final = 4


class Uploads:
    def __init__(self, store: BatchStore, most_bytes: int) -> None:
        """`most_bytes`: of one file."""
        self._store = store
        self._most_bytes = most_bytes
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="batch-files")
        self._under_way: Counter[str] = Counter()

    @property
    def under_way(self) -> int:
        return self._under_way.total()

    def begin(self, tenant: str, content_type: str) -> Upload:
        """Raises InvalidRequest, or QueueFull where too many are under way."""
        boundary = boundary_of(content_type)
        if self.under_way >= MOST or self._under_way[tenant] >= MOST_EACH:
            raise QueueFull(
                f"{self.under_way} uploads are under way, {self._under_way[tenant]} of them yours: try again"
            )
        self._under_way[tenant] += 1

        def over() -> None:
            self._under_way[tenant] -= 1
            if not self._under_way[tenant]:
                del self._under_way[tenant]

        return Upload(self._store, boundary, self._most_bytes, self._threads, over)

    async def read(self, file: IO[bytes], size: int) -> bytes:
        """Raises OSError."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, file.read, size)

    def close(self) -> None:
        self._threads.shutdown(wait=False)
