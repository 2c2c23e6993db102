"""Does this answer only repeat itself?

A model that has run away says the same again and again until something stops it. The text is looked at as it passes,
so it does not matter who generates it. One candidate is followed at a time: the last few bytes have been said before,
some `period` ago. As long as every new byte is what was said a period earlier, the evidence grows; the first that is
not ends the candidate. A new one is looked for every few bytes, among the last few thousand. So the cost of a token is
constant: a comparison of its bytes, and now and then a search in a bounded window.

Numbers are looked past: `17. The sea is blue. 18. The sea is blue.` goes nowhere either. But only numbers of a list may
differ; logs, tables and songs count as well, and are none of our business.

How much evidence is enough depends on what repeats. A sentence that is being said for the fourth time is no accident;
but tables, pictures, zeros and refrains repeat what is short and simple on purpose, and need far more.
"""

import re
from typing import Final

from headgate.model.output_config import Runaway

KEY: Final = 16
"""Bytes that must have been said before for a candidate."""
LOOK_EVERY: Final = 32
"""Bytes between two searches for a candidate."""
WINDOW: Final = 4096
"""Bytes that are remembered at least; longer periods are not noticed."""

_WORD: Final = re.compile(r"[\u2e80-\u9fff\uac00-\ud7ff]|[^\W\d_]{2,}")
"""A word, or one character of a script that has no spaces."""
_LETTER: Final = re.compile(r"[^\W\d_]")
_SPACE: Final = re.compile(r"\s|\\n")
_NUMBER: Final = re.compile(r"\d+")
_OF_A_LIST: Final = re.compile(r"(?:\n|\\n)[ *#-]*\Z")
"""What stands before the number of an item; in JSON a line's end may be two characters."""
_MASK: Final = bytes.maketrans(b"123456789", b"000000000")
LEAST: Final = 96
"""No unit is so telling that fewer bytes would do."""


class Kind:
    """How much is enough, for units of one kind: so many times the unit, and at least so many bytes."""

    __slots__ = ("least", "times")

    def __init__(self, times: float, least: int) -> None:
        self.times = times
        self.least = least


SENTENCES: Final = Kind(2.75, LEAST)
"""Some different words, and hardly anything else. Near the end of its fourth time."""
PHRASES: Final = Kind(8.0, 500)
"""A few words: choruses fade out, programs try again."""
STAMMER: Final = Kind(8.0, 320)
"""Parts of a word: `_list_list_list`. Laughter, and a long no, are shorter."""
PATTERNS: Final = Kind(16.0, 3000)
"""Anything else: rows of a table, zeros, bricks of a wall."""


class Detector:
    __slots__ = ("_needed", "_said", "_text", "_unlooked", "matched", "period", "share")

    def __init__(self, setting: Runaway = "safe") -> None:
        self.share = 0.5 if setting == "quick" else 1.0
        """Of the evidence that would be enough, what is: less for whoever knows more than the text."""
        self._said = bytearray()
        self._text = bytearray()
        """The same with all its digits alike."""
        self._unlooked = 0
        self._needed = 0.0
        """Bytes at which to look at the unit, or, once that is done, which are enough."""
        self.period = 0
        """Of the candidate, in bytes; 0: there is none."""
        self.matched = 0
        """Bytes up to the end that are what was said a period earlier, but for digits."""

    def hear(self, piece: bytes) -> bool:
        """Take what comes next. True: it has run away."""
        text, size = self._text, len(piece)
        if not size:
            return False
        self._said += piece
        text += piece.translate(_MASK)
        if self.period:
            if text.endswith(text[-size - self.period : -self.period]):
                self.matched += size
                return self.matched >= self._needed * self.share and self._enough()
            self.period = 0
            # Look again at once: now that the end differs, it may point to where the larger unit began.
        else:
            self._unlooked += size
            if self._unlooked < LOOK_EVERY:
                return False
        self._unlooked = 0
        if len(text) > 2 * WINDOW:
            del text[:-WINDOW]
            del self._said[:-WINDOW]
        return self._look() and self.matched >= self._needed * self.share and self._enough()

    @property
    def patience(self) -> int:
        """Bytes that have to come before another verdict is possible, about."""
        if self.period:
            return max(1, int(self._needed * self.share) - self.matched)
        return max(LOOK_EVERY - self._unlooked, LEAST - len(self._text))

    def _look(self) -> bool:
        """Whether there is a candidate."""
        text = self._text
        size = len(text)
        at = text.rfind(text[-KEY:], max(0, size - WINDOW), size - 1)
        if at < 0:
            return False
        self.period = size - KEY - at
        self.matched = _agreement(text, self.period)
        self._needed = float(LEAST)
        return True

    def _enough(self) -> bool:
        said, period = self._said, self.period
        unit = said[-period:].decode("utf-8", "ignore")
        kind = kind_of(unit)
        self._needed = max(kind.times * period, kind.least)
        compared = min(self.matched, len(said) - period)
        if said[-compared:] != said[-compared - period : -period] and not (kind is SENTENCES and numbered(unit)):
            # Numbers count on somewhere in there. What has been said since they stopped is evidence, the rest is none.
            exact = said[-KEY:] == said[-KEY - period : -period]
            self.matched = min(compared, _agreement(said, period)) if exact else 0
        return self.matched >= self._needed * self.share


def kind_of(unit: str) -> Kind:
    """`unit` begins and ends anywhere: only said again and again it has all its words, and the first and last are
    parts."""
    times = 2 + 32 // max(1, len(unit))
    words = _WORD.findall(unit * times)[1:-1]
    different = len(set(words))
    spaces = min(float(unit.count(" ")), len(words) / (times - 1))
    share = (len(_LETTER.findall(unit)) + spaces) / max(1, len(unit))
    if share < 0.8:
        return PATTERNS
    if different >= 6 or (different >= 4 and len(unit) >= 60):
        return SENTENCES
    if not _SPACE.search(unit):
        return STAMMER if len(set(unit)) >= 3 else PATTERNS
    return PHRASES if different >= 3 or share >= 0.95 else PATTERNS


def numbered(unit: str) -> bool:
    """Whether all its numbers are those of a list's items."""
    twice = unit + unit
    for found in _NUMBER.finditer(twice):
        start, end = found.span()
        if start == 0 or end == len(twice):
            continue  # cut in two: the whole of it is in the middle
        if twice[end] not in ".)" or not _OF_A_LIST.search(twice, max(0, start - 8), start):
            return False
    return True


def _agreement(text: bytearray, period: int) -> int:
    """How many bytes at the end are what was said a period earlier: in leaps that grow, then shrink."""
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
