"""Writes files, batches and lines of results as OpenAI's API shows them."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headgate.batches.forms.lines import InputLine

OVER: Final = frozenset(("completed", "failed", "expired", "cancelled"))
MOST_NAMED: Final = 100
"""Malformed lines that a batch names in `errors`; its error file has all."""
EXPIRED: Final = (
    "batch_expired",
    "This request could not be executed before the completion window expired.",
)
CANCELLED: Final = ("batch_cancelled", "This request was not executed: the batch was cancelled.")

_encode = msgspec.json.Encoder().encode
_STAMPS: Final = (
    "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at",
    "cancelled_at",
)  # fmt: skip


def file_object(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": row["id"],
        "object": "file",
        "bytes": row["bytes"],
        "created_at": row["created_at"],
        "expires_at": row["expires_at"],
        "filename": row["filename"],
        "purpose": row["purpose"],
        "status": "processed",
        "status_details": None,
    }


def batch_object(row: Mapping[str, Any]) -> dict[str, Any]:
    errors = msgspec.json.decode(row["errors"]) if row["errors"] else None
    told: dict[str, Any] = {
        "id": row["id"],
        "object": "batch",
        "endpoint": row["endpoint"],
        "model": row["model"],
        "errors": None if not errors else {"object": "list", "data": errors},
        "input_file_id": row["input_file_id"],
        "completion_window": row["window"],
        "status": row["status"],
        "output_file_id": row["output_file_id"],
        "error_file_id": row["error_file_id"],
        "created_at": row["created_at"],
        **{name: row[name] for name in _STAMPS},
        "request_counts": {name: row[name] for name in ("total", "completed", "failed")},
        "metadata": msgspec.json.decode(row["metadata"]) if row["metadata"] else None,
    }
    if row["status"] in OVER:
        told["usage"] = {
            "input_tokens": row["input_tokens"],
            "input_tokens_details": {"cached_tokens": row["cached_tokens"]},
            "output_tokens": row["output_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": row["input_tokens"] + row["output_tokens"],
        }
    return told


def page(found: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """One page of a list. `more`: others follow."""
    return {
        "object": "list",
        "data": found,
        "first_id": found[0]["id"] if found else None,
        "last_id": found[-1]["id"] if found else None,
        "has_more": more,
    }


def named_flaw(line: InputLine) -> dict[str, Any]:
    """A malformed line, as a batch's `errors` names it."""
    return {"code": "invalid_line", "line": line.number, "message": line.flaw, "param": line.param}


# -- lines of results -------------------------------------------------------------------------------------------


def answered_line(batch_id: str, number: int, custom_id: str | None, status: int, body: bytes) -> bytes:
    """The result of a line that was answered, well or badly."""
    told = body if _is_json(body) else _encode(body.decode("utf-8", "replace"))
    head = _encode({"id": line_id(batch_id, number), "custom_id": custom_id})[:-1]
    return b'%b,"response":{"status_code":%d,"request_id":%b,"body":%b},"error":null}' % (
        head,
        status,
        _encode(request_id(batch_id, number)),
        told.replace(b"\n", b" ").replace(b"\r", b" "),  # between tokens only: in strings JSON escapes them
    )


def failed_line(
    batch_id: str, number: int, custom_id: str | None, code: str, message: str, param: str | None = None
) -> bytes:
    """The result of a line that was never answered."""
    error = {"code": code, "message": message, "line": number}
    if param is not None:
        error["param"] = param
    told = {"id": line_id(batch_id, number), "custom_id": custom_id, "response": None, "error": error}
    return _encode(told)


def line_id(batch_id: str, number: int) -> str:
    return f"batch_req_{batch_id.removeprefix('batch_')}_{number}"


def request_id(batch_id: str, number: int) -> str:
    """The id of a line's request, in records and traces."""
    return f"{batch_id}-{number}"


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


class _Used(msgspec.Struct):
    usage: _Usage | None = None


_used = msgspec.json.Decoder(_Used).decode


def tokens_of(body: bytes) -> tuple[int, int, int]:
    """(input, cached, output) tokens that an answer reports; 0 where it does not say."""
    try:
        usage = _used(body).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0, 0, 0
    if usage is None:
        return 0, 0, 0
    details = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
    read = (
        usage.prompt_tokens or usage.input_tokens,
        details.cached_tokens,
        usage.completion_tokens or usage.output_tokens,
    )
    cut = [min(1 << 40, max(0, value or 0)) for value in read]
    return cut[0], cut[1], cut[2]


def _is_json(body: bytes) -> bool:
    try:
        body.decode()
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
