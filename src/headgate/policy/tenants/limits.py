"""Limits each tenant's requests and tokens per minute: reserved on arrival, settled with what was really used.

A token bucket is kept as one number, the moment it will be full again. What the bucket holds at `now` follows from that
moment, so nothing is refilled, nothing drifts, and a bucket whose moment has passed is the same as an unknown bucket.
Time is the unit of account: a request that costs a twentieth of a minute's tokens moves the moment by three seconds.
"""

from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import Literal

ROUNDING_S = 1e-6
"""Tolerance in seconds: a client that comes back exactly when told to must not be refused for a rounding error. The
error does not accumulate: the full cost is booked all the same."""
STEPS = 8
"""Maximum accounts examined for removal when a new tenant arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    requests_per_min: float | None = None
    """None: unlimited."""
    tokens_per_min: float | None = None
    """Prompt and output tokens together. None: unlimited."""
    burst: float = 1.0
    """Size of the bucket in minutes of the limit: what may be used at once after a pause."""
    uncached: bool = False
    """Whether only prompt tokens that a replica computes count, and not those found in its cache."""

    def __post_init__(self) -> None:
        for name in ("requests_per_min", "tokens_per_min", "burst"):
            value: float | None = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be positive and finite, not {value}")


@dataclass(frozen=True, slots=True)
class Rate:
    """One limit as the x-ratelimit-* headers report it."""

    limit: int
    """Requests or tokens in a full bucket."""
    remaining: int
    reset_s: float
    """Seconds until the bucket is full again."""


@dataclass(frozen=True, slots=True)
class RateView:
    """A tenant's two limits as they stand now. None: not limited."""

    requests: Rate | None
    tokens: Rate | None


@dataclass(frozen=True, slots=True)
class Grant:
    """A reservation of one request and its tokens. The caller settles it or gives it back, once."""

    tenant: str
    limits: TenantLimits
    tokens: int


@dataclass(frozen=True, slots=True)
class OverLimit:
    which: Literal["requests", "tokens"]
    """The limit with the longer wait."""
    retry_after_s: float
    """Seconds until the request would be allowed, if the tenant sends nothing else in between."""
    view: RateView


def over_message(tenant: str, over: OverLimit) -> str:
    return f"tenant {tenant!r} is over its limit of {over.which} per minute"


UNLIMITED = Grant("", TenantLimits(), 0)


@dataclass(slots=True)
class _Account:
    requests_full_at: float = float("-inf")
    tokens_full_at: float = float("-inf")

    @property
    def full_at(self) -> float:
        return max(self.requests_full_at, self.tokens_full_at)


