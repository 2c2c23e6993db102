"""Splits bytes into server-sent events.

Sans I/O: bytes in, the payloads of complete events out. A payload is an event's `data:` lines, joined; comments and
other fields are dropped, and so is an event that its stream does not complete.
"""

from typing import Final

from headgate.model.errors import ReplicaFailed

BOM_DATA: Final = b"\xef\xbb\xbfdata"
"""The field name after a byte order mark, which may stand at the beginning of a stream."""


class EventSplitter:
    __slots__ = ("_after_cr", "_between_events", "_data", "_data_bytes", "_limit", "_line", "_line_bytes")

    def __init__(self, limit: int = 1 << 20) -> None:
        self._limit = limit
        self._data: list[bytes] = []
        """The data lines of the current event."""
        self._data_bytes = 0
        self._line: list[bytes] = []
        """The pieces of the current line."""
        self._line_bytes = 0
        self._after_cr = False
        self._between_events = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads of the events that `chunk` completes. Raises ReplicaFailed at an event beyond the limit."""
        if (
            self._between_events
            and chunk.startswith(b"data: ")
            and chunk.endswith(b"\n\n")
            and chunk.find(b"\r") < 0
            and len(chunk) <= self._limit
        ):
            # Nearly every chunk is whole events of one line each, if that accounts for all its line breaks.
            if chunk.find(b"\n") == len(chunk) - 2:
                return [chunk[6:-2]]
            events = chunk[6:-2].split(b"\n\ndata: ")
            if chunk.count(b"\n") == 2 * len(events):
                return events
        events = self._feed_lines(chunk)
        self._between_events = not self._data and not self._line and not self._after_cr
        return events

    def _feed_lines(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")  # the second half of a CRLF
        if not chunk:
            return []
        lines = chunk.splitlines()  # bytes split at \n, \r and \r\n only, as SSE requires
        self._after_cr = chunk.endswith(b"\r")
        rest = b"" if self._after_cr or chunk.endswith(b"\n") else lines.pop()
        events: list[bytes] = []
        for line in lines:
            if self._line:
                line = b"".join((*self._line, line))
                self._line.clear()
                self._line_bytes = 0
            if line:
                self._take_field(line)
            elif self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
                self._data_bytes = 0
        if rest:
            self._line.append(rest)
            self._line_bytes += len(rest)
            self._check(self._data_bytes + self._line_bytes)
        return events

    def _take_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data" or name == BOM_DATA:
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._data_bytes += len(value) + 1
            self._check(self._data_bytes)

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise ReplicaFailed(f"the replica sent an event of more than {self._limit} bytes")
