"""Makes a request's trace from its record: one span for the request and one for each of its stages.

Names are those of OpenTelemetry's conventions for generative AI as of 1.41 (gen_ai.provider.name,
gen_ai.response.time_to_first_chunk), and beside them gen_ai.system, the provider's earlier name, for backends that know
only that. gen_ai.server.* are the conventions' names for a server's metrics, here on its span.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from headgate.model.record import EngineTimings, Record

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

GAPS = 3
"""Maximum gaps of a stream with an event of their own, the longest first."""
Why = Literal["failed", "refused", "retried", "slow", "parent", "share"]
"""Why a trace is kept."""
PROVIDER = "headgate"
_SERVER, _INTERNAL, _CLIENT, _ERROR = 2, 1, 3, 2
"""The protocol's numbers for kinds of spans, and for a status."""
_STEP = 0x9E3779B97F4A7C15
Value = str | int | float | bool | None


def add_spans(record: Record, hop: str, why: Why, url_of: Callable[[str], str | None], into: "ScopeSpans") -> None:
    """Adds the request's spans to `into`. `hop`: the traceparent that its replica got."""
    _Tree(record, hop, into).grow(why, url_of)


class _Tree:
    def __init__(self, record: Record, hop: str, into: "ScopeSpans") -> None:
        self._record = record
        self._into = into
        self._begin_ns = round(record.wall * 1e9)
        self._trace_id = bytes.fromhex(hop[3:35])
        self._root = int(hop[36:52], 16)
        self._count = 0

    def grow(self, why: Why, url_of: Callable[[str], str | None]) -> None:
        record = self._record
        root = self.span(f"{record.operation} {record.model}", 0.0, record.e2e_s, _SERVER)
        root.parent_span_id = bytes.fromhex(record.parent)
        there = _where(record.replica, url_of)
        put(root, _of_request(record), there, {"headgate.sampled": why})
        if record.outcome.kind in ("failed", "refused"):
            self.fail(root, record.outcome.value, record.message, record.e2e_s)
        self.span("accept", 0.0, record.accept_s)
        sent_s = self._queue(url_of)
        if record.first_s > 0 or record.answered:
            route = self.span("route", sent_s, sent_s)
            candidates = ", ".join(f"{seen.replica_id} {seen.score:.3f}" for seen in record.seen)
            put(route, there, {"headgate.reason": record.reason, "headgate.candidates": candidates})
            self._generation(sent_s, there)

    def _queue(self, url_of: Callable[[str], str | None]) -> float:
        """Adds spans for the waits, and for attempts that failed in between. Returns when the request was sent for the
        last time, in seconds after its arrival."""
        record, since_s = self._record, self._record.accept_s
        if record.queue_s > 0 or record.attempts:
            first_s = record.failed[0].at_s if record.failed else since_s + record.queue_s
            ahead = record.ahead
            put(
                self.span("queue", since_s, first_s),
                {"headgate.lane": record.lane},
                {} if ahead is None else {
                    "headgate.ahead.requests": ahead.requests,
                    "headgate.ahead.tokens": ahead.tokens,
                    "headgate.ahead.tenant": ahead.tenant,
                },
            )  # fmt: skip
            since_s = first_s
        for attempt in record.failed:
            if attempt.at_s - since_s > 1e-6:
                self.span("queue", since_s, attempt.at_s)
            since_s = attempt.at_s + attempt.took_s
            span = self.span("attempt", attempt.at_s, since_s, _CLIENT)
            put(span, _where(attempt.replica, url_of), {"headgate.refused": attempt.refused})
            self.fail(span, attempt.outcome.value, attempt.message, since_s)
        sent_s = record.accept_s + record.queue_s + record.retry_s
        if record.failed and sent_s - since_s > 1e-6:
            self.span("queue", since_s, sent_s)
        return sent_s

    def _generation(self, sent_s: float, there: dict[str, Value]) -> None:
        record, engine = self._record, _told(self._record)
        first_s = sent_s + record.first_s
        last_s = first_s + record.stream_s
        decode: Span | None = None
        seen = record.stream or record.ttft_s is not None
        # An unstreamed answer of an engine that does not report its times has one span for everything.
        name = "prefill" if seen else "generate"
        since_s = first_s - (engine.prefill_ms / 1e3 if engine is not None and seen else record.first_s)
        prefill = self.span(name, max(sent_s, since_s), first_s, _CLIENT)
        if record.ttft_s is not None:
            decode = self.span("decode", first_s, last_s, _CLIENT)
        put(prefill, there, {"headgate.cached_tokens": record.cached_tokens, "headgate.cold": record.cold})
        if not record.answered and record.outcome.kind == "failed":
            self.fail(prefill, record.outcome.value, record.message, first_s)
        if decode is not None:
            put(decode, there)
            for gap in record.gaps[:GAPS]:
                self.event(decode, "gap", gap.at_s, {"headgate.gap_s": gap.took_s})
        if engine is not None:
            self._engine(engine, sent_s, since_s, last_s, prefill, decode)
        relay = self.span("relay", last_s, record.e2e_s)
        put(relay, {"headgate.stalled_s": record.stalled_s})

    def _engine(
        self,
        engine: EngineTimings,
        sent_s: float,
        prefill_s: float,
        last_s: float,
        prefill: "Span",
        decode: "Span | None",
    ) -> None:
        """Adds what only the engine knows. Its queue begins when the request comes in, so tokenizing is part of it."""
        put(prefill, {"headgate.prefill_chunks": engine.prefill_chunks})
        queued_s = max(sent_s, prefill_s - engine.queue_ms / 1e3)
        if engine.queue_ms > 0:
            self.span("engine queue", queued_s, max(queued_s, prefill_s), _CLIENT)
        if engine.tokenize_ms > 0:
            self.span("tokenize", queued_s, queued_s + engine.tokenize_ms / 1e3, _CLIENT)
        if decode is not None:
            put(decode, {"headgate.preemptions": engine.preemptions})
        if engine.detokenize_ms > 0:
            # Detokenizing happens token by token while decoding: this one span's length is right, its place is not.
            span = self.span("detokenize", last_s - engine.detokenize_ms / 1e3, last_s, _CLIENT)
            put(span, {"headgate.scattered": True})
            if decode is not None:
                span.parent_span_id = decode.span_id

    def span(self, name: str, since_s: float, until_s: float, kind: int = _INTERNAL) -> "Span":
        span = self._into.spans.add()
        span.trace_id = self._trace_id
        # Steps of an odd constant visit every number before any repeats.
        span.span_id = ((self._root + self._count * _STEP) % (1 << 64) or 1).to_bytes(8, "big")
        if self._count:
            span.parent_span_id = self._root.to_bytes(8, "big")
        self._count += 1
        span.name = name
        span.kind = kind  # type: ignore[assignment]  # a plain number spares the import
        span.start_time_unix_nano = self.at(since_s)
        span.end_time_unix_nano = max(span.start_time_unix_nano, self.at(until_s))
        return span

    def at(self, offset_s: float) -> int:
        """Nanoseconds since 1970 for seconds after arrival, clamped to the request's time."""
        return self._begin_ns + round(min(max(offset_s, 0.0), self._record.e2e_s) * 1e9)

    def event(self, span: "Span", name: str, at_s: float, values: dict[str, Value]) -> None:
        event = span.events.add()
        event.name, event.time_unix_nano = name, self.at(at_s)
        put(event, values)

    def fail(self, span: "Span", kind: str, message: str, at_s: float) -> None:
        span.status.code = _ERROR  # type: ignore[assignment]
        span.status.message = message
        put(span, {"error.type": kind})
        self.event(span, "exception", at_s, {"exception.type": kind, "exception.message": message})


