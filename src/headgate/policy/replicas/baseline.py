"""Learns the usual value of a measurement.

The usual value is the median of the last day, a point every five minutes. A median, because an hour of trouble in a day
does not move it; and no point is taken while there is trouble, so that a day that starts badly is not taken for usual
either. A value that stays different for a whole day is the new usual: by then every point of the old one is too old to
count.
"""

from collections import deque
from statistics import median

POINT_S = 300.0
DAY_S = 86_400.0
LEAST = 3
"""Points before any value is called usual: a quarter of an hour."""


class Baseline:
    def __init__(self) -> None:
        self.value: float | None = None
        """The usual value. None: not known yet, or not any more."""
        self._points: deque[tuple[float, float]] = deque(maxlen=int(DAY_S / POINT_S))
        self._next_at: float | None = None

    @property
    def points(self) -> int:
        return len(self._points)

    def see(self, value: float | None, calm: bool, now: float) -> None:
        """Takes in `value`, measured over the five minutes until now. None: there was too little to tell."""
        if self._next_at is None:
            self._next_at = now + POINT_S
        if now < self._next_at:
            return
        self._next_at = now + POINT_S
        while self._points and self._points[0][0] <= now - DAY_S:
            self._points.popleft()
        if value is not None and calm:
            self._points.append((now, value))
        self.value = median(point for _, point in self._points) if len(self._points) >= LEAST else None
