"""Has this tenant tokens left, where several gateways ask? Each spends from an allowance that it took beforehand.

The tenant's one bucket is kept elsewhere. What a gateway has taken from it is in a purse here, in seconds like the
bucket itself, and an arrival that the purse covers is let in without asking anybody. What the bucket was last heard to
hold is remembered too. From that follows what to do with an arrival that the purse does not cover: nothing is left, so
it is refused; or something is, and the allowance has only not come yet: then a gateway may go as far as its part of
what is left, and owes it. Debts are charged to the bucket later, so that the limit holds over time whatever was
believed.

While the bucket can't be reached at all, each gateway keeps to its part of every limit by itself, from where the bucket
was last.
"""

from typing import Final

from headgate.policy.dispatch.limits import ROUNDING_S, UNLIMITED, Grant, OverLimit, RateLimiter, TenantLimits

SOON_S: Final = 0.05
"""When to come back if all that is missing is an allowance on its way."""
MOST_PARTS: Final = 10_000


class Purse:
    """What was taken from one tenant's bucket and is not spent; below zero: spent and not yet taken."""

    __slots__ = ("requests_s", "spent_requests_s", "spent_tokens_s", "tokens_s")

    def __init__(self) -> None:
        self.requests_s = 0.0
        self.tokens_s = 0.0
        self.spent_requests_s = 0.0
        """Ever, for whoever has to know how fast it goes."""
        self.spent_tokens_s = 0.0

    @property
    def empty(self) -> bool:
        return abs(self.requests_s) < ROUNDING_S and abs(self.tokens_s) < ROUNDING_S


