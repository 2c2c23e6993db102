"""Which path leads where: completions, models, health, and all that the instruments show."""

from headgate.gateway.catalog import Catalog
from headgate.gateway.gateway import Gateway
from headgate.model.errors import NotReady
from headgate.wire.exchange import Exchange
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
                ("GET", "/v1/models"): catalog.serve_list,
                ("GET", "/v1/models/*"): catalog.serve_one,
                ("GET", "/health/live"): self._live,
                ("GET", "/health/ready"): self._ready,
                ("GET", "/health"): self._ready,
                **more,
            }
        )

    def _live(self, exchange: Exchange) -> None:
        exchange.respond(200, b'{"status":"live"}')

    def _ready(self, exchange: Exchange) -> None:
        if self.draining:
            raise NotReady("draining")
        if not any(load.usable > 0 for load in self._gateway.dispatcher.fleet.loads.values()):
            raise NotReady("no replica is ready yet")
        exchange.respond(200, b'{"status":"ready"}')
