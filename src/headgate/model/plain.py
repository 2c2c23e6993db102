"""Writes numbers as people do: a fixed number of significant digits, never an exponent."""

from decimal import Decimal
from math import isfinite
from typing import Final

MOST: Final = 1e15
"""Values from here on are written with an exponent: they have more digits than a person reads."""


def plain(value: float, digits: int = 3) -> str:
    """Returns 12.3, 0.000012 or 1234: all digits before the point are written, never `1e+03`."""
    if not isfinite(value) or abs(value) >= MOST:
        return f"{value:g}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{Decimal(f'{value:.{digits}g}').normalize():f}" if value else "0"
