"""What of an answer that is not quite JSON can be passed on all the same?

Engines write NaN and Infinity where a figure has no value, nest what they say beside an answer as deep as they like,
and end an answer within a character. None of that is a reason to fail a request whose answer is there: it is null to
the client, or U+FFFD. Asked only of what the strict look would refuse, which looks at the result once more.
"""

import re
from typing import Final

MOST_DEPTH: Final = 100
"""What is nested deeper is null, where something is beyond what parsers follow (about 1 000)."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""A longer one stays as it is: it would hold everybody up."""
_TOKENS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]|-?(?:NaN|Infinity|nan|inf)\b', re.DOTALL)
_ESCAPES: Final = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u[dD][89a-fA-F]..|.)", re.DOTALL)
_NULL: Final = b"null"


def mended(data: bytes) -> bytes:
    """`data` with null for what is no JSON number and for what is nested too deep. The same where there is nothing to
    mend; whether it is JSON then is for others to say."""
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
    """Half of a character beyond 16 bits is none."""
    found = escape[0]
    return b"\\ufffd" if len(found) == 6 and found[1:2] == b"u" else found
