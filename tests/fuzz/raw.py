"""Raw HTTP: requests that are nearly right, in pieces, with more behind them, and cut off."""

import random
from dataclasses import dataclass

from tests.fuzz.bodies import ask
from tests.fuzz.odd import mutated

TARGETS = (
    b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/embeddings", b"/tokenize", b"/v1/models",
    b"/v1/models/%ff/../x", b"/health/live", b"/health", b"/metrics", b"/", b"/page/../../x", b"/page/%2e%2e%2f",
    b"*", b"//", b"", b"http://other/v1/models", b"/admin/slow?limit=-1", b"/admin/why/\xff", b"/admin/live",
    b"/admin/lanes", b"/admin/tenants", b"/admin/reload", b"/" + b"a" * 20_000, b"/?" + b"&a=b" * 500,
    b"/openapi.json", b"/docs", b"/admin/usage?by=x",
)  # fmt: skip
METHODS = (
    b"GET",
    b"POST",
    b"POST",
    b"POST",
    b"HEAD",
    b"OPTIONS",
    b"PUT",
    b"DELETE",
    b"CONNECT",
    b"TRACE",
    b"PRI",
    b"get",
    b"X" * 99,
)
VERSIONS = (b"HTTP/1.1",) * 8 + (b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.9", b"", b"http/1.1", b"HTCPCP/1.0")
HEADERS = (
    b"transfer-encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"transfer-encoding: identity",
    b"content-length: 5", b"content-length: -1", b"content-length: 99999999999999999999", b"content-length: 5, 5",
    b"content-encoding: gzip", b"content-encoding: br", b"expect: 100-continue", b"expect: 200-maybe",
    b"connection: close", b"connection: upgrade", b"upgrade: h2c", b"upgrade: websocket", b"host: a", b"host:",
    b"host: a b", b"origin: http://evil.example", b"origin: null", b"sec-fetch-site: cross-site",
    b"content-type: text/plain", b"content-type: application/json; charset=utf-16", b"authorization: Bearer \xff",
    b"authorization: Basic YTpi", b"x-request-id: " + b"a" * 4_000, b"x-request-id: \t\x7f",
    b"traceparent: 00-zz-zz-01", b"x-headgate-lane: nowhere", b"x-headgate-priority: 1e9",
    b"x-headgate-session: " + b"s" * 999, b"x-forwarded-for: 127.0.0.1", b": empty", b"no colon", b" folded: yes",
    b"a: b\r\n c", b"x: \0", b"te: trailers", b"cookie: " + b"c" * 17_000, b"range: bytes=0-1", b"if-none-match: *",
    b"x-llm-d-slo-ttft-ms: -5",
)  # fmt: skip
PREFACES = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 300, b"\r\n\r\n\r\n", b"\0" * 999, b"SSH-2.0-x\r\n",
    b"GET /\r\n\r\n", b"GET / HTTP/1.1\n\n", b"*1\r\n$4\r\nPING\r\n",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Talk:
    """What one connection says."""

    pieces: tuple[bytes, ...]
    leaves: bool
    """It is gone once it has said all; otherwise it says that it has, and listens to the end."""


def talk(rng: random.Random) -> Talk:
    if rng.random() < 0.08:
        return Talk(cut(rng, rng.choice(PREFACES)), leaves=False)
    said = b"".join(request(rng) for _ in range(rng.choice((1, 1, 1, 2, 20))))
    if rng.random() < 0.6:
        said = mutated(rng, said)
    return Talk(cut(rng, said), leaves=rng.random() < 0.2)


def request(rng: random.Random) -> bytes:
    body = ask(rng)
    line = b" ".join((rng.choice(METHODS), rng.choice((body.path.encode(), *TARGETS)), rng.choice(VERSIONS)))
    headers = [b"host: 127.0.0.1", b"content-type: application/json", *rng.sample(HEADERS, rng.choice((0, 0, 1, 2, 5)))]
    if rng.random() < 0.02:
        headers += [b"x-%d: y" % index for index in range(rng.choice((90, 110, 3_000)))]
    data = body.body
    if rng.random() < 0.3:
        headers.append(b"transfer-encoding: chunked")
        data = chunked(rng, data)
    elif rng.random() < 0.9:
        headers.append(b"content-length: %d" % len(data))
    rng.shuffle(headers)
    return b"\r\n".join((line, *headers, b"", data))


def chunked(rng: random.Random, data: bytes) -> bytes:
    size = rng.choice((1, 2, 50, 5_000, 100_000))
    data = data[: size * 3_000]
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    extension = rng.choice((b"",) * 6 + (b";a=b", b";" + b"x" * 20_000, b" "))
    chunks = [b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts]
    end = rng.choice((b"0\r\n\r\n",) * 6 + (b"0\r\nx: y\r\n\r\n", b"", b"fffffffffffffffff\r\n", b"-1\r\n", b"0\r\n"))
    return b"".join(chunks) + end


def cut(rng: random.Random, said: bytes) -> tuple[bytes, ...]:
    if rng.random() < 0.5 or len(said) < 2:
        return (said,)
    places = sorted(rng.sample(range(1, len(said)), min(len(said) - 1, rng.choice((1, 2, 20)))))
    return tuple(said[start:end] for start, end in zip((0, *places), (*places, len(said)), strict=True))
