"""The live driver: carries the dispatcher's commands out, and tells it what happened.

Everything is a callback on the event loop. A request costs no task, no future and no lock: it arrives, the dispatcher
answers with commands, a Relay joins the client's exchange to the replica's call, and its end comes back as an event.
"""

import asyncio
import contextlib
from math import inf
from typing import Any

import msgspec

from headgate.gateway.accept import Accepted, Acceptor
from headgate.gateway.account import Account
from headgate.gateway.relay import Relay, RelayLimits, Summary
from headgate.model.clock import Clock
from headgate.model.errors import Refused, ReplicaFailed, ServeError
from headgate.model.event import Arrived, AttemptFailed, Command, Dispatch, Ended, Event, FirstToken, Refuse, Tick
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.dispatcher import Dispatcher
from headgate.replica.http import Pool, request_head
from headgate.wire.errors import Headers
from headgate.wire.exchange import Exchange

_encode = msgspec.json.Encoder().encode
PASSED_ON = ("traceparent", "tracestate", "x-headgate-timings")
"""Headers a replica gets to see as the client sent them."""


class Ticket:
    """One passage: the client's exchange, what was understood of it, and where it is."""

    __slots__ = ("_gateway", "accepted", "attempts", "exchange", "reason", "relay", "replica", "sent_at")

    def __init__(self, gateway: "Gateway", exchange: Exchange, accepted: Accepted) -> None:
        self._gateway = gateway
        self.exchange = exchange
        self.accepted = accepted
        self.relay: Relay | None = None
        self.replica: ReplicaId | None = None
        self.attempts = 0
        self.sent_at: float | None = None
        self.reason = ""

    def gone(self) -> None:
        """The client left while it waited here; once it is placed, its Relay notices."""
        self._gateway.ended(self, Outcome.CANCELLED, None)

    # -- the Relay's owner -----------------------------------------------------------------------------

    def on_first(self) -> None:
        self._gateway.hear(FirstToken(self.accepted.request.id))

    def on_attempt_failed(self, error: ServeError, refused: bool) -> None:
        self._gateway.attempt_failed(self, error, refused)

    def on_end(self, summary: Summary) -> None:
        self._gateway.ended(self, summary.outcome, summary)


