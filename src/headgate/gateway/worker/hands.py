"""Serves clients in a worker, which asks the brain of its gateway what to do with each request.

The data path is the same Gateway as in one process. What differs: its dispatcher is a BrainPort; where a request's lane
depends on what replicas have cached, the brain is asked before the request is made; records go to the brain; what is
known of replicas and models, the brain tells.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Final

from headgate.config.gateway import Tenant
from headgate.gateway.account import Account
from headgate.gateway.catalog import ANY, NamesTold, unknown_model
from headgate.gateway.gateway import Gateway
from headgate.gateway.intake.accept import Accepted, Acceptor
from headgate.gateway.intake.asks import AskOpened
from headgate.gateway.long_bodies import our_error
from headgate.gateway.worker.brain_port import BrainPort
from headgate.gateway.worker.frames import UNSEEN
from headgate.model.errors import Gone, ServeError, UnknownModel
from headgate.model.record import Record
from headgate.wire.body.long_json import LONG_BYTES
from headgate.wire.exchange import Exchange

ANSWER_WITHIN_S: Final = 2.0
"""Seconds that the parsing thread waits for the brain; then nothing is known to be cached."""

Cached = tuple[int, dict[str, int]]
"""Cached tokens of any replica, and by lane."""


class WorkerAcceptor(Acceptor):
    """Accepts long bodies in the parsing thread, where the brain's answer can be waited for."""

    brain: BrainPort | None = None
    """None: not wired yet."""
    loop: asyncio.AbstractEventLoop | None = None

    def ask_of(self, brain: BrainPort, loop: asyncio.AbstractEventLoop) -> None:
        self.brain, self.loop = brain, loop

    def accept(self, exchange: Exchange, tenant: Tenant | None = None) -> Accepted:
        opened = self.open(exchange, tenant)
        lanes = self.lanes_in_question(opened)
        brain, loop = self.brain, self.loop
        if not lanes or brain is None or loop is None:
            return self.finish(opened, (0, {}))
        answer: concurrent.futures.Future[Cached] = concurrent.futures.Future()

        def heard(most: int, by_lane: dict[str, int]) -> None:
            if not answer.done():
                answer.set_result((most, by_lane))

        loop.call_soon_threadsafe(brain.ask, question(opened, lanes), heard)
        try:
            found = answer.result(ANSWER_WITHIN_S)
        except TimeoutError:
            found = (0, {})
        return self.finish(opened, found)

    def lanes_in_question(self, opened: AskOpened) -> list[str]:
        """The lanes that the request may be in, depending on what replicas have cached. Empty: it does not depend."""
        if not opened.prefix:
            return []
        shape, tenant = opened.ask.shape, opened.ask.tenant
        return self.intake.lanes_in_question(
            opened.lane_named, tenant, opened.prompt_tokens, shape.stream is True, shape.service_tier == "flex"
        )

    def finish(self, opened: AskOpened, found: Cached) -> Accepted:
        """Accepts a request of which this much is cached. Raises what `accept` does."""
        most, by_lane = found

        def cached(prefix: tuple[bytes, ...], link: float, tokens: int, model: str, lane: str | None) -> int:
            return most if lane is None else by_lane.get(lane, 0)

        lane, uncached = self.classified(opened, cached)
        return self.close(opened, lane, uncached)


class WorkerGateway(Gateway):
    def ask_of(self, brain: BrainPort, acceptor: WorkerAcceptor) -> None:
        """Reads requests with this acceptor and asks this brain from now on."""
        self.brain = brain
        self.reader = acceptor
        acceptor.ask_of(brain, asyncio.get_running_loop())
        brain.serve(self)

    def complete(self, exchange: Exchange) -> None:
        if len(exchange.body) > LONG_BYTES:
            self.long.take(exchange)
            return
        try:
            opened = self.reader.open(exchange)
            lanes = self.reader.lanes_in_question(opened)
        except ServeError as error:
            self.turn_away(exchange, error)
            return
        except Exception as flaw:
            self.turn_away(exchange, our_error(exchange.request_id, flaw))
            return
        if lanes:
            self.brain.ask(question(opened, lanes), lambda most, by_lane: self._go_on(opened, (most, by_lane)))
        else:
            self._go_on(opened, (0, {}))

    def _go_on(self, opened: AskOpened, found: Cached) -> None:
        """Enters a request, now that it is known what is cached of its prompt."""
        exchange = opened.ask.exchange
        try:
            if exchange.done:
                raise Gone("the client left while its request was being read")
            accepted = self.reader.finish(opened, found)
        except ServeError as error:
            self.turn_away(exchange, error)
        except Exception as flaw:
            self.turn_away(exchange, our_error(exchange.request_id, flaw))
        else:
            self.enter(exchange, accepted)


class WorkerAccount(Account):
    """Hands each record to the brain, which keeps them."""

    port: BrainPort | None = None
    """None: not wired yet."""
    also: Callable[[Record], None] | None = None
    """Hears of each record as well, for the access log; None: there is none."""

    def tell(self, port: BrainPort, also: Callable[[Record], None] | None = None) -> None:
        self.port, self.also = port, also

    def close(self, record: Record) -> None:
        if self.port is not None:
            self.port.record(record)
        if self.also is not None:
            self.also(record)

    def refuse(self, status: int, path: str) -> None:
        if self.port is not None:
            self.port.send(UNSEEN, (status, path))


class ToldNames:
    """The catalog of model names, as the brain told it."""

    def __init__(self) -> None:
        self.told = NamesTold(None, "", (), frozenset())

    def take(self, told: NamesTold) -> None:
        self.told = told

    def refuse_unknown(self, model: str) -> None:
        """Raises UnknownModel for a name that no replica has."""
        told = self.told  # read once: long bodies are parsed in another thread
        if told.known is not None and model not in told.known and model not in ANY:
            raise UnknownModel(unknown_model(model, list(told.shown)), param="model")

    def meant_by_default(self) -> str:
        """The name that `default` stands for; empty: `default` is passed on as it is."""
        return self.told.default


def question(opened: AskOpened, lanes: list[str]) -> tuple[object, ...]:
    """What the brain is asked of a prompt."""
    return (opened.prefix, opened.link_tokens, opened.prompt_tokens, opened.model, lanes)
