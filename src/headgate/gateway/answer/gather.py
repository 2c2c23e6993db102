"""Asks for an unstreamed answer as a stream, so that it can be ended early.

A replica sends nothing of an unstreamed answer before all of it is there. So where the answer may have to be ended with
the tokens there are, the replica is asked to stream it; the client still gets one piece
(gateway/answer/gathered.py joins it), and its Relay sees one.
"""

from typing import Any, Final

import msgspec

from headgate.gateway.answer.gathered import ErrorEvent, GatheredAnswer
from headgate.gateway.answer.relay import Relay
from headgate.gateway.answer.transcript import DONE, REPETITION, TIME, Repeats
from headgate.model.clock import Clock
from headgate.model.errors import ReplicaFailed, ReplicaStalled
from headgate.policy.answers.runaway import Detector
from headgate.replica.http import Call
from headgate.replica.openai import read_error

MOST_BYTES: Final = 32 * 1024 * 1024
"""Maximum bytes of events for one answer; no lane's token limit comes near it."""
_AFTER_DONE_S: Final = 1.0
NO_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError)
NO_COMPLETION: Final = (RecursionError, LookupError, TypeError, AttributeError)
"""Exceptions of reading JSON that is not an event of a completion."""


class Gather:
    """A Listener between a replica that streams and a Relay that gets one piece."""

    def __init__(
        self,
        relay: Relay,
        limit_s: float | None,
        detector: Detector | None,
        prompt_tokens: int,
        clock: Clock,
        choices: int = 1,
        chat: bool = True,
        model: str = "",
    ) -> None:
        """`choices`: how many the client asked for. `chat` and `model`: as of a GatheredAnswer."""
        self._relay = relay
        self._limit_s = limit_s
        self._repeats = None if detector is None else Repeats(detector)
        self._prompt_tokens = prompt_tokens
        self._clock = clock
        self._call: Call | None = None
        self._choices = choices
        self._whole = GatheredAnswer(chat, model)
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
        self._streams, self._headers = is_stream and status == 200, headers
        if not self._streams:  # a refusal, or an engine that ignores `stream`
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
            try:
                self._whole.add(event)
            except ErrorEvent:
                self._refuse(event)
                return
            except NO_JSON:
                if not event.strip():
                    continue  # some engines send empty events to keep a connection alive
                self._break_off(ReplicaFailed("the replica sent an event that is no JSON object"))
                return
            except NO_COMPLETION:  # a part of the event may have been added
                self._give_up(ReplicaFailed("the replica's stream is no completion"))
                return
            if self._heard_at is None and (self._whole.events or self._whole.has_finished):
                self._begin(call, now)
            self._relay.events = self._whole.events  # if the client leaves, these count as output tokens
            if self._bytes > MOST_BYTES:
                self._break_off(ReplicaFailed(f"the replica's answer is longer than {MOST_BYTES} bytes"))
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
            self._break_off(ReplicaFailed(f"the replica broke off: its stream ended without {missing}"))

    def on_failed(self, error: ReplicaFailed, sent: bool) -> None:
        if self._said_done:
            self.on_done()
        else:
            self._break_off(error, sent)

    def on_late(self) -> None:
        call, now = self._call, self._clock()
        first_by = self._asked_at + self._relay.limits.first_token_s
        if self._said_done:
            self.on_done()
        elif self._ends_at is not None and now >= self._ends_at:
            self._answer(TIME, "length")
        elif call is None or (not self._streams and (call.received or now < first_by)):
            self._relay.on_late()
            if call is not None and not call.received:
                call.late_at = min(call.late_at, first_by)
        else:
            limits = self._relay.limits
            heard_at = self._heard_at
            due_at = first_by if heard_at is None else heard_at + limits.stall_s
            if now >= due_at:
                said = "gave no token" if heard_at is None else "said nothing"
                since = self._asked_at if heard_at is None else heard_at
                self._break_off(ReplicaStalled(f"the replica {said} for {now - since:.1f} s"))
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

    def _break_off(self, error: ReplicaFailed, sent: bool = True) -> None:
        """The stream goes no further. Once all that was asked for has its finish_reason, only the end is missing."""
        if self._is_whole:
            self._answer("", "")
        else:
            self._give_up(error, sent)

    @property
    def _is_whole(self) -> bool:
        return self._whole.choices >= self._choices and self._whole.has_finished

    def _refuse(self, event: bytes) -> None:
        if self._is_whole:
            self._answer("", "")
            return
        self._call = None
        self._relay.on_head(read_error(event).status or 500, self._headers, False)
        self._relay.on_body(event)
        self._relay.on_done()

    def _give_up(self, error: ReplicaFailed, sent: bool = True) -> None:
        self._call = None
        self._relay.on_failed(error, sent)
