"""Decides whether repeated prose has grown out of the text before it, or was probably asked for.

People ask for equal lines: forms, checklists, logs, test data, rounds, prayers, lines to write. Those are set off from
the text before them: they begin on a line of their own, after a heading or a gap, and many do not look like prose. A
model that runs away was writing something else in the same manner: it gets stuck in the middle of a line, or adds one
more paragraph, verse or list item, and never leaves it.
"""

import re
from typing import Final

LEAD: Final = 48
"""Characters that the end of an earlier line must share with a repeating line: the text got stuck there."""
PARAGRAPH: Final = 80
"""Minimum characters of a line of running text."""
LONG: Final = 240
"""Mean characters per line from which a repetition is never one that was asked for."""
ITEMS: Final = 5
"""Other list items needed before one that repeats: the first ones may tell how to begin."""

_MARKUP: Final = re.compile(r"[<>{}\[\]|=_\\•☐]|lorem ipsum", re.IGNORECASE)
"""Characters that prose does not have, or a filler text."""
_PROSE: Final = re.compile(r"[*\"'“‘«¿¡(]*[^\W\d_].*[.,;!?…。，！？؟।॥—][\"'”’»)*]*\Z")
_LABEL: Final = re.compile(r"[^\s:.,]+(?: [^\s:.,]+){0,2}: ")
"""The label of a field, or of a speaker."""
_NUMBER: Final = re.compile(r"[#*\s]*\d+[.)]\s+")
"""The number of a list item."""
_ASKED: Final = re.compile(r"(?:[:：]|[\s(][\"“‘«]|[“«「])[\s\"'“‘*]*\Z")
"""The end of a text that announces or quotes what follows."""
_GAP: Final = re.compile(r"\n\s*\n")
_LONG_WORD: Final = re.compile(r"\w{5,}")


def is_prose(unit: str) -> bool:
    """Whether the repeating unit, which may begin anywhere, could be running text, a verse or a list item."""
    if _MARKUP.search(unit):
        return False
    lines = _lines(unit)
    items = _are_items(lines)
    return all(_says(line, items) for line in lines)


def has_grown(before: str, unit: str) -> bool:
    """Whether `unit`, prose that repeats, has grown out of the text before its first occurrence."""
    lines = _lines(unit)
    if not lines:
        return _ASKED.search(before) is None
    size = sum(map(len, lines)) / len(lines)
    if size >= LONG:
        return True
    items = _are_items(lines)
    texts = {_text(line) for line in lines}
    first = unit[: unit.index("\n")]
    others = [line.strip() for line in (before + first).split("\n")]
    gap = _GAP.match(unit, len(first)) is not None
    while others and _text(others[-1]) in texts:
        others.pop()
        gap = False
    while others and not others[-1]:
        others.pop()
        gap = True
    if not others:
        return False
    if any(_ends_like(others[-1], text) or _was_said(others, text) for text in texts):
        return True
    if gap and not _GAP.search(unit + unit):
        return False
    like = _like(others, items, size)
    if items:
        return like >= ITEMS
    if size >= PARAGRAPH:
        return like > 0 and _of_the_same(others[-1], unit)
    return like > 0 and not gap and any(line.endswith(",") for line in lines)


def _lines(unit: str) -> list[str]:
    """The whole lines of a unit, each at least once; empty if the unit has no line break."""
    return [line for line in map(str.strip, (unit + unit).split("\n")[1:-1]) if line]


def _are_items(lines: list[str]) -> bool:
    return all(_NUMBER.match(line) is not None for line in lines)


def _text(line: str) -> str:
    """A line without its item number."""
    return _NUMBER.sub("", line, count=1)


def _says(line: str, item: bool) -> bool:
    if item:
        return _NUMBER.match(line) is not None and _PROSE.match(_text(line)) is not None
    return _PROSE.match(line) is not None and _LABEL.match(line) is None


def _like(others: list[str], items: bool, size: float) -> int:
    """Number of lines at the end of `others` that look like the repeating ones, whose mean length is `size`."""
    count = 0
    for other in reversed(others):
        if other:
            if not _says(other, items) or not 0.4 < len(other) / size < 8.0:
                break
            count += 1
    return count


def _of_the_same(other: str, unit: str) -> bool:
    """Whether `other` has at least half of the long words of `unit`."""
    words = set(_LONG_WORD.findall(unit))
    return len(words & set(_LONG_WORD.findall(other))) * 2 >= len(words) > 0


def _ends_like(other: str, line: str) -> bool:
    """Whether `other` began differently and then got stuck in `line`: their ends agree, but not the whole line."""
    same = 0
    while same < min(len(other), len(line)) and other[-same - 1] == line[-same - 1]:
        same += 1
    return LEAD <= same < len(line)


def _was_said(others: list[str], line: str) -> bool:
    """Whether running text had the line as a sentence among others. After `Write this:` it was asked for."""
    if len(line) < PARAGRAPH:
        return False
    for other in others:
        at = other.find(line)
        if at >= 0 and other[:at].rstrip()[-1:] in ("", ".", "!", "?"):
            return True
    return False
