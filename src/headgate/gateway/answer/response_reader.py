"""Finds the first token, the end and errors in an engine's own /v1/responses stream, for its Relay.

Engines announce a response before they have computed anything. Events before the first token are held back, so that a
replica that fails until then can still be replaced, and the TTFT is that of a token.
"""

from typing import Any, Final

import msgspec

from headgate.gateway.answer.relay import Relay
from headgate.gateway.answer.response_voice import DONE, ResponseEvent, read_said
from headgate.gateway.answer.transcript import REPETITION, plain
from headgate.model.errors import ReplicaFailed
from headgate.policy.answers.runaway import Detector
from headgate.replica.http import Call
from headgate.replica.openai import is_error, is_event

BEFORE: Final = frozenset(
    {
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_part.added",
        "response.reasoning_summary_part.added",
    }
)
ENDS: Final = frozenset({"response.completed", "response.incomplete"})
FAILS: Final = frozenset({"response.failed", "response.error", "error"})
INCOMPLETE: Final = ResponseEvent(type="error", message="the replica's stream ended before its response was complete")
MOST_HELD: Final = 64
"""Maximum events held back before the first token. Further ones are left out: no client needs them."""


class ResponseReader:
    """A Listener between a replica and its Relay."""

    __slots__ = ("_detector", "_ended", "_held", "_relay")

    def __init__(self, relay: Relay, detector: Detector | None) -> None:
        self._relay = relay
        self._detector = detector
        self._held: list[bytes] | None = []
        """Events held back; None: the stream has begun."""
        self._ended = False

    def body(self, body: dict[str, Any]) -> dict[str, Any]:
        return body

    def start(self, call: Call) -> None:
        self._relay.start(call)

    def on_head(self, status: int, headers: dict[str, str], is_stream: bool) -> None:
        self._relay.on_head(status, headers, is_stream)

    def on_events(self, events: list[bytes]) -> None:
        ready: list[bytes] = []
        for data in events:
            if self._ended:
                break  # some engines still send [DONE]
            said = INCOMPLETE if data == DONE else _read(data)
            if said is None:
                self._pass_on(ready)
                self._ended = True
                if not self._relay.over:
                    self._relay.on_events([data])  # not JSON: the Relay ends the attempt
                return
            if said.type in FAILS or is_error(data):
                self._pass_on(ready)
                self._ended = True
                if not self._relay.over:
                    self._relay.on_events([_error(said, data)])
                return
            ready.append(data)
            if self._held is not None and not ready[:-1] and said.type in BEFORE:
                ready.pop()
                if len(self._held) < MOST_HELD:
                    self._held.append(data)
                continue
            if said.type in ENDS:
                self._relay.note_usage(data)  # usage is inside `response`, where the Relay does not look
                ready.append(DONE)
                self._ended = True
            elif self._detector is not None and said.type.endswith(".delta") and self._repeats(said):
                self._pass_on(ready)
                self._ended = True
                if not self._relay.over:
                    self._relay.cut(REPETITION, "stop")
                return
        self._pass_on(ready)

    def _pass_on(self, events: list[bytes]) -> None:
        if events and not self._relay.over:
            held, self._held = self._held or [], None
            self._relay.on_events([*held, *events])
            events.clear()

    def _repeats(self, said: ResponseEvent) -> bool:
        assert self._detector is not None
        return self._detector.hear(plain(bytes(said.delta)[1:-1]))  # without its quotes

    def on_body(self, body: bytes) -> None:
        self._relay.on_body(body)

    def on_done(self) -> None:
        self._relay.on_done()

    def on_failed(self, error: ReplicaFailed, sent: bool) -> None:
        self._relay.on_failed(error, sent)

    def on_late(self) -> None:
        self._relay.on_late()

    def on_broken(self, flaw: Exception) -> None:
        self._relay.on_broken(flaw)


def _read(data: bytes) -> ResponseEvent | None:
    """The event; None: it is not a JSON object."""
    try:
        if not data.isascii():
            data.decode()
        return read_said(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ResponseEvent() if data == DONE or is_event(data) else None


def _error(said: ResponseEvent, data: bytes) -> bytes:
    """The error event in the form that the Relay reads."""
    if is_error(data):
        return data
    message, code = said.message, said.code
    if said.type == "response.failed":
        try:
            error = msgspec.json.decode(bytes(said.response) or b"{}").get("error") or {}
            message, code = error.get("message"), error.get("code")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError):
            message = None
    told = {"message": message or "the replica gave no reason", "type": "server_error", "param": None, "code": code}
    return msgspec.json.encode({"error": told})
