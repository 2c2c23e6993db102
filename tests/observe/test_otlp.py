"""Traces and figures reach a receiver, and the gateway keeps calm when they don't."""

import asyncio
import contextlib
import json
import logging
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from headgate import __version__
from headgate.model.clock import monotonic
from headgate.model.errors import StartupError
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.quantile import Sketch
from headgate.model.record import Record
from headgate.publish import otlp
from headgate.publish.journal import read
from headgate.publish.otlp import Make, OtlpSender, SendLimits
from headgate.publish.otlp_metrics import OtlpMetrics, convert
from headgate.publish.traces import Traces
from headgate.wire.exchange import Exchange
from headgate.wire.server import HttpServer
from tests.engine.process import ask
from tests.gateway.test_gateway import gateway
from tests.wire.serving import live, until

QUICK = SendLimits(pause_s=0.0, backoff_s=0.01, timeout_s=0.2, attempts=3)


@dataclass
class Receiver:
    """A real OTLP receiver, but for what it does with it all."""

    answers: list[tuple[int, bytes, str]] = field(default_factory=list)
    """Status, body and Retry-After of the next answers; after that, all is well."""
    heads: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    traces: list[ExportTraceServiceRequest] = field(default_factory=list)
    metrics: list[ExportMetricsServiceRequest] = field(default_factory=list)
    silent: bool = False

    def take(self, exchange: Exchange) -> None:
        self.heads.append((exchange.path, exchange.headers))
        if self.silent:
            return
        status, body, after = self.answers.pop(0) if self.answers else (200, b"", "")
        if status == 200 and exchange.path.endswith("/v1/traces"):
            self.traces.append(ExportTraceServiceRequest.FromString(exchange.body))
        elif status == 200:
            self.metrics.append(ExportMetricsServiceRequest.FromString(exchange.body))
        exchange.respond(status, body, "application/x-protobuf", (("retry-after", after),) if after else ())

    def names(self) -> list[str]:
        return [s.name for t in self.traces for s in t.resource_spans[0].scope_spans[0].spans]


@contextlib.asynccontextmanager
async def receiving(receiver: Receiver, port: int = 0) -> AsyncIterator[str]:
    server = HttpServer(receiver.take, clock=monotonic)
    try:
        yield f"http://127.0.0.1:{await server.listen('127.0.0.1', port)}"
    finally:
        await server.drain(0.0)


@contextlib.asynccontextmanager
async def sending(
    endpoint: str, limits: SendLimits = QUICK, headers: dict[str, str] | None = None
) -> AsyncIterator[OtlpSender]:
    sender = OtlpSender(endpoint, headers or {}, monotonic, limits=limits, rng=random.Random(1))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(sender.run())
        yield sender
        task.cancel()


def span(name: str, count: int = 1) -> Make:
    def make(into: ScopeSpans) -> None:
        for _ in range(count):
            added = into.spans.add()
            added.name, added.trace_id, added.span_id = name, b"t" * 16, b"s" * 8

    return make


# -- what goes well -------------------------------------------------------------------------------------------


@live
async def test_spans_arrive_as_the_protocol_has_it() -> None:
    receiver = Receiver()
    async with receiving(receiver) as url, sending(f"{url}/base/", headers={"x-key": "k 1"}) as sender:
        sender.put(span("one"))
        sender.put(span("two", 3))
        await sender.finish(2)
        path, headers = receiver.heads[0]
        assert path == "/base/v1/traces"
        assert headers["content-type"] == "application/x-protobuf"
        assert headers["x-key"] == "k 1"
        assert receiver.names() == ["one", "two", "two", "two"]
        (sent,) = receiver.traces[0].resource_spans
        about = {a.key: a.value.string_value for a in sent.resource.attributes}
        assert about.pop("service.instance.id")
        assert about == {"service.name": "headgate", "service.version": __version__}
        assert sent.scope_spans[0].scope.name == "headgate"
        assert (sender.traces.sent, sender.traces.lost, sender.traces.dropped) == (4, 0, 0)


class NoFigures:
    def sketch(self, figure: str, window_s: int, now: float, *, lane: str | None = None) -> Sketch:
        return Sketch()


