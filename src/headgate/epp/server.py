"""Serves Envoy's external processing (ext_proc) over gRPC: one stream for each request of a proxy.

    request headers ─→ request body, in pieces ─→ decided: endpoint, or a refusal ─→ (response, if it is shown) ─→ over

The answer to the headers is withheld until a replica has room: that is the queue. The end of the stream is the end of
the request; where the proxy shows the response too, its status, first token and usage count as well.
"""

import logging
import os
from typing import Any, Final

import grpc
from grpc.aio import EOF

from headgate.config.listen import EppConfig
from headgate.epp import answers
from headgate.epp.answers import BUFFERED, FULL_DUPLEX, HINT, SUBSET, Message
from headgate.epp.messages import ProcessingRequest, ProcessingResponse
from headgate.epp.observed import Observed
from headgate.epp.pick import Pick, TurnedAway
from headgate.epp.picker import COMPLETIONS, EndpointPicker
from headgate.model.errors import InvalidRequest, NotReady, ServeError, StartupError
from headgate.wire.errors import refusal_body
from headgate.wire.exchange import Exchange
from headgate.wire.limits import WireLimits
from headgate.wire.reader import SANE_ID, Ids

log = logging.getLogger(__name__)

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH: Final = "grpc.health.v1.Health"
SERVING, NOT_SERVING, UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
"""A HealthCheckResponse is one number."""
READY: Final = ("", "readiness", SERVICE)
"""Names under which proxies and Kubernetes ask whether requests would be served. `liveness`: whether it runs."""
MESSAGE_BYTES: Final = 4 << 20
STOP_S: Final = 2.0
JSON: Final = (("content-type", "application/json"),)


class PickStream:
    """One request of a proxy: messages in, answers out."""

    def __init__(self, picker: EndpointPicker, limits: WireLimits, ids: Ids) -> None:
        self._picker = picker
        self._limits = limits
        self._ids = ids
        self.pick: Pick | None = None
        self._body: list[bytes] = []
        self._bytes = 0
        self._mode = FULL_DUPLEX
        self._shows = FULL_DUPLEX
        self._sent = False
        """Whether the request is decided: what comes later is of its answer."""

    async def take(self, message: Any) -> list[Message]:
        """The answers to a message; none while more is needed."""
        if message.HasField("protocol_config"):
            self._mode = message.protocol_config.request_body_mode
            self._shows = message.protocol_config.response_body_mode
        kind = message.WhichOneof("request")
        if kind == "request_headers":
            return await self._on_headers(message)
        if self.pick is None:
            return []
        if kind == "request_body":
            return await self._on_body(message.request_body.body, message.request_body.end_of_stream)
        if kind == "request_trailers":
            told = [] if self._sent or self._mode != FULL_DUPLEX else await self._decide()
            return [*told, answers.go_on("request_trailers")]
        return self._on_answer(kind, message)

    def over(self) -> None:
        if self.pick is not None:
            self._picker.over(self.pick)

    async def _on_headers(self, message: Any) -> list[Message]:
        headers: dict[str, str] = {}
        for one in message.request_headers.headers.headers:
            value = one.raw_value.decode("latin-1") if one.raw_value else one.value
            name = one.key.lower()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        if self.pick is not None or len(headers) > self._limits.header_count:
            return []
        pick = self.pick = Pick(_subset(message, headers))
        pick.exchange = exchange = Exchange(pick, self._picker.clock())
        exchange.method = headers.pop(":method", "")
        exchange.path, _, exchange.query = headers.pop(":path", "").partition("?")
        given = headers.get("x-request-id", "")
        exchange.request_id = given if SANE_ID.fullmatch(given) else self._ids.next()
        exchange.keep_alive = True
        exchange.headers = {name: value for name, value in headers.items() if not name.startswith(":")}
        reads = exchange.method == "POST" and exchange.path in COMPLETIONS
        if message.request_headers.end_of_stream or not reads or self._mode not in (BUFFERED, FULL_DUPLEX):
            if reads:
                exchange.fail(InvalidRequest("a completion needs a body"))
            else:
                self._picker.ask_any(pick)
            self._sent = True
            return [answers.decided(await pick.decided)]
        return [answers.go_on("request_headers")] if self._mode == BUFFERED else []

    async def _on_body(self, body: bytes, end: bool) -> list[Message]:
        if self._sent:  # of a request that was decided by its headers
            return list(answers.request_body(body, end)) if self._mode == FULL_DUPLEX else []
        self._bytes += len(body)
        if self._bytes > self._limits.body_bytes:
            self._body.clear()
            self._sent = True
            told = refusal_body(413, f"the body is larger than {self._limits.body_bytes} bytes")
            return [answers.turn_away(TurnedAway(413, JSON, told))]
        self._body.append(body)
        return await self._decide() if end else []

    async def _decide(self) -> list[Message]:
        assert self.pick is not None
        pick, self._sent = self.pick, True
        body = pick.exchange.body = b"".join(self._body)
        self._body.clear()
        self._picker.ask(pick)
        decision = await pick.decided
        if isinstance(decision, TurnedAway):
            return [answers.turn_away(decision)]
        if self._mode == BUFFERED:
            return [answers.go_to_with_body(decision)]
        return [answers.go_to(decision), *answers.request_body(decision.body or body, True)]

    def _on_answer(self, kind: str, message: Any) -> list[Message]:
        assert self.pick is not None
        now = self._picker.clock()
        if kind == "response_headers":
            told = {one.key: one.raw_value or one.value.encode() for one in message.response_headers.headers.headers}
            status = told.get(":status", b"200")
            stream = told.get("content-type", b"").startswith(b"text/event-stream")
            self.pick.observed = Observed(int(status) if status.isdigit() else 200, stream)
            if message.response_headers.end_of_stream:
                self.pick.observed.end(now)
            return [answers.go_on("response_headers")]
        if kind == "response_trailers":
            if self.pick.observed is not None:
                self.pick.observed.end(now)
            return [answers.go_on("response_trailers")]
        part = message.response_body
        if self.pick.observed is not None and self.pick.observed.take(part.body, part.end_of_stream, now):
            self._picker.first(self.pick)
        return list(answers.response_body(part.body, part.end_of_stream, self._shows == FULL_DUPLEX))


