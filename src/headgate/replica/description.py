"""Reads how an engine describes itself: how many requests it computes at once, and how much fits into a step and into
its KV memory. Where each kind says so is in the table of dialects (model/dialect.py).

An engine may write anything there: a value that is no whole number, or not plausible, counts as not said.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headgate.model.dialect import Dialect

MOST_BYTES: Final = 1 << 20
"""Bytes of a description; a longer one is not read."""
MOST_BATCH: Final = 65_536
"""Maximum requests at once; a larger number is nonsense."""
MOST_TOKENS: Final = 10_000_000_000
MOST_RANKS: Final = 1024
_BOUNDS: Final = {
    "batch": MOST_BATCH,
    "batch_each": MOST_BATCH,
    "step_tokens": MOST_TOKENS,
    "kv_tokens": MOST_TOKENS,
    "kv_blocks": MOST_TOKENS,
    "block_tokens": MOST_BATCH,
    "ranks": MOST_RANKS,
}


@dataclass(frozen=True, slots=True)
class Description:
    """What an engine says of itself. None: it does not say."""

    batch: int | None = None
    """Requests that it computes at once, all its data-parallel ranks together."""
    step_tokens: int | None = None
    """Tokens of a step of one rank."""
    kv_tokens: int | None = None
    """Tokens in the KV memory of one rank."""
    ranks: int | None = None
    """Data-parallel ranks behind this address."""

    @property
    def gauges(self) -> dict[str, float]:
        """The same for display, by the names of `headgate_engine_…`."""
        told = {
            "batch_limit": self.batch,
            "step_tokens": self.step_tokens,
            "kv_tokens": self.kv_tokens,
            "ranks": self.ranks,
        }
        return {name: float(value) for name, value in told.items() if value is not None}


NOTHING: Final = Description()


def rank_of(dialect: Dialect, headers: Mapping[str, str]) -> int | None:
    """The rank that requests with these headers go to; None: the engine chooses."""
    told = next((value for name, value in headers.items() if name.lower() == dialect.rank_header), "")
    return int(told) if told.isascii() and told.isdecimal() and len(told) < 5 else None


def read_description(dialect: Dialect, body: bytes, rank: int | None = None) -> Description:
    """`rank`: the one that is asked; None: all that are there."""
    if len(body) > MOST_BYTES:
        return NOTHING
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NOTHING
    said = {name: number for name in _BOUNDS if (number := _number(dialect, name, found)) is not None}
    ranks = said.get("ranks")
    if rank is not None or any(_at(found, place) is True for place in dialect.says.get("alone", ())):
        ranks = None  # the other ranks have addresses, or places in the gateway, of their own
    each, batch = said.get("batch_each"), said.get("batch")
    if each is not None:
        batch = min(MOST_BATCH, each * (ranks or 1))
    kv_tokens = said.get("kv_tokens")
    if kv_tokens is None and "kv_blocks" in said and "block_tokens" in said:
        kv_tokens = min(MOST_TOKENS, said["kv_blocks"] * said["block_tokens"])
    return Description(batch, said.get("step_tokens"), kv_tokens, ranks)


def _number(dialect: Dialect, name: str, found: Any) -> int | None:
    for place in dialect.says.get(name, ()):
        value = _at(found, place)
        if type(value) is int and 0 < value <= _BOUNDS[name]:
            return value
    return None


def _at(found: Any, place: str) -> Any:
    """The value at this place; None: there is none."""
    for step in place.split("."):
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found
