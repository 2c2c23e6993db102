"""Sends traces and figures to a backend as OTLP over HTTP, in protobuf, off the path of every request.

Each signal has an OtlpQueue of its own, so that a backend that takes only one of them does not hold up the other.
Waiting traces become protobuf when their turn comes, a few at a time: no turn of the loop is long, and a dropped trace
has cost nothing. Built only where an endpoint is configured; `opentelemetry-proto` is not imported before.
"""

import asyncio
import contextlib
import logging
import os
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from headgate import __version__
from headgate.model.clock import Clock
from headgate.model.errors import ReplicaFailed, StartupError
from headgate.replica.http import Connections, PoolLimits, request_head

if TYPE_CHECKING:
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource
    from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

log = logging.getLogger(__name__)
T = TypeVar("T")

TRACES_PATH = "/v1/traces"
METRICS_PATH = "/v1/metrics"
CONTENT_TYPE = "application/x-protobuf"
RETRIED = frozenset({0, 429, 502, 503, 504})
"""Statuses after which the protocol allows a retry; 0: there was no answer."""
_OURS = frozenset({"host", "content-type", "content-length", "transfer-encoding", "connection"})

Make = Callable[["ScopeSpans"], None]
"""Adds the spans of one request; called when they are about to be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLimits:
    traces: int = 4096
    """Maximum traces that wait; any more push the oldest out."""
    metrics: int = 4
    """Maximum bodies of metrics that wait. They are sums since the start, so dropping an old one loses nothing."""
    spans: int = 100
    """Spans made and sent at once, plus the rest of the last request's: a millisecond or two of work."""
    pause_s: float = 0.05
    """Seconds between two sends, so that a storm of errors does not become a storm of protobuf."""
    timeout_s: float = 10.0
    """Seconds to wait for an answer."""
    attempts: int = 5
    """Maximum attempts for one body; then it is given up."""
    backoff_s: float = 0.5
    """Mean seconds before the second attempt, doubled before each further one."""
    longest_backoff_s: float = 30.0
    """Maximum seconds before an attempt, also if the receiver asks for more."""


class Reply(NamedTuple):
    status: int
    """The HTTP status; 0: there was no answer."""
    body: bytes = b""
    why: str = ""
    """The error where there was no answer."""
    retry_after_s: float | None = None


class OtlpQueue(Generic[T]):
    """The items that wait to be sent to one path, and counts of what became of earlier ones."""

    def __init__(self, path: str, most: int, pack: Callable[[deque[T]], tuple[bytes, int]]) -> None:
        self.path = path
        self.waiting: deque[T] = deque()
        self.dropped = 0
        """Waiting traces or bodies of metrics that newer ones pushed out: there were too many, or the receiver was too
        slow."""
        self.sent = 0
        self.lost = 0
        """Spans or bodies of metrics that were given up or that the receiver refused; a trace that could not be made
        counts as one."""
        self.empty = asyncio.Event()
        """Set while nothing waits or is being sent."""
        self.empty.set()
        self._most = most
        self._pack = pack
        self._news = asyncio.Event()

    def put(self, item: T) -> None:
        if len(self.waiting) >= self._most:
            self.waiting.popleft()
            self.dropped += 1
        self.waiting.append(item)
        self.empty.clear()
        self._news.set()

    async def take(self) -> tuple[bytes, int]:
        """Waits for the next body. Returns it and its number of spans, or 1 for metrics."""
        while True:
            if not self.waiting:
                self.empty.set()
                self._news.clear()
                await self._news.wait()
            body, count = self._pack(self.waiting)
            if count:
                return body, count


