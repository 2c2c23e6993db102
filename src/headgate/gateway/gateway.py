"""The live driver: carries the dispatcher's commands out, and tells it what happened.

Everything is a callback on the event loop. A request costs no task, no future and no lock: it arrives, the dispatcher
answers with commands, a Relay joins the client's exchange to the replica's call, and its end comes back as an event.
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
from headgate.gateway.answer.continuation import rest_of
from headgate.gateway.answer.failure import failure
from headgate.gateway.answer.output import TIMINGS, answer_headers, bounds_told, closing, generation_s
from headgate.gateway.answer.relay import COMPLETED, NONE_ENDED, Relay, RelayLimits, Summary
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
"""A longer body is understood in a thread of its own."""
OPERATIONS: Final = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}
WANTED: Final = {"/v1/embeddings": "data", RESPONSES: "output"}
"""What an answer has to have, other than choices."""
CANCELLED: Final = Outcome.CANCELLED
UNHEARD: Final = (CANCELLED, Outcome.OUT_OF_TIME)
"""Ends of an answer in one piece before anything of it came: what its replica has made by then is guessed."""
MOST_REPLICAS: Final = 16
"""That one stream may be begun and gone on with by."""
MOST_FRUITLESS: Final = 2
"""Of them, those in a row that add nothing to it: it may be what kills them."""
TEMPLATE_TOKENS: Final = 4096
"""What a chat template may add to a prompt, at most."""
AFTER_FLAW_S: Final = 0.1
"""Until the dispatcher, which raised, is asked again who is next."""
NO_TAGS: dict[str, str] = {}
PASSED_ON: Final = ("traceparent", "tracestate")
"""Headers a replica gets to see as the client sent them."""


class Endpoint:
    """A replica that requests can be sent to, and how."""

    __slots__ = ("answered_at", "default_model", "dialect", "heads", "pool", "replica", "shape")

    def __init__(self, replica: Replica, pool: Connections) -> None:
        self.replica = replica
        self.pool = pool
        self.heads: dict[str, bytes] = {}
        """By path."""
        self.dialect: Dialect = dialect_of(replica)
        self.shape: Shape | None = shape_for(replica)
        self.answered_at = -inf
        """When it last completed a request."""
        self.default_model = ""
        """What to ask it for where any model will do; empty: it is asked for `default`."""


class Ticket:
    """One passage: the client's exchange, what was understood of it, and where it is."""

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
        """Where it is, or was last."""
        self.attempts = 0
        self.reason = ""
        self.seen: tuple[ConsideredReplica, ...] = ()
        self.cold = False
        self.ahead: Ahead | None = None
        # Its stages follow each other without a gap: whatever ends one begins the next.
        self.since = now
        """When it began to wait, or, while it has a relay, was sent."""
        self.queue_s = 0.0
        self.retry_s = 0.0
        self.failed: tuple[Attempt, ...] = ()
        self.failures = 0
        self.rival: Rival | None = None
        """The second replica that was asked as well, and what came of it."""
        self.hop: Hop | None = None
        """Its place in a trace, if anybody collects traces."""

    def gone(self) -> None:
        """The client left while it waited here; once it is placed, its Relay notices."""
        try:
            self._gateway.ended(self, Outcome.CANCELLED, None)
        except Exception as flaw:
            self._gateway.broke(self, flaw)

    def note(self, attempt: Attempt) -> None:
        """It failed."""
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
        """`wall_offset`: what to add to the clock for the time of day."""
        self.dispatcher = dispatcher
        self.acceptor = acceptor
        self.account = account
        self.adapters: frozenset[str] = frozenset()
        """Models' names that are adapters of another, as replicas list them."""
        self.tickets: dict[str, Ticket] = {}
        self.idle = asyncio.Event()
        """Set while no request is under way."""
        self.idle.set()
        self._relay_limits = relay_limits
        self._clock = clock
        self._wall_offset = wall_offset
        self.held = HeldBodies()
        self.contexts: Contexts | None = None
        """None: nobody collects traces, and the client's own context is passed on as it came."""
        self.events: Callable[[Event, float, list[Command]], None] | None = None
        """For whoever records every decision."""
        self.keep_prompt: Callable[[str, dict[str, Any]], None] | None = None
        """For whoever records what was asked."""
        self.hold: Callable[[Request], bool] | None = None
        """Whether an arrival waits a moment for its tenant's allowance; None: no other gateway shares the limits."""
        self._places: dict[ReplicaId, Endpoint] = {}
        acceptor.abilities = Abilities(self.dispatcher.fleet.replicas)
        self.shadows: Shadows | None = None
        """Who makes copies, where names have versions."""
        self._loop = asyncio.get_running_loop()
        self._aside = ParsingThread(self._loop, clock)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    # -- requests ----------------------------------------------------------------------------------------

    def aside(
        self, work: Callable[[], None], tenant: str = "", size: int = 0, refuse: Callable[[], None] | None = None
    ) -> None:
        """Do it in the thread for what would hold the loop up, when it is this tenant's turn. `refuse`: what to do
        instead if too many wait."""
        self._aside.do(work, tenant, size, refuse)

    def complete(self, exchange: Exchange) -> None:
        """A handler: chat, text completions, embeddings."""
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
        """Whatever is known before its body is understood is decided before. `opening`: what has to be done to have its
        body, aside; it may raise InvalidRequest."""
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
        """Raises Refused if its limits would let nothing in, however little. It looks, and takes nothing."""
        limits = self.dispatcher.tenants.get(tenant)
        if limits is None:
            return
        now = self._clock()
        over = self.dispatcher.limits.look(tenant, limits, 1, now)
        if over is not None:
            error = Refused(over_message(tenant, over), Outcome.OVER_LIMIT, over.retry_after_s)
            self._tell_rates(error, tenant, now)
            raise error

    def _accept_aside(self, exchange: Exchange, tenant: str, opening: Callable[[], None] | None) -> None:
        """Understanding a long body takes longer than others should wait for their next token."""
        try:
            if exchange.done:
                raise Gone("the client left before its request was read")
            self._refuse_spent(tenant)  # again: those that came with it may have been let in meanwhile
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
        """It is no request that anybody could serve. It leaves a record all the same."""
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
            exchange.body = b""  # what is sent has been written anew, and it may wait for long

    def _show(self, ticket: Ticket) -> None:
        """To those who only watch: what they can't do is no reason not to serve it."""
        try:
            if self.contexts is not None:
                ticket.hop = self.contexts.of(ticket.exchange.headers)
            if self.keep_prompt is not None:
                self.keep_prompt(ticket.accepted.request.id, ticket.accepted.body)
        except Exception:
            log.exception("request %s: it is served, and neither traced nor kept", ticket.accepted.request.id)

    def let_in(self, request: Request) -> None:
        """One that was held; its client may have left meanwhile."""
        ticket = self.tickets.get(request.id)
        if ticket is not None and ticket.accepted.request is request:
            try:
                self.hear(Arrived(request))
            except Exception as flaw:
                self.broke(ticket, flaw)

    def _another_id(self, taken: str) -> str:
        """For a client that uses an id again while its first use goes on."""
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
            # Whoever it would have let in next must not wait for another event.
            self._timer_at = min(self._timer_at, now)
            self._loop.call_later(AFTER_FLAW_S, self._tick)
            raise flawed
        if self.dispatcher.wake_at < self._timer_at:
            self._set_timer(now)

    def _log(self, event: Event, now: float, commands: list[Command]) -> None:
        """A log with a hole in it can't be replayed: what can't be written down is its end."""
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
            ticket.relay.fail(ReplicaFailed(command.message))  # nobody goes on with it
            return
        error = Refused(command.message, command.outcome, command.retry_after_s)
        if command.outcome is Outcome.OVER_LIMIT:
            self._tell_rates(error, ticket.accepted.tenant.name, now)
        if TIMINGS in ticket.exchange.headers:
            error.headers = (*error.headers, ("x-headgate-lane", ticket.accepted.request.lane))
        self._close(ticket, command.outcome, None, None, error, now)
        ticket.exchange.fail(error)

    def _tell_rates(self, error: ServeError, tenant: str, now: float) -> None:
        """What is left of a tenant's limits, in OpenAI's headers; and as the error's type, which of them it is over."""
        limits = self.dispatcher.tenants.get(tenant)
        if limits is None:  # its only limit is its concurrency, or its limits were taken away meanwhile
            return
        view = self.dispatcher.limits.view(tenant, limits, now)
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
            relay.said = bytearray()
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
        """Ask a second replica while the first has not answered."""
        place, relay, accepted = self._places.get(command.replica_id), ticket.relay, ticket.accepted
        # An engine's own response is announced long before its first token: who is first would say nothing.
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
        # Made once per path; only the id, and what is passed on, differ from request to request.
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
        """As this replica wants it; the very same where it wants nothing else."""
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
        """The relay is done with; the exchange is still open, and the dispatcher says what becomes of it."""
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
        """Its stream has begun, and its relay waits. The dispatcher finds another replica, or says there is none."""
        replica, request, now = ticket.replica, ticket.accepted.request, self._clock()
        assert replica is not None
        at_s = ticket.since - request.arrived
        refused = isinstance(error, ReplicaAnswered) and error.full
        ticket.note(Attempt(replica.id, at_s, now - ticket.since, error.outcome, refused, error.message))
        self.hear(failure(request.id, replica.id, error, refused), now)

    def _go_on(self, ticket: Ticket, relay: Relay, replica_id: ReplicaId) -> None:
        """Ask for what is missing of a stream that broke off."""
        place, accepted = self._places[replica_id], ticket.accepted
        said, kind = relay.said, place.replica.kind
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
        """It is recorded and let go of first, and learned from last."""
        told = usage = None if summary is None or summary.usage is None else _believed(summary.usage, ticket.accepted)
        if usage is None and summary is not None and (summary.sent_at or summary.first_at) is not None:
            # It left before usage was told: what was made so far counts all the same, or leaving early would be free.
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
        """Something raised where this request was served, and nobody knows how far it had come: whatever is still held
        for it is let go of, each by itself, and its client is told. No replica is blamed: it may be any request's
        fault, and most likely is our own."""
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
        """Output tokens of an answer in one piece that nobody waits for any more, as far as can be guessed."""
        accepted, allowance = ticket.accepted, ticket.accepted.allowance
        if allowance is None:
            return 0  # embeddings have none
        tokens = self.dispatcher.computed(accepted.request.id, self._clock())
        if allowance.tokens is not None:
            tokens = min(tokens, allowance.tokens)
        return tokens * accepted.request.choices

    def abort(self, ticket: Ticket, replica_id: ReplicaId) -> None:
        """Its connection is closed; some engines want to be told as well. What they say to that is nobody's concern."""
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
        """Makes the record of a request that was accepted; `turn_away` makes that of a body that was not understood,
        measure/underway.py that of a request that still runs. `summary` is None if no relay of it has answered: it was
        waiting.
        `status`: what the client has got, where the outcome does not say."""
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
        ticket.relay = None  # it refers to the ticket: only the garbage collector could free the two
        if not self.tickets:
            self.idle.set()

    async def finish(self, grace_s: float) -> None:
        """Let what is under way end by itself for so long; tell the rest."""
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
        """What it says that it serves. Our own engine takes `default` for what it has; others know only their names."""
        place = self._places.get(replica_id)
        if place is not None:
            own = [name for name in models if name not in adapters]
            plain = place.replica.kind == "headgate" or "default" in models
            place.default_model = "" if plain or not own else own[0]

    def leave(self, replica_id: ReplicaId) -> None:
        """It is sent nothing more; what it has goes on."""
        self._places.pop(replica_id, None)

    def spoke(self, replica_id: ReplicaId, since: float) -> bool:
        """Whether it has requests, and what it said to them since then proves that it generates: a token of a stream
        that still runs there, or a whole answer."""
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
        """A later alarm only lets the timer go off early: it looks, and sets itself again."""
        self._timer, self._timer_at = None, inf
        if self.dispatcher.wake_at <= self._clock():
            try:
                self.hear(Tick())
            except Exception:
                log.exception("time could not be told to pass; it is told again in %g s", AFTER_FLAW_S)
        elif self.dispatcher.wake_at < inf:
            self._set_timer(self._clock())


