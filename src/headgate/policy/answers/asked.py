"""Reads from a prompt how often something is to be said.

`Write it 50 times` is what people ask for, and fifty equal lines are then no runaway. Only a count is believed: the
word `repeat` alone is in many prompts that ask for the opposite.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

MAX_TIMES: Final = 1000
"""Largest count that is believed."""
MAX_CHARACTERS: Final = 2000
"""Characters at each end of the last message that are read."""

_WORDS: Final = {
    "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "twelve": 12, "fifteen": 15, "twenty": 20,
    "thirty": 30, "forty": 40, "fifty": 50, "hundred": 100, "thousand": 1000,
    "fünf": 5, "zehn": 10, "zwanzig": 20, "fünfzig": 50, "hundert": 100, "tausend": 1000,
    "diez": 10, "veinte": 20, "cincuenta": 50, "cien": 100, "mil": 1000,
    "dix": 10, "vingt": 20, "cinquante": 50, "cent": 100, "mille": 1000,
    "十": 10, "二十": 20, "五十": 50, "一百": 100, "百": 100, "千": 1000, "一千": 1000,
}  # fmt: skip
_COUNT: Final = re.compile(
    rf"(\d{{1,4}}|{'|'.join(sorted(_WORDS, key=len, reverse=True))})[\s-]*"
    r"(?:times\b|x\b|×|copies\b|repetitions\b|mal\b|veces\b|fois\b|vezes\b|volte\b|keer\b|gånger\b|razy\b|kez\b|раза?\b"
    r"|kali\b|lần\b|次|遍|回|번|مرة|مرات|बार|ครั้ง)",
    re.IGNORECASE,
)


def times_asked(body: Mapping[str, Any]) -> int:
    """How often the last message of a request asks for something to be said; 0: it names no count."""
    text = _last_text(body)
    if len(text) > 2 * MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}\n{text[-MAX_CHARACTERS:]}"
    counts = [_WORDS.get(said.lower()) or int(said) for said in _COUNT.findall(text)]
    return min(MAX_TIMES, max(counts, default=0))


def _last_text(body: Mapping[str, Any]) -> str:
    """The text of the last message: of a chat, of a response, or the prompt of a text completion."""
    said = body.get("messages") or body.get("input") or body.get("prompt")
    if isinstance(said, list) and said:
        said = said[-1]
        if isinstance(said, Mapping):
            said = said.get("content")
    if isinstance(said, list):
        texts = [part.get("text") for part in said if isinstance(part, Mapping)]
        said = " ".join(text for text in texts if isinstance(text, str))
    return said if isinstance(said, str) else ""
