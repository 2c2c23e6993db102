"""Which was the longest step since then? Asked once for each answer, so it must not look at every step."""

from bisect import bisect_right

MOST = 4096
"""Remembered at most; the oldest half is forgotten beyond it."""


class Longest:
    """Only steps that no later one has exceeded are remembered: the first of them since a moment is the longest."""

    __slots__ = ("_numbers", "_seconds")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._seconds: list[float] = []

    def add(self, number: int, seconds: float) -> None:
        """Steps up to this number took at most so long. Numbers only grow."""
        numbers, known = self._numbers, self._seconds
        while known and known[-1] <= seconds:
            known.pop()
            numbers.pop()
        numbers.append(number)
        known.append(seconds)
        if len(known) > MOST:
            del numbers[: MOST // 2], known[: MOST // 2]

    def since(self, number: int) -> float:
        """Of the steps after this one; 0: there was none."""
        at = bisect_right(self._numbers, number)
        return self._seconds[at] if at < len(self._seconds) else 0.0
