"""Builds the messages with which an endpoint picker answers Envoy (envoy.service.ext_proc.v3)."""

from collections.abc import Iterator
from typing import Any, Final

from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from envoy.type.v3.http_status_pb2 import HttpStatus
from google.protobuf.struct_pb2 import Struct

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
OVERWRITE: Final = HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD

Message = Any
"""A ProcessingResponse."""


def _headers_for(chosen: Endpoints) -> Any:
    where = HeaderValue(key=ENDPOINT, raw_value=",".join(chosen.endpoints).encode())
    mutation = ext_proc.HeaderMutation(set_headers=[HeaderValueOption(header=where, append_action=OVERWRITE)])
    if chosen.body is not None:
        length = HeaderValue(key="content-length", raw_value=str(len(chosen.body)).encode())
        mutation.set_headers.append(HeaderValueOption(header=length, append_action=OVERWRITE))
    return mutation


def _where(chosen: Endpoints) -> Struct:
    where = Struct()
    where.get_or_create_struct(LB)[ENDPOINT] = ",".join(chosen.endpoints)
    return where


def decided(decision: Decision) -> Message:
    """The answer to the headers of a request without a body."""
    return turn_away(decision) if isinstance(decision, TurnedAway) else go_to(decision)


def go_to(chosen: Endpoints) -> Message:
    """The answer to the request's headers."""
    common = ext_proc.CommonResponse(header_mutation=_headers_for(chosen), clear_route_cache=True)
    headers = ext_proc.HeadersResponse(response=common)
    return ext_proc.ProcessingResponse(request_headers=headers, dynamic_metadata=_where(chosen))


def go_to_with_body(chosen: Endpoints) -> Message:
    """The answer to a buffered body."""
    common = ext_proc.CommonResponse(header_mutation=_headers_for(chosen), clear_route_cache=True)
    if chosen.body is not None:
        common.body_mutation.body = chosen.body
    body = ext_proc.BodyResponse(response=common)
    return ext_proc.ProcessingResponse(request_body=body, dynamic_metadata=_where(chosen))


def go_on_headers() -> Message:
    return ext_proc.ProcessingResponse(request_headers=ext_proc.HeadersResponse())


def request_body(body: bytes, end: bool) -> Iterator[Message]:
    """A streamed body, in pieces that Envoy takes."""
    for piece, last in _pieces(body):
        answer = ext_proc.ProcessingResponse()
        streamed = answer.request_body.response.body_mutation.streamed_response  # in place: no message is copied
        streamed.body, streamed.end_of_stream = piece, end and last
        yield answer


def response_body(body: bytes, end: bool, duplex: bool) -> Iterator[Message]:
    """The answer to a part of the replica's answer: it goes on as it is."""
    if not duplex:
        yield ext_proc.ProcessingResponse(response_body=ext_proc.BodyResponse())
        return
    for piece, last in _pieces(body):
        answer = ext_proc.ProcessingResponse()
        streamed = answer.response_body.response.body_mutation.streamed_response
        streamed.body, streamed.end_of_stream = piece, end and last
        yield answer


def go_on_response_headers() -> Message:
    return ext_proc.ProcessingResponse(response_headers=ext_proc.HeadersResponse())


def request_trailers() -> Message:
    return ext_proc.ProcessingResponse(request_trailers=ext_proc.TrailersResponse())


def response_trailers() -> Message:
    return ext_proc.ProcessingResponse(response_trailers=ext_proc.TrailersResponse())


def turn_away(refusal: TurnedAway) -> Message:
    headers = [
        HeaderValueOption(header=HeaderValue(key=name, raw_value=value.encode("latin-1", "replace")))
        for name, value in refusal.headers
    ]
    if refusal.status in (429, 503):
        reason = HeaderValue(key=DROPPED, raw_value=b"rate_limited" if refusal.status == 429 else b"saturated")
        headers.append(HeaderValueOption(header=reason))
    return ext_proc.ProcessingResponse(
        immediate_response=ext_proc.ImmediateResponse(
            status=HttpStatus(code=refusal.status),
            headers=ext_proc.HeaderMutation(set_headers=headers),
            body=refusal.body,
            details=f"headgate_{refusal.status}",
        )
    )


def _pieces(body: bytes) -> Iterator[tuple[bytes, bool]]:
    """The body in pieces of at most CHUNK_BYTES, and whether each is the last. An empty body is one piece."""
    for at in range(0, max(1, len(body)), CHUNK_BYTES):
        yield body[at : at + CHUNK_BYTES], at + CHUNK_BYTES >= len(body)
