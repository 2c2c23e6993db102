"""Takes requests with long bodies: refuses them on their headers where possible, and parses them in another thread.

Parsing a long body takes longer than other streams should wait for a token. Short bodies never come here.
"""

import asyncio
import logging
from collections.abc import Callable

from headgate.gateway.intake.accept import Accepted, Acceptor
from headgate.gateway.intake.aside import ParsingThread, too_many_waiting
from headgate.gateway.intake.held import HeldBodies
from headgate.model.clock import Clock
from headgate.model.errors import EngineFailed, Gone, Refused, ServeError
from headgate.model.outcome import Outcome
from headgate.policy.dispatch.port import DispatchPort
from headgate.policy.tenants.limits import over_message
from headgate.wire.errors import Headers
from headgate.wire.exchange import Exchange

log = logging.getLogger(__name__)

Enter = Callable[[Exchange, Accepted], None]
TurnAway = Callable[[Exchange, ServeError, str], None]
"""Refuses a request of this tenant; the name is empty where the tenant is not known."""


class LongBodies:
    def __init__(
        self,
        dispatcher: DispatchPort,
        acceptor: Acceptor,
        held: HeldBodies,
        enter: Enter,
        turn_away: TurnAway,
        clock: Clock,
    ) -> None:
        """Built within the running loop, on which `enter` and `turn_away` are called."""
        self._dispatcher = dispatcher
        self._acceptor = acceptor
        self._held = held
        self._enter = enter
        self._turn_away = turn_away
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._thread = ParsingThread(self._loop, clock)

    def aside(
        self, work: Callable[[], None], tenant: str = "", size: int = 0, refuse: Callable[[], None] | None = None
    ) -> None:
        """Does slow work in the parsing thread, when it is this tenant's turn. `refuse` is called instead if too many
        wait."""
        self._thread.do(work, tenant, size, refuse)

    def take(
        self,
        exchange: Exchange,
        opening: Callable[[], None] | None = None,
        enter: Enter | None = None,
        turn_away: TurnAway | None = None,
    ) -> None:
        """Takes a request. `opening` runs in the parsing thread first and extracts the body; it may raise
        InvalidRequest. `enter` and `turn_away`: who gets it then, or its error; None: as every completion."""
        enter, turn_away = enter or self._enter, turn_away or self._turn_away
        size = len(exchange.body)
        tenant = ""
        try:
            tenant = self._acceptor.known(exchange.headers).name
            self._refuse_spent(tenant)
            self._held.take(exchange, tenant, size, self._acceptor.several)
        except ServeError as error:
            turn_away(exchange, error, tenant)
            return
        self.aside(
            lambda: self._accept(exchange, tenant, opening, enter, turn_away),
            tenant,
            size,
            lambda: turn_away(exchange, too_many_waiting(), tenant),
        )

    def _accept(
        self, exchange: Exchange, tenant: str, opening: Callable[[], None] | None, enter: Enter, turn_away: TurnAway
    ) -> None:
        """Accepts a body, in the parsing thread."""
        try:
            if exchange.done:
                raise Gone("the client left before its request was read")
            self._refuse_spent(tenant)  # again: requests that came with it may have been admitted meanwhile
            if opening is not None:
                opening()
            accepted = self._acceptor.accept(exchange)
        except ServeError as error:
            self._loop.call_soon_threadsafe(turn_away, exchange, error, "")
        except Exception as flaw:
            self._loop.call_soon_threadsafe(turn_away, exchange, our_error(exchange.request_id, flaw), "")
        else:
            self._loop.call_soon_threadsafe(enter, exchange, accepted)

    def _refuse_spent(self, tenant: str) -> None:
        """Raises Refused if the tenant's limits would not admit even one token. Takes nothing from the limits."""
        now = self._clock()
        over = self._dispatcher.over_limit(tenant, now)
        if over is not None:
            error = Refused(over_message(tenant, over), Outcome.OVER_LIMIT, over.retry_after_s)
            tell_rates(error, self._dispatcher, tenant, now)
            raise error


def tell_rates(error: ServeError, dispatcher: DispatchPort, tenant: str, now: float) -> None:
    """Adds what is left of the tenant's limits to the error, in OpenAI's headers. The error's type says which limit is
    exceeded."""
    view = dispatcher.rates(tenant, now)
    if view is None:  # it has only a concurrency limit, or its limits were removed meanwhile
        return
    error.headers = rate_headers(dispatcher, tenant, now)
    if view.tokens is not None and (view.requests is None or view.requests.remaining > 0):
        error.kind = "tokens"


def rate_headers(dispatcher: DispatchPort, tenant: str, now: float) -> Headers:
    """What is left of the tenant's limits, in OpenAI's headers; empty: it has no limits per minute."""
    view = dispatcher.rates(tenant, now)
    headers: list[tuple[str, str]] = []
    for name, rate in () if view is None else (("requests", view.requests), ("tokens", view.tokens)):
        if rate is not None:
            headers.append((f"x-ratelimit-limit-{name}", str(rate.limit)))
            headers.append((f"x-ratelimit-remaining-{name}", str(rate.remaining)))
            headers.append((f"x-ratelimit-reset-{name}", f"{rate.reset_s:.3f}s"))
    return tuple(headers)


def rates_of_sender(acceptor: Acceptor, dispatcher: DispatchPort, given: dict[str, str], now: float) -> Headers:
    """The same for the tenant whose key is in a request's headers."""
    try:
        return rate_headers(dispatcher, acceptor.known(given).name, now)
    except ServeError:  # the request is refused for its key
        return ()


def our_error(request_id: str, flaw: Exception) -> ServeError:
    """The error that a client gets for an exception in the gateway, which is logged."""
    log.error("request %s: it broke", request_id, exc_info=flaw)
    return EngineFailed(f"internal error: {type(flaw).__name__}")


def safely(do: Callable[[], object]) -> bool:
    """Whether `do` succeeded; an exception is logged."""
    try:
        do()
    except Exception:
        log.exception("it could not be let go of")
        return False
    return True
