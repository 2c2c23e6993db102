"""Shares out what all clients of the server share: places for connections, and memory for what they send.

A place is taken from a connection on which nothing is being answered; memory from the client that has taken longest. So
clients that ask for nothing can keep neither.
"""

import asyncio
from collections import deque
from math import inf
from typing import Final, Protocol

AFTER_IDLE: Final = 1e12
"""Seconds added to `spare_since` of a connection that is not idle: more than any clock says, so that it makes way after
all that are idle."""
_LOOK_S_EACH: Final = 5e-6
"""Seconds between searches per connection. A search takes about a tenth of this: at most a tenth of the time goes
there."""
_FOUND_AT_ONCE: Final = 1024


class Occupant(Protocol):
    """A connection, whatever protocol it speaks."""

    @property
    def transport(self) -> asyncio.Transport: ...

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""

    def drain(self) -> None:
        """Leaves as soon as nothing is under way."""

    @property
    def spare_since(self) -> float:
        """The connection with the lowest value makes way first; inf: it makes no way, such as while a request is being
        answered."""

    def make_way(self) -> None:
        """Leaves now; an answer that is not complete is not awaited."""


class Places:
    """Finds the connection that makes way for a newcomer."""

    def __init__(self) -> None:
        self._next: deque[tuple[Occupant, float]] = deque()
        self._looked_at = -inf

    def vacate(self, occupants: set[Occupant], now: float) -> Occupant | None:
        """The occupant that has made way; None: all are busy, or were a moment ago."""
        for _ in range(2):
            while self._next:
                occupant, since = self._next.popleft()
                if occupant in occupants and occupant.spare_since == since:
                    occupant.make_way()
                    return occupant
            if now - self._looked_at < _LOOK_S_EACH * len(occupants):
                return None
            self._looked_at = now
            self._look(occupants)
        return None

    def _look(self, occupants: set[Occupant]) -> None:
        spare = [(occupant, since) for occupant in occupants if (since := occupant.spare_since) < inf]
        spare.sort(key=_since)
        self._next.extend(spare[:_FOUND_AT_ONCE])


def _since(entry: tuple[Occupant, float]) -> float:
    return entry[1]


class UnhandledConnection(Protocol):
    """A connection with received bytes that no handler has seen yet."""

    def shed(self) -> None:
        """Drops those bytes, and tells the client. Raises nothing."""


class Inbox:
    """Counts the bytes of bodies, messages and pipelined requests that are not handed over yet, all clients together.
    Past the bound, the sender that has taken longest loses its bytes: a client that sends at an ordinary pace is done
    before its turn comes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._by_sender: dict[UnhandledConnection, int] = {}
        self.total = 0

    def note(self, sender: UnhandledConnection, size: int) -> None:
        """Sets the bytes that `sender` holds from now on. The sender itself may be the one that loses them."""
        held = self._by_sender
        self.total += size - held.get(sender, 0)
        if size > 0:
            held[sender] = size
        else:
            held.pop(sender, None)
        while self.total > self._most_bytes and held:
            slowest = next(iter(held))
            self.total -= held.pop(slowest)
            slowest.shed()
