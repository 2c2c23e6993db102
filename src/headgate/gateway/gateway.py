"""The live driver: carries out the dispatcher's commands and tells the dispatcher what happened.

Everything is a callback on the event loop. A request costs no task, no future and no lock: the request arrives, the
dispatcher answers with commands, a Relay joins the client's exchange to the replica's call, and the end comes back to
the dispatcher as an event.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

import msgspec

from headgate.gateway.account import NO_LANE, Account
from headgate.gateway.answer.bounded import bounded, still_bounded
from headgate.gateway.answer.failure import failure
from headgate.gateway.answer.output import TIMINGS, answer_headers, bounds_told, closing, generation_s
from headgate.gateway.answer.relay import COMPLETED, NONE_ENDED, Relay, RelayLimits, Summary
from headgate.gateway.answer.transcript import rest_of
from headgate.gateway.hedge import Rival
from headgate.gateway.intake.abilities import RESPONSES, Abilities
from headgate.gateway.intake.accept import Accepted, Acceptor
from headgate.gateway.intake.aside import ParsingThread, too_many_waiting
from headgate.gateway.intake.held import HeldBodies
from headgate.gateway.intake.naming import Naming
from headgate.gateway.shadow import Shadows
from headgate.gateway.trace_context import Contexts, Hop
from headgate.model.clock import Clock
from headgate.model.errors import EngineFailed, Gone, Refused, ReplicaAnswered, ReplicaFailed, ServeError
from headgate.model.event import Arrived, Command, Dispatch, Ended, Event, FirstToken, Hedge, Tick
from headgate.model.lane import Lane
from headgate.model.outcome import Outcome
from headgate.model.record import Ahead, Attempt, ConsideredReplica, Gap, Record, kept
from headgate.model.replica import Replica, ReplicaId
from headgate.model.request import Request
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.limits import over_message
from headgate.replica.dialects import Dialect, Shape, dialect_of, session_line, shape_for
from headgate.replica.http import Call, Connections, Listener, Once, request_head
from headgate.wire.body.long_json import LONG_BYTES
from headgate.wire.errors import STATUS
from headgate.wire.exchange import Exchange

log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode
ASIDE_BYTES: Final = LONG_BYTES
"""Length in bytes above which a body is parsed in the parsing thread."""
OPERATIONS: Final = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}
WANTED: Final = {"/v1/embeddings": "data", RESPONSES: "output"}
"""The list that an answer on these paths must have; on all other paths it is `choices`."""
CANCELLED: Final = Outcome.CANCELLED
UNHEARD: Final = (CANCELLED, Outcome.OUT_OF_TIME)
"""Outcomes of an unstreamed answer of which nothing arrived: the output tokens its replica computed are estimated."""
MOST_REPLICAS: Final = 16
"""Attempts at one stream, failover included, after which it is not continued. Refused and unreached attempts do not
count, nor do those before a steady stretch (STEADY_S in policy/dispatch/dispatcher.py)."""
MOST_FRUITLESS: Final = 2
"""Continuations in a row that may fail without adding an event; one more ends the stream, which may be what kills its
replicas."""
TEMPLATE_TOKENS: Final = 4096
"""Maximum tokens that a chat template is assumed to add to a prompt."""
AFTER_FLAW_S: Final = 0.1
"""Seconds after an exception in the dispatcher until it is asked again for the next request."""
NO_TAGS: dict[str, str] = {}
PASSED_ON: Final = ("traceparent", "tracestate")
"""Headers that go to the replica as the client sent them, if traces are not collected."""


class Endpoint:
    """A replica that requests can be sent to, with its connections and its dialect."""

    __slots__ = ("answered_at", "default_model", "dialect", "heads", "pool", "replica", "shape")

    def __init__(self, replica: Replica, pool: Connections) -> None:
        self.replica = replica
        self.pool = pool
        self.heads: dict[str, bytes] = {}
        """Request heads by path."""
        self.dialect: Dialect = dialect_of(replica)
        self.shape: Shape | None = shape_for(replica)
        self.answered_at = -inf
        """When the replica last completed a request; -inf: never."""
        self.default_model = ""
        """The model name to send where any model will do; empty: `default` is sent."""


class Ticket:
    """One passage: the client's exchange, the accepted request, and the replica that serves it."""

    __slots__ = (
        "_gateway",
        "accepted",
        "ahead",
        "attempts",
        "cold",
        "exchange",
        "failed",
        "failures",
        "hop",
        "queue_s",
        "reason",
        "relay",
        "replica",
        "retry_s",
        "rival",
        "seen",
        "since",
    )

    def __init__(self, gateway: "Gateway", exchange: Exchange, accepted: Accepted, now: float) -> None:
        self._gateway = gateway
        self.exchange = exchange
        self.accepted = accepted
        self.relay: Relay | None = None
        self.replica: Replica | None = None
        """The replica that has the request, or had it last; None: it has been sent to none."""
        self.attempts = 0
        self.reason = ""
        self.seen: tuple[ConsideredReplica, ...] = ()
        self.cold = False
        self.ahead: Ahead | None = None
        # The stages follow each other without a gap: the end of one is the beginning of the next.
        self.since = now
        """When the request began to wait or, while it has a relay, when it was sent."""
        self.queue_s = 0.0
        self.retry_s = 0.0
        self.failed: tuple[Attempt, ...] = ()
        self.failures = 0
        self.rival: Rival | None = None
        """The hedge: a second replica that was asked as well, and its result; None: no hedge."""
        self.hop: Hop | None = None
        """The place of the request in a trace; None: traces are not collected."""

    def gone(self) -> None:
        """The client left while its request waited in the queue. Once the request is sent, its Relay notices
        instead."""
        try:
            self._gateway.ended(self, Outcome.CANCELLED, None)
        except Exception as flaw:
            self._gateway.broke(self, flaw)

    def note(self, attempt: Attempt) -> None:
        """Counts and keeps a failed attempt."""
        self.failures += 1
        self.failed = kept(self.failed, attempt)

    # -- the Relay's owner -----------------------------------------------------------------------------

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


