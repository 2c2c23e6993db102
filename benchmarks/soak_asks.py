"""What the soak's clients ask: every kind of request, good and bad, drawn at random."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BIG = 96 * 1024
READ, LEAVE, CRAWL = "read", "leave", "crawl"
"""What its client does with the answer."""
CHAT, TEXT, EMBEDDINGS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"


@dataclass(frozen=True, slots=True)
class Ask:
    kind: str
    path: str
    body: bytes
    stream: bool = False
    manner: str = READ
    head: str = "content-type: application/json\r\n"
    method: str = "POST"
    counted: bool = True
    """Whether it reaches a handler, and so has an outcome."""
    expected: frozenset[int] = frozenset()
    """Statuses; empty: 200, or any refusal or failure."""
    key: str | None = None
    """None: any tenant's."""
    alone: bool = False
    """On a connection of its own, which the gateway closes."""


def prompt(rng: random.Random, gap_us: int, tokens: int, size: int = 6) -> str:
    """No two are alike; three of four begin as others do. The engines read in it how they are to answer."""
    shared = f"You are assistant number {rng.randrange(20)}. " * 8 if rng.random() < 0.75 else ""
    return f"{shared}MOCK:ttft={rng.randrange(8000)},itl={gap_us},n={tokens},size={size}, {rng.getrandbits(64):x}"


def chat(rng: random.Random, stream: bool, gap_us: int = 0, tokens: int | None = None, size: int = 6) -> dict[str, Any]:
    tokens = tokens or 1 + rng.randrange(24)
    messages = [{"role": "user", "content": prompt(rng, gap_us, tokens, size)}]
    body: dict[str, Any] = {"model": "mock", "messages": messages, "max_tokens": tokens, "stream": stream}
    if rng.random() < 0.5:
        body["user"] = f"user {rng.randrange(100_000)}"
    return body


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def whole(rng: random.Random) -> Ask:
    return Ask("chat", CHAT, _encoded(chat(rng, stream=False)))


def streamed(rng: random.Random) -> Ask:
    return Ask(
        "chat, streamed", CHAT, _encoded(chat(rng, stream=True, gap_us=rng.choice((0, 1000, 5000)))), stream=True
    )


def laned(rng: random.Random) -> Ask:
    """Only a trusted tenant's lane counts; everybody may name one."""
    lane = rng.choice(("fast", "slow", "long", "batch", "agents"))
    head = (
        f"content-type: application/json\r\nx-headgate-lane: {lane}\r\nx-headgate-session: {rng.getrandbits(40):x}\r\n"
    )
    return Ask("chat, in a lane it names", CHAT, _encoded(chat(rng, stream=True)), stream=True, head=head)


def text(rng: random.Random) -> Ask:
    stream, tokens = rng.random() < 0.5, 1 + rng.randrange(24)
    body = {"model": "mock", "prompt": prompt(rng, 0, tokens), "max_tokens": tokens, "stream": stream}
    return Ask("text completion", TEXT, _encoded(body), stream=stream)


def embedding(rng: random.Random) -> Ask:
    return Ask("embeddings", EMBEDDINGS, _encoded({"model": "embed", "input": f"text {rng.getrandbits(64):x}"}))


def response(rng: random.Random) -> Ask:
    stream = rng.random() < 0.5
    body = {"model": "mock", "input": prompt(rng, 0, 8), "max_output_tokens": 8, "stream": stream}
    return Ask("response", RESPONSES, _encoded(body), stream=stream)


def big(rng: random.Random) -> Ask:
    """Understood in a thread of its own."""
    body = chat(rng, stream=False)
    body["messages"].insert(0, {"role": "system", "content": f"{rng.getrandbits(64):x} " + "long " * (BIG // 5)})
    return Ask("chat, 96 KiB", CHAT, _encoded(body))


def leaver(rng: random.Random) -> Ask:
    stream = rng.random() < 0.6
    body = chat(rng, stream=stream, gap_us=20_000, tokens=12)
    return Ask("leaves early", CHAT, _encoded(body), stream=stream, manner=LEAVE)


def crawler(rng: random.Random) -> Ask:
    """Two megabytes that are not read for a while."""
    body = chat(rng, stream=True, tokens=100, size=20_000)
    return Ask("reads slowly", CHAT, _encoded(body), stream=True, manner=CRAWL, alone=True)


def unknown_model(rng: random.Random) -> Ask:
    body = chat(rng, stream=False) | {"model": f"model-{rng.getrandbits(40):x}"}
    return Ask("unknown model", CHAT, _encoded(body), expected=frozenset({404, 429}))


def wrong_key(rng: random.Random) -> Ask:
    key = f"sk-{rng.getrandbits(64):x}"
    return Ask("wrong key", CHAT, _encoded(chat(rng, stream=False)), key=key, expected=frozenset({401}))


def bad_body(rng: random.Random) -> Ask:
    body = rng.choice(BAD_BODIES)
    return Ask("bad body", CHAT, body, expected=frozenset({400}))


def no_request(rng: random.Random) -> Ask:
    return rng.choice(NO_REQUESTS)


BAD_BODIES = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"model": "mock"}',
    b'{"model": "mock", "messages": []}',
    b'{"model": "mock", "messages": 5}',
    b'{"model": "mock", "messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
    b'{"model": "mock", "messages": [{"role": "user", "content": "x"}], "stream": "yes"}',
    b'{"model": "mock", "model": "mock", "messages": [{"role": "user", "content": "x"}]}',
    b'{"model": "mock", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    b'{"model": "mock", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
    b'{"model": "mock", "messages": ' + b"[" * 100 + b"]" * 100 + b"}",
)
NO_REQUESTS = (
    Ask("no such path", "/v1/nothing", b"{}", counted=False, expected=frozenset({404})),
    Ask("wrong method", CHAT, b"", method="DELETE", counted=False, expected=frozenset({405})),
    Ask("wrong type", CHAT, b"x", head="content-type: text/plain\r\n", counted=False, expected=frozenset({415})),
    Ask(
        "body too large", CHAT, b"", head="content-type: application/json\r\ncontent-length: 99999999\r\n",
        counted=False, expected=frozenset({413}), alone=True,
    ),
    Ask(
        "headers too large", CHAT, b"{}", head=f"content-type: application/json\r\nx-much: {'x' * 20_000}\r\n",
        counted=False, expected=frozenset({431}), alone=True,
    ),
    Ask("not HTTP", "/ nonsense \x01", b"", counted=False, expected=frozenset({400}), alone=True),
)  # fmt: skip
"""They never reach a handler: answered, and counted nowhere."""
MIX: tuple[tuple[Callable[[random.Random], Ask], float], ...] = (
    (whole, 36),
    (streamed, 24),
    (laned, 8),
    (text, 6),
    (embedding, 8),
    (response, 3),
    (big, 0.5),
    (leaver, 6),
    (crawler, 0.15),
    (unknown_model, 1),
    (wrong_key, 2),
    (bad_body, 3),
    (no_request, 2),
)
