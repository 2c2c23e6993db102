"""Keeps what gateways share in Redis, by its clock: tenants' buckets, and which gateways are there."""

import asyncio
import math
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headgate.model.clock import monotonic
from headgate.model.errors import StartupError
from headgate.policy.replicas.allowance import MOST_DEMAND, AllowanceClaim

ANSWER_S: Final = 0.25
"""Seconds to connect to the store, and for each answer; after that it counts as gone. A whole call may take twice as
long."""
SET_S: Final = 1.0
"""Seconds by which the store's clock may move more or less than the gateway's between two beats; beyond, it was set."""
ALIVE_S: Final = 3.0
"""Seconds after its last beat at which a gateway is gone."""

MOST_S: Final = 1e9
"""Maximum seconds that a bucket takes to fill, and that a lease is for."""

# Others may write there too. A value that no gateway would have written counts as missing; NaN is outside the bounds,
# too.
_SANE: Final = """
local function sane(text, most)
  local n = tonumber(text or '')
  if n and n >= 0 and n <= most then return n end
end
"""

# A bucket is two moments at which it will be full again, as in policy/tenants/limits.py. A lease is a charge like any
# other: that of a gateway that dies wears off by itself. A bucket that is full is forgotten. The store's clock may be
# set back: `seen` is when a bucket was last touched, and if that is still to come, its moments are moved back as far.
LEASE: Final = (
    _SANE
    + """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local out = {}
for i, key in ipairs(KEYS) do
  local a = (i - 1) * 9
  local burst = tonumber(ARGV[a + 1])
  local had = redis.pcall('HMGET', key, 'requests', 'tokens', 'seen')
  if had.err then
    redis.call('DEL', key)
    had = {}
  end
  local back = math.max(0, (sane(had[3], now + 1e9) or now) - now)
  local full, room, least, enough = {}, {}, {}, true
  for j = 1, 2 do
    local charge, floor = tonumber(ARGV[a + 1 + j]), tonumber(ARGV[a + 7 + j])
    least[j] = tonumber(ARGV[a + 3 + j])
    local at = math.max((sane(had[j], now + 1e9) or 0) - back, now + floor)
    if charge > 0 then
      at = math.min(at + charge, math.max(at, now + 2 * burst))
    else
      at = at + charge
    end
    full[j] = math.max(at, now)
    room[j] = burst - (full[j] - now)
    if room[j] + 1e-6 < math.min(least[j], burst) then enough = false end
  end
  for j = 1, 2 do
    local give = 0
    if enough then give = math.max(least[j], math.min(tonumber(ARGV[a + 5 + j]), room[j])) end
    full[j] = full[j] + give
    out[#out + 1] = string.format('%.6f', give)
    out[#out + 1] = string.format('%.6f', full[j] - now)
  end
  local left = math.max(full[1], full[2]) - now
  if left > 0 then
    redis.call('HSET', key, 'requests', string.format('%.6f', full[1]), 'tokens', string.format('%.6f', full[2]),
               'seen', string.format('%.6f', now))
    redis.call('PEXPIRE', key, math.ceil(left * 1000))
  else
    redis.call('DEL', key)
  end
end
return out
"""
)

# A gateway is there until a moment that it puts off with every beat. If the clock was set meanwhile, which shows in a
# last beat that is still to come or far too long ago, all those moments are moved along.
BEAT: Final = (
    _SANE
    + """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  return {}
end
local alive = tonumber(ARGV[3])
local clock = redis.pcall('HGET', KEYS[1], ':clock')
if type(clock) == 'table' then
  redis.call('DEL', KEYS[1])
  clock = nil
end
local last = sane(clock, now + 1e9) or now
local moved = 0
if now < last - 0.5 or now > last + alive then moved = now - last end
local new = redis.call('HSET', KEYS[1], ARGV[1], string.format('%.3f %s', now + alive - moved, ARGV[2]))
redis.call('HSET', KEYS[1], ':clock', string.format('%.3f', now))
redis.call('EXPIRE', KEYS[1], 60)
local all, out = redis.call('HGETALL', KEYS[1]), {new, string.format('%.3f', now)}
for i = 1, #all, 2 do
  local until_, demand = string.match(all[i + 1], '^(%S+) (%S+)$')
  local ends = sane(until_, 1e12)
  ends = ends and ends + moved
  if all[i] == ':clock' then
    ends = nil
  elseif not ends or ends <= now or ends > now + alive + 1 or not sane(demand, 1e9) then
    redis.call('HDEL', KEYS[1], all[i])
  else
    if moved ~= 0 then redis.call('HSET', KEYS[1], all[i], string.format('%.3f %s', ends, demand)) end
    out[#out + 1] = all[i]
    out[#out + 1] = demand
  end
end
return out
"""
)


