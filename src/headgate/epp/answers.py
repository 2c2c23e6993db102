"""Builds the messages with which an endpoint picker answers Envoy (envoy.service.ext_proc.v3)."""

from collections.abc import Iterator
from typing import Any, Final

from headgate.epp.messages import ProcessingResponse
from headgate.epp.pick import Decision, Endpoints, TurnedAway

ENDPOINT: Final = "x-gateway-destination-endpoint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
LB: Final = "envoy.lb"
HINT: Final = "envoy.lb.subset_hint"
DROPPED: Final = "x-llm-d-request-dropped-reason"
CHUNK_BYTES: Final = 62_000
"""Maximum bytes of a body in one message: Envoy takes 64 KiB at a time."""
BUFFERED: Final = 2
FULL_DUPLEX: Final = 4
"""Modes in which Envoy sends a body, by their number in the protocol."""
OVERWRITE: Final = 2
"""An added header takes the place of one of that name."""

Message = Any
"""A ProcessingResponse."""


def _go_to(common: Any, answer: Message, chosen: Endpoints) -> Message:
    """Fills in where the request goes: in a header for the route, in metadata for the load balancer."""
    endpoints = ",".join(chosen.endpoints)
    _set(common.header_mutation, ENDPOINT, endpoints.encode())
    if chosen.body is not None:
        _set(common.header_mutation, "content-length", str(len(chosen.body)).encode())
    common.clear_route_cache = True
    answer.dynamic_metadata.get_or_create_struct(LB)[ENDPOINT] = endpoints
    return answer


def _set(mutation: Any, name: str, value: bytes) -> None:
    option = mutation.set_headers.add()
    option.header.key, option.header.raw_value, option.append_action = name, value, OVERWRITE


def decided(decision: Decision) -> Message:
    """The answer to the headers of a request without a body."""
    return turn_away(decision) if isinstance(decision, TurnedAway) else go_to(decision)


def go_to(chosen: Endpoints) -> Message:
    """The answer to the request's headers."""
    answer = ProcessingResponse()
    return _go_to(answer.request_headers.response, answer, chosen)


def go_to_with_body(chosen: Endpoints) -> Message:
    """The answer to a buffered body."""
    answer = ProcessingResponse()
    common = answer.request_body.response
    if chosen.body is not None:
        common.body_mutation.body = chosen.body
    return _go_to(common, answer, chosen)


def go_on(part: str) -> Message:
    """The part, by its name in the message, goes on as it is."""
    answer = ProcessingResponse()
    getattr(answer, part).SetInParent()
    return answer


def request_body(body: bytes, end: bool) -> Iterator[Message]:
    """A streamed body, in pieces that Envoy takes."""
    for piece, last in _pieces(body):
        answer = ProcessingResponse()
        streamed = answer.request_body.response.body_mutation.streamed_response  # in place: no message is copied
        streamed.body, streamed.end_of_stream = piece, end and last
        yield answer


def response_body(body: bytes, end: bool, duplex: bool) -> Iterator[Message]:
    """The answer to a part of the replica's answer: it goes on as it is."""
    if not duplex:
        yield go_on("response_body")
        return
    for piece, last in _pieces(body):
        answer = ProcessingResponse()
        streamed = answer.response_body.response.body_mutation.streamed_response
        streamed.body, streamed.end_of_stream = piece, end and last
        yield answer


def turn_away(refusal: TurnedAway) -> Message:
    answer = ProcessingResponse()
    immediate = answer.immediate_response
    immediate.status.code, immediate.body = refusal.status, refusal.body
    immediate.details = f"headgate_{refusal.status}"
    for name, value in refusal.headers:
        _set(immediate.headers, name, value.encode("latin-1", "replace"))
    if refusal.status in (429, 503):
        _set(immediate.headers, DROPPED, b"rate_limited" if refusal.status == 429 else b"saturated")
    return answer


def _pieces(body: bytes) -> Iterator[tuple[bytes, bool]]:
    """The body in pieces of at most CHUNK_BYTES, and whether each is the last. An empty body is one piece."""
    for at in range(0, max(1, len(body)), CHUNK_BYTES):
        yield body[at : at + CHUNK_BYTES], at + CHUNK_BYTES >= len(body)
