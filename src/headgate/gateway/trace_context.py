"""Gives each request its place in a trace and writes the W3C trace context headers for its replica.

Whether the trace is kept is decided when the request is over (publish/traces.py).
"""

import re
from collections.abc import Mapping
from random import Random

import msgspec

LONGEST_STATE = 512
"""Maximum characters of tracestate that are passed on; the standard asks for at least this many."""
SAMPLED, _RANDOM = 1, 2
_PARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_KEY = r"[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13}"
_MEMBER = re.compile(rf"({_KEY})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{{0,255}}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """A place in a trace. Ids are lower-case hex."""

    trace_id: str
    parent_id: str
    """The client's span; empty: the trace begins here."""
    flags: int
    state: str = ""
    """tracestate: entries of other services, to be passed on."""


class Hop(msgspec.Struct, frozen=True, gc=False):
    """The place of one request in a trace, ready to be sent and recorded."""

    traceparent: str
    """The traceparent that the replica gets; also Record.trace."""
    parent_id: str
    """The client's span, for Record.parent; empty: the trace begins here."""
    lines: bytes
    """Header lines for the replica."""


class Contexts:
    """Gives each request its place in a trace. Runs on the request path; costs a few random bits and a little text."""

    def __init__(self, share: float, rng: Random) -> None:
        self._threshold = threshold(share)
        self._rng = rng

    def of(self, headers: Mapping[str, str]) -> Hop:
        """The client's trace, or a new one. The sampled flag is set for traces that the client sampled and for `share`
        of the rest, so that an engine with its own spans need not send those of every request."""
        bits = self._rng.getrandbits
        context = context_of(headers) or TraceContext(f"{bits(128) or 1:032x}", "", 0)
        if in_share(context.trace_id, self._threshold):
            context = msgspec.structs.replace(context, flags=context.flags | SAMPLED)
        lines = outgoing(context, f"{bits(64) or 1:016x}")
        return Hop(lines[13:68].decode(), context.parent_id, lines)


def context_of(headers: Mapping[str, str]) -> TraceContext | None:
    """The client's trace context; None: traceparent is missing or malformed, and the trace begins here."""
    found = _PARENT.fullmatch(headers.get("traceparent", ""))
    if found is None:
        return None
    trace_id, parent_id, flags = found.groups()
    return TraceContext(trace_id, parent_id, int(flags, 16), _state_of(headers.get("tracestate", "")))


def outgoing(context: TraceContext, span_id: str) -> bytes:
    """Header lines that make the replica's spans children of this span."""
    flags = context.flags & (SAMPLED | _RANDOM)
    line = f"traceparent: 00-{context.trace_id}-{span_id}-{flags:02x}\r\n"
    if context.state:
        line += f"tracestate: {context.state}\r\n"
    return line.encode()


def _state_of(text: str) -> str:
    """tracestate, checked and bounded; empty if malformed, which does not invalidate the traceparent."""
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    found = [_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in found if match is not None}
    if len(keys) != len(members) or len(members) > 32:
        return ""
    while members and sum(map(len, members)) + len(members) - 1 > LONGEST_STATE:
        members.pop()  # the last entries are the oldest
    return ",".join(members)


def threshold(share: float) -> int:
    """The sampling threshold for a share from 0 to 1. As in OpenTelemetry's consistent sampling, each service with the
    same or a larger share keeps the same traces."""
    return round((1.0 - share) * (1 << 56))


def in_share(trace_id: str, threshold: int) -> bool:
    return int(trace_id[-14:], 16) >= threshold
