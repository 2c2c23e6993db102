"""Delays writes until the loop has handled all that has come in.

Each write wakes its reader, on another core, which costs more than all the rest that is done for a small message.
Written one after the other, the first write wakes the readers and the rest find them awake; and two events for the same
client become one write. With only one write to do, nothing is waited for.
"""

import asyncio
from typing import Protocol


class Corked(Protocol):
    """An object with data to write."""

    def flush(self) -> None:
        """Writes the data. Raises nothing."""


class Outbox:
    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """None: there is no loop, and everything is written at once."""
        self._loop = loop
        self._waiting: list[Corked] = []

    def add(self, corked: Corked) -> None:
        if self._loop is None:
            corked.flush()
            return
        self._waiting.append(corked)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        waiting = self._waiting
        self._waiting = []
        for corked in waiting:
            corked.flush()
