"""Which requests leave a trace?

On a request's path there is only `Contexts`: which trace it belongs to, and what its replica is told of that. Whether
the trace is kept is decided at the end, when it is known how the request went; spans (spans.py) are made only of those
kept, from their records, and only when they are about to be sent.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from headgate.gateway.spans import Why, add_spans
from headgate.model.lane import Lane
from headgate.model.record import Record

if TYPE_CHECKING:
    from headgate.gateway.otlp import Make

# -- W3C trace context ------------------------------------------------------------------------------------

LONGEST_STATE = 512
"""Characters of tracestate that are passed on: what the standard asks for at least."""
_SAMPLED, _RANDOM = 1, 2
_PARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_KEY = r"[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13}"
_MEMBER = re.compile(rf"({_KEY})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{{0,255}}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """A place in a trace, in lower case hex."""

    trace_id: str
    parent_id: str
    """The caller's span; empty: the trace begins here."""
    flags: int
    state: str = ""
    """What others along the way want to be passed on."""


class Hop(msgspec.Struct, frozen=True, gc=False):
    """One request's own place, ready for use."""

    traceparent: str
    """What its replica gets: for Record.trace."""
    parent_id: str
    """For Record.parent."""
    lines: bytes
    """Header lines for its replica."""


class Contexts:
    """Gives each request its place. This is on its path, and costs a few random bits and a little text."""

    def __init__(self, share: float, rng: Random) -> None:
        self._threshold = _threshold(share)
        self._rng = rng

    def of(self, headers: Mapping[str, str]) -> Hop:
        """The client's trace, or a new one. Sampled from the start is what the client sampled and our share of the
        rest, so that an engine with spans of its own need not send those of every request."""
        bits = self._rng.getrandbits
        context = context_of(headers) or TraceContext(f"{bits(128) or 1:032x}", "", 0)
        if _in_share(context.trace_id, self._threshold):
            context = msgspec.structs.replace(context, flags=context.flags | _SAMPLED)
        lines = outgoing(context, f"{bits(64) or 1:016x}")
        return Hop(lines[13:68].decode(), context.parent_id, lines)


def context_of(headers: Mapping[str, str]) -> TraceContext | None:
    """None: there is none, or not one that can be trusted to be one, and the trace begins here."""
    found = _PARENT.fullmatch(headers.get("traceparent", ""))
    if found is None:
        return None
    trace_id, parent_id, flags = found.groups()
    return TraceContext(trace_id, parent_id, int(flags, 16), _state_of(headers.get("tracestate", "")))


def outgoing(context: TraceContext, span_id: str) -> bytes:
    """Header lines that make whatever the replica does a child of this span."""
    flags = context.flags & (_SAMPLED | _RANDOM)
    line = f"traceparent: 00-{context.trace_id}-{span_id}-{flags:02x}\r\n"
    if context.state:
        line += f"tracestate: {context.state}\r\n"
    return line.encode()


def _state_of(text: str) -> str:
    """Checked and bounded; empty if it makes no sense, which says nothing against the traceparent beside it."""
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    found = [_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in found if match is not None}
    if len(keys) != len(members) or len(members) > 32:
        return ""
    while members and sum(map(len, members)) + len(members) - 1 > LONGEST_STATE:
        members.pop()  # those at the end are the oldest
    return ",".join(members)


def _threshold(share: float) -> int:
    """OpenTelemetry's consistent sampling: every service with the same share, or more, keeps the same traces."""
    return round((1.0 - share) * (1 << 56))


def _in_share(trace_id: str, threshold: int) -> bool:
    return int(trace_id[-14:], 16) >= threshold


# -- which are kept ---------------------------------------------------------------------------------------

LOOK_EVERY_S = 1.0
WINDOW_S: Literal[300] = 300
FEWEST = 100
"""Samples below which there is no p99 worth the name."""
MARGIN = 1.01
"""A sketch may be off by one percent: where all requests take the same time, none is slower than the others."""


class Distribution(Protocol):
    @property
    def count(self) -> int: ...
    def quantile(self, q: float, /) -> float | None: ...


class Percentiles(Protocol):
    """What is asked of the Figures."""

    def sketch(
        self, figure: Literal["ttft", "e2e"], window_s: Literal[300], now: float, /, *, lane: str
    ) -> Distribution: ...


class Sender(Protocol):
    def put(self, make: "Make", /) -> None: ...


class Traces:
    def __init__(
        self,
        lanes: Mapping[str, Lane],
        share: float,
        sender: Sender,
        rng: Random,
        figures: Percentiles,
        *,
        replicas: Mapping[str, str] | None = None,
    ) -> None:
        """`replicas`: the address of each by its id, where that is known; read whenever a trace is made."""
        self.kept: dict[Why, int] = {}
        self._threshold = _threshold(share)
        self._sender = sender
        self._rng = rng
        self._figures = figures
        self._replicas = replicas if replicas is not None else {}
        self._slow: dict[str, tuple[float, float | None, float | None]] = dict.fromkeys(lanes, (float("-inf"),) * 3)
        """By lane: when it was looked up, and above which TTFT and e2e a request is among the slowest."""

    def take(self, records: Sequence[Record], now: float) -> None:
        for record in records:
            hop = record.trace
            if not hop:
                bits = self._rng.getrandbits
                hop = f"00-{bits(128) or 1:032x}-{bits(64) or 1:016x}-00"
            why = self._why(record, hop, now)
            if why is not None:
                self.kept[why] = self.kept.get(why, 0) + 1
                self._sender.put(partial(add_spans, record, hop, why, self._replicas))

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
        if _in_share(hop[3:35], self._threshold):
            return "share"
        return "parent" if int(hop[-2:], 16) & _SAMPLED else None

    def _slowest(self, lane: str, now: float) -> tuple[float | None, float | None]:
        """The lane's p99 of TTFT and e2e as of late; None: too few requests to say."""
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
