"""Does the client read what it is sent?

A client is behind when more than `events` or `unsent_bytes` are unsent. While it is, its replica is not read; if it has
not caught up after a grace time, it is given up. So memory stays flat, and the engine is free again. A spooled client
is written to all the same, up to a bound.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from headgate.config.gateway import GatewayConfig
from headgate.model.clock import Clock
from headgate.replica.http import Call
from headgate.wire.exchange import Exchange

_LOOK_EVERY_S = 0.02
"""The transport says when it has sent most of 32 KiB. Of less it says nothing, so while a client is behind we look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """Judged after each read from the replica, so one read's events may come on top."""

    events: int
    """A client with more events unsent is behind."""
    unsent_bytes: int
    """A client with more bytes unsent is behind."""
    grace_s: float
    """How long a client that is behind may take to catch up."""
    spool_bytes: int
    """Unsent bytes at which a spooled client is given up."""
    first_token_s: float
    """A replica whose first token has not come this long after it was asked has stalled, whatever else it sends."""
    answer_s: float = 600.0
    """The same for all of an answer in one piece: as long as official clients wait."""
    body_s: float = 60.0
    """How long an answer in one piece may take after its head, plus `stall_s`, where its lane has no `generation_s`."""
    stall_s: float
    """A replica that says nothing for this long in the middle of a stream has stalled."""


def relay_limits(config: GatewayConfig) -> RelayLimits:
    """The limits of a gateway with this config; the config holds their defaults."""
    relay, timeouts = config.relay, config.timeouts
    return RelayLimits(
        events=relay.events,
        unsent_bytes=relay.bytes,
        spool_bytes=relay.spool_bytes,
        grace_s=timeouts.slow_client_grace_s,
        stall_s=timeouts.stall_s,
        first_token_s=timeouts.first_token_s,
    )


class Backlog:
    """Made when something is left unsent for the first time: most clients need none."""

    def __init__(
        self,
        exchange: Exchange,
        call: Call,
        limits: RelayLimits,
        spool: bool,
        clock: Clock,
        give_up: Callable[[], None],
        on_broken: Callable[[Exception], None],
    ) -> None:
        """`on_broken`: is told what was raised where nobody else would hear of it."""
        self._exchange = exchange
        self._call = call
        self._limits = limits
        self._spool = spool
        self._clock = clock
        self._give_up = give_up
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._look: asyncio.TimerHandle | None = None
        self._events = 0
        """Since all was last seen to be sent."""
        self.behind_since: float | None = None
        self.stalled_s = 0.0
        """How long the client was behind, up to now."""
        self.resumed_at = 0.0
        """When the replica was last read again."""
        exchange.on_writable = self._on_writable

    @property
    def pausing(self) -> bool:
        """The replica is not read, so it can't be blamed for its silence."""
        return self.behind_since is not None and not self._spool

    def judge(self, events: int, now: float) -> None:
        """So many more have been written."""
        unsent = self._exchange.unsent
        limits = self._limits
        if not unsent:
            self._catch_up()
            return
        self._events += events
        if self._spool and unsent > limits.spool_bytes:
            self._give_up()
        elif self.behind_since is None and (self._events > limits.events or unsent > limits.unsent_bytes):
            self.behind_since = now
            if not self._spool:
                self._call.pause()
                self._look_again_in(limits.grace_s)

    def read_from(self, call: Call) -> None:
        """Another replica goes on. One that comes while the client is behind is not read until it has caught up."""
        self._call = call
        if self.pausing:
            call.pause()

    def close(self) -> None:
        if self.behind_since is not None:
            self.stalled_s += self._clock() - self.behind_since
            self.behind_since = None
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _catch_up(self) -> None:
        self._events = 0
        if self.behind_since is None:
            return
        self.close()
        if not self._spool:
            self.resumed_at = self._clock()
            self._call.resume()

    def _on_writable(self) -> None:
        try:
            self._catch_up()
        except Exception as flaw:
            self._on_broken(flaw)

    def _on_look(self) -> None:
        try:
            self._look_now()
        except Exception as flaw:
            self._on_broken(flaw)

    def _look_now(self) -> None:
        assert self.behind_since is not None
        left_s = self.behind_since + self._limits.grace_s - self._clock()
        if not self._exchange.unsent:
            self._catch_up()
        elif left_s > 0:
            self._look_again_in(left_s)
        else:
            self._give_up()

    def _look_again_in(self, at_most_s: float) -> None:
        self._look = self._loop.call_later(min(at_most_s, _LOOK_EVERY_S), self._on_look)
