"""Sends requests to a model server: the client side of HTTP/1.1.

Callbacks: with an idle connection at hand a request needs no task, and is that connection's when `send` returns. A body
up to 16 KiB is written when the loop has handled all that has come in (wire/connection.py), a longer one at once. A new
connection is opened by a task.
"""

import asyncio
import os
import ssl
from collections import deque
from errno import errorcode
from urllib.parse import urlsplit

from headgate.model.clock import Clock
from headgate.model.errors import ReplicaFailed, ReplicaStalled, ReplicaUnreached, StartupError
from headgate.model.labels import plain
from headgate.replica.call import Call, Listener, PoolLimits
from headgate.replica.connection import Connection
from headgate.replica.credentials import Credentials
from headgate.wire.connection import Outbox

__all__ = ["OWN_BYTES", "Call", "Connections", "Listener", "Once", "PoolLimits", "request_head"]


UNREACHED = "the replica could not be reached: "
OWN_BYTES = 4 * 1024 * 1024
"""Maximum size of an answer to one of the gateway's own questions; a larger one is a failure of the replica."""


def request_head(
    path: str,
    host: str,
    headers: tuple[tuple[str, str], ...] = (),
    method: str = "POST",
    content_type: str = "application/json",
) -> bytes:
    """The head for `Connections.send`: everything but the body's length and the empty line. So one head can serve many
    requests, and lines can be appended to it. `content_type`: of the posted body."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", *(f"{name}: {value}" for name, value in headers)]
    if method == "POST":
        lines.append(f"content-type: {content_type}")
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError(f"line break in a request head: {lines}")
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


class Connections:
    """The connections to one replica. Built and used within one running loop."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        limits: PoolLimits | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.url = url
        self.clock = clock
        self.limits = limits or PoolLimits()
        self.host, self._address = _parse(url)
        self._credentials = credentials
        self.lines = b"" if credentials is None else credentials.lines
        """Header lines that go with everything it is asked."""
        self.secrets: tuple[bytes, ...] = () if credentials is None else credentials.secrets
        """Values in those lines that no client may read in an answer."""
        self.denials = 0
        """Answers with 401 or 403 so far."""
        if credentials is not None:
            tls = tls or credentials.tls
        self._tls = (tls or ssl.create_default_context()) if url.startswith("https:") else None
        self._loop = asyncio.get_running_loop()
        self.outbox = Outbox(self._loop)
        self._idle: deque[Connection] = deque()
        """Idle connections, oldest first. The youngest is used next, so that surplus ones grow old."""
        self._timer: asyncio.TimerHandle | None = None
        self._connections: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._closed = False
        self._retired = False

    @property
    def count(self) -> int:
        return len(self._connections)

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def busy(self) -> int:
        """Connections that carry a call, and those that are being made for one."""
        return len(self._connections) - len(self._idle) + len(self._connecting)

    def send(self, head: bytes, body: bytes, listener: Listener) -> Call:
        """Sends a request; `head` is from `request_head`. The listener is not called before this has returned."""
        call = Call(head + self.lines if self.lines else head, body, listener)
        while self._idle:
            connection = self._idle.pop()
            connection.idle_since = None
            if not connection.transport.is_closing():
                connection.begin(call)
                return call
        self._start_connecting(call)
        return call

    async def get(self, path: str, timeout_s: float = 2.0) -> tuple[int, bytes]:
        """Status and body of a small GET. Raises ReplicaFailed, or ReplicaStalled after `timeout_s`."""
        return await self.ask("GET", path, b"", timeout_s)

    async def ask(self, method: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of a small request by any method: for the gateway's own questions, not for clients' requests.
        Raises as `get` does."""
        probe = Once(self._loop.create_future())
        call = self.send(request_head(path, self.host, method=method), body, probe)
        call.most_bytes = OWN_BYTES
        try:
            async with asyncio.timeout(timeout_s):
                return await probe.answer
        except TimeoutError:
            raise ReplicaStalled(f"{self.url}{path} did not answer within {plain(timeout_s, 6)} s") from None
        finally:
            call.cancel()

    def read_key_again(self) -> None:
        """Reads the key again, which may have been replaced. Raises StartupError, and the old key stays."""
        if self._credentials is not None:
            self._credentials.read_again()
            self.lines = self._credentials.lines
            self.secrets = self._credentials.secrets

    def denied(self, path: str, status: int) -> str:
        """The message about an answer of 401 or 403. Reads the key again, in case it was replaced."""
        said = f"it answered {status} to {path}"
        if not self.lines:
            return f"{said}: it wants a key, and none is configured; give it one with replicas[].api_key_file"
        try:
            self.read_key_again()
        except StartupError as error:
            return f"{said}, and its key can't be read again: {error}"
        return f"{said}: it does not take the key that it was given; look at replicas[].api_key_file and headers"

    def retire(self) -> None:
        """Lets calls in flight end, and keeps no connection after them."""
        self._retired = True
        for connection in tuple(self._idle):
            connection.transport.close()

    def close(self) -> None:
        """Closes every connection; calls in flight fail."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._connecting):
            task.cancel()
        for connection in tuple(self._connections):
            connection.transport.abort()

    # -- called by the connections -----------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        if self._timer is None:
            self._timer = self._loop.call_later(self.limits.look_every_s, self._look)

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection.idle_since is not None:
            self._idle.remove(connection)

    def keep(self, connection: Connection) -> bool:
        if self._closed or self._retired or len(self._idle) >= self.limits.max_idle:
            return False
        self._idle.append(connection)
        return True

    def try_again(self, call: Call) -> bool:
        if self._closed or call.retried or call.once or call.sent_at is None:
            return False
        if self.clock() - call.sent_at > self.limits.stale_s:
            return False
        call.retried = True
        call.connection = None
        self._start_connecting(call)
        return True

    # ------------------------------------------------------------------------------------------------------

    def _start_connecting(self, call: Call) -> None:
        task = self._loop.create_task(self._connect(call))
        call.connecting = task
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, call: Call) -> None:
        connection = Connection(self)
        address = self._address
        try:
            async with asyncio.timeout(self.limits.connect_timeout_s):
                if isinstance(address, str):
                    await self._loop.create_unix_connection(lambda: connection, address)
                else:
                    await self._loop.create_connection(lambda: connection, *address, ssl=self._tls)
        except asyncio.CancelledError:
            self._give_up(connection)
            call.fail(ReplicaUnreached("the replica is no longer asked"))  # no effect if the call cancelled it
        except Exception as error:
            self._give_up(connection)
            why = _in_words(error) or f"no connection within {plain(self.limits.connect_timeout_s, 6)} s"
            # Whether a request that was written before was read, or even broke the replica, is unknown.
            failed = ReplicaFailed if call.sends else ReplicaUnreached
            call.fail(failed(f"{UNREACHED}{why}"))
        else:
            call.connecting = None
            connection.begin(call)

    def _give_up(self, connection: Connection) -> None:
        """Drops a connection that was made just when it was no longer waited for: uvloop then closes its socket and
        never reports it as lost."""
        if connection in self._connections:
            connection.drop()
            self._connections.discard(connection)

    def _look(self) -> None:
        self._timer = None
        now = self.clock()
        for connection in tuple(self._connections):
            connection.look(now)
        if self._connections and not self._closed:
            self._timer = self._loop.call_later(self.limits.look_every_s, self._look)


