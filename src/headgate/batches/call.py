"""Sends one line through the gateway, as the request of its tenant in lane batch, and takes it back."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from headgate.config.gateway import Tenant
from headgate.gateway.gateway import Gateway
from headgate.gateway.long_bodies import our_error
from headgate.model.clock import Clock
from headgate.model.errors import Gone, Refused, ServeError
from headgate.model.outcome import Outcome
from headgate.wire.body.long_json import LONG_BYTES
from headgate.wire.captured import CapturedExchange

LANE: Final = "batch"
HEADERS: Final = {"x-headgate-lane": LANE, "x-headgate-when-late": "refuse"}
"""Headers of every line: also the line of a trusted tenant, which may name a lane in its body, stays in this one."""
Told = Callable[[int, bytes, "ServeError | None"], None]


def in_batch(tenant: Tenant) -> Tenant:
    """The tenant as whom its lines run: the same, whose requests are in lane batch whatever their size."""
    return replace(tenant, default_lane=LANE)


class LineCall:
    """One attempt at a line."""

    __slots__ = ("_clock", "_gateway", "_tenant", "_told", "exchange", "sent_at")

    def __init__(
        self, gateway: Gateway, tenant: Tenant, endpoint: str, request_id: str, body: bytes, told: Told, clock: Clock
    ) -> None:
        """`told` gets the answer, once, unless the line is taken back first."""
        self._gateway = gateway
        self._tenant = tenant
        self._told = told
        self._clock = clock
        self.sent_at = clock()
        self.exchange = CapturedExchange(endpoint, request_id, body, self.sent_at, told)
        self.exchange.headers = HEADERS

    @property
    def model(self) -> str | None:
        """The model whose replicas serve it; None: it is not known yet."""
        ticket = self._gateway.tickets.get(self.exchange.request_id)
        return None if ticket is None or ticket.exchange is not self.exchange else ticket.accepted.request.model

    @property
    def at_replica(self) -> bool:
        ticket = self._gateway.tickets.get(self.exchange.request_id)
        return ticket is not None and ticket.exchange is self.exchange and ticket.relay is not None

    def send(self) -> None:
        gateway, exchange = self._gateway, self.exchange
        if len(exchange.body) <= LONG_BYTES:
            self._accept()
            return
        tenant, size = self._tenant.name, len(exchange.body)
        try:
            gateway.held.take(exchange, tenant, size, gateway.acceptor.several)
        except ServeError as error:
            exchange.fail(error)  # no request was made yet: there is nothing to record
            return

        def refuse() -> None:
            gateway.held.drop(exchange)
            exchange.fail(Refused("too many long bodies wait", Outcome.QUEUE_FULL, 1.0))

        loop = exchange.loop
        gateway.long.aside(lambda: self._accept(loop.call_soon_threadsafe), tenant, size, refuse)

    def _accept(self, back: Callable[..., object] | None = None) -> None:
        """`back`: brings what follows from the parsing thread to the loop; None: this is the loop."""
        gateway, exchange = self._gateway, self.exchange
        try:
            if exchange.done:
                raise Gone("the line was taken back before it was read")
            accepted = gateway.acceptor.accept(exchange, self._tenant)
        except ServeError as error:
            _then(back, gateway.turn_away, exchange, error, self._tenant.name)
        except Exception as flaw:
            _then(back, gateway.turn_away, exchange, our_error(exchange.request_id, flaw), self._tenant.name)
        else:
            _then(back, gateway.enter, exchange, accepted)

    def take_back(self) -> None:
        """Ends it as if its client had left: its replica stops, and its slot is free. Nothing is told of it."""
        if not self.exchange.done:
            self.exchange.lost()


def _then(back: Callable[..., object] | None, call: Callable[..., None], *arguments: object) -> None:
    if back is None:
        call(*arguments)
    else:
        back(call, *arguments)
