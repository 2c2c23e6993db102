"""Reads multipart/form-data piece by piece: the fields of a form, and one file that need not fit into memory.

Sans I/O: pieces in; fields, and the file's bytes as they come, out. RFC 7578 as browsers and HTTP libraries write it: a
boundary of at most 70 characters, small headers, no nesting.
"""

import re
from collections.abc import Callable
from email.message import Message
from email.utils import collapse_rfc2231_value
from typing import Final

from headgate.model.errors import InvalidRequest

MOST_HEADER_BYTES: Final = 8 * 1024
MOST_FIELD_BYTES: Final = 64 * 1024
MOST_PARTS: Final = 32
LONGEST_NAME: Final = 255

_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")


def boundary_of(content_type: str) -> bytes:
    """The boundary that a Content-Type names. Raises InvalidRequest."""
    message = Message()
    message["content-type"] = content_type
    found = message.get_param("boundary")
    if not isinstance(found, str) or not _BOUNDARY.fullmatch(found):
        raise InvalidRequest("content-type: multipart/form-data needs a boundary of 1 to 70 characters")
    return found.encode("ascii")


class FormReader:
    """One form. `feed` it to the end, then `finish`; both raise InvalidRequest."""

    def __init__(self, boundary: bytes, file_field: str, write: Callable[[bytes], None]) -> None:
        """`write` gets the content of the file field."""
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        """The name that the client gives its file; None: no file has begun."""
        self.done = False
        """Whether the last boundary has been read; what follows is ignored."""
        self._file_field = file_field
        self._write = write
        self._mark = b"\r\n--" + boundary
        self._held = bytearray(b"\r\n")  # the first boundary stands at the beginning of a line as well
        self._reading: Callable[[], bool] = self._preamble
        self._parts = 0
        self._field = ""
        self._value = bytearray()

    def feed(self, piece: bytes) -> None:
        if not self.done:
            self._held += piece
            while not self.done and self._reading():
                pass

    def finish(self) -> None:
        if not self.done:
            raise InvalidRequest("the form ends before its last boundary: the upload is not complete")
        if self.filename is None:
            raise InvalidRequest(f"the form has no file in its field {self._file_field!r}", param=self._file_field)

    # -- what is being read: each says whether to look again ------------------------------------------------

    def _preamble(self) -> bool:
        at = self._held.find(self._mark)
        if at < 0:
            if len(self._held) > MOST_HEADER_BYTES:
                raise InvalidRequest("the body does not begin with the boundary that content-type names")
            return False
        del self._held[: at + len(self._mark)]
        self._reading = self._after_mark
        return True

    def _after_mark(self) -> bool:
        if len(self._held) < 2:
            return False
        end = bytes(self._held[:2])
        if end == b"--":
            self.done = True
            self._held.clear()
            return False
        if end != b"\r\n":
            raise InvalidRequest("the form is malformed: a boundary is not followed by a line end")
        del self._held[:2]
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise InvalidRequest(f"the form has more than {MOST_PARTS} parts")
        self._reading = self._headers
        return True

    def _headers(self) -> bool:
        if self._held.startswith(b"\r\n"):
            raise InvalidRequest("the form is malformed: a part has no content-disposition")
        at = self._held.find(b"\r\n\r\n")
        if at > MOST_HEADER_BYTES or (at < 0 and len(self._held) > MOST_HEADER_BYTES):
            raise InvalidRequest("the form is malformed: the headers of a part are too long")
        if at < 0:
            return False
        self._begin(bytes(self._held[:at]))
        del self._held[: at + 4]
        self._reading = self._content
        return True

    def _content(self) -> bool:
        held, mark = self._held, self._mark
        at = held.find(mark)
        # All but the beginning of what may be a boundary is content.
        sure = at if at >= 0 else max(0, len(held) - len(mark) + 1)
        if sure:
            self._take(bytes(held[:sure]))
            del held[:sure]
        if at < 0:
            return False
        del held[: len(mark)]
        self._end()
        self._reading = self._after_mark
        return True

    # -- parts --------------------------------------------------------------------------------------------------

    def _begin(self, head: bytes) -> None:
        message = Message()
        for line in head.decode("utf-8", "replace").split("\r\n"):
            name, _, value = line.partition(":")
            if name.strip().lower() == "content-disposition":
                message["content-disposition"] = value.strip()
        field = message.get_param("name", header="content-disposition")
        if not isinstance(field, str):
            raise InvalidRequest("the form is malformed: a part has no name")
        self._field, self._value = field, bytearray()
        if field == self._file_field:
            if self.filename is not None:
                raise InvalidRequest(f"the form has more than one {field!r}", param=field)
            given = message.get_param("filename", header="content-disposition")
            self.filename = _clean(collapse_rfc2231_value(given) if given else "")

    def _take(self, content: bytes) -> None:
        if self._field == self._file_field:
            self._write(content)
            return
        self._value += content
        if len(self._value) > MOST_FIELD_BYTES:
            raise InvalidRequest(f"{self._field[:64]} is longer than {MOST_FIELD_BYTES} bytes", param=self._field[:64])

    def _end(self) -> None:
        if self._field != self._file_field:
            self.fields[self._field] = self._value.decode("utf-8", "replace")


def _clean(name: str) -> str:
    """The file's own name: without folders, control characters, or half characters."""
    name = name.replace("\\", "/").rpartition("/")[2]
    shown = "".join(char for char in name if char.isprintable() and not "\ud800" <= char <= "\udfff")
    return shown[:LONGEST_NAME] or "upload.jsonl"
