"""Odd values and odd bytes: what a generator puts where something ordinary belongs."""

import json
import random
import re
import string
from collections.abc import Callable
from typing import Any

ODD_NUMBERS = (
    0, -1, 1, 2, 3, 128, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**18, 10**30, 0.5, -0.0, 100.0, 1e-320, 1e308,
    -1e308,
)  # fmt: skip
ODD_TEXTS = (
    "", " ", "\0", "null", "true", "-1", "1e999", "default", "../../etc/passwd", "a\r\nx-evil: 1", "%00", "\u202e",
    "💥" * 9, "\ud800", "data: [DONE]\n\n", "</script>", "{{7*7}}", "' OR 1=1 --", "say=500", "\x1b[31m", "A" * 300,
)  # fmt: skip
LITERALS = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1" + b"0" * 400,
    b"1e99999",
    b"-" + b"9" * 30,
    b"0x10",
    b"01",
    b"1.",
    b"'a'",
)
"""Not JSON, or JSON that few can hold."""


class Literal(str):
    """Stands in a value for bytes that `dumped` writes as they are."""


def value(rng: random.Random, depth: int = 3) -> Any:
    """Anything that JSON can say, and now and then what it can't."""
    makers: tuple[Callable[[random.Random, int], Any], ...] = (
        lambda rng, depth: rng.choice((None, True, False)),
        lambda rng, depth: rng.choice(ODD_NUMBERS),
        lambda rng, depth: rng.choice(ODD_TEXTS),
        lambda rng, depth: Literal(rng.choice(LITERALS).decode()),
        lambda rng, depth: text(rng, rng.choice((3, 30, 3_000))),
        _list,
        _object,
        _nested,
    )
    weights = (3, 6, 4, 1, 2, 2, 2, 1) if depth else (3, 6, 4, 1, 2, 0, 0, 0)
    return rng.choices(makers, weights)[0](rng, depth)


def _list(rng: random.Random, depth: int) -> Any:
    if rng.random() < 0.1:
        return [value(rng, 0)] * rng.choice((100, 5_000))
    return [value(rng, depth - 1) for _ in range(rng.randrange(4))]


def _object(rng: random.Random, depth: int) -> Any:
    if rng.random() < 0.1:
        return {str(index): rng.choice(ODD_NUMBERS) for index in range(rng.choice((50, 1_000)))}
    return {name(rng): value(rng, depth - 1) for _ in range(rng.randrange(4))}


def _nested(rng: random.Random, depth: int) -> Any:
    inner: Any = value(rng, 0)
    for _ in range(rng.choice((5, 60, 70, 400))):
        inner = [inner] if rng.random() < 0.5 else {"a": inner}
    return inner


def name(rng: random.Random) -> str:
    return rng.choice(("type", "text", "content", "id", "name", "$ref", "0", "", "role")) + text(rng, 2)


def text(rng: random.Random, length: int) -> str:
    return "".join(rng.choices(string.ascii_letters + '   "\\\n{}[]:,', k=rng.randrange(length + 1)))


def dumped(thing: Any) -> bytes:
    """Its JSON, with surrogates and literals as they are."""
    marked: list[str] = []

    def mark(part: Any) -> Any:
        if isinstance(part, Literal):
            marked.append(part)
            return f"\x01{len(marked) - 1}\x01"
        if isinstance(part, dict):
            return {key: mark(inner) for key, inner in part.items()}
        return [mark(inner) for inner in part] if isinstance(part, list) else part

    try:
        said = json.dumps(mark(thing)).encode()
    except RecursionError:
        return b'{"a":' * 3_000 + b"1" + b"}" * 3_000
    return re.sub(rb'"\\u0001(\d+)\\u0001"', lambda found: marked[int(found[1])].encode(), said)


def mutated(rng: random.Random, data: bytes, most: int = 4) -> bytes:
    """A few bytes flipped, cut out, doubled, exchanged or put in."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, most)):
        at = rng.randrange(len(changed) + 1)
        length = min(rng.choice((1, 1, 2, 8, 64)), len(changed) - at)
        match rng.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at : at + length]
            case 2:
                changed[at:at] = changed[at : at + length] * rng.choice((1, 2, 50))
            case 3:
                changed[at:at] = rng.choice(
                    (b"\0", b"\r", b"\n", b"\r\n", b"\xff", b":", b" ", b"{", b"]", b'"', b"\xc3")
                )
            case 4:
                changed[at:at] = rng.randbytes(length)
            case _:
                changed[at:] = changed[at : at + rng.randrange(1, 200)]
    return bytes(changed)
