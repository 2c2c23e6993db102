"""Maps failures to HTTP: the one place where outcomes become statuses.

Bodies are OpenAI's: {"error": {"message", "type", "param", "code"}}.
"""

import math

import msgspec

from headgate.model.errors import ServeError
from headgate.model.outcome import Outcome

Headers = tuple[tuple[str, str], ...]

STATUS: dict[Outcome, int] = {
    Outcome.COMPLETED: 200,
    Outcome.TIME_CAP: 200,
    Outcome.CANCELLED: 499,  # nginx's status for a client that left; only logs see it
    Outcome.SLOW_CLIENT: 499,
    Outcome.INVALID: 400,
    Outcome.TOO_LONG: 400,
    Outcome.UNKNOWN_MODEL: 404,
    Outcome.UNAUTHORIZED: 401,
    Outcome.OVER_LIMIT: 429,
    Outcome.LANE_FULL: 503,  # not 429, which would say that this client sends too many requests
    Outcome.WOULD_WAIT_TOO_LONG: 503,
    Outcome.WAITED_TOO_LONG: 503,
    Outcome.NO_REPLICA: 503,
    Outcome.REPLICA_FAILED: 502,
    Outcome.REPLICA_STALLED: 504,
    Outcome.OUT_OF_TIME: 504,
    Outcome.QUEUE_FULL: 503,
    Outcome.NOT_READY: 503,
    Outcome.ENGINE_FAILED: 500,
}

CODES: dict[int, str] = {
    400: "bad_request",
    403: "foreign_page",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "body_too_large",
    415: "unsupported_media_type",
    426: "upgrade_required",
    431: "headers_too_large",
    503: "too_many_connections",
    505: "http_version_not_supported",
}
"""OpenAI's `code` for refusals that never reach a handler, and so have no Outcome."""

MESSAGES = "/v1/messages"
"""The path whose answers, errors included, are in Anthropic's format; also the beginning of those below it."""
KINDS: dict[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Anthropic's `type` of an error; all others are invalid_request_error below 500, and api_error from there on."""

_encode = msgspec.json.Encoder().encode


def error_body(error: ServeError) -> bytes:
    return _body(error.message, STATUS[error.outcome], error.param, error.code, error.kind)


def error_headers(error: ServeError) -> Headers:
    """openai-python reads `retry-after-ms` first; other clients know only whole seconds."""
    if error.retry_after_s is None:
        return error.headers
    wait_s = max(0.0, error.retry_after_s)
    seconds, milliseconds = str(math.ceil(wait_s)), str(math.ceil(wait_s * 1000))
    return (("retry-after", seconds), ("retry-after-ms", milliseconds), *error.headers)


def as_message_error(body: bytes, status: int, request_id: str) -> bytes:
    """An error in Anthropic's format, from one in OpenAI's. `status`: 0 in a stream, which has begun with 200: the
    error's own type tells then."""
    try:
        found = msgspec.json.decode(body)
        error = found["error"] if isinstance(found, dict) else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
        error = None
    given = error if isinstance(error, dict) else {"message": error if isinstance(error, str) else ""}
    kind = KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    if not status:
        kind = "invalid_request_error" if given.get("type") == "invalid_request_error" else "api_error"
    message = given.get("message")
    told: dict[str, object] = {"type": kind}
    told["message"] = message if isinstance(message, str) and message else f"status {status}"
    told |= {name: given[name] for name in ("param", "code") if isinstance(given.get(name), str)}
    if "code" in told:
        told["details"] = {"error_code": told["code"]}  # where Anthropic's clients look for it
    return _encode({"type": "error", "error": told, "request_id": request_id})


def refusal_body(status: int, message: str, code: str | None = None) -> bytes:
    """The body for a bare status, one of CODES; `code`: one to use instead."""
    return _body(message, status, None, code or CODES[status])


def _body(message: str, status: int, param: str | None, code: str | None, kind: str | None = None) -> bytes:
    if kind is None:
        kind = "server_error" if status >= 500 else "invalid_request_error"
    # A message may quote the client's own text: a lone surrogate in it must not break the error itself.
    text = message.encode("utf-8", "replace").decode()
    return _encode({"error": {"message": text, "type": kind, "param": param, "code": code}})
