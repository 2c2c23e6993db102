"""One answer on its way from a replica to a client: its phase, its times, and how it ends.

An answer ends exactly once, well or badly. What the replica sends is read and passed on in relay.py.
"""

from math import inf
from typing import Final

from headgate.gateway.account import Summary
from headgate.gateway.answer.backlog import Backlog, RelayLimits
from headgate.gateway.answer.phases import (
    ASK,
    ASKED,
    BREAK,
    END,
    HEARD,
    NEXT,
    OVER,
    PHASES,
    REFUSED,
    STEPS,
    HedgedAttempt,
    RelayOwner,
)
from headgate.gateway.answer.transcript import Transcript
from headgate.model.clock import Clock
from headgate.model.errors import (
    InvalidRequest,
    ReplicaAnswered,
    ReplicaFailed,
    ReplicaUnreached,
    ServeError,
    SlowClient,
)
from headgate.model.outcome import Outcome
from headgate.replica.http import Call
from headgate.replica.openai import FULL, error_body, quoted, read_error
from headgate.replica.shape import Usage
from headgate.wire.errors import STATUS
from headgate.wire.exchange import Exchange

COMPLETED: Final = Outcome.COMPLETED
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
GAPS: Final = 3
"""Longest gaps remembered per stream, plus one for each GAP_EACH tokens, at most MOST_GAPS: they include the longest
one percent of all gaps."""
GAP_EACH: Final = 64
MOST_GAPS: Final = 64


