"""Decides which requests leave a trace.

On a request's path there is only gateway/trace_context.py, which finds the trace a request belongs to. Whether the
trace is kept is decided at the end, when it is known how the request went; spans (spans.py) are made only for kept
traces, from their records, and only when they are about to be sent.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Literal, Protocol

from headgate.gateway.trace_context import SAMPLED, in_share, threshold
from headgate.model.lane import Lane
from headgate.model.record import Record
from headgate.publish.spans import Why, add_spans

if TYPE_CHECKING:
    from headgate.publish.otlp import Make

# -- which are kept ---------------------------------------------------------------------------------------

LOOK_EVERY_S = 1.0
WINDOW_S: Literal[300] = 300
FEWEST = 100
"""Minimum samples for a p99."""
MARGIN = 1.01
"""Factor on the p99 beyond which a request is slow. A sketch may be off by one percent, and where all requests take the
same time, none is slow."""


class Distribution(Protocol):
    @property
    def count(self) -> int: ...
    def quantile(self, q: float, /) -> float | None: ...


class Percentiles(Protocol):
    """The part of measure/figures.py that is used here."""

    def sketch(
        self, figure: Literal["ttft", "e2e"], window_s: Literal[300], now: float, /, *, lane: str
    ) -> Distribution: ...


class SpanSink(Protocol):
    def put(self, make: "Make", /) -> None: ...


class Traces:
    def __init__(
        self,
        lanes: Mapping[str, Lane],
        share: float,
        sender: SpanSink,
        rng: Random,
        figures: Percentiles,
        *,
        url_of: Callable[[str], str | None] = lambda _: None,
        left: Callable[[Record, str], None] | None = None,
    ) -> None:
        """`url_of`: the address of a replica, asked whenever a trace is made; None: it is not known. `left` is called
        with the record of every request that leaves a trace, and the trace's id; None: nothing is called."""
        self._left = left
        self.kept: dict[Why, int] = {}
        self._threshold = threshold(share)
        self._sender = sender
        self._rng = rng
        self._figures = figures
        self._url_of = url_of
        self._slow: dict[str, tuple[float, float | None, float | None]] = dict.fromkeys(lanes, (float("-inf"),) * 3)
        """By lane: when its p99 was last read, and the TTFT and e2e seconds above which a request is slow."""

    def take(self, records: Sequence[Record], now: float) -> None:
        for record in records:
            hop = record.trace
            if not hop:
                bits = self._rng.getrandbits
                hop = f"00-{bits(128) or 1:032x}-{bits(64) or 1:016x}-00"
            why = self._why(record, hop, now)
            if why is not None:
                self.kept[why] = self.kept.get(why, 0) + 1
                self._sender.put(partial(add_spans, record, hop, why, self._url_of))
                if self._left is not None:
                    self._left(record, hop[3:35])

    def _why(self, record: Record, hop: str, now: float) -> Why | None:
        kind = record.outcome.kind
        if kind == "failed" or kind == "refused":
            return kind
        if any(not attempt.refused for attempt in record.failed):
            return "retried"
        ttft_s, e2e_s = self._slowest(record.lane, now)
        if e2e_s is not None and record.e2e_s > e2e_s:
            return "slow"
        if ttft_s is not None and record.ttft_s is not None and record.ttft_s > ttft_s:
            return "slow"
        if in_share(hop[3:35], self._threshold):
            return "share"
        return "parent" if int(hop[-2:], 16) & SAMPLED else None

    def _slowest(self, lane: str, now: float) -> tuple[float | None, float | None]:
        """The TTFT and e2e seconds above which a request of the lane is slow; None: too few requests, or no such
        lane."""
        known = self._slow.get(lane)
        if known is None:
            return None, None
        at, ttft_s, e2e_s = known
        if now - at >= LOOK_EVERY_S:
            ttft_s, e2e_s = self._p99("ttft", lane, now), self._p99("e2e", lane, now)
            self._slow[lane] = (now, ttft_s, e2e_s)
        return ttft_s, e2e_s

    def _p99(self, figure: Literal["ttft", "e2e"], lane: str, now: float) -> float | None:
        sketch = self._figures.sketch(figure, WINDOW_S, now, lane=lane)
        p99 = sketch.quantile(0.99) if sketch.count >= FEWEST else None
        return None if p99 is None else p99 * MARGIN
