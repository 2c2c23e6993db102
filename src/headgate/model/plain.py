"""Numbers as people write them: so many digits that count, and never an exponent."""

from decimal import Decimal
from math import isfinite
from typing import Final

MOST: Final = 1e15
"""Nobody reads so many digits."""


def plain(value: float, digits: int = 3) -> str:
    """12.3, 0.000012, 1234: digits before the point are all written. `1e+03` is for machines."""
    if not isfinite(value) or abs(value) >= MOST:
        return f"{value:g}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{Decimal(f'{value:.{digits}g}').normalize():f}" if value else "0"
