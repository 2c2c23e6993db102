"""Tests whether anything between here and the gateway holds tokens back, or hides that a client has left.

One short answer is streamed through the address that clients use, and the arrival times of its events are compared with
the times at which the gateway sent them, taken from its own record of the request. A second request is abandoned in the
middle, and the gateway is asked whether it has noticed.
"""

import json
import ssl
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import SHUT_RDWR
from threading import Event
from typing import Any
from urllib.parse import quote, urlsplit

from headgate.explain.explanation import seconds
from headgate.model.clock import Clock, monotonic

Look = Callable[[str], tuple[int, dict[str, Any]]]
"""A GET to the gateway itself: returns status and JSON. Raises what AdminClient.get raises."""
NOTICED_S = 1.0
"""Seconds within which the gateway must notice that a client has left."""
TOO_QUICK_S = 0.05
"""An answer sent within these seconds says nothing about what lies between."""
HELD_SHARE = 0.5
"""Events that arrive within this share of the time over which they were sent were held back."""
LUMP_S = 0.25
"""Seconds by which a gap must be longer here than at the gateway to count as held back."""
LEAST_EVENTS = 8
PAUSE_S = 0.01
"""Seconds between two questions about the same request."""
TIMEOUT_S = 60.0
_ERRORS = (OSError, HTTPException, ValueError)
_EXPORTS = {"nginx": "nginx", "openresty": "nginx", "envoy": "envoy", "cloudflare": "cloudflare", "awselb": "alb"}

Finding = dict[str, Any]
"""In the format of /admin/doctor."""


@dataclass(frozen=True, slots=True)
class Tries:
    """The prompts and lengths of the two requests."""

    streamed: str = "Count from one to fifty in words, one number on each line."
    streamed_tokens: int = 64
    left: str = "Tell a very long story about a lighthouse keeper and the sea."
    left_tokens: int = 512


@dataclass(frozen=True, slots=True)
class ProbeReport:
    passed: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """What could not be tested, and why."""


@dataclass(slots=True)
class TimedAnswer:
    """An answer as it arrived here."""

    sent_at: float
    headers: dict[str, str]
    at: list[float]
    """Arrival time of each event, on the clock."""

    @property
    def over_s(self) -> float:
        return self.at[-1] - self.at[0] if self.at else 0.0

    @property
    def longest_gap_s(self) -> float:
        return max((b - a for a, b in zip(self.at, self.at[1:], strict=False)), default=0.0)


class Untried(Exception):
    """The test was not possible; the message says why."""


def probe(
    url: str, api_key: str | None, look: Look, tries: Tries | None = None, clock: Clock = monotonic
) -> ProbeReport:
    """Runs both tests. `url`: the address that clients use; `look` asks the gateway itself."""
    tries, found = tries or Tries(), ProbeReport()
    client = ProbeClient(url, api_key, clock)
    try:
        model = client.model()
        _judge_tokens(client, model, look, tries, found)
        _judge_leaving(client, model, look, tries, found)
    except Untried as why:
        found.skipped.append(str(why))
    return found


# -- tokens -----------------------------------------------------------------------------------------------


def _judge_tokens(client: "ProbeClient", model: str, look: Look, tries: Tries, found: ProbeReport) -> None:
    request_id = _new_id()
    seen = client.stream(_body(model, tries.streamed, tries.streamed_tokens, True), request_id)
    status, answer = look(f"/admin/requests/{quote(request_id)}")
    count = len(seen.at)
    if count < LEAST_EVENTS:
        found.skipped.append(f"whether tokens are held back: the answer had only {count} events")
    elif status != 200:
        _judge_alone(seen, found, status)
    elif answer["record"]["stream_s"] < TOO_QUICK_S:
        found.skipped.append("whether tokens are held back: the answer was too quick to tell")
    else:
        _compare(seen, answer["record"], found)