class RelayedAnswer:
    __slots__ = (
        "_asked_at",
        "_backlog",
        "_call",
        "_clock",
        "_exchange",
        "_gap_floor_s",
        "_gaps",
        "_generation_s",
        "_head_at",
        "_heard_at",
        "_owner",
        "_received",
        "_room_in_s",
        "_status",
        "_stream",
        "_usage",
        "events",
        "first_at",
        "fruitless",
        "last_at",
        "limits",
        "phase",
        "rival",
        "stop",
        "transcript",
    )

    def __init__(
        self,
        exchange: Exchange,
        owner: RelayOwner,
        limits: RelayLimits,
        clock: Clock,
        stream: bool,
        generation_s: float,
    ) -> None:
        self._exchange = exchange
        self._owner = owner
        self.limits = limits
        self._clock = clock
        self._stream = stream
        self._generation_s = generation_s
        self.phase: int = ASKED
        self.transcript = Transcript()
        self.stop = ""
        """Why the answer was ended early; empty: it was not."""
        self._call: Call | None = None
        self.rival: HedgedAttempt | None = None
        self._backlog: Backlog | None = None
        self._usage: Usage | None = None
        self._status = 0
        """The status of the replica's answer; 0: its head has not come."""
        self._room_in_s: float | None = None
        """Seconds until the full replica expects to have room; None: it did not say."""
        self.events = 0
        """Events passed on to the client, without those before the first token."""
        self.fruitless = 0
        """Continuations in a row that failed without an event. Refused and unreached ones do not count."""
        self._asked_at = 0.0
        """When the replica that is asked now was asked."""
        self._head_at = 0.0
        """When the head of an unstreamed answer, or of a refusal, came."""
        self._heard_at = 0.0
        """When a part of the answer last came; for an unstreamed answer, when its last bytes were noticed."""
        self._received = 0
        """Bytes of an unstreamed answer that had come at the last look."""
        self.first_at: float | None = None
        self.last_at: float | None = None
        self._gaps: list[tuple[float, float]] = []
        self._gap_floor_s = 0.0
        """Seconds up to which a silence is not among the longest."""

    # -- phases ------------------------------------------------------------------------------------------------

    def _go(self, step: int) -> None:
        """Takes a step. Raises RuntimeError for one that can't be taken."""
        phase = NEXT[step][self.phase]
        if phase < 0:
            raise RuntimeError(f"an answer that is {PHASES[self.phase]} can't {STEPS[step]}")
        self.phase = phase

    @property
    def over(self) -> bool:
        return self.phase == OVER

    @property
    def spoke_at(self) -> float | None:
        """When the replica that is asked now last sent events; None: it has not sent any."""
        return self.last_at if self.phase >= HEARD else None

    # -- times -------------------------------------------------------------------------------------------------

    def start(self, call: Call) -> None:
        """`call` has been sent with this relay as its listener. From here on the relay answers the exchange."""
        self._go(ASK)
        self._call = call
        self._asked_at = self._heard_at = now = self._clock()
        self._received = 0
        self._exchange.on_gone = self._on_gone
        late_s = min(self.limits.first_token_s, self.limits.stall_s)
        call.late_at = now + (late_s if self._stream else min(late_s, self._generation_s))

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

    def _left_s(self, now: float) -> float:
        """Seconds until the generation time is over."""
        since = self.first_at if self._stream else self._asked_at
        return inf if since is None else since + self._generation_s - now

    def _patience_s(self, now: float) -> float:
        """Seconds until the replica counts as stalled. Tokens, or bytes of an unstreamed answer, extend the stall
        timeout; nothing extends a timeout that is measured from the request. Time while the client is behind does not
        count."""
        limits, call = self.limits, self._call
        if self.phase == REFUSED:
            return self._head_at + limits.stall_s - now
        if self._stream:
            if self.phase < HEARD:  # a continuation has to prefill the whole text first, like any prompt
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
        if self.phase >= HEARD or call is None or not call.received:
            return f"the replica said nothing for {silent_s:.1f} s"
        missing = "no token" if self._stream and self.phase != REFUSED else "no complete answer"
        return f"the replica gave {missing} within {now - self._asked_at:.1f} s"

    def _told_first(self, now: float) -> float | None:
        """When the first token of an unstreamed answer was there, by the engine's timings; None: it reports none."""
        usage, call, asked_at = self._usage, self._call, self._asked_at
        if usage is None or usage.timings is None:
            return None
        if call is not None and call.sent_at is not None:
            asked_at = call.sent_at  # a second replica was asked before its call became this relay's
        first_s = usage.timings.first_s(now - asked_at, usage.output)
        return None if first_s is None else asked_at + first_s

    # -- the end -----------------------------------------------------------------------------------------------

    def fail(self, error: ServeError) -> None:
        """Ends the exchange with this error: a status while nothing is sent, an error event afterwards."""
        self._settle()
        self._exchange.fail(error)
        self._end(error.outcome, error)

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
            self._go(BREAK)
            call, self._call = self._call, None
            if call is not None:
                call.cancel()
            self._owner.on_broken_off(error)
        else:
            self.fail(error)

    def _may_go_on(self, error: ReplicaFailed, refused: bool) -> bool:
        if self.phase >= HEARD:
            self.fruitless = 0
        elif not refused and not isinstance(error, ReplicaUnreached):
            self.fruitless += 1
        return self._owner.may_go_on()

    def _complete(self) -> None:
        """Writes the end of a stream in the replica's place, where only the end itself is missing."""
        raise NotImplementedError

    def _on_gone(self) -> None:
        try:
            self._settle()
            self._end(Outcome.CANCELLED)
        except Exception as flaw:
            self._owner.on_broken(flaw)

    def _give_up_client(self) -> None:
        self.fail(SlowClient("the client did not read its stream, so it was cancelled"))

    def _settle(self) -> None:
        """Ends the relay, exactly once, and releases the replica. Client and owner are told afterwards."""
        self._go(END)
        if self._backlog is not None:
            self._backlog.close()
        self._exchange.on_gone = self._exchange.on_writable = None
        if self._call is not None:
            self._call.cancel()
        if self.rival is not None:
            self.rival.cancel()

    def abandon(self) -> None:
        """Ends the relay in any state and releases the replica, without telling the client or the owner."""
        self.phase = OVER
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
            cached_tokens=None,
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
                cached_tokens=None if usage is None else usage.cached,
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
