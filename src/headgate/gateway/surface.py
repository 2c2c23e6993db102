"""Which path leads where: completions, models, health, and all that the instruments show.

Who may ask is each route's own rule, and `surface/api` says which it is. Completions and models ask for a tenant's key
where tenants have keys, /admin for an admin's (surface/access.py). Health, figures and the page's files are public.
"""

from headgate.gateway.catalog import Catalog
from headgate.gateway.gateway import Gateway
from headgate.model.errors import NotReady
from headgate.wire.exchange import Exchange, Handler
from headgate.wire.router import Router, Routes


class Surface:
    def __init__(self, gateway: Gateway, catalog: Catalog, more: Routes) -> None:
        self.draining = False
        self._gateway = gateway
        self.router = Router(
            {
                ("POST", "/v1/chat/completions"): gateway.complete,
                ("POST", "/v1/completions"): gateway.complete,
                ("POST", "/v1/embeddings"): gateway.complete,
                ("POST", "/v1/responses"): gateway.complete,
                ("GET", "/v1/models"): self._keyed(catalog.serve_list),
                ("GET", "/v1/models/*"): self._keyed(catalog.serve_one),
                ("GET", "/health/live"): self._live,
                ("GET", "/health/ready"): self._ready,
                ("GET", "/health"): self._ready,
                **more,
            }
        )

    def _keyed(self, handler: Handler) -> Handler:
        """For those who may ask for a completion, and nobody else."""

        def keyed(exchange: Exchange) -> None:
            self._gateway.acceptor.known(exchange.headers)
            handler(exchange)

        return keyed

    def _live(self, exchange: Exchange) -> None:
        exchange.respond(200, b'{"status":"live"}')

    def _ready(self, exchange: Exchange) -> None:
        if self.draining:
            raise NotReady("draining")
        if not any(load.usable > 0 for load in self._gateway.dispatcher.fleet.loads.values()):
            raise NotReady("no replica is ready yet")
        exchange.respond(200, b'{"status":"ready"}')
