"""The live driver: carries out the dispatcher's commands and tells the dispatcher what happened.

Everything is a callback on the event loop. A request costs no task, no future and no lock, unless its replica has no
idle connection: the request arrives, the dispatcher answers with commands, a Relay joins the client's exchange to the
replica's call, and the end comes back to the dispatcher as an event.
"""

import asyncio
import contextlib
import logging
from math import inf
from typing import Final

from headgate.gateway.account import Account, Summary, believed
from headgate.gateway.answer.failure import failure
from headgate.gateway.answer.relay import TIMINGS
from headgate.gateway.answer.relayed import COMPLETED
from headgate.gateway.hooks import NO_HOOKS, GatewayHooks
from headgate.gateway.intake.accept import Accepted, Acceptor
from headgate.gateway.intake.held import HeldBodies
from headgate.gateway.long_bodies import LongBodies, our_error, rate_headers, rates_of_sender, safely, tell_rates
from headgate.gateway.placing import Placing, Ticket
from headgate.gateway.shadow import Shadows
from headgate.model.clock import Clock
from headgate.model.errors import Gone, Refused, ReplicaAnswered, ReplicaFailed, ServeError
from headgate.model.event import Arrived, Command, Dispatch, Ended, Event, Hedge, Quote, Tick
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.model.replica import ReplicaId
from headgate.model.request import Request
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.port import DispatchPort
from headgate.wire.body.long_json import LONG_BYTES
from headgate.wire.errors import STATUS
from headgate.wire.exchange import Exchange

log = logging.getLogger(__name__)

CANCELLED: Final = Outcome.CANCELLED
UNHEARD: Final = (CANCELLED, Outcome.OUT_OF_TIME)
"""Outcomes of an unstreamed answer of which nothing arrived: the output tokens its replica computed are estimated."""
MOST_REPLICAS: Final = 16
"""Attempts at one stream, failover included, after which it is not continued. Refused and unreached attempts do not
count, nor do those before a steady stretch (STEADY_S in policy/dispatch/retry.py)."""
MOST_FRUITLESS: Final = 2
"""Continuations in a row that may fail without adding an event; one more ends the stream, which may be what kills its
replicas."""
AFTER_FLAW_S: Final = 0.1
"""Seconds after an exception in the dispatcher until it is asked again for the next request."""


