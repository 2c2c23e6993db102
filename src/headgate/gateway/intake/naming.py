"""Under which name is a model told to a client? Under the one that it asked for.

An engine says in each event what it calls its model. Where a client asked for a public name, or a replica's engine has
another name for it than the gateway, a client is not told that: it may change from one answer to the next.
"""

import re
from typing import Final

import msgspec

_MODEL: Final = b'"model"'
_SAID: Final = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")')
"""Not within a text: there the quotes have backslashes."""


class _Inner(msgspec.Struct):
    model: str | None = None


class _Outer(msgspec.Struct):
    """An event or a whole answer; of /v1/responses the model is one level down."""

    model: str | None = None
    response: _Inner | None = None


_read = msgspec.json.Decoder(_Outer).decode


class Naming:
    """Of one exchange. Decodes one event; in all others it looks for the same bytes."""

    __slots__ = ("_found", "_said", "name")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self._said: Final = b'"model":' + msgspec.json.encode(name)
        self._found = b""
        """What the engine writes; empty: not known yet."""

    def told(self, data: bytes) -> bytes:
        """An event, or a whole answer, with the name that was asked for."""
        if not self._found or data.find(self._found) < 0:
            if data.find(_MODEL) < 0:
                return data
            self._found = _written(data)
            if not self._found:
                return data
        return data.replace(self._found, self._said, 1)


def _written(data: bytes) -> bytes:
    """How the name is written in it; empty: it has none."""
    try:
        said = _read(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    name = said.model if said.response is None else said.response.model
    if name is None:
        return b""
    for found in _SAID.finditer(data):
        if msgspec.json.decode(found[1]) == name:
            return found[0]
    return b""
