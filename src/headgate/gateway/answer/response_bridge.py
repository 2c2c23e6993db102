"""Writes a chat's answer in the format of /v1/responses: its text, its reasoning and its calls of functions.

Each is an item of its own. Text and reasoning end where another item begins; calls stay open until the end of the
stream, since engines may tell the arguments of several in turn.
"""

from typing import Any, Final

from headgate.gateway.answer.response_voice import (
    DONE,
    MOST_KEPT,
    NO_CHAT,
    Ending,
    failure,
    message,
    part,
    plain_text,
    skeleton,
    sse,
)
from headgate.replica.openai import decode_event, encode_told, is_error

MOST_CALLS: Final = 256
"""Calls of one answer that are told; no model means to call more."""


def reasoning_of(said: dict[str, Any]) -> str:
    """The reasoning in a message or delta, which engines write under two names."""
    return plain_text(said.get("reasoning_content")) or plain_text(said.get("reasoning"))


def whole_characters(text: str) -> tuple[str, str]:
    """Text without half a character at its end, and that half."""
    if text and "\ud800" <= text[-1] <= "\udbff":
        return text[:-1], text[-1]
    return text, ""


class OutputItem:
    """An item of the output, as it comes."""

    __slots__ = ("call_id", "half", "is_done", "kept", "kind", "name", "number", "pieces", "title")

    def __init__(self, kind: str, title: str, number: int, call_id: str = "", name: str = "") -> None:
        """`kind`: message, reasoning or function_call. `title`: its id. `number`: its place in the output."""
        self.kind = kind
        self.title = title
        self.number = number
        self.call_id = call_id
        self.name = name
        self.pieces: list[str] = []
        self.kept = 0
        self.half = ""
        """The first half of a character that came in two events."""
        self.is_done = False

    def add(self, text: str) -> str:
        """The text that can be told now."""
        text, self.half = whole_characters(self.half + text)
        if text and self.kept < MOST_KEPT:
            self.pieces.append(text)
            self.kept += len(text)
        return text

    @property
    def text(self) -> str:
        return "".join(self.pieces) if self.kept < MOST_KEPT else ""

    def shown(self, status: str) -> dict[str, Any]:
        text = None if status == "in_progress" else self.text
        if self.kind == "message":
            return message(self.title, text, status)
        if self.kind == "reasoning":
            content = [] if text is None else [{"type": "reasoning_text", "text": text}]
            return {"id": self.title, "type": "reasoning", "summary": [], "content": content, "status": status}
        called = {"call_id": self.call_id, "name": self.name, "arguments": text or ""}
        return {"id": self.title, "type": "function_call", "status": status, **called}


