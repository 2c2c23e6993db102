"""Asks for an unstreamed answer as a stream and joins the events, so that it can be ended early.

A replica sends nothing of an unstreamed answer before all of it is there. So where the answer may have to be ended with
the tokens there are, the replica is asked to stream it; the client still gets one piece, and its Relay sees one.
"""

from typing import Any, Final

import msgspec

from headgate.gateway.answer.output import DONE, REPETITION, TIME, speaks
from headgate.gateway.answer.relay import Relay
from headgate.gateway.answer.repeats import Repeats
from headgate.model.clock import Clock
from headgate.model.errors import ReplicaFailed, ReplicaStalled
from headgate.policy.answers.runaway import Detector
from headgate.replica.http import Call
from headgate.replica.openai import decode_event, encode_told, read_error

MOST_BYTES: Final = 32 * 1024 * 1024
"""Maximum bytes of events for one answer; no lane's token limit comes near it."""
MOST_CHOICES: Final = 4096
"""Maximum choices or tool calls of one answer; a higher index is a failure of the replica."""
_AFTER_DONE_S: Final = 1.0
_GROWING: Final = frozenset({"content", "reasoning_content", "reasoning", "refusal", "text", "arguments"})
"""Text fields to which each event adds a part. For other plain values the last event counts."""
_BACKSLASH: Final = 92
_STREAMED: Final = {"chat.completion.chunk": "chat.completion"}


class GatheredAnswer:
    """An answer, joined from the events so far."""

    def __init__(self) -> None:
        self.events = 0
        """Number of choice parts in the events so far: the output tokens, if the replica reports no usage."""
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._before = b""
        self._behind = b""
        """The bytes before (`_before`) and behind the text of an event that has only text: the same in most events of a
        stream. Empty: not known."""
        self._pieces: list[bytes] = []
        """Texts of such events, spelled as in JSON, that are not yet joined to their choice."""

    def add(self, event: bytes) -> None:
        """Adds an event. Raises msgspec.DecodeError, TypeError or LookupError if it is not an event of a completion."""
        before, behind = self._before, self._behind
        around = len(before) + len(behind)
        if around and len(event) >= around and event.startswith(before) and event.endswith(behind):
            text = event[len(before) : -len(behind)]
            if text.find(b'"') < 0 and not text.endswith(b"\\"):
                self._pieces.append(text)
                self.events += 1
                return
        self._join()
        self._read(event)

    def _join(self) -> None:
        """Adds the pending texts to their choice."""
        if self._pieces:
            text, self._pieces = b"".join(self._pieces), []
            self._read(b"%b%b%b" % (self._before, text, self._behind))
            self.events -= 1  # the pieces have been counted one by one

    def _read(self, event: bytes) -> None:
        said = decode_event(event)
        choices = said.pop("choices")
        if not isinstance(choices, list) or not isinstance(said.get("object"), str | None):
            raise TypeError("no event of a completion")
        first = {name: value for name, value in said.items() if value is not None}
        # The first value of each field stays; usage, which comes last, is the newest.
        self._head = {**first, **self._head, **({"usage": first["usage"]} if "usage" in first else {})}
        for choice in choices:
            if not isinstance(choice.get("delta"), dict | None):
                raise TypeError("a delta that is no object")
            _grow(self._choices.setdefault(_index(choice), {}), choice)
            self.events += 1
        if not self._before and len(choices) == 1 and _only_text(choices[0]):
            self._before, self._behind = _around(event)

    @property
    def has_finished(self) -> bool:
        """Whether the replica has given a finish_reason for any choice."""
        return any(isinstance(choice.get("finish_reason"), str) for choice in self._choices.values())

    def body(self, stop: str, finish: str, prompt_tokens: int) -> bytes:
        """The whole answer as JSON. `stop` and `finish`: for choices that the replica has not ended; empty if it ended
        all."""
        self._join()
        head = dict(self._head)
        head["object"] = kind = _STREAMED.get(head.get("object", ""), head.get("object", "chat.completion"))
        choices = []
        for index in sorted(self._choices):
            choice = {"index": index, **self._choices[index]}
            delta = choice.pop("delta", None)
            if kind == "chat.completion":
                choice["message"] = _message(delta or {})
            if stop and choice.get("finish_reason") is None:
                choice |= {"finish_reason": finish, "headgate_stop": stop}
            choices.append(choice)
        if "usage" not in head:
            output = self.events
            counts = {"prompt_tokens": prompt_tokens, "completion_tokens": output}
            head |= {"usage": {**counts, "total_tokens": prompt_tokens + output}, "headgate_usage": "estimated"}
        return encode_told({**head, "choices": choices})