@live
async def test_from_a_record_to_a_receiver() -> None:
    receiver = Receiver()
    async with receiving(receiver) as url, sending(url) as sender:
        traces = Traces(LANES, 0.0, sender, random.Random(1), NoFigures())
        about: dict[str, Any] = {"at": 0.0, "lane": "fast", "tenant": "a", "model": "m"}
        good = Record(id="1", outcome=Outcome.COMPLETED, **about)
        bad = Record(id="2", outcome=Outcome.REPLICA_FAILED, e2e_s=0.5, first_s=0.5, stream=True, **about)
        traces.take([good, bad], 0.0)
        await sender.finish(2)
    assert receiver.names() == ["chat m", "accept", "route", "prefill", "relay"]


@live
async def test_a_batch_is_bounded_and_the_loop_goes_on_between_them() -> None:
    receiver = Receiver()
    async with receiving(receiver) as url, sending(url, SendLimits(pause_s=0.0, spans=200)) as sender:
        for _ in range(100):
            sender.put(span("x", 7))
        await sender.finish(3)
    sizes = [len(t.resource_spans[0].scope_spans[0].spans) for t in receiver.traces]
    assert sum(sizes) == 700
    assert max(sizes) < 207
    assert len(sizes) == 4


@live
async def test_one_signal_does_not_wait_for_the_other() -> None:
    receiver = Receiver(answers=[(503, b"", "60")])
    async with receiving(receiver) as url, sending(url) as sender:
        sender.put(span("held up"))
        await until(lambda: len(receiver.heads) == 1)
        sender.put_metrics(ExportMetricsServiceRequest().SerializeToString())
        await until(lambda: len(receiver.metrics) == 1)
        assert receiver.traces == []


class Engine:
    """Answers at once, and remembers which trace it was told to be part of."""

    def __init__(self) -> None:
        self.traceparents: list[str | None] = []

    def take(self, exchange: Exchange) -> None:
        if b"messages" in exchange.body:
            self.traceparents.append(exchange.headers.get("traceparent"))
            usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
            choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
            exchange.respond(200, json.dumps({"choices": [choice], "usage": usage}).encode())
        else:
            exchange.respond(200, b'{"object":"list","data":[{"id":"m","object":"model"}]}')


async def through_a_gateway(folder: Path, receiver: Receiver, engine: Engine) -> str:
    """What /metrics says afterwards."""
    server = HttpServer(engine.take, clock=monotonic)
    port = await server.listen("127.0.0.1", 0)
    async with receiving(receiver) as url:
        config = {
            "observe": {"otlp_endpoint": url, "trace_share": 0.0},
            "record": {"path": str(folder / "requests.jsonl")},
        }
        running = gateway(folder, config, f"http://127.0.0.1:{port}")
        where = await asyncio.to_thread(running.__enter__)
        try:
            body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
            headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x-request-id": "mine"}
            for more in ({}, headers):  # the first is in nobody's trace, and nobody's share
                status, _ = await asyncio.to_thread(ask, f"{where}/v1/chat/completions", body, more)
                assert status == 200
            await until(lambda: len(receiver.traces) > 0)
            await until(lambda: len((folder / "requests.jsonl").read_text().splitlines()) == 3)
            return (await asyncio.to_thread(ask, f"{where}/metrics"))[1].decode()
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)
            await server.drain(0.0)


@pytest.mark.timeout(60)
def test_a_clients_trace_goes_through_the_gateway_to_the_engine(tmp_path: Path) -> None:
    receiver, engine = Receiver(), Engine()
    figures = asyncio.run(through_a_gateway(tmp_path, receiver, engine))
    (root, *below) = receiver.traces[0].resource_spans[0].scope_spans[0].spans
    assert root.name == "chat m"
    assert root.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert root.parent_span_id.hex() == "b7ad6b7169203331"
    assert [span.name for span in below] == ["accept", "queue", "route", "generate", "relay"]
    assert sum(receiver.names().count(name) for name in ("chat m", "relay")) == 2
    alone, told = engine.traceparents[-2:]  # before them it was warmed up
    assert told == f"00-0af7651916cd43dd8448eb211c80319c-{root.span_id.hex()}-01"
    assert alone is not None
    assert alone.endswith("-00")
    kept = list(read(tmp_path / "requests.jsonl"))
    assert [(line.trace, line.parent) for line in kept] == [(alone, ""), (told, "b7ad6b7169203331")]
    assert kept[1].id == "mine"
    check_figures(figures)


