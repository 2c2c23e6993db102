"""Whose long body is understood next? One thread reads them all, so that they have to take turns.

Tenants take turns by bytes: the one of which least has been read is next, and one that comes anew begins where the
others are. Of one tenant's bodies the shorter goes first, unless the longer has waited a second for each megabyte that
it is longer. So a short body waits for the one being read, and for no other of another tenant.

At most MOST_WAITING wait. Past it the tenant with most of them is refused its last one.
"""

import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from heapq import heapify, heappop, heappush
from typing import Final

from headgate.model.clock import Clock
from headgate.model.errors import Refused
from headgate.model.outcome import Outcome

MOST_WAITING: Final = 256
S_PER_BYTE: Final = 1e-6
"""That a longer body lets shorter ones go first."""
RETRY_S: Final = 1.0


class AsideWork:
    """One body to be read."""

    __slots__ = ("_order", "refuse", "size", "tenant", "work")

    def __init__(
        self,
        order: tuple[float, int],
        tenant: str,
        size: int,
        work: Callable[[], None],
        refuse: Callable[[], None] | None,
    ) -> None:
        self._order = order
        self.tenant = tenant
        self.size = size
        self.work = work
        self.refuse = refuse
        """None: it can't be refused any more."""

    def __lt__(self, other: "AsideWork") -> bool:
        return self._order < other._order


class AsideQueue:
    def __init__(self, most: int = MOST_WAITING) -> None:
        self._most = most
        self._waiting: dict[str, list[AsideWork]] = {}
        """By tenant, each a heap."""
        self._read: dict[str, float] = {}
        """Bytes of those tenants that wait."""
        self._level = 0.0
        """What the tenant that was last next had read."""
        self._number = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(
        self, tenant: str, size: int, work: Callable[[], None], refuse: Callable[[], None] | None, now: float
    ) -> AsideWork | None:
        """What no longer waits, if one too many does."""
        self._number += 1
        one = AsideWork((now + size * S_PER_BYTE, self._number), tenant, size, work, refuse)
        if tenant not in self._waiting:
            self._waiting[tenant] = []
            self._read[tenant] = max(self._level, self._read.get(tenant, 0.0))
        heappush(self._waiting[tenant], one)
        self._count += 1
        return self._drop() if self._count > self._most else None

    def pop(self) -> AsideWork | None:
        if not self._waiting:
            return None
        tenant = min(self._waiting, key=self._read.__getitem__)
        one = heappop(self._waiting[tenant])
        self._count -= 1
        self._level = self._read[tenant]
        self._read[tenant] += one.size
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            # What it is ahead by counts while others wait: else one body after the other would always be next.
            self._read = {
                name: read for name, read in self._read.items() if name in self._waiting or read > self._level
            }
        if not self._waiting:
            self._read.clear()
            self._level = 0.0
        return one

    def _drop(self) -> AsideWork | None:
        refusable = [[one for one in heap if one.refuse is not None] for heap in self._waiting.values()]
        most = max(refusable, key=len)
        if not most:
            return None
        last = max(most)
        heap = self._waiting[last.tenant]
        heap.remove(last)
        heapify(heap)
        self._count -= 1
        if not heap:
            del self._waiting[last.tenant]
        return last


class ParsingThread:
    """The thread: one, as more would only share the interpreter's lock."""

    def __init__(self, loop: AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "headgate-accept")
        self._lock = threading.Lock()
        self._queue = AsideQueue()

    def __len__(self) -> int:
        return len(self._queue)

    def do(self, work: Callable[[], None], tenant: str, size: int, refuse: Callable[[], None] | None) -> None:
        """`refuse` is called here, on the loop, for the one that is one too many."""
        with self._lock:
            dropped = self._queue.push(tenant, size, work, refuse, self._clock())
        if dropped is None:
            self._loop.run_in_executor(self._thread, self._next)
        elif dropped.refuse is not None:  # the thread is called as often as bodies wait: for this one it has been
            dropped.refuse()

    def _next(self) -> None:
        with self._lock:
            one = self._queue.pop()
        if one is not None:
            one.work()


def too_many_waiting() -> Refused:
    error = Refused(
        f"{MOST_WAITING} bodies longer than 64 KiB wait to be read, and most of them are yours; come back in"
        f" {RETRY_S:g} s, or send fewer at once",
        Outcome.QUEUE_FULL,
        RETRY_S,
    )
    error.code = "too_many_bodies"
    return error
