"""Follows one request event by event, and reports once when it is over.

Every duration counts from when the request was due. A client that counts from when it sent the request hides the wait
that requests share: while a server stalls, a closed loop sends nothing, and the stall is one slow request instead of
hundreds.
"""

from array import array
from collections.abc import Callable

import msgspec

from headgate.model.clock import Clock
from headgate.model.errors import ReplicaFailed
from headgate.model.outcome import Kind, Outcome
from headgate.replica.connection import Call
from headgate.replica.openai import read_error
from headgate.workload.arrival import Arrival

REFUSALS = (429, 503)
BY_CODE: dict[str, Kind] = {outcome.value: outcome.kind for outcome in Outcome}
"""Headgate's error codes name the outcome; from any other server, 429 and 503 are refusals."""
LONGEST_WHY = 80


_ABSENT = msgspec.Raw()


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def says_something(self) -> bool:
        delta = self.delta
        if delta is None:
            return bool(self.text)
        return bool(delta.content or self.text or delta.reasoning_content or delta.reasoning or delta.tool_calls)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Timings(msgspec.Struct):
    queue_ms: float | None = None
    queue_time_ms: float | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    # Plain Raw: `Raw | None` would accept nothing but null.
    error: msgspec.Raw = _ABSENT
    timings: msgspec.Raw = _ABSENT
    """From Headgate's engine; llama.cpp uses the same name."""
    metrics: msgspec.Raw = _ABSENT
    """From vLLM with --enable-per-request-metrics."""


_decode = msgspec.json.Decoder(_Answer).decode
_decode_timings = msgspec.json.Decoder(_Timings).decode


