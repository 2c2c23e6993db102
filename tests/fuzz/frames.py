"""WebSocket frames: an upgrade, then messages, fragments, control frames and lies about their length."""

import random

from tests.fuzz.bodies import ask
from tests.fuzz.odd import dumped, mutated, value

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = (
    b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    b"sec-websocket-key: %b\r\nsec-websocket-version: %b\r\n\r\n"
)


def upgrade(rng: random.Random) -> bytes:
    path = rng.choice(
        (b"/v1/chat/completions", b"/v1/completions", b"/v1/chat/completions", b"/v1/responses", b"/health/live")
    )
    said = UPGRADE % (path, rng.choice((KEY,) * 9 + (b"", b"short")), rng.choice((b"13",) * 9 + (b"8", b"x")))
    return mutated(rng, said) if rng.random() < 0.1 else said


def frames(rng: random.Random) -> list[bytes]:
    said = [b"".join(message(rng)) for _ in range(rng.choice((1, 2, 6)))]
    if rng.random() < 0.2:
        said[-1] = mutated(rng, said[-1])
    if rng.random() < 0.6:
        code = rng.choice(
            (b"", b"\x03\xe8", b"\x03\xe8bye", b"\0", b"\0\0", b"\x03\xed", b"\xff\xff", b"\x03\xe8\xff\xfe")
        )
        said.append(frame(rng, 8, code))
    return said


def message(rng: random.Random) -> list[bytes]:
    match rng.randrange(9):
        case 0:
            return [frame(rng, rng.choice((9, 10)), rng.randbytes(rng.choice((0, 5, 125, 126, 300))))]
        case 1:
            return [frame(rng, rng.randrange(16), rng.randbytes(rng.choice((0, 3, 200))))]
        case 2:
            return [frame(rng, 1, dumped({"type": "cancel"}))]
        case 3:
            return [frame(rng, rng.choice((1, 2)), dumped(value(rng)))]
        case 4:
            return [frame(rng, 1, b"\xff\xfe" + rng.randbytes(9))]
        case 5:
            said = ask(rng).body
            at = rng.randrange(len(said) + 1)
            between = [frame(rng, 9, b"p")] if rng.random() < 0.5 else []
            return [frame(rng, 1, said[:at], last=False), *between, frame(rng, rng.choice((0, 0, 0, 1)), said[at:])]
        case 6:
            return [frame(rng, 1, b"", last=False)] + [frame(rng, 0, b"", last=False)] * rng.choice((5, 5_000))
        case _:
            return [frame(rng, 1, ask(rng).body)]


def frame(rng: random.Random, opcode: int, payload: bytes, last: bool = True) -> bytes:
    masked = rng.random() < 0.97
    first = (last << 7) | opcode | (rng.choice((0,) * 30 + (1, 2, 4)) << 4)
    length, lie = len(payload), rng.random()
    if lie < 0.02:
        length = rng.choice((2**63 - 1, 2**63, 2**32, length + 5, 9 << 20))
    mask = rng.randbytes(4)
    if length < 126 and lie > 0.03:
        sized = bytes((first, (masked << 7) | length))
    elif length < 65_536 and lie > 0.02:
        sized = bytes((first, (masked << 7) | 126)) + length.to_bytes(2)
    else:
        sized = bytes((first, (masked << 7) | 127)) + length.to_bytes(8)
    if not masked:
        return sized + payload
    key = (mask * (len(payload) // 4 + 1))[: len(payload)]
    return sized + mask + (int.from_bytes(payload) ^ int.from_bytes(key)).to_bytes(len(payload))
