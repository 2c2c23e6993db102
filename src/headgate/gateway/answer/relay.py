"""Passes an answer from a replica to a client: one attempt, joined to one exchange.

Nothing goes to the client before the first token, so a failed attempt leaves the exchange as it was: its owner asks
another replica, or answers. A stream that breaks off after it has begun waits too, if its owner can ask another replica
to continue it. The phases are in phases.py; timeouts and the end are in relayed.py.
"""

from math import inf
from typing import Final

from headgate.gateway.answer.backlog import Backlog, RelayLimits
from headgate.gateway.answer.continuation import Continuation
from headgate.gateway.answer.phases import ASKED, DONE, FINISH, HEAR, REFUSE, REFUSED, RelayOwner
from headgate.gateway.answer.relayed import COMPLETED, RelayedAnswer
from headgate.gateway.answer.transcript import MOST_KEPT, speaks, thinks
from headgate.model.clock import Clock
from headgate.model.errors import OutOfTime, ReplicaAnswered, ReplicaFailed, ReplicaStalled
from headgate.model.lane import Lane
from headgate.policy.answers.output import Allowance
from headgate.replica.http import Call
from headgate.replica.openai import (
    FULL,
    has_finish,
    is_event,
    mended_event,
    named,
    read_answer,
    read_error,
    read_mended,
    read_usage,
    room_in_s,
)
from headgate.replica.shape import Chunk, decode_chunk
from headgate.wire.errors import Headers
from headgate.wire.exchange import Exchange

TIMINGS: Final = "x-headgate-timings"
"""Clients that send this header get lane and queue time in the answer's headers."""
GRACE_S: Final = 1.0
"""Seconds beyond the generation time that our own engine has to end a stream itself."""
LAST_EVENT: Final = b"[DONE]"
NONE_ENDED: Final[frozenset[int]] = frozenset()
_NO_ERROR: Final = (b"", b"null")
"""The error or usage field of an event that has none."""
MOST_HELD: Final = 16
"""Maximum events without a token that are held back before the first token. Further ones are left out: they add
nothing."""
_AFTER_DONE_S: Final = 1.0
"""Seconds after [DONE] until the replica must end its HTTP message; then the connection is closed."""


