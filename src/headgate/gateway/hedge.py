"""Sends one request to two replicas and keeps the first answer.

    asked ─┬─ its first token, or its whole answer, comes before the other's ──→ leads: the relay's call is this one
           ├─ the relay's own replica fails ───────────────────────────────────→ leads, with no token heard yet
           ├─ the relay's own replica answers first ──→ cancelled
           ├─ the rival fails ────────────────────────→ forgotten
           └─ the client leaves ──────────────────────→ cancelled, both

Nothing from the rival goes to the client before it leads, and nothing from the other replica afterwards. An unstreamed
answer must be complete before it can lead: its events are kept until then, up to MOST_KEPT bytes.
"""

from typing import Any, Final, Protocol

from headgate.gateway.account import RequestTimeline
from headgate.gateway.answer.bounded import Bounded, Several, bounded
from headgate.gateway.answer.failure import failure
from headgate.gateway.answer.gather import Gather
from headgate.gateway.answer.relay import Relay, generation_s
from headgate.gateway.answer.response_reader import ResponseReader
from headgate.gateway.answer.transcript import speaks
from headgate.gateway.intake.accept import Accepted
from headgate.model.clock import Clock
from headgate.model.errors import Gone, InvalidRequest, ReplicaAnswered, ReplicaFailed, ServeError
from headgate.model.event import Event, Hedge, HedgeWon
from headgate.model.lane import Lane
from headgate.model.outcome import Outcome
from headgate.model.record import Hedged
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.dispatch.hedge import CANCELLED, FAILED, LOST, TOOK_OVER, WON
from headgate.replica.dialects import dialect_of
from headgate.replica.http import Call
from headgate.replica.mend import mended
from headgate.replica.openai import FULL, flaw_in, is_error, is_event, named, room_in_s

MOST_KEPT: Final = 1024 * 1024
"""Maximum bytes of an unstreamed answer kept while the other replica may still be first."""
_CLIENT_FAULTS: Final = (400, 404, 405, 409, 413, 415, 422, 501)
"""Statuses that blame the request, not the replica."""
_ANSWERED: Final = (Outcome.COMPLETED, Outcome.TIME_CAP)


class HedgedTicket(Protocol):
    """The part of the gateway's Ticket that a hedge uses."""

    accepted: Accepted
    timeline: RequestTimeline

    def hear(self, event: Event, now: float | None = None) -> None: ...

    def abort(self, replica_id: ReplicaId) -> None:
        """Tells the replica that its answer is not needed."""


