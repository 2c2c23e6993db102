"""Reads durations as people write them: 90, 90s, 5m, 1.5h, 250ms. A bare number is seconds."""

import re

UNITS_S = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
PATTERN = r"(\d+(?:\.\d+)?) ?(ms|s|m|h|d)?"
EXAMPLES = "such as 90s, 5m or 1h"


def seconds_of(text: str) -> float | None:
    """None: the text is no duration."""
    found = re.fullmatch(PATTERN, text.strip().lower(), re.ASCII)
    return None if found is None else float(found[1]) * UNITS_S[found[2] or ""]
