"""Defines the messages of envoy.service.ext_proc.v3 that a picker reads and writes, by their numbers in the protocol.

The published Python package of Envoy's messages brings an older copy of OpenTelemetry's along, which overwrites the one
that traces are encoded with. So the few that are needed are declared here; fields that are not are skipped by protobuf.
Enumerations are declared as the whole numbers that they are on the wire.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

PACKAGE: Final = "headgate.ext_proc"
STRUCT: Final = ".google.protobuf.Struct"
_TEXT, _BYTES, _FLAG, _NUMBER = 9, 12, 8, 5
"""Types of fields, by their numbers in descriptor.proto. All others are messages."""
_MESSAGE: Final = 11
_MAP_ENTRY: Final = "FilterMetadataEntry"

MESSAGES: Final[dict[str, dict[str, tuple[int, int | str]]]] = {
    "HeaderValue": {"key": (1, _TEXT), "value": (2, _TEXT), "raw_value": (3, _BYTES)},
    "HeaderMap": {"headers*": (1, "HeaderValue")},
    "HeaderValueOption": {"header": (1, "HeaderValue"), "append_action": (3, _NUMBER)},
    "HeaderMutation": {"set_headers*": (1, "HeaderValueOption")},
    "HttpHeaders": {"headers": (1, "HeaderMap"), "end_of_stream": (3, _FLAG)},
    "HttpBody": {"body": (1, _BYTES), "end_of_stream": (2, _FLAG)},
    "HttpTrailers": {"trailers": (1, "HeaderMap")},
    _MAP_ENTRY: {"key": (1, _TEXT), "value": (2, STRUCT)},
    "Metadata": {"filter_metadata*": (1, _MAP_ENTRY)},
    "ProtocolConfiguration": {"request_body_mode": (1, _NUMBER), "response_body_mode": (2, _NUMBER)},
    "ProcessingRequest": {
        "request|request_headers": (2, "HttpHeaders"),
        "request|response_headers": (3, "HttpHeaders"),
        "request|request_body": (4, "HttpBody"),
        "request|response_body": (5, "HttpBody"),
        "request|request_trailers": (6, "HttpTrailers"),
        "request|response_trailers": (7, "HttpTrailers"),
        "metadata_context": (8, "Metadata"),
        "protocol_config": (11, "ProtocolConfiguration"),
    },
    "StreamedBodyResponse": {"body": (1, _BYTES), "end_of_stream": (2, _FLAG)},
    "BodyMutation": {"mutation|body": (1, _BYTES), "mutation|streamed_response": (3, "StreamedBodyResponse")},
    "CommonResponse": {
        "header_mutation": (2, "HeaderMutation"),
        "body_mutation": (3, "BodyMutation"),
        "clear_route_cache": (5, _FLAG),
    },
    "HeadersResponse": {"response": (1, "CommonResponse")},
    "BodyResponse": {"response": (1, "CommonResponse")},
    "TrailersResponse": {"header_mutation": (1, "HeaderMutation")},
    "HttpStatus": {"code": (1, _NUMBER)},
    "ImmediateResponse": {
        "status": (1, "HttpStatus"),
        "headers": (2, "HeaderMutation"),
        "body": (3, _BYTES),
        "details": (5, _TEXT),
    },
    "ProcessingResponse": {
        "response|request_headers": (1, "HeadersResponse"),
        "response|response_headers": (2, "HeadersResponse"),
        "response|request_body": (3, "BodyResponse"),
        "response|response_body": (4, "BodyResponse"),
        "response|request_trailers": (5, "TrailersResponse"),
        "response|response_trailers": (6, "TrailersResponse"),
        "response|immediate_response": (7, "ImmediateResponse"),
        "dynamic_metadata": (8, STRUCT),
    },
}
"""By message: its fields, with their numbers and types. `*`: repeated; what stands before `|`: one of several."""


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="headgate/ext_proc.proto", package=PACKAGE, syntax="proto3")
    file.dependency.append("google/protobuf/struct.proto")
    for name, fields in MESSAGES.items():
        if name == _MAP_ENTRY:  # the entry of a map is a message within the one that has the map
            continue
        message = file.message_type.add(name=name)
        if name == "Metadata":
            entry = message.nested_type.add(name=_MAP_ENTRY)
            entry.options.map_entry = True
            _declare(entry, MESSAGES[_MAP_ENTRY])
        _declare(message, fields)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    names = [name for name in MESSAGES if name != _MAP_ENTRY]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in names}


def _declare(message: Any, fields: dict[str, tuple[int, int | str]]) -> None:
    for key, (number, kind) in fields.items():
        group, _, name = key.rpartition("|")
        field = message.field.add(name=name.rstrip("*"), number=number, label=3 if name.endswith("*") else 1)
        if isinstance(kind, int):
            field.type = kind
        else:
            inside = f"Metadata.{kind}" if kind == _MAP_ENTRY else kind
            field.type, field.type_name = _MESSAGE, kind if kind == STRUCT else f".{PACKAGE}.{inside}"
        if group:
            if group not in [one.name for one in message.oneof_decl]:
                message.oneof_decl.add(name=group)
            field.oneof_index = 0


CLASSES: Final = _classes()
ProcessingRequest: Final = CLASSES["ProcessingRequest"]
ProcessingResponse: Final = CLASSES["ProcessingResponse"]
