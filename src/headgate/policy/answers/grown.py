"""Decides whether repeated prose has grown out of the text before it, or was probably asked for.

People ask for equal lines: forms, checklists, logs, test data, rounds, prayers, lines to write. Those are set off from
the text before them: they begin on a line of their own, after a heading or a gap, and many do not look like prose. Few
words are chanted and counted: in quotation marks, after a colon, at the beginning of a line. A model that runs away was
writing something else in the same manner: it gets stuck in the middle of a line, or adds one more paragraph, verse or
list item, and never leaves it.
"""

import re
from typing import Final

LEAD: Final = 48
"""Characters that the end of an earlier line must share with a repeating line: the text got stuck there."""
PARAGRAPH: Final = 80
"""Minimum characters of a line of running text."""
SENTENCE: Final = 32
"""Minimum characters of a line that running text had as a sentence."""
LONG: Final = 190
"""Mean characters per line from which a repetition is never one that was asked for."""
LONG_UNIT: Final = 200
"""Characters in all lines together from which it is not either."""
MIXTURE: Final = 200
"""Minimum characters of running text with something else around it."""
ITEMS: Final = 5
"""Other list items needed before one that repeats: the first ones may tell how to begin."""
MANY_ITEMS: Final = 6
"""The same where the items may be without sentences: some are left open after the first."""
FEW: Final = 3
"""Minimum different words that a sentence can be stuck in."""
CLAUSE: Final = 12
"""Minimum bytes before those in their line."""

_MARKUP: Final = re.compile(r"[<>{}\[\]|=_\\•☐]|lorem ipsum", re.IGNORECASE)
"""Characters that prose does not have, or a filler text."""
_CODE: Final = re.compile(r"`[^`\n]+`")
"""A name from a program, within a sentence."""
_PROSE: Final = re.compile(r"[*\"'“‘«¿¡(]*[^\W\d_].*[.,;!?…。，！？؟।॥—][\"'”’»)*]*\Z")
_LABEL: Final = re.compile(r"[^\s:.,]+(?: [^\s:.,]+){0,2}: ")
"""The label of a field, or of a speaker."""
_NUMBER: Final = re.compile(r"[#*\s]*\d+[.)]\s+")
"""The number of a list item."""
_MARK: Final = re.compile(r"(?:[-*•]|\d+[.)])\s+")
"""The mark or the number of a list item."""
_ITEM_HEAD: Final = re.compile(r"[-*•#>\s]*(?:\d+[.)]\s+)?(?:\*\*[^*\n]+\*\*:?\s*)?")
"""What the text of a list item may have before it: a mark or a number, and a label in bold type."""
_ASKED: Final = re.compile(r"(?:[:：]|[\s(][\"“‘«]|[“«「])[\s\"'“‘*]*\Z")
"""The end of a text that announces or quotes what follows."""
_MEMBER: Final = re.compile(r'"\s*:\s*"[^"]*\Z')
"""A line that ends within the value of a member in JSON."""
_OPENED: Final = re.compile(r"(?:^|[\s(])['‘](?=\w|$)")
_CLOSED: Final = re.compile(r"(?<=[\w.,!?])['’](?=[\s.,;!?)]|$)")
"""Single quotation marks at the beginning and the end of words."""
_AMEN: Final = re.compile(r"\b(?:amen|amén|ámen|аминь|آمين|אמן)\b", re.IGNORECASE)
_GAP: Final = re.compile(r"\n\s*\n")
_WORD: Final = re.compile(r"[^\W\d_]+")
_LONG_WORD: Final = re.compile(r"\w{5,}")


def is_prose(unit: str) -> bool:
    """Whether the repeating unit, which may begin anywhere, could be running text, a verse or a list item."""
    lines = [_CODE.sub("code", line) for line in _lines(unit)]
    if any(_MARKUP.search(line) for line in lines or [_CODE.sub("code", unit)]):
        return False
    items = _are_items(lines)
    return all(_says(line, items) for line in lines)


def is_mixed(unit: str) -> bool:
    """Whether the repeating unit has running text with something else around it: headings, list items, code."""
    if len(unit) < MIXTURE:
        return False
    lines = _lines(unit)
    return len(set(lines)) > 1 and not any(line[0] in "<{}]" for line in lines) and any(map(_runs, lines))


def is_prayer(unit: str) -> bool:
    """Whether the unit is a prayer, which is said again and again on purpose."""
    return _AMEN.search(unit + unit) is not None


def is_stuck(before: str, unit: str) -> bool:
    """Whether a sentence or a stanza got stuck in `unit`, which may be a few words: no chant, chorus or count."""
    lines = _lines(unit)
    if lines:
        return all(line.endswith(",") for line in lines) and has_grown(before, unit)
    lead, words = _lead(before), {word.lower() for word in _WORD.findall(unit * 3)[1:-1]}
    return (
        len(words) >= FEW
        and len(lead) >= CLAUSE
        and " " in lead.strip()
        and not _ASKED.search(before)
        and not _is_quoted(lead)
    )


