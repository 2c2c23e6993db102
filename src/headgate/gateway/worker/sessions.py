"""Stands for one worker in the brain, the process that decides for all workers of a gateway.

Each request of a worker has a ticket in the brain's own Gateway, as if it were served there, so that limits, fairness,
records, the page and `why` know of it. Only its commands go to the worker instead of to a relay.

    a worker is gone → its requests end as cancelled, and their room comes back
"""

import logging
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headgate.config.gateway import Tenant
from headgate.gateway.account import NO_LANE, Summary
from headgate.gateway.gateway import Gateway
from headgate.gateway.intake.accept import Accepted
from headgate.gateway.intake.prompt import PromptFound
from headgate.gateway.placing import Ticket
from headgate.gateway.worker.frames import (
    ARRIVED,
    ASK,
    DISPATCH,
    ENDED,
    FAILED,
    FIRST,
    HEDGE,
    HELLO,
    KNOWN,
    PROMPT,
    RECORD,
    REFUSE,
    RESUMED,
    STATUS,
    UNSEEN,
    WON,
    Link,
    unpacked,
)
from headgate.gateway.worker.state import WorkerState
from headgate.model.clock import Clock
from headgate.model.event import (
    AttemptFailed,
    Command,
    Dispatch,
    Ended,
    FirstToken,
    Hedge,
    HedgeWon,
    Refuse,
    Resumed,
)
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.model.request import Request
from headgate.policy.tenants.limits import RateView
from headgate.wire.exchange import Exchange

if TYPE_CHECKING:
    from headgate.gateway.worker.brain import Brain

log = logging.getLogger(__name__)

COMPLETED: Final = Outcome.COMPLETED
NOT_OURS: Final = Tenant(name="")
"""In tickets of workers' requests, whose tenant's name is in the Request."""

_read_request = msgspec.msgpack.Decoder(tuple[Any, ...]).decode
_read_first = msgspec.msgpack.Decoder(FirstToken).decode
_read_ended = msgspec.msgpack.Decoder(Ended).decode
_read_failed = msgspec.msgpack.Decoder(AttemptFailed).decode
_read_won = msgspec.msgpack.Decoder(HedgeWon).decode
_read_record = msgspec.msgpack.Decoder(Record).decode
_read_ask = msgspec.msgpack.Decoder(tuple[int, tuple[bytes, ...], float, int, str, tuple[str, ...]]).decode
_read_pair = msgspec.msgpack.Decoder(tuple[int, str]).decode
_read_hello = msgspec.msgpack.Decoder(tuple[int, int]).decode
_read_resumed = msgspec.msgpack.Decoder(tuple[tuple[Any, ...], str, bool]).decode
_read_status = msgspec.msgpack.Decoder(tuple[dict[str, int], dict[str, float], bool]).decode
_read_prompt = msgspec.msgpack.Decoder(tuple[str, bytes]).decode
_replace = msgspec.structs.replace


class _Nowhere:
    """The connection of an exchange that is another process's."""

    writable = True
    draining = False

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, /) -> Any:
        return None

    def abort(self) -> None:
        """There is nothing to abort."""

    @property
    def transport(self) -> "_Nowhere":
        return self

    def send(self, data: bytes) -> None:
        """There is no client here."""

    def answered(self, keep_alive: bool) -> None:
        """There is no client here."""


class WorkerTicket(Ticket):
    """A request that a worker serves."""

    __slots__ = ("first_at", "own_id", "refused", "worker")

    def __init__(self, gateway: Gateway, exchange: Exchange, accepted: Accepted, now: float, worker: "Worker") -> None:
        super().__init__(gateway, exchange, accepted, now)
        self.worker = worker
        self.own_id = accepted.request.id
        """The id by which the worker knows the request: another than here if two workers have the same."""
        self.first_at: float | None = None
        self.refused = False
        """Whether the dispatcher has refused it, and so will hear no end of it."""
        self.elsewhere = worker.carry_out

    def so_far(self, now: float) -> Summary | None:
        if self.timeline.replica is None:
            return None
        return Summary(
            outcome=COMPLETED, status=200, error=None, usage=None, cached_tokens=None, timings=None, events=0,
            sent_at=self.timeline.since, first_at=self.first_at, last_at=self.first_at, gaps=(), stalled_s=0.0,
        )  # fmt: skip

    def spoke_at(self) -> float | None:
        if self.timeline.replica is None:
            return None
        return -inf if self.first_at is None else self.first_at