def _unsaid(accepted: Accepted, output: int) -> int:
    """Output tokens that it was allowed, beyond these."""
    allowance = accepted.allowance
    if allowance is None or allowance.tokens is None:
        return 0
    return max(0, allowance.tokens * accepted.request.choices - output)


def _believed(usage: tuple[int, int], accepted: Accepted) -> tuple[int, int]:
    """What an engine says that it computed, up to what can be: others of the same tenant pay for it. A token is a byte
    at least, beside what a template adds; a response may go on with what the engine has kept."""
    prompt, output = usage
    allowance, size = accepted.allowance, accepted.prompt_bytes
    if allowance is not None and allowance.tokens is not None:
        output = min(output, allowance.tokens * accepted.request.choices)
    if size and accepted.path != RESPONSES and "tools" not in accepted.body:
        prompt = min(prompt, size + TEMPLATE_TOKENS)
    return prompt, output


def _ours(request_id: str, flaw: Exception) -> ServeError:
    """What a client is told of something that was raised here."""
    log.error("request %s: it broke", request_id, exc_info=flaw)
    return EngineFailed(f"internal error: {type(flaw).__name__}")


def _safely(do: Callable[[], None]) -> bool:
    """Whether it could be done."""
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
    """What one attempt is called at its replica."""
    return f"{ticket.accepted.request.id}.{ticket.attempts}"