class Once:
    """Listens to the answer to one of the gateway's own questions."""

    def __init__(self, answer: asyncio.Future[tuple[int, bytes]]) -> None:
        self.answer = answer
        self._status = 0
        self._body = b""

    def on_head(self, status: int, headers: dict[str, str], is_stream: bool) -> None:
        self._status = status

    def on_events(self, events: list[bytes]) -> None:
        pass

    def on_body(self, body: bytes) -> None:
        self._body = body

    def on_done(self) -> None:
        if not self.answer.done():
            self.answer.set_result((self._status, self._body))

    def on_failed(self, error: ReplicaFailed, sent: bool) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def on_late(self) -> None:
        pass

    def on_broken(self, flaw: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(ReplicaFailed(f"its answer could not be read: {flaw!r}"))


def _in_words(error: Exception) -> str:
    """The system's own words, such as "connection refused": without numbers and addresses, which no client needs."""
    known = isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno in errorcode
    return os.strerror(error.errno).lower() if known and isinstance(error, OSError) and error.errno else str(error)


def _parse(url: str) -> tuple[str, str | tuple[str, int]]:
    """The Host header, and the address to connect to: a socket's path, or host and port."""
    if url.startswith("unix:") and len(url) > len("unix:"):
        return "localhost", url.removeprefix("unix:")
    parts = urlsplit(url)
    plain = parts.path in ("", "/") and not parts.query and not parts.fragment and "@" not in parts.netloc
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise ValueError(f"a replica's address is http://host:port, https://host:port or unix:/path, not {url!r}")
    return parts.netloc, (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
