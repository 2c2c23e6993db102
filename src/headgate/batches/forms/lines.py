"""Reads the lines of a batch's input file: which request each is, or what is wrong with it.

A malformed line is named by its number and is a failed line of its batch; the others run.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
LONGEST_ID: Final = 512
MOST_LINE_BYTES: Final = 8 * 1024 * 1024


class LineFields(msgspec.Struct):
    custom_id: Any = msgspec.UNSET
    method: Any = msgspec.UNSET
    url: Any = msgspec.UNSET
    body: msgspec.Raw = msgspec.Raw()


class BodyFields(msgspec.Struct):
    model: Any = None
    stream: Any = None


_line = msgspec.json.Decoder(LineFields).decode
_body = msgspec.json.Decoder(BodyFields).decode


class InputLine(NamedTuple):
    number: int
    """From 1, as editors count, empty lines included."""
    begin: int
    """Where the line begins in the file."""
    size: int
    custom_id: str | None
    """None: it has none that can be used."""
    model: str
    """The model that is asked for; empty: it names none."""
    flaw: str
    """What is wrong with the line; empty: nothing that can be seen without serving it."""
    param: str | None
    """The field that is wrong; None: none, or the whole line is."""


def read_line(data: bytes, number: int, begin: int, endpoint: str, seen: set[str]) -> InputLine:
    """`seen`: the ids of earlier lines; this one's is added."""

    def bad(flaw: str, param: str | None = None) -> InputLine:
        return InputLine(number, begin, len(data), custom_id, "", flaw, param)

    custom_id: str | None = None
    if len(data) > MOST_LINE_BYTES:
        return bad(f"the line is longer than {MOST_LINE_BYTES} bytes")
    try:
        fields = _line(data)
        found = fields.custom_id
        custom_id = found if isinstance(found, str) and 0 < len(found) <= LONGEST_ID else None
        body = _body(fields.body) if bytes(fields.body)[:1] == b"{" else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return bad(f"the line is no JSON object: {error}")
    if custom_id is None:
        return bad(f"custom_id must be a string of 1 to {LONGEST_ID} characters", "custom_id")
    if custom_id in seen:
        return bad(f"custom_id {custom_id[:64]!r} is that of an earlier line, too", "custom_id")
    seen.add(custom_id)
    if fields.method != "POST":
        return bad('method must be "POST"', "method")
    if fields.url != endpoint:
        return bad(f"url must be {endpoint!r}, as the batch's endpoint", "url")
    if body is None:
        return bad("body must be an object", "body")
    if body.stream is True:
        return bad("body.stream must be false or absent: an answer in a file is not streamed", "body.stream")
    return InputLine(number, begin, len(data), custom_id, body.model if isinstance(body.model, str) else "", "", None)


def body_of(data: bytes) -> bytes:
    """The body of a line that `read_line` found nothing wrong with. Raises ValueError where it has changed since."""
    body = bytes(_line(data).body)
    if body[:1] != b"{":
        raise ValueError("the line has no body")
    return body


class LineSplitter:
    """Cuts a file that is read in pieces into lines."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._begin = 0
        self._number = 0
        self._skipped = 0
        """Bytes thrown away of a line that is too long."""

    def feed(self, piece: bytes, *, last: bool = False) -> Iterator[tuple[int, int, bytes]]:
        """Yields (number, begin, line) of the lines that are complete and not empty. `last`: nothing follows. A line
        that is too long is cut: it is only long enough to be refused."""
        self._held += piece
        if last and self._held and not self._held.endswith(b"\n"):
            self._held += b"\n"
        start = 0
        while (end := self._held.find(b"\n", start)) >= 0:
            self._number += 1
            line = bytes(self._held[start:end])
            if line.strip():
                yield self._number, self._begin, line
            self._begin += end + 1 - start + self._skipped
            self._skipped = 0
            start = end + 1
        del self._held[:start]
        over = len(self._held) - MOST_LINE_BYTES - 1
        if over > 0:
            del self._held[-over:]
            self._skipped += over
