"""Reads an engine's own gauges from its metrics, as few as the gateway shows, by the names in its dialect.

They are for display, not for routing: a scrape lags behind a burst, so the gateway counts each replica's work itself.
Names are searched in the text one by one: a page of metrics can have thousands of lines, and streams must not wait
until each has been parsed.
"""

import re
from collections.abc import Iterator
from math import isfinite

from headgate.model.dialect import dialect_of_kind

MOST_BYTES = 4 << 20
"""Bytes of the text that are read."""
MOST_SAMPLES = 256
"""Maximum samples of one name."""
MOST_LOOKS = 4 * MOST_SAMPLES
"""Maximum occurrences of a name that are looked at."""
MOST = 1e15
"""Maximum of a value: a larger one is nonsense."""
LONGEST_LINE = 4096
"""Characters of a line that are looked at."""

SHARES = frozenset(("kv_ratio",))
"""Gauges of which the largest sample counts, not the sum: the engine whose memory is full is the one that will
evict."""

_RANK = re.compile(r'(?:^|,)(?:tp|pp|moe_ep)_rank="[^"]*"')
"""Ranks that work on the same requests, and may each report them."""
_PART = re.compile(r'(?:^|,)priority="[^"]')
"""SGLang with priorities: the total has an empty priority, and each priority's part stands beside it."""


def text_of_gauges(body: bytes) -> str:
    return body[:MOST_BYTES].decode("utf-8", "replace")


def read_gauges(kind: str | None, text: str, rank: int | None = None) -> dict[str, float]:
    """The gauges of this kind that the text has; several samples of one gauge (by model, by engine) are added up.
    `rank`: only those of this data-parallel rank; None: all."""
    found: dict[str, float] = {}
    own = "" if rank is None else f'engine="{rank}"'
    text = text[:MOST_BYTES]
    for ours, theirs in dialect_of_kind(kind).gauges.items():
        for name in theirs:
            bare, _, wanted = name.rstrip("}").partition("{")
            values: dict[str, float] = {}
            for labels, value in _samples(text, bare):
                if wanted in labels and not _PART.search(labels) and (own in labels or "engine=" not in labels):
                    who = _RANK.sub("", labels)
                    values[who] = max(value, values.get(who, value))
            if values:
                found[ours] = min(1.0, max(values.values())) if ours in SHARES else sum(values.values())
                break
    return found


def _samples(text: str, name: str) -> Iterator[tuple[str, float]]:
    """Labels and value of each line of exactly this name."""
    at, seen, looks = text.find(name), 0, 0
    while at >= 0 and seen < MOST_SAMPLES and looks < MOST_LOOKS:
        looks += 1
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        rest = text[at + len(name) : min(end, at + LONGEST_LINE)]
        if (at == 0 or text[at - 1] == "\n") and rest[:1] in ("{", " "):
            labels, _, value = rest.partition(" # ")[0].rpartition("}")
            number = _number(value.split())
            if number is not None:
                seen += 1
                yield labels[1:], number
        at = text.find(name, end)


def _number(words: list[str]) -> float | None:
    """None: the word is no number, not finite (some engines say NaN before the first request), below 0, or too
    large."""
    try:
        value = float(words[0]) if words else float("nan")
    except ValueError:
        return None
    return value if isfinite(value) and 0.0 <= value <= MOST else None
