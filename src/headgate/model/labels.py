"""Writes labels and numbers for people. The number of different labels is capped: names come from clients, and each
costs a series wherever figures are kept."""

from collections.abc import Iterable
from decimal import Decimal
from math import isfinite
from typing import Final

PLAIN_BELOW: Final = 1e15
"""Values from here on are written with an exponent: they have more digits than a person reads."""
OTHER = "other"
LONGEST = 256
"""Maximum characters of a name with a label of its own; a longer one is `other`."""


class Cap:
    """The first `most` names keep their own label; all further ones become `other`."""

    __slots__ = ("_known", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: set[str] = set()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, value: str) -> str:
        """The name's own label if it has one or there is room for it, else `other`."""
        if value in self._known:
            return value
        if value == OTHER or len(self._known) >= self.most or len(value) > LONGEST:
            return OTHER
        self._known.add(value)
        return value

    def known(self, value: str) -> str:
        """The name's own label if it has one, else `other`. Reserves no label, so it suits unverified names."""
        return value if value in self._known else OTHER

    def keep(self, values: Iterable[str]) -> None:
        """Forgets all names but these, to make room."""
        self._known.intersection_update(values)


def plain(value: float, digits: int = 3) -> str:
    """Returns 12.3, 0.000012 or 1234: all digits before the point are written, never `1e+03`."""
    if not isfinite(value) or abs(value) >= PLAIN_BELOW:
        return f"{value:g}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{Decimal(f'{value:.{digits}g}').normalize():f}" if value else "0"
