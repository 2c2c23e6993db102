"""Raises and clears alerts with hysteresis.

An operator soon ignores an alert that comes and goes with every reading. So each severity has two bounds: a score must
reach the first to raise the alert, and stay below the second, lower one for a while to clear it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0, 1 or 2: as a figure, and to compare."""
        return _RANKS[self]


_RANKS = {severity: rank for rank, severity in enumerate(Severity)}


@dataclass(slots=True, eq=False)
class AlertLevel:
    """One severity, on or off. It is shown scores: the value as a share of its bound."""

    severity: Severity
    at: float = 1.0
    """Scores from here on raise it."""
    off: float = 0.9
    """Only scores below this clear it."""
    raise_after_s: float = 0.0
    clear_after_s: float = 30.0
    on: bool = False
    began: float | None = None
    """Since when scores have been such that they change the level if they continue; None: they are not."""

    def see(self, score: float | None, now: float) -> float | None:
        """Shows the level a score. Returns when the change began; None: no change. A score of None means that there is
        nothing to judge by: it raises nothing, and clears a raised level in time."""
        if self.on:
            changing, after_s = score is None or score < self.off, self.clear_after_s
        else:
            changing, after_s = score is not None and score >= self.at, self.raise_after_s
        if not changing:
            self.began = None
            return None
        if self.began is None:
            self.began = now
        if now - self.began < after_s:
            return None
        began, self.began, self.on = self.began, None, not self.on
        return began


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertChange:
    """An alert that was raised, eased or cleared."""

    alert: str
    lane: str
    """The lane; empty: the alert is about all lanes."""
    was: Severity
    severity: Severity
    value: float | None
    """The value; None: there is nothing to judge by any more."""
    bound: float
    since: float
    """When the change began."""
    at: float
    message: str
    """For people: the problem, and where to look."""


@dataclass(slots=True, eq=False)
class Alert:
    """One watched figure and its severity."""

    name: str
    lane: str
    steps: tuple[AlertLevel, ...]
    """The levels, each severity once. The worst level that is on decides."""
    tell: Callable[["Alert"], str]
    """Returns the message about the alert's present state."""
    value: float | None = None
    bound: float = 0.0
    count: int = 0
    """Number of requests or replicas behind `value`."""
    severity: Severity = Severity.OK
    since: float | None = None
    """When the severity last changed; None: never."""
    easing: bool = False
    """The alert is raised although its last score would not raise it: it is cleared, or eased, if that continues."""

    def see(
        self, value: float | None, bound: float, count: int, scores: Sequence[float | None], now: float
    ) -> AlertChange | None:
        """Shows the alert one score per level. Returns the change; None: no change."""
        self.value, self.bound, self.count = value, bound, count
        began = [step.see(score, now) for step, score in zip(self.steps, scores, strict=True)]
        worst = max((step.severity for step in self.steps if step.on), key=_RANKS.__getitem__, default=Severity.OK)
        self.easing = any(
            step.on and step.severity is worst and (score is None or score < step.at)
            for step, score in zip(self.steps, scores, strict=True)
        )
        if worst is self.severity:
            return None
        was, self.severity, self.since = self.severity, worst, now
        since = min(moment for moment in began if moment is not None)
        return AlertChange(
            alert=self.name,
            lane=self.lane,
            was=was,
            severity=worst,
            value=value,
            bound=bound,
            since=since,
            at=now,
            message=self.tell(self),
        )
