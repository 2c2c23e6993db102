"""Sends the figures of /metrics to an OpenTelemetry backend.

They are made from the very text that Prometheus gets, so that the two can't disagree; names and labels are the same.
Reading thousands of lines takes a tenth of a second: a thread reads them and yields every few lines, or every request
of that moment would wait for it.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from math import inf, isnan
from typing import TYPE_CHECKING, TextIO, TypeVar, cast

from prometheus_client import Metric
from prometheus_client.parser import text_fd_to_metric_families
from prometheus_client.samples import Sample

from headgate import __version__
from headgate.model.clock import Clock
from headgate.publish.otlp import OtlpSender

if TYPE_CHECKING:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.metrics.v1 import metrics_pb2
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

log = logging.getLogger(__name__)
T = TypeVar("T")
EVERY_S = 15.0
UNITS = {"seconds": "s", "bytes": "By", "ratio": "1"}
"""Units by the last word of a name, `total` aside."""
_CUMULATIVE = 2
_LINES = 16
"""Lines read between two yields; they take less than half a millisecond."""
_ASIDE_S = 0.002

Pace = Callable[[], None]
"""Called after every _LINES lines."""


class OtlpMetrics:
    """Sends the figures every `every_s` seconds for as long as `run` runs."""

    def __init__(self, text: Callable[[], bytes], sender: OtlpSender, wall: Clock, every_s: float = EVERY_S) -> None:
        """`text` returns the answer of /metrics."""
        self._text = text
        self._sender = sender
        self._wall = wall
        self._every_s = every_s
        self._started_ns = round(wall() * 1e9)

    async def run(self) -> None:
        """Sends until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.send()
            except Exception:  # the next figures may be better, and nothing else depends on these
                log.exception("the figures could not be sent")

    async def send(self) -> None:
        """Sends the figures of this moment; also to be called once at the end."""
        text, now_ns = self._text().decode(), round(self._wall() * 1e9)
        body = await asyncio.to_thread(self._encode, text, now_ns, threading.Event())
        self._sender.put_metrics(body)

    def _encode(self, text: str, now_ns: int, never: threading.Event) -> bytes:
        request = convert(text, self._sender.resource, self._started_ns, now_ns, lambda: _aside(never))
        body: bytes = request.SerializeToString()
        return body


def convert(
    text: str, resource: "Resource", started_ns: int, now_ns: int, pace: Pace = lambda: None
) -> "ExportMetricsServiceRequest":
    """Converts counters to monotonic sums since the start, histograms with their bounds, anything else to gauges."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    request = ExportMetricsServiceRequest()
    of_resource = request.resource_metrics.add()
    of_resource.resource.CopyFrom(resource)
    of_scope = of_resource.scope_metrics.add()
    of_scope.scope.name, of_scope.scope.version = "headgate", __version__
    writer = _Writer(of_scope, started_ns, now_ns, pace)
    lines = cast(TextIO, _paced(text.splitlines(keepends=True), pace))  # the parser only reads the lines of a file
    for family in text_fd_to_metric_families(lines):
        writer.add(family)
    return request


class _Writer:
    def __init__(self, scope: "metrics_pb2.ScopeMetrics", started_ns: int, now_ns: int, pace: Pace) -> None:
        self._scope = scope
        self._started_ns = started_ns
        self._now_ns = now_ns
        self._pace = pace

    def add(self, family: Metric) -> None:
        if family.type == "histogram":
            self._histogram(family)
            return
        by_name = groupby(sorted(family.samples, key=lambda sample: sample.name), key=lambda sample: sample.name)
        for name, samples in by_name:
            self._numbers(name, family, _paced(samples, self._pace))

    def _numbers(self, name: str, family: Metric, samples: Iterable[Sample]) -> None:
        known = [sample for sample in samples if not isnan(sample.value)]
        if not known:
            return
        metric = self._metric(name, family)
        counter = family.type == "counter" and not name.endswith("_created")
        points = metric.sum.data_points if counter else metric.gauge.data_points
        if counter:
            metric.sum.is_monotonic = True
            metric.sum.aggregation_temporality = _CUMULATIVE  # type: ignore[assignment]  # a number spares the import
        for sample in known:
            point = points.add()
            point.time_unix_nano = self._now_ns
            if counter:
                point.start_time_unix_nano = self._started_ns
            point.as_double = sample.value
            _label(point, sample.labels)

    def _histogram(self, family: Metric) -> None:
        series: dict[tuple[tuple[str, str], ...], _Buckets] = {}
        for sample in _paced(family.samples, self._pace):
            labels = dict(sample.labels)
            bound = labels.pop("le", "")
            buckets = series.setdefault(tuple(sorted(labels.items())), _Buckets(labels))
            match sample.name.removeprefix(family.name):
                case "_bucket":
                    buckets.below[float(bound)] = sample.value
                case "_sum":
                    buckets.total = sample.value
                case "_count":
                    buckets.count = sample.value
        if not series:
            return
        metric = self._metric(family.name, family)
        metric.histogram.aggregation_temporality = _CUMULATIVE  # type: ignore[assignment]
        for buckets in _paced(series.values(), self._pace):
            point = metric.histogram.data_points.add()
            point.start_time_unix_nano, point.time_unix_nano = self._started_ns, self._now_ns
            buckets.write(point)

    def _metric(self, name: str, family: Metric) -> "metrics_pb2.Metric":
        metric = self._scope.metrics.add()
        metric.name, metric.description = name, family.documentation
        metric.unit = UNITS.get(name.removesuffix("_total").rpartition("_")[2], "")
        return metric


class _Buckets:
    """One series of a histogram."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = labels
        self.below: dict[float, float] = {}
        """Observations up to each bound, as Prometheus counts them: cumulative."""
        self.total = 0.0
        self.count = 0.0

    def write(self, point: "metrics_pb2.HistogramDataPoint") -> None:
        bounds = sorted(bound for bound in self.below if bound != inf)
        before = 0.0
        for bound in bounds:
            point.bucket_counts.append(max(0, round(self.below[bound] - before)))
            before = max(before, self.below[bound])
        point.bucket_counts.append(max(0, round(self.count - before)))
        point.explicit_bounds.extend(bounds)
        point.count = sum(point.bucket_counts)  # the protocol requires exactly this sum
        point.sum = self.total
        _label(point, self.labels)


def _label(point: "metrics_pb2.NumberDataPoint | metrics_pb2.HistogramDataPoint", labels: Mapping[str, str]) -> None:
    for name, value in labels.items():
        attribute = point.attributes.add()
        attribute.key, attribute.value.string_value = name, value


def _paced(items: Iterable[T], pace: Pace) -> Iterator[T]:
    for count, item in enumerate(items, 1):
        yield item
        if not count % _LINES:
            pace()


def _aside(never: threading.Event) -> None:
    """Yields the interpreter to the event loop."""
    never.wait(_ASIDE_S)