def put(on: "Span | Span.Event", *groups: dict[str, Value]) -> None:
    """Adds attributes; a value that is None or empty is left out."""
    add = on.attributes.add
    for values in groups:
        for key, value in values.items():
            if value is None or value == "":
                continue
            attribute = add()
            attribute.key = key
            if isinstance(value, str):
                attribute.value.string_value = value
            elif isinstance(value, bool):
                attribute.value.bool_value = value
            elif isinstance(value, int):
                attribute.value.int_value = value
            else:
                attribute.value.double_value = value


def _told(record: Record) -> EngineTimings | None:
    """The engine's timings; None: the engine reported none, or other figures under the same name."""
    return record.engine if record.engine is not None and record.engine.prefill_ms > 0 else None


def _of_request(record: Record) -> dict[str, Value]:
    answered = record.answered
    return {
        "gen_ai.operation.name": record.operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.system": PROVIDER,
        "gen_ai.request.model": record.model,
        "gen_ai.request.stream": record.stream or None,
        "gen_ai.response.model": record.model if answered else None,
        "gen_ai.response.time_to_first_chunk": record.ttft_s if record.stream else None,
        "gen_ai.server.time_to_first_token": record.ttft_s,
        "gen_ai.server.time_per_output_token": record.tpot_s,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens or None,
        "http.response.status_code": record.status,
        "headgate.request_id": record.id,
        "headgate.lane": record.lane,
        "headgate.tenant": record.tenant,
        "headgate.tier": record.tier,
        "headgate.task": record.task,
        "headgate.version": record.version,
        "headgate.adapter": record.adapter,
        "headgate.replica": record.replica,
        "headgate.quantization": record.quantization,
        "headgate.gpu_type": record.gpu_type,
        "headgate.outcome": record.outcome.value,
        "headgate.reason": record.reason,
        "headgate.attempts": record.attempts,
        "headgate.hedge": None if record.hedge is None else record.hedge.result,
        "headgate.hedge.second": None if record.hedge is None else record.hedge.second,
    }


def _where(replica_id: str | None, url_of: Callable[[str], str | None]) -> dict[str, Value]:
    """A replica as the conventions name it: host and port, or the path of a socket; its id where no address is
    known."""
    if replica_id is None:
        return {}
    url = url_of(replica_id) or replica_id
    if url.startswith("unix:"):
        return {"server.address": url.removeprefix("unix:")}
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return {"server.address": replica_id}
    return {"server.address": parts.hostname or replica_id, "server.port": port}
