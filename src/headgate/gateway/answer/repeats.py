"""Do the events of an answer only repeat themselves? Asked as seldom as the answer allows.

Nearly all answers are ordinary, and most are short. So events are only collected until they can matter: as many as it
takes, by what an event of this answer usually brings, until the detector could come to another verdict. Then they are
read together.
"""

from typing import Final

from headgate.gateway.answer.output import plain, text_of
from headgate.policy.answers.runaway import Detector

FIRST: Final = 2
"""Events before the first look: it is not known yet how much one brings."""
MOST: Final = 32
"""Events between two looks."""
MOST_IN_DOUBT: Final = 4
"""The same while something has been said twice: what it is that repeats may change any moment."""


class Repeats:
    __slots__ = ("_detector", "_due", "_waiting", "heard")

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._waiting: list[bytes] = []
        """Events that have come and were not looked at."""
        self._due = 1 if detector.period else FIRST
        """With so many of them they are."""
        self.heard = 0
        """Of the events that came last, how many it took to tell that it has run away."""

    def hear(self, events: list[bytes]) -> bool:
        """Take what comes next. True: it has run away."""
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
                waiting.clear()  # whoever hears this may let it go on: the replica has ended it itself
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
        each = size // len(events)  # an event of several tokens brings more
        most = MOST_IN_DOUBT if detector.period else MOST
        self._due = max(1, min(most, detector.patience // each)) if each else FIRST
        return False