class Gateway:
    def __init__(
        self, dispatcher: Dispatcher, acceptor: Acceptor, account: Account, relay_limits: RelayLimits, clock: Clock
    ) -> None:
        self.dispatcher = dispatcher
        self.acceptor = acceptor
        self.account = account
        self.tickets: dict[str, Ticket] = {}
        self.idle = asyncio.Event()
        """Set while no request is under way."""
        self.idle.set()
        self._relay_limits = relay_limits
        self._clock = clock
        self._pools: dict[ReplicaId, tuple[Replica, Pool, dict[str, bytes]]] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    # -- requests ----------------------------------------------------------------------------------------

    def complete(self, exchange: Exchange) -> None:
        """A handler: chat, text completions, embeddings. Raises what the client did wrong."""
        accepted = self.acceptor.accept(exchange)
        request = accepted.request
        if request.id in self.tickets:
            exchange.request_id = self._another_id(request.id)
            accepted.request = request = msgspec.structs.replace(request, id=exchange.request_id)
        ticket = Ticket(self, exchange, accepted)
        self.tickets[request.id] = ticket
        self.idle.clear()
        self.account.open()
        exchange.on_gone = ticket.gone
        self.hear(Arrived(request))

    def _another_id(self, taken: str) -> str:
        """For a client that uses an id again while its first use goes on."""
        number = self.account.opened
        while (other := f"{taken[:100]}-{number:x}") in self.tickets:
            number += 1
        return other

    def hear(self, event: Event) -> None:
        now = self._clock()
        for command in self.dispatcher.on(event, now):
            self._carry_out(command, now)
        if self.dispatcher.wake_at < self._timer_at:
            self._set_timer(now)

    def _carry_out(self, command: Command, now: float) -> None:
        ticket = self.tickets.get(command.request_id)
        if ticket is None:
            return
        match command:
            case Dispatch(_, replica_id, attempt, reason):
                ticket.replica, ticket.attempts, ticket.reason = replica_id, attempt, reason
                if ticket.sent_at is None:
                    ticket.sent_at = now
                self._send(ticket, replica_id)
            case Refuse(_, outcome, message, retry_after_s):
                ticket.reason = message
                error = Refused(message, outcome, retry_after_s)
                if outcome is Outcome.OVER_LIMIT:
                    error.headers = self._rates(ticket.accepted.tenant.name, now)
                self._close(ticket, outcome, None, None)
                ticket.exchange.fail(error)

    def _rates(self, tenant: str, now: float) -> Headers:
        """OpenAI's headers for what is left of a tenant's limits."""
        view = self.dispatcher.limits.view(tenant, self.dispatcher.tenants[tenant], now)
        headers: list[tuple[str, str]] = []
        for name, rate in (("requests", view.requests), ("tokens", view.tokens)):
            if rate is not None:
                headers.append((f"x-ratelimit-limit-{name}", str(rate.limit)))
                headers.append((f"x-ratelimit-remaining-{name}", str(rate.remaining)))
                headers.append((f"x-ratelimit-reset-{name}", f"{rate.reset_s:.3f}s"))
        return tuple(headers)

    def _send(self, ticket: Ticket, replica_id: ReplicaId) -> None:
        replica, pool, heads = self._pools[replica_id]
        accepted, exchange = ticket.accepted, ticket.exchange
        request = accepted.request
        lane = self.dispatcher.lanes[request.lane]
        # Made once per path; only the id, and what is passed on, differ from request to request.
        head = heads.get(accepted.path)
        if head is None:
            head = heads[accepted.path] = request_head(accepted.path, pool.host)
        head += b"x-request-id: %b\r\n" % request.id.encode()
        for name in PASSED_ON:
            if name in exchange.headers:
                head += f"{name}: {exchange.headers[name]}\r\n".encode("latin-1", "replace")
        ticket.relay = relay = Relay(
            exchange, ticket, self._relay_limits, lane.slow_client, request.stream, accepted.wants_usage, self._clock
        )
        body = for_headgate(accepted, self.dispatcher) if replica.kind == "headgate" else accepted.body
        relay.start(pool.send(head, _encode(body), relay))

    def attempt_failed(self, ticket: Ticket, error: ServeError, refused: bool) -> None:
        """The relay is done with; the exchange is still open, and the dispatcher says what becomes of it."""
        replica_id = ticket.replica
        assert replica_id is not None
        ticket.relay, ticket.replica = None, None
        ticket.exchange.on_gone = ticket.gone
        self.hear(AttemptFailed(ticket.accepted.request.id, replica_id, error.outcome, refused, error.message))

    def ended(self, ticket: Ticket, outcome: Outcome, summary: Summary | None) -> None:
        usage = summary.usage if summary is not None else None
        if usage is not None and outcome is Outcome.COMPLETED:
            self.acceptor.learn(ticket.accepted, *usage)
        elif usage is None and summary is not None and summary.sent_at is not None:
            # It left before usage was told: what it had so far counts all the same, or leaving early would be free.
            usage = (ticket.accepted.request.prompt_tokens, summary.events)
        self._close(ticket, outcome, summary, usage)
        self.hear(Ended(ticket.accepted.request.id, outcome, usage))

    def _close(self, ticket: Ticket, outcome: Outcome, summary: Summary | None, usage: tuple[int, int] | None) -> None:
        request, now = ticket.accepted.request, self._clock()
        del self.tickets[request.id]
        ticket.relay = None  # it refers to the ticket: only the garbage collector could free the two
        if not self.tickets:
            self.idle.set()
        prompt, output = usage or (request.prompt_tokens, 0)
        first = summary.first_at if summary is not None else None
        self.account.close(
            Record(
                id=request.id,
                at=request.arrived,
                lane=request.lane,
                tenant=request.tenant,
                model=request.model,
                outcome=outcome,
                replica=ticket.replica,
                attempts=ticket.attempts,
                prompt_tokens=prompt,
                output_tokens=output,
                queue_s=(ticket.sent_at or now) - request.arrived,
                ttft_s=None if first is None else first - request.arrived,
                e2e_s=now - request.arrived,
                max_gap_s=summary.max_gap_s if summary is not None else 0.0,
                stalled_s=summary.stalled_s if summary is not None else 0.0,
                reason=ticket.reason,
            )
        )

    async def finish(self, grace_s: float) -> None:
        """Let what is under way end by itself for so long; tell the rest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.idle.wait()
        for ticket in tuple(self.tickets.values()):
            error = ReplicaFailed("the gateway is shutting down")
            if ticket.relay is not None:
                ticket.relay.fail(error)
            else:
                ticket.exchange.fail(error)
                self.ended(ticket, Outcome.CANCELLED, None)

    # -- replicas ----------------------------------------------------------------------------------------

    def join(self, replica: Replica, pool: Pool) -> None:
        self._pools[replica.id] = (replica, pool, {})

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
            self.hear(Tick())
        elif self.dispatcher.wake_at < inf:
            self._set_timer(self._clock())


def for_headgate(accepted: Accepted, dispatcher: Dispatcher) -> dict[str, Any]:
    """Our own engine takes the lane's promises with the request."""
    request = accepted.request
    lane = dispatcher.lanes[request.lane]
    extra = {
        "lane": request.lane if request.lane in LANES else "slow",
        "priority": request.priority,
        "ttft_target_ms": lane.ttft_target_s * 1e3,
        "tpot_target_ms": lane.gap_target_s * 1e3,
    }
    return {**accepted.body, **extra}