class Worker:
    """One worker, as the brain knows it, from its connection to the end of it."""

    def __init__(self, brain: "Brain", gateway: Gateway, clock: Clock) -> None:
        self.number = -1
        self.pid = 0
        self.listens = False
        self.holds: dict[str, int] = {}
        """What it holds, by name, as it said last."""
        self.tickets: dict[str, WorkerTicket] = {}
        """By the worker's own id."""
        self.told: WorkerState | None = None
        """The state that it was told last; None: none yet."""
        self.link = Link(self._take, self._made, self._lost)
        self._brain = brain
        self._gateway = gateway
        self._clock = clock
        self._body: dict[str, Any] = {}
        self._exchange = Exchange(_Nowhere(), 0.0)
        self._prompt = PromptFound([], 0, 0, 1, 0, False)

    def _made(self, link: Link) -> None:
        self._brain.meet(self)

    def _lost(self, link: Link) -> None:
        self._brain.forget(self)
        if self.tickets:
            log.warning("worker %d is gone; its %d open requests end as cancelled", self.number, len(self.tickets))
        now = self._clock()
        for ticket in tuple(self.tickets.values()):
            try:
                self._gateway.ended(ticket, Outcome.CANCELLED, ticket.so_far(now))
            except Exception as flaw:
                self._gateway.broke(ticket, flaw)
        self.tickets.clear()

    # -- commands --------------------------------------------------------------------------------------------

    def carry_out(self, ticket: Ticket, command: Command, now: float) -> None:
        """Hands a command on. What only the record wants of it stays here, and joins the record at the end."""
        assert isinstance(ticket, WorkerTicket)
        timeline, port = ticket.timeline, self._gateway.port
        self._brain.tell_first(self)
        if isinstance(command, Dispatch):
            timeline.ahead, timeline.quote, timeline.cold = command.ahead, command.quote, command.cold
            timeline.woke_s = command.woke_s
            timeline.attempts, timeline.reason, timeline.seen = command.attempt, command.reason, command.seen
            ticket.accepted.sent_as(command, port.lanes)
            place = self._gateway.placing.places.get(command.replica_id)
            if place is not None:
                timeline.send(place.replica, now)
            request = ticket.accepted.request
            token_s = None if request.stream else self._brain.token_s(command.replica_id)
            self.link.send(
                DISPATCH,
                (
                    ticket.own_id, command.replica_id, command.attempt, command.cold, command.model, command.uncached,
                    command.lane, command.quote, told_rates(port.rates(request.tenant, now)), token_s,
                ),
            )  # fmt: skip
        elif isinstance(command, Refuse):
            timeline.ahead, timeline.quote, ticket.refused = command.ahead, command.quote, True
            rates = told_rates(port.rates(ticket.accepted.request.tenant, now))
            self.link.send(REFUSE, (_replace(command, request_id=ticket.own_id), rates))
        elif isinstance(command, Hedge):
            self.link.send(HEDGE, _replace(command, request_id=ticket.own_id))

    # -- what the worker says --------------------------------------------------------------------------------

    def _take(self, kind: int, content: msgspec.Raw) -> None:
        try:
            self._hear(kind, content)
        except Exception:  # one request is affected, and none of the others that are told of in the same frame
            log.exception("what worker %d said could not be taken in", self.number)

    def _hear(self, kind: int, content: msgspec.Raw) -> None:
        gateway = self._gateway
        if kind == ARRIVED:
            self._arrived(_read_request(content))
        elif kind == FIRST:
            ticket = self.tickets.get(_read_first(content).request_id)
            if ticket is not None:
                ticket.first_at = now = self._clock()
                gateway.hear(FirstToken(ticket.accepted.request.id), now)
        elif kind == ENDED:
            ended = _read_ended(content)
            ticket = self.tickets.pop(ended.request_id, None)
            if ticket is not None:
                self._forget(ticket)
                gateway.hear(_as_here(ended, ticket), self._clock())
        elif kind == RECORD:
            self._recorded(_read_record(content))
        elif kind == FAILED:
            failed = _read_failed(content)
            ticket = self.tickets.get(failed.request_id)
            if ticket is not None:
                replica = ticket.timeline.replica
                if replica is not None and replica.id == failed.replica_id:
                    ticket.timeline.replica = None
                gateway.hear(_as_here(failed, ticket), self._clock())
        elif kind == WON:
            won = _read_won(content)
            ticket = self.tickets.get(won.request_id)
            if ticket is not None:
                place = gateway.placing.places.get(won.replica_id)
                ticket.timeline.replica = ticket.timeline.replica if place is None else place.replica
                gateway.hear(_as_here(won, ticket), self._clock())
        elif kind == ASK:
            number, prefix, link_tokens, tokens, model, lanes = _read_ask(content)
            most, by_lane = self._brain.cached(prefix, link_tokens, tokens, model, lanes)
            self.link.send(KNOWN, (number, most, by_lane))
        else:
            self._hear_more(kind, content)

    def _hear_more(self, kind: int, content: msgspec.Raw) -> None:
        if kind == STATUS:
            self.holds, spoke, self.listens = _read_status(content)
            for replica_id, at in spoke.items():
                self._gateway.placing.answered(replica_id, at)
            self._brain.heard_status()
        elif kind == UNSEEN:
            self._gateway.account.refuse(*_read_pair(content))
        elif kind == RESUMED:
            fields, replica_id, begun = _read_resumed(content)
            self._resumed(unpacked(fields), replica_id, begun)
        elif kind == PROMPT:
            request_id, body = _read_prompt(content)
            self._brain.keep_prompt(request_id, msgspec.json.decode(body))
        elif kind == HELLO:
            self.number, self.pid = _read_hello(content)
            self._brain.tell_first(self)

    def _arrived(self, fields: tuple[Any, ...]) -> None:
        request = unpacked(fields, self._gateway.dispatcher.cached_tokens)
        ticket = self._ticket(request)
        try:
            self._gateway.adopt(ticket)
        except Exception as flaw:
            log.exception("request %s: it could not be decided on", request.id)
            self.link.send(REFUSE, (Refuse(ticket.own_id, Outcome.ENGINE_FAILED, f"internal error: {flaw}"), None))

    def _resumed(self, request: Request, replica_id: str, begun: bool) -> None:
        ticket, now = self._ticket(request), self._clock()
        place = self._gateway.placing.places.get(replica_id)
        if place is not None:
            ticket.timeline.send(place.replica, now)
        ticket.first_at = now if begun else None
        self._gateway.adopt(ticket, Resumed(ticket.accepted.request, replica_id, begun))

    def _ticket(self, request: Request) -> WorkerTicket:
        own_id, gateway = request.id, self._gateway
        if own_id in gateway.tickets:  # of another worker's client
            number = gateway.account.opened
            while (other := f"{own_id[:100]}-{self.number}-{number:x}") in gateway.tickets:
                number += 1
            request = request.but(id=other, uncached_tokens=request.uncached_tokens)
        accepted = Accepted(request, self._body, b"", "", NOT_OURS, False, self._prompt)
        ticket = WorkerTicket(gateway, self._exchange, accepted, self._clock(), self)
        ticket.own_id = own_id
        self.tickets[own_id] = ticket
        return ticket

    def _recorded(self, record: Record) -> None:
        """Keeps the record of a request that is over at the worker."""
        account = self._gateway.account
        ticket = None if record.lane == NO_LANE else self.tickets.get(record.id)
        if ticket is None:
            account.open()  # it never entered a queue, or this brain began after it
            account.close(record)
            return
        timeline = ticket.timeline
        if record.reason:  # the replica of its hedge answered
            record = _replace(record, ahead=timeline.ahead)
        else:
            record = _replace(
                record, ahead=timeline.ahead, reason=timeline.reason, seen=timeline.seen, woke_s=timeline.woke_s
            )
        account.close(record)
        if record.outcome is COMPLETED and record.replica is not None:
            self._gateway.placing.answered(record.replica, self._clock())
        self._gateway.release(ticket)
        if ticket.refused:
            self.tickets.pop(record.id, None)

    def _forget(self, ticket: WorkerTicket) -> None:
        """Lets go of a request that has ended, also if no record of it came."""
        gateway = self._gateway
        if gateway.tickets.get(ticket.accepted.request.id) is ticket:
            now = self._clock()
            gateway.account.end(ticket.timeline, Outcome.CANCELLED, ticket.so_far(now), None, None, now, 499)
            gateway.release(ticket)


def _as_here(event: Any, ticket: WorkerTicket) -> Any:
    """The event by the id that the request has here."""
    here = ticket.accepted.request.id
    return event if event.request_id == here else _replace(event, request_id=here)


def told_rates(view: RateView | None) -> tuple[object, ...] | None:
    """What is left of a tenant's limits, as a worker is told; None: it has none."""
    if view is None:
        return None
    both = (view.requests, view.tokens)
    return tuple([None if one is None else (one.limit, one.remaining, one.reset_s) for one in both])
