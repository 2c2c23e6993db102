"""Maps paths to handlers: completions, models, health, and the routes of the instruments.

Each route has its own rule for who may use it, listed in `surface/api`. Completions and models need a tenant's key
where tenants have keys, /admin needs an admin's key (surface/access.py). Health, figures and the page's files are
public.
"""

from headgate.gateway.catalog import Catalog
from headgate.gateway.gateway import Gateway
from headgate.gateway.intake.abilities import COUNT, QUOTE
from headgate.gateway.judge import UPLOADS
from headgate.gateway.quotes import QuoteRoute
from headgate.gateway.token_count import TokenCountRoute
from headgate.model.clock import monotonic
from headgate.model.errors import NotReady
from headgate.wire.errors import MESSAGES
from headgate.wire.exchange import Exchange, Handler
from headgate.wire.router import Router, Routes


def completions(gateway: Gateway) -> Routes:
    """The routes of what replicas answer."""
    paths = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", MESSAGES)
    return {("POST", path): gateway.complete for path in paths}


class ApiRoutes:
    def __init__(self, gateway: Gateway, catalog: Catalog, more: Routes) -> None:
        self.draining = False
        self._gateway = gateway
        self.router = Router(
            {
                **completions(gateway),
                ("POST", COUNT): TokenCountRoute(gateway).serve,
                ("POST", QUOTE): QuoteRoute(gateway, monotonic).serve,
                ("GET", "/v1/models"): self._keyed(catalog.serve_list),
                ("GET", "/v1/models/*"): self._keyed(catalog.serve_one),
                ("GET", "/health/live"): self._live,
                ("GET", "/health/ready"): self._ready,
                ("GET", "/health"): self._ready,
                **more,
            },
            forms=frozenset((UPLOADS,)),
        )

    def _keyed(self, handler: Handler) -> Handler:
        """The handler, restricted to clients that may ask for a completion."""

        def keyed(exchange: Exchange) -> None:
            self._gateway.acceptor.known(exchange.headers)
            handler(exchange)

        return keyed

    def drain(self) -> None:
        """The gateway is not ready any more."""
        self.draining = True

    def _live(self, exchange: Exchange) -> None:
        exchange.respond(200, b'{"status":"live"}')

    def _ready(self, exchange: Exchange) -> None:
        if self.draining:
            raise NotReady("draining")
        if not self._gateway.port.any_usable():
            raise NotReady("no replica is ready yet")
        exchange.respond(200, b'{"status":"ready"}')
