"""Counts what requests hold now. When no request is under way, every entry is zero; a nonzero one has leaked.

    GET /admin/ledger     {"tickets": 0, "passages": 0, …}

Each entry is counted where it is kept, independently of the others, so that none can hide what another has lost.
"""

from collections.abc import Callable

import msgspec

from headgate.gateway.gateway import Gateway
from headgate.surface.access import AdminAccess
from headgate.wire.exchange import Exchange
from headgate.wire.router import Routes
from headgate.wire.server import HttpServer

_encode = msgspec.json.Encoder().encode


class Holdings:
    def __init__(self, gateway: Gateway, access: AdminAccess) -> None:
        self._gateway = gateway
        self._access = access
        self.server: HttpServer | None = None
        """The server whose clients are counted; None: no clients are counted."""
        self._elsewhere: Callable[[], dict[str, int]] = dict

    def count_more(self, held: Callable[[], dict[str, int]]) -> None:
        """Adds what other processes of this gateway hold, by name, from now on."""
        self._elsewhere = held

    def count_clients(self, server: HttpServer) -> None:
        """Counts the clients of this server from now on."""
        self.server = server

    def routes(self) -> Routes:
        return {("GET", "/admin/ledger"): self._access.guard(self._serve)}

    def _serve(self, exchange: Exchange) -> None:
        held = self.held()
        held["client_connections"] -= self.server is not None  # without the connection that asks
        exchange.respond(200, _encode(held))

    def held(self) -> dict[str, int]:
        """Counts by name, in the order in which a request takes them."""
        gateway = self._gateway
        more = self._elsewhere()
        each = [place.connections for place in gateway.placing.places.values()]
        held = {
            "client_connections": 0 if self.server is None else self.server.answering,
            "received_bytes": 0 if self.server is None else self.server.receiving,
            "held_bytes": gateway.held.total,
            "tickets": len(gateway.tickets),
            "records_open": gateway.account.open_now,
            **gateway.dispatcher.holdings(),
            "replica_connections": sum(connections.busy for connections in each),
        }
        return {name: count + more.get(name, 0) for name, count in held.items()}
