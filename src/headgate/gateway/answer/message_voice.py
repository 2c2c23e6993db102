"""Writes a chat's answer in the format of Anthropic's /v1/messages.

Blocks come one after the other, so a call of a tool that comes while another one is open waits until that one's
arguments are whole, or the stream ends. What an engine says that can't be told truthfully (more arguments of a call
that has been closed, arguments that are no object) ends the stream with an error event: no tool may run with half of
its arguments.
"""

from typing import Any, Final

import msgspec

from headgate.gateway.answer.response_bridge import reasoning_of, whole_characters
from headgate.gateway.answer.response_voice import DONE, MOST_KEPT, NO_CHAT, Ending, plain_text, sse
from headgate.replica.openai import decode_event, encode_told, is_error
from headgate.wire.errors import as_message_error

STOPS: Final = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
"""A chat's finish_reason → stop_reason; all others are end_turn."""
MOST_CALLS: Final = 256
MOST_LOOKS: Final = 64
"""How often it is looked, during one call, whether its arguments are whole while another call waits."""
PING_EACH: Final = 64
"""Events of reasoning that the client does not want, after which it hears that the answer is still being made."""
PING: Final = sse("ping", b'{"type":"ping"}')


class ToolUse:
    """A call of a tool, as it comes."""

    __slots__ = ("arguments", "closed", "half", "looks", "name", "said", "tool_id")

    def __init__(self, tool_id: str) -> None:
        self.tool_id = tool_id
        self.name = ""
        self.arguments: list[str] = []
        self.said = 0
        """Pieces of the arguments that the client has."""
        self.half = ""
        """The first half of a character that came in two events."""
        self.looks = 0
        self.closed = False

    @property
    def has_object(self) -> bool:
        """Whether the arguments are an object. None at all are one for a tool without parameters."""
        return isinstance(arguments_of("".join(self.arguments)), dict)


class Untellable(Exception):
    """The engine said something that can't be told; `args` are the reason."""


