"""Answers POST /v1/messages/count_tokens: how many tokens the prompt of such a request has.

A replica of the model counts, where its engine has /tokenize for chats: with its own template and vocabulary, tools
included. Where none has, or it does not answer in time, the answer is the gateway's estimate from the bytes of the
text, which it has learned from the usage of earlier requests, and a header says so. Nothing is served: no record is
left, and of a tenant's limits nothing is used.
"""

import asyncio
from typing import Any, Final

import msgspec

from headgate.gateway.gateway import Gateway
from headgate.gateway.intake.accept import Accepted
from headgate.gateway.long_bodies import our_error
from headgate.gateway.placing import Endpoint
from headgate.model.errors import QueueFull, ReplicaFailed, ServeError
from headgate.replica.http import Once, request_head
from headgate.wire.body.long_json import LONG_BYTES
from headgate.wire.exchange import Exchange

TOKENIZE: Final = "/tokenize"
MOST_S: Final = 2.0
"""Seconds that a replica may take to count."""
MOST_COUNTING: Final = 64
"""Requests that are counted at the same time; more are refused."""
MOST_TOKENS: Final = 1_000_000_000
ESTIMATE: Final = (("x-headgate-estimate", "true"),)
COUNTED: Final = ("messages", "tools", "chat_template_kwargs", "continue_final_message", "add_generation_prompt")
"""Fields of a chat that its prompt is made of."""

_encode: Final = msgspec.json.Encoder().encode


class Counted(msgspec.Struct):
    count: int


class TokenCountRoute:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._counting: set[asyncio.Task[None]] = set()

    def serve(self, exchange: Exchange) -> None:
        if len(exchange.body) > LONG_BYTES:
            self._gateway.long.take(exchange, enter=self._enter, turn_away=self._turn_away)
        else:
            self._count(exchange, self._gateway.acceptor.accept(exchange))

    def _enter(self, exchange: Exchange, accepted: Accepted) -> None:
        """Takes a long body that was parsed in another thread."""
        self._gateway.held.drop(exchange)
        try:
            self._count(exchange, accepted)
        except ServeError as error:
            exchange.fail(error)
        except Exception as flaw:
            exchange.fail(our_error(exchange.request_id, flaw))

    def _turn_away(self, exchange: Exchange, error: ServeError, tenant: str) -> None:
        self._gateway.held.drop(exchange)
        exchange.fail(error)

    def _count(self, exchange: Exchange, accepted: Accepted) -> None:
        if len(self._counting) >= MOST_COUNTING:
            raise QueueFull(f"{MOST_COUNTING} prompts are being counted already")
        exchange.voice = exchange.renames = None  # they are for answers of engines
        place = self._place(accepted.request.model)
        if place is None:
            self._estimate(exchange, accepted)
            return
        task = asyncio.get_running_loop().create_task(self._ask(exchange, accepted, place))
        self._counting.add(task)
        task.add_done_callback(self._counting.discard)

    def _place(self, model: str) -> Endpoint | None:
        """The replica of this model that has answered last, of those that can count; None: none can."""
        found: Endpoint | None = None
        for place in self._gateway.placing.places.values():
            names = place.replica.names
            fits = place.dialect.counts_chats and (not names or model in names)
            if fits and (found is None or place.answered_at > found.answered_at):
                found = place
        return found

    async def _ask(self, exchange: Exchange, accepted: Accepted, place: Endpoint) -> None:
        try:
            listener = Once(asyncio.get_running_loop().create_future())
            head = request_head(TOKENIZE, place.connections.host)
            call = place.connections.send(head, _encode(self._body(accepted, place)), listener)
            try:
                async with asyncio.timeout(MOST_S):
                    status, body = await listener.answer
            finally:
                call.cancel()
            count = msgspec.json.decode(body, type=Counted).count if status == 200 else 0
            if not 0 < count <= MOST_TOKENS:
                raise ReplicaFailed(f"it counted {count} tokens, with status {status}")
        except (ReplicaFailed, TimeoutError, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._estimate(exchange, accepted)
        except Exception as flaw:
            exchange.fail(our_error(exchange.request_id, flaw))
        else:
            exchange.respond(200, _encode({"input_tokens": count}))

    def _body(self, accepted: Accepted, place: Endpoint) -> dict[str, Any]:
        replica, model, body = place.replica, accepted.request.model, accepted.whole()
        if replica.served_as is not None and model == replica.model:
            model = replica.served_as
        elif place.default_model and model == "default":
            model = place.default_model
        return {"model": model, **{name: body[name] for name in COUNTED if name in body}}

    def _estimate(self, exchange: Exchange, accepted: Accepted) -> None:
        exchange.respond(200, _encode({"input_tokens": accepted.request.prompt_tokens}), headers=ESTIMATE)