def _compare(seen: TimedAnswer, record: dict[str, Any], found: ProbeReport) -> None:
    sent_s, count = record["stream_s"], len(seen.at)
    held = seen.over_s < HELD_SHARE * sent_s
    lumps = seen.longest_gap_s > record["max_gap_s"] + LUMP_S
    if not held and not lumps:
        found.passed.append(f"tokens arrive one by one: {count} events over {seconds(seen.over_s)}")
        return
    late_s = seen.at[0] - seen.sent_at - (record["ttft_s"] or 0.0)
    found.findings.append(
        {
            "severity": "critical",
            "figure": "tokens",
            "cause": "something between here and the gateway holds tokens back"
            + (f": {_proxy(seen.headers)}, by what it says" if _proxy(seen.headers) else ""),
            "evidence": {
                "events": count,
                "sent_over_s": sent_s,
                "arrived_over_s": seen.over_s,
                "first_held_for_s": max(0.0, late_s),
                "longest_gap_here_s": seen.longest_gap_s,
            },
            "knob": _knob(seen.headers, "turn off response buffering, caching and compression for /v1/"),
        }
    )


def _judge_alone(seen: TimedAnswer, found: ProbeReport, status: int) -> None:
    """Judges without the gateway's own record: an answer that took long, and then arrived all at once, was held
    back."""
    if seen.at[0] - seen.sent_at > 4 * LUMP_S and seen.over_s < TOO_QUICK_S:
        found.findings.append(
            {
                "severity": "warning",
                "figure": "tokens",
                "cause": "something between here and the gateway probably holds tokens back",
                "evidence": {
                    "events": len(seen.at),
                    "first_after_s": seen.at[0] - seen.sent_at,
                    "arrived_over_s": seen.over_s,
                },
                "knob": _knob(seen.headers, "turn off response buffering, caching and compression for /v1/"),
            }
        )
        return
    found.skipped.append(
        f"whether tokens are held back: the gateway's record of the answer is not shown ({_hint(status)})"
    )


# -- leaving ----------------------------------------------------------------------------------------------


def _judge_leaving(client: "ProbeClient", model: str, look: Look, tries: Tries, found: ProbeReport) -> None:
    """Leaves an answer that is not streamed: while nothing is written, only a proxy that watches the client's
    connection notices."""
    request_id = _new_id()
    path, clock = f"/admin/requests/{quote(request_id)}", client.clock
    with client.asking(_body(model, tries.left, tries.left_tokens, False), request_id) as connection:
        status, answer = _until(clock, lambda: look(path), lambda it: it[0] != 404, 5 * NOTICED_S)
        if status != 200:
            found.skipped.append(f"whether a client's leaving is noticed: {_hint(status)}")
            return
        left_at = clock()
        _leave(connection)
        _, answer = _until(clock, lambda: look(path), lambda it: not it[1].get("running"), NOTICED_S)
    after_s, outcome = clock() - left_at, answer.get("record", {}).get("outcome")
    if answer.get("running"):
        found.findings.append(
            {
                "severity": "critical",
                "figure": "disconnects",
                "cause": "something between here and the gateway hides that a client has left, so the engine works on "
                "for nobody",
                "evidence": {"left_for_s": after_s, "request": request_id},
                "knob": _knob({}, "pass disconnects on (nginx: proxy_ignore_client_abort off)"),
            }
        )
    elif outcome == "cancelled":
        found.passed.append(f"a client that leaves is noticed: after {seconds(after_s)}")
    else:
        found.skipped.append(f"whether a client's leaving is noticed: the answer ended by itself ({outcome})")


def _until(
    clock: Clock,
    ask: Callable[[], tuple[int, dict[str, Any]]],
    enough: Callable[[tuple[int, dict[str, Any]]], bool],
    within_s: float,
) -> tuple[int, dict[str, Any]]:
    ends, nothing = clock() + within_s, Event()
    while not enough(answer := ask()) and clock() < ends:
        nothing.wait(PAUSE_S)
    return answer


def _leave(connection: HTTPConnection) -> None:
    """Disconnects at once, as a killed process does: after shutdown(), not even an unread response keeps the socket
    open."""
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(SHUT_RDWR)
    connection.close()


# -- asking -----------------------------------------------------------------------------------------------