def check_figures(text: str) -> None:
    """Whatever is scraped goes out."""
    (of_scope,) = convert(text, Resource(), 1, 2).resource_metrics[0].scope_metrics
    sent = {metric.name: metric for metric in of_scope.metrics}
    assert sum(point.as_double for point in sent["headgate_requests_total"].sum.data_points) == 2
    assert sum(point.count for point in sent["headgate_request_duration_seconds"].histogram.data_points) == 2
    points = 0
    for metric in of_scope.metrics:
        for histogram in metric.histogram.data_points:
            points += len(histogram.bucket_counts) + 2
        points += len(metric.sum.data_points) + len(metric.gauge.data_points)
    lines = [line for line in text.splitlines() if line and not line.startswith("#") and not line.endswith("NaN")]
    assert points == len(lines)


# -- what goes wrong ------------------------------------------------------------------------------------------


@live
async def test_what_may_be_sent_again_is_until_it_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver(answers=[(503, b"", ""), (429, b"", "0")])
    async with receiving(receiver) as url, sending(url) as sender:
        sender.put(span("x"))
        await sender.finish(3)
        assert receiver.names() == ["x"]
        assert len(receiver.heads) == 3
        assert sender.traces.sent == 1
    assert caplog.records == []


@live
async def test_a_receiver_that_asks_for_time_gets_it() -> None:
    receiver = Receiver(answers=[(429, b"", "3600")])
    limits = SendLimits(pause_s=0.0, backoff_s=0.0, longest_backoff_s=0.3)
    async with receiving(receiver) as url, sending(url, limits) as sender:
        sender.put(span("x"))
        began = monotonic()
        await until(lambda: len(receiver.heads) == 2)
        assert monotonic() - began >= 0.3


@pytest.mark.parametrize("status", [400, 401, 404, 500, 301])
def test_what_is_refused_for_good_is_given_up_and_said_once(status: int, caplog: pytest.LogCaptureFixture) -> None:
    @live
    async def refused() -> None:
        receiver = Receiver(answers=[(status, b"no \x00such key", "")] * 2)
        async with receiving(receiver) as url, sending(url) as sender:
            for name in ("first", "second", "third"):
                sender.put(span(name))
                await sender.traces.empty.wait()
            assert receiver.names() == ["third"]
            assert len(receiver.heads) == 3
            assert (sender.traces.lost, sender.traces.sent) == (2, 1)

    with caplog.at_level(logging.WARNING):
        refused()
    first, second = (entry.getMessage() for entry in caplog.records)
    assert f"/v1/traces answered {status}: no such key; until it can" in first
    assert second.endswith("/v1/traces takes what is sent again; 2 were lost")


@live
async def test_a_receiver_that_is_not_there_yet_is_found_when_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    receiver = Receiver()
    async with sending(f"http://127.0.0.1:{port}") as sender:
        sender.put(span("lost"))
        await until(lambda: sender.traces.lost == 1)
        assert "could not be reached" in caplog.text
        async with receiving(receiver, port):
            sender.put(span("found"))
            await until(lambda: receiver.names() == ["found"])
    assert len(caplog.records) == 2


@live
async def test_a_receiver_that_never_answers_holds_nobody_up() -> None:
    receiver = Receiver(silent=True)
    limits = SendLimits(pause_s=0.0, timeout_s=0.02, attempts=2, backoff_s=0.0, traces=10)
    async with receiving(receiver) as url, sending(url, limits) as sender:
        for number in range(25):
            sender.put(span(str(number)))
        assert sender.traces.dropped == 15
        await until(lambda: sender.traces.lost == 10)
        receiver.silent = False
        sender.put(span("after"))
        await until(lambda: receiver.names() == ["after"])


@live
async def test_when_too_much_waits_the_oldest_goes() -> None:
    receiver = Receiver()
    async with receiving(receiver) as url, sending(url, SendLimits(traces=3)) as sender:
        for number in range(5):
            sender.put(span(str(number)))
        for number in range(5):  # sums since the start: only the last is of any use
            about = ExportMetricsServiceRequest()
            about.resource_metrics.add().schema_url = str(number)
            sender.put_metrics(about.SerializeToString())
        await sender.finish(2)
        assert receiver.names() == ["2", "3", "4"]
        assert sender.traces.dropped == 2
        assert [m.resource_metrics[0].schema_url for m in receiver.metrics] == ["4"]