class OtlpSender:
    """Built within the running loop; sends for as long as `run` runs."""

    def __init__(
        self,
        endpoint: str,
        headers: dict[str, str],
        clock: Clock,
        *,
        limits: SendLimits | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Raises StartupError where the endpoint or a header can't be used, or opentelemetry-proto is not installed."""
        self.endpoint = endpoint
        self.limits = limits or SendLimits()
        self._rng = rng or random.Random()
        self.resource = _resource()
        origin, self._prefix = _split(endpoint)
        self._headers = _checked(headers)
        pool_limits = PoolLimits(max_idle=2, connect_timeout_s=5.0, body_bytes=1 << 20)
        self._pool = Connections(origin, clock=clock, limits=pool_limits)
        self._finishing = self._puzzled = False
        self.traces: OtlpQueue[Make] = OtlpQueue(TRACES_PATH, self.limits.traces, self._pack_spans)
        self.metrics: OtlpQueue[bytes] = OtlpQueue(METRICS_PATH, self.limits.metrics, _newest)

    def put(self, make: Make) -> None:
        self.traces.put(make)

    def put_metrics(self, body: bytes) -> None:
        self.metrics.put(body)

    async def run(self) -> None:
        """Sends until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._empty(self.traces))
                tasks.create_task(self._empty(self.metrics))
        finally:
            self._pool.close()

    async def finish(self, grace_s: float) -> None:
        """Waits until both queues are empty, for at most `grace_s` seconds. `run` must still be running; cancel it
        afterwards."""
        self._finishing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.traces.empty.wait()
                await self.metrics.empty.wait()

    async def _empty(self, outbox: OtlpQueue[T]) -> None:
        failing = False
        lost_before = 0
        while True:
            body, count = await outbox.take()
            reply = await self._deliver(outbox.path, body)
            if not 200 <= reply.status < 300:
                outbox.lost += count
                if not failing:
                    failing, lost_before = True, outbox.lost + outbox.dropped - count
                    log.warning("%s; until it can, what there is to send is dropped", self._complaint(outbox, reply))
            else:
                refused = _refused(outbox.path, reply.body)
                outbox.sent += count - min(refused, count)
                outbox.lost += min(refused, count)
                if failing:
                    failing = False
                    lost = outbox.lost + outbox.dropped - lost_before
                    log.warning("%s%s takes what is sent again; %d were lost", self.endpoint, outbox.path, lost)
            if not self._finishing:
                await asyncio.sleep(self.limits.pause_s)

    async def _deliver(self, path: str, body: bytes) -> Reply:
        """Sends a body, with retries. Returns the last answer."""
        limits, delay_s = self.limits, self.limits.backoff_s
        for attempt in range(1, limits.attempts + 1):
            reply = await self._post(path, body)
            if reply.status not in RETRIED or attempt == limits.attempts:
                break
            # Many gateways lose the same collector at once, and must not return to it at once.
            wait_s = reply.retry_after_s if reply.retry_after_s is not None else delay_s * self._rng.uniform(0.5, 1.5)
            await asyncio.sleep(min(wait_s, limits.longest_backoff_s))
            delay_s *= 2
        return reply

    async def _post(self, path: str, body: bytes) -> Reply:
        head = request_head(self._prefix + path, self._pool.host, self._headers, content_type=CONTENT_TYPE)
        listener = _Waiting(asyncio.get_running_loop().create_future())
        call = self._pool.send(head, body, listener)
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                return await listener.reply
        except TimeoutError:
            return Reply(0, why=f"did not answer within {self.limits.timeout_s:g} s")
        finally:
            call.cancel()

    def _complaint(self, outbox: OtlpQueue[T], reply: Reply) -> str:
        where = f"{self.endpoint}{outbox.path}"
        if not reply.status:
            return f"{where} {reply.why}"
        said = "".join(c for c in reply.body[:200].decode("utf-8", "replace") if c.isprintable())
        return f"{where} answered {reply.status}{f': {said}' if said else ''}"

    def _pack_spans(self, waiting: deque[Make]) -> tuple[bytes, int]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        request = ExportTraceServiceRequest()
        of_resource = request.resource_spans.add()
        of_resource.resource.CopyFrom(self.resource)
        of_scope = of_resource.scope_spans.add()
        of_scope.scope.name, of_scope.scope.version = "headgate", __version__
        while waiting and len(of_scope.spans) < self.limits.spans:
            make, before = waiting.popleft(), len(of_scope.spans)
            try:
                make(of_scope)
            except Exception:  # one unusual record must not end the traces of all other requests
                del of_scope.spans[before:]
                self.traces.lost += 1
                if not self._puzzled:
                    self._puzzled = True
                    log.exception("a trace could not be made; others like it are only counted")
        body: bytes = request.SerializeToString()
        return body, len(of_scope.spans)


class _Waiting:
    """The Listener of one send."""

    def __init__(self, reply: asyncio.Future[Reply]) -> None:
        self.reply = reply
        self._status = 0
        self._retry_after_s: float | None = None
        self._body = b""

    def on_head(self, status: int, headers: dict[str, str], is_stream: bool) -> None:
        self._status = status
        after = headers.get("retry-after", "")
        if after.isascii() and after.isdigit() and len(after) < 10:
            self._retry_after_s = float(after)

    def on_events(self, events: list[bytes]) -> None:
        pass

    def on_body(self, body: bytes) -> None:
        self._body = body

    def on_done(self) -> None:
        self._settle(Reply(self._status, self._body, retry_after_s=self._retry_after_s))

    def on_failed(self, error: ReplicaFailed, sent: bool) -> None:
        self._settle(Reply(0, why=error.message.removeprefix("the replica ")))

    def on_broken(self, flaw: Exception) -> None:
        self._settle(Reply(0, why=f"its answer could not be read: {flaw!r}"))

    def on_late(self) -> None:
        pass

    def _settle(self, reply: Reply) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)


def _newest(waiting: deque[bytes]) -> tuple[bytes, int]:
    """Takes the last body and drops the rest: metrics are sums since the start, so the last includes the others."""
    body = waiting.pop()
    waiting.clear()
    return body, 1


def _refused(path: str, body: bytes) -> int:
    """The number of spans that the receiver reports as rejected; for metrics, 1 if it rejected any data point."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    if not body:
        return 0
    try:
        if path == TRACES_PATH:
            return ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans
        # A body of metrics is counted as one, however many of its data points were rejected.
        return min(1, ExportMetricsServiceResponse.FromString(body).partial_success.rejected_data_points)
    except DecodeError:  # not every receiver answers in protobuf; its status has said that it took the body
        return 0


def _resource() -> "Resource":
    try:
        from opentelemetry.proto.resource.v1.resource_pb2 import Resource
    except ImportError:
        raise StartupError(
            "observe.otlp_endpoint needs the package opentelemetry-proto: pip install opentelemetry-proto, "
            "or leave otlp_endpoint out"
        ) from None
    resource = Resource()
    for name, value in (
        ("service.name", "headgate"),
        ("service.version", __version__),
        ("service.instance.id", os.urandom(8).hex()),
    ):
        attribute = resource.attributes.add()
        attribute.key, attribute.value.string_value = name, value
    return resource


def _split(endpoint: str) -> tuple[str, str]:
    """The origin to connect to, and the prefix for the path of each signal."""
    wants = "observe.otlp_endpoint must be a base address such as http://127.0.0.1:4318"
    try:
        parts = urlsplit(endpoint)
        sane = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sane = False
    if not sane or "@" in parts.netloc or "?" in endpoint or "#" in endpoint:
        raise StartupError(f"{wants}, without user, query or fragment, not {endpoint}; keys go into otlp_headers")
    prefix = parts.path.rstrip("/")
    if prefix.endswith((TRACES_PATH, METRICS_PATH)):
        raise StartupError(f"{wants}, not {endpoint}: {TRACES_PATH} and {METRICS_PATH} are added to it")
    return f"{parts.scheme}://{parts.netloc}", prefix


def _checked(headers: dict[str, str]) -> tuple[tuple[str, str], ...]:
    for name, value in headers.items():
        token = name.isascii() and bool(name) and all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in name)
        if not token or name.lower() in _OURS:
            raise StartupError(f"observe.otlp_headers: {name!r} can't be sent as a header; leave it out")
        if not (value.isascii() and value.isprintable()):
            raise StartupError(f"observe.otlp_headers.{name}: expected printable ASCII characters only")
    return tuple(headers.items())