class Gateway:
    def __init__(
        self,
        port: DispatchPort,
        acceptor: Acceptor,
        account: Account,
        placing: Placing,
        clock: Clock,
        held: HeldBodies,
        hooks: GatewayHooks = NO_HOOKS,
    ) -> None:
        """Built within the running loop."""
        self.port = port
        """The dispatcher, or the way to it where it is in another process."""
        self.acceptor = acceptor
        self.account = account
        self.placing = placing
        self.tickets: dict[str, Ticket] = {}
        self.idle = asyncio.Event()
        """Set while no request is under way."""
        self.idle.set()
        self._clock = clock
        self.held = held
        self._events, self._contexts = hooks.events, hooks.contexts
        self._keep_prompt, self._hold = hooks.keep_prompt, hooks.hold
        self.shadows = Shadows(port.with_room, placing.places, clock)
        self._loop = asyncio.get_running_loop()
        self.long = LongBodies(port, acceptor, self.held, self.enter, self.turn_away, clock)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    @property
    def dispatcher(self) -> Dispatcher:
        """The dispatcher, for all who read more of it than the data path does: it must be in this process."""
        assert isinstance(self.port, Dispatcher)
        return self.port

    # -- requests ----------------------------------------------------------------------------------------

    def complete(self, exchange: Exchange) -> None:
        """The handler for chats, text completions, embeddings and responses."""
        if len(exchange.body) > LONG_BYTES:
            self.long.take(exchange)
            return
        try:
            accepted = self.acceptor.accept(exchange)
        except ServeError as error:
            self.turn_away(exchange, error)
        except Exception as flaw:
            self.turn_away(exchange, our_error(exchange.request_id, flaw))
        else:
            self.enter(exchange, accepted)

    def turn_away(self, exchange: Exchange, error: ServeError, tenant: str = "") -> None:
        """Refuses a request that never enters the queue, because it is invalid or refused early. It still leaves a
        record."""
        self.held.drop(exchange)
        now = self._clock()
        self.account.turn_away(exchange, error, tenant, now)
        error.headers = error.headers or rates_of_sender(self.acceptor, self.port, exchange.headers, now)
        exchange.fail(error)

    def enter(self, exchange: Exchange, accepted: Accepted) -> None:
        if exchange.done:
            self.turn_away(exchange, Gone("the client left while its request was being read"))
            return
        request, now = accepted.request, self._clock()
        if request.id in self.tickets:
            exchange.request_id = self._another_id(request.id)
            accepted.request = request = request.but(id=exchange.request_id)
        ticket = Ticket(self, exchange, accepted, now)
        tenant = accepted.tenant
        if tenant.requests_per_min is not None or tenant.tokens_per_min is not None:
            exchange.late_headers = lambda: rate_headers(self.port, request.tenant, self._clock())
        if not self.tickets:
            self.idle.clear()
        self.tickets[request.id] = ticket
        self.account.open()
        exchange.on_gone = ticket.gone
        try:
            if self._contexts is not None or self._keep_prompt is not None:
                self._show(ticket)
            if self._hold is None or not self._hold(request):
                self.hear(Arrived(request), now)
        except Exception as flaw:
            self.broke(ticket, flaw)
        chosen = accepted.chosen
        if chosen is not None and chosen.shadow is not None and request.choices == 1:
            self.shadows.copy(chosen, accepted.path, accepted.body, len(exchange.body))
        if accepted.goes_on is not None:
            exchange.body = b""  # the replica gets a re-encoded body, and the request may wait long

    def _show(self, ticket: Ticket) -> None:
        """Tells the trace and prompt recorders of a request. Their failures do not fail the request."""
        try:
            if self._contexts is not None:
                ticket.timeline.hop = self._contexts.of(ticket.exchange.headers)
            if self._keep_prompt is not None:
                self._keep_prompt(ticket.accepted.request.id, ticket.accepted.body)
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

    def hear(self, event: Event, now: float | None = None) -> list[Command]:
        if now is None:
            now = self._clock()
        flawed: Exception | None = None
        try:
            commands = self.port.on(event, now)
        except Exception as flaw:
            flawed, commands = flaw, self.port.unfinished
        if self._events is not None:
            self._log(event, now, commands)
        self.obey(commands, now)
        if flawed is not None:
            # The request that the dispatcher would have sent next must not wait for another event.
            self._timer_at = min(self._timer_at, now)
            self._loop.call_later(AFTER_FLAW_S, self._tick)
            raise flawed
        if self.port.wake_at < self._timer_at:
            self._set_timer(now)
        return commands

    def obey(self, commands: list[Command], now: float) -> None:
        """Carries commands out. Those of a dispatcher in another process come later than the events that led to
        them."""
        for command in commands:
            try:
                self._carry_out(command, now)
            except Exception as flaw:
                ticket = self.tickets.get(command.request_id)
                if ticket is not None:
                    self.broke(ticket, flaw)

    def _log(self, event: Event, now: float, commands: list[Command]) -> None:
        """Records the event. The first event that cannot be written ends the log: one with a hole cannot be
        replayed."""
        assert self._events is not None
        try:
            self._events(event, now, commands)
        except Exception:
            self._events = None
            log.exception("the log of events ends here: this one could not be written")

    def _carry_out(self, command: Command, now: float) -> None:
        ticket = self.tickets.get(command.request_id)
        if ticket is None or isinstance(command, Quote):
            return
        timeline = ticket.timeline
        if ticket.elsewhere is not None:
            ticket.elsewhere(ticket, command, now)
            return
        if isinstance(command, Hedge):
            self.placing.hedge(ticket, command, now)
            return
        timeline.ahead, timeline.quote = command.ahead, command.quote
        if isinstance(command, Dispatch):
            timeline.attempts, timeline.reason, timeline.seen = command.attempt, command.reason, command.seen
            ticket.accepted.sent_as(command, self.port.lanes)
            if ticket.relay is not None:
                self.placing.go_on(ticket, ticket.relay, command.replica_id)
                return
            if command.model and command.model != ticket.accepted.request.model:
                ticket.accepted.stand_in(command.model)
            timeline.cold, timeline.woke_s = command.cold, command.woke_s
            self.placing.send(ticket, command.replica_id, now)
            return
        if ticket.relay is not None:
            ticket.relay.fail(ReplicaFailed(command.message))  # no replica continues the stream
            return
        error = Refused(command.message, command.outcome, command.retry_after_s)
        if command.outcome is Outcome.OVER_LIMIT:
            tell_rates(error, self.port, ticket.accepted.tenant.name, now)
            ticket.exchange.late_headers = None
        if TIMINGS in ticket.exchange.headers:
            error.headers = (*error.headers, ("x-headgate-lane", ticket.accepted.request.lane))
        self._close(ticket, command.outcome, None, None, error, now, STATUS[command.outcome])
        ticket.exchange.fail(error)

    def attempt_failed(self, ticket: Ticket, error: ServeError, refused: bool) -> None:
        """The relay is over and the exchange still open: the dispatcher decides whether to retry."""
        replica, now = ticket.timeline.replica, self._clock()
        assert replica is not None
        ticket.relay = None
        ticket.exchange.on_gone = ticket.gone
        ticket.timeline.fail(error, refused, now)
        self.hear(failure(ticket.accepted.request.id, replica.id, error, refused), now)

    def may_go_on(self, ticket: Ticket) -> bool:
        if ticket.relay is None or ticket.relay.fruitless > MOST_FRUITLESS or ticket.timeline.attempts >= MOST_REPLICAS:
            return False
        if ticket.accepted.request.choices > 1:
            return False
        return ticket.accepted.can_go_on

    def broken_off(self, ticket: Ticket, error: ServeError) -> None:
        """A stream broke off after it had begun, and its relay waits. The dispatcher chooses another replica to
        continue it, or refuses."""
        replica, now = ticket.timeline.replica, self._clock()
        assert replica is not None
        refused = isinstance(error, ReplicaAnswered) and error.full
        ticket.timeline.note(error, refused, now)
        self.hear(failure(ticket.accepted.request.id, replica.id, error, refused), now)

    def ended(self, ticket: Ticket, outcome: Outcome, summary: Summary | None) -> None:
        """Ends a request: writes its record, releases its slots, and learns token counts from it last."""
        request, replica, now = ticket.accepted.request, ticket.timeline.replica, self._clock()
        told = usage = None if summary is None or summary.usage is None else believed(summary.usage, ticket.accepted)
        if usage is None and summary is not None and (summary.sent_at or summary.first_at) is not None:
            # The client left before usage came: the tokens made so far count, or leaving early would be free.
            left = outcome in UNHEARD and not request.stream and not summary.events
            usage = (request.prompt_tokens, self._computed(ticket) if left else summary.events)
        if outcome is COMPLETED and replica is not None:
            self.placing.answered(replica.id, now)
        if ticket.rival is not None:
            ticket.rival.over(outcome)
        first_s: float | None = None
        if summary is None:
            self._close(ticket, outcome, None, usage, None, now, STATUS[outcome])
        else:
            self._close(ticket, outcome, summary, usage, summary.error, now, summary.status)
            if summary.first_at is not None and not request.stream:
                first_s = max(0.0, summary.first_at - ticket.timeline.since)
        cached = None if told is None or summary is None else summary.cached_tokens
        self.hear(Ended(request.id, outcome, usage, first_s, cached), now)
        if summary is not None and (outcome is CANCELLED or summary.stop) and replica is not None:
            self.placing.abort(ticket, replica.id)
        if told is not None and outcome is COMPLETED:
            self.acceptor.learn(ticket.accepted, told[0], told[1])

    def broke(self, ticket: Ticket, flaw: Exception) -> None:
        """An exception interrupted this request in an unknown state: release each resource that it still holds
        separately, and tell its client. No replica is blamed, since the flaw may lie in any request and is most likely
        in the gateway."""
        request, exchange = ticket.accepted.request, ticket.exchange
        error = our_error(request.id, flaw)
        relay, here = ticket.relay, self.tickets.get(request.id) is ticket
        if relay is not None:
            safely(relay.abandon)
        exchange.on_gone = exchange.on_writable = None
        if here:
            status = 200 if exchange.started else STATUS[error.outcome]
            safely(lambda: self._close(ticket, error.outcome, None, None, error, self._clock(), status))
        safely(lambda: self.hear(Ended(request.id, CANCELLED, None)))
        if not safely(lambda: exchange.fail(error)):
            safely(exchange.abort)

    def _computed(self, ticket: Ticket) -> int:
        """Estimated output tokens that the replica computed for an unstreamed answer whose client has left or timed
        out."""
        accepted, allowance = ticket.accepted, ticket.accepted.allowance
        if allowance is None:
            return 0  # embeddings have none
        tokens = self.port.computed(accepted.request.id, self._clock())
        if allowance.tokens is not None:
            tokens = min(tokens, allowance.tokens)
        return tokens * accepted.request.choices

    def _close(
        self, ticket: Ticket, outcome: Outcome, summary: Summary | None, usage: tuple[int, int] | None,
        error: ServeError | None, now: float, status: int,
    ) -> None:  # fmt: skip
        """Writes the record of an accepted request, and forgets the request."""
        if ticket.rival is not None:
            ticket.timeline.hedge = ticket.rival.told
        self.account.end(ticket.timeline, outcome, summary, usage, error, now, status)
        if self.held.total:
            self.held.drop(ticket.exchange)
        ticket.relay = None  # a cycle with the ticket, which only the garbage collector could free
        self.release(ticket)

    def release(self, ticket: Ticket) -> None:
        """Forgets a request whose record is written."""
        del self.tickets[ticket.accepted.request.id]
        if not self.tickets:
            self.idle.set()

    def adopt(self, ticket: Ticket, resumed: Event | None = None) -> None:
        """Takes a request that another process serves. `resumed`: it is at a replica already; None: it arrives."""
        if not self.tickets:
            self.idle.clear()
        request = ticket.accepted.request
        self.tickets[request.id] = ticket
        self.account.open()
        if resumed is not None:
            self.hear(resumed)
        elif self._hold is None or not self._hold(request):
            self.hear(Arrived(request))

    def so_far(self, ticket: Ticket, now: float) -> Record:
        """The record of a request that still runs, as if it ended now."""
        return self.account.so_far(ticket.timeline, ticket.so_far(now), now)

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

    def spoke(self, replica_id: ReplicaId, since: float) -> bool:
        """Whether the replica has open requests and has proved since `since` that it generates."""
        return self.placing.spoke(self.tickets.values(), replica_id, since)

    # -- time --------------------------------------------------------------------------------------------

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self.port.wake_at
        self._timer = self._loop.call_later(max(0.0, self._timer_at - now), self._tick)

    def _tick(self) -> None:
        """Tells the dispatcher that time has passed. If `wake_at` has moved later, the timer went off early and is set
        again."""
        self._timer, self._timer_at = None, inf
        if self.port.wake_at <= self._clock():
            try:
                self.hear(Tick())
            except Exception:
                log.exception("time could not be told to pass; it is told again in %g s", AFTER_FLAW_S)
        elif self.port.wake_at < inf:
            self._set_timer(self._clock())
