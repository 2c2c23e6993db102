"""Parses the targets of goodput: `ttft:500 tpot:80 batch.e2el:60000`, in milliseconds, as in `vllm bench serve`."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from headgate.model.errors import UsageError
from headgate.report.results import FIGURES, Target

NAMES = {**{name: name for name in FIGURES}, "e2el": "e2e"}


def parse(pairs: Iterable[str], flag: str = "--goodput") -> tuple[Target, ...]:
    """Raises UsageError, with what is wrong in one line."""
    targets: dict[tuple[str | None, str], Target] = {}
    for pair in (part for text in pairs for part in text.split()):
        found = re.fullmatch(r"(?:([\w-]+)\.)?([a-z0-9_]+):(\d+(?:\.\d+)?)", pair)
        if found is None:
            raise UsageError(f"{flag} is like ttft:500 tpot:80 or fast.ttft:500, in milliseconds, not {pair!r}")
        lane, name, limit = found[1], found[2], float(found[3])
        if name not in NAMES:
            close = get_close_matches(name, NAMES, n=1)
            meant = f" (did you mean {close[0]!r}?)" if close else ""
            raise UsageError(f"--goodput knows {', '.join(NAMES)}, not {name!r}{meant}")
        targets[lane, name] = Target(NAMES[name], limit / 1e3, lane)
    return tuple(targets.values())
