"""Ordinary texts, by the thousand: none of them may be taken for a runaway answer.

Most are made, by kind and from a seed; some are what every Python brings along: its sources and its manual.
"""

import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.ordinary.again import AGAIN
from tests.ordinary.art import ART
from tests.ordinary.code import CODE
from tests.ordinary.lists import LISTS
from tests.ordinary.templates import TEMPLATES
from tests.ordinary.verse import VERSE

KINDS: tuple[Callable[[Random], str], ...] = (*LISTS, *VERSE, *CODE, *ART, *TEMPLATES, *AGAIN)
EACH = 24
SHIPPED = 400
LONGEST = 16_000
"""Characters, about the 4 096 tokens that a lane allows."""


@dataclass(frozen=True, slots=True)
class Text:
    kind: str
    number: int
    text: str


def made(seed: int = 0, each: int = EACH) -> Iterator[Text]:
    for kind in KINDS:
        for number in range(each):
            yield Text(kind.__name__, number, kind(Random(f"{seed} {kind.__name__} {number}"))[:LONGEST])


def mixed(seed: int = 0, count: int = 400) -> Iterator[Text]:
    """An answer has several parts: words, something structured, words again."""
    for number in range(count):
        rng = Random(f"{seed} mixed {number}")
        parts = [rng.choice(KINDS)(rng) for _ in range(rng.randint(2, 4))]
        yield Text("mixed", number, "\n\n".join(parts)[:LONGEST])


def shipped(count: int = SHIPPED) -> Iterator[Text]:
    """Real ones: Python's manual, and its sources."""
    from pydoc_data.topics import topics

    for number, name in enumerate(sorted(topics)):
        yield Text("manual", number, topics[name][:LONGEST])
    folder = Path(sysconfig.get_path("stdlib"))
    files = [path for path in sorted(folder.rglob("*.py")) if "site-packages" not in path.parts]
    for number, path in enumerate(files[:: max(1, len(files) // count)]):
        yield Text("source", number, path.read_text(encoding="utf-8", errors="replace")[:LONGEST])


def ordinary(seed: int = 0) -> Iterator[Text]:
    yield from made(seed)
    yield from mixed(seed)
    yield from shipped()
