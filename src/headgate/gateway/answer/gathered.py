"""Joins the events of a stream into the whole answer that the replica would have given unstreamed.

Engines differ in what they call an event, in what they leave out, and in what they write into fields that mean nothing
to them. None of that may cost the answer's text: what a client gets is a completion by the API's description, whatever
its parts were called.
"""

from typing import Any, Final

from headgate.replica.openai import MOST_TOKENS, decode_event, encode_told

MOST_CHOICES: Final = 4096
"""Maximum choices or tool calls of one answer; a higher index is a failure of the replica."""
_GROWING: Final = frozenset({"content", "reasoning_content", "reasoning", "refusal", "text", "arguments"})
"""Text fields to which each event adds a part. For other plain values the last event counts."""
_BACKSLASH: Final = 92


class ErrorEvent(Exception):
    """An event that holds an error in place of a part of the answer."""


class TextPieces(list[str]):
    """A text that grows, in pieces: joining it again for each event would take quadratic time."""


class GatheredAnswer:
    """An answer, joined from the events so far."""

    def __init__(self, chat: bool = True, model: str = "") -> None:
        """`chat`: whether the client asked for a chat; otherwise for a text completion. What the replica calls its
        events does not matter. `model`: the model's name, if the replica tells none."""
        self.events = 0
        """Number of choice parts with something of the answer in them: the output tokens, if the replica reports no
        usage."""
        self._chat = chat
        self._model = model
        self._head: dict[str, Any] = {}
        self._usage: dict[str, Any] | None = None
        """The newest usage that is plausible; None: none has come."""
        self._choices: dict[int, dict[str, Any]] = {}
        self._before = b""
        self._behind = b""
        """The bytes before (`_before`) and behind the text of an event that has only text: the same in most events of a
        stream. Empty: not known."""
        self._pieces: list[bytes] = []
        """Texts of such events, spelled as in JSON, that are not yet joined to their choice."""

    def add(self, event: bytes) -> None:
        """Adds an event. Raises ErrorEvent, or msgspec.DecodeError, TypeError, AttributeError or LookupError if it is
        not an event of a completion."""
        before, behind = self._before, self._behind
        around = len(before) + len(behind)
        if around and len(event) >= around and event.startswith(before) and event.endswith(behind):
            text = event[len(before) : -len(behind)]
            if text.find(b'"') < 0 and not text.endswith(b"\\"):
                if text:
                    self._pieces.append(text)
                    self.events += 1
                return
        self._join()
        self._read(event)

    def _join(self) -> None:
        """Adds the pending texts to their choice."""
        if self._pieces:
            events, text = self.events, b"".join(self._pieces)
            self._pieces = []
            self._read(b"%b%b%b" % (self._before, text, self._behind))
            self.events = events  # the pieces have been counted one by one

    def _read(self, event: bytes) -> None:
        said = decode_event(event)
        if said.get("error") is not None or said.get("object") == "error":
            raise ErrorEvent
        choices, usage = said.pop("choices", None), said.pop("usage", None)
        if choices is None:
            choices = []  # usage alone, or a sign of life
        if not isinstance(choices, list):
            raise TypeError("no event of a completion")
        if _is_usage(usage):
            self._usage = usage
        head = self._head
        for name, value in said.items():
            if value is not None:
                head.setdefault(name, value)
        for choice in choices:
            if not isinstance(choice.get("delta"), dict | None):
                raise TypeError("a delta that is no object")
            _grow(self._choices.setdefault(_index(choice), {}), choice)
            self.events += _says(choice)
        if not self._before and len(choices) == 1 and _only_text(choices[0]) is not None:
            self._before, self._behind = _around(event)

    @property
    def has_finished(self) -> bool:
        """Whether the replica has given a finish_reason for each choice that it began."""
        choices = self._choices.values()
        return bool(choices) and all(_has_finish(choice) for choice in choices)

    @property
    def choices(self) -> int:
        return len(self._choices)

    def body(self, stop: str, finish: str, prompt_tokens: int) -> bytes:
        """The whole answer as JSON. `stop` and `finish`: for choices that the replica has not ended; empty if it ended
        all."""
        self._join()
        head = dict(self._head)
        head["object"] = "chat.completion" if self._chat else "text_completion"
        if self._model and not isinstance(head.get("model"), str):
            head["model"] = self._model
        choices = []
        for index in sorted(self._choices):
            choice = {**_joined(self._choices[index]), "index": index}
            delta = choice.pop("delta", None) or choice.pop("message", None) or {}
            if self._chat:
                choice["message"] = _message(delta, choice.get("text"))
            elif not isinstance(choice.get("text"), str):
                choice["text"] = delta.get("content") or ""
            if stop and not _has_finish(choice):
                choice |= {"finish_reason": finish, "headgate_stop": stop}
            choices.append(choice)
        usage = self._usage
        if usage is None:
            usage = {"prompt_tokens": prompt_tokens, "completion_tokens": self.events}
            head["headgate_usage"] = "estimated"
        total = usage["prompt_tokens"] + usage["completion_tokens"]
        return encode_told({**head, "choices": choices, "usage": {"total_tokens": total, **usage}})


