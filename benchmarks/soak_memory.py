"""How much memory the soak's gateway had, and whether it grows."""

import statistics
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Seen:
    """What the gateway's process had, second by second."""

    began: float
    at_s: list[float] = field(default_factory=list)
    resident_mb: list[float] = field(default_factory=list)
    proportional_mb: list[float] = field(default_factory=list)
    unshared_mb: list[float] = field(default_factory=list)
    full_s: float | None = None
    """When the ring of records was full; None: it is not."""

    def look(self, resident: float, proportional: float, unshared: float, *, ring_full: bool) -> None:
        now = time.monotonic() - self.began
        self.at_s.append(now)
        self.resident_mb.append(resident)
        self.proportional_mb.append(proportional)
        self.unshared_mb.append(unshared)
        if self.full_s is None and ring_full:
            self.full_s = now

    def half_s(self) -> float:
        """Growth counts from here on."""
        assert self.full_s is not None
        return (self.full_s + self.at_s[-1]) / 2

    def growth_mb(self, values: list[float]) -> tuple[float, float]:
        """Growth in the second half: by the least-squares line, and from the median of its first fifth to that of
        its last."""
        from_s = self.half_s()
        points = [(at, mb) for at, mb in zip(self.at_s, values, strict=True) if at >= from_s]
        fifth = max(1, len(points) // 5)
        medians = [statistics.median(mb for _, mb in part) for part in (points[:fifth], points[-fifth:])]
        line = statistics.linear_regression([at for at, _ in points], [mb for _, mb in points])
        return line.slope * (points[-1][0] - points[0][0]), medians[1] - medians[0]
