"""Turns a text and a seed into arrivals, in order, for the bench and the simulator.

    for arrival in load("chat=poisson:rate=8,prompt=120,lane=fast; code=azure-code:rate=0.5", seed=1, duration_s=60):
        …

The same text and seed give the same arrivals, on any machine. Arrivals are made as they are consumed.
"""

import heapq
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from headgate.model.labels import plain
from headgate.workload.arrival import Arrival, WorkloadError
from headgate.workload.source import Source
from headgate.workload.spec import LENGTHS_ONLY, SYNTHETIC, Stream, parse

DEFAULT_DURATION_S = 60.0
"""Duration in seconds of a workload that has no end of its own."""


class Workload:
    """Streams, and how long they are played. Raises WorkloadError here for anything wrong with them."""

    def __init__(
        self,
        text: str,
        *,
        rate: float | None = None,
        time_scale: float | None = None,
        duration_s: float | None = None,
        requests: int | None = None,
    ) -> None:
        """`rate`: requests per second of all streams together, which keep their shares. `time_scale`: for traces that
        name none."""
        given = {"rate": rate, "time scale": time_scale, "duration": duration_s, "requests": requests}
        for name, value in given.items():
            if value is not None and not 0 < value < 1e9:
                raise WorkloadError(f"{name} must be above 0, not {plain(value, 6)}")
        self.text = text
        self.requests = requests
        streams = [_timed(stream, time_scale) for stream in parse(text)]
        if len(streams) == 1 and rate is not None:
            streams = [replace(streams[0], rate=rate)]
        self._sources = [Source(stream) for stream in streams]
        if len(streams) > 1 and rate is not None:
            factor = rate / self.rate
            self._sources = [Source(replace(source.stream, rate=source.rate * factor)) for source in self._sources]
        self.duration_s = duration_s
        if duration_s is None and requests is None:
            lasting = [source.period_s for source in self._sources]
            if None in lasting:
                self.duration_s = DEFAULT_DURATION_S
            elif len(lasting) > 1:  # a mix ends with the first of its parts
                self.duration_s = min(period for period in lasting if period is not None)

    @property
    def rate(self) -> float:
        """Mean requests per second, all streams together."""
        return sum(source.rate for source in self._sources)

    @property
    def steady(self) -> bool:
        """Whether no part is a trace: then the load is the same at any time."""
        return all(source.period_s is None for source in self._sources)

    @property
    def goodput(self) -> tuple[str, ...]:
        """Targets that make an answer good, as in `--goodput`; empty: it is not one of the catalog, or a mix."""
        return self._sources[0].stream.goodput if len(self._sources) == 1 else ()

    @property
    def streams(self) -> list[Stream]:
        return [source.stream for source in self._sources]

    def arrivals(self, seed: int = 0) -> Iterator[Arrival]:
        mixed = len(self._sources) > 1
        fill_s = self.duration_s
        if self.requests is not None:
            fill_s = min(fill_s or float("inf"), self.requests / self.rate)
        parts = []
        for index, source in enumerate(self._sources):
            name = source.stream.name or (source.stream.source if mixed else "")
            parts.append(source.arrivals(f"{seed}/{index}", self.duration_s, fill_s, name))
        merged = heapq.merge(*parts, key=lambda arrival: arrival.at_s) if mixed else parts[0]
        return islice(merged, self.requests)

    def describe(self) -> str:
        said = "; ".join(source.describe(self.duration_s) for source in self._sources)
        return said if self.requests is None else f"{said}, {self.requests} requests"


def load(
    text: str,
    seed: int = 0,
    *,
    rate: float | None = None,
    time_scale: float | None = None,
    duration_s: float | None = None,
    requests: int | None = None,
) -> Iterator[Arrival]:
    """Arrivals in order. Raises WorkloadError before the first."""
    workload = Workload(text, rate=rate, time_scale=time_scale, duration_s=duration_s, requests=requests)
    return workload.arrivals(seed)


def _timed(stream: Stream, time_scale: float | None) -> Stream:
    if time_scale is None or stream.time_scale is not None or stream.source in (*SYNTHETIC, *LENGTHS_ONLY):
        return stream
    return replace(stream, time_scale=time_scale)
