"""Reads along while the proxy shows an answer: its status, first token, usage and end. Changes nothing of it."""

from typing import Final

from headgate.model.errors import ReplicaFailed
from headgate.replica.openai import read_usage
from headgate.replica.shape import Usage
from headgate.replica.sse import EventSplitter

WHOLE_BYTES: Final = 1 << 20
"""Bytes of a whole answer that are kept for its usage; of a longer one the usage stays unknown."""
DONE: Final = b"[DONE]"


class Observed:
    def __init__(self, status: int, stream: bool) -> None:
        self.status = status
        self.first_at: float | None = None
        """When the first event of a stream came; None: none came, or the answer is in one piece."""
        self.last_at: float | None = None
        self.events = 0
        self.usage: Usage | None = None
        self.complete = False
        """Whether the proxy has shown the end of the answer."""
        self._events = EventSplitter() if stream else None
        self._whole: list[bytes] | None = None if stream else []
        self._bytes = 0

    def take(self, chunk: bytes, end: bool, now: float) -> bool:
        """Takes a part of the answer. Returns whether it is the first with an event."""
        first = False
        if self._events is not None:
            try:
                events = self._events.feed(chunk)
            except ReplicaFailed:  # an event of more than a megabyte: the proxy passes it on, and it is not looked into
                self._events, events = None, []
            told = [event for event in events if event != DONE]
            if told:
                self.events += len(told)
                self.last_at = now
                first, self.first_at = self.first_at is None, self.first_at or now
                usage, alone = read_usage(told[-1])
                self.usage = usage or self.usage
                self.events -= alone
        elif self._whole is not None:
            self._bytes += len(chunk)
            self._whole.append(chunk)
            if self._bytes > WHOLE_BYTES:
                self._whole = None
        if end:
            self.end(now)
        return first

    def end(self, now: float) -> None:
        self.complete, self.last_at = True, self.last_at or now
        if self._whole:
            self.usage = read_usage(b"".join(self._whole))[0]
            self._whole = None
