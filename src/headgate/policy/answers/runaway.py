"""Detects an answer that only repeats itself.

A model that has run away repeats the same text until something stops it. The detector reads the text as it passes, so
it works with any engine. It follows one candidate at a time: the last few bytes occurred before, `period` bytes ago. As
long as every new byte equals the byte a period earlier, the evidence grows; the first that differs ends the candidate.
Every few bytes it looks for a new candidate, among the last few thousand bytes. So the cost of a token is constant: a
comparison of its bytes, and now and then a search in a bounded window.

Digits are ignored: `17. The sea is blue. 18. The sea is blue.` goes nowhere either. But only the numbers of list items
may differ; logs, tables and songs count upwards too, and are no runaways.

How much evidence is enough depends on the unit that repeats. A sentence that comes for the fourth time is no accident;
but tables, pictures, zeros and refrains repeat short and simple units on purpose, and need far more evidence. So do
lines that were asked for: forms, checklists, logs, rounds, prayers (`policy/answers/grown.py`). And where the prompt
says how often (`policy/answers/asked.py`), that often is not enough.
"""

import re
from collections.abc import Callable
from typing import Final

from headgate.config.output import Runaway
from headgate.policy.answers.grown import has_grown, is_prayer, is_stuck, is_stuck_list
from headgate.policy.answers.repeat_kind import (
    CIRCLES,
    CLAUSES,
    ITEMS,
    LEAST,
    LINES,
    MIXED,
    PHRASES,
    SENTENCES,
    kind_of,
)

KEY: Final = 16
"""Bytes at the end of the text that must have occurred before, for a candidate."""
LOOK_EVERY: Final = 32
"""Bytes between two searches for a candidate."""
WINDOW: Final = 4096
"""Minimum bytes that are remembered; longer periods are not noticed."""

_ITEM: Final = re.compile(rb"((?:\n|\\n)[ *#-]*)(\d+)(?=[.)])")
"""The number of a list item, and the text before it; in JSON a line break may be two characters."""
_MARKED: Final = 8
"""Bytes that a line break and the mark of a list item have before its number."""
_FENCE: Final = b"```"
_BEFORE: Final = 2048
"""Bytes before the repetition that are read to tell whether it was asked for."""
_MASK: Final = bytes.maketrans(b"123456789", b"000000000")