def _only_text(choice: dict[str, Any]) -> bool:
    """Whether a choice's part has only text: the next such event can be recognised by its bytes."""
    delta = choice.get("delta")
    if delta is None:
        told, text = "text", choice.get("text")
    else:
        told, text = "delta", delta.get("content") if len(delta) == 1 else None
    others = [value for name, value in choice.items() if name != "index" and name != told]
    return isinstance(text, str) and all(value is None for value in others)


def _around(event: bytes) -> tuple[bytes, bytes]:
    """The bytes before and behind the text of an event; empty where a search cannot tell: the field occurs twice, or
    the text has quotes in it."""
    for name in (b'"content":"', b'"text":"'):
        if event.count(name) == 1:
            start = event.index(name) + len(name)
            end = event.find(b'"', start)
            if event[end - 1] != _BACKSLASH:
                return event[:start], event[end:]
    return b"", b""


def _index(entry: dict[str, Any]) -> int:
    """The index of a choice or a tool call. Raises LookupError if it is not a valid one."""
    index = entry.get("index", 0)
    if type(index) is not int or not 0 <= index < MOST_CHOICES:
        raise LookupError(f"an index that is not 0 to {MOST_CHOICES - 1}")
    return index


def _grow(known: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        old = known.get(name)
        if value is None or name == "index":
            known.setdefault(name, value)
        elif name in _GROWING and isinstance(value, str) and isinstance(old, str):
            known[name] = old + value
        elif name == "tool_calls":
            calls = known[name] = old or {}
            for call in value:
                _grow(calls.setdefault(_index(call), {}), call)
        elif isinstance(value, dict):
            inner = known[name] = old if isinstance(old, dict) else {}
            _grow(inner, value)
        elif isinstance(value, list) and isinstance(old, list):
            old.extend(value)
        else:
            known[name] = value


def _message(delta: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": None, **delta}
    calls = message.pop("tool_calls", None)
    if calls:
        order = sorted(calls)
        message["tool_calls"] = [{name: value for name, value in calls[at].items() if name != "index"} for at in order]
    elif message["content"] is None:
        message["content"] = ""
    return message


class Gather:
    """A Listener between a replica that streams and a Relay that gets one piece."""

    def __init__(
        self, relay: Relay, limit_s: float | None, detector: Detector | None, prompt_tokens: int, clock: Clock
    ) -> None:
        self._relay = relay
        self._limit_s = limit_s
        self._repeats = None if detector is None else Repeats(detector)
        self._prompt_tokens = prompt_tokens
        self._clock = clock
        self._call: Call | None = None
        self._whole = GatheredAnswer()
        self._headers: dict[str, str] = {}
        self._streams = False
        self._said_done = False
        self._bytes = 0
        self._asked_at = 0.0
        self._heard_at: float | None = None
        """When a part of the answer last came; None: no token has come."""
        self._ends_at: float | None = None

    def body(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body that asks the replica for a stream instead."""
        return {**body, "stream": True, "stream_options": {"include_usage": True}}

    def start(self, call: Call) -> None:
        self._call = call
        self._asked_at = self._clock()
        self._relay.start(call)

    def on_head(self, status: int, headers: dict[str, str], is_stream: bool) -> None:
        self._streams, self._headers = is_stream, headers
        if not is_stream:  # a refusal, or an engine that ignores `stream`
            self._relay.on_head(status, headers, False)

    def on_events(self, events: list[bytes]) -> None:
        call = self._call
        if self._said_done or call is None:
            return
        now, said = self._clock(), self._whole.events
        for event in events:
            if event == DONE:
                self._said_done = True
                call.late_at = now + _AFTER_DONE_S
                return
            self._bytes += len(event)
            if event.startswith(b'{"error"'):
                self._refuse(event)
                return
            try:
                self._whole.add(event)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError):
                self._give_up(ReplicaFailed("the replica's stream is no completion"))
                return
            if self._heard_at is None and speaks(event):
                self._begin(call, now)
            self._relay.events = self._whole.events  # if the client leaves, these count as output tokens
            if self._bytes > MOST_BYTES:
                self._give_up(ReplicaFailed(f"the replica's answer is longer than {MOST_BYTES} bytes"))
                return
        if self._repeats is not None and self._repeats.hear(events) and not self._whole.has_finished:
            self._answer(REPETITION, "stop")
            return
        if self._heard_at is not None and self._whole.events > said:
            self._heard_at = self._relay.last_at = now

    def _begin(self, call: Call, now: float) -> None:
        """The first token has come: the generation time starts."""
        self._heard_at = now
        if self._relay.first_at is None:
            self._relay.first_at = now
        if self._limit_s is not None:
            self._ends_at = now + self._limit_s
            call.late_at = min(call.late_at, self._ends_at)

    def on_body(self, body: bytes) -> None:
        self._relay.on_body(body)

    def on_done(self) -> None:
        if not self._streams:
            self._relay.on_done()
        elif self._said_done and self._whole.has_finished:
            self._answer("", "")
        else:
            missing = "a finish_reason" if self._said_done else "[DONE]"
            self._give_up(ReplicaFailed(f"the replica broke off: its stream ended without {missing}"))

    def on_failed(self, error: ReplicaFailed, sent: bool) -> None:
        if self._said_done:
            self.on_done()
        else:
            self._relay.on_failed(error, sent)

    def on_late(self) -> None:
        call, now = self._call, self._clock()
        if self._said_done:
            self.on_done()
        elif self._ends_at is not None and now >= self._ends_at:
            self._answer(TIME, "length")
        elif not self._streams or call is None:
            self._relay.on_late()
        else:
            limits = self._relay.limits
            heard_at = self._heard_at
            due_at = self._asked_at + limits.first_token_s if heard_at is None else heard_at + limits.stall_s
            if now >= due_at:
                said = "gave no token" if heard_at is None else "said nothing"
                since = self._asked_at if heard_at is None else heard_at
                self._give_up(ReplicaStalled(f"the replica {said} for {now - since:.1f} s"))
                return
            call.late_at = min(due_at, now + limits.stall_s)
            if self._ends_at is not None:
                call.late_at = min(call.late_at, self._ends_at)

    def on_broken(self, flaw: Exception) -> None:
        self._relay.on_broken(flaw)

    def _answer(self, stop: str, finish: str) -> None:
        try:
            body = self._whole.body(stop, finish, self._prompt_tokens)
        except Exception as flaw:  # of any kind: the body is made only of what the replica sent
            self._give_up(ReplicaFailed(f"the replica's stream can't be put together: {flaw!r}"))
            return
        relay, self._call = self._relay, None
        relay.stop = stop
        relay.on_head(200, self._headers, False)
        relay.on_body(body)
        relay.on_done()

    def _refuse(self, event: bytes) -> None:
        self._call = None
        self._relay.on_head(read_error(event).status or 500, self._headers, False)
        self._relay.on_body(event)
        self._relay.on_done()

    def _give_up(self, error: ReplicaFailed) -> None:
        self._call = None
        self._relay.on_failed(error, True)