class Relay(RelayedAnswer):
    """The Listener to the replica that answers one exchange."""

    __slots__ = ("_body", "_continuation", "_headers", "_held", "_idle", "_wanted", "_wants_usage", "ended")

    def __init__(
        self,
        exchange: Exchange,
        owner: RelayOwner,
        limits: RelayLimits,
        clock: Clock,
        stream: bool,
        wants_usage: bool,
        generation_s: float = inf,
        headers: Headers = (),
        wanted: str = "",
    ) -> None:
        """`stream` and `wants_usage`: what the client asked for; the replica is always asked for usage. `generation_s`:
        maximum seconds of a stream after its first token, or of an unstreamed answer after it was asked for. `headers`:
        further headers of the answer. `wanted`: the list that an answer must have (choices, data, output); empty: any
        object is an answer."""
        super().__init__(exchange, owner, limits, clock, stream, generation_s)
        self._wants_usage = wants_usage
        self._headers = headers
        self._wanted = wanted
        self.ended: frozenset[int] = NONE_ENDED
        """Choices that the replica has ended, in a stream with several; not tracked for a single choice."""
        self._continuation: Continuation | None = None
        """Set while the current replica continues a stream that another one began; None: no continuation."""
        self._held: list[bytes] = []
        """Events before the first token, such as the role. They are sent together with it."""
        self._body = b""
        self._idle = 0
        """Events passed on that are not part of the answer: usage events."""

    def go_on(self, call: Call) -> None:
        """`call` asks for the rest of a stream that broke off."""
        self._continuation = Continuation(self.transcript.first, self.events if self.transcript.answering else 0)
        self._status = 0
        self._body = b""
        if self._backlog is not None:
            self._backlog.read_from(call)
        self.start(call)

    def hand_over(self, generation_s: float) -> None:
        """Drops the replica that was asked, which has sent no token: the call to another is started next."""
        call, self._call, self.rival = self._call, None, None
        if call is not None:
            call.cancel()
        self._status = 0
        self._body = b""
        self._held = []
        self.first_at = self.last_at = None
        self._generation_s = generation_s

    def cut(self, stop: str, finish: str) -> None:
        """Ends a stream that has begun with the text so far; for the client it is a regular end."""
        self.stop = stop
        self._continuation = None  # the events from here on are the gateway's
        self.on_events(self._owner.closing(self.transcript.first, finish, stop, self.events))
        if not self.over:
            self.on_done()

    # -- told by the connection to the replica -----------------------------------------------------------

    def on_head(self, status: int, headers: dict[str, str], is_stream: bool) -> None:
        self._status = status
        if status >= 300:
            self._go(REFUSE)
            self._room_in_s = room_in_s(headers) if status in FULL else None
            self._head_at = now = self._clock()
            if self._call is not None:
                self._call.late_at = min(self._call.late_at, now + self.limits.stall_s)
            return
        if status != 200:
            self._break_off(ReplicaAnswered(f"the replica answered {status}, which is no answer"))
        elif is_stream != self._stream:
            self._break_off(ReplicaFailed(f"the replica answered with {named(headers)}"))
        elif is_stream and not self._exchange.started:
            self._exchange.stream(self._headers)
        elif not is_stream:
            self._head_at = self._clock()

    def on_events(self, events: list[bytes]) -> None:
        if self.phase >= DONE:
            return
        now = self._clock()
        exchange = self._exchange
        first = self.phase == ASKED
        if self._continuation is not None:
            events = [told for event in events if (told := self._continuation.told(event)) is not None]
            first = first and bool(events)
            if self.transcript.answering and any(thinks(event) for event in events):
                self.fail(ReplicaFailed("the replica broke off, and another one began to think again in its place"))
                return
        if self.first_at is not None and now - self._heard_at > self._gap_floor_s:
            self._note_gap(self._silence_s(now, self._heard_at), now)
        heard_at, spoken = self._heard_at, self.events - self._idle
        self._heard_at = self.last_at = now
        tokens: list[bytes] = []
        call = self._call
        chunk: Chunk | None
        for data in events:
            # As cheap as a search for `usage` and `error`, and nothing that is not JSON gets past it.
            try:
                if not data.isascii():
                    data.decode()
                chunk = decode_chunk(data)
            except (ValueError, RecursionError):
                data, chunk = _mended(data, self._wanted)
            if chunk is not None and chunk.usage is chunk.error:  # NOTHING, both of them
                tokens.append(data)
                continue
            self._pass_on(tokens)
            tokens.clear()
            if self._take(data, chunk):
                tokens.append(data)
            elif self.phase >= DONE or self._call is not call:
                break
        self._pass_on(tokens)
        if self.over or self._call is not call:
            return
        if self.events - self._idle == spoken:
            self._heard_at = heard_at  # no part of the answer: it does not extend any timeout
        if first and exchange.started:
            self._go(HEAR)
            self._owner.on_first()
        if self.phase < DONE and (self._backlog is not None or exchange.unsent):
            self._judge_backlog(len(events), now)

    def on_body(self, body: bytes) -> None:
        self._body = body

    def on_done(self) -> None:
        if self.phase == REFUSED:
            self._judge_refusal(self._status, self._body)
        elif self.phase == DONE:
            self._finish()
        elif self._stream:
            self._break_off(ReplicaFailed("the replica broke off: its stream ended without [DONE]"))
        else:
            flaw, self._usage = read_answer(self._body, self._wanted)
            if flaw:
                self._body, flaw, self._usage = read_mended(self._body, self._wanted)
            if flaw:
                self._break_off(ReplicaAnswered(f"the replica {flaw}"))
                return
            self.last_at = now = self._clock()
            if self.first_at is None:
                self.first_at = self._told_first(now)
            self._settle()
            self._exchange.respond(200, self._body, headers=self._headers)
            self._end(COMPLETED)

    def on_failed(self, error: ReplicaFailed, sent: bool) -> None:
        if self.phase == DONE:
            self._finish()
        else:
            self._break_off(error)

    def on_late(self) -> None:
        """Checks the timeouts, at least every `stall_s`: events do not postpone this call."""
        call, now = self._call, self._clock()
        patience_s = self._patience_s(now)
        left_s = self._left_s(now)
        if self.phase == DONE:
            self._finish()  # the replica has not ended its HTTP message, which the client does not need
        elif left_s <= 0 and self.phase != REFUSED:
            self._end_by_time()
        elif patience_s <= 0:
            self._break_off(ReplicaStalled(self._lateness(now)))
        elif call is not None:
            call.late_at = now + min(patience_s, self.limits.stall_s, left_s if left_s > 0 else inf)

    def _end_by_time(self) -> None:
        if self._stream:
            self.cut("time", "length")
            return
        self.stop = "time"
        took = f"the answer was not complete after {self._generation_s:g} s, all that its lane allows"
        self.fail(OutOfTime(f"{took}; stream it, to get what there is by then, or ask for less (max_tokens)"))

    def on_broken(self, flaw: Exception) -> None:
        self._owner.on_broken(flaw)

    def _pass_on(self, tokens: list[bytes]) -> None:
        if tokens:
            spoken = len(tokens)
            if self.first_at is None:
                silent = self._silent(tokens)
                spoken -= silent
                if not spoken:
                    for data in tokens:
                        if len(self._held) < MOST_HELD and len(data) <= MOST_KEPT:
                            self._held.append(data)
                    return
                tokens = [*self._held, *tokens]
                self._held = []
                self.first_at = self._heard_at
                if self._call is not None:
                    self._call.late_at = min(self._call.late_at, self._heard_at + self._generation_s)
            self.transcript.add(tokens)
            self._exchange.events(tokens)
            self.events += spoken

    def _silent(self, tokens: list[bytes]) -> int:
        """Number of events before the first with a part of the answer."""
        silent = 0
        for data in tokens:
            if speaks(data):
                break
            silent += 1
        return silent

    # -- what the replica said -----------------------------------------------------------------------------

    def _take(self, data: bytes, chunk: Chunk | None) -> bool:
        """Handles an event that may not be a token. Returns whether it is to be passed on."""
        if data == LAST_EVENT:
            if not self._has_finished():
                self._break_off(ReplicaFailed("the replica broke off: its stream ended without a finish_reason"))
                return False
            self._go(FINISH)
            if self._held:
                self._exchange.events(self._held)
            self._exchange.end(LAST_EVENT)
            if self._call is not None:
                self._call.late_at = self._heard_at + _AFTER_DONE_S
            return False
        if chunk is None:
            if not data.strip() or is_event(data):
                return bool(data.strip())  # some engines send empty events to keep a connection alive
            self._break_off(ReplicaFailed("the replica sent an event that is no JSON object"))
            return False
        if bytes(chunk.error) not in _NO_ERROR:
            error = read_error(data)
            if self._exchange.started:
                self._break_off(ReplicaAnswered(error.message))
            else:
                self._judge_refusal(error.status or 500, data)
            return False
        if bytes(chunk.usage) in _NO_ERROR or not self.note_usage(data):
            return True
        if self._wants_usage and self.first_at is not None:
            self._idle += 1
        return self._wants_usage

    def _has_finished(self) -> bool:
        """Whether one of the last two events has a finish_reason: behind it engines send usage, and hardly more."""
        if self._wanted != "choices" or self.stop:
            return True
        if self._held:
            return any(has_finish(event) for event in self._held[-2:])
        return self.transcript.has_finished

    def note_usage(self, data: bytes) -> bool:
        """Keeps the usage in `data`. Returns whether the event has nothing else."""
        usage, alone = read_usage(data)
        if usage is not None:
            self._usage = usage
        return alone

    # -- the end -----------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """The replica has ended after [DONE]: the client has the whole stream."""
        self._settle()
        self._end(COMPLETED)

    def _complete(self) -> None:
        """Writes the end of a stream in the replica's place, where only the end itself is missing."""
        self._continuation = None
        self._wanted = ""  # finish_reason or usage has come
        usage, done = self._owner.closing(self.transcript.first, "", "", self.events)[-2:]
        self.on_events([usage, done] if self._usage is None else [done])
        if not self.over:
            self._finish()

    def _judge_backlog(self, events: int, now: float) -> None:
        if self._backlog is None:
            assert self._call is not None
            self._backlog = Backlog(
                self._exchange,
                self._call,
                self.limits,
                self._clock,
                self._give_up_client,
                self.on_broken,
            )
        self._backlog.judge(events, now)