class StoreGone(Exception):
    """The store does not answer, or not as it should. The message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Lease:
    tenant: str
    requests_s: float
    requests_full_s: float
    tokens_s: float
    tokens_full_s: float


class Store(Protocol):
    """Where gateways keep what they share. All methods raise StoreGone."""

    async def lease(self, asks: list[AllowanceClaim]) -> list[Lease]: ...
    async def beat(self, gateway: str, demand: float | None) -> tuple[dict[str, float], bool]:
        """Reports this gateway's demand, or, with None, takes leave. Returns every gateway's demand, and whether what
        the store knows is worth nothing: this gateway was new to it, or its clock was set."""
        ...

    async def close(self) -> None: ...


class RedisStore:
    def __init__(self, url: str, prefix: str) -> None:
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import RedisError
        except ImportError as error:
            raise StartupError(
                f"shared: needs the Redis client, which is not here ({error}): pip install 'headgate[redis]'"
            ) from error
        try:
            self._redis: Any = Redis.from_url(
                url,
                socket_timeout=ANSWER_S,
                socket_connect_timeout=ANSWER_S,
                retry=Retry(NoBackoff(), 0),  # the caller knows what to do instead
                decode_responses=True,
                encoding_errors="replace",  # a name that is no text is no gateway's
            )
        except ValueError as error:
            raise StartupError(f"shared.redis: {error}") from error
        # The braces keep all keys on one node of a cluster.
        self._prefix = "{" + prefix + "}"
        self._ahead: float | None = None
        """Seconds by which the store's clock was ahead of the gateway's at the last beat. None: there was no beat
        yet."""
        self._failures = (RedisError, OSError, TimeoutError, ValueError)

    async def lease(self, asks: list[AllowanceClaim]) -> list[Lease]:
        keys = [f"{self._prefix}:tenant:{ask.tenant}" for ask in asks]
        given = [str(n) for ask in asks for n in (ask.burst_s, *ask.charge, *ask.least, *ask.most, *ask.floor)]
        told = await self._call(LEASE, keys, given)
        try:
            numbers = [float(n) for n in told]
        except (TypeError, ValueError) as error:
            raise StoreGone(f"no lease: {error}") from error
        if len(numbers) != 4 * len(asks):
            raise StoreGone(f"{len(numbers)} numbers came for {len(asks)} buckets")
        return [_lease(ask.tenant, numbers[4 * i : 4 * i + 4]) for i, ask in enumerate(asks)]

    async def beat(self, gateway: str, demand: float | None) -> tuple[dict[str, float], bool]:
        said = "" if demand is None else f"{demand:.3f}"
        told = await self._call(BEAT, [f"{self._prefix}:gateways"], [gateway, said, str(ALIVE_S)])
        if demand is None:
            return {}, False
        try:
            new, clock = int(told[0]), float(told[1])
            demands = {str(told[i]): float(told[i + 1]) for i in range(2, len(told) - 1, 2)}
        except (TypeError, ValueError, LookupError) as error:
            raise StoreGone(f"no beat: {type(error).__name__}: {error}") from error
        if not math.isfinite(clock):
            raise StoreGone(f"its clock says {clock}")
        there = {name: demand for name, demand in demands.items() if 0.0 <= demand <= MOST_DEMAND}
        return there, bool(new) | self._was_set(clock)

    def _was_set(self, told: float) -> bool:
        """Whether the store's clock was set since the last beat, by the gateway's own clock. If it went forward,
        buckets have filled up in no time."""
        ahead = told - monotonic()
        before, self._ahead = self._ahead, ahead
        return before is not None and abs(ahead - before) > SET_S

    async def close(self) -> None:
        await self._redis.aclose()

    async def _call(self, script: str, keys: list[str], given: list[str]) -> list[Any]:
        try:
            async with asyncio.timeout(2 * ANSWER_S):
                answer: list[Any] = await self._redis.eval(script, len(keys), *keys, *given)
        except self._failures as error:
            raise StoreGone(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        return answer


def _lease(tenant: str, numbers: list[float]) -> Lease:
    if all(0.0 <= number <= MOST_S for number in numbers):
        return Lease(tenant, *numbers)
    return Lease(tenant, 0.0, 0.0, 0.0, 0.0)  # as of an unknown bucket from which nothing was taken
