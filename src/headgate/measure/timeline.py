"""Keeps the last ten minutes of a lane in slices of ten seconds, each made once when it is over."""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

from headgate.measure.windows import (
    E2E,
    GAP,
    KEPT,
    PART_S,
    QUEUE,
    TPOT,
    TTFT,
    Buckets,
    OpenWindow,
    Past,
    Window,
    WindowCounts,
    empty,
)
from headgate.model.quantile import GRID, Sketch

SLICES = 60
SLICE_PARTS = 2
SLICE_S = SLICE_PARTS * PART_S
BANDS = tuple(float(f"{0.001 * 10 ** (step / 4):.3g}") for step in range(23))
"""Upper ends of the heat map's bands, in seconds: four to a decade from 1 ms to 316 s. One more band takes longer
times."""
PERCENTILES = (0.5, 0.95, 0.99)

Three = tuple[float | None, float | None, float | None]
"""p50, p95, p99 in seconds; None: no request had that figure."""


@dataclass(frozen=True, slots=True)
class TimelineSlice:
    at: float
    """When the slice began, on the clock of the records."""
    requests: int
    failed: int
    refused: int
    ttft: Three
    tpot: Three
    e2e: Three
    queue: Three
    gap: Three
    heat: list[int]
    """Number of first tokens by band of BANDS."""
    heat_e2e: list[int]
    """Number of whole answers by band of BANDS."""


class Timeline:
    """The slices of one lane; `closed` is called for every part that has closed."""

    __slots__ = ("_slices",)

    def __init__(self) -> None:
        self._slices: deque[TimelineSlice] = deque(maxlen=SLICES - 1)

    def closed(self, window: Window) -> None:
        if window.number % SLICE_PARTS == 0:
            pasts = [window.parts[-back] for back in range(1, min(SLICE_PARTS, len(window.parts)) + 1)]
            self._slices.append(_slice(window.ends - PART_S - SLICE_S, pasts, OpenWindow()))

    def forget(self) -> None:
        self._slices.clear()

    def slices(self, window: Window) -> list[TimelineSlice]:
        """All slices, oldest first; the last is not over yet."""
        begun = window.number % SLICE_PARTS
        pasts = [window.parts[-back] for back in range(1, min(begun, len(window.parts)) + 1)]
        return [*self._slices, _slice(window.ends - (begun + 1) * PART_S, pasts, window.current)]


def _slice(at: float, pasts: list[Past], current: OpenWindow) -> TimelineSlice:
    whole, counts = empty(), WindowCounts()
    for figure in range(KEPT):
        whole[figure].update(current.buckets[figure])
    counts.add(current.counts)
    for past in pasts:
        past.add_to(whole)
        counts.add(past.counts)
    return TimelineSlice(
        at,
        counts.requests,
        counts.failed,
        counts.refused,
        _three(whole[TTFT]),
        _three(whole[TPOT]),
        _three(whole[E2E]),
        _three(whole[QUEUE]),
        _three(whole[GAP]),
        _heat(whole[TTFT]),
        _heat(whole[E2E]),
    )


def _three(buckets: Buckets) -> Three:
    p50, p95, p99 = Sketch.of(buckets).quantiles(PERCENTILES)
    return p50, p95, p99


def _heat(buckets: Buckets) -> list[int]:
    bands = [0] * (len(BANDS) + 1)
    for index, number in buckets.items():
        bands[_BAND_OF[index]] += number
    return bands


_BAND_OF = [bisect_left(BANDS, value) for value in GRID.values]