def answer_headers(
    allowance: Allowance | None, lane: str, relegated_from: str, given: dict[str, str], queue_s: float
) -> Headers:
    """Headers for an answer: the output cap that applied, the lane from which the request was relegated, and, for
    clients that send TIMINGS, the lane and the queue time in milliseconds."""
    told: list[tuple[str, str]] = []
    if relegated_from:
        told.append(("x-headgate-relegated", f"{relegated_from} to {lane}"))
    if allowance is not None and allowance.why:
        told.append(("x-headgate-max-tokens", allowance.why))
    if TIMINGS in given:
        told.append(("x-headgate-lane", lane))
        told.append(("x-headgate-queue-ms", f"{queue_s * 1e3:.3f}"))
    return tuple(told)


def generation_s(lane: Lane, own: bool, stream: bool = True) -> float:
    """Seconds after its first token until the gateway ends a stream; inf: never. For an unstreamed answer, seconds
    after it was asked for: its first token is not seen, so the lane's TTFT target, or P99 if longer, is added. Our own
    engine ends both itself, with its own counts: it has no limit for unstreamed answers, and GRACE_S more for
    streams."""
    if lane.generation_s is None or (own and not stream):
        return inf
    if not stream:
        return lane.generation_s + max(lane.ttft_target_s, lane.ttft_p99_s or 0.0)
    return lane.generation_s + (GRACE_S if own else 0.0)


def _mended(data: bytes, wanted: str) -> tuple[bytes, Chunk | None]:
    """Handles an event that `decode_chunk` refuses. [DONE], empty events and events that `is_event` accepts, such as
    those with half a character, are returned as they are, with None. Others are repaired if possible, and decoded."""
    if data == LAST_EVENT or not data.strip() or is_event(data):
        return data, None
    told = mended_event(data, wanted if wanted == "choices" else "")
    return told, None if told is data else decode_chunk(told)
