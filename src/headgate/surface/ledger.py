"""Counts what requests hold now. When no request is under way, every entry is zero; a nonzero one has leaked.

    GET /admin/ledger     {"tickets": 0, "passages": 0, …}

Each entry is counted where it is kept, independently of the others, so that none can hide what another has lost.
"""

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

    def routes(self) -> Routes:
        return {("GET", "/admin/ledger"): self._access.guard(self._serve)}

    def _serve(self, exchange: Exchange) -> None:
        held = self.held()
        held["client_connections"] -= self.server is not None  # without the connection that asks
        exchange.respond(200, _encode(held))

    def held(self) -> dict[str, int]:
        """Counts by name, in the order in which a request takes them."""
        gateway, dispatcher = self._gateway, self._gateway.dispatcher
        pools = dispatcher.pools.values()
        states = [state for pool in pools for state in pool.lanes.values()]
        loads = dispatcher.fleet.loads.values()
        connections = [place.pool for place in gateway.places.values()]
        return {
            "client_connections": 0 if self.server is None else self.server.answering,
            "received_bytes": 0 if self.server is None else self.server.receiving,
            "held_bytes": gateway.held.total,
            "tickets": len(gateway.tickets),
            "records_open": gateway.account.open_now,
            "passages": len(dispatcher.passages),
            "reservations": dispatcher.limits.reserved,
            "waiting": sum(len(state.queue) for state in states),
            "waiting_in_pools": sum(pool.waiting for pool in pools),
            "waiting_tokens": sum(state.queue.tokens for state in states),
            "running": sum(tally.running for pool in pools for tally in pool.tallies.values()),
            "prefills": sum(state.prefills for state in states),
            "prefills_tokens": sum(state.prefill_tokens for state in states),
            "room": sum(load.requests for load in loads),
            "room_indexed": sum(seat.requests for seat in dispatcher.fleet.seats()),
            # Without tokens of requests that another replica answered first: they count in the load until this replica
            # answers again, but no request holds them.
            "prefill_tokens": sum(load.prefill_tokens - load.silent_tokens for load in loads),
            "decode_tokens": sum(load.decode_tokens for load in loads),
            "replica_connections": sum(pool.busy for pool in connections),
        }

    def left_over(self) -> dict[str, int]:
        """The entries that are not zero."""
        return {name: count for name, count in self.held().items() if count}
