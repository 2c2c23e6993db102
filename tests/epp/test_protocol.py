"""What a proxy may say to the endpoint picker, in order and out of it, over a real gRPC connection."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from headgate.config.gateway import GatewayConfig
from headgate.config.listen import EppConfig
from headgate.gateway.catalog import Catalog
from headgate.gateway.gateway import Gateway
from headgate.model.clock import monotonic
from headgate.model.event import Probed, ReplicaJoined, ReplicaLeft
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.replica.http import Connections
from headgate.wire.limits import WireLimits
from headgate.wiring.gateway import build_gateway
from tests.wire.serving import live, until

grpc = pytest.importorskip("grpc", reason="no grpcio (pip install 'headgate[epp]')")
from headgate.epp import messages as proto  # noqa: E402

DUPLEX, BUFFERED, STREAMED = 4, 2, 1
ASK = b'{"model":"default","messages":[{"role":"user","content":"Say hello."}],"stream":true,"max_tokens":40}'


@dataclass
class Talking:
    gateway: Gateway
    server: Any
    channel: Any

    def stream(self) -> Any:
        return self.channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
            request_serializer=proto.ProcessingRequest.SerializeToString,
            response_deserializer=proto.ProcessingResponse.FromString,
        )()

    async def healthy(self, service: str) -> int:
        call = self.channel.unary_unary("/grpc.health.v1.Health/Check")
        name = service.encode()
        answer: bytes = await call(b"\n" + bytes([len(name)]) + name if name else b"")
        return answer[1]

    async def over(self) -> Any:
        await until(lambda: not self.gateway.tickets)
        return self.gateway.account.records[-1]


@asynccontextmanager
async def picker(
    slots: int = 4, replicas: int = 2, streams: int = 100, limits: WireLimits | None = None
) -> AsyncIterator[Talking]:
    from headgate.epp.picker import EndpointPicker
    from headgate.epp.server import PickerServer

    gateway = build_gateway(GatewayConfig(), monotonic, 1)
    catalog = Catalog(gateway.placing.places, gateway.hear)
    gateway.acceptor.serve_names(catalog)
    for number in range(replicas):
        replica = Replica(id=f"r{number}", url=f"http://10.0.0.{number + 1}:8000", slots=slots)
        gateway.placing.join(replica, Connections(replica.url, clock=monotonic))
        catalog.look_again()
        gateway.hear(ReplicaJoined(replica))
        gateway.hear(Probed(replica.id, ok=True))
    server = PickerServer(
        EppConfig(port=0, streams=streams), EndpointPicker(gateway, monotonic), limits or WireLimits()
    )
    where = await server.listen()
    async with grpc.aio.insecure_channel(where) as channel:
        yield Talking(gateway, server, channel)
    await server.close()
    await gateway.finish(0)


def headers(
    end: bool = False, mode: int | None = DUPLEX, shows: int = 0, path: str = "/v1/chat/completions", **more: str
) -> Any:
    pairs = {":method": "POST", ":path": path, "content-type": "application/json", **more}
    message = proto.ProcessingRequest(request_headers=proto.CLASSES["HttpHeaders"](end_of_stream=end))
    for name, value in pairs.items():
        one = message.request_headers.headers.headers.add()
        one.key, one.raw_value = name.replace("_", "-"), value.encode()
    if mode is not None:
        message.protocol_config.request_body_mode = mode
        message.protocol_config.response_body_mode = shows
    return message


def body(data: bytes = ASK, end: bool = True) -> Any:
    return proto.ProcessingRequest(request_body=proto.CLASSES["HttpBody"](body=data, end_of_stream=end))


def answer_headers(status: str, kind: str = "text/event-stream", end: bool = False) -> Any:
    message = proto.ProcessingRequest(response_headers=proto.CLASSES["HttpHeaders"](end_of_stream=end))
    for name, value in ((":status", status), ("content-type", kind)):
        one = message.response_headers.headers.headers.add()
        one.key, one.raw_value = name, value.encode()
    return message


def answer_body(data: bytes, end: bool = False) -> Any:
    return proto.ProcessingRequest(response_body=proto.CLASSES["HttpBody"](body=data, end_of_stream=end))


def endpoints(answer: Any, where: str = "request_headers") -> list[str]:
    """The endpoints that an answer names: the same in its header and in its metadata."""
    response = getattr(answer, where).response
    (found,) = [
        one.header.raw_value.decode() for one in response.header_mutation.set_headers if "endpoint" in one.header.key
    ]
    assert answer.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"] == found
    return str(found).split(",")


async def whole_body(call: Any) -> bytes:
    """The body that the proxy is told to send; every piece is small enough for it, and only the last ends it."""
    pieces = []
    while True:
        streamed = (await call.read()).request_body.response.body_mutation.streamed_response
        assert len(streamed.body) <= 62_000
        pieces.append(streamed.body)
        if streamed.end_of_stream:
            return b"".join(pieces)


@live
async def test_headers_come_first_then_the_body_in_pieces_and_the_close_is_the_end() -> None:
    async with picker() as talking:
        call = talking.stream()
        long = json.dumps({"model": "default", "messages": [{"role": "user", "content": "word " * 40_000}]}).encode()
        await call.write(headers())
        for at in range(0, len(long), 50_000):
            await call.write(body(long[at : at + 50_000], end=at + 50_000 >= len(long)))
        answer = await call.read()
        assert answer.WhichOneof("response") == "request_headers"
        assert set(endpoints(answer)) == {"10.0.0.1:8000", "10.0.0.2:8000"}
        sent = json.loads(await whole_body(call))
        assert sent["messages"] == json.loads(long)["messages"]
        assert len(talking.gateway.tickets) == 1, "it runs until the proxy closes its stream"
        await call.done_writing()
        assert (await talking.over()).outcome is Outcome.COMPLETED
        assert await call.read() is grpc.aio.EOF


@live
async def test_the_body_is_ours_capped_and_without_what_the_client_did_not_ask_for() -> None:
    async with picker() as talking:
        call = talking.stream()
        await call.write(headers())
        await call.write(body(b'{"model":"default","messages":[{"role":"user","content":"x"}],"stream":true}'))
        length = {
            one.header.key: one.header.raw_value
            for one in (await call.read()).request_headers.response.header_mutation.set_headers
        }
        told = await whole_body(call)
        assert json.loads(told)["max_tokens"] == 384
        assert "stream_options" not in json.loads(told)
        assert int(length["content-length"]) == len(told)
        call.cancel()
        assert (await talking.over()).outcome is Outcome.COMPLETED


@live
async def test_a_buffered_body_is_answered_with_the_endpoint() -> None:
    async with picker() as talking:
        call = talking.stream()
        await call.write(headers(mode=BUFFERED))
        assert (await call.read()).WhichOneof("response") == "request_headers"
        await call.write(body())
        assert len(endpoints(await call.read(), "request_body")) == 2
        await call.done_writing()
        await talking.over()


@live
@pytest.mark.parametrize("shows", [STREAMED, DUPLEX])
async def test_a_shown_answer_tells_status_first_token_usage_and_its_end(shows: int) -> None:
    async with picker() as talking:
        call = talking.stream()
        await call.write(headers(shows=shows))
        await call.write(body())
        await call.read()
        await whole_body(call)
        await call.write(answer_headers("200"))
        assert (await call.read()).WhichOneof("response") == "response_headers"
        said = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\ndata: [DONE]\n\n'
        for part, end in ((said, False), (said + usage, True)):
            await call.write(answer_body(part, end))
            echoed = (await call.read()).response_body.response.body_mutation.streamed_response
            assert (echoed.body, echoed.end_of_stream) == ((part, end) if shows == DUPLEX else (b"", False))
        await call.done_writing()
        record = await talking.over()
        assert (record.outcome, record.prompt_tokens, record.output_tokens) == (Outcome.COMPLETED, 9, 3)
        assert record.ttft_s is not None


@live
@pytest.mark.parametrize(
    ("status", "outcome"), [("503", Outcome.REPLICA_FAILED), ("400", Outcome.INVALID), ("200", Outcome.CANCELLED)]
)
async def test_a_shown_failure_or_an_answer_that_breaks_off_is_no_success(status: str, outcome: Outcome) -> None:
    async with picker() as talking:
        call = talking.stream()
        await call.write(headers(shows=DUPLEX))
        await call.write(body())
        await call.read()
        await whole_body(call)
        await call.write(answer_headers(status, "application/json", end=status != "200"))
        await call.read()
        call.cancel()
        assert (await talking.over()).outcome is outcome


@live
async def test_a_request_waits_for_room_and_one_that_leaves_the_queue_is_cancelled() -> None:
    async with picker(slots=1, replicas=1) as talking:
        first, second = talking.stream(), talking.stream()
        await first.write(headers())
        await first.write(body())
        await first.read()
        await second.write(headers())
        await second.write(body())
        await until(lambda: len(talking.gateway.tickets) == 2)
        second.cancel()
        await until(lambda: len(talking.gateway.tickets) == 1)
        assert talking.gateway.account.records[-1].outcome is Outcome.CANCELLED
        third = talking.stream()
        await third.write(headers())
        await third.write(body())
        await first.done_writing()
        assert endpoints(await third.read()) == ["10.0.0.1:8000"]
        third.cancel()
        await talking.over()


@live
async def test_without_a_body_any_replica_and_a_completion_without_one_is_refused() -> None:
    async with picker() as talking:
        call = talking.stream()
        await call.write(headers(end=True, path="/v1/models"))
        assert len(endpoints(await call.read())) == 2
        await call.done_writing()
        call = talking.stream()
        await call.write(headers(end=True))
        assert (await call.read()).immediate_response.status.code == 400
        await call.done_writing()
        await until(lambda: not talking.server._picker)
        talking.gateway.hear(ReplicaLeft("r0"))
        talking.gateway.hear(ReplicaLeft("r1"))
        call = talking.stream()
        await call.write(headers(end=True, path="/v1/models"))
        assert (await call.read()).immediate_response.status.code == 503


@live
async def test_a_body_over_the_limit_and_too_many_streams_are_refused() -> None:
    async with picker(streams=1, limits=WireLimits(body_bytes=1000)) as talking:
        call = talking.stream()
        await call.write(headers())
        await call.write(body(b"x" * 1001, end=False))
        refused = (await call.read()).immediate_response
        assert (refused.status.code, b"1000 bytes" in refused.body) == (413, True)
        await call.write(body(b"more"))
        call.cancel()
        held = talking.stream()
        await held.write(headers())
        await held.write(body())
        await held.read()
        more = talking.stream()
        await more.write(headers())
        assert (await more.read()).immediate_response.status.code == 503
        held.cancel()
        await talking.over()


@live
@pytest.mark.parametrize(
    "messages",
    [
        [body()],
        [answer_body(b"x")],
        [headers(), headers(), body(b"", end=False)],
        [headers(), answer_headers("nonsense")],
        [headers(), proto.ProcessingRequest(request_trailers=proto.CLASSES["HttpTrailers"]())],
        [headers(), body(b"\xff\x00 not JSON")],
        [headers(), body(b"[" * 5000)],
        [headers(mode=None), body(b"{}"), body(b"{}"), answer_body(b"data: x", True), answer_headers("200")],
        [headers(path="\r\nx: y"), body()],
        [proto.ProcessingRequest()],
    ],
)
async def test_nonsense_harms_only_its_own_stream(messages: list[Any]) -> None:
    async with picker() as talking:
        call = talking.stream()
        for message in messages:
            await call.write(message)
        await asyncio.sleep(0)
        call.cancel()
        await until(lambda: not talking.gateway.tickets and not talking.server._picker)
        call = talking.stream()
        await call.write(headers())
        await call.write(body())
        assert len(endpoints(await call.read())) == 2
        call.cancel()
        await talking.over()


@live
async def test_health_says_whether_requests_would_be_served() -> None:
    async with picker() as talking:
        for service in ("", "readiness", "liveness", "envoy.service.ext_proc.v3.ExternalProcessor"):
            assert await talking.healthy(service) == 1
        with pytest.raises(grpc.aio.AioRpcError):
            await talking.healthy("another")
        talking.server.drain()
        assert await talking.healthy("readiness") == 2
        assert await talking.healthy("liveness") == 1
