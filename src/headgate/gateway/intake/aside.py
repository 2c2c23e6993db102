"""Chooses which long body is parsed next. One thread parses them all, so they take turns.

Tenants take turns by bytes: the tenant with the fewest bytes parsed is next, and a new tenant begins at the level of
the others. Among one tenant's bodies a shorter one goes first, unless the longer one has waited a second for each
megabyte that it is longer. So the first body of a tenant waits for the body being parsed, and for at most one body of
each other tenant.

At most MOST_WAITING bodies wait. Beyond that, the tenant with the most waiting bodies is refused the one that would be
parsed last.
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
"""Seconds of waiting that offset one byte of length: 1 s for each megabyte."""
RETRY_S: Final = 1.0


class AsideWork:
    """One body to be parsed, or other work for the thread."""

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
        """Called to refuse the work; None: it cannot be refused."""

    def __lt__(self, other: "AsideWork") -> bool:
        return self._order < other._order


class AsideQueue:
    def __init__(self, most: int = MOST_WAITING) -> None:
        self._most = most
        self._waiting: dict[str, list[AsideWork]] = {}
        """Waiting bodies by tenant, each list a heap."""
        self._read: dict[str, float] = {}
        """Bytes parsed for each tenant that waits or is ahead of `_level`."""
        self._level = 0.0
        """Bytes that had been parsed for the last tenant served when its turn came."""
        self._number = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(
        self, tenant: str, size: int, work: Callable[[], None], refuse: Callable[[], None] | None, now: float
    ) -> AsideWork | None:
        """Adds a body. Returns the body to refuse, if too many wait; None: none is refused."""
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
            # Its lead counts while others wait: else a tenant that sends one body after the other would always be next.
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
    """Runs the work in one thread; more threads would only share the interpreter's lock."""

    def __init__(self, loop: AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "headgate-accept")
        self._lock = threading.Lock()
        self._queue = AsideQueue()

    def __len__(self) -> int:
        return len(self._queue)

    def do(self, work: Callable[[], None], tenant: str, size: int, refuse: Callable[[], None] | None) -> None:
        """Queues the work. If too many wait, calls the `refuse` of the work that is dropped, on the event loop."""
        with self._lock:
            dropped = self._queue.push(tenant, size, work, refuse, self._clock())
        if dropped is None:
            self._loop.run_in_executor(self._thread, self._next)
        elif dropped.refuse is not None:  # no new run: one is scheduled for each body that still waits
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