class SharedLimits(RateLimiter):
    """The accounts of `RateLimiter` are here what the shared buckets were last heard to be."""

    def __init__(self, most: int = 10_000) -> None:
        super().__init__(most)
        self.connected = False
        """False: the shared buckets can't be reached."""
        self.gateways = 1
        """That share them, this one included, as last seen."""
        self.purses: dict[str, Purse] = {}
        self.touched: set[str] = set()
        """Tenants whose purse has changed since somebody looked."""
        self._parts: dict[TenantLimits, TenantLimits] = {}

    # -- what is heard of the others --------------------------------------------------------------------------

    def share(self, gateways: int, connected: bool) -> None:
        if gateways != self.gateways:
            self.gateways = gateways
            self._parts.clear()
        if connected != self.connected:
            # What is in the purses has been charged already: it is lost to nobody else, and wears off.
            self.connected = connected
            self.purses.clear()

    def leased(
        self, tenant: str, requests_s: float, tokens_s: float, requests_full_s: float, tokens_full_s: float, now: float
    ) -> None:
        """Taken from the bucket, or, below zero, given back; and how long until the bucket is full."""
        purse = self._purse(tenant)
        purse.requests_s += requests_s
        purse.tokens_s += tokens_s
        account = self._account(tenant, now)
        account.requests_full_at = now + requests_full_s
        account.tokens_full_at = now + tokens_full_s
        if purse.empty:
            del self.purses[tenant]

    # -- requests ---------------------------------------------------------------------------------------------

    def take(self, tenant: str, limits: TenantLimits, tokens: int, now: float) -> Grant | OverLimit:
        if limits.requests_per_min is None and limits.tokens_per_min is None:
            return UNLIMITED
        if self.connected and self.covers(tenant, limits, tokens):
            self._spend(tenant, limits, 1, tokens)
            self.reserved += 1
            return Grant(tenant, limits, tokens)
        granted = super().take(tenant, self._part(limits), tokens, now)
        if isinstance(granted, OverLimit):
            after_s = max(SOON_S, self.wait_s(tenant, limits, tokens, now)) if self.connected else granted.retry_after_s
            return OverLimit(granted.which, after_s, self.view(tenant, limits, now))
        if self.connected:
            self._spend(tenant, limits, 1, tokens)
        return Grant(tenant, limits, tokens)

    def look(self, tenant: str, limits: TenantLimits, tokens: int, now: float) -> OverLimit | None:
        if not self.connected:
            return super().look(tenant, self._part(limits), tokens, now)
        wait_s = self.wait_s(tenant, limits, tokens, now)
        if not wait_s:
            return None
        view = self.view(tenant, limits, now)
        spent = view.requests is not None and not view.requests.remaining
        return OverLimit("requests" if spent else "tokens", max(SOON_S, wait_s), view)

    def settle(self, grant: Grant, tokens: int, now: float) -> None:
        if grant is UNLIMITED:
            return
        if self.connected:
            self.reserved -= 1
            self._spend(grant.tenant, grant.limits, 0, tokens - grant.tokens)
        else:
            super().settle(Grant(grant.tenant, self._part(grant.limits), grant.tokens), tokens, now)

    def give_back(self, grant: Grant, now: float) -> None:
        if grant is UNLIMITED:
            return
        if self.connected:
            self.reserved -= 1
            self._spend(grant.tenant, grant.limits, -1, -grant.tokens)
        else:
            super().give_back(Grant(grant.tenant, self._part(grant.limits), grant.tokens), now)

    # -- what a driver asks before it takes more ----------------------------------------------------------------

    def covers(self, tenant: str, limits: TenantLimits, tokens: int) -> bool:
        """Has an allowance for one request of so many tokens been taken?"""
        purse = self.purses.get(tenant)
        if purse is None:
            return False
        requests_s, tokens_s = cost_s(limits, 1, tokens)
        return purse.requests_s >= requests_s - ROUNDING_S and purse.tokens_s >= tokens_s - ROUNDING_S

    def wait_s(self, tenant: str, limits: TenantLimits, tokens: int, now: float) -> float:
        """Until the bucket would give what is missing, as far as is known here; 0: it is worth asking."""
        account = self._accounts.get(tenant)
        if account is None:
            return 0.0
        burst_s = 60.0 * limits.burst
        requests_s, tokens_s = cost_s(limits, 1, tokens)
        purse = self.purses.get(tenant)
        if purse is not None:
            requests_s, tokens_s = max(0.0, requests_s - purse.requests_s), max(0.0, tokens_s - purse.tokens_s)
        requests_wait_s = account.requests_full_at - now - max(0.0, burst_s - requests_s)
        tokens_wait_s = account.tokens_full_at - now - max(0.0, burst_s - tokens_s)
        wait_s = max(requests_wait_s, tokens_wait_s)
        return wait_s if wait_s > ROUNDING_S else 0.0

    def full_in_s(self, tenant: str, now: float) -> tuple[float, float]:
        """Until the bucket of requests, and that of tokens, is full, as far as is known here."""
        account = self._accounts.get(tenant)
        if account is None:
            return 0.0, 0.0
        return max(0.0, account.requests_full_at - now), max(0.0, account.tokens_full_at - now)

    def used(self, now: float) -> list[str]:
        """Tenants whose bucket is not full, as far as is known here."""
        return [tenant for tenant, account in self._accounts.items() if account.full_at > now]

    # -- inside -----------------------------------------------------------------------------------------------

    def _spend(self, tenant: str, limits: TenantLimits, requests: int, tokens: int) -> None:
        purse = self._purse(tenant)
        requests_s, tokens_s = cost_s(limits, requests, tokens)
        purse.requests_s -= requests_s
        purse.tokens_s -= tokens_s
        purse.spent_requests_s += requests_s
        purse.spent_tokens_s += tokens_s
        self.touched.add(tenant)

    def _purse(self, tenant: str) -> Purse:
        purse = self.purses.get(tenant)
        if purse is None:
            purse = self.purses[tenant] = Purse()
        return purse

    def _part(self, limits: TenantLimits) -> TenantLimits:
        """One gateway's part of a limit: its bucket is smaller by as much, and takes as long to fill."""
        part = self._parts.get(limits)
        if part is None:
            if len(self._parts) >= MOST_PARTS:
                self._parts.clear()
            requests, tokens = limits.requests_per_min, limits.tokens_per_min
            part = self._parts[limits] = TenantLimits(
                requests_per_min=None if requests is None else requests / self.gateways,
                tokens_per_min=None if tokens is None else tokens / self.gateways,
                burst=limits.burst,
            )
        return part


def cost_s(limits: TenantLimits, requests: int, tokens: int) -> tuple[float, float]:
    """What so many come to, in seconds of each limit."""
    per_min, tokens_per_min = limits.requests_per_min, limits.tokens_per_min
    return (
        0.0 if per_min is None else 60.0 * requests / per_min,
        0.0 if tokens_per_min is None else 60.0 * tokens / tokens_per_min,
    )
