"""Writes an answer in the format of /v1/responses.

An engine's own events get their names back (Native). An end that the gateway writes in the replica's place comes as
chat events, and is translated. A chat's events are translated by gateway/answer/response_bridge.py. Both are Voices of
an Exchange, so that everything before the exchange (relay, bounds, failover) is the same as for chats.
"""

from contextlib import suppress
from typing import Any, Final

import msgspec

from headgate.replica.mend import mended
from headgate.replica.openai import decode_event, encode_told, is_error

DONE: Final = b"[DONE]"
MOST_KEPT: Final = 1024 * 1024
"""Characters of text (Native: bytes of it in JSON) that are kept for the last event. A longer text is left
out of it."""
NO_CHAT: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError)
"""Exceptions of reading something as a chat that is not one."""


class ResponseEvent(msgspec.Struct):
    """The fields of an engine's event that the gateway reads."""

    type: str = ""
    delta: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()
    message: str | None = None
    code: str | int | None = None


_decode_said = msgspec.json.Decoder(ResponseEvent).decode


def read_said(data: bytes) -> ResponseEvent:
    """Decodes an engine's event. Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError."""
    try:
        return _decode_said(data)
    except (msgspec.DecodeError, RecursionError):
        return _decode_said(mended(data))  # e.g. half a character, which is passed on as it is


def sse(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode("ascii", "replace"), data)


def skeleton(body: dict[str, Any], name: str, model: str, created: float) -> dict[str, Any]:
    """The response object of a response to this request that has just begun."""
    return {
        "id": name,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": body.get("temperature"),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p"),
        "truncation": "disabled",
        "usage": None,
        "user": body.get("user"),
    }


class Ending:
    """How a chat ended, and its usage."""

    def __init__(self) -> None:
        self.finish = "stop"
        self.extra: dict[str, Any] = {}
        """Fields that the gateway adds: why it ended the answer, and that usage is estimated."""
        self.usage: dict[str, Any] | None = None

    def take(self, said: dict[str, Any]) -> None:
        for choice in said.get("choices") or ():
            finish = choice.get("finish_reason")
            self.finish = finish if isinstance(finish, str) and finish else self.finish
            if "headgate_stop" in choice:
                self.extra["headgate_stop"] = choice["headgate_stop"]
        if isinstance(said.get("usage"), dict):
            self.usage = _usage(said["usage"])
        if "headgate_usage" in said:
            self.extra["headgate_usage"] = said["headgate_usage"]

    @property
    def reason(self) -> str | None:
        """Why the answer is incomplete; None: it is complete."""
        return {"length": "max_output_tokens", "content_filter": "content_filter"}.get(self.finish)

    def finished(self, response: dict[str, Any], output: list[dict[str, Any]]) -> dict[str, Any]:
        reason = self.reason
        return {
            **response,
            "status": "completed" if reason is None else "incomplete",
            "incomplete_details": None if reason is None else {"reason": reason},
            "output": output,
            "usage": self.usage,
            **self.extra,
        }


class Native:
    """The voice of one exchange that an engine's own /v1/responses answers."""

    def __init__(self) -> None:
        self._began: bytes = b"{}"
        self._said: list[bytes] = []
        self._kept = 0
        self._events = 0
        self._ending: Ending | None = None

    def body(self, body: bytes) -> bytes:
        return body

    def event(self, data: bytes) -> bytes:
        self._events += 1
        if data == DONE:
            return b"" if self._ending is None else self._end(self._ending)
        if data.startswith(b'{"choices"'):
            self._ending = self._ending or Ending()
            with suppress(*NO_CHAT):
                self._ending.take(decode_event(data))
            return b""
        if is_error(data):
            return failure(data, self._events)
        try:
            said = read_said(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return sse("message", data.replace(b"\n", b"\ndata: "))
        if said.type == "response.created":
            self._began = bytes(said.response)
        elif said.type == "response.output_text.delta" and self._kept < MOST_KEPT:
            self._said.append(bytes(said.delta))
            self._kept += len(self._said[-1])
        # Data with several lines is still one event.
        return sse(said.type, data if data.find(b"\n") < 0 else data.replace(b"\n", b"\ndata: "))

    def _end(self, ending: Ending) -> bytes:
        """The last event of a stream that the gateway ends in the replica's place, with the text so far."""
        try:
            text = "".join(decode_event(piece) for piece in self._said) if self._kept < MOST_KEPT else ""
            began = decode_event(self._began)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
            text, began = "", {}
        output = [message("msg_0", text, "completed" if ending.reason is None else "incomplete")]
        response = ending.finished(began if isinstance(began, dict) else {}, output)
        name = f"response.{response['status']}"
        return sse(name, encode_told({"type": name, "sequence_number": self._events, "response": response}))


def message(name: str, text: str | None, status: str) -> dict[str, Any]:
    content = [] if text is None else [part(text)]
    return {"id": name, "type": "message", "status": status, "role": "assistant", "content": content}


def plain_text(content: Any) -> str:
    """The text of a message or delta: some engines write it in parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def failure(data: bytes, number: int) -> bytes:
    """The error event of a stream that has begun, in the format of /v1/responses with a chat's `error` object added."""
    error: dict[str, Any] = decode_event(data)["error"]
    fields = {name: error.get(name) for name in ("code", "message", "param")}
    return sse("error", encode_told({"type": "error", "sequence_number": number, **fields, "error": error}))


def part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(chat: dict[str, Any]) -> dict[str, Any]:
    prompt, output = _count(chat, "prompt_tokens"), _count(chat, "completion_tokens")
    cached = _count(chat.get("prompt_tokens_details"), "cached_tokens")
    thought = _count(chat.get("completion_tokens_details"), "reasoning_tokens")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": prompt + output,
    }


def _count(counts: Any, name: str) -> int:
    """A count of tokens; 0 if it is none."""
    found = counts.get(name) if isinstance(counts, dict) else None
    return found if type(found) is int and found > 0 else 0
