"""Finds the longest step since a given one. It is asked once for each answer, so it must not look at every step."""

from bisect import bisect_right

MOST = 4096
"""Maximum steps remembered; beyond it the oldest half is forgotten."""


class Longest:
    """Remembers only steps that no later step has exceeded: the first of them since a moment is the longest."""

    __slots__ = ("_numbers", "_seconds")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._seconds: list[float] = []

    def add(self, number: int, seconds: float) -> None:
        """Adds steps up to this number, which took at most `seconds` each. Numbers only grow."""
        numbers, known = self._numbers, self._seconds
        while known and known[-1] <= seconds:
            known.pop()
            numbers.pop()
        numbers.append(number)
        known.append(seconds)
        if len(known) > MOST:
            del numbers[: MOST // 2], known[: MOST // 2]

    def since(self, number: int) -> float:
        """Returns the seconds of the longest step after this one; 0: there was none."""
        at = bisect_right(self._numbers, number)
        return self._seconds[at] if at < len(self._seconds) else 0.0
