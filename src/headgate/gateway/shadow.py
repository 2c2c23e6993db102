"""Copies requests to a shadowed version. The answers to the copies are measured and discarded.

A copy is made after its request is on its way, goes straight to a replica of the shadowed version, and is never waited
for, retried or accounted for: it appears in no tenant's limits, no queue and no record. Each model name has a limit of
concurrent copies; requests beyond it are not copied.

Where a scorer is set, a second copy goes to the version that answers the client, and the scorer gets both answers.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from headgate.gateway.answer.transcript import speaks
from headgate.gateway.intake.models import Chosen
from headgate.model.clock import Clock
from headgate.model.errors import ReplicaFailed
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.rollout.verdict import VersionSample
from headgate.replica.http import Call, Connections, request_head
from headgate.replica.openai import flaw_in, read_usage

log = logging.getLogger(__name__)

MOST_BYTES: Final = 256 * 1024
"""Length in bytes above which a request is not copied: encoding it again would delay the tokens of all streams."""
MOST_ANSWER_BYTES: Final = 64 * 1024
"""Length of an answer in bytes above which it is not scored."""
PATIENCE_S: Final = 120.0

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class ShadowTally:
    allowed: int = 0
    under_way: int = 0
    copied: int = 0
    left_out: int = 0
    """Requests not copied: at the limit, too long, or no usable replica."""
    failed: int = 0


class ShadowEndpoint(Protocol):
    """A replica and the connections to it."""

    @property
    def replica(self) -> Replica: ...
    @property
    def connections(self) -> Connections: ...


class AnswerScorer(Protocol):
    """Scores the answers of both versions to one request."""

    @property
    def room(self) -> bool:
        """Whether another pair would be scored now."""

    def leave_out(self) -> None:
        """Counts a pair that is not scored."""

    def take(self, request: dict[str, Any], answers: dict[str, str]) -> None:
        """Scores a pair of answers, by version, when there is time."""


class AnswerPair:
    """The answers of both versions to one request, until both are there."""

    def __init__(self, scorer: AnswerScorer, request: dict[str, Any]) -> None:
        self._scorer = scorer
        self._request = request
        self._answers: dict[str, str] = {}
        self._ended = 0

    def ended(self, version: str, answer: str | None) -> None:
        """`answer` None: the copy failed, or there is nothing in its answer to be scored."""
        self._ended += 1
        if answer is not None:
            self._answers[version] = answer
        if self._ended < 2:
            return
        if len(self._answers) == 2:
            self._scorer.take(self._request, self._answers)
        else:
            self._scorer.leave_out()


class Shadows:
    def __init__(
        self,
        with_room: Callable[[str], list[ReplicaId]],
        places: Mapping[ReplicaId, ShadowEndpoint],
        clock: Clock,
    ) -> None:
        """`with_room` returns the usable replicas of a model that have a free slot."""
        self._told: Callable[[str, VersionSample], None] = lambda name, sample: None
        """Called with the model name and the sample of each copy that ended."""
        self._with_room = with_room
        self._places = places
        self._clock = clock
        self._tallies: dict[str, ShadowTally] = {}
        self._scorers: Mapping[str, AnswerScorer] = {}
        self._loop = asyncio.get_running_loop()

    def report_to(self, told: Callable[[str, VersionSample], None]) -> None:
        """Calls `told` from now on with the model name and the sample of each copy that ends."""
        self._told = told

    def score_with(self, scorers: Mapping[str, AnswerScorer]) -> None:
        """Hands answers to these scorers from now on, by model name."""
        self._scorers = scorers

    def allow(self, name: str, concurrency: int) -> None:
        self._tallies.setdefault(name, ShadowTally()).allowed = concurrency

    def counts(self, name: str) -> dict[str, int]:
        tally = self._tallies.get(name, ShadowTally())
        return {
            "under_way": tally.under_way,
            "copied": tally.copied,
            "left_out": tally.left_out,
            "failed": tally.failed,
        }

    def copy(self, chosen: Chosen, path: str, body: dict[str, Any], prompt_bytes: int) -> None:
        """Schedules a copy for after the request itself has been sent, if the limits allow it."""
        if chosen.shadow is None:
            return
        name, (version, model) = chosen.drawn_from, chosen.shadow
        tally = self._tallies.setdefault(name, ShadowTally())
        if tally.under_way >= tally.allowed or prompt_bytes > MOST_BYTES:
            tally.left_out += 1
            return
        tally.under_way += 1
        pair = self._pair(name, tally, body)
        self._loop.call_soon(self._send, name, tally, (version, model), path, body, pair, True)
        if pair is not None:
            tally.under_way += 1
            self._loop.call_soon(self._send, name, tally, (chosen.version, chosen.model), path, body, pair, False)

    def _pair(self, name: str, tally: ShadowTally, body: dict[str, Any]) -> AnswerPair | None:
        """A pair for the scorer. None: the answers are not scored."""
        scorer = self._scorers.get(name)
        if scorer is None:
            return None
        if not scorer.room or tally.under_way >= tally.allowed:
            scorer.leave_out()
            return None
        return AnswerPair(scorer, body)

    def _send(
        self,
        name: str,
        tally: ShadowTally,
        to: tuple[str, str],
        path: str,
        body: dict[str, Any],
        pair: AnswerPair | None,
        measured: bool,
    ) -> None:
        """Sends a copy `to` a version and its model. `measured`: the version is the shadowed one."""
        version, model = to
        replica_id = self._replica(model)
        if replica_id is None:
            tally.under_way -= 1
            tally.left_out += measured
            if pair is not None:
                pair.ended(version, None)
            return
        place = self._places[replica_id]
        connections = place.connections
        tally.copied += measured

        def over(sample: VersionSample) -> None:
            tally.under_way -= 1
            if measured:
                tally.failed += sample.failed is True
                self._told(name, sample)
            if pair is not None:
                pair.ended(version, None if sample.failed else copy.answer)

        copy = ShadowCopy(self._clock, bool(body.get("stream")), over, keep=pair is not None)
        asked = {**body, "model": place.replica.served_as or model}
        try:
            copy.call = connections.send(request_head(path, connections.host), _encode(asked), copy)
            copy.call.late_at = self._clock() + PATIENCE_S
        except Exception as flaw:
            copy.on_broken(flaw)

    def _replica(self, model: str) -> ReplicaId | None:
        usable = [replica_id for replica_id in self._with_room(model) if replica_id in self._places]
        return min(usable, key=lambda replica_id: self._places[replica_id].connections.busy, default=None)


class ShadowCopy:
    """The Listener of one copy. Ends exactly once."""

    __slots__ = (
        "_answer",
        "_clock",
        "_events",
        "_first_at",
        "_flawed",
        "_keep",
        "_last_at",
        "_over",
        "_sent_at",
        "_status",
        "_stream",
        "_tokens",
        "call",
    )

    def __init__(
        self, clock: Clock, stream: bool, over: Callable[[VersionSample], None], *, keep: bool = False
    ) -> None:
        """`keep`: the text of the answer is kept."""
        self._keep = keep
        self._answer = bytearray()
        self._clock = clock
        self._stream = stream
        self._over: Callable[[VersionSample], None] | None = over
        self._sent_at = clock()
        self._first_at: float | None = None
        self._last_at: float | None = None
        self._events = 0
        self._tokens: int | None = None
        self._status = 0
        self._flawed = False
        """The answer is not a valid one of the kind that was asked for."""
        self.call: Call | None = None

    def on_head(self, status: int, headers: dict[str, str], is_stream: bool) -> None:
        self._status = status

    def on_events(self, events: list[bytes]) -> None:
        now = self._clock()
        if self._first_at is None:
            said = [event for event in events if event.find(b'"usage":{') >= 0 or speaks(event)]
            if not said:
                return  # an event with only the role is not a token
            events, self._first_at = said, now
        self._last_at = now
        self._events += len(events)
        for event in events:
            if event.find(b'"usage"') >= 0:
                self._read(event)
            if self._keep:
                self._hear(_content(event))

    def on_body(self, body: bytes) -> None:
        self._flawed = self._stream or bool(flaw_in(body, ""))
        self._last_at = self._clock()
        self._read(body)
        if self._keep:
            self._hear(_content(body))

    def on_done(self) -> None:
        self._end(failed=self._status != 200 or self._last_at is None or self._flawed)

    def on_failed(self, error: ReplicaFailed, sent: bool) -> None:
        self._end(failed=True)

    def on_late(self) -> None:
        self._end(failed=True)

    def on_broken(self, flaw: Exception) -> None:
        log.error("a copy for a shadowed version broke", exc_info=flaw)
        self._end(failed=True)

    @property
    def answer(self) -> str | None:
        """The answer's text. None: it has none, or too much."""
        text = bytes(self._answer)
        return text.decode("utf-8", "replace") if 0 < len(text) <= MOST_ANSWER_BYTES else None

    def _hear(self, text: bytes) -> None:
        if len(self._answer) <= MOST_ANSWER_BYTES:
            self._answer += text

    def _read(self, data: bytes) -> None:
        usage, _ = read_usage(data)
        if usage is None:
            return
        self._tokens = usage.output
        if self._first_at is None and self._last_at is not None and usage.timings is not None:
            first_s = usage.timings.first_s(self._last_at - self._sent_at, usage.output)
            self._first_at = None if first_s is None else self._sent_at + first_s

    def _end(self, failed: bool) -> None:
        over, self._over = self._over, None
        if over is None:
            return
        call, self.call = self.call, None
        if call is not None:
            call.cancel()
        first, last, tokens = self._first_at, self._last_at, self._tokens or self._events
        if failed or last is None:
            over(VersionSample(True, failed=True))
            return
        ttft = None if first is None else first - self._sent_at
        tpot = (last - first) / (tokens - 1) if first is not None and tokens > 1 else None
        over(VersionSample(True, ttft, tpot, last - self._sent_at, None, tokens or None, False))


def _content(body: bytes) -> bytes:
    """The text of an event, or of an answer in one piece; empty: it has none."""
    try:
        choice = _answer(body).choices[0]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError):
        return b""
    said = choice.delta or choice.message
    return ((choice.text if said is None else said.content) or "").encode("utf-8", "replace")


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Message | None = None
    message: _Message | None = None
    text: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


_answer = msgspec.json.Decoder(_Answer).decode