class Shot:
    """Listens to the answer of one request."""

    __slots__ = (
        "_ended_well",
        "_events",
        "_headers_queue_s",
        "_on_over",
        "_status",
        "_wants_stream",
        "arrival",
        "cached_tokens",
        "call",
        "clock",
        "due",
        "ended_at",
        "first_at",
        "gaps",
        "kind",
        "lag_s",
        "lane",
        "last_at",
        "max_gap_s",
        "message",
        "output_tokens",
        "prompt_tokens",
        "queue_s",
        "why",
    )

    def __init__(
        self, arrival: Arrival, due: float, wants_stream: bool, clock: Clock, on_over: Callable[["Shot"], None]
    ) -> None:
        self.arrival = arrival
        self.due = due
        self.clock = clock
        self._wants_stream = wants_stream
        self._on_over = on_over
        self.call: Call | None = None
        self.lag_s = 0.0
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.ended_at = due
        self.max_gap_s: float | None = None
        self.gaps = array("d")
        """Seconds between events with output."""
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        """Prompt tokens that the server had in its prefix cache; None: the server does not report them."""
        self.output_tokens: int | None = None
        self.queue_s: float | None = None
        self.kind: Kind = "ok"
        self.why = ""
        self.lane = ""
        """The lane that the server used; empty: the server does not report it."""
        self.message = ""
        """The server's error message, in full."""
        self._status = 0
        self._events = 0
        self._ended_well = False
        self._headers_queue_s: float | None = None

    # -- figures, once it is over --------------------------------------------------------------------------------

    @property
    def tokens(self) -> int:
        """Output tokens as the server counted them, else the number of events with output (unstreamed: of choices)."""
        return self._events if self.output_tokens is None else self.output_tokens

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token; None: none came, or the answer was not streamed."""
        return None if self.first_at is None else self.first_at - self.due

    @property
    def tpot_s(self) -> float | None:
        if self.first_at is None or self.last_at is None or self.tokens < 2:
            return None
        return (self.last_at - self.first_at) / (self.tokens - 1)

    @property
    def e2e_s(self) -> float:
        return self.ended_at - self.due

    # -- the Listener --------------------------------------------------------------------------------------------

    def on_head(self, status: int, headers: dict[str, str], is_stream: bool) -> None:
        self._status = status
        self.lane = headers.get("x-headgate-lane", "")
        if "x-headgate-queue-ms" in headers:
            self._headers_queue_s = _seconds(headers["x-headgate-queue-ms"])
        if status == 200 and is_stream != self._wants_stream:
            wanted = "a stream" if self._wants_stream else "one body"
            self._break_off(
                "failed", f"answered with {headers.get('content-type', 'no type')[:40]} instead of {wanted}"
            )

    def on_events(self, events: list[bytes]) -> None:
        now = self.clock()
        for event in events:
            if event == b"[DONE]":
                self._ended_well = True
                continue
            try:
                answer = _decode(event)
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._break_off("failed", "sent an event that is no JSON of OpenAI's")
                return
            if _is_given(answer.error):
                found = read_error(event)
                kind = BY_CODE.get(found.code or "", "failed")
                self.message = found.message
                self._break_off(kind, f"broke off: {found.code or found.type}")
                return
            if answer.usage is not None or answer.timings or answer.metrics:
                self._take(answer)
            for choice in answer.choices or ():
                if choice.finish_reason is not None:
                    self._ended_well = True
                if choice.says_something:
                    self._said(now)

    def _said(self, now: float) -> None:
        self._events += 1
        before, self.last_at = self.last_at, now
        if before is None:
            self.first_at = now
            return
        gap = now - before
        self.gaps.append(gap)
        if self.max_gap_s is None or gap > self.max_gap_s:
            self.max_gap_s = gap

    def on_body(self, body: bytes) -> None:
        if self._status >= 400:
            found = read_error(body)
            self.message = found.message
            self.why = f"{self._status} {found.code or found.type}"[:LONGEST_WHY]
            self.kind = "refused" if self._status in REFUSALS else "failed" if self._status >= 500 else "client"
            self.kind = BY_CODE.get(found.code or "", self.kind)
            return
        try:
            answer = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.kind, self.why = "failed", f"{self._status} with a body that is no JSON of OpenAI's"
            return
        self._ended_well = True
        self._events = len(answer.choices or ())
        self._take(answer)

    def _take(self, answer: _Answer) -> None:
        if answer.usage is not None:
            self.prompt_tokens = answer.usage.prompt_tokens
            self.output_tokens = answer.usage.completion_tokens
            details = answer.usage.prompt_tokens_details
            self.cached_tokens = None if details is None else details.cached_tokens
        for said in (answer.timings, answer.metrics):
            if not _is_given(said):
                continue
            try:
                timings = _decode_timings(said)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            queued_ms = timings.queue_ms if timings.queue_ms is not None else timings.queue_time_ms
            if queued_ms is not None:
                self.queue_s = queued_ms / 1e3

    def on_done(self) -> None:
        if self.kind == "ok" and not self.why:
            if self._status >= 400 or self._status < 200:
                self.kind, self.why = "failed", f"{self._status}"
            elif not self._ended_well:
                self.kind, self.why = "failed", "the stream ended without [DONE]"
        self._over()

    def on_failed(self, error: ReplicaFailed, sent: bool) -> None:
        self.message = error.message
        short = error.message.partition(":")[0].replace("the replica", "the server")
        self.kind, self.why = "failed", short[:LONGEST_WHY]
        self._over()

    def on_late(self) -> None:
        self._break_off("failed", "no end within the time allowed")

    def on_broken(self, flaw: Exception) -> None:
        self._break_off("failed", f"an answer that could not be read: {type(flaw).__name__}")

    # ------------------------------------------------------------------------------------------------------------

    def cut_off(self, why: str) -> None:
        """Cancels the request: the client no longer waits for its answer."""
        self._break_off("client", why)

    def _break_off(self, kind: Kind, why: str) -> None:
        self.kind, self.why = kind, why[:LONGEST_WHY]
        if self.call is not None:
            self.call.cancel()
        self._over()

    def _over(self) -> None:
        self.ended_at = self.clock()
        if self._headers_queue_s is not None:
            self.queue_s = self._headers_queue_s + (self.queue_s or 0.0)
        self.call = None
        self._on_over(self)


def _is_given(raw: msgspec.Raw) -> bool:
    return bool(raw) and bytes(raw) != b"null"


def _seconds(milliseconds: str) -> float | None:
    try:
        return max(0.0, float(milliseconds)) / 1e3
    except ValueError:
        return None
