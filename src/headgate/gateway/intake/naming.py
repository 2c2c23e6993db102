"""Replaces the engine's model name in an answer by the name that the client asked for.

An engine writes its own name for the model into each event. Where a client asked for a public name, or the engine has
another name for the model than the gateway, the client must not see it: it may change from one answer to the next.
"""

import re
from typing import Final, Protocol

import msgspec

_MODEL: Final = b'"model"'
_SAID: Final = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")')
"""Never matches within a text: there the quotes are escaped."""


class Names(Protocol):
    """The catalog of model names, as the Acceptor uses it."""

    def refuse_unknown(self, model: str) -> None:
        """Raises UnknownModel for a name that no replica has."""

    def meant_by_default(self) -> str:
        """The name that `default` stands for; empty: `default` is passed on as it is."""


class _Named(msgspec.Struct):
    """An event or a whole answer; in events of /v1/responses the model is one level down. Raw: an engine may write
    anything there."""

    model: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()


_read = msgspec.json.Decoder(_Named).decode


class Naming:
    """Renames the model in the answer of one exchange. Decodes one event, and searches the others for the same
    bytes."""

    __slots__ = ("_found", "_said", "name")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self._said: Final = b'"model":' + msgspec.json.encode(name)
        self._found = b""
        """The bytes with which the engine writes its name; empty: not known yet."""

    def told(self, data: bytes) -> bytes:
        """An event, or a whole answer, with the name that the client asked for."""
        if not self._found or data.find(self._found) < 0:
            if data.find(_MODEL) < 0:
                return data
            self._found = _written(data)
            if not self._found:
                return data
        return data.replace(self._found, self._said)  # wherever the engine writes it


def _written(data: bytes) -> bytes:
    """The bytes that hold the model name in `data`; empty: there is none."""
    try:
        said = _read(data)
        if bytes(said.response)[:1] == b"{":
            said = _read(said.response)
        name = bytes(said.model)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _first_written(data)
    for found in _SAID.finditer(data):
        if found[1] == name:
            return found[0]
    return b""


def _first_written(data: bytes) -> bytes:
    """The same in JSON that the strict parser refuses, as with half a character: the first that looks like it."""
    found = _SAID.search(data)
    return b"" if found is None else found[0]
