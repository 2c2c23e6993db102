"""Passes an answer from a replica to a client: one attempt, joined to one exchange.

    start ─→ waiting ── first event, or the whole body ──→ started ─→ over: on_end
                │ the replica fails, refuses or stalls                  ▲
                ├─→ over: on_attempt_failed                             │ done, failed, stalled,
                └── the client leaves, or is itself at fault ───────────┘ gone, too slow

Nothing goes to the client while waiting, so a failed attempt leaves the exchange as it was: its owner asks another
replica, or answers. A stream that breaks off after it has begun waits too, if its owner can ask another replica to
continue it. A relay is over exactly once.
"""

from math import inf
from typing import Final, Protocol

from headgate.gateway.account import Summary
from headgate.gateway.answer.backlog import Backlog, RelayLimits
from headgate.gateway.answer.output import speaks, thinks
from headgate.gateway.answer.transcript import MOST_KEPT, Continuation, Transcript
from headgate.model.clock import Clock
from headgate.model.errors import (
    InvalidRequest,
    OutOfTime,
    ReplicaAnswered,
    ReplicaFailed,
    ReplicaStalled,
    ReplicaUnreached,
    ServeError,
    SlowClient,
)
from headgate.model.lane import WhenSlow
from headgate.model.outcome import Outcome
from headgate.replica.http import Call
from headgate.replica.openai import (
    FULL,
    error_body,
    has_finish,
    is_event,
    mended_event,
    named,
    quoted,
    read_answer,
    read_error,
    read_mended,
    read_usage,
    room_in_s,
)
from headgate.replica.shape import Chunk, Usage, decode_chunk
from headgate.wire.errors import STATUS, Headers
from headgate.wire.exchange import Exchange

__all__ = ["Relay", "RelayLimits", "RelayOwner", "Summary"]

DONE: Final = b"[DONE]"
COMPLETED: Final = Outcome.COMPLETED
NONE_ENDED: Final[frozenset[int]] = frozenset()
_NO_ERROR: Final = (b"", b"null")
"""The error or usage field of an event that has none."""
_CLIENT_FAULTS: dict[int, Outcome] = {
    400: Outcome.INVALID,
    404: Outcome.UNKNOWN_MODEL,
    405: Outcome.INVALID,
    409: Outcome.INVALID,
    413: Outcome.TOO_LONG,
    415: Outcome.INVALID,
    422: Outcome.INVALID,
    501: Outcome.INVALID,
}
"""Statuses that any other replica would give too. The other 4xx are between the gateway and the replica."""
MOST_HELD: Final = 16
"""Maximum events without a token that are held back before the first token. Further ones are left out: they add
nothing."""
GAPS: Final = 3
"""Longest gaps remembered per stream, plus one for each GAP_EACH tokens, at most MOST_GAPS: they include the longest
one percent of all gaps."""
GAP_EACH: Final = 64
MOST_GAPS: Final = 64
_AFTER_DONE_S = 1.0
"""Seconds after [DONE] until the replica must end its HTTP message; then the connection is closed."""


class RelayOwner(Protocol):
    """The owner of the request, which the relay tells what happens."""

    def on_first(self) -> None:
        """The first event of the replica that is asked now has been written to the client."""

    def on_attempt_failed(self, error: ServeError, refused: bool) -> None:
        """The attempt failed and the exchange is untouched. `refused`: the replica said that it is busy, which is no
        fault."""

    def closing(self, first: bytes, finish: str, stop: str, events: int) -> list[bytes]:
        """The events that end the stream in the replica's place. `first` is the stream's first event."""

    def may_go_on(self) -> bool:
        """Whether another replica may continue a stream that broke off."""

    def on_broken_off(self, error: ServeError) -> None:
        """A stream that has begun broke off, and waits for `go_on` or `fail`."""

    def on_end(self, summary: Summary) -> None:
        """The exchange has been answered, or the client has left."""

    def on_broken(self, flaw: Exception) -> None:
        """An exception was raised while the answer was relayed, in an unknown state: any of the above may have been
        called. `Relay.abandon` releases the replica."""