def _is_usage(usage: Any) -> bool:
    """Whether these are token counts that can be true; others are not passed on."""
    if not isinstance(usage, dict):
        return False
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    return all(type(count) is int and 0 <= count <= MOST_TOKENS for count in counts)


def _has_finish(choice: dict[str, Any]) -> bool:
    """Whether a choice has a finish_reason. Some engines write an empty one into every event."""
    finish = choice.get("finish_reason")
    return isinstance(finish, str) and finish != ""


def _says(choice: dict[str, Any]) -> bool:
    """Whether a choice's part has something of the answer: more than the role and a finish_reason."""
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text") or choice.get("message"))
    return any(value and name != "role" for name, value in delta.items())


def _only_text(choice: dict[str, Any]) -> str | None:
    """The text of a choice's part that has only text, so that the next such event can be recognised by its bytes.
    None: it has more."""
    delta = choice.get("delta")
    if delta is None:
        told, text = "text", choice.get("text")
    else:
        told, text = "delta", delta.get("content") if len(delta) == 1 else None
    others = [value for name, value in choice.items() if name != "index" and name != told]
    return text if isinstance(text, str) and all(value is None for value in others) else None


def _around(event: bytes) -> tuple[bytes, bytes]:
    """The bytes before and behind the text of an event; empty where a search cannot tell: the field occurs twice, or
    the text has quotes in it, or it is another field."""
    for name in (b'"content":"', b'"text":"'):
        if event.count(name) == 1:
            start = event.index(name) + len(name)
            end = event.find(b'"', start)
            if event[end - 1] != _BACKSLASH:
                before, behind = event[:start], event[end:]
                if _only_text(decode_event(b"%b?%b" % (before, behind))["choices"][0]) == "?":
                    return before, behind
    return b"", b""


def _index(entry: dict[str, Any]) -> int:
    """The index of a choice or a tool call; null is the same as none. Raises LookupError if it is not a valid one."""
    index = entry.get("index")
    if index is None:
        return 0
    if type(index) is not int or not 0 <= index < MOST_CHOICES:
        raise LookupError(f"an index that is not 0 to {MOST_CHOICES - 1}")
    return index


def _call_index(calls: dict[int, dict[str, Any]], call: dict[str, Any]) -> int:
    """The index of the tool call that `call` is a part of. Without an index, another id begins another call."""
    if call.get("index") is not None or not calls:
        return _index(call)
    last = next(reversed(calls))
    name = call.get("id")
    return _index({"index": last + 1}) if name and name != calls[last].get("id") else last


def _grow(known: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        old = known.get(name)
        if name in _GROWING and isinstance(value, str):
            if isinstance(old, TextPieces):
                old.append(value)
            else:
                known[name] = TextPieces((value,))
        elif value is None or value == "" or name == "index":
            known.setdefault(name, value)
        elif name == "tool_calls":
            calls = known[name] = old or {}
            for call in value:
                _grow(calls.setdefault(_call_index(calls, call), {}), call)
        elif isinstance(value, dict):
            inner = known[name] = old if isinstance(old, dict) else {}
            _grow(inner, value)
        elif isinstance(value, list) and isinstance(old, list) and not isinstance(old, TextPieces):
            old.extend(value)
        else:
            known[name] = value


def _joined(known: dict[str, Any]) -> dict[str, Any]:
    """The same with each text in one piece."""
    whole: dict[str, Any] = {}
    for name, value in known.items():
        if isinstance(value, TextPieces):
            value = "".join(value)
        elif isinstance(value, dict):
            value = _joined(value)
        whole[name] = value
    return whole


def _message(delta: dict[str, Any], text: Any) -> dict[str, Any]:
    """The message of a chat. `text`: what the choice has in the field of a text completion."""
    message = {"role": "assistant", "content": None, **delta}
    if not isinstance(message["role"], str) or not message["role"]:
        message["role"] = "assistant"
    calls = message.pop("tool_calls", None)
    if calls:
        order = sorted(calls)
        message["tool_calls"] = [{name: value for name, value in calls[at].items() if name != "index"} for at in order]
    elif message["content"] is None and not message.get("refusal"):
        message["content"] = text if isinstance(text, str) else ""
    return message