def is_stuck_list(before: str, unit: str) -> bool:
    """Whether the items in `unit` follow many others of the same list, each of which differs."""
    texts = set(map(_item, _lines(unit)))
    others: set[str] = set()
    for line in reversed((before + unit[: unit.index("\n")]).split("\n")):
        text = _item(line.strip())
        if text == line.strip():
            break
        others.add(text)
    return len(others - texts) >= MANY_ITEMS


def has_grown(before: str, unit: str) -> bool:
    """Whether `unit`, prose that repeats, has grown out of the text before its first occurrence."""
    if is_prayer(unit):
        return False
    lines = _lines(unit)
    if not lines:
        return not _is_set_off(before, unit) and _ASKED.search(before) is None
    size, items = sum(map(len, lines)) / len(lines), _are_items(lines)
    if size >= (PARAGRAPH if items else LONG) or len(unit) >= LONG_UNIT:
        return True
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
        return like > 0 and _of_the_same(others, unit)
    return like > 0 and not gap and any(line.endswith(",") for line in lines)


def _lines(unit: str) -> list[str]:
    """The whole lines of a unit, each at least once; empty if the unit has no line break."""
    return [line for line in map(str.strip, (unit + unit).split("\n")[1:-1]) if line]


def _lead(before: str) -> str:
    """The beginning of the line in which a unit without line breaks begins."""
    return before[before.rfind("\n") + 1 :]


def _is_set_off(before: str, unit: str) -> bool:
    """Whether a short sentence begins its line, or nearly so, after a gap or nothing: one to be said again and
    again."""
    above, _, lead = before.rpartition("\n")
    if len(unit) >= LEAD or len(lead.encode()) >= CLAUSE or above.rpartition("\n")[2].strip():
        return False
    return not (lead[-1:].isalpha() and unit[:1].isalpha())


def _is_quoted(lead: str) -> bool:
    """Whether a quotation is open at the end of the line. The value of a member in JSON is none."""
    if _MEMBER.search(lead):
        return False
    return (
        lead.count('"') % 2 == 1
        or lead.count("“") > lead.count("”")
        or lead.count("«") > lead.count("»")
        or len(_OPENED.findall(lead)) > len(_CLOSED.findall(lead))
    )


def _are_items(lines: list[str]) -> bool:
    return all(_NUMBER.match(line) is not None for line in lines)


def _text(line: str) -> str:
    """A line without its item number."""
    return _NUMBER.sub("", line, count=1)


def _says(line: str, item: bool) -> bool:
    if item:
        return _NUMBER.match(line) is not None and _PROSE.match(_text(line)) is not None
    return _PROSE.match(line) is not None and _LABEL.match(line) is None


def _item(line: str) -> str:
    """A line without the mark or the number of a list item; the line, if it has neither."""
    return _MARK.sub("", line, count=1)


def _runs(line: str) -> bool:
    """Whether a line is running text, or a list item of some length."""
    text = _CODE.sub("code", _ITEM_HEAD.sub("", line, count=1))
    return len(text) >= PARAGRAPH and '":' not in text and _says(text, False) and not _MARKUP.search(text)


def _like(others: list[str], items: bool, size: float) -> int:
    """Number of lines at the end of `others` that look like the repeating ones, whose mean length is `size`."""
    count = 0
    for other in reversed(others):
        if other:
            if not _says(other if items else _text(other), items) or not 0.4 < len(other) / size < 8.0:
                break
            count += 1
    return count


def _of_the_same(others: list[str], unit: str) -> bool:
    """Whether the lines before have at least half of the long words of `unit`."""
    words = set(_LONG_WORD.findall(unit))
    return len(words & set(_LONG_WORD.findall(" ".join(others)))) * 2 >= len(words) > 0


def _ends_like(other: str, line: str) -> bool:
    """Whether `other` began differently and then got stuck in `line`: their ends agree, but not the whole line."""
    same = 0
    while same < min(len(other), len(line)) and other[-same - 1] == line[-same - 1]:
        same += 1
    return LEAD <= same < len(line)


def _was_said(others: list[str], line: str) -> bool:
    """Whether running text had the line as a sentence among others, or was that sentence, if it is a paragraph. After
    `Write this:` it was asked for."""
    if len(line) < SENTENCE:
        return False
    for other in map(_text, others):
        at = other.find(line)
        if (at > 0 or (at == 0 and len(line) >= PARAGRAPH)) and other[:at].rstrip()[-1:] in ("", ".", "!", "?"):
            return True
    return False
