"""Chooses whose turn it is among the tenants of a lane, by weighted virtual token counters.

Each tenant has a counter of the tokens it was served, divided by its weight; the waiting tenant with the smallest
counter is next. A tenant that was away is lifted to the smallest counter of those waiting, so that a rest earns no
right to a burst ("Fairness in Serving Large Language Models", OSDI 2024). Between two tenants that keep waiting, served
tokens over weight then never differ by more than a constant, however many requests either of them has sent.

The caller charges: prompt tokens on dispatch, output tokens at the end, or an estimate at once and the difference,
which may be negative, later.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import exp
from typing import Final, Generic, TypeVar

from headgate.model.request import Request

EXPIRE_AT_ONCE: Final = 64
"""Maximum requests that expire in one call: a thousand refusals in one go would delay all other requests."""

T = TypeVar("T")

CHOICES = 8
"""Maximum tenants named as next."""
SAMPLE = 16
"""Maximum tenants examined to estimate how much is ahead; of more, an evenly spread sample."""
IDLE = 1024
"""Maximum counters remembered for tenants that have nothing waiting. Beyond it the smallest are forgotten: a tenant
comes back no lower than the floor anyway. Not sooner, because a tenant's running requests are charged later, and count
from where its counter stood."""
MEMORY_S = 5.0
"""How far back the drain rate looks, in seconds of backlog."""


class _Heap(Generic[T]):
    """A heap whose members are struck out by number, and swept when the struck ones are the majority."""

    __slots__ = ("_entries", "_live")

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[float, ...], int, T]] = []
        self._live: set[int] = set()  # only ever asked for membership

    def __len__(self) -> int:
        return len(self._live)

    def push(self, key: tuple[float, ...], number: int, item: T) -> None:
        heappush(self._entries, (key, number, item))
        self._live.add(number)

    def strike(self, number: int) -> None:
        self._live.discard(number)
        if len(self._entries) > 2 * len(self._live) + 32:
            self._entries = [entry for entry in self._entries if entry[1] in self._live]
            heapify(self._entries)

    def first(self) -> T | None:
        while self._entries and self._entries[0][1] not in self._live:
            heappop(self._entries)
        return self._entries[0][2] if self._entries else None

    def last(self) -> T | None:
        """The member with the largest key, found by examining all of them. None: the heap is empty."""
        live = [(key, number, item) for key, number, item in self._entries if number in self._live]
        return max(live, key=lambda entry: entry[:2])[2] if live else None

    def smallest(self, most: int) -> list[T]:
        """The first `most` members, in order."""
        taken: list[tuple[tuple[float, ...], int, T]] = []
        while len(taken) < most and self.first() is not None:
            taken.append(heappop(self._entries))
        for entry in taken:
            heappush(self._entries, entry)
        return [item for _, _, item in taken]

    def sample(self, most: int) -> list[T]:
        """All members, or about `most` evenly spread ones, in no particular order."""
        stride = -(-len(self._entries) // most) or 1
        chosen = self._entries if len(self._live) <= most else self._entries[::stride]
        return [item for _, number, item in chosen if number in self._live]


@dataclass(slots=True, eq=False)
class _Tenant:
    name: str
    weight: float
    counter: float
    """Tokens served, divided by the weight."""
    requests: _Heap[Request] = field(default_factory=_Heap)
    tokens: int = 0
    number: int = 0
    """The tenant's number among those with a turn. 0: it has no turn."""
    held: bool = False
    """The tenant has no turn, whatever it has waiting."""
    last_return: float = float("-inf")
    """The latest moment at which a refused request of this tenant was told to come back. -inf: none was."""