class Detector:
    __slots__ = ("_asked", "_fences", "_needed", "_said", "_text", "_times", "_unlooked", "matched", "period", "share")

    def __init__(self, setting: Runaway = "safe", asked: Callable[[], int] | None = None) -> None:
        """`asked` tells how often the prompt asks for something to be said; 0: it does not say. It is called once, if
        the text repeats enough; None: unknown."""
        self._asked = asked
        self._times = 0
        """Times that the prompt asks for, once that has been looked up."""
        self.share = 0.5 if setting == "quick" else 1.0
        """Share of the usual evidence that is enough: 0.5 with `quick`, for operators who know more than the text
        tells; else 1."""
        self._said = bytearray()
        self._text = bytearray()
        """`_said` with all digits replaced by 0."""
        self._fences = 0
        """Code fences in the text that is no longer remembered."""
        self._unlooked = 0
        self._needed = 0.0
        """Matched bytes at which the unit is examined; once it has been, the bytes that are enough."""
        self.period = 0
        """The candidate's period in bytes; 0: there is no candidate."""
        self.matched = 0
        """Bytes at the end of the text that equal those a period earlier, apart from digits."""

    def hear(self, piece: bytes) -> bool:
        """Takes the next piece of text. True: the answer has run away."""
        text, size, key = self._text, len(piece), KEY
        if not size:
            return False
        self._said += piece
        text += piece.translate(_MASK)
        if self.period:
            if text.endswith(text[-size - self.period : -self.period]):
                self.matched += size
                return self.matched >= self._needed * self.share and self._enough()
            self.period = 0
            # Look again at once: the end that differs may point to where a larger unit began.
            if self.matched >= LEAST:
                key = LEAST + size
        else:
            self._unlooked += size
            if self._unlooked < LOOK_EVERY:
                return False
        self._unlooked = 0
        if len(text) > 2 * WINDOW:
            self._fences += self._said.count(_FENCE, 0, len(self._said) - WINDOW)
            del text[:-WINDOW]
            del self._said[:-WINDOW]
        return self._look(key) and self.matched >= self._needed * self.share and self._enough()

    @property
    def patience(self) -> int:
        """Approximate bytes that must come before another verdict is possible."""
        if self.period:
            return max(1, int(self._needed * self.share) - self.matched)
        return max(LOOK_EVERY - self._unlooked, LEAST - len(self._text))

    def _look(self, key: int) -> bool:
        """Whether there is a candidate: the last `key` bytes occurred before, or else the last KEY bytes."""
        text = self._text
        size = len(text)
        at = text.rfind(text[-key:], max(0, size - WINDOW), size - 1)
        if at < 0 and key > KEY:
            key = KEY
            at = text.rfind(text[-key:], max(0, size - WINDOW), size - 1)
        if at < 0:
            return False
        self.period = size - key - at
        self.matched = _agreement(text, self.period)
        self._needed = max(CLAUSES.times * self.period, CLAUSES.least)  # less is never enough
        return True

    def _enough(self) -> bool:
        said, period = self._said, self.period
        unit = said[-period:].decode("utf-8", "ignore")
        kind = kind_of(unit)
        self._needed = max(kind.times * period, kind.least)
        compared = self.matched
        if said[-compared:] != said[-compared - period : -period]:
            # Numbers change somewhere in there. Only the text since they stopped changing is evidence; but the numbers
            # of list items may change.
            items = kind is SENTENCES or kind is CIRCLES or kind is ITEMS
            whole = bytearray(_ITEM.sub(_zeros, said[-compared - period - _MARKED :])) if items else said
            exact = whole[-KEY:] == whole[-KEY - period : -period]
            self.matched = min(compared, _agreement(whole, period)) if exact else 0
        prose = kind is SENTENCES or kind is PHRASES
        if (prose or kind is ITEMS) and self.matched < self._needed * self.share:
            few = max(CLAUSES.times * period, CLAUSES.least)
            if self.matched < few * self.share:
                self._needed = few
            elif is_stuck(*self._origin()) if prose else is_stuck_list(*self._origin()):
                self._needed = few
                return self._more_than_asked()
        if self.matched < self._needed * self.share:
            return False
        if (prose and not self._has_grown()) or (kind is MIXED and (self._in_code() or is_prayer(unit))):
            self._needed = max(LINES.times * period, LINES.least)
        return self.matched >= self._needed * self.share and self._more_than_asked()

    def _more_than_asked(self) -> bool:
        """Whether the unit has been said more often than the prompt asks for."""
        asked, self._asked = self._asked, None
        if asked is not None:
            self._times = asked()
        if not self._times:
            return True
        self._needed = max(self._needed, (self._times + 1) * self.period / self.share)
        return self.matched >= self._needed * self.share

    def _has_grown(self) -> bool:
        """Whether the prose that repeats has grown out of the text before it."""
        before, unit = self._origin()
        return not ("\n" in unit and self._in_code()) and has_grown(before, unit)

    def _in_code(self) -> bool:
        """Whether the first occurrence of the unit begins within a fence."""
        return (self._fences + self._said.count(_FENCE, 0, self._start())) % 2 == 1

    def _origin(self) -> tuple[str, str]:
        """The text before the first occurrence of the unit, and that occurrence."""
        said, start = self._said, self._start()
        before, unit = said[max(0, start - _BEFORE) : start], said[start : start + self.period]
        return before.decode("utf-8", "ignore"), unit.decode("utf-8", "ignore")

    def _start(self) -> int:
        """Where the first occurrence of the unit begins."""
        return max(0, len(self._said) - self.matched - self.period)


def _zeros(found: re.Match[bytes]) -> bytes:
    return found[1] + b"0" * len(found[2])


def _agreement(text: bytearray, period: int) -> int:
    """Number of bytes at the end that equal those a period earlier, found in leaps that grow, then shrink."""
    end = len(text)
    most, length, leap = end - period, KEY, KEY
    while leap and length < most:
        leap = min(leap, most - length)
        here = end - length
        if text[here - leap : here] == text[here - period - leap : here - period]:
            length += leap
            leap *= 2
        else:
            leap //= 2
    return length