class RateLimiter:
    """Keeps the buckets of at most `most` tenants. Full buckets are forgotten first, which changes nothing; beyond
    that, the bucket that would be full soonest."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self.reserved = 0
        """Grants neither settled nor given back."""
        self._accounts: dict[str, _Account] = {}
        self._full: list[tuple[float, str]] = []
        """A heap with one entry per account: the latest known moment at which its buckets are full."""

    def __len__(self) -> int:
        return len(self._accounts)

    def take(self, tenant: str, limits: TenantLimits, tokens: int, now: float) -> Grant | OverLimit:
        """Reserves one request and these tokens. A request larger than the whole bucket passes when the bucket is full,
        and is paid off afterwards: it must not wait for ever."""
        if limits.requests_per_min is None and limits.tokens_per_min is None:
            return UNLIMITED
        account = self._account(tenant, now)
        over = self._over(account, tenant, limits, tokens, now)
        if over is not None:
            return over
        one_s, tokens_s = _cost_s(1, limits.requests_per_min), _cost_s(tokens, limits.tokens_per_min)
        account.requests_full_at = max(account.requests_full_at, now) + one_s
        account.tokens_full_at = max(account.tokens_full_at, now) + tokens_s
        self.reserved += 1
        return Grant(tenant, limits, tokens)

    def look(self, tenant: str, limits: TenantLimits, tokens: int, now: float) -> OverLimit | None:
        """The refusal that `take` would return; None: it would grant. Nothing is reserved or remembered."""
        account = self._accounts.get(tenant)
        return None if account is None else self._over(account, tenant, limits, tokens, now)

    def _over(self, account: _Account, tenant: str, limits: TenantLimits, tokens: int, now: float) -> OverLimit | None:
        burst_s = 60.0 * limits.burst
        one_s, tokens_s = _cost_s(1, limits.requests_per_min), _cost_s(tokens, limits.tokens_per_min)
        requests_wait_s = account.requests_full_at - now - max(0.0, burst_s - one_s)
        tokens_wait_s = account.tokens_full_at - now - max(0.0, burst_s - tokens_s)
        wait_s = max(requests_wait_s, tokens_wait_s)
        if wait_s <= ROUNDING_S:
            return None
        which: Literal["requests", "tokens"] = "requests" if requests_wait_s >= tokens_wait_s else "tokens"
        return OverLimit(which, wait_s, self.view(tenant, limits, now))

    def settle(self, grant: Grant, tokens: int, now: float) -> None:
        """Replaces the reserved tokens by the tokens really used. The bucket may go below empty, but extra charges take
        it at most one whole bucket below: a wrong estimate of the gateway must not lock a tenant out for an hour."""
        if grant is UNLIMITED:
            return
        self.reserved -= 1
        change_s = _cost_s(tokens - grant.tokens, grant.limits.tokens_per_min)
        if change_s > 0:
            account = self._account(grant.tenant, now)
            at = max(account.tokens_full_at, now)
            account.tokens_full_at = min(at + change_s, max(at, now + 120.0 * grant.limits.burst))
        elif change_s < 0 and grant.tenant in self._accounts:
            self._accounts[grant.tenant].tokens_full_at += change_s

    def give_back(self, grant: Grant, now: float) -> None:
        """Undoes the grant of a request that was refused later or failed without work, as if it had not arrived."""
        RateLimiter.settle(self, grant, 0, now)  # not a subclass's, which settles its grants in another way
        if grant.tenant in self._accounts:
            self._accounts[grant.tenant].requests_full_at -= _cost_s(1, grant.limits.requests_per_min)

    def view(self, tenant: str, limits: TenantLimits, now: float) -> RateView:
        account = self._accounts.get(tenant) or _Account()
        return RateView(
            _rate(limits.requests_per_min, limits.burst, account.requests_full_at - now),
            _rate(limits.tokens_per_min, limits.burst, account.tokens_full_at - now),
        )

    def _account(self, tenant: str, now: float) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            self._forget(now)
            account = self._accounts[tenant] = _Account()
            heappush(self._full, (now, tenant))
        return account

    def _forget(self, now: float) -> None:
        """Makes room for one more account and forgets a few that are full by now, so that memory shrinks after a rush
        without a long pause."""
        for _ in range(STEPS):
            if not self._full or (self._full[0][0] > now and len(self._accounts) < self._most):
                return
            known, tenant = self._full[0]
            full_at = self._accounts[tenant].full_at
            if full_at <= max(known, now):
                self._forget_first()
            else:
                heapreplace(self._full, (full_at, tenant))
        if len(self._accounts) >= self._most:
            self._forget_first()

    def _forget_first(self) -> None:
        del self._accounts[heappop(self._full)[1]]


def _cost_s(amount: int, per_min: float | None) -> float:
    return 0.0 if per_min is None else 60.0 * amount / per_min


def _rate(per_min: float | None, burst: float, until_full_s: float) -> Rate | None:
    if per_min is None:
        return None
    reset_s = max(0.0, until_full_s)
    remaining = per_min * (burst - reset_s / 60.0)
    return Rate(int(per_min * burst), max(0, int(remaining + 1e-6)), reset_s)
