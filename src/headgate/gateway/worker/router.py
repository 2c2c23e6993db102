"""Finds the handler for a request in a worker: completions are its own, and all else is the brain's."""

from headgate.gateway.gateway import Gateway
from headgate.gateway.routes import completions
from headgate.gateway.worker.passing import PassingOn
from headgate.model.errors import NotReady
from headgate.wire.exchange import Exchange
from headgate.wire.router import Router, Routes

READY = ("/health", "/health/ready")


class WorkerRouter:
    def __init__(self, gateway: Gateway, more: Routes, pass_on: PassingOn) -> None:
        """`more`: the worker's own routes beside completions."""
        own: Routes = {**completions(gateway), ("GET", "/health/live"): _live, **more}
        self._own = Router(own)
        self._places = frozenset(own)
        self._pass_on = pass_on
        self._draining = False

    def __call__(self, exchange: Exchange) -> None:
        if (exchange.method, exchange.path) in self._places:
            self._own(exchange)
        elif self._draining and exchange.path in READY:
            raise NotReady("draining")
        else:
            self._pass_on(exchange)

    def expects(self, exchange: Exchange) -> bool:
        """Whether a handler takes the request, as far as its headers tell; otherwise it has been answered."""
        return (exchange.method, exchange.path) not in self._places or self._own.expects(exchange)

    def drain(self) -> None:
        """The gateway is not ready any more."""
        self._draining = True

    def passed_on(self) -> int:
        """Requests that the brain answers now, on connections of clients here."""
        return self._pass_on.open_now


def _live(exchange: Exchange) -> None:
    exchange.respond(200, b'{"status":"live"}')
