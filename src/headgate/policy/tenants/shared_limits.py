"""Limits a tenant's requests and tokens where several gateways share the limit. Each spends from an allowance that it
took beforehand.

The tenant's one bucket is in the shared store. What a gateway has taken from the bucket is in a purse here, in seconds
like the bucket itself, and an arrival that the purse covers is admitted without a call to the store. The bucket's last
known level is remembered too, and decides about an arrival that the purse does not cover: if nothing is left, the
arrival is refused; if something is left, and only the allowance has not come yet, the gateway may spend up to its part
of what is left, and owes that. Debts are charged to the bucket later, so that the limit holds over time whatever a
gateway assumed.

While the bucket can't be reached, each gateway keeps to its part of every limit by itself, from the bucket's last known
level.
"""

from typing import Final

from headgate.model.event import Leased, Shared
from headgate.policy.tenants.limits import (
    ROUNDING_S,
    UNLIMITED,
    Grant,
    OverLimit,
    RateLimiter,
    RateView,
    TenantLimits,
)

SOON_S: Final = 0.05
"""Seconds after which a client should come back if only an allowance on its way is missing."""
MOST_PARTS: Final = 10_000


class Purse:
    """Seconds taken from one tenant's bucket and not spent yet; below zero: spent and not yet taken."""

    __slots__ = ("requests_s", "spent_requests_s", "spent_tokens_s", "tokens_s")

    def __init__(self) -> None:
        self.requests_s = 0.0
        self.tokens_s = 0.0
        self.spent_requests_s = 0.0
        """Seconds spent since the purse began, from which the rate of spending is computed."""
        self.spent_tokens_s = 0.0

    @property
    def empty(self) -> bool:
        return abs(self.requests_s) < ROUNDING_S and abs(self.tokens_s) < ROUNDING_S


class SharedLimits(RateLimiter):
    """Rate limits shared with other gateways. The accounts of `RateLimiter` hold the last known levels of the shared
    buckets."""

    def __init__(self, most: int = 10_000) -> None:
        super().__init__(most)
        self.connected = False
        """False: the shared buckets can't be reached."""
        self.gateways = 1
        """Gateways that share the limits, this one included, as last seen."""
        self.purses: dict[str, Purse] = {}
        self.touched: set[str] = set()
        """Tenants whose purse has changed since the driver last looked."""
        self._parts: dict[TenantLimits, TenantLimits] = {}

    # -- what is heard of other gateways ----------------------------------------------------------------------

    def share(self, gateways: int, connected: bool) -> None:
        if gateways != self.gateways:
            self.gateways = gateways
            self._parts.clear()
        if connected != self.connected:
            # The purses were charged already: dropping them takes nothing from other gateways, and the charge wears
            # off.
            self.connected = connected
            self.purses.clear()

    def leased(
        self, tenant: str, requests_s: float, tokens_s: float, requests_full_s: float, tokens_full_s: float, now: float
    ) -> None:
        """Books seconds taken from the bucket, or, below zero, given back; and sets the seconds until the bucket is
        full."""
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

    # -- what the driver asks before it takes more --------------------------------------------------------------

    def covers(self, tenant: str, limits: TenantLimits, tokens: int) -> bool:
        """Whether the purse covers one request of this many tokens."""
        purse = self.purses.get(tenant)
        if purse is None:
            return False
        requests_s, tokens_s = cost_s(limits, 1, tokens)
        return purse.requests_s >= requests_s - ROUNDING_S and purse.tokens_s >= tokens_s - ROUNDING_S

    def wait_s(self, tenant: str, limits: TenantLimits, tokens: int, now: float) -> float:
        """Seconds until the bucket would give what the purse lacks, as far as is known here. 0: the store is worth
        asking."""
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
        """Seconds until the bucket of requests, and that of tokens, is full, as far as is known here."""
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
        """One gateway's part of a limit: the rate is divided by the number of gateways, and the bucket takes as long to
        fill."""
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
    """What these requests and tokens cost, in seconds of each limit."""
    per_min, tokens_per_min = limits.requests_per_min, limits.tokens_per_min
    return (
        0.0 if per_min is None else 60.0 * requests / per_min,
        0.0 if tokens_per_min is None else 60.0 * tokens / tokens_per_min,
    )


class TenantGate:
    """The limits of all tenants: this gateway's own, and from the first Shared event on those of several gateways."""

    def __init__(self, tenants: dict[str, TenantLimits]) -> None:
        self.tenants = tenants
        """Tenants that have limits per minute."""
        self.limits: RateLimiter = RateLimiter()

    @property
    def shared(self) -> SharedLimits | None:
        """None: limits are not shared."""
        return self.limits if isinstance(self.limits, SharedLimits) else None

    def leased(self, event: Leased, now: float) -> None:
        if isinstance(self.limits, SharedLimits):
            self.limits.leased(
                event.tenant, event.requests_s, event.tokens_s, event.requests_full_s, event.tokens_full_s, now
            )

    def share(self, event: Shared) -> None:
        if not isinstance(self.limits, SharedLimits):
            reserved, self.limits = self.limits.reserved, SharedLimits()
            self.limits.reserved = reserved
        self.limits.share(event.gateways, event.connected)

    def over_limit(self, tenant: str, now: float) -> OverLimit | None:
        """The refusal of a request for a single token. None: the tenant's limits would admit it. Reserves nothing."""
        limits = self.tenants.get(tenant)
        return None if limits is None else self.limits.look(tenant, limits, 1, now)

    def rates(self, tenant: str, now: float) -> RateView | None:
        """What is left of the tenant's limits. None: the tenant has no limits per minute."""
        limits = self.tenants.get(tenant)
        return None if limits is None else self.limits.view(tenant, limits, now)