@live
async def test_what_a_receiver_takes_only_in_part_is_counted() -> None:
    some = ExportTraceServiceResponse()
    some.partial_success.rejected_spans = 2
    none = ExportMetricsServiceResponse()
    none.partial_success.rejected_data_points = 100
    receiver = Receiver(answers=[(200, some.SerializeToString(), ""), (200, none.SerializeToString(), "")])
    async with receiving(receiver) as url, sending(url) as sender:
        sender.put(span("x", 5))
        await sender.finish(2)
        sender.put_metrics(b"")
        await sender.finish(2)
        assert (sender.traces.sent, sender.traces.lost) == (3, 2)
        assert (sender.metrics.sent, sender.metrics.lost) == (0, 1)
        receiver.answers = [(200, b"\xffnot protobuf", "")]
        sender.put(span("y"))
        await sender.finish(2)
        assert sender.traces.sent == 4


@live
async def test_one_trace_that_can_not_be_made_does_not_spoil_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def broken(into: ScopeSpans) -> None:
        into.spans.add().name = "half"
        raise ValueError("odd")

    receiver = Receiver()
    async with receiving(receiver) as url, sending(url) as sender:
        for make in (broken, span("good"), broken):
            sender.put(make)
        await sender.finish(2)
        assert receiver.names() == ["good"]
        assert sender.traces.lost == 2
        sender.put(broken)
        await sender.finish(2)  # nothing is left to send
        assert len(receiver.heads) == 1
    assert len(caplog.records) == 1


@live
async def test_the_end_waits_for_what_is_under_way_but_not_for_ever() -> None:
    receiver = Receiver(silent=True)
    async with receiving(receiver) as url, sending(url, SendLimits()) as sender:
        sender.put(span("x"))
        began = monotonic()
        await sender.finish(0.1)
        assert monotonic() - began < 1.0


@pytest.mark.parametrize(
    ("endpoint", "headers", "why"),
    [
        ("http://h:4318/v1/traces", {}, "/v1/traces and /v1/metrics are added to it"),
        ("http://me:secret@h:4318", {}, "keys go into otlp_headers"),
        ("http://h:4318?x=1", {}, "base address such as"),
        ("http://h:0", {}, "base address such as"),
        ("http://h:port", {}, "base address such as"),
        ("ftp://h", {}, "base address such as"),
        ("http://h", {"content-length": "1"}, "'content-length' can't be sent"),
        ("http://h", {"a b": "1"}, "'a b' can't be sent"),
        ("http://h", {"a": "1\r\nb: 2"}, "otlp_headers.a: expected printable ASCII"),
    ],
)
def test_what_can_not_work_is_said_at_start_up(endpoint: str, headers: dict[str, str], why: str) -> None:
    with pytest.raises(StartupError, match=why):
        OtlpSender(endpoint, headers, monotonic)


def test_without_the_package_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.resource.v1.resource_pb2", None)
    with pytest.raises(StartupError, match="pip install opentelemetry-proto"):
        OtlpSender("http://h", {}, monotonic)