class ProbeClient:
    """Sends what a client of the OpenAI API would send, and times the answer."""

    def __init__(self, url: str, api_key: str | None, clock: Clock) -> None:
        self.clock = clock
        parts = urlsplit(url)
        self._base, self._netloc, self._tls = parts.path.rstrip("/"), parts.netloc, parts.scheme == "https"
        self._headers = {"content-type": "application/json", "accept-encoding": "gzip"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    def model(self) -> str:
        with self._connected() as connection:
            plain = {name: value for name, value in self._headers.items() if name == "authorization"}
            connection.request("GET", f"{self._base}/v1/models", headers=plain)
            answer = self._answer(connection)
            try:
                return str(json.loads(answer.read(1 << 20))["data"][0]["id"])
            except (LookupError, TypeError, ValueError):
                return "default"

    def stream(self, body: bytes, request_id: str) -> TimedAnswer:
        with self._connected() as connection:
            sent_at = self.clock()
            self._send(connection, body, request_id)
            answer = self._answer(connection)
            seen = TimedAnswer(sent_at, {name.lower(): value for name, value in answer.getheaders()}, [])
            plain = _decoder(seen.headers.get("content-encoding", ""))
            rest = b""
            while data := answer.read1(1 << 16):
                *lines, rest = (rest + plain(data)).split(b"\n")
                seen.at += [self.clock()] * sum(line.startswith(b"data: {") for line in lines)
            return seen

    @contextmanager
    def asking(self, body: bytes, request_id: str) -> Iterator[HTTPConnection]:
        """Sends a request whose answer is not read."""
        with self._connected() as connection:
            self._send(connection, body, request_id)
            yield connection

    def _send(self, connection: HTTPConnection, body: bytes, request_id: str) -> None:
        headers = {**self._headers, "x-request-id": request_id}
        connection.request("POST", f"{self._base}/v1/chat/completions", body, headers)

    def _answer(self, connection: HTTPConnection) -> HTTPResponse:
        answer = connection.getresponse()
        if answer.status in (401, 403):
            raise Untried(
                "tokens and disconnects: a tenant's key is needed to ask for an answer, give one with --api-key"
            )
        if answer.status != 200:
            said = answer.read(500).decode(errors="replace").strip()
            raise Untried(f"tokens and disconnects: a request was answered {answer.status}: {said[:200]}")
        return answer

    @contextmanager
    def _connected(self) -> Iterator[HTTPConnection]:
        connection = (
            HTTPSConnection(self._netloc, timeout=TIMEOUT_S, context=ssl.create_default_context())
            if self._tls
            else HTTPConnection(self._netloc, timeout=TIMEOUT_S)
        )
        try:
            yield connection
        except _ERRORS as error:
            raise Untried(f"tokens and disconnects: {error or type(error).__name__}") from error
        finally:
            connection.close()


def _decoder(encoding: str) -> Callable[[bytes], bytes]:
    """Decompresses gzip, which is accepted as by the official clients: a proxy that compresses a stream may also buffer
    it."""
    if encoding not in ("", "gzip"):
        raise Untried(f"whether tokens are held back: the stream comes back as {encoding}, which nobody asked for")
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress if encoding else lambda data: data


def _body(model: str, prompt: str, tokens: int, stream: bool) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "stream": stream, "max_tokens": tokens}
    return json.dumps(body).encode()


def _new_id() -> str:
    return f"doctor-{uuid.uuid4().hex}"


# -- words ------------------------------------------------------------------------------------------------


def _hint(status: int) -> str:
    if status in (401, 403):
        return "give an admin key with --key, or the gateway's own address with --gateway"
    if status == 404:
        return "the request's x-request-id does not get through to this gateway"
    return f"it answered {status}"


def _proxy(headers: dict[str, str]) -> str | None:
    """The proxy, as far as its headers name it; None: they do not."""
    told = f"{headers.get('server', '')} {headers.get('via', '')}".lower()
    told += " cloudflare" if "cf-ray" in headers else ""
    return next((name for name in _EXPORTS if name in told), None)


def _knob(headers: dict[str, str], what: str) -> str:
    proxy = _proxy(headers)
    which = _EXPORTS[proxy] if proxy else "nginx (or envoy, alb, cloudflare)"
    return f"{what}; `headgate export {which}` prints settings that do"
