"""Carries out a Dispatch: sends a request to the replica that was chosen, in that replica's dialect.

A Relay, or a reader before it, listens to the answer. The same request may be sent again: to a second replica while the
first has not answered (a hedge), or for the rest of a stream that broke off.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headgate.gateway.account import RequestTimeline, Summary
from headgate.gateway.answer.backlog import RelayLimits
from headgate.gateway.answer.bounded import bounded, still_bounded
from headgate.gateway.answer.continuation import closing, rest_of
from headgate.gateway.answer.failure import failure
from headgate.gateway.answer.relay import NONE_ENDED, Relay, answer_headers, generation_s
from headgate.gateway.catalog import Listing
from headgate.gateway.hedge import Rival
from headgate.gateway.intake.abilities import RESPONSES
from headgate.gateway.intake.accept import Accepted
from headgate.gateway.intake.naming import Naming
from headgate.model.clock import Clock
from headgate.model.dialect import Dialect
from headgate.model.errors import Gone, ReplicaFailed, ServeError
from headgate.model.event import Command, Event, FirstToken, Hedge
from headgate.model.lane import Lane
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.answers.output import Allowance
from headgate.policy.dispatch.port import DispatchPort
from headgate.replica.dialects import Shape, dialect_of, session_line, shape_for
from headgate.replica.http import Call, Connections, Listener, Once, request_head
from headgate.wire.exchange import Exchange

if TYPE_CHECKING:
    from headgate.gateway.gateway import Gateway

WANTED: Final = {"/v1/embeddings": "data", RESPONSES: "output"}
"""The list that an answer on these paths must have; on all other paths it is `choices`."""
PASSED_ON: Final = ("traceparent", "tracestate")
"""Headers that go to the replica as the client sent them, if traces are not collected."""

_encode = msgspec.json.Encoder().encode


class Endpoint:
    """A replica that requests can be sent to, with its connections and its dialect."""

    __slots__ = ("answered_at", "connections", "default_model", "dialect", "heads", "listing", "replica", "shape")

    def __init__(self, replica: Replica, connections: Connections) -> None:
        self.replica = replica
        self.connections = connections
        self.heads: dict[str, bytes] = {}
        """Request heads by path."""
        self.dialect: Dialect = dialect_of(replica)
        self.shape: Shape | None = shape_for(replica)
        self.answered_at = -inf
        """When the replica last completed a request; -inf: never."""
        self.default_model = ""
        """The model name to send where any model will do; empty: `default` is sent."""
        self.listing = Listing(replica)


Elsewhere = Callable[["Ticket", Command, float], None]


class Ticket:
    """A request as the gateway keeps it: the client's exchange, what has happened so far, and the relay that
    answers."""

    __slots__ = ("_gateway", "accepted", "elsewhere", "exchange", "relay", "rival", "timeline")

    def __init__(self, gateway: "Gateway", exchange: Exchange, accepted: Accepted, now: float) -> None:
        self._gateway = gateway
        self.exchange = exchange
        self.accepted = accepted
        self.timeline = RequestTimeline(accepted, now)
        self.relay: Relay | None = None
        """None: the request waits in the queue."""
        self.rival: Rival | None = None
        """The hedge: a second replica that was asked as well, and its result; None: no hedge."""
        self.elsewhere: Elsewhere | None = None
        """Carries commands out where the request is served by another process, a worker; None: it is served here."""

    def gone(self) -> None:
        """The client left while its request waited in the queue. Once the request is sent, its Relay notices
        instead."""
        try:
            self._gateway.ended(self, Outcome.CANCELLED, None)
        except Exception as flaw:
            self._gateway.broke(self, flaw)

    # -- for people and probes ---------------------------------------------------------------------------

    def so_far(self, now: float) -> Summary | None:
        """How the answer stands. None: the request waits."""
        return None if self.relay is None else self.relay.so_far(now)

    def spoke_at(self) -> float | None:
        """When the replica last sent a token of this answer, -inf: it has sent none. None: no replica has the
        request."""
        if self.relay is None:
            return None
        return -inf if self.relay.spoke_at is None else self.relay.spoke_at

    # -- what the relay and the hedge tell -----------------------------------------------------------------

    def hear(self, event: Event, now: float | None = None) -> None:
        self._gateway.hear(event, now)

    def abort(self, replica_id: ReplicaId) -> None:
        self._gateway.placing.abort(self, replica_id)

    def on_first(self) -> None:
        if self.rival is not None:
            self.rival.settle()
        self._gateway.hear(FirstToken(self.accepted.request.id))

    def on_attempt_failed(self, error: ServeError, refused: bool) -> None:
        self._gateway.attempt_failed(self, error, refused)

    def may_go_on(self) -> bool:
        return self._gateway.may_go_on(self)

    def on_broken_off(self, error: ServeError) -> None:
        self._gateway.broken_off(self, error)

    def closing(self, first: bytes, finish: str, stop: str, events: int) -> list[bytes]:
        request, relay = self.accepted.request, self.relay
        ended = NONE_ENDED if relay is None else relay.ended
        still = [index for index in range(request.choices) if index not in ended]
        return closing(first, finish, stop, (request.prompt_tokens, events), still)

    def on_end(self, summary: Summary) -> None:
        self._gateway.ended(self, summary.outcome, summary)

    def on_broken(self, flaw: Exception) -> None:
        self._gateway.broke(self, flaw)


class Placing:
    def __init__(self, dispatcher: DispatchPort, relay_limits: RelayLimits, clock: Clock) -> None:
        """Built within the running loop."""
        self._dispatcher = dispatcher
        self._relay_limits = relay_limits
        self._spool_limits = replace(relay_limits, spool=True)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._places: dict[ReplicaId, Endpoint] = {}
        self._instead: Callable[[Ticket, ReplicaId, float], bool] | None = None
        self._changed: Callable[[], None] | None = None
        """Hears that replicas or their names have changed; None: no worker is to be told."""

    # -- replicas ----------------------------------------------------------------------------------------

    @property
    def places(self) -> Mapping[ReplicaId, Endpoint]:
        return self._places

    def tell_changes(self, changed: Callable[[], None]) -> None:
        """Calls `changed` from now on when replicas or their names have changed."""
        self._changed = changed

    def join(self, replica: Replica, connections: Connections) -> None:
        known = self._places.get(replica.id)
        self._places[replica.id] = place = Endpoint(replica, connections)
        if known is not None:
            place.default_model, place.answered_at = known.default_model, known.answered_at
            place.listing = known.listing
        self._tell()

    def listed(self, replica_id: ReplicaId, models: list[str], adapters: frozenset[str]) -> None:
        """Takes the models that a replica lists. Our own engine accepts `default` as a model name; others need a real
        one."""
        place = self._places.get(replica_id)
        if place is not None:
            own = [name for name in models if name not in adapters]
            plain = place.dialect.takes_default or "default" in models
            place.default_model = "" if plain or not own else own[0]
        self._tell()

    def call_default(self, replica_id: ReplicaId, name: str) -> None:
        """Sets the name to send to this replica where any model will do."""
        self._places[replica_id].default_model = name

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed()

    def leave(self, replica_id: ReplicaId) -> None:
        """Sends nothing more to this replica; the requests that it has continue."""
        self._places.pop(replica_id, None)
        self._tell()

    def answered(self, replica_id: ReplicaId, now: float) -> None:
        """The replica has completed a request."""
        place = self._places.get(replica_id)
        if place is not None:
            place.answered_at = now

    def spoke(self, tickets: Iterable[Ticket], replica_id: ReplicaId, since: float) -> bool:
        """Whether the replica has some of these requests and has proved since `since` that it generates: by a token of
        a stream that still runs there, or by a completed answer."""
        place = self._places.get(replica_id)
        answered = place is not None and place.answered_at > since
        for ticket in tickets:
            replica, spoke_at = ticket.timeline.replica, ticket.spoke_at()
            if replica is None or replica.id != replica_id or spoke_at is None:
                continue
            if answered or spoke_at > since:
                return True
        return False

    # -- requests ----------------------------------------------------------------------------------------

    def divert(self, instead: Callable[[Ticket, ReplicaId, float], bool]) -> None:
        """Asks this first from now on, for each request: where it returns true, a proxy sends the request itself."""
        self._instead = instead

    def send(self, ticket: Ticket, replica_id: ReplicaId, now: float) -> None:
        """Sends a request that waited in the queue."""
        if self._instead is not None and self._instead(ticket, replica_id, now):
            return
        place, timeline = self._places[replica_id], ticket.timeline
        timeline.send(place.replica, now)
        accepted = ticket.accepted
        request, allowance = accepted.request, accepted.allowance
        lane = self._dispatcher.lanes[request.lane]
        own = place.dialect.keeps_bounds
        ticket.relay = relay = Relay(
            ticket.exchange,
            ticket,
            self._spool_limits if lane.slow_client == "spool" else self._relay_limits,
            self._clock,
            request.stream,
            accepted.wants_usage,
            inf if allowance is None else generation_s(lane, own, request.stream),
            answer_headers(allowance, request.lane, accepted.relegated_from, ticket.exchange.headers, timeline.queue_s),
            WANTED.get(accepted.path, "choices"),
        )
        if request.stream and request.choices == 1 and accepted.can_go_on:
            relay.transcript.keep()
        head = self._head(ticket, place)
        body = self._body(ticket, accepted, place, lane)
        if allowance is not None and (not own or (request.stream and request.choices > 1)):
            reader = bounded(accepted, allowance, lane, relay, self._clock)
            if reader is not None:
                reader.start(_ask(ticket, place, head, _encode(reader.body(body)), reader))
                return
        encoded = accepted.encoded if body is accepted.body else b""
        relay.start(_ask(ticket, place, head, encoded or _encode(body), relay))

    def body_for(self, ticket: Ticket, replica_id: ReplicaId) -> bytes | None:
        """The body for this replica, where a proxy sends it; None: the client's own, as it came."""
        accepted = ticket.accepted
        body = self._body(ticket, accepted, self._places[replica_id], self._dispatcher.lanes[accepted.request.lane])
        return None if accepted.encoded and body is accepted.body else _encode(body)

    def hedge(self, ticket: Ticket, command: Hedge, now: float) -> None:
        """Asks a second replica while the first has not answered."""
        place, relay, accepted = self._places.get(command.replica_id), ticket.relay, ticket.accepted
        # /v1/responses engines announce an answer long before its first token: which replica is first says nothing.
        if place is None or relay is None or relay.over or accepted.path == RESPONSES:
            gone = Gone("there was nothing to ask it any more")
            ticket.hear(failure(accepted.request.id, command.replica_id, gone, False))
            return
        lane = self._dispatcher.lanes[accepted.request.lane]
        ticket.rival = rival = Rival(ticket, relay, place.replica, command, lane, self._clock, now)
        body = rival.body(self._body(ticket, accepted, place, lane))
        rival.start(_ask(ticket, place, self._head(ticket, place), _encode(body), rival))

    def go_on(self, ticket: Ticket, relay: Relay, replica_id: ReplicaId) -> None:
        """Asks a replica for the rest of a stream that broke off."""
        place, accepted = self._places[replica_id], ticket.accepted
        said, kind = relay.transcript.said, place.replica.kind
        rest = None if said is None else rest_of(kind, accepted.path, accepted.whole(), said, relay.events)
        if rest is None:
            relay.fail(ReplicaFailed("the replica broke off, and no other can go on after what it had said"))
            return
        ticket.timeline.replica = place.replica
        body = self._body(ticket, accepted.asking(rest), place, self._dispatcher.lanes[accepted.request.lane])
        allowance = accepted.allowance
        reader = relay if allowance is None or place.dialect.keeps_bounds else still_bounded(accepted, allowance, relay)
        relay.go_on(_ask(ticket, place, self._head(ticket, place), _encode(body), reader))

    def abort(self, ticket: Ticket, replica_id: ReplicaId) -> None:
        """Tells the engine to abort, where its dialect has a path for that: for some, the closed connection is not
        enough. The answer is ignored."""
        place = self._places.get(replica_id)
        if place is not None and place.dialect.abort is not None:
            listener = Once(self._loop.create_future())
            listener.answer.add_done_callback(lambda answer: answer.exception())
            head = request_head(place.dialect.abort, place.connections.host)
            place.connections.send(head, _encode({"rid": _call(ticket)}), listener)

    def _head(self, ticket: Ticket, place: Endpoint) -> bytes:
        accepted, dialect, given = ticket.accepted, place.dialect, ticket.exchange.headers
        request, hop = accepted.request, ticket.timeline.hop
        # Made once per path; only the id and the headers passed on differ between requests.
        head = place.heads.get(accepted.path)
        if head is None:
            head = place.heads[accepted.path] = request_head(accepted.path, place.connections.host) + dialect.head
        head += b"x-request-id: %b\r\n" % request.id.encode()
        if hop is not None:
            head += hop.lines
        else:
            for name in PASSED_ON:
                if name in given:
                    head += f"{name}: {given[name]}\r\n".encode("latin-1", "replace")
        if request.session and dialect.session is not None:
            head += session_line(dialect, request.session)
        return head

    def _body(self, ticket: Ticket, accepted: Accepted, place: Endpoint, lane: Lane) -> dict[str, Any]:
        """The body in this replica's dialect; the same object if nothing has to change."""
        request, replica = accepted.request, place.replica
        body = accepted.body
        if place.shape is not None:
            body = place.shape(accepted, lane, self._dispatcher.tiers[request.tier], _call(ticket))
        if replica.served_as is not None and request.model == replica.model:
            body = {**body, "model": replica.served_as}
            if ticket.exchange.renames is None:
                ticket.exchange.renames = Naming(request.model)
        elif place.default_model and request.model == "default":
            body = {**body, "model": place.default_model}
        if accepted.allowance is not None and place.dialect.keeps_bounds:
            body.update(_bounds_told(accepted.allowance, lane))
        return body


def _bounds_told(allowance: Allowance, lane: Lane) -> dict[str, Any]:
    """Body fields with the bounds that our own engine keeps itself."""
    told: dict[str, Any] = {"runaway": allowance.runaway}
    if lane.generation_s is not None:
        told["generation_limit_ms"] = lane.generation_s * 1e3
    return told


def _ask(ticket: Ticket, place: Endpoint, head: bytes, body: bytes, listener: Listener) -> Call:
    call = place.connections.send(head, body, listener)
    if ticket.timeline.failures:
        call.once = True
    return call


def _call(ticket: Ticket) -> str:
    """The id of this attempt at its replica."""
    return f"{ticket.accepted.request.id}.{ticket.timeline.attempts}"