def test_nothing_is_imported_before_it_is_needed() -> None:
    """A gateway without an endpoint pays nothing, and need not even have it installed."""
    code = (
        "import sys, headgate.publish.otlp, headgate.publish.otlp_metrics, headgate.publish.traces; "
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'google.'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- figures --------------------------------------------------------------------------------------------------


TEXT = """\
# HELP headgate_requests_total Requests by how they ended
# TYPE headgate_requests_total counter
headgate_requests_total{lane="fast",outcome="completed"} 12.0
headgate_requests_total{lane="slow",outcome="cancelled"} 3.0
# HELP headgate_gc_pause_seconds_total Spent collecting garbage
# TYPE headgate_gc_pause_seconds_total counter
headgate_gc_pause_seconds_total 0.25
# HELP headgate_waiting Requests waiting here
# TYPE headgate_waiting gauge
headgate_waiting{lane="fa\\"st"} 7.0
headgate_waiting{lane="none"} NaN
# HELP headgate_queue_seconds Waiting in the gateway
# TYPE headgate_queue_seconds histogram
headgate_queue_seconds_bucket{lane="fast",le="0.1"} 2.0
headgate_queue_seconds_bucket{lane="fast",le="1.0"} 2.0
headgate_queue_seconds_bucket{lane="fast",le="2.5"} 5.0
headgate_queue_seconds_bucket{lane="fast",le="+Inf"} 6.0
headgate_queue_seconds_sum{lane="fast"} 12.5
headgate_queue_seconds_count{lane="fast"} 6.0
headgate_queue_seconds_bucket{lane="slow",le="0.1"} 0.0
headgate_queue_seconds_bucket{lane="slow",le="1.0"} 0.0
headgate_queue_seconds_bucket{lane="slow",le="2.5"} 0.0
headgate_queue_seconds_bucket{lane="slow",le="+Inf"} 0.0
headgate_queue_seconds_sum{lane="slow"} 0.0
headgate_queue_seconds_count{lane="slow"} 0.0
# HELP headgate_nothing Nobody has this
# TYPE headgate_nothing gauge
# HELP headgate_gpu_memory_used_bytes Memory in use
# TYPE headgate_gpu_memory_used_bytes gauge
headgate_gpu_memory_used_bytes{gpu="0"} 1e9
# HELP headgate_step_seconds Steps
# TYPE headgate_step_seconds summary
headgate_step_seconds_count 4.0
headgate_step_seconds_sum 0.5
untyped_thing 1.0
"""


def converted() -> dict[str, Metric]:
    request = convert(TEXT, Resource(), 1000, 2000)
    (of_resource,) = request.resource_metrics
    (of_scope,) = of_resource.scope_metrics
    return {metric.name: metric for metric in of_scope.metrics}


def labels(point: Any) -> dict[str, str]:
    return {attribute.key: attribute.value.string_value for attribute in point.attributes}


def test_the_same_names_go_out_as_are_scraped() -> None:
    assert {name: metric.unit for name, metric in converted().items()} == {
        "headgate_requests_total": "",
        "headgate_gc_pause_seconds_total": "s",
        "headgate_waiting": "",
        "headgate_queue_seconds": "s",
        "headgate_gpu_memory_used_bytes": "By",
        "headgate_step_seconds_count": "",
        "headgate_step_seconds_sum": "",
        "untyped_thing": "",
    }
    assert converted()["headgate_waiting"].description == "Requests waiting here"


def test_a_counter_is_a_sum_since_the_start_that_only_grows() -> None:
    total = converted()["headgate_requests_total"].sum
    assert total.is_monotonic
    assert total.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert [(labels(p), p.as_double, p.start_time_unix_nano, p.time_unix_nano) for p in total.data_points] == [
        ({"lane": "fast", "outcome": "completed"}, 12.0, 1000, 2000),
        ({"lane": "slow", "outcome": "cancelled"}, 3.0, 1000, 2000),
    ]


def test_a_gauge_that_is_not_a_number_is_left_out() -> None:
    points = converted()["headgate_waiting"].gauge.data_points
    assert [(labels(p), p.as_double, p.time_unix_nano) for p in points] == [({"lane": 'fa"st'}, 7.0, 2000)]


def test_a_histogram_keeps_its_bounds_and_counts_each_observation_once() -> None:
    histogram = converted()["headgate_queue_seconds"].histogram
    assert histogram.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    fast, slow = histogram.data_points
    assert (labels(fast), labels(slow)) == ({"lane": "fast"}, {"lane": "slow"})
    assert list(fast.explicit_bounds) == [0.1, 1.0, 2.5]
    assert list(fast.bucket_counts) == [2, 0, 3, 1]
    assert (fast.count, fast.sum, fast.start_time_unix_nano, fast.time_unix_nano) == (6, 12.5, 1000, 2000)
    assert (list(slow.bucket_counts), slow.count) == ([0, 0, 0, 0], 0)


def test_reading_steps_aside_every_few_lines() -> None:
    turns = 0

    def pace() -> None:
        nonlocal turns
        turns += 1

    convert("# TYPE x gauge\n" + "".join(f'x{{n="{n}"}} 1\n' for n in range(1000)), Resource(), 0, 0, pace)
    assert turns >= 2 * 1000 // 50


@live
async def test_figures_are_sent_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    receiver, texts = Receiver(), [TEXT.encode(), b"x{ broken", TEXT.replace("12.0", "13.0").encode()]
    async with receiving(receiver) as url, sending(url) as sender:
        metrics = OtlpMetrics(lambda: texts.pop(0), sender, lambda: 1.7e9, every_s=0.01)
        task = asyncio.ensure_future(metrics.run())
        await until(lambda: len(receiver.metrics) == 2)
        task.cancel()
    assert receiver.heads[0][0] == otlp.METRICS_PATH
    found = [m.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points[0] for m in receiver.metrics]
    assert [(point.as_double, point.time_unix_nano) for point in found] == [(12.0, 17 * 10**17), (13.0, 17 * 10**17)]
    assert "the figures could not be sent" in caplog.text
