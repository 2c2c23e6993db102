"""Engines' answers: an ordinary one, whole or streamed, with something wrong in its head, its JSON or its bytes."""

import random
from dataclasses import dataclass
from typing import Any

from tests.fuzz.odd import dumped, mutated, text, value

STATUSES = (200,) * 30 + (
    0,
    100,
    101,
    103,
    199,
    201,
    204,
    206,
    301,
    304,
    400,
    401,
    403,
    404,
    408,
    413,
    422,
    429,
    500,
    503,
    599,
    999,
)
HEADERS = (
    b"retry-after: -5", b"retry-after: 1e99", b"retry-after: Wed, 21 Oct 2099 07:28:00 GMT", b"retry-after: \xff",
    b"content-encoding: gzip", b"connection: close", b"connection: upgrade", b"transfer-encoding: gzip",
    b"set-cookie: a=b", b"x: " + b"y" * 70_000, b"no colon", b"\xff: \xff", b"x-request-id: other", b"location: /x",
    b"trailer: x", b"content-type: text/html", b"content-type: text/plain; charset=utf-16",
)  # fmt: skip
KEYS = (
    "id", "object", "created", "model", "choices", "usage", "error", "system_fingerprint", "metrics", "timings",
    "data", "output", "index", "delta", "message", "text", "finish_reason", "stop_reason", "logprobs", "content",
    "role", "reasoning_content", "tool_calls", "prompt_tokens", "completion_tokens", "total_tokens",
    "prompt_tokens_details", "cached_tokens", "status", "code",
)  # fmt: skip
PROBES = (
    "/health",
    "/v1/models",
    "/metrics",
    "/props",
    "/slots",
    "/health_generate",
    "/server_info",
    "/get_server_info",
    "/load",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine writes on the connection, piece by piece."""

    pieces: tuple[bytes, ...]
    then: str
    """`keep`: the connection stays. `close`: it is closed. `reset`: it is reset. `hang`: nothing more ever comes."""


def answer(rng: random.Random, path: str, stream: bool) -> Answer:
    pieces = streamed(rng) if stream and rng.random() < 0.85 else whole(rng, path)
    if rng.random() < 0.25:
        at = rng.randrange(len(pieces))
        pieces[at] = mutated(rng, pieces[at])
    if rng.random() < 0.2:
        pieces = pieces[: rng.randint(0, len(pieces))]
    # An engine that says nothing at all may still be computing an answer in one piece: the gateway waits for it.
    return Answer(tuple(pieces), rng.choice(("keep", "keep", "keep", "close", "reset", "hang")) if pieces else "hang")


def probe(rng: random.Random, path: str) -> Answer:
    """The same to a question about the engine itself. Often in order, so that the replica is used now and then."""
    ordinary = (
        dumped({"object": "list", "data": [{"id": "worse", "object": "model"}]}) if path == "/v1/models" else b"{}"
    )
    if rng.random() < 0.6:
        return Answer((head(200, b"application/json", len(ordinary)), ordinary), "keep")
    if path == "/metrics" and rng.random() < 0.7:
        lines = [
            b"vllm:num_requests_%b %b" % (rng.choice((b"running", b"waiting", b'x{a="}')), dumped(value(rng, 0)))
            for _ in range(5)
        ]
        said = b"\n".join(lines)
        return Answer((head(200, b"text/plain", len(said)), said), "keep")
    return answer(rng, path, stream=False)


def head(status: int, kind: bytes, length: int | None, *more: bytes) -> bytes:
    sized = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
    return b"\r\n".join((b"HTTP/1.1 %d X" % status, b"content-type: " + kind, sized, *more, b"", b""))


def _more(rng: random.Random) -> list[bytes]:
    return rng.sample(HEADERS, rng.choice((0,) * 8 + (1, 2)))


def whole(rng: random.Random, path: str) -> list[bytes]:
    choice = {"index": 0, "text": "w", "message": {"role": "assistant", "content": "w"}, "finish_reason": "stop"}
    body: Any = {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage(rng)}
    if path == "/v1/embeddings":
        body = {"object": "list", "data": [{"embedding": [0.0], "index": 0}]}
    for _ in range(rng.choice((0, 1, 1, 3))):
        body = spoiled(rng, body)
    said = dumped(body)
    match rng.randrange(20):
        case 0:
            said = rng.choice((b"", b"<html>nginx</html>", b"null", b"[]", b'"x"', b"\xff\xfe", b"{", b'{"a":' * 2_000))
        case 1:
            said = b"[" * rng.choice((1_000, 100_000)) if rng.random() < 0.5 else b"x" * rng.choice((1 << 20, 9 << 20))
        case _:
            pass
    length = len(said) + rng.choice((0,) * 20 + (-1, 5, 10**12))
    first = rng.choice((b"",) * 20 + (b"HTTP/1.1 100 Continue\r\n\r\n" * 3, b"HTTP/1.1 103 X\r\nlink: a\r\n\r\n"))
    return [first + head(rng.choice(STATUSES), b"application/json", max(0, length), *_more(rng)), said]


def streamed(rng: random.Random) -> list[bytes]:
    events = [dumped(chunk(rng, last=index == 3)) for index in range(rng.choice((0, 1, 4, 4, 4, 40)))]
    events.append(dumped({"id": "x", "choices": [], "usage": usage(rng)}))
    events.append(rng.choice((b"[DONE]",) * 9 + (b"[DONE", b"", b"null")))
    for _ in range(rng.choice((0, 0, 1, 2))):
        events.insert(rng.randrange(len(events)), odd_event(rng))
    feed = rng.choice((b"\n\n",) * 9 + (b"\r\n\r\n", b"\n", b"\r\r"))
    written = [
        rng.choice((b"data: ",) * 12 + (b"data:", b"event: x\ndata: ", b": c\ndata: ", b"")) + one + feed
        for one in events
    ]
    if rng.random() < 0.8:
        written = [b"%x\r\n%b\r\n" % (len(one), one) for one in written] + [b"0\r\n\r\n"]
        return [head(rng.choice(STATUSES), b"text/event-stream", None, *_more(rng)), *written]
    return [head(200, b"text/event-stream", sum(map(len, written)) + rng.choice((0, 0, 9)), *_more(rng)), *written]


def chunk(rng: random.Random, last: bool) -> Any:
    delta = {"role": "assistant", "content": text(rng, 5)}
    choice = {
        "index": rng.choice((0,) * 9 + (1,)),
        "delta": delta,
        "text": "w",
        "finish_reason": "stop" if last else None,
    }
    made: Any = {"id": "x", "object": "chat.completion.chunk", "choices": [choice]}
    return spoiled(rng, made) if rng.random() < 0.2 else made


def odd_event(rng: random.Random) -> bytes:
    return rng.choice(
        (
            b'{"error":{"message":"out of memory","code":500}}',
            b'{"error":"x"}',
            b"\xff\xfe",
            b"{" * rng.choice((5, 5_000)),
            b'{"choices":' + b"[" * 3_000,
            b"x" * rng.choice((100, 300_000, 2_000_000)),
            dumped(value(rng)),
        )
    )


def usage(rng: random.Random) -> Any:
    told: dict[str, Any] = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    if rng.random() < 0.3:
        told[rng.choice(list(told))] = value(rng, 1)
    if rng.random() < 0.2:
        told["prompt_tokens_details"] = {"cached_tokens": value(rng, 1)}
    return told


def spoiled(rng: random.Random, thing: Any) -> Any:
    """The same with one value, somewhere in it, exchanged for an odd one."""
    if isinstance(thing, dict) and thing and rng.random() < 0.85:
        key = rng.choice(list(thing)) if rng.random() < 0.85 else rng.choice(KEYS)
        return {**thing, key: spoiled(rng, thing.get(key))}
    if isinstance(thing, list) and thing and rng.random() < 0.85:
        return [spoiled(rng, thing[0]), *thing[1:]]
    return value(rng, 2)
