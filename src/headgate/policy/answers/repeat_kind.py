"""Decides what kind of text a repeating unit is, and how much repetition of it is enough.

A sentence that comes for the fourth time is no accident; but tables, pictures, zeros and refrains repeat short and
simple units on purpose, and need far more evidence.
"""

import re
from typing import Final
from unicodedata import category

from headgate.policy.answers.grown import is_mixed, is_prose

_MARKS: Final = "".join(chr(at) for at in range(0x300, 0x1B00) if category(chr(at)) in ("Mn", "Mc")) + "\u200c\u200d"
"""Vowels and tones that are written on a letter: parts of a word, but not letters by themselves."""
_MARK: Final = re.compile(f"[{_MARKS}]")
_WORD: Final = re.compile(rf"[\u2e80-\u9fff\uac00-\ud7ff]|(?:[^\W\d_]|[{_MARKS}]){{2,}}")
"""A word, or one character of a script in which a character is as much as a word."""
_ARTICLE: Final = re.compile(r"(?:^|\s)[^\W\d_]\s")
"""A word of one letter, as in `a broken clock`."""
_ASCII_WORD: Final = re.compile("[A-Za-z]{2,}")
_UNSPACED: Final = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
"""A letter of Thai, Lao, Burmese or Khmer, which have words of letters and no spaces between them."""
_LETTERS_EACH: Final = 5
"""Letters assumed per word of such a script."""
_SPACE: Final = re.compile(r"\s|\\n")
_NAME: Final = re.compile(r'(?:^|,)\s*"[^"\n]{2,}"\s*:', re.MULTILINE)
"""The name of a member of a JSON object."""
_BRACKET: Final = re.compile(r"[][{}]")
_IMPORT: Final = re.compile(r"\s*(?:(?:import|from)\s+[\w.{*\"']|#include\s|using\s+[\w.]+;|use\s+\w+::)")
"""A line of code that names what is used."""
_MARKER: Final = re.compile(r"\s*(?:([-*•|])\s|\d+([.)])\s)")
"""What a line of a list or a table begins with."""
_BLANK: Final = re.compile(r"__|\[.?\]|(?:[:…]|\.\.\.)\Z")
"""A line to be filled in."""
LEAST: Final = 96
"""Minimum bytes of evidence for most units."""


class RepeatKind:
    """The evidence that is enough for units of one kind: `times` the length of the unit, and at least `least` bytes."""

    __slots__ = ("least", "times")

    def __init__(self, times: float, least: int) -> None:
        self.times = times
        self.least = least


SENTENCES: Final = RepeatKind(2.65, LEAST)
"""Several different words, and hardly anything else. Enough near the end of the fourth occurrence."""
MEMBERS: Final = RepeatKind(2.65, LEAST)
"""What is said once: members of one JSON object, imports of one file. Neither has the same names again and again."""
CIRCLES: Final = RepeatKind(2.65, LEAST)
"""Several different items of one list, or rows of one table, in the same order: it goes in circles."""
MIXED: Final = RepeatKind(2.65, LEAST)
"""Paragraphs with headings, lists or code between them."""
LINES: Final = RepeatKind(24.0, 1200)
"""Equal lines that may have been asked for: a sentence ten times, a form, test data."""
ITEMS: Final = RepeatKind(24.0, 1200)
"""One or a few items of a list. Less is enough where many others came before."""
CLAUSES: Final = RepeatKind(2.65, 44)
"""A few words in which a sentence or a stanza got stuck."""
PHRASES: Final = RepeatKind(8.0, 700)
"""A few words: choruses fade out, programs try again."""
MAX_STAMMER: Final = 32
"""Maximum characters of a unit that counts as parts of a word."""
STAMMER: Final = RepeatKind(8.0, 320)
"""Parts of a word: `_list_list_list`. Laughter and a long no are shorter."""
PATTERNS: Final = RepeatKind(16.0, 3000)
"""Anything else: rows of a table, zeros, bricks of a wall."""
CIRCLE_OF_ITEMS: Final = (4, 8)
"""Minimum different items, and words in them, of a list that goes in circles: rows of knitting come in turn, and people
who share some tasks."""
CIRCLE_OF_ROWS: Final = (3, 5)
"""The same for rows of a table."""
WORDS_OF_AN_ITEM: Final = 3
"""Minimum different words of an item that a list can be stuck in."""


def kind_of(unit: str) -> RepeatKind:
    """The kind of a repeating unit. It may begin and end within a word, so its words are counted in several copies of
    it, without the first and last word."""
    if '":' in unit and not _BRACKET.search(unit) and _NAME.search(unit + unit):
        return MEMBERS
    if "\n" in unit:
        lines = (unit + unit).split("\n")[1:-1]
        if all(map(_IMPORT.match, lines)):
            return MEMBERS
        if (listed := _listed(unit, lines)) is not None:
            return listed
    simple, size, gaps = unit.isascii(), max(1, len(unit)), unit.count(" ") + unit.count("\n")
    letters = sum(map(str.isalpha, unit)) + (0 if simple else len(_MARK.findall(unit)))
    if letters + gaps < 0.8 * size:
        return MIXED if is_mixed(unit) else PATTERNS
    times = 2 + 32 // size
    words = (_ASCII_WORD if simple else _WORD).findall(unit * times)[1:-1]
    different = len(set(words)) + (0 if simple else len(_UNSPACED.findall(unit)) // _LETTERS_EACH)
    share = (letters + min(float(gaps), len(words) / (times - 1))) / size
    if share < 0.8:
        return MIXED if is_mixed(unit) else PATTERNS
    solid = not _SPACE.search(unit)
    if simple and solid and size > MAX_STAMMER:
        return PATTERNS  # base64 and the like: words of our alphabet have spaces between them
    if different >= 6 or (different >= 4 and len(unit) >= 60):
        return SENTENCES if is_prose(unit) else MIXED if is_mixed(unit) else LINES
    if solid:
        return STAMMER if len(set(unit)) >= 3 else PATTERNS
    if different >= 3 or share >= 0.95 or (different == 2 and _ARTICLE.search(unit)):
        return PHRASES if is_prose(unit) else LINES
    return PATTERNS


def _listed(unit: str, lines: list[str]) -> RepeatKind | None:
    """The kind of a unit that is items of one list, or rows of one table, without a gap between them; None: it is
    something else, or too little, or to be filled in."""
    marker = _marker(lines[0])
    if not marker or any(_marker(line) != marker or _BLANK.search(line.rstrip()) for line in lines):
        return None
    texts = {_MARKER.sub("", line, count=1) for line in lines}
    words = {word.lower() for text in texts for word in _WORD.findall(text)}
    least_texts, least_words = CIRCLE_OF_ROWS if marker == "|" else CIRCLE_OF_ITEMS
    if len(texts) >= least_texts and len(words) >= least_words:
        return CIRCLES
    return ITEMS if marker != "|" and len(words) >= WORDS_OF_AN_ITEM and not is_prose(unit) else None


def _marker(line: str) -> str:
    found = _MARKER.match(line)
    return "" if found is None else found[1] or found[2]
