"""Parses a body as JSON, and accepts only JSON that every parser reads the same way.

Strict where parsers differ (duplicate keys, NaN, lone surrogates, huge numbers): the server behind us may read the same
bytes another way.

Long bodies are counted first (long_json.py). Most short ones are in the one form that leaves no doubt (canonical.py).
All others up to SEARCHED_BYTES go to the standard library's parser, because only it shows duplicate keys and where they
are: 7 µs for a chat request of 310 bytes. That parser calls us for each object and number, and a flawed body is
searched once more: 17 ms for 60 kB of small objects. Bodies between the two lengths are therefore read as long ones
are, and their keys are counted without a look at each object: at most 5 ms.
"""

import json
import re
from collections.abc import Callable
from typing import Final, NoReturn, TypeVar

import msgspec

from headgate.model.errors import InvalidRequest
from headgate.wire.body.canonical import INT_DIGITS, NOT_CANONICAL, canonical, too_deep
from headgate.wire.body.long_json import LONG_BYTES, parse_long, parse_middling
from headgate.wire.limits import WireLimits

T = TypeVar("T")

SEARCHED_BYTES: Final = 8 * 1024
"""Length in bytes above which the place of a flaw in a body is not searched for."""
_FLOAT_CHARS = 64
_SEARCHED = 10_000
"""Values looked at to find where a flaw is: naming the place is a courtesy, not worth stalling other requests."""

_CONVERT_PATH = re.compile(r" - at `(\$[^`]*)`$")
_TOP_FIELD = re.compile(r"\$\.([^.\[]+)")
_NAMED_FIELD = re.compile(r"field `([^`]*)`")
_PLAIN_KEY = re.compile(r"\w{1,64}")


class _Flaw(ValueError):
    """Valid syntax that we refuse. Raised by the first parser; on the search it stands in place of the flawed value."""


def parse(body: bytes, limits: WireLimits) -> object:
    """The value in `body`. Raises InvalidRequest and nothing else. A body longer than LONG_BYTES takes a while: parse
    it in a thread."""
    if len(body) > LONG_BYTES:
        return parse_long(body, limits)
    value = canonical(body, limits.json_depth)
    return parse_strictly(body, limits) if value is NOT_CANONICAL else value


def parse_strictly(body: bytes, limits: WireLimits) -> object:
    """The same, for a body of at most LONG_BYTES that is known not to be canonical."""
    if len(body) > SEARCHED_BYTES:
        return parse_middling(body, limits)
    try:
        value = _decode(body.decode())
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"body is not UTF-8 at byte {error.start}") from None
    except StopIteration as stopped:
        raise InvalidRequest(f"body is not JSON: Expecting value at character {stopped.value}") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"body is not JSON: {error.msg} at character {error.pos}") from None
    except _Flaw as flaw:
        _refuse(*_find_flaw(body, flaw))
    except RecursionError:
        raise InvalidRequest(f"body is nested deeper than {limits.json_depth}") from None
    if too_deep(body, limits.json_depth):
        _refuse(f"nested deeper than {limits.json_depth}", _find_depth(value, limits.json_depth))
    if (b"\\ud" in body or b"\\uD" in body) and not _encodable(value):
        _refuse("lone surrogate", _find_surrogate(value))
    return value


def decode(body: bytes, type: type[T], limits: WireLimits) -> T:
    """`body` as a Struct, or any other type that msgspec converts to."""
    return convert(parse(body, limits), type)


def convert(value: object, type: type[T]) -> T:
    """A value from `parse` as a Struct."""
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as error:
        message = str(error)
    path = _CONVERT_PATH.search(message)
    # msgspec leaves out the path `$`, but names the field that is missing or unknown there.
    field = _TOP_FIELD.match(path[1]) if path else _NAMED_FIELD.search(message)
    raise InvalidRequest(message, param=field[1] if field else None)


# -- the parser's hooks --------------------------------------------------------------------------


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Flaw("duplicate key")
    return found


def _int(text: str) -> int:
    if len(text.lstrip("-")) > INT_DIGITS:
        raise _Flaw(f"integer of more than {INT_DIGITS} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text) if len(text) <= _FLOAT_CHARS else float("inf")
    if value - value != 0.0:  # true only of inf and nan
        raise _Flaw("number out of range")
    return value


def _constant(text: str) -> NoReturn:
    raise _Flaw(f"{text} is not JSON")


def _decode(text: str) -> object:
    """Decodes as the decoder would, without its search for white space around a body that has none: a tenth of the
    time."""
    if text[:1] == "{" and text[-1:] == "}":
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    return _strict.decode(text)


_strict = json.JSONDecoder(object_pairs_hook=_object, parse_int=_int, parse_float=_float, parse_constant=_constant)
_scan: Callable[[str, int], tuple[object, int]] = vars(_strict)["scan_once"]


def _encodable(value: object) -> bool:
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return False
    return True


# -- where is it? Asked only about a body that is refused ----------------------------------------

Place = tuple[str | int, ...]


def _refuse(flaw: str, place: Place) -> NoReturn:
    path = "".join(_step(key) for key in place)
    param = place[0][:64] if place and isinstance(place[0], str) else None
    raise InvalidRequest(f"{flaw} at `${path}`", param=param)


def _step(key: str | int) -> str:
    if isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
        return f".{key}"
    return f"[{key}]" if isinstance(key, int) else f"[{key[:64]!r}]"


def _walk(value: object) -> list[tuple[object, Place]]:
    """Values with their places, outermost first, until _SEARCHED are found."""
    found: list[tuple[object, Place]] = [(value, ())]
    for node, place in found:
        if len(found) > _SEARCHED:
            break
        if isinstance(node, dict):
            found.extend((child, (*place, key)) for key, child in node.items())
        elif isinstance(node, list):
            found.extend((child, (*place, i)) for i, child in enumerate(node[:_SEARCHED]))
    return found


def _find_flaw(body: bytes, flaw: _Flaw) -> tuple[str, Place]:
    try:
        tree = _marking.decode(body.decode())
    except (ValueError, RecursionError):  # malformed further on as well
        return str(flaw), ()
    found = ((str(node), place) for node, place in _walk(tree) if isinstance(node, _Flaw))
    return next(found, (str(flaw), ()))


def _find_depth(value: object, limit: int) -> Place:
    return next((place for _, place in _walk(value) if len(place) >= limit), ())


def _find_surrogate(value: object) -> Place:
    for node, place in _walk(value):
        if isinstance(node, str) and not _encodable(node):
            return place
        if isinstance(node, dict) and not _encodable(list(node)):
            return place
    return ()


def _marked(hook: Callable[[str], object]) -> Callable[[str], object]:
    def mark(text: str) -> object:
        try:
            return hook(text)
        except _Flaw as flaw:
            # Not the flaw that was raised: through its traceback it holds the frames that will hold it, and with them
            # the whole body, until the garbage collector comes.
            return _Flaw(*flaw.args)

    return mark


def _marked_object(pairs: list[tuple[str, object]]) -> object:
    found: dict[str, object] = {}
    for key, value in pairs:
        found[key] = _Flaw("duplicate key") if key in found else value
    return found


_marking = json.JSONDecoder(
    object_pairs_hook=_marked_object,
    parse_int=_marked(_int),
    parse_float=_marked(_float),
    parse_constant=_marked(_constant),
)
