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
from unicodedata import category

from headgate.config.output import Runaway
from headgate.policy.answers.grown import has_grown, is_prose

KEY: Final = 16
"""Bytes at the end of the text that must have occurred before, for a candidate."""
LOOK_EVERY: Final = 32
"""Bytes between two searches for a candidate."""
WINDOW: Final = 4096
"""Minimum bytes that are remembered; longer periods are not noticed."""

_MARKS: Final = "".join(chr(at) for at in range(0x300, 0x1B00) if category(chr(at)) in ("Mn", "Mc")) + "\u200c\u200d"
"""Vowels and tones that are written on a letter: parts of a word, but not letters by themselves."""
_MARK: Final = re.compile(f"[{_MARKS}]")
_WORD: Final = re.compile(rf"[\u2e80-\u9fff\uac00-\ud7ff]|(?:[^\W\d_]|[{_MARKS}]){{2,}}")
"""A word, or one character of a script in which a character is as much as a word."""
_ASCII_WORD: Final = re.compile("[A-Za-z]{2,}")
_UNSPACED: Final = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
"""A letter of Thai, Lao, Burmese or Khmer, which have words of letters and no spaces between them."""
_LETTERS_EACH: Final = 5
"""Letters assumed per word of such a script."""
_SPACE: Final = re.compile(r"\s|\\n")
_NAME: Final = re.compile(r'(?:^|,)\s*"[^"\n]{2,}"\s*:', re.MULTILINE)
"""The name of a member of a JSON object."""
_BRACKET: Final = re.compile(r"[][{}]")
_ITEM: Final = re.compile(rb"((?:\n|\\n)[ *#-]*)(\d+)(?=[.)])")
"""The number of a list item, and the text before it; in JSON a line break may be two characters."""
_FENCE: Final = b"```"
_BEFORE: Final = 2048
"""Bytes before the repetition that are read to tell whether it was asked for."""
_MASK: Final = bytes.maketrans(b"123456789", b"000000000")
LEAST: Final = 96
"""Minimum bytes of evidence for any unit."""


class RepeatKind:
    """The evidence that is enough for units of one kind: `times` the length of the unit, and at least `least` bytes."""

    __slots__ = ("least", "times")

    def __init__(self, times: float, least: int) -> None:
        self.times = times
        self.least = least


SENTENCES: Final = RepeatKind(2.75, LEAST)
"""Several different words, and hardly anything else. Enough near the end of the fourth occurrence."""
MEMBERS: Final = RepeatKind(2.75, LEAST)
"""Members of one JSON object: no object has the same names again and again."""
LINES: Final = RepeatKind(24.0, 1200)
"""Equal lines that may have been asked for: a sentence ten times, a form, test data."""
PHRASES: Final = RepeatKind(8.0, 700)
"""A few words: choruses fade out, programs try again."""
MAX_STAMMER: Final = 32
"""Maximum characters of a unit that counts as parts of a word."""
STAMMER: Final = RepeatKind(8.0, 320)
"""Parts of a word: `_list_list_list`. Laughter and a long no are shorter."""
PATTERNS: Final = RepeatKind(16.0, 3000)
"""Anything else: rows of a table, zeros, bricks of a wall."""


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
        self._needed = float(LEAST)
        return True

    def _enough(self) -> bool:
        said, period = self._said, self.period
        unit = said[-period:].decode("utf-8", "ignore")
        kind = kind_of(unit)
        self._needed = max(kind.times * period, kind.least)
        compared = min(self.matched, len(said) - period)
        if said[-compared:] != said[-compared - period : -period]:
            # Numbers change somewhere in there. Only the text since they stopped changing is evidence; but the numbers
            # of list items may change.
            whole = bytearray(_ITEM.sub(_zeros, said[-compared - period :])) if kind is SENTENCES else said
            exact = whole[-KEY:] == whole[-KEY - period : -period]
            self.matched = min(compared, _agreement(whole, period)) if exact else 0
        if self.matched < self._needed * self.share:
            return False
        if (kind is SENTENCES or kind is PHRASES) and not self._has_grown():
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
        said = self._said
        start = max(0, len(said) - self.matched - self.period)
        before, unit = said[max(0, start - _BEFORE) : start], said[start : start + self.period]
        if b"\n" in unit and (self._fences + said.count(_FENCE, 0, start)) % 2:
            return False  # lines of code
        return has_grown(before.decode("utf-8", "ignore"), unit.decode("utf-8", "ignore"))


def kind_of(unit: str) -> RepeatKind:
    """The kind of a repeating unit. It may begin and end within a word, so its words are counted in several copies of
    it, without the first and last word."""
    if '":' in unit and not _BRACKET.search(unit) and _NAME.search(unit + unit):
        return MEMBERS
    simple, size, gaps = unit.isascii(), max(1, len(unit)), unit.count(" ")
    letters = sum(map(str.isalpha, unit)) + (0 if simple else len(_MARK.findall(unit)))
    if letters + gaps < 0.8 * size:
        return PATTERNS
    times = 2 + 32 // size
    words = (_ASCII_WORD if simple else _WORD).findall(unit * times)[1:-1]
    different = len(set(words)) + (0 if simple else len(_UNSPACED.findall(unit)) // _LETTERS_EACH)
    share = (letters + min(float(gaps), len(words) / (times - 1))) / size
    if share < 0.8:
        return PATTERNS
    solid = not _SPACE.search(unit)
    if simple and solid and size > MAX_STAMMER:
        return PATTERNS  # base64 and the like: words of our alphabet have spaces between them
    if different >= 6 or (different >= 4 and len(unit) >= 60):
        return SENTENCES if is_prose(unit) else LINES
    if solid:
        return STAMMER if len(set(unit)) >= 3 else PATTERNS
    if different >= 3 or share >= 0.95:
        return PHRASES if is_prose(unit) else LINES
    return PATTERNS


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
