"""Shares tenants' limits and replicas' slots with other gateways: the live driver of policy/tenants/shared_limits.py.

Allowances are taken in the background, ahead of need, up to 64 tenants' in one call. Only an arrival that no allowance
covers is held, for 2 ms at most, until one comes: a callback, no task. The dispatcher hears of this through events
alone, so that a recorded run can be replayed. When the store is gone, each gateway keeps to its part by itself.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headgate.model.clock import Clock
from headgate.model.event import Event, Leased, Shared
from headgate.model.request import Request
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.replicas.allowance import AllowanceClaim, Appetite, part_of
from headgate.policy.tenants.limits import ROUNDING_S, TenantLimits
from headgate.policy.tenants.shared_limits import Purse, SharedLimits, cost_s
from headgate.upkeep.shared_store import Lease, Store, StoreGone

log = logging.getLogger(__name__)

HOLD_S: Final = 0.002
"""Maximum seconds that an arrival waits for an allowance."""
MOST_HELD: Final = 1024
SETTLE_S: Final = 0.05
"""Maximum seconds between two reports of what was really used."""
IDLE_S: Final = 1.0
"""Seconds without spending after which an allowance is given back."""
BEAT_S: Final = 0.5
MOST_ASKS: Final = 64
"""Maximum tenants in one call; more go with the next."""
NOTHING: Final = (0.0, 0.0)


@dataclass(slots=True, eq=False)
class HeldRequest:
    request: Request
    until: float
    asked: bool = False


class Sharing:
    def __init__(
        self,
        name: str,
        store: Store,
        dispatcher: Dispatcher,
        hear: Callable[[Event], object],
        let_in: Callable[[Request], None],
        clock: Clock,
    ) -> None:
        """`name`: of this gateway, as no other has it. `let_in` gets back the requests that were held."""
        self._name = name
        self._store = store
        self._dispatcher = dispatcher
        self._hear = hear
        self._let_in = let_in
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._held: list[HeldRequest] = []
        self._timer: asyncio.TimerHandle | None = None
        self._appetites: dict[str, Appetite] = {}
        """Spending rates of tenants that have an allowance, or had one a moment ago."""
        self._floors: set[str] = set()
        """Tenants whose bucket the store may not know as well as this gateway does."""
        self._demand = 0.0
        self._told = False
        """Whether it was logged that the store is gone."""
        self._closing = False
        hear(Shared(1, 0.0, 1.0, False))

    @property
    def connected(self) -> bool:
        return self._limits.connected

    # -- on the path of a request -------------------------------------------------------------------------------

    def hold(self, request: Request) -> bool:
        """Whether this arrival is kept here for a moment: `let_in` gets it soon."""
        limits = self._dispatcher.limits_of(request.tenant)
        shared = self._limits
        if limits is None or not shared.connected:
            return False
        if shared.covers(request.tenant, limits, request.tokens):
            if not self._wake.is_set() and self._runs_low(request, limits):
                self._wake.set()
            return False
        now = self._clock()
        if len(self._held) >= MOST_HELD or shared.wait_s(request.tenant, limits, request.tokens, now):
            return False
        self._held.append(HeldRequest(request, now + HOLD_S))
        if self._timer is None:
            self._timer = self._loop.call_later(HOLD_S, self._overdue)
        self._wake.set()
        return True

    def _runs_low(self, request: Request, limits: TenantLimits) -> bool:
        """Whether half of the tenant's allowance is gone."""
        purse, appetite = self._limits.purses[request.tenant], self._appetites.get(request.tenant)
        if appetite is None:
            return True
        requests_s, tokens_s = appetite.wants(60.0 * limits.burst)
        return 2 * purse.requests_s < requests_s or 2 * purse.tokens_s < tokens_s

    def _overdue(self) -> None:
        self._timer = None
        now = self._clock()
        self._release([held for held in self._held if held.until <= now])
        if self._held and self._timer is None:
            self._timer = self._loop.call_later(max(0.0, self._held[0].until - now), self._overdue)

    def _release(self, ready: list[HeldRequest]) -> None:
        if not ready:
            return
        gone = set(map(id, ready))
        self._held = [held for held in self._held if id(held) not in gone]
        for held in ready:
            self._let_in(held.request)

    # -- in the background --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Beats once, so that the first request finds everything in place if it can be."""
        await self._try_to_beat()

    async def run(self) -> None:
        """Runs until cancelled. Both loops look at `_closing` too: the store's client may take a cancel for a timeout
        of its own."""
        tasks = [self._loop.create_task(self._keep_beating()), self._loop.create_task(self._keep_leasing())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._closing = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Gives back what is left, and takes leave: other gateways need not wait until this one is missed."""
        self._release(list(self._held))
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self.connected:
                await self._lease([self._return(tenant, purse) for tenant, purse in self._limits.purses.items()])
                await self._store.beat(self._name, None)
        except Exception as error:
            log.debug("left without a word: %s", error)
        await self._store.close()

    async def _keep_beating(self) -> None:
        while not self._closing:
            await asyncio.sleep(BEAT_S)
            await self._try_to_beat()
            self._wake.set()

    async def _try_to_beat(self) -> None:
        try:
            await self._beat()
        except Exception as flaw:
            self._flawed(flaw)

    def _flawed(self, flaw: Exception) -> None:
        """Takes an answer of the store that made no sense: the store counts as gone, which ends no gateway."""
        log.debug("shared limits: the store's answer could not be used", exc_info=flaw)
        self._lost(StoreGone(f"its answer could not be used: {type(flaw).__name__}: {flaw}"))

    async def _beat(self) -> None:
        self._demand += 0.5 * (self._dispatcher.under_way - self._demand)
        try:
            demands, new = await self._store.beat(self._name, self._demand)
        except StoreGone as error:
            self._lost(error)
            return
        low, high = part_of(demands, self._name)
        shared = self._limits
        if not shared.connected:
            log.info("sharing limits with %d other gateways", len(demands) - 1)
            self._told = False
        if new or not shared.connected:  # the store knows nothing, or not all: what this gateway knows is the least
            self._floors.update(shared.used(self._clock()))
        event = Shared(max(1, len(demands)), low, high, True)
        if (event.gateways, (low, high), True) != (shared.gateways, self._dispatcher.part, shared.connected):
            self._hear(event)

    def _lost(self, error: StoreGone) -> None:
        shared, (low, high) = self._limits, self._dispatcher.part
        if not self._told:
            self._told = True
            why = " ".join(str(error).split())[:200]
            log.warning("shared limits: %s; until it is back, this gateway keeps to 1/%d", why, shared.gateways)
        if shared.connected:
            self._hear(Shared(shared.gateways, low, high, False))
            self._appetites.clear()
            self._release(list(self._held))

    async def _keep_leasing(self) -> None:
        while not self._closing:
            alarm = self._loop.call_later(SETTLE_S, self._wake.set) if self._appetites else None
            await self._wake.wait()
            if alarm is not None:
                alarm.cancel()
            self._wake.clear()
            if not self.connected:
                continue
            asks = self._asks(self._clock())
            try:
                for first in range(0, len(asks), MOST_ASKS):
                    await self._lease(asks[first : first + MOST_ASKS])
            except StoreGone as error:
                self._lost(error)
            except Exception as flaw:
                self._flawed(flaw)

    async def _lease(self, asks: list[AllowanceClaim]) -> None:
        if not asks:
            return
        for ask in asks:  # what is given back must not be spent meanwhile
            if ask.charge[0] < 0 or ask.charge[1] < 0:
                back = (min(0.0, ask.charge[0]), min(0.0, ask.charge[1]))
                self._hear(Leased(ask.tenant, *back, *self._limits.full_in_s(ask.tenant, self._clock())))
        leases = await self._store.lease(asks)
        if not self.connected:
            return  # the store was lost while this was under way: what was taken wears off
        for ask, lease in zip(asks, leases, strict=True):
            self._leased(ask, lease)
        answered = {ask.tenant for ask in asks}
        self._release([held for held in self._held if held.request.tenant in answered and self._answered(held)])

    def _leased(self, ask: AllowanceClaim, lease: Lease) -> None:
        """Books a lease. What was owed has been charged, and is owed no longer."""
        requests_s = lease.requests_s + max(0.0, ask.charge[0])
        tokens_s = lease.tokens_s + max(0.0, ask.charge[1])
        self._floors.discard(ask.tenant)
        self._hear(Leased(ask.tenant, requests_s, tokens_s, lease.requests_full_s, lease.tokens_full_s))

    def _answered(self, held: HeldRequest) -> bool:
        limits = self._dispatcher.limits_of(held.request.tenant)
        return held.asked or limits is None or self._limits.covers(held.request.tenant, limits, held.request.tokens)

    # -- how much ---------------------------------------------------------------------------------------------

    def _asks(self, now: float) -> list[AllowanceClaim]:
        shared = self._limits
        needs: dict[str, list[HeldRequest]] = {}
        for held in self._held:
            held.asked = True
            needs.setdefault(held.request.tenant, []).append(held)
        tenants = {*needs, *shared.touched, *self._appetites, *self._floors}
        shared.touched.clear()
        made = (self._ask(tenant, needs.get(tenant, []), now) for tenant in tenants)
        return [ask for ask in made if ask is not None]

    def _ask(self, tenant: str, needs: list[HeldRequest], now: float) -> AllowanceClaim | None:
        """What to ask for a tenant. None: it has what it should have."""
        limits = self._dispatcher.limits_of(tenant)
        purse = self._limits.purses.get(tenant) or Purse()
        if limits is None:
            self._appetites.pop(tenant, None)
            self._floors.discard(tenant)
            return None if purse.empty else self._return(tenant, purse)
        appetite = self._appetites.get(tenant)
        if appetite is None:
            appetite = self._appetites[tenant] = Appetite(now)
        appetite.seen(purse.spent_requests_s, purse.spent_tokens_s, now)
        idle = not needs and now - appetite.spent_at >= IDLE_S
        if idle and purse.empty and tenant not in self._floors:
            del self._appetites[tenant]
            return None
        burst_s = 60.0 * limits.burst
        wants = NOTHING if idle else appetite.wants(burst_s)
        first = cost_s(limits, 1, needs[0].request.tokens) if needs else NOTHING
        every = cost_s(limits, len(needs), sum(held.request.tokens for held in needs))
        sides = [
            _side(*side, bool(needs), idle)
            for side in zip((purse.requests_s, purse.tokens_s), wants, first, every, strict=True)
        ]
        charge, least, most = ((sides[0][i], sides[1][i]) for i in range(3))
        floor = self._limits.full_in_s(tenant, now) if tenant in self._floors else NOTHING
        if (charge, least, most, floor) == (NOTHING,) * 4:
            return None
        return AllowanceClaim(tenant, burst_s, charge, least, most, floor)

    def _return(self, tenant: str, purse: Purse) -> AllowanceClaim:
        limits = self._dispatcher.limits_of(tenant) or TenantLimits()
        return AllowanceClaim(tenant, 60.0 * limits.burst, (-purse.requests_s, -purse.tokens_s))

    @property
    def _limits(self) -> SharedLimits:
        limits = self._dispatcher.shared_limits
        assert limits is not None  # since the first event
        return limits


def _side(
    has_s: float, wants_s: float, first_s: float, every_s: float, needed: bool, idle: bool
) -> tuple[float, float, float]:
    """(charge, least, most) of one of the two limits, in seconds. `first_s` and `every_s`: what the first of the held
    requests costs, and all of them."""
    if abs(has_s) < ROUNDING_S:
        charge_s, has_s = 0.0, 0.0
    elif has_s < 0:
        charge_s, has_s = -has_s, 0.0
    elif idle or has_s > 2 * wants_s + every_s:
        kept_s = 0.0 if idle else wants_s + every_s
        charge_s, has_s = kept_s - has_s, kept_s
    else:
        charge_s = 0.0
    least_s = max(0.0, first_s - has_s) if needed else 0.0
    enough = not needed and 2 * has_s >= wants_s
    most_s = 0.0 if idle or enough else max(least_s, wants_s + every_s - has_s)
    return charge_s, least_s, most_s
