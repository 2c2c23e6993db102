"""Makes the OpenAPI 3.1 document from the router's own table and the description of each route in it."""

from collections.abc import Iterable
from typing import Any, Final

from headgate import __version__
from headgate.surface.api.admin import ADMIN
from headgate.surface.api.batches import OF_BATCHES
from headgate.surface.api.operation import Operation, Operations, Parameter, Who, ref
from headgate.surface.api.public import PUBLIC
from headgate.surface.api.schemas import schemas

OPERATIONS: Final[Operations] = {**PUBLIC, **OF_BATCHES, **ADMIN}
ABOUT: Final = (
    "One address in front of many language-model engines. Clients speak OpenAI's API; every answer has an "
    "`x-request-id`, by which its time can be looked into at /admin/requests/{id}. A refusal says what to do; one that "
    "is only for now has `retry-after` and `retry-after-ms`."
)
ERRORS: Final = {
    400: "Something in it has to change: `param` says what.",
    401: "The key is missing or unknown.",
    403: "A web page asks that is neither from here nor among `cors.origins`, or asks for a name that is not this "
    "gateway's (`listen.names`).",
    404: "No such model, path or request; or no replica of the model has this.",
    408: "The request came too slowly.",
    409: "The file is in use.",
    413: "The body is larger than is allowed.",
    415: "The content type is not application/json, or, for files, not multipart/form-data.",
    426: "A GET here opens a WebSocket.",
    429: "The tenant is over its limit; `retry-after` says when to come back. Every answer to it has `x-ratelimit-*`.",
    431: "The headers are larger than is allowed.",
    500: "Our fault.",
    502: "Every replica that was tried failed.",
    503: "Not now: it would wait too long, or no replica is ready. `retry-after` says when to come back.",
    504: "The replica fell silent.",
    507: "The folder of batches can't be written or read: it is full, or lost.",
}
SECURITY: Final[dict[Who, list[dict[str, list[str]]]]] = {
    "client": [{"key": []}, {}],
    "admin": [{"adminKey": []}, {}],
    "anybody": [{}],
}
LATER: Final = (429, 503)


def described(table: Iterable[tuple[str, str]]) -> Operations:
    """The described routes of a table, in the order of their descriptions."""
    known = set(table)
    return {route: operation for route, operation in OPERATIONS.items() if route in known}


def document(table: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The OpenAPI document; routes without a description are listed in `x-undescribed`."""
    table = list(table)
    paths: dict[str, dict[str, Any]] = {}
    operations = described(table)
    missing = [f"{method} {path}" for method, path in table if (method, path) not in OPERATIONS]
    for (method, path), operation in operations.items():
        paths.setdefault(operation.path or path, {})[method.lower()] = _operation(operation)
    tags = dict.fromkeys(operation.tag for operation in operations.values())
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headgate", "version": __version__, "description": ABOUT},
        "tags": [{"name": tag} for tag in tags],
        **({"x-undescribed": missing} if missing else {}),
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "responses": {f"Error{status}": _error(status, about) for status, about in ERRORS.items()},
            "headers": {
                "RequestId": {"description": "The request's id.", "schema": {"type": "string"}},
                "RetryAfter": {"description": "Seconds to wait.", "schema": {"type": "integer"}},
                "RetryAfterMs": {"description": "Milliseconds to wait.", "schema": {"type": "integer"}},
            },
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A tenant's key, where tenants have keys."},
                "adminKey": {"type": "http", "scheme": "bearer", "description": "One of `admin_keys`."},
            },
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {
        "tags": [operation.tag],
        "operationId": operation.name,
        "summary": operation.summary,
        "security": SECURITY[operation.who],
        "responses": {str(operation.status): _answer(operation)}
        | {str(status): {"$ref": f"#/components/responses/Error{status}"} for status in operation.errors},
    }
    if operation.about:
        made["description"] = operation.about
    if operation.parameters:
        made["parameters"] = [_parameter(parameter) for parameter in operation.parameters]
    if operation.body is not None:
        content: dict[str, Any] = {"schema": operation.body}
        if operation.example is not None:
            content["example"] = operation.example
        made["requestBody"] = {"required": operation.body_needed, "content": {operation.body_type: content}}
    return made


def _answer(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {operation.content_type: {"schema": operation.answer or {"type": "string"}}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string", "description": operation.streams}}
    about = "Switched to a WebSocket." if operation.status == 101 else "Done."
    headers = {"x-request-id": {"$ref": "#/components/headers/RequestId"}}
    return {"description": about, "headers": headers} | ({"content": content} if operation.status == 200 else {})


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.where == "path",
        "description": parameter.about,
        "schema": parameter.schema,
    }


def _error(status: int, about: str) -> dict[str, Any]:
    headers: dict[str, Any] = {"x-request-id": {"$ref": "#/components/headers/RequestId"}}
    if status in LATER:
        headers["retry-after"] = {"$ref": "#/components/headers/RetryAfter"}
        headers["retry-after-ms"] = {"$ref": "#/components/headers/RetryAfterMs"}
    return {"description": about, "headers": headers, "content": {"application/json": {"schema": ref("Error")}}}