class HedgedAttempt(Protocol):
    """A hedge: the same request at another replica, while neither has answered."""

    def cancel(self) -> None:
        """The hedge is not needed. The relay's owner already knows."""

    def stand_in(self, error: ReplicaFailed, refused: bool) -> None:
        """The relay's own replica failed: the hedge's call is the relay's from now on."""


class Relay:
    """The Listener to the replica that answers one exchange."""

    __slots__ = (
        "_asked_at",
        "_backlog",
        "_body",
        "_call",
        "_clock",
        "_continuation",
        "_exchange",
        "_gap_floor_s",
        "_gaps",
        "_generation_s",
        "_head_at",
        "_headers",
        "_heard_at",
        "_held",
        "_idle",
        "_owner",
        "_received",
        "_room_in_s",
        "_said_done",
        "_spool",
        "_status",
        "_stream",
        "_unheard",
        "_usage",
        "_wanted",
        "_wants_usage",
        "ended",
        "events",
        "first_at",
        "fruitless",
        "last_at",
        "limits",
        "over",
        "rival",
        "stop",
        "transcript",
    )

    def __init__(
        self,
        exchange: Exchange,
        owner: RelayOwner,
        limits: RelayLimits,
        slow_client: WhenSlow,
        stream: bool,
        wants_usage: bool,
        clock: Clock,
        generation_s: float = inf,
        headers: Headers = (),
        wanted: str = "",
    ) -> None:
        """`stream` and `wants_usage`: what the client asked for; the replica is always asked for usage. `generation_s`:
        maximum seconds of a stream after its first token, or of an unstreamed answer after it was asked for. `headers`:
        further headers of the answer. `wanted`: the list that an answer must have (choices, data, output); empty: any
        object is an answer."""
        self._exchange = exchange
        self._owner = owner
        self.limits = limits
        self._spool = slow_client == "spool"
        self._stream = stream
        self._wants_usage = wants_usage
        self._clock = clock
        self._generation_s = generation_s
        self._headers = headers
        self._wanted = wanted
        self.transcript = Transcript()
        self.stop = ""
        """Why the answer was ended early; empty: it was not."""
        self.ended: frozenset[int] = NONE_ENDED
        """Choices that the replica has ended, in a stream with several; not tracked for a single choice."""
        self._continuation: Continuation | None = None
        """Set while the current replica continues a stream that another one began; None: no continuation."""
        self._held: list[bytes] = []
        """Events before the first token, such as the role. They are sent together with it."""
        self._unheard = True
        """Whether nothing has come from the replica that is asked now."""
        self._call: Call | None = None
        self.rival: HedgedAttempt | None = None
        self._status = 0
        """The status of the replica's answer; 0: its head has not come."""
        self._room_in_s: float | None = None
        """Seconds until the full replica expects to have room; None: it did not say."""
        self._body = b""
        self._said_done = False
        self._usage: Usage | None = None
        self._asked_at = 0.0
        """When the replica that is asked now was asked."""
        self._head_at = 0.0
        """When the head of an unstreamed answer, or of a refusal, came."""
        self._heard_at = 0.0
        """When a part of the answer last came; for an unstreamed answer, when its last bytes were noticed."""
        self._idle = 0
        """Events passed on that are not part of the answer: usage events."""
        self._received = 0
        """Bytes of an unstreamed answer that had come at the last look."""
        self._backlog: Backlog | None = None
        self.events = 0
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.fruitless = 0
        """Continuations in a row that failed without an event. Refused and unreached ones do not count."""
        self._gaps: list[tuple[float, float]] = []
        self._gap_floor_s = 0.0
        """Seconds up to which a silence is not among the longest."""
        self.over = False

    @property
    def spoke_at(self) -> float | None:
        """When the replica that is asked now last sent events; None: it has not sent any."""
        return None if self._unheard else self.last_at

    def start(self, call: Call) -> None:
        """`call` has been sent with this relay as its listener. From here on the relay answers the exchange."""
        self._call = call
        self._asked_at = self._heard_at = now = self._clock()
        self._received = 0
        self._exchange.on_gone = self._on_gone
        late_s = min(self.limits.first_token_s, self.limits.stall_s)
        call.late_at = now + (late_s if self._stream else min(late_s, self._generation_s))

    def go_on(self, call: Call) -> None:
        """`call` asks for the rest of a stream that broke off."""
        self._continuation = Continuation(self.transcript.first, self.events if self.transcript.answering else 0)
        self._status = 0
        self._body = b""
        self._unheard = True
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
        self._unheard = True
        self.first_at = self.last_at = None
        self._generation_s = generation_s

    def fail(self, error: ServeError) -> None:
        """Ends the exchange with this error: a status while nothing is sent, an error event afterwards."""
        self._settle()
        self._exchange.fail(error)
        self._end(error.outcome, error)

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
        if self._said_done:
            return
        now = self._clock()
        exchange = self._exchange
        first = self._unheard
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
            elif self.over or self._said_done or self._call is not call:
                break
        self._pass_on(tokens)
        if self.over or self._call is not call:
            return
        if self.events - self._idle == spoken:
            self._heard_at = heard_at  # no part of the answer: it does not extend any timeout
        if first and exchange.started:
            self._unheard = False
            self._owner.on_first()
        if not self._said_done and (self._backlog is not None or exchange.unsent):
            self._judge_backlog(len(events), now)

    def on_body(self, body: bytes) -> None:
        self._body = body

    def on_done(self) -> None:
        if self._status >= 300:
            self._judge_refusal(self._status, self._body)
        elif self._said_done:
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

    def _told_first(self, now: float) -> float | None:
        """When the first token of an unstreamed answer was there, by the engine's timings; None: it reports none."""
        usage, call, asked_at = self._usage, self._call, self._asked_at
        if usage is None or usage.timings is None:
            return None
        if call is not None and call.sent_at is not None:
            asked_at = call.sent_at  # a second replica was asked before its call became this relay's
        first_s = usage.timings.first_s(now - asked_at, usage.output)
        return None if first_s is None else asked_at + first_s

    def on_failed(self, error: ReplicaFailed, sent: bool) -> None:
        if self._said_done:
            self._finish()
        else:
            self._break_off(error)

    def on_late(self) -> None:
        """Checks the timeouts, at least every `stall_s`: events do not postpone this call."""
        call, now = self._call, self._clock()
        patience_s = self._patience_s(now)
        since = self.first_at if self._stream else self._asked_at
        left_s = inf if since is None else since + self._generation_s - now
        if self._said_done:
            self._finish()  # the replica has not ended its HTTP message, which the client does not need
        elif left_s <= 0 and self._status < 300:
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

    def _patience_s(self, now: float) -> float:
        """Seconds until the replica counts as stalled. Tokens, or bytes of an unstreamed answer, extend the stall
        timeout; nothing extends a timeout that is measured from the request. Time while the client is behind does not
        count."""
        limits, call = self.limits, self._call
        if self._status >= 300:
            return self._head_at + limits.stall_s - now
        if self._stream:
            if self._unheard:  # a continuation has to prefill the whole text first, like any prompt
                return limits.first_token_s - self._silence_s(now, self._asked_at)
            return limits.stall_s - self._silence_s(now, self._heard_at)
        due_at = self._asked_at + limits.answer_s
        if call is not None and call.received:
            # An engine that has begun to write an unstreamed answer has all of it.
            if call.received > self._received:
                self._received, self._heard_at = call.received, now
            if self._status:
                body_s = limits.body_s if self._generation_s == inf else self._generation_s
                complete_at = self._head_at + body_s + limits.stall_s
            else:
                began_at = now if call.first_byte_at is None else call.first_byte_at
                complete_at = max(began_at + limits.stall_s, self._asked_at + limits.first_token_s)
            due_at = min(due_at, complete_at, self._heard_at + limits.stall_s)
        return due_at - now

    def _lateness(self, now: float) -> str:
        call, silent_s = self._call, self._silence_s(now, self._heard_at)
        if not self._unheard or call is None or not call.received:
            return f"the replica said nothing for {silent_s:.1f} s"
        missing = "no token" if self._stream and self._status < 300 else "no complete answer"
        return f"the replica gave {missing} within {now - self._asked_at:.1f} s"

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
        if data == DONE:
            if not self._has_finished():
                self._break_off(ReplicaFailed("the replica broke off: its stream ended without a finish_reason"))
                return False
            self._said_done = True
            if self._held:
                self._exchange.events(self._held)
            self._exchange.end(DONE)
            if self._call is not None:
                self._call.late_at = self._heard_at + _AFTER_DONE_S
            return False
        if chunk is None:
            if not data or is_event(data):
                return bool(data)  # some engines send empty events to keep a connection alive
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

    def _note_gap(self, silence_s: float, now: float) -> None:
        """Keeps a gap that is among the longest. Called seldom: about 3 · ln n of n random gaps are among the longest
        three so far, plus one in 64."""
        gaps, most = self._gaps, min(MOST_GAPS, GAPS + self.events // GAP_EACH)
        gaps.append((silence_s, now - silence_s))
        gaps.sort(reverse=True)
        if len(gaps) > most:
            gaps.pop()
        if len(gaps) >= most:
            # Not lowered when there is room for one more: a gap shorter than all kept ones is not among the longest one
            # percent.
            self._gap_floor_s = gaps[-1][0]

    def _silence_s(self, now: float, since: float) -> float:
        """Seconds of silence since `since` that are the replica's own; 0 while it is not read because the client is
        behind."""
        backlog = self._backlog
        if backlog is None:
            return now - since
        return 0.0 if backlog.pausing else now - max(since, backlog.resumed_at)

    def _judge_refusal(self, status: int, body: bytes) -> None:
        """Handles an error answer. If nothing has been sent to the client and the fault is the client's, the client
        gets the error; otherwise the attempt breaks off."""
        error = read_error(body)
        outcome = _CLIENT_FAULTS.get(status)
        if outcome is None or self._exchange.started:
            full = status in FULL
            message = f"the replica answered {status}: {quoted(error)}"
            self._break_off(ReplicaAnswered(message, full=full, room_in_s=self._room_in_s if full else None), full)
        else:
            self._settle()
            self._exchange.respond(status, error_body(error))
            self._end(outcome, InvalidRequest(error.message, param=error.param), status)

    def _finish(self) -> None:
        """The replica has ended after [DONE]: the client has the whole stream."""
        self._settle()
        self._end(COMPLETED)

    def _break_off(self, error: ReplicaFailed, refused: bool = False) -> None:
        if self._call is not None and self._call.sends > 1:
            error.twice = True
        if self.rival is not None:
            self.rival.stand_in(error, refused)
        elif not self._exchange.started:
            self._settle()
            self._owner.on_attempt_failed(error, refused)
        elif self.transcript.said is not None and self.transcript.is_complete:
            self._complete()
        elif self.transcript.thought:
            error.message += "; it had been thinking, and no other replica can go on after that"
            self.fail(error)
        elif self.transcript.said is not None and self._may_go_on(error, refused):
            call, self._call = self._call, None
            if call is not None:
                call.cancel()
            self._owner.on_broken_off(error)
        else:
            self.fail(error)

    def _may_go_on(self, error: ReplicaFailed, refused: bool) -> bool:
        if not self._unheard:
            self.fruitless = 0
        elif not refused and not isinstance(error, ReplicaUnreached):
            self.fruitless += 1
        return self._owner.may_go_on()

    def _complete(self) -> None:
        """Writes the end of a stream in the replica's place, where only the end itself is missing."""
        self._continuation = None
        self._wanted = ""  # finish_reason or usage has come
        usage, done = self._owner.closing(self.transcript.first, "", "", self.events)[-2:]
        self.on_events([usage, done] if self._usage is None else [done])
        if not self.over:
            self._finish()

    # -- what the client does ----------------------------------------------------------------------------------

    def _on_gone(self) -> None:
        try:
            self._settle()
            self._end(Outcome.CANCELLED)
        except Exception as flaw:
            self._owner.on_broken(flaw)

    def _judge_backlog(self, events: int, now: float) -> None:
        if self._backlog is None:
            assert self._call is not None
            self._backlog = Backlog(
                self._exchange,
                self._call,
                self.limits,
                self._spool,
                self._clock,
                self._give_up_client,
                self.on_broken,
            )
        self._backlog.judge(events, now)

    def _give_up_client(self) -> None:
        self.fail(SlowClient("the client did not read its stream, so it was cancelled"))

    # -- the end -----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Ends the relay, exactly once, and releases the replica. Client and owner are told afterwards."""
        if self.over:
            raise RuntimeError("a relay is over only once")
        self.over = True
        if self._backlog is not None:
            self._backlog.close()
        self._exchange.on_gone = self._exchange.on_writable = None
        if self._call is not None:
            self._call.cancel()
        if self.rival is not None:
            self.rival.cancel()

    def abandon(self) -> None:
        """Ends the relay in any state and releases the replica, without telling the client or the owner."""
        self.over = True
        backlog, call, rival = self._backlog, self._call, self.rival
        self._backlog = self._call = self.rival = None
        if backlog is not None:
            backlog.close()
        if call is not None:
            call.cancel()
        if rival is not None:
            rival.cancel()

    def so_far(self, now: float) -> Summary:
        """The answer as if it ended now, with the outcome COMPLETED, since nothing has gone wrong yet."""
        first_at, last_at = self.first_at, self.last_at
        silent_since = first_at if last_at is None else last_at
        return Summary(
            outcome=COMPLETED,
            status=200,
            error=None,
            usage=None,
            cached_tokens=0,
            timings=None,
            events=0 if first_at is None else self.events,
            sent_at=None,
            first_at=first_at,
            last_at=now,
            gaps=() if first_at is None or silent_since is None else ((now - silent_since, silent_since),),
            stalled_s=0.0,
        )

    def _end(self, outcome: Outcome, error: ServeError | None = None, status: int | None = None) -> None:
        usage, call, backlog = self._usage, self._call, self._backlog
        stop = self.stop or (usage.timings.stop if usage is not None and usage.timings is not None else "")
        if stop == "time" and outcome is COMPLETED:
            outcome = Outcome.TIME_CAP
        self._call = self._backlog = self.rival = None  # they refer to the relay
        self._owner.on_end(
            Summary(
                outcome=outcome,
                status=status or (200 if self._stream and self.first_at is not None else STATUS[outcome]),
                error=error,
                usage=None if usage is None else (usage.prompt, usage.output),
                cached_tokens=0 if usage is None else usage.cached,
                timings=None if usage is None else usage.timings,
                events=self.events,
                sent_at=None if call is None else call.sent_at,
                first_at=self.first_at,
                last_at=self.last_at,
                gaps=tuple(self._gaps),
                stalled_s=0.0 if backlog is None else backlog.stalled_s,
                stop=stop,
            )
        )


def _mended(data: bytes, wanted: str) -> tuple[bytes, Chunk | None]:
    """Handles an event that `decode_chunk` refuses. [DONE], empty events and events that `is_event` accepts, such as
    those with half a character, are returned as they are, with None. Others are repaired if possible, and decoded."""
    if data == DONE or not data or is_event(data):
        return data, None
    told = mended_event(data, wanted if wanted == "choices" else "")
    return told, None if told is data else decode_chunk(told)
