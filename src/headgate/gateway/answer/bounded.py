"""Selects the answers that the gateway reads along with, because they may have to be ended early.

These are streams whose text is watched for repetition, and unstreamed answers that may take longer than their lane
allows, or that are watched and not short. Our own engine gets the bounds instead, and keeps them itself. In a stream
with several choices, our own engine's included, the reader notes which choices have ended, so that the gateway can end
the others.
"""

import re
from typing import Any, Final

import msgspec

from headgate.gateway.answer.gather import Gather
from headgate.gateway.answer.gathered import MOST_CHOICES
from headgate.gateway.answer.relay import NONE_ENDED, Relay
from headgate.gateway.answer.response_reader import ResponseReader
from headgate.gateway.answer.transcript import DONE, REPETITION, Repeats, plain, text_of
from headgate.gateway.intake.abilities import RESPONSES
from headgate.gateway.intake.accept import Accepted
from headgate.model.clock import Clock
from headgate.model.errors import ReplicaFailed
from headgate.model.lane import Lane
from headgate.policy.answers.output import Allowance
from headgate.policy.answers.runaway import Detector
from headgate.replica.http import Call
from headgate.replica.openai import decode_event

TOLD_WHOLE: Final = (
    "tools", "functions", "logprobs", "top_logprobs", "prompt_logprobs", "n_probs", "return_token_ids", "audio",
    "modalities", "return_hidden_states", "use_beam_search",
)  # fmt: skip
SEARCHES: Final = ("best_of", "beam_width", "num_beams")
"""Numbers of sequences of which the engine gives the best: it knows them only at the end, and refuses to stream."""
SHORT: Final = 64
"""Maximum tokens of an unstreamed answer that is not watched: repetition can hardly be detected in fewer tokens, ending
it would save next to nothing, and reading along costs more than the answer itself."""
TEXT: Final = "/v1/completions"
_FINISH: Final = b'"finish_reason"'
_NULL_FINISH: Final = b'"finish_reason":null'
_NO_FINISH: Final = re.compile(rb'"finish_reason":\s*(?:null|"")')


def bounded(
    accepted: Accepted, allowance: Allowance, lane: Lane, relay: Relay, clock: Clock
) -> "Gather | Bounded | Several | ResponseReader | None":
    """The reader between a replica and its Relay; None: the answer is not read along."""
    request = accepted.request
    if accepted.path == RESPONSES:  # an unstreamed answer is the engine's own, and not read along
        detector = Detector(allowance.runaway, accepted.times_asked) if allowance.runaway != "off" else None
        return ResponseReader(relay, detector) if request.stream else None
    watched = allowance.runaway != "off" and request.choices == 1
    if request.stream:
        if request.choices > 1:
            return Several(relay)
        return Bounded(relay, Detector(allowance.runaway, accepted.times_asked)) if watched else None
    tokens = allowance.tokens
    watched = watched and (tokens is None or tokens > SHORT)
    if (watched or may_outlast(tokens, lane)) and not told_whole(accepted.body):
        detector = Detector(allowance.runaway, accepted.times_asked) if watched else None
        shape = (request.choices, accepted.path != TEXT, request.model)
        return Gather(relay, lane.generation_s, detector, request.prompt_tokens, clock, *shape)
    return None


def still_bounded(accepted: Accepted, allowance: Allowance, relay: Relay) -> "Bounded | Relay":
    """The reader for the rest of a stream that broke off. The detector gets the text before the break first."""
    if allowance.runaway == "off":
        return relay
    detector = Detector(allowance.runaway, accepted.times_asked)
    for piece in bytes(relay.transcript.said or b"").split(b"\n"):
        detector.hear(plain(piece))
    return Bounded(relay, detector)


def may_outlast(tokens: int | None, lane: Lane) -> bool:
    """Whether `tokens` (None: unlimited) can exceed the lane's generation time even if each token comes within the
    promised gap."""
    if lane.generation_s is None:
        return False
    return tokens is None or tokens * lane.gap_target_s > lane.generation_s


def told_whole(body: dict[str, Any]) -> bool:
    """Whether a body asks for something that engines write differently, or not at all, in a stream: then the unstreamed
    answer must be the engine's own."""
    for name in TOLD_WHOLE:
        value = body.get(name)
        if value is not None and value is not False and value != [] and value != {}:
            return True
    return any(isinstance(count := body.get(name), int) and count > 1 for name in SEARCHES)


class Along:
    """A Listener between a replica and its Relay, which passes everything on."""

    __slots__ = ("_relay",)

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def body(self, body: dict[str, Any]) -> dict[str, Any]:
        return body

    def start(self, call: Call) -> None:
        self._relay.start(call)

    def on_head(self, status: int, headers: dict[str, str], is_stream: bool) -> None:
        self._relay.on_head(status, headers, is_stream)

    def on_events(self, events: list[bytes]) -> None:
        self._relay.on_events(events)

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


class Several(Along):
    """Notes which choices of a stream with several choices have ended."""

    __slots__ = ()

    def on_events(self, events: list[bytes]) -> None:
        for event in events:
            if _says_end(event):
                self._relay.ended |= ended_in(event)
        self._relay.on_events(events)


def _says_end(event: bytes) -> bool:
    """Whether an event has a finish_reason that is neither null nor, as some engines write it, empty."""
    said = event.count(_FINISH)
    return said > event.count(_NULL_FINISH) and said > len(_NO_FINISH.findall(event))


def ended_in(event: bytes) -> frozenset[int]:
    """Indexes of the choices that end with this event."""
    try:
        choices = decode_event(event)["choices"]
        ended = [choice["index"] for choice in choices if choice.get("finish_reason")]
        return frozenset([index for index in ended if isinstance(index, int) and 0 <= index < MOST_CHOICES])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError):
        return NONE_ENDED


class Bounded(Along):
    """Ends a stream that only repeats itself."""

    __slots__ = ("_repeats",)

    def __init__(self, relay: Relay, detector: Detector) -> None:
        super().__init__(relay)
        self._repeats = Repeats(detector)

    def on_events(self, events: list[bytes]) -> None:
        relay = self._relay
        if not self._repeats.hear(events):
            relay.on_events(events)
            return
        last = min(len(events), self._repeats.heard)
        while last and not text_of(events[last - 1]):
            last -= 1
        if not last or any(event == DONE or _says_end(event) for event in events[last - 1 :]):
            relay.on_events(events)  # the replica has ended it itself
            return
        relay.on_events(events[:last])
        if not relay.over:
            relay.cut(REPETITION, "stop")