class Rival:
    """The Listener to the second replica."""

    __slots__ = (
        "_at",
        "_call",
        "_clock",
        "_command",
        "_first",
        "_generation_s",
        "_head",
        "_kept",
        "_kept_bytes",
        "_leads",
        "_reader",
        "_relay",
        "_replica",
        "_result",
        "_spoke_at",
        "_ticket",
    )

    def __init__(
        self,
        ticket: HedgedTicket,
        relay: Relay,
        replica: Replica,
        command: Hedge,
        lane: Lane,
        clock: Clock,
        now: float,
    ) -> None:
        first = ticket.timeline.replica
        assert first is not None
        accepted, allowance = ticket.accepted, ticket.accepted.allowance
        own = dialect_of(replica).keeps_bounds
        self._ticket = ticket
        self._relay = relay
        self._replica = replica
        self._command = command
        self._clock = clock
        self._at = now
        self._first: ReplicaId = first.id
        self._generation_s = generation_s(lane, own, accepted.request.stream)
        reader = None if allowance is None or own else bounded(accepted, allowance, lane, relay, clock)
        self._reader: Relay | Bounded | Several | Gather | ResponseReader = relay if reader is None else reader
        """The Listener that gets the whole answer once the rival leads."""
        self._call: Call | None = None
        self._head: tuple[int, dict[str, str], bool] | None = None
        self._kept: list[bytes] = []
        """Events of an unstreamed answer, or of a stream that has no token yet."""
        self._kept_bytes = 0
        self._spoke_at: float | None = None
        """When the first kept token came; None: no token is kept."""
        self._leads = False
        self._result = ""

    def body(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body to send to the second replica."""
        return body if isinstance(self._reader, Relay) else self._reader.body(body)

    def start(self, call: Call) -> None:
        self._call = call
        self._relay.rival = self

    @property
    def told(self) -> Hedged:
        """The hedge as it goes into the record."""
        at_s = self._at - self._ticket.accepted.request.arrived
        return Hedged(self._first, self._replica.id, at_s, self._result or CANCELLED)

    # -- which replica leads -------------------------------------------------------------------------------

    def settle(self) -> None:
        """The client has got the first token of one of the two: that one wins, the other is aborted."""
        if self._result:
            return
        loser, winner = (self._first, self._replica.id) if self._leads else (self._replica.id, self._first)
        self._result = WON if self._leads else LOST
        if not self._leads:
            self._relay.rival = None
            self.cancel()
        self._ticket.abort(loser)
        self._ticket.hear(HedgeWon(self._ticket.accepted.request.id, winner))

    def over(self, outcome: Outcome) -> None:
        """The exchange has ended with this outcome; the relay has cancelled the calls that were still open."""
        if self._leads or outcome in _ANSWERED:
            self.settle()
        elif not self._result:
            self._result = CANCELLED
            self._ticket.abort(self._replica.id)

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def stand_in(self, error: ReplicaFailed, refused: bool) -> None:
        request_id = self._ticket.accepted.request.id
        self._ticket.timeline.note(error, refused, self._clock())
        self._result = TOOK_OVER
        self._lead()
        self._ticket.hear(failure(request_id, self._first, error, refused))

    def _lead(self) -> None:
        """Makes this call the relay's, as if there had been no other, and passes on what was kept."""
        call, command = self._call, self._command
        assert call is not None
        self._leads = True
        self._relay.hand_over(self._generation_s)
        self._ticket.timeline.move(self._replica, self._at, command.reason, command.seen)
        self._reader.start(call)
        if self._head is not None:
            self._reader.on_head(*self._head)
        if self._kept:
            kept, self._kept = self._kept, []
            if not self._streams:
                self._relay.first_at = self._spoke_at
            self._reader.on_events(kept)

    def _fail(self, error: ServeError, refused: bool) -> None:
        self._result = FAILED
        self._relay.rival = None
        if isinstance(error, ReplicaFailed) and self._call is not None and self._call.sends > 1:
            error.twice = True
        self.cancel()
        request_id = self._ticket.accepted.request.id
        self._ticket.hear(failure(request_id, self._replica.id, error, refused))

    # -- told by the connection to the replica -------------------------------------------------------------

    def on_head(self, status: int, headers: dict[str, str], is_stream: bool) -> None:
        if self._leads:
            self._reader.on_head(status, headers, is_stream)
        elif status != 200:
            self._refuse(status, headers)
        elif is_stream != self._streams and not isinstance(self._reader, Gather):
            self._fail(ReplicaFailed(f"the replica answered with {named(headers)}"), False)
        else:
            self._head = (status, headers, is_stream)

    def _refuse(self, status: int, headers: dict[str, str]) -> None:
        message, full = f"the replica answered {status}", status in FULL
        if status in _CLIENT_FAULTS:
            self._fail(InvalidRequest(message), False)
        else:
            self._fail(ReplicaAnswered(message, full=full, room_in_s=room_in_s(headers) if full else None), full)

    @property
    def _streams(self) -> bool:
        return self._ticket.accepted.request.stream

    def on_events(self, events: list[bytes]) -> None:
        if not self._leads:
            events = [event for event in events if event.strip()]  # empty ones only keep a connection alive
            if not events:
                return
            first = events[0]
            if is_error(first):
                self._fail(ReplicaFailed("the replica sent an error"), False)
                return
            if not is_event(first) and not is_event(mended(first)):
                self._fail(ReplicaFailed("the replica sent an event that is no JSON object"), False)
                return
            if not self._streams or not any(speaks(event) for event in events):
                self._keep(events)  # an event with only the role is not a token: it wins nothing
                return
            self._lead()
            if self._relay.over:
                return
        self._reader.on_events(events)

    def on_body(self, body: bytes) -> None:
        if not self._leads:
            flaw = flaw_in(body, "") and flaw_in(mended(body), "")
            if flaw:
                self._fail(ReplicaAnswered(f"the replica {flaw}"), False)
                return
            self._lead()
        self._reader.on_body(body)

    def on_done(self) -> None:
        if not self._leads:
            if not self._kept:
                self._fail(ReplicaFailed("the replica said nothing"), False)
                return
            self._lead()
            if self._relay.over:
                return  # the kept events ended the answer early
        self._reader.on_done()

    def on_failed(self, error: ReplicaFailed, sent: bool) -> None:
        if self._leads:
            self._reader.on_failed(error, sent)
        else:
            self._fail(error, False)

    def on_late(self) -> None:
        """The relay sets the deadline; before the rival leads there is none."""
        if self._leads:
            self._reader.on_late()

    def on_broken(self, flaw: Exception) -> None:
        """An exception breaks the request whichever replica leads: its state can no longer be trusted."""
        self._relay.on_broken(flaw)

    def _keep(self, events: list[bytes]) -> None:
        if self._spoke_at is None and any(speaks(event) for event in events):
            self._spoke_at = self._clock()
        self._kept += events
        self._kept_bytes += sum(map(len, events))
        if self._kept_bytes > MOST_KEPT:
            self._fail(Gone("its answer was too long to be kept beside another's"), False)
