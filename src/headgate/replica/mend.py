"""Repairs an answer that is not quite JSON, so that it can be passed on.

Engines write NaN and Infinity where a figure has no value, nest the fields beside an answer to any depth, and end an
answer within a character. None of that is a reason to fail a request whose answer is there: the client gets null, or
U+FFFD. Only answers that the strict parser refuses come here, and the strict parser reads the result once more.
"""

import re
from typing import Final

MOST_DEPTH: Final = 100
"""Depth beyond which values of a repaired answer become null. Parsers follow about 1 000 levels."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Length in bytes above which an answer is not repaired: that would delay all other requests."""
_TOKENS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]|-?(?:NaN|Infinity|nan|inf)\b', re.DOTALL)
_ESCAPES: Final = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u[dD][89a-fA-F]..|.)", re.DOTALL)
_NULL: Final = b"null"


def mended(data: bytes) -> bytes:
    """`data` with null for values that are not JSON numbers or are nested too deep, and U+FFFD for half characters. The
    same object if there is nothing to repair. The caller checks whether the result is JSON."""
    if len(data) > MOST_BYTES:
        return data
    parts: list[bytes] = []
    kept, depth = 0, 0
    for found in _TOKENS.finditer(data):
        token = found[0]
        if token in (b"[", b"{"):
            depth += 1
            if depth == MOST_DEPTH + 1:
                parts += (data[kept : found.start()], _NULL)
        elif token in (b"]", b"}"):
            if depth == MOST_DEPTH + 1:
                kept = found.end()
            depth -= 1
        elif depth <= MOST_DEPTH:
            told = _ESCAPES.sub(_whole_character, token) if token[:1] == b'"' else _NULL
            if told != token:
                parts += (data[kept : found.start()], told)
                kept = found.end()
    return b"".join((*parts, data[kept:])) if parts and depth == 0 else data


def _whole_character(escape: re.Match[bytes]) -> bytes:
    """U+FFFD for a lone surrogate, which is half of a character beyond 16 bits; all other escapes unchanged."""
    found = escape[0]
    return b"\\ufffd" if len(found) == 6 and found[1:2] == b"u" else found
