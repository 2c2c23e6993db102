"""Feeds the events of an answer to the repetition detector, as seldom as possible.

Nearly all answers are ordinary, and most are short. So events are only collected until they can matter: until the
detector could reach another verdict, at the number of bytes that an event of this answer usually has. Then they are
read together.
"""

from typing import Final

from headgate.gateway.answer.output import plain, text_of
from headgate.policy.answers.runaway import Detector

FIRST: Final = 2
"""Events before the first look: the bytes per event are not known yet."""
MOST: Final = 32
"""Maximum events between two looks."""
MOST_IN_DOUBT: Final = 4
"""The same while there is a candidate repetition: the repeating unit may change at any time."""


class Repeats:
    __slots__ = ("_detector", "_due", "_waiting", "heard")

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._waiting: list[bytes] = []
        """Events that have come and were not read yet."""
        self._due = 1 if detector.period else FIRST
        """Number of waiting events at which they are read."""
        self.heard = 0
        """Number of events of the last `hear` that were read until the runaway was detected."""

    def hear(self, events: list[bytes]) -> bool:
        """Takes the next events. True: the answer has run away."""
        waiting = self._waiting
        before = len(waiting)
        waiting += events
        if len(waiting) < self._due:
            return False
        looked_at = 0
        while len(waiting) - looked_at >= self._due:
            end = looked_at + self._due
            if self._look(waiting[looked_at:end]):
                self.heard = end - before
                waiting.clear()  # the caller may let it continue, if the replica has ended the answer itself
                return True
            looked_at = end
        del waiting[:looked_at]
        return False

    def _look(self, events: list[bytes]) -> bool:
        detector = self._detector
        pieces = [text_of(event) for event in events]
        size = 0
        for piece in pieces if detector.period else [b"".join(pieces)]:
            size += len(piece)
            if detector.hear(piece if 92 not in piece else plain(piece)):  # a backslash
                return True
        each = size // len(events)  # an event of several tokens has more bytes
        most = MOST_IN_DOUBT if detector.period else MOST
        self._due = max(1, min(most, detector.patience // each)) if each else FIRST
        return False