class Translated:
    """The voice of one exchange that a chat answers."""

    def __init__(self, body: dict[str, Any], request_id: str) -> None:
        """`body`: the /v1/responses request, without its input."""
        self._body = body
        self._request_id = request_id
        self._response: dict[str, Any] | None = None
        self._items: list[OutputItem] = []
        self._calls: dict[int, OutputItem] = {}
        self._number = 0
        self._ending = Ending()

    def body(self, body: bytes) -> bytes:
        try:
            said: dict[str, Any] = decode_event(body)
            self._ending.take(said)
            whole = (said.get("choices") or [{}])[0].get("message") or {}
            if thought := reasoning_of(whole):
                self._item("reasoning").add(thought)
            text, calls = plain_text(whole.get("content")), list(whole.get("tool_calls") or ())
            if text or not calls:
                self._item("message").add(text)
            for at, call in enumerate(calls[:MOST_CALLS]):
                function = call.get("function") or {}
                item = self._call(call, at, function)
                item.add(plain_text(function.get("arguments")))
        except NO_CHAT:
            self._items.clear()
            return body
        began = self._skeleton(said)
        output = [item.shown(self._status()) for item in self._items]
        return encode_told(self._ending.finished(began, output))

    def event(self, data: bytes) -> bytes:
        if data == DONE:
            return self._end()
        if is_error(data):
            return failure(data, self._number)
        try:
            said: dict[str, Any] = decode_event(data)
            self._ending.take(said)
            deltas = [choice.get("delta") or {} for choice in said.get("choices") or ()]
            told = [
                (reasoning_of(one), plain_text(one.get("content")), list(one.get("tool_calls") or ())) for one in deltas
            ]
        except NO_CHAT:
            return b""
        events = b"" if self._response is not None else self._begin(said)
        for thought, text, calls in told:
            if thought:
                events += self._say("reasoning", thought)
            if text:
                events += self._say("message", text)
            for at, call in enumerate(calls):
                events += self._called(call, at)
        return events

    # -- the items --------------------------------------------------------------------------------------------------

    def _item(self, kind: str, call_id: str = "", name: str = "") -> OutputItem:
        mark = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        number = len(self._items)
        title = f"{mark}_{self._request_id}" + (f"_{number}" if number else "")
        item = OutputItem(kind, title, number, call_id, name)
        self._items.append(item)
        return item

    def _call(self, call: dict[str, Any], at: int, function: dict[str, Any]) -> OutputItem:
        named = call.get("id")
        call_id = named if isinstance(named, str) and named else f"call_{self._request_id}_{at}"
        name = function.get("name")
        return self._item("function_call", call_id, name if isinstance(name, str) else "")

    def _say(self, kind: str, text: str) -> bytes:
        last = self._items[-1] if self._items else None
        events = b""
        if last is None or last.kind != kind:
            if not text.strip() and last is not None:
                return b""  # line ends between the parts of an answer are the template's
            last, events = self._start(kind)
        text = last.add(text)
        if text and kind == "message":
            events += self._tell("response.output_text.delta", **_where(last), delta=text, logprobs=[])
        elif text:
            events += self._tell("response.reasoning_text.delta", **_where(last), delta=text)
        return events

    def _start(self, kind: str) -> tuple[OutputItem, bytes]:
        events = self._close_text("completed")
        item = self._item(kind)
        return item, events + self._added(item)

    def _added(self, item: OutputItem) -> bytes:
        events = self._tell("response.output_item.added", item=item.shown("in_progress"), output_index=item.number)
        if item.kind == "message":
            events += self._tell("response.content_part.added", **_where(item), part=part(""))
        return events

    def _called(self, call: Any, at: int) -> bytes:
        if not isinstance(call, dict):
            return b""
        index, function = call.get("index"), call.get("function")
        index = index if type(index) is int else at
        function = function if isinstance(function, dict) else {}
        item, events = self._calls.get(index), b""
        if item is None:
            if len(self._calls) >= MOST_CALLS:
                return b""
            events = self._close_text("completed")
            item = self._calls[index] = self._call(call, index, function)
            events += self._added(item)
        text = item.add(plain_text(function.get("arguments")))
        if text:
            where = {"item_id": item.title, "output_index": item.number}
            events += self._tell("response.function_call_arguments.delta", **where, delta=text)
        return events

    def _close_text(self, status: str) -> bytes:
        """Ends the last item, unless it is a call: others may be told in turn with it."""
        last = self._items[-1] if self._items else None
        return b"" if last is None or last.kind == "function_call" else self._done(last, status)

    def _done(self, item: OutputItem, status: str) -> bytes:
        if item.is_done:
            return b""
        item.is_done = True
        events = b""
        if item.half:
            item.half = ""
            if item.kind == "message":
                item.add("\N{REPLACEMENT CHARACTER}")
                lost = "\N{REPLACEMENT CHARACTER}"
                events += self._tell("response.output_text.delta", **_where(item), delta=lost, logprobs=[])
        text = item.text
        if item.kind == "message":
            events += self._tell("response.output_text.done", **_where(item), text=text, logprobs=[])
            events += self._tell("response.content_part.done", **_where(item), part=part(text))
        elif item.kind == "reasoning":
            events += self._tell("response.reasoning_text.done", **_where(item), text=text)
        else:
            where = {"item_id": item.title, "output_index": item.number, "name": item.name}
            events += self._tell("response.function_call_arguments.done", **where, arguments=text)
        return events + self._tell("response.output_item.done", item=item.shown(status), output_index=item.number)

    # -- beginning and end ------------------------------------------------------------------------------------------

    def _skeleton(self, said: dict[str, Any]) -> dict[str, Any]:
        return skeleton(self._body, f"resp_{self._request_id}", said.get("model") or "", said.get("created") or 0)

    def _begin(self, said: dict[str, Any]) -> bytes:
        self._response = self._skeleton(said)
        created = self._tell("response.created", response=self._response)
        return created + self._tell("response.in_progress", response=self._response)

    def _end(self) -> bytes:
        events = b"" if self._response is not None else self._begin({})
        assert self._response is not None
        if not self._items:
            _, began = self._start("message")
            events += began
        for item in self._items:
            events += self._done(item, self._status())
        output = [item.shown(self._status() if item is self._items[-1] else "completed") for item in self._items]
        response = self._ending.finished(self._response, output)
        return events + self._tell(f"response.{response['status']}", response=response)

    def _status(self) -> str:
        return "completed" if self._ending.reason is None else "incomplete"

    def _tell(self, kind: str, **fields: Any) -> bytes:
        data = encode_told({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return sse(kind, data)


def _where(item: OutputItem) -> dict[str, Any]:
    return {"item_id": item.title, "output_index": item.number, "content_index": 0}
