"""Ends or continues a stream in the place of the replica that began it.

The second replica's events are rewritten as if the first had continued. Only streams that broke off, or that the
gateway itself ends, come here.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from headgate.gateway.answer.transcript import DONE
from headgate.replica.dialects import continued
from headgate.replica.openai import decode_event, encode_told

_HEAD: Final = ("id", "object", "created", "model", "system_fingerprint")
"""Fields that are the same in all events of a stream."""


def text_said(said: bytearray) -> str | None:
    """The text of a stream from its pieces, which are spelled as in JSON, one per line. None: it breaks off within a
    character."""
    try:
        text = msgspec.json.decode(b'"%b"' % bytes(said).replace(b"\n", b""), type=str)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if "\N{REPLACEMENT CHARACTER}" in text[-1:] else text


def rest_of(kind: str | None, path: str, body: dict[str, Any], said: bytearray, events: int) -> dict[str, Any] | None:
    """The body that asks a replica of this kind to continue a stream after `said`. None: it cannot."""
    text = text_said(said)
    if text is None:
        return None
    if not text:
        return body  # the client has got no text yet
    try:
        pieces = [msgspec.json.decode(b'"%b"' % piece, type=str) for piece in bytes(said).split(b"\n") if piece]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pieces = [text]  # some pieces end within a character
    return continued(kind, path, body, text, events, pieces)


class Continuation:
    __slots__ = ("_before", "_head")

    def __init__(self, first: bytes, before: int) -> None:
        """`first` is the stream's first event, `before` the number of tokens passed on so far."""
        try:
            began = decode_event(first)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            began = {}
        self._head = {name: began[name] for name in _HEAD if name in began} if isinstance(began, dict) else {}
        self._before = before

    def told(self, event: bytes) -> bytes | None:
        """The event as the first replica would have written it. None: it has nothing new for the client."""
        try:
            said = decode_event(event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return event  # [DONE], or no JSON
        if not isinstance(said, dict) or said.get("error") is not None:
            return event
        usage = said.get("usage")
        speaks = isinstance(usage, dict)
        if isinstance(usage, dict):
            self._add_up(usage, said.get("timings"))
        choices = said.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            delta = choice.get("delta")
            if isinstance(delta, dict):
                delta.pop("role", None)
                speaks = speaks or any(delta.values())
            speaks = speaks or bool(choice.get("text") or choice.get("finish_reason"))
        return encode_told({**said, **self._head}) if speaks else None

    def _add_up(self, usage: dict[str, Any], timings: object) -> None:
        """Moves the tokens before the break from prompt to completion: the second replica counted them as prompt."""
        before = self._before
        if isinstance(timings, dict) and isinstance(timings.get("continued_tokens"), int):
            before = timings["continued_tokens"]  # our own engine reports them; one event may hold several tokens
        for name, more in (("prompt_tokens", -before), ("completion_tokens", before)):
            if isinstance(usage.get(name), int):
                usage[name] = max(0, usage[name] + more)


def closing(first: bytes, finish: str, stop: str, usage: tuple[int, int], still: Sequence[int] = (0,)) -> list[bytes]:
    """The events that end a stream in the replica's place. `first` is any event of the stream: id and model are the
    same in all. `usage`: prompt and output tokens as the gateway estimates them. `still`: the choices that have not
    ended."""
    try:
        began: dict[str, Any] = decode_event(first)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        began = {}
    head = {name: began[name] for name in ("id", "object", "created", "model") if name in began}
    last: dict[str, Any] = {"text": ""} if began.get("object") == "text_completion" else {"delta": {}}
    ends = [
        {"index": index, **last, "logprobs": None, "finish_reason": finish, "headgate_stop": stop} for index in still
    ]
    prompt, output = usage
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return [
        *[encode_told({**head, "choices": [choice]}) for choice in ends],
        encode_told({**head, "choices": [], "usage": counts, "headgate_usage": "estimated"}),
        DONE,
    ]
