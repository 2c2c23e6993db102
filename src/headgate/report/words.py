"""Writes figures for people to read: three significant digits, and a unit that fits."""

from math import inf

from headgate.report.results import FIGURES
from headgate.report.statistics import Estimate

NBSP = "\N{NARROW NO-BREAK SPACE}"


def level_name(level: float) -> str:
    return f"p{level * 100:.10g}"


def figure_name(figure: str) -> str:
    return FIGURES.get(figure, figure)


def ms(seconds: float) -> str:
    """Milliseconds with three significant digits."""
    value = seconds * 1e3
    if abs(value) >= 100:
        return count(round(value))
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def ms_or_missed(seconds: float) -> str:
    """A percentile over all arrivals: `missed` where it falls on a request that got no answer."""
    return "missed" if seconds == inf else ms(seconds)


def interval_ms(estimate: Estimate) -> str:
    """The interval in milliseconds; empty: there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{ms(estimate.low)}–{ms(estimate.high)}"


def interval_short(estimate: Estimate) -> str:
    """The interval in at most twelve characters: in milliseconds up to a second, then in seconds or minutes."""
    if estimate.low is None or estimate.high is None:
        return ""
    longest = max(abs(estimate.low), abs(estimate.high))
    if longest < 1:
        return interval_ms(estimate)
    scale, unit = (1.0, "s") if longest < 999.5 else (60.0, "min")
    return f"{_three(estimate.low / scale)}–{_three(estimate.high / scale)}{NBSP}{unit}"


def _three(value: float) -> str:
    """Three significant digits."""
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def count(number: int) -> str:
    """The number in groups of three digits."""
    return f"{number:,}".replace(",", NBSP)


def rate(per_s: float) -> str:
    if per_s >= 1000:
        return count(round(per_s))
    return f"{per_s:.0f}" if per_s >= 100 else f"{per_s:.1f}" if per_s >= 10 else f"{per_s:.2f}"


def percent(share: float) -> str:
    """A share in percent; 0.9995 is not shown as 100 %."""
    value = share * 100
    if value in (0.0, 100.0):
        return f"{value:.0f}{NBSP}%"
    digits = 1 if 1 <= value <= 99 else 2
    return f"{min(max(value, 0.01), 99.99):.{digits}f}{NBSP}%"
