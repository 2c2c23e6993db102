"""Posts JSON messages to one address, in order, without delaying the caller.

A message that can't be delivered is retried a few times and then given up: an alert of an hour ago is no longer news.
While the receiver is slow or away, the latest messages are kept and the oldest dropped, and both are counted.
"""

import asyncio
import logging
from collections import deque
from urllib.parse import urlsplit

from headgate.model.clock import Clock
from headgate.model.errors import ReplicaFailed, ReplicaStalled
from headgate.replica.http import Connections

log = logging.getLogger(__name__)

BACKOFF_S = (1.0, 4.0, 16.0)
"""Seconds before each retry."""
KEEP = 64
TIMEOUT_S = 5.0
WORTH_TRYING = (408, 425, 429)
"""Client errors (4xx) that may not recur on a retry."""


class Webhook:
    """Built and used within one running loop."""

    def __init__(self, url: str, clock: Clock, *, backoff_s: tuple[float, ...] = BACKOFF_S, keep: int = KEEP) -> None:
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise ValueError("observe.webhook: a name and password in the address are not sent; use a path or ?key=…")
        path = parts.path or "/"
        self._path = f"{path}?{parts.query}" if parts.query else path
        self.host = parts.netloc
        """The receiver's host and port, for log lines: the path of a webhook is often its only secret."""
        self.sent = self.failed = self.dropped = 0
        """Messages delivered, given up, and never tried because newer ones took their place."""
        self.last_error = ""
        self._pool = Connections(f"{parts.scheme}://{parts.netloc}", clock=clock)
        self._backoff_s = backoff_s
        self._queue: deque[bytes] = deque(maxlen=keep)
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def post(self, body: bytes) -> None:
        if len(self._queue) == self._queue.maxlen:
            self.dropped += 1
        self._queue.append(body)
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._deliver_all())

    async def close(self) -> None:
        """Stops sending; messages not yet delivered are lost."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._pool.close()

    async def _deliver_all(self) -> None:
        while self._queue:
            await self._deliver(self._queue.popleft())

    async def _deliver(self, body: bytes) -> None:
        for pause_s in (*self._backoff_s, None):
            error, again = await self._try(body)
            if not error:
                self.sent += 1
                return
            self.last_error = error
            if pause_s is None or not again:
                break
            log.info("webhook at %s: %s; trying again in %g s", self.host, error, pause_s)
            await asyncio.sleep(pause_s)
        self.failed += 1
        log.warning("webhook at %s: %s; given up, see observe.webhook", self.host, error)

    async def _try(self, body: bytes) -> tuple[str, bool]:
        """Sends once. Returns the error, empty on success, and whether a retry may succeed."""
        try:
            status, _ = await self._pool.ask("POST", self._path, body, TIMEOUT_S)
        except ReplicaStalled:
            return f"no answer within {TIMEOUT_S:g} s", True
        except ReplicaFailed:
            return "it could not be reached", True
        if 200 <= status < 300:
            return "", False
        return f"it answered {status}", status >= 500 or status in WORTH_TRYING
