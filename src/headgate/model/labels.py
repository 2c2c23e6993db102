"""How many different names may figures have? Names come from clients, and each costs a series everywhere it is kept."""

from collections.abc import Iterable

OTHER = "other"
LONGEST = 256
"""A longer name than this is nobody's: it is `other` from the first."""


class Cap:
    """The first so many names keep their own; any more are `other`."""

    __slots__ = ("_known", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: set[str] = set()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, value: str) -> str:
        """Its own name if it has one or there is room for it."""
        if value in self._known:
            return value
        if value == OTHER or len(self._known) >= self.most or len(value) > LONGEST:
            return OTHER
        self._known.add(value)
        return value

    def known(self, value: str) -> str:
        """Its own name if it has one; it gets none by asking. For names that nobody has vouched for."""
        return value if value in self._known else OTHER

    def keep(self, values: Iterable[str]) -> None:
        """Make room: all but these are forgotten."""
        self._known.intersection_update(values)