class Gateway:
    def __init__(
        self,
        dispatcher: Dispatcher,
        acceptor: Acceptor,
        account: Account,
        relay_limits: RelayLimits,
        clock: Clock,
        wall_offset: float = 0.0,
    ) -> None:
        """`wall_offset`: seconds to add to the clock to get the time of day."""
        self.dispatcher = dispatcher
        self.acceptor = acceptor
        self.account = account
        self.adapters: frozenset[str] = frozenset()
        """Model names that are adapters of another model, as replicas list them."""
        self.tickets: dict[str, Ticket] = {}
        self.idle = asyncio.Event()
        """Set while no request is under way."""
        self.idle.set()
        self._relay_limits = relay_limits
        self._clock = clock
        self._wall_offset = wall_offset
        self.held = HeldBodies()
        self.contexts: Contexts | None = None
        """None: traces are not collected, and the client's trace context is passed on as it came."""
        self.events: Callable[[Event, float, list[Command]], None] | None = None
        """Records each event with its commands; None: events are not recorded."""
        self.keep_prompt: Callable[[str, dict[str, Any]], None] | None = None
        """Records the prompt of each request; None: prompts are not recorded."""
        self.hold: Callable[[Request], bool] | None = None
        """Whether an arrival has to wait for its tenant's share of the limits; None: no other gateway shares the
        limits."""
        self._places: dict[ReplicaId, Endpoint] = {}
        acceptor.abilities = Abilities(self.dispatcher.replicas)
        self.shadows: Shadows | None = None
        """Copies requests to shadowed versions; None: no model name has versions."""
        self._loop = asyncio.get_running_loop()
        self._aside = ParsingThread(self._loop, clock)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    # -- requests ----------------------------------------------------------------------------------------

    def aside(
        self, work: Callable[[], None], tenant: str = "", size: int = 0, refuse: Callable[[], None] | None = None
    ) -> None:
        """Do slow work in the parsing thread, when it is this tenant's turn, so that it does not block the event loop.
        `refuse` is called instead if too many wait."""
        self._aside.do(work, tenant, size, refuse)

    def complete(self, exchange: Exchange) -> None:
        """The handler for chats, text completions, embeddings and responses."""
        if len(exchange.body) > ASIDE_BYTES:
            self.take_long(exchange)
            return
        try:
            accepted = self.acceptor.accept(exchange)
        except ServeError as error:
            self.turn_away(exchange, error)
        except Exception as flaw:
            self.turn_away(exchange, _ours(exchange.request_id, flaw))
        else:
            self._enter(exchange, accepted)

    def take_long(self, exchange: Exchange, opening: Callable[[], None] | None = None) -> None:
        """Take a request with a long body: refuse it on its headers where possible, then parse it in the parsing
        thread. `opening` runs there first and extracts the body; it may raise InvalidRequest."""
        size = len(exchange.body)
        tenant = ""
        try:
            tenant = self.acceptor.known(exchange.headers).name
            self._refuse_spent(tenant)
            self.held.take(exchange, tenant, size, self.acceptor.several)
        except ServeError as error:
            self.turn_away(exchange, error, tenant)
            return
        self.aside(
            lambda: self._accept_aside(exchange, tenant, opening),
            tenant,
            size,
            lambda: self.turn_away(exchange, too_many_waiting(), tenant),
        )

    def _refuse_spent(self, tenant: str) -> None:
        """Raises Refused if the tenant's limits would not admit even one token. Takes nothing from the limits."""
        now = self._clock()
        over = self.dispatcher.over_limit(tenant, now)
        if over is not None:
            error = Refused(over_message(tenant, over), Outcome.OVER_LIMIT, over.retry_after_s)
            self._tell_rates(error, tenant, now)
            raise error

    def _accept_aside(self, exchange: Exchange, tenant: str, opening: Callable[[], None] | None) -> None:
        """Accepts a long body, in the parsing thread: that takes longer than other streams should wait for a token."""
        try:
            if exchange.done:
                raise Gone("the client left before its request was read")
            self._refuse_spent(tenant)  # again: requests that came with it may have been admitted meanwhile
            if opening is not None:
                opening()
            accepted = self.acceptor.accept(exchange)
        except ServeError as error:
            self._loop.call_soon_threadsafe(self.turn_away, exchange, error)
        except Exception as flaw:
            self._loop.call_soon_threadsafe(self.turn_away, exchange, _ours(exchange.request_id, flaw))
        else:
            self._loop.call_soon_threadsafe(self._enter, exchange, accepted)

    def turn_away(self, exchange: Exchange, error: ServeError, tenant: str = "") -> None:
        """Refuses a request that never enters the queue, because it is invalid or refused early. It still leaves a
        record."""
        self.held.drop(exchange)
        at, now = exchange.received_at, self._clock()
        self.account.open()
        self.account.close(
            Record(
                id=exchange.request_id,
                at=at,
                wall=at + self._wall_offset,
                lane=NO_LANE,
                tenant=tenant,
                model="",
                outcome=error.outcome,
                status=STATUS[error.outcome],
                message=error.message,
                accept_s=now - at,
                e2e_s=now - at,
            )
        )
        exchange.fail(error)

    def _enter(self, exchange: Exchange, accepted: Accepted) -> None:
        if exchange.done:
            self.turn_away(exchange, Gone("the client left while its request was being read"))
            return
        request, now = accepted.request, self._clock()
        if request.id in self.tickets:
            exchange.request_id = self._another_id(request.id)
            accepted.request = request = request.but(id=exchange.request_id)
        ticket = Ticket(self, exchange, accepted, now)
        if not self.tickets:
            self.idle.clear()
        self.tickets[request.id] = ticket
        self.account.open()
        exchange.on_gone = ticket.gone
        try:
            if self.contexts is not None or self.keep_prompt is not None:
                self._show(ticket)
            if self.hold is None or not self.hold(request):
                self.hear(Arrived(request), now)
        except Exception as flaw:
            self.broke(ticket, flaw)
        chosen = accepted.chosen
        if chosen is not None and chosen.shadow is not None and self.shadows is not None and request.choices == 1:
            self.shadows.copy(chosen.drawn_from, chosen.shadow[1], accepted.path, accepted.body, len(exchange.body))
        if accepted.goes_on is not None:
            exchange.body = b""  # the replica gets a re-encoded body, and the request may wait long

    def _show(self, ticket: Ticket) -> None:
        """Tells the trace and prompt recorders of a request. Their failures do not fail the request."""
        try:
            if self.contexts is not None:
                ticket.hop = self.contexts.of(ticket.exchange.headers)
            if self.keep_prompt is not None:
                self.keep_prompt(ticket.accepted.request.id, ticket.accepted.body)
        except Exception:
            log.exception("request %s: it is served, and neither traced nor kept", ticket.accepted.request.id)

    def let_in(self, request: Request) -> None:
        """Admits a request that `hold` made wait; its client may have left meanwhile."""
        ticket = self.tickets.get(request.id)
        if ticket is not None and ticket.accepted.request is request:
            try:
                self.hear(Arrived(request))
            except Exception as flaw:
                self.broke(ticket, flaw)

    def _another_id(self, taken: str) -> str:
        """A free id for a client that reuses an id while the first request with it is still open."""
        number = self.account.opened
        while (other := f"{taken[:100]}-{number:x}") in self.tickets:
            number += 1
        return other

    def hear(self, event: Event, now: float | None = None) -> None:
        if now is None:
            now = self._clock()
        flawed: Exception | None = None
        try:
            commands = self.dispatcher.on(event, now)
        except Exception as flaw:
            flawed, commands = flaw, self.dispatcher.unfinished
        if self.events is not None:
            self._log(event, now, commands)
        for command in commands:
            try:
                self._carry_out(command, now)
            except Exception as flaw:
                ticket = self.tickets.get(command.request_id)
                if ticket is not None:
                    self.broke(ticket, flaw)
        if flawed is not None:
            # The request that the dispatcher would have sent next must not wait for another event.
            self._timer_at = min(self._timer_at, now)
            self._loop.call_later(AFTER_FLAW_S, self._tick)
            raise flawed
        if self.dispatcher.wake_at < self._timer_at:
            self._set_timer(now)

    def _log(self, event: Event, now: float, commands: list[Command]) -> None:
        """Records the event. The first event that cannot be written ends the log: one with a hole cannot be
        replayed."""
        assert self.events is not None
        try:
            self.events(event, now, commands)
        except Exception:
            self.events = None
            log.exception("the log of events ends here: this one could not be written")

    def _carry_out(self, command: Command, now: float) -> None:
        ticket = self.tickets.get(command.request_id)
        if ticket is None:
            return
        if isinstance(command, Dispatch):
            ticket.ahead = command.ahead
            ticket.attempts, ticket.reason, ticket.seen = command.attempt, command.reason, command.seen
            if ticket.relay is not None:
                self._go_on(ticket, ticket.relay, command.replica_id)
                return
            if command.model and command.model != ticket.accepted.request.model:
                ticket.accepted.stand_in(command.model)
            ticket.cold = command.cold
            ticket.queue_s += now - ticket.since
            ticket.since = now
            self._send(ticket, command.replica_id)
            return
        if isinstance(command, Hedge):
            self._hedge(ticket, command, now)
            return
        ticket.ahead = command.ahead
        if ticket.relay is not None:
            ticket.relay.fail(ReplicaFailed(command.message))  # no replica continues the stream
            return
        error = Refused(command.message, command.outcome, command.retry_after_s)
        if command.outcome is Outcome.OVER_LIMIT:
            self._tell_rates(error, ticket.accepted.tenant.name, now)
        if TIMINGS in ticket.exchange.headers:
            error.headers = (*error.headers, ("x-headgate-lane", ticket.accepted.request.lane))
        self._close(ticket, command.outcome, None, None, error, now)
        ticket.exchange.fail(error)

    def _tell_rates(self, error: ServeError, tenant: str, now: float) -> None:
        """Adds what is left of the tenant's limits to the error, in OpenAI's headers. The error's type says which limit
        is exceeded."""
        view = self.dispatcher.rates(tenant, now)
        if view is None:  # it has only a concurrency limit, or its limits were removed meanwhile
            return
        headers: list[tuple[str, str]] = []
        for name, rate in (("requests", view.requests), ("tokens", view.tokens)):
            if rate is not None:
                headers.append((f"x-ratelimit-limit-{name}", str(rate.limit)))
                headers.append((f"x-ratelimit-remaining-{name}", str(rate.remaining)))
                headers.append((f"x-ratelimit-reset-{name}", f"{rate.reset_s:.3f}s"))
        error.headers = tuple(headers)
        if view.tokens is not None and (view.requests is None or view.requests.remaining > 0):
            error.kind = "tokens"

    def _send(self, ticket: Ticket, replica_id: ReplicaId) -> None:
        place = self._places[replica_id]
        ticket.replica = place.replica
        accepted = ticket.accepted
        request, allowance = accepted.request, accepted.allowance
        lane = self.dispatcher.lanes[request.lane]
        own = place.replica.kind == "headgate"
        ticket.relay = relay = Relay(
            ticket.exchange,
            ticket,
            self._relay_limits,
            lane.slow_client,
            request.stream,
            accepted.wants_usage,
            self._clock,
            inf if allowance is None else generation_s(lane, own, request.stream),
            answer_headers(allowance, request.lane, ticket.exchange.headers, ticket.queue_s),
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

    def _hedge(self, ticket: Ticket, command: Hedge, now: float) -> None:
        """Asks a second replica while the first has not answered."""
        place, relay, accepted = self._places.get(command.replica_id), ticket.relay, ticket.accepted
        # /v1/responses engines announce an answer long before its first token: which replica is first says nothing.
        if place is None or relay is None or relay.over or accepted.path == RESPONSES:
            gone = Gone("there was nothing to ask it any more")
            self.hear(failure(accepted.request.id, command.replica_id, gone, False))
            return
        lane = self.dispatcher.lanes[accepted.request.lane]
        ticket.rival = rival = Rival(self, ticket, relay, place.replica, command, lane, self._clock, now)
        body = rival.body(self._body(ticket, accepted, place, lane))
        rival.start(_ask(ticket, place, self._head(ticket, place), _encode(body), rival))

    def _head(self, ticket: Ticket, place: Endpoint) -> bytes:
        accepted, dialect, given = ticket.accepted, place.dialect, ticket.exchange.headers
        request = accepted.request
        # Made once per path; only the id and the headers passed on differ between requests.
        head = place.heads.get(accepted.path)
        if head is None:
            head = place.heads[accepted.path] = request_head(accepted.path, place.pool.host) + dialect.head
        head += b"x-request-id: %b\r\n" % request.id.encode()
        if ticket.hop is not None:
            head += ticket.hop.lines
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
            body = place.shape(accepted, lane, self.dispatcher.tiers[request.tier], _call(ticket))
        if replica.served_as is not None and request.model == replica.model:
            body = {**body, "model": replica.served_as}
            if ticket.exchange.renames is None:
                ticket.exchange.renames = Naming(request.model)
        elif place.default_model and request.model == "default":
            body = {**body, "model": place.default_model}
        if accepted.allowance is not None and replica.kind == "headgate":
            body.update(bounds_told(accepted.allowance, lane))
        return body

    def attempt_failed(self, ticket: Ticket, error: ServeError, refused: bool) -> None:
        """The relay is over and the exchange still open: the dispatcher decides whether to retry."""
        replica, request, now = ticket.replica, ticket.accepted.request, self._clock()
        assert replica is not None
        ticket.relay = None
        ticket.exchange.on_gone = ticket.gone
        took_s = now - ticket.since
        at_s = ticket.since - request.arrived
        ticket.note(Attempt(replica.id, at_s, took_s, error.outcome, refused, error.message))
        ticket.retry_s += took_s
        ticket.since = now
        self.hear(failure(request.id, replica.id, error, refused), now)

    def may_go_on(self, ticket: Ticket) -> bool:
        if ticket.relay is None or ticket.relay.fruitless > MOST_FRUITLESS or ticket.attempts >= MOST_REPLICAS:
            return False
        if ticket.accepted.request.choices > 1:
            return False
        return ticket.accepted.can_go_on

    def broken_off(self, ticket: Ticket, error: ServeError) -> None:
        """A stream broke off after it had begun, and its relay waits. The dispatcher chooses another replica to
        continue it, or refuses."""
        replica, request, now = ticket.replica, ticket.accepted.request, self._clock()
        assert replica is not None
        at_s = ticket.since - request.arrived
        refused = isinstance(error, ReplicaAnswered) and error.full
        ticket.note(Attempt(replica.id, at_s, now - ticket.since, error.outcome, refused, error.message))
        self.hear(failure(request.id, replica.id, error, refused), now)

    def _go_on(self, ticket: Ticket, relay: Relay, replica_id: ReplicaId) -> None:
        """Asks a replica for the rest of a stream that broke off."""
        place, accepted = self._places[replica_id], ticket.accepted
        said, kind = relay.transcript.said, place.replica.kind
        rest = None if said is None else rest_of(kind, accepted.path, accepted.whole(), said, relay.events)
        if rest is None:
            relay.fail(ReplicaFailed("the replica broke off, and no other can go on after what it had said"))
            return
        ticket.replica = place.replica
        body = self._body(ticket, accepted.asking(rest), place, self.dispatcher.lanes[accepted.request.lane])
        allowance = accepted.allowance
        reader = relay if allowance is None or kind == "headgate" else still_bounded(allowance, relay)
        relay.go_on(_ask(ticket, place, self._head(ticket, place), _encode(body), reader))

    def ended(self, ticket: Ticket, outcome: Outcome, summary: Summary | None) -> None:
        """Ends a passage: records and releases it first, and learns token counts from it last."""
        told = usage = None if summary is None or summary.usage is None else _believed(summary.usage, ticket.accepted)
        if usage is None and summary is not None and (summary.sent_at or summary.first_at) is not None:
            # The client left before usage came: the tokens made so far count, or leaving early would be free.
            left = outcome in UNHEARD and not ticket.accepted.request.stream and not summary.events
            usage = (ticket.accepted.request.prompt_tokens, self._computed(ticket) if left else summary.events)
        now = self._clock()
        if outcome is COMPLETED and ticket.replica is not None:
            place = self._places.get(ticket.replica.id)
            if place is not None:
                place.answered_at = now
        if ticket.rival is not None:
            ticket.rival.over(outcome)
        self._close(ticket, outcome, summary, usage, None if summary is None else summary.error, now)
        first_s: float | None = None
        if summary is not None and summary.first_at is not None and not ticket.accepted.request.stream:
            first_s = max(0.0, summary.first_at - ticket.since)
        self.hear(Ended(ticket.accepted.request.id, outcome, usage, first_s), now)
        if summary is not None and (outcome is CANCELLED or summary.stop) and ticket.replica is not None:
            self.abort(ticket, ticket.replica.id)
        if told is not None and outcome is COMPLETED:
            self.acceptor.learn(ticket.accepted, told[0], told[1])

    def broke(self, ticket: Ticket, flaw: Exception) -> None:
        """An exception interrupted this request in an unknown state: release each resource that it still holds
        separately, and tell its client. No replica is blamed, since the flaw may lie in any request and is most likely
        in the gateway."""
        request, exchange = ticket.accepted.request, ticket.exchange
        error = _ours(request.id, flaw)
        relay, here = ticket.relay, self.tickets.get(request.id) is ticket
        if relay is not None:
            _safely(relay.abandon)
        exchange.on_gone = exchange.on_writable = None
        if here:
            status = 200 if exchange.started else STATUS[error.outcome]
            _safely(lambda: self._close(ticket, error.outcome, None, None, error, self._clock(), status))
        _safely(lambda: self.hear(Ended(request.id, CANCELLED, None)))
        if not _safely(lambda: exchange.fail(error)):
            _safely(exchange.abort)

    def _computed(self, ticket: Ticket) -> int:
        """Estimated output tokens that the replica computed for an unstreamed answer whose client has left or timed
        out."""
        accepted, allowance = ticket.accepted, ticket.accepted.allowance
        if allowance is None:
            return 0  # embeddings have none
        tokens = self.dispatcher.computed(accepted.request.id, self._clock())
        if allowance.tokens is not None:
            tokens = min(tokens, allowance.tokens)
        return tokens * accepted.request.choices

    def abort(self, ticket: Ticket, replica_id: ReplicaId) -> None:
        """Tells the engine to abort, where its dialect has a path for that: for some, the closed connection is not
        enough. The answer is ignored."""
        place = self._places.get(replica_id)
        if place is not None and place.dialect.abort is not None:
            listener = Once(self._loop.create_future())
            listener.answer.add_done_callback(lambda answer: answer.exception())
            head = request_head(place.dialect.abort, place.pool.host)
            place.pool.send(head, _encode({"rid": _call(ticket)}), listener)

    def _close(
        self,
        ticket: Ticket,
        outcome: Outcome,
        summary: Summary | None,
        usage: tuple[int, int] | None,
        error: ServeError | None,
        now: float,
        status: int | None = None,
    ) -> None:
        """Writes the record of an accepted request; `turn_away` writes that of a body that was not understood, and
        measure/underway.py makes that of a request that still runs. `summary` is None if no relay answered the client,
        as while it waited. `status`: the HTTP status that the client got; None: the outcome's own."""
        request, replica = ticket.accepted.request, ticket.replica
        arrived = request.arrived
        prompt, output = usage or (request.prompt_tokens, 0)
        queue_s, first_s, stream_s, end_s = ticket.queue_s, 0.0, 0.0, 0.0
        ttft_s = tpot_s = None
        gaps: tuple[Gap, ...] = ()
        if summary is None:
            queue_s += now - ticket.since
        else:
            first = summary.first_at
            last = now if first is None and request.stream else summary.last_at or first or now
            first_s = (last if first is None else first) - ticket.since
            end_s = now - last
            if first is not None:
                ttft_s, stream_s = first - arrived, last - first
                each = output // request.choices
                tpot_s = stream_s / (each - 1) if each > 1 else None
            if summary.gaps:
                gaps = tuple([Gap(since - arrived, took_s) for took_s, since in summary.gaps])
        tags = NO_TAGS if replica is None else replica.tags
        chosen = ticket.accepted.chosen
        allowance = ticket.accepted.allowance
        self.account.close(
            Record(
                id=request.id,
                at=arrived,
                wall=arrived + self._wall_offset,
                lane=request.lane,
                tenant=request.tenant,
                tier=request.tier,
                model=request.model if chosen is None else chosen.name,
                version=tags.get("version", "") if chosen is None or not chosen.version else chosen.version,
                drawn_from="" if chosen is None else chosen.drawn_from,
                fell_back="" if chosen is None else chosen.fell_back,
                choice="" if chosen is None else chosen.reason,
                adapter=request.model if self.adapters and request.model in self.adapters else "",
                replica=None if replica is None else replica.id,
                quantization=tags.get("quantization", ""),
                gpu_type=tags.get("gpu_type", ""),
                stream=request.stream,
                operation=OPERATIONS.get(ticket.accepted.path, "chat"),
                outcome=outcome,
                status=status or STATUS[outcome] if summary is None else summary.status,
                message="" if error is None else error.message,
                task="" if allowance is None else allowance.task,
                cap=(allowance.tokens or 0) if allowance is not None and allowance.why else 0,
                stop="" if summary is None else summary.stop,
                unsaid=0 if summary is None or not summary.stop else _unsaid(ticket.accepted, output),
                attempts=ticket.attempts,
                failed=ticket.failed,
                failures=ticket.failures,
                hedge=None if ticket.rival is None else ticket.rival.told,
                cold=ticket.cold,
                prompt_tokens=prompt,
                cached_tokens=0 if summary is None else summary.cached_tokens,
                output_tokens=output,
                choices=request.choices,
                accept_s=now - arrived - queue_s - ticket.retry_s - first_s - stream_s - end_s,
                queue_s=queue_s,
                retry_s=ticket.retry_s,
                first_s=first_s,
                stream_s=stream_s,
                end_s=end_s,
                ttft_s=ttft_s,
                tpot_s=tpot_s,
                e2e_s=now - arrived,
                max_gap_s=gaps[0].took_s if gaps else 0.0,
                gaps=gaps,
                stalled_s=0.0 if summary is None else summary.stalled_s,
                engine=None if summary is None else summary.timings,
                ahead=ticket.ahead,
                reason=ticket.reason,
                seen=ticket.seen,
                trace="" if ticket.hop is None else ticket.hop.traceparent,
                parent="" if ticket.hop is None else ticket.hop.parent_id,
            )
        )
        del self.tickets[request.id]
        if self.held.total:
            self.held.drop(ticket.exchange)
        ticket.relay = None  # a cycle with the ticket, which only the garbage collector could free
        if not self.tickets:
            self.idle.set()

    async def finish(self, grace_s: float) -> None:
        """Waits up to `grace_s` seconds for open requests to end, then fails the rest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.idle.wait()
        for ticket in tuple(self.tickets.values()):
            error = ReplicaFailed("the gateway is shutting down")
            try:
                if ticket.relay is not None:
                    ticket.relay.fail(error)
                else:
                    ticket.exchange.fail(error)
                    self.ended(ticket, Outcome.CANCELLED, None)
            except Exception as flaw:
                self.broke(ticket, flaw)

    # -- replicas ----------------------------------------------------------------------------------------

    @property
    def places(self) -> Mapping[ReplicaId, Endpoint]:
        return self._places

    def join(self, replica: Replica, pool: Connections) -> None:
        known = self._places.get(replica.id)
        self._places[replica.id] = place = Endpoint(replica, pool)
        if known is not None:
            place.default_model = known.default_model

    def listed(self, replica_id: ReplicaId, models: list[str], adapters: frozenset[str]) -> None:
        """Takes the models that a replica lists. Our own engine accepts `default` as a model name; others need a real
        one."""
        place = self._places.get(replica_id)
        if place is not None:
            own = [name for name in models if name not in adapters]
            plain = place.replica.kind == "headgate" or "default" in models
            place.default_model = "" if plain or not own else own[0]

    def leave(self, replica_id: ReplicaId) -> None:
        """Sends nothing more to this replica; the requests that it has continue."""
        self._places.pop(replica_id, None)

    def spoke(self, replica_id: ReplicaId, since: float) -> bool:
        """Whether the replica has open requests and has proved since `since` that it generates: by a token of a stream
        that still runs there, or by a completed answer."""
        place = self._places.get(replica_id)
        answered = place is not None and place.answered_at > since
        for ticket in self.tickets.values():
            relay, replica = ticket.relay, ticket.replica
            if relay is not None and replica is not None and replica.id == replica_id:
                spoke_at = relay.spoke_at
                if answered or (spoke_at is not None and spoke_at > since):
                    return True
        return False

    # -- time --------------------------------------------------------------------------------------------

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self.dispatcher.wake_at
        self._timer = self._loop.call_later(max(0.0, self._timer_at - now), self._tick)

    def _tick(self) -> None:
        """Tells the dispatcher that time has passed. If `wake_at` has moved later, the timer went off early and is set
        again."""
        self._timer, self._timer_at = None, inf
        if self.dispatcher.wake_at <= self._clock():
            try:
                self.hear(Tick())
            except Exception:
                log.exception("time could not be told to pass; it is told again in %g s", AFTER_FLAW_S)
        elif self.dispatcher.wake_at < inf:
            self._set_timer(self._clock())


def _unsaid(accepted: Accepted, output: int) -> int:
    """Output tokens that the request was allowed but did not use; 0 if it had no limit."""
    allowance = accepted.allowance
    if allowance is None or allowance.tokens is None:
        return 0
    return max(0, allowance.tokens * accepted.request.choices - output)


def _believed(usage: tuple[int, int], accepted: Accepted) -> tuple[int, int]:
    """The engine's token counts, capped at what is possible, because the tenant's limits are charged for them. A token
    has at least one byte, apart from what a template adds. The prompt of a /v1/responses request is not capped: the
    engine may add stored turns to it. Nor is one with tools."""
    prompt, output = usage
    allowance, size = accepted.allowance, accepted.prompt_bytes
    if allowance is not None and allowance.tokens is not None:
        output = min(output, allowance.tokens * accepted.request.choices)
    if size and accepted.path != RESPONSES and "tools" not in accepted.body:
        prompt = min(prompt, size + TEMPLATE_TOKENS)
    return prompt, output


def _ours(request_id: str, flaw: Exception) -> ServeError:
    """The error that a client gets for an exception in the gateway."""
    log.error("request %s: it broke", request_id, exc_info=flaw)
    return EngineFailed(f"internal error: {type(flaw).__name__}")


def _safely(do: Callable[[], None]) -> bool:
    """Whether `do` succeeded; an exception is logged."""
    try:
        do()
    except Exception:
        log.exception("it could not be let go of")
        return False
    return True


def _ask(ticket: Ticket, place: Endpoint, head: bytes, body: bytes, listener: Listener) -> Call:
    call = place.pool.send(head, body, listener)
    if ticket.failures:
        call.once = True
    return call


def _call(ticket: Ticket) -> str:
    """The id of this attempt at its replica."""
    return f"{ticket.accepted.request.id}.{ticket.attempts}"
