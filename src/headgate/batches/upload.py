"""Writes an uploaded file to the disk while it arrives, on threads of its own.

Two pieces of memory at most wait for the disk; then the client is not read. What goes wrong is kept, and told when the
form has ended. A file is its client's once its row is committed: until then it is a part, which is removed.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Final

from headgate.batches.forms.multipart import FormReader
from headgate.batches.store import BatchStore, StorageTrouble, new_id, troubled
from headgate.model.errors import InvalidRequest

MOST_UNWRITTEN: Final = 2 * 1024 * 1024
"""Bytes that may wait for the disk, for each upload."""


class TooLarge(InvalidRequest):
    """The file is larger than is allowed."""


class Upload:
    """A BodySink. Built on the loop, on which all but `_work` runs."""

    def __init__(
        self, store: BatchStore, boundary: bytes, most_bytes: int, threads: ThreadPoolExecutor, over: Callable[[], None]
    ) -> None:
        """`over` is called once, when nothing of this upload will be written any more."""
        self.file_id = new_id("file-")
        self.size = 0
        """Bytes of the file itself."""
        self.error: InvalidRequest | StorageTrouble | None = None
        """What is wrong; None: nothing so far."""
        self.on_room: Callable[[], None] | None = None
        self._store = store
        self._most_bytes = most_bytes
        self._threads = threads
        self._over: Callable[[], None] | None = over
        self._loop = asyncio.get_running_loop()
        self._form = FormReader(boundary, "file", self._write)
        self._file: IO[bytes] | None = None
        self._waiting: list[bytes] = []
        self._unwritten = 0
        self._working = False
        self._dropped = False
        self._ended: asyncio.Future[None] | None = None
        """Waited for by the handler, once the request is complete; None: more may come."""
        self._synced = False
        self._discarded = False

    @property
    def fields(self) -> dict[str, str]:
        return self._form.fields

    @property
    def filename(self) -> str:
        return self._form.filename or ""

    # -- told by the connection ----------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return self._unwritten >= MOST_UNWRITTEN

    def take(self, piece: bytes) -> None:
        if self.error is None and not self._dropped:
            self._waiting.append(piece)
            self._unwritten += len(piece)
            self._go_on()

    def drop(self) -> None:
        """Throws the part away, once the thread is done with it."""
        self._dropped = True
        self._waiting.clear()
        self._go_on()

    async def end(self) -> None:
        """Waits until all is written and synced. Raises InvalidRequest or StorageTrouble; then the part is gone."""
        self._ended = self._loop.create_future()
        self._go_on()
        await self._ended
        if self.error is not None:
            self.drop()
            raise self.error
        self._settle()

    # -- on the threads ------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._working or not (self._waiting or self._dropped or self._ended is not None):
            return
        self._working = True
        pieces, self._waiting = self._waiting, []
        last = self._ended is not None and not self._dropped
        done = self._loop.run_in_executor(self._threads, self._work, pieces, last, self._dropped)
        done.add_done_callback(self._worked)

    def _work(self, pieces: list[bytes], last: bool, dropped: bool) -> None:
        try:
            if dropped:
                self._discarded = True
                self._close()
                self._store.discard(self.file_id)
            elif self.error is None:
                with troubled(self._store.folder):
                    for piece in pieces:
                        self._form.feed(piece)
                    if last:
                        self._form.finish()
                        self._sync()
                        self._synced = True
        except (InvalidRequest, StorageTrouble) as error:
            self.error = error
        except OSError:
            return  # a part that can't be removed is removed with the strays

    def _write(self, content: bytes) -> None:
        self.size += len(content)
        if self.size > self._most_bytes:
            raise TooLarge(f"the file is larger than {self._most_bytes} bytes (batches.file_bytes)", param="file")
        if self._file is None:
            self._file = open(self._store.part(self.file_id), "wb")  # noqa: SIM115
        self._file.write(content)

    def _sync(self) -> None:
        if self._file is None:  # an empty file
            self._write(b"")
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    # -- on the loop again ---------------------------------------------------------------------------------------

    def _worked(self, done: asyncio.Future[None]) -> None:
        self._working = False
        if not done.cancelled() and (flaw := done.exception()) is not None:
            self.error = self.error or StorageTrouble(f"the upload could not be written: {flaw}")
        self._unwritten = sum(map(len, self._waiting))
        if self.error is not None:
            self._waiting.clear()
            self._unwritten = 0
        if self._discarded:
            self._settle()
            return
        if self._dropped:
            self._go_on()
        elif self._ended is not None and (self._synced or self.error is not None):
            if not self._ended.done():
                self._ended.set_result(None)
        else:
            self._go_on()
        room, self.on_room = self.on_room, None
        if room is not None and not self.full:
            room()

    def _settle(self) -> None:
        over, self._over = self._over, None
        if over is not None:
            over()
