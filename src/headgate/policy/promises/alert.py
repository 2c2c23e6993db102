"""Has it been bad for long enough to say so, and good for long enough to say that?

An alert that comes and goes with every reading is soon ignored. So each severity has two lines, one that a score must
reach to raise it and a lower one that it must stay below, for a while, to clear it.
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
    """One severity, on or off. What it is shown is a score: the value as a share of its bound."""

    severity: Severity
    at: float = 1.0
    """Scores from here on raise it."""
    off: float = 0.9
    """Only scores below clear it."""
    raise_after_s: float = 0.0
    clear_after_s: float = 30.0
    on: bool = False
    began: float | None = None
    """Since when scores have been such that they will change it, if they stay so."""

    def see(self, score: float | None, now: float) -> float | None:
        """When what changed it began; None: nothing changed. A score of None says that there is nothing to judge by:
        that raises nothing, and clears in time what was raised."""
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
    """Empty: it is about all of them."""
    was: Severity
    severity: Severity
    value: float | None
    """None: there is nothing to judge by any more."""
    bound: float
    since: float
    """When what changed it began."""
    at: float
    message: str
    """For people: what is the matter, and where to look."""


@dataclass(slots=True, eq=False)
class Alert:
    """One thing that is watched, and how bad it is."""

    name: str
    lane: str
    steps: tuple[AlertLevel, ...]
    """Each severity once. Those that are on count, the worst of them decides."""
    tell: Callable[["Alert"], str]
    """What to say about it as it is now."""
    value: float | None = None
    bound: float = 0.0
    count: int = 0
    """What `value` is made of."""
    severity: Severity = Severity.OK
    since: float | None = None
    """When it last changed; None: it never has."""
    easing: bool = False
    """It is raised, and what it was last shown would not raise it: it is cleared, or eased, if that stays so."""

    def see(
        self, value: float | None, bound: float, count: int, scores: Sequence[float | None], now: float
    ) -> AlertChange | None:
        """One score for each step. Says what has changed, if anything has."""
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
