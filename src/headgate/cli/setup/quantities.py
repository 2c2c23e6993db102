"""Reads durations and shares on the command line as people write them: 90, 90s, 5m, 1h; 0.2 or 20%."""

from collections.abc import Sequence
from typing import Any

from cyclopts import Parameter

from headgate.config.forms.durations import EXAMPLES, seconds_of
from headgate.model.errors import UsageError


def seconds(text: str, flag: str) -> float:
    """Raises UsageError."""
    found = seconds_of(text)
    if found is None:
        raise UsageError(f"{flag}: expected a time {EXAMPLES}, got {text!r}")
    return found


def _seconds(_: Any, tokens: Sequence[Any]) -> float:
    found = seconds_of(tokens[0].value)
    if found is None:
        raise ValueError(f"expected a time {EXAMPLES}, or seconds, got {tokens[0].value!r}")
    return found


def milliseconds(_: Any, tokens: Sequence[Any]) -> float:
    """A bare number is milliseconds; one with a unit is converted."""
    text = tokens[0].value
    try:
        return float(text)
    except ValueError:
        found = seconds_of(text)
        if found is None:
            raise ValueError(f"expected milliseconds, or a time such as 200ms or 0.2s, got {text!r}") from None
        return found * 1e3


def _share(_: Any, tokens: Sequence[Any]) -> float:
    text = tokens[0].value
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise ValueError(f"expected a share from 0 to 1, or a percentage such as 20%, got {text!r}")
    return found


Duration = Parameter(converter=_seconds, metavar="TIME")
"""For flags in seconds."""
Share = Parameter(converter=_share, metavar="SHARE")
