"""Parses a long body as JSON: counts it before parsing, so that no other request waits long.

Parsing holds the interpreter's lock, in whichever thread: a megabyte of `[],` for 0.1 s, and as long again each time it
is written or freed. So the body's bytes are counted first, a slice at a time with the lock free in between: how deep it
nests, and how many objects, arrays, fractions (which are slow to write) and other values it has. A body that passes is
parsed in one call of a few milliseconds. Keys are counted too: where the parsed value has fewer, one was given twice.

Not compiled, as compiled code would hold the lock from slice to slice.
"""

import re
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec

from headgate.model.errors import InvalidRequest
from headgate.wire.body.canonical import INT_DIGITS, too_deep
from headgate.wire.limits import WireLimits

LONG_BYTES: Final = 64 * 1024
"""Length in bytes above which a body is read by this module."""
SLICE: Final = 32 * 1024
"""Bytes counted at a time: at most 2 ms."""
MOST_FIELDS: Final = 1000
"""Maximum fields of the body itself: all of them are looked at each time it is sent."""
HEAVY_BYTES: Final = 1024
"""Length in bytes above which a field of a long body is serialized once, where the body is read, and kept only in that
form."""
_TWICE: Final = "duplicate key in the body: each may be given once"
_SIGNED: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_DIGITS: Final = bytes([ord("0") if 48 <= code <= 57 else ord(" ") for code in range(256)])
_LONG_NUMBER: Final = b"0" * (INT_DIGITS + 1)
_LONG_INTEGER: Final = re.compile(rb"(?<![0-9.eE+])[0-9]{%d,}+(?![.eE])" % (INT_DIGITS + 1))
_CARRIED: Final = 64
"""Bytes of a slice that are looked at again with the next: a number may begin in one and end in the other."""

_read: Final = msgspec.json.Decoder().decode
_write: Final = msgspec.json.Encoder().encode


class JsonCounts(NamedTuple):
    objects: int
    keys: int


def parse_long(body: bytes, limits: WireLimits) -> object:
    """The value in `body`. Raises InvalidRequest."""
    counted = count(body, limits)
    value = _value(body)
    if isinstance(value, dict) and len(value) > MOST_FIELDS:
        raise InvalidRequest(f"body has {len(value)} fields, at most {MOST_FIELDS} are taken")
    if _keys(value, counted.objects) != counted.keys:
        raise InvalidRequest(_TWICE)
    return value


def parse_middling(body: bytes, limits: WireLimits) -> object:
    """The same, for a body of at most LONG_BYTES: its counts are not bounded. Keys are counted in the value written
    again, which is faster than looking at each object."""
    if too_deep(body, limits.json_depth):
        raise InvalidRequest(f"body is nested deeper than {limits.json_depth}")
    outside = _outside(body)
    _refuse_long_integers(outside)
    value = _value(body)
    if _outside(_write(value)).count(b":") != outside.count(b":"):
        raise InvalidRequest(_TWICE)
    return value


def _value(body: bytes) -> object:
    try:
        return _read(body)
    except UnicodeDecodeError:
        raise InvalidRequest(f"body is not UTF-8 at byte {_first_not_utf8(body)}") from None
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"body is not JSON: {str(error).removeprefix('JSON is malformed: ')}") from None


def _outside(body: bytes) -> bytes:
    """The bytes outside of strings."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(body.split(b'"')[::2])


def count(body: bytes, limits: WireLimits) -> JsonCounts:
    """Counts objects and keys outside of strings. Raises InvalidRequest past a limit. For a body that is not JSON the
    counts mean nothing."""
    start = depth = objects = costly = keys = values = 0
    in_string, carried = 0, b""
    while start < len(body):
        piece = body[start : start + SLICE]
        if len(piece) == SLICE and (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = piece[:-1]  # the last backslash belongs to the next slice
        start += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = b"".join(parts[in_string::2])
        in_string ^= (len(parts) - 1) & 1
        objects += outside.count(b"{")
        costly += outside.count(b"{") + outside.count(b"[") + outside.count(b".") + outside.count(b"e")
        keys += outside.count(b":")
        values += outside.count(b",")
        levels = memoryview(outside.translate(_SIGNED, _NOT_BRACKETS)).cast("b")
        if levels:
            heights = list(accumulate(levels, initial=depth))
            depth = heights[-1]
            if max(heights) > limits.json_depth:
                raise InvalidRequest(f"body is nested deeper than {limits.json_depth}")
        if costly > limits.json_containers:
            kinds = "objects, arrays, fractions and words such as true"
            raise InvalidRequest(f"body has more than {limits.json_containers} {kinds}")
        if keys > 2 * limits.json_containers:
            raise InvalidRequest(f"body has more than {2 * limits.json_containers} keys")
        if values > limits.json_values:
            raise InvalidRequest(f"body has more than {limits.json_values} values")
        _refuse_long_integers(carried + outside)
        carried = outside[-_CARRIED:]
    return JsonCounts(objects, keys)


def _refuse_long_integers(outside: bytes) -> None:
    if outside.translate(_DIGITS).find(_LONG_NUMBER) >= 0 and _LONG_INTEGER.search(outside):
        raise InvalidRequest(f"integer of more than {INT_DIGITS} digits in the body")


def _keys(value: object, objects: int) -> int:
    """Keys of all objects in the value, which has `objects` of them."""
    found = keys = 0
    waiting: list[object] = [value]
    while waiting and found < objects:
        node = waiting.pop()
        if isinstance(node, dict):
            found += 1
            keys += len(node)
            waiting.extend([one for one in node.values() if isinstance(one, dict | list)])
        elif isinstance(node, list):
            waiting.extend([one for one in node if isinstance(one, dict | list)])
    return keys


def _first_not_utf8(body: bytes) -> int:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0  # not reached: the body is known not to be UTF-8


# -- written again ------------------------------------------------------------------------------------------------


def lightened(body: dict[str, Any]) -> dict[str, Any]:
    """The same body with long fields serialized: so they need not be serialized where other requests wait, and a text
    takes up to four times its size while it is parsed."""
    return {name: _light(value) for name, value in body.items()}


def _light(value: Any) -> Any:
    if not isinstance(value, str | dict | list):
        return value
    text = _write(value)
    return msgspec.Raw(text) if len(text) > HEAVY_BYTES else value


def whole(body: dict[str, Any]) -> dict[str, Any]:
    """The same body with all fields parsed again."""
    return {name: _read(value) if isinstance(value, msgspec.Raw) else value for name, value in body.items()}
