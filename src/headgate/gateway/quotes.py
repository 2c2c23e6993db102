"""Answers POST /v1/quote: what a completion with this body would meet now, without serving it.

The body, its tenant and its headers are read as a completion's, and have the same errors. A quote is no request: it
leaves no record and is in no figure but its tenant's requests per minute. It says nothing that a request of the same
tenant would not learn by being sent: no replica's name, and of other tenants only how long one waits beside them.
"""

from typing import Any, Final

import msgspec

from headgate.gateway.gateway import Gateway
from headgate.gateway.intake.accept import Accepted
from headgate.gateway.long_bodies import our_error, rate_headers, tell_rates
from headgate.model.clock import Clock
from headgate.model.errors import Refused, ServeError, UnknownModel
from headgate.model.event import Quote, QuoteAsked
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica, ReplicaId
from headgate.wire.body.long_json import LONG_BYTES
from headgate.wire.errors import Headers, error_headers
from headgate.wire.exchange import Exchange

_encode: Final = msgspec.json.Encoder().encode


class QuoteRoute:
    def __init__(self, gateway: Gateway, clock: Clock) -> None:
        self._gateway = gateway
        self._clock = clock

    def serve(self, exchange: Exchange) -> None:
        if len(exchange.body) > LONG_BYTES:
            self._gateway.long.take(exchange, enter=self._enter, turn_away=self._turn_away)
        else:
            self._answer(exchange, self._gateway.acceptor.accept(exchange))

    def _enter(self, exchange: Exchange, accepted: Accepted) -> None:
        """Takes a long body that was parsed in another thread."""
        self._gateway.held.drop(exchange)
        try:
            self._answer(exchange, accepted)
        except ServeError as error:
            exchange.fail(error)
        except Exception as flaw:
            exchange.fail(our_error(exchange.request_id, flaw))

    def _turn_away(self, exchange: Exchange, error: ServeError, tenant: str) -> None:
        self._gateway.held.drop(exchange)
        exchange.fail(error)

    def _answer(self, exchange: Exchange, accepted: Accepted) -> None:
        if exchange.done:
            return
        gateway, request, now = self._gateway, accepted.request, self._clock()
        quote = next(command for command in gateway.hear(QuoteAsked(request), now) if isinstance(command, Quote))
        if quote.outcome is Outcome.UNKNOWN_MODEL:
            raise UnknownModel(quote.message, param="model")
        headers: Headers = rate_headers(gateway.port, request.tenant, now)
        if quote.outcome is not None:
            refused = Refused(quote.message, quote.outcome, quote.retry_after_s)
            if not quote.counted:
                tell_rates(refused, gateway.port, request.tenant, now)
                raise refused
            headers = (*error_headers(refused), *headers)
        exchange.renames = exchange.voice = None  # they are for answers of engines
        name = request.model if accepted.chosen is None else accepted.chosen.name
        exchange.respond(200, _encode(self._shown(quote, request.lane, name, request.model)), headers=headers)

    def _shown(self, quote: Quote, lane: str, name: str, model: str) -> dict[str, Any]:
        told, lane_told = quote.told, quote.lane
        return {
            "object": "quote",
            "model": name,
            "admitted": quote.admitted,
            "lane": lane_told,
            "relegated_from": lane if lane_told != lane else None,
            "waits": quote.admitted and quote.replica_id is None,
            "replica_class": self._class_of(quote.replica_id, model),
            "expected_ttft_ms": None if told is None else round(1e3 * told.expected_s, 3),
            "p99_ttft_ms": None if told is None or told.p99_s is None else round(1e3 * told.p99_s, 3),
            "retry_after_ms": None if quote.retry_after_s is None else round(1e3 * quote.retry_after_s, 3),
            "reason": None if quote.outcome is None else quote.outcome.value,
            "message": quote.message or None,
        }

    def _class_of(self, replica_id: ReplicaId | None, model: str) -> dict[str, str | None] | None:
        """The class of the replica that would have the request; while it waits, the class that all of its model's have.
        None: they differ, or there is none."""
        places = self._gateway.placing.places
        if replica_id is not None:
            place = places.get(replica_id)
            return None if place is None else _class_of(place.replica)
        found: dict[str, str | None] | None = None
        for place in places.values():
            names = place.replica.names
            if (names and model in names) or not names:
                one = _class_of(place.replica)
                if found is not None and found != one:
                    return None
                found = one
        return found


def _class_of(replica: Replica) -> dict[str, str | None]:
    """What tells replicas apart for a client: the kind of engine, and what the operator says of its machine."""
    tags = replica.tags
    return {"kind": replica.kind, "gpu_type": tags.get("gpu_type"), "quantization": tags.get("quantization")}
