"""Carries out a Dispatch for requests that came through a proxy: tells the proxy where each may go.

All other requests of the gateway are sent by `Placing`, as without a picker.
"""

from itertools import islice
from typing import Final
from urllib.parse import urlsplit

from headgate.epp.pick import Endpoints, Pick
from headgate.gateway.gateway import Gateway
from headgate.gateway.intake.accept import Accepted
from headgate.gateway.long_bodies import our_error
from headgate.gateway.placing import Ticket
from headgate.model.clock import Clock
from headgate.model.errors import InvalidRequest, NotReady, ServeError
from headgate.model.event import FirstToken
from headgate.model.replica import ReplicaId
from headgate.policy.replicas.signs import HealthState
from headgate.wire.body.long_json import LONG_BYTES
from headgate.wire.exchange import Exchange

MOST_ENDPOINTS: Final = 3
"""Endpoints named in one answer: the replica that was chosen, and those to try if it can't be reached."""
MOST_LOOKED_AT: Final = 16
"""Replicas looked at to fill the list, where few were compared."""
COMPLETIONS: Final = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"))


class EndpointPicker:
    def __init__(self, gateway: Gateway, clock: Clock) -> None:
        self._gateway = gateway
        self._clock = clock
        self._open: dict[Exchange, Pick] = {}
        gateway.placing.divert(self.send)

    @property
    def clock(self) -> Clock:
        return self._clock

    def __len__(self) -> int:
        """Requests that a proxy has open."""
        return len(self._open)

    @property
    def ready(self) -> bool:
        """Whether any replica can be used."""
        return self._gateway.dispatcher.any_usable()

    # -- a request -----------------------------------------------------------------------------------------

    def ask(self, pick: Pick) -> None:
        """Takes a request that is complete. Its Pick is decided now or later."""
        exchange, gateway = pick.exchange, self._gateway
        self._open[exchange] = pick
        if len(exchange.body) > LONG_BYTES:
            gateway.long.take(exchange, enter=self._enter)
            return
        try:
            accepted = gateway.acceptor.accept(exchange)
        except ServeError as error:
            gateway.turn_away(exchange, error)
        except Exception as flaw:
            gateway.turn_away(exchange, our_error(exchange.request_id, flaw))
        else:
            self._enter(exchange, accepted)

    def ask_any(self, pick: Pick) -> None:
        """Takes a request that computes nothing, such as a list of models: the replica with the fewest requests gets
        it. It has no lane and leaves no record."""
        gateway, now = self._gateway, self._clock()
        views = sorted(
            (view.requests, view.id)
            for view in gateway.dispatcher.view(now).replicas.values()
            if view.in_use and view.id in gateway.placing.places and self._allowed(pick, view.id)
        )
        if not views:
            pick.exchange.fail(NotReady("no replica is ready"))
            return
        pick.decided.set_result(Endpoints(tuple(self._address(each) for _, each in views[:MOST_ENDPOINTS]), None))

    def _enter(self, exchange: Exchange, accepted: Accepted) -> None:
        pick = self._open.get(exchange)
        if pick is None:
            return
        if exchange.voice is not None:
            wrong = InvalidRequest(
                "no engine here has this API, and an endpoint picker can't translate it: ask for /v1/chat/completions"
            )
            self._gateway.turn_away(exchange, wrong, accepted.tenant.name)
            return
        request = accepted.request
        if request.stream:
            _as_asked(accepted)
            # Whoever sees nothing of the answer hears no first token: the dispatcher counts the prompt as unheard.
            request = request if pick.observed is not None else request.but(stream=False)
        if pick.subset is not None:
            places = self._gateway.placing.places
            left_out = {each for each in places if not self._allowed(pick, each)}
            if len(left_out) == len(places):
                self._gateway.turn_away(exchange, NotReady("no replica is in the proxy's subset"), accepted.tenant.name)
                return
            request = request.but(unfit=request.unfit | left_out)
        accepted.request = request
        self._gateway.enter(exchange, accepted)

    def send(self, ticket: Ticket, replica_id: ReplicaId, now: float) -> bool:
        """Names the endpoint where a proxy asked for it. False: the gateway sends the request as always."""
        pick, placing = self._open.get(ticket.exchange), self._gateway.placing
        if pick is None:
            return False
        ticket.timeline.send(placing.places[replica_id].replica, now)
        pick.chosen(ticket, Endpoints(self._endpoints(ticket, replica_id), placing.body_for(ticket, replica_id)))
        return True

    def _endpoints(self, ticket: Ticket, replica_id: ReplicaId) -> tuple[str, ...]:
        """The replica that was chosen; then the best of those compared with it; then others of the same model, so that
        there is always one to go on to."""
        gateway, request = self._gateway, ticket.accepted.request
        places = gateway.placing.places
        ids = [replica_id]
        compared = sorted(ticket.timeline.seen, key=lambda one: -one.score)
        model = places[replica_id].replica.model
        same = (each for each, place in places.items() if place.replica.model == model)
        for each in (*(one.replica_id for one in compared), *islice(same, MOST_LOOKED_AT)):
            if each not in ids and each not in request.unfit and each in places and self._serves(each):
                ids.append(each)
                if len(ids) == MOST_ENDPOINTS:
                    break
        return tuple(self._address(each) for each in ids)

    # -- its answer ----------------------------------------------------------------------------------------

    def first(self, pick: Pick) -> None:
        """The first token has come."""
        if pick.ticket is not None:
            self._gateway.hear(FirstToken(pick.ticket.accepted.request.id))

    def over(self, pick: Pick) -> None:
        """The proxy has nothing more to say of this request: it has ended, or its client has left."""
        if self._open.pop(pick.exchange, None) is None:
            return
        ticket, exchange = pick.ticket, pick.exchange
        if ticket is None or ticket.accepted.request.id not in self._gateway.tickets:
            if not exchange.done:
                exchange.lost()
            return
        request, allowance = ticket.accepted.request, ticket.accepted.allowance
        computed = self._gateway.dispatcher.computed(request.id, self._clock())
        if allowance is None:
            computed = 0
        elif allowance.tokens is not None:
            computed = min(computed, allowance.tokens)
        outcome, summary = pick.summary(computed)
        exchange.on_gone = None
        self._gateway.ended(ticket, outcome, summary)

    def _serves(self, replica_id: ReplicaId) -> bool:
        standing = self._gateway.dispatcher.standing(replica_id)
        return standing is not None and standing.state in (HealthState.UP, HealthState.RAMPING)

    def _allowed(self, pick: Pick, replica_id: ReplicaId) -> bool:
        return pick.subset is None or self._address(replica_id) in pick.subset

    def _address(self, replica_id: ReplicaId) -> str:
        """host:port, as a proxy sends to it."""
        return address_of(self._gateway.placing.places[replica_id].replica.url)


def address_of(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _as_asked(accepted: Accepted) -> None:
    """Takes back that the stream is to end with its usage, which only the gateway's own relay would hide again."""
    options = accepted.body.get("stream_options")
    if accepted.wants_usage or not isinstance(options, dict):
        return
    left = {name: value for name, value in options.items() if name != "include_usage"}
    accepted.body = {**accepted.body, "stream_options": left}
    if not left:
        del accepted.body["stream_options"]
