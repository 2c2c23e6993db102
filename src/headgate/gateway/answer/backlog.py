"""Notices a client that does not read its stream, and pauses or cancels the stream.

A client is behind when more than `events` or `unsent_bytes` are unsent. While it is behind, its replica is not read; if
it has not caught up after `grace_s`, its request is cancelled. So memory stays flat, and the engine is free again. The
replica of a spooled client is read all the same, until `spool_bytes` are unsent.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from headgate.config.gateway import GatewayConfig
from headgate.model.clock import Clock
from headgate.replica.http import Call
from headgate.wire.exchange import Exchange

_LOOK_EVERY_S = 0.02
"""Seconds between two looks at a client that is behind: the transport reports only when most of 32 KiB has been
sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """Limits on clients and replicas, checked after each read from the replica: one read's events may exceed them."""

    events: int
    """Unsent events above which a client is behind."""
    unsent_bytes: int
    """Unsent bytes above which a client is behind."""
    grace_s: float
    """Seconds that a client that is behind has to catch up."""
    spool_bytes: int
    """Unsent bytes above which the request of a spooled client is cancelled."""
    first_token_s: float
    """Seconds after the request was sent until the first token; then the replica has stalled, whatever else it
    sends."""
    answer_s: float = 600.0
    """Seconds after the request was sent until an unstreamed answer is complete: as long as official clients wait."""
    body_s: float = 60.0
    """Seconds, with `stall_s` added, that an unstreamed answer may take after its head, if its lane has no
    `generation_s`."""
    spool: bool = False
    """Whether the replica of a client that is behind is read all the same."""
    stall_s: float
    """Seconds without a token in the middle of a stream after which the replica has stalled."""


def relay_limits(config: GatewayConfig) -> RelayLimits:
    """The limits from this config, which holds their defaults. `answer_s` and `body_s` are not configurable."""
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
    """Watches one client. Made when something is left unsent for the first time: most clients need none."""

    def __init__(
        self,
        exchange: Exchange,
        call: Call,
        limits: RelayLimits,
        clock: Clock,
        give_up: Callable[[], None],
        on_broken: Callable[[Exception], None],
    ) -> None:
        """`on_broken` gets the exceptions raised in callbacks that have no caller of ours."""
        self._exchange = exchange
        self._call = call
        self._limits = limits
        self._spool = limits.spool
        self._clock = clock
        self._give_up = give_up
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._look: asyncio.TimerHandle | None = None
        self._events = 0
        """Events written since nothing was last seen unsent."""
        self.behind_since: float | None = None
        self.stalled_s = 0.0
        """Seconds that the client was behind, in all periods that have ended."""
        self.resumed_at = 0.0
        """When reading from the replica last resumed; 0: it never paused."""
        exchange.on_writable = self._on_writable

    @property
    def pausing(self) -> bool:
        """Whether the replica is not being read, so that its silence is not its fault."""
        return self.behind_since is not None and not self._spool

    def judge(self, events: int, now: float) -> None:
        """Decides, after `events` more were written, whether the client is behind, has caught up or is too slow."""
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
        """Another replica continues the stream. While the client is behind, that replica is not read."""
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