class PickerServer:
    def __init__(self, config: EppConfig, picker: EndpointPicker, limits: WireLimits) -> None:
        self._config = config
        self._picker = picker
        self._limits = limits
        self._ids = Ids(f"epp-{os.urandom(4).hex()}")
        self._server: Any = None
        self._draining = False

    async def listen(self) -> str:
        """Listens, and returns the address."""
        options = [("grpc.max_receive_message_length", MESSAGE_BYTES), ("grpc.so_reuseport", 0)]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((_Routes(self),))
        host = f"[{self._config.host}]" if ":" in self._config.host else self._config.host
        where = f"{host}:{self._config.port}"
        try:
            port = self._server.add_insecure_port(where)
        except RuntimeError as error:
            raise StartupError(f"epp: can't listen on {where}: {error}; give another epp.port") from error
        await self._server.start()
        return f"{host}:{port}"

    def drain(self) -> None:
        """Tells proxies that it is going: its health is no more SERVING."""
        self._draining = True

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(STOP_S)

    async def process(self, _requests: Any, context: Any) -> None:
        stream = PickStream(self._picker, self._limits, self._ids)
        if len(self._picker) >= self._config.streams:
            refused = Pick(None)
            refused.exchange = Exchange(refused, self._picker.clock())
            refused.exchange.fail(NotReady(f"{self._config.streams} requests are open: the picker takes no more"))
            await context.write(answers.decided(await refused.decided))
            return
        try:
            while (message := await context.read()) is not EOF:
                for answer in await stream.take(message):
                    await context.write(answer)
        except ServeError as error:
            log.warning("a proxy's stream broke: %s", error)
        finally:
            stream.over()

    async def health(self, request: bytes, context: Any) -> bytes:
        service = request[2:].decode("utf-8", "replace")  # field 1, a short string
        if service == "liveness":
            return SERVING
        if service not in READY:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {service!r}")
        return SERVING if self._picker.ready and not self._draining else NOT_SERVING


class _Routes(grpc.GenericRpcHandler):
    def __init__(self, server: PickerServer) -> None:
        self._process = grpc.stream_stream_rpc_method_handler(
            server.process, ProcessingRequest.FromString, ProcessingResponse.SerializeToString
        )
        self._health = grpc.unary_unary_rpc_method_handler(server.health)

    def service(self, handler_call_details: Any) -> Any:
        return {f"/{SERVICE}/Process": self._process, f"/{HEALTH}/Check": self._health}.get(handler_call_details.method)


def _subset(message: Any, headers: dict[str, str]) -> frozenset[str] | None:
    """Addresses that the proxy allows, from its metadata or a header; None: all."""
    found: list[str] = []
    hints = message.metadata_context.filter_metadata
    if HINT in hints and SUBSET in hints[HINT].fields:
        value = hints[HINT].fields[SUBSET]
        if value.HasField("list_value"):
            found = [one.string_value for one in value.list_value.values]
        else:
            found = value.string_value.split(",")
    elif SUBSET in headers:
        found = headers[SUBSET].split(",")
    else:
        return None
    return frozenset(one.strip() for one in found if one.strip())