class FairQueue:
    """One lane's waiting requests, in turns by tenant."""

    def __init__(self, idle: int = IDLE) -> None:
        self.tokens = 0
        """Tokens of all waiting requests."""
        self._idle_limit = idle
        self._numbers = 0
        self._waiting: dict[str, tuple[int, Request]] = {}
        self._tenants: dict[str, _Tenant] = {}
        self._turns: _Heap[_Tenant] = _Heap()
        """Tenants with a turn: those with requests waiting that are not held."""
        self._expiries: _Heap[Request] = _Heap()
        self._last = _Tenant("", 1.0, 0.0)
        """The tenant that last ran out of waiting requests. While no tenant has a turn, this tenant's counter is the
        floor."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tenants(self) -> int:
        """How many tenants have a turn."""
        return len(self._turns)

    @property
    def floor(self) -> float:
        """The smallest counter of the tenants with a turn; without any, that of the last tenant to run out of
        requests."""
        return (self._turns.first() or self._last).counter

    @property
    def next_expiry(self) -> float:
        first = self._expiries.first()
        return float("inf") if first is None else first.wait_until

    # -- requests come and go -------------------------------------------------------------------------

    def push(self, request: Request) -> None:
        if request.id in self._waiting:
            raise ValueError(f"request {request.id} is waiting already")
        tenant = self._known(request.tenant, request.weight)
        if not tenant.requests:
            tenant.counter = max(tenant.counter, self.floor)
        number = self._next_number()
        self._waiting[request.id] = (number, request)
        self._expiries.push((request.wait_until,), number, request)
        tenant.requests.push((request.priority, request.first_token_by), number, request)
        tenant.tokens += request.tokens
        self.tokens += request.tokens
        if len(tenant.requests) == 1:
            self._place(tenant)

    def peek(self) -> Request | None:
        """The request whose turn it is: of the tenant with the smallest counter the lowest priority number, then the
        earliest deadline, then the first to arrive. None: no tenant has a turn."""
        first = self._turns.first()
        return None if first is None else first.requests.first()

    def heads(self) -> list[Request]:
        """The next request of each of the first CHOICES tenants, in the order of their turns."""
        tenants = self._turns.smallest(CHOICES)
        return [head for tenant in tenants if (head := tenant.requests.first()) is not None]

    def hold(self, tenant: str) -> None:
        """Gives the tenant no turn until `let_go`; its requests wait and expire."""
        known = self._tenants[tenant]
        known.held = True
        self._place(known)

    def let_go(self, tenant: str) -> None:
        known = self._tenants.get(tenant)
        if known is not None:
            known.held = False
            self._place(known)

    def pop(self, request_id: str | None = None) -> Request:
        """Removes the request whose turn it is, or the one that was peeked at. KeyError: there is none."""
        request = self.peek() if request_id is None else self._waiting[request_id][1]
        if request is None:
            raise KeyError("nobody waits")
        self._take_out(request)
        return request

    def remove(self, request_id: str) -> Request | None:
        """Removes a request out of turn. None: it does not wait here."""
        _, request = self._waiting.get(request_id, (0, None))
        if request is not None:
            self._take_out(request)
        return request

    def expired(self, now: float) -> list[Request]:
        """Removes requests that may wait no longer, at most EXPIRE_AT_ONCE: if there are more, the caller asks
        again."""
        gone: list[Request] = []
        while len(gone) < EXPIRE_AT_ONCE and (first := self._expiries.first()) is not None and first.wait_until <= now:
            self._take_out(first)
            gone.append(first)
        return gone

    def charge(self, tenant: str, weight: float, tokens: float) -> None:
        """Charges the tenant for tokens served; negative: it was served fewer than charged before."""
        served = self._known(tenant, weight)
        served.counter += tokens / weight
        if served.requests:
            self._place(served)

    def last_return(self, tenant: str) -> float:
        """The latest moment at which a refused request of this tenant was told to come back. -inf: none was."""
        known = self._tenants.get(tenant)
        return float("-inf") if known is None else known.last_return

    def note_return(self, tenant: str, weight: float, moment: float) -> None:
        """Notes the moment at which a refused request of this tenant was told to come back."""
        known = self._known(tenant, weight)
        known.last_return = max(known.last_return, moment)

    def displaced_by(self, tenant: str) -> Request | None:
        """The last request of the tenant with most requests waiting, if that tenant has at least two more than this
        one. None: no tenant is to blame for a full queue."""
        own = self._tenants.get(tenant)
        heaviest = max(self._turns.sample(SAMPLE), key=lambda waiting: len(waiting.requests), default=None)
        if heaviest is None or len(heaviest.requests) <= 1 + (len(own.requests) if own is not None else 0):
            return None
        return heaviest.requests.last()

    def ahead_of(self, tenant: str, weight: float, pushed: Request | None = None) -> tuple[int, int]:
        """Estimates how many requests and tokens are served before a new request of this tenant. `pushed`: that
        request, where it waits here already.

        The tenant's turn comes when its counter, with all its waiting tokens before the request, is the smallest. Until
        then each other tenant is served until its own counter is there, as far as it has enough waiting."""
        own = self._tenants.get(tenant) or _Tenant(tenant, weight, 0.0)
        waits = len(own.requests) > 0
        before = len(own.requests) - (pushed is not None)
        tokens = own.tokens - (pushed.tokens if pushed is not None else 0)
        turn_at = (own.counter if waits else max(own.counter, self.floor)) + tokens / weight
        others = [other for other in self._turns.sample(SAMPLE) if other is not own]
        scale = (len(self._turns) - (own.number > 0)) / max(1, len(others))
        requests, ahead = 0.0, 0.0
        for other in others:
            if other.counter <= turn_at:
                mean = other.tokens / len(other.requests)
                share = (turn_at - other.counter) * other.weight // max(1.0, mean) + 1
                requests += min(len(other.requests), share)
                ahead += min(len(other.requests), share) * mean
        return before + round(requests * scale), tokens + round(ahead * scale)

    def heaviest(self) -> tuple[str, int, int]:
        """The tenant with most tokens waiting, or that of a sample if many wait: its name, requests and tokens."""
        tenant = max(self._turns.sample(SAMPLE), key=lambda tenant: tenant.tokens, default=self._last)
        return tenant.name, len(tenant.requests), tenant.tokens

    # -- how it is done -------------------------------------------------------------------------------

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _known(self, name: str, weight: float) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) - len(self._turns) >= self._idle_limit:
                self._forget()
            tenant = self._tenants[name] = _Tenant(name, weight, self.floor)
        tenant.weight = weight
        return tenant

    def _take_out(self, request: Request) -> None:
        number, _ = self._waiting.pop(request.id)
        tenant = self._tenants[request.tenant]
        self._expiries.strike(number)
        tenant.requests.strike(number)
        tenant.tokens -= request.tokens
        self.tokens -= request.tokens
        if not tenant.requests:
            self._last = tenant
            self._place(tenant)

    def _place(self, tenant: _Tenant) -> None:
        """Puts the tenant in its turn by its counter, or takes it out if it has nothing waiting or is held. Equal
        counters: the first to get there goes first."""
        if tenant.number:
            self._turns.strike(tenant.number)
            tenant.number = 0
        if tenant.requests and not tenant.held:
            tenant.number = self._next_number()
            self._turns.push((tenant.counter,), tenant.number, tenant)
        elif len(self._tenants) - len(self._turns) > self._idle_limit:
            self._forget()

    def _forget(self) -> None:
        """Forgets the smallest idle counters, down to half of the limit at once: keeping the smallest at hand would
        cost every charge."""
        idle = sorted((t for t in self._tenants.values() if not t.requests), key=lambda t: t.counter)
        for tenant in idle[: len(idle) - self._idle_limit // 2]:
            del self._tenants[tenant.name]


@dataclass(slots=True)
class DrainRate:
    """How fast one queue drains while requests wait in it."""

    served: float = 0.0
    busy_s: float = 0.0
    _since: float | None = None
    _seen: float = 0.0
    """When the queue last had a backlog."""

    def backlog(self, waiting: bool, now: float) -> None:
        """Records whether requests wait. The caller reports every possible change."""
        if waiting and self._since is None:
            self._since = now
            if now - self._seen > 2.0 * MEMORY_S:  # too long ago to say anything about now
                self.served = self.busy_s = 0.0
        elif not waiting and self._since is not None:
            self._advance(now)
            self._since = None

    def left(self, now: float) -> None:
        """Counts a request that had to wait and has gone to a replica."""
        self._advance(now)
        self.served += 1.0

    def per_second(self, now: float) -> float | None:
        """Requests that leave the queue per second of backlog. None: unknown."""
        self._advance(now)
        return self.served / self.busy_s if self.served > 0 and self.busy_s > 0 else None

    def wait_s(self, ahead: int, now: float) -> float:
        """Predicted seconds until `ahead` requests have left the queue. Before the first has left: the seconds of
        backlog so far, the least the wait can be."""
        rate = self.per_second(now)
        return ahead / rate if rate else self.busy_s

    def _advance(self, now: float) -> None:
        if self._since is not None and now > self._since:
            elapsed, self._since, self._seen = now - self._since, now, now
            keep = exp(-elapsed / MEMORY_S)
            self.served *= keep
            self.busy_s = self.busy_s * keep + elapsed