class MessageVoice:
    """The voice of one exchange that a chat answers."""

    def __init__(self, request_id: str, thinks: bool) -> None:
        """`thinks`: the client wants to see the model's reasoning."""
        self._request_id = request_id
        self._thinks = thinks
        self._began = self._over = False
        self._at = -1
        """Index of the last block."""
        self._open = ""
        """The kind of the block that is open; empty: none."""
        self._half = ""
        self._calls: dict[int, ToolUse] = {}
        self._waiting: list[ToolUse] = []
        """Calls whose block has not begun; the first of them is next."""
        self._call: ToolUse | None = None
        """The call whose block is open."""
        self._kept = 0
        self._unseen = 0
        self._ending = MessageEnding()

    # -- a whole answer -----------------------------------------------------------------------------------------

    def body(self, body: bytes) -> bytes:
        try:
            said: dict[str, Any] = decode_event(body)
            self._ending.take(said)
            message = (said.get("choices") or [{}])[0].get("message") or {}
            thought, text = reasoning_of(message), plain_text(message.get("content"))
            calls = [one for one in message.get("tool_calls") or () if isinstance(one, dict)]
            content: list[dict[str, Any]] = []
            if thought and self._thinks:
                content.append({"type": "thinking", "thinking": thought, "signature": ""})
            used = [self._used(call, at) for at, call in enumerate(calls)]
        except NO_CHAT:
            return body
        if text or not used:
            content.append({"type": "text", "text": text})
        content += used
        tools = any(block["type"] == "tool_use" for block in used)
        return encode_told(
            {
                **self._message(said, content),
                "stop_reason": self._ending.stop_reason(tools),
                "stop_sequence": self._ending.sequence,
                "usage": self._ending.counts,
                **self._ending.extra,
            }
        )

    def _used(self, call: dict[str, Any], at: int) -> dict[str, Any]:
        """The block of a call. A call whose arguments are no object, as one that was cut off, is told as text, so
        that no tool runs with less than the model meant."""
        function = call.get("function") or {}
        arguments, name = function.get("arguments"), function.get("name")
        given = arguments_of(arguments) if isinstance(arguments, str | None) else arguments
        if not isinstance(given, dict) or not isinstance(name, str):
            return {"type": "text", "text": encode_told(function).decode("utf-8", "replace")}
        return {"type": "tool_use", "id": self._tool_id(call, at), "name": name, "input": given}

    def _tool_id(self, call: dict[str, Any], at: int) -> str:
        named = call.get("id")
        return named if isinstance(named, str) and named else f"toolu_{self._request_id}_{at}"

    def _message(self, said: dict[str, Any], content: list[dict[str, Any]]) -> dict[str, Any]:
        model = said.get("model")
        return {
            "id": f"msg_{self._request_id}",
            "type": "message",
            "role": "assistant",
            "model": model if isinstance(model, str) else "",
            "content": content,
        }

    # -- a stream -------------------------------------------------------------------------------------------------

    def event(self, data: bytes) -> bytes:
        if self._over:
            return b""
        if is_error(data):
            self._over = True
            return sse("error", as_message_error(data, 0, self._request_id))
        said: dict[str, Any] = {}
        if data != DONE:
            try:
                said = decode_event(data)
                self._ending.take(said)
                # What is nonsense has to be known before anything is told of it.
                found = [choice.get("delta") for choice in said.get("choices") or ()]
                deltas = [delta for delta in found if isinstance(delta, dict)]
            except NO_CHAT:
                return b""
        told = b"" if self._began else self._begin(said)
        try:
            if data == DONE:
                return told + self._end()
            for delta in deltas:
                told += self._delta(delta)
        except Untellable as wrong:
            self._over = True
            error = encode_told({"error": {"message": str(wrong), "type": "server_error"}})
            return told + sse("error", as_message_error(error, 502, self._request_id))
        return told

    def _begin(self, said: dict[str, Any]) -> bytes:
        self._began = True
        usage = {"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}
        message = {**self._message(said, []), "stop_reason": None, "stop_sequence": None, "usage": usage}
        return _tell("message_start", message=message) + PING

    def _delta(self, delta: dict[str, Any]) -> bytes:
        told = b""
        if thought := reasoning_of(delta):
            if self._thinks:
                told += self._say("thinking", thought)
            else:
                self._unseen += 1
                told += PING if self._unseen % PING_EACH == 0 else b""
        if text := plain_text(delta.get("content")):
            told += self._say("text", text)
        calls = delta.get("tool_calls")
        for at, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                told += self._called(call, at)
        return told

    def _say(self, kind: str, text: str) -> bytes:
        """Adds text or thinking. Behind the first call of a tool, engines send hardly more than white space."""
        if self._calls and not text.strip():
            return b""
        told = b""
        if self._open != kind:
            told += self._finish_calls() + self._close()
            fields = {"text": ""} if kind == "text" else {"thinking": "", "signature": ""}
            told += self._start(kind, {"type": kind, **fields})
        text, self._half = whole_characters(self._half + text)
        if text:
            told += self._tell_delta({"type": f"{kind}_delta", kind: text})
        return told

    def _called(self, said: dict[str, Any], at: int) -> bytes:
        index = said.get("index")
        index = index if type(index) is int else at
        call = self._calls.get(index)
        told = b""
        if call is None:
            if len(self._calls) >= MOST_CALLS:
                raise Untellable(f"the engine called more than {MOST_CALLS} tools in one answer")
            call = self._calls[index] = ToolUse(self._tool_id(said, index))
            self._waiting.append(call)
        function = said.get("function")
        function = function if isinstance(function, dict) else {}
        if not call.name and isinstance(function.get("name"), str):
            call.name = function["name"]
        arguments = function.get("arguments")
        if isinstance(arguments, str) and arguments:
            self._kept += len(arguments)
            if self._kept > MOST_KEPT:
                raise Untellable(f"the arguments of the tools have more than {MOST_KEPT} characters")
            if call.closed and arguments.strip():
                raise Untellable(f"the engine went on with a call of {call.name[:64]!r} that it had finished")
            call.arguments.append(arguments)
        told += self._say_arguments()
        if self._waiting and self._waiting[0].name and self._may_close():
            told += self._next_call() + self._say_arguments()
        return told

    def _may_close(self) -> bool:
        """Whether the next call may begin: no call is open, or its arguments are whole."""
        call = self._call
        if call is None:
            return True
        call.looks += 1
        return bool(call.looks <= MOST_LOOKS and call.arguments and call.has_object)

    def _next_call(self) -> bytes:
        told = self._close()
        self._call = call = self._waiting.pop(0)
        block = {"type": "tool_use", "id": call.tool_id, "name": call.name, "input": {}}
        return told + self._start("tool_use", block)

    def _say_arguments(self) -> bytes:
        """Tells what has come of the open call's arguments."""
        call = self._call
        if call is None or call.said == len(call.arguments):
            return b""
        text, call.half = whole_characters(call.half + "".join(call.arguments[call.said :]))
        call.said = len(call.arguments)
        return self._tell_delta({"type": "input_json_delta", "partial_json": text}) if text else b""

    def _finish_calls(self) -> bytes:
        """Tells the calls that wait; no more of any of them comes."""
        told = b""
        while self._waiting:
            if not self._waiting[0].name:
                raise Untellable("the engine called a tool without saying which")
            told += self._next_call() + self._say_arguments()
        return told

    def _start(self, kind: str, block: dict[str, Any]) -> bytes:
        self._open = kind
        self._at += 1
        return _tell("content_block_start", index=self._at, content_block=block)

    def _tell_delta(self, delta: dict[str, Any]) -> bytes:
        return _tell("content_block_delta", index=self._at, delta=delta)

    def _close(self) -> bytes:
        """Ends the block that is open."""
        kind, call, told = self._open, self._call, b""
        if not kind:
            return b""
        if call is not None:
            call.closed, self._call = True, None
            if self._ending.finish != "length" and not call.has_object:
                raise Untellable(f"the engine called {call.name[:64]!r} with arguments that are no JSON object")
        elif self._half:
            self._half = ""
            told = self._tell_delta({"type": f"{kind}_delta", kind: "\N{REPLACEMENT CHARACTER}"})
        self._open = ""
        return told + _tell("content_block_stop", index=self._at)

    def _end(self) -> bytes:
        told = self._finish_calls() + self._close()
        ending = self._ending
        delta = {"stop_reason": ending.stop_reason(bool(self._calls)), "stop_sequence": ending.sequence}
        self._over = True
        return told + _tell("message_delta", delta=delta, usage=ending.counts, **ending.extra) + _tell("message_stop")


class MessageEnding(Ending):
    """How a chat ended, and its usage, in Anthropic's words."""

    def __init__(self) -> None:
        super().__init__()
        self.sequence: str | None = None
        """The stop sequence that ended the answer; None: none did, or the engine does not say."""

    def take(self, said: dict[str, Any]) -> None:
        super().take(said)
        for choice in said.get("choices") or ():
            stop = choice.get("stop_reason")
            if choice.get("finish_reason") == "stop" and isinstance(stop, str) and stop:
                self.sequence = stop

    def stop_reason(self, tools: bool) -> str:
        """`tools`: a tool was called, which some engines end like an answer."""
        if self.sequence is not None:
            return "stop_sequence"
        return STOPS.get(self.finish, "tool_use" if tools else "end_turn")

    @property
    def counts(self) -> dict[str, int]:
        """Tokens; those of the prompt that were in the engine's cache are apart."""
        usage = self.usage or {"input_tokens": 0, "output_tokens": 0, "input_tokens_details": {"cached_tokens": 0}}
        cached = min(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"])
        return {
            "input_tokens": usage["input_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["output_tokens"],
        }


def arguments_of(text: str | None) -> Any:
    """The arguments of a call; None: they are no JSON."""
    if text is None or not text.strip():
        return {}
    try:
        # Through UTF-16, in which two halves of a character that came apart are one again.
        return msgspec.json.decode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _tell(name: str, **fields: Any) -> bytes:
    return sse(name, encode_told({"type": name, **fields}))
