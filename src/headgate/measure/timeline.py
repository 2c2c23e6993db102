"""Keeps a lane's last ten minutes, hour and day in slices, each made once when it is over.

10m     60 slices of ten seconds
1h      60 slices of a minute
24h     96 slices of a quarter of an hour
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

from headgate.measure.windows import (
    E2E,
    GAP,
    KEPT,
    MINUTE,
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

SLICE_PARTS = 2
SLICE_S = SLICE_PARTS * PART_S
QUARTER = 15 * MINUTE
"""Parts in a quarter of an hour."""
RANGES: dict[str, tuple[int, int]] = {"10m": (60, SLICE_PARTS), "1h": (60, MINUTE), "24h": (96, QUARTER)}
"""Ranges by name: number of slices, and parts in each."""
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
        self._slices: dict[str, deque[TimelineSlice]] = {
            name: deque(maxlen=most - 1) for name, (most, _) in RANGES.items()
        }

    def closed(self, window: Window) -> None:
        for name, (_, parts) in RANGES.items():
            if window.number % parts == 0:
                began = window.ends - PART_S - parts * PART_S
                self._slices[name].append(_slice(began, _latest(window, parts), OpenWindow()))

    def forget(self) -> None:
        for slices in self._slices.values():
            slices.clear()

    def slices(self, window: Window, name: str = "10m") -> list[TimelineSlice]:
        """All slices of a range, oldest first; the last is not over yet."""
        begun = window.number % RANGES[name][1]
        return [
            *self._slices[name],
            _slice(window.ends - (begun + 1) * PART_S, _latest(window, begun), window.current),
        ]


def _latest(window: Window, parts: int) -> list[Past]:
    """What the last `parts` closed parts held: whole minutes, and the parts of the minute that is not over."""
    minutes, rest = divmod(parts, MINUTE)
    pasts = [window.parts[-back] for back in range(1, min(rest, len(window.parts)) + 1)]
    return pasts + [window.minutes[-back] for back in range(1, min(minutes, len(window.minutes)) + 1)]


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
