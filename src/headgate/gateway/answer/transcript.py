"""Keeps what a stream has told its client, so that another replica can continue it, and joins the two.

The second replica's events are rewritten as if the first had continued. Events are decoded only for streams that broke
off.
"""

from typing import Any, Final

import msgspec

from headgate.gateway.answer.output import REASONING, content_of, text_of, thinks
from headgate.replica.dialects import continued
from headgate.replica.openai import decode_event, encode_told, has_finish

MOST_KEPT: Final = 64 * 1024
"""Maximum bytes of a stream's text that are kept. A longer stream ends with an error if its replica fails."""
MOST_WAITING: Final = 32
"""Events that are kept as they are. Further ones are read together: most streams have ended before that, and their text
is never needed."""
MOST_WAITING_BYTES: Final = 8 * 1024
_HEAD: Final = ("id", "object", "created", "model", "system_fingerprint")
"""Fields that are the same in all events of a stream."""


class Transcript:
    """The events that a stream has passed on, as far as they may still be needed."""

    __slots__ = ("_kept", "_tail", "_thought", "_waiting", "_waiting_bytes", "first")

    def __init__(self) -> None:
        self.first = b""
        """The first event: the gateway copies its id and model when it ends or continues the stream."""
        self._kept: bytearray | None = None
        """The text of the events that have been read, spelled as in JSON, each piece ended by a line break, which JSON
        text never has; None: it is not kept."""
        self._thought = False
        """Whether the events that have been read have reasoning."""
        self._tail: list[bytes] = []
        """The last two events that have been read."""
        self._waiting: list[bytes] = []
        """Events that have not been read."""
        self._waiting_bytes = 0

    def keep(self) -> None:
        """Keeps the text of all events: another replica could continue the stream. Call it before the first event."""
        self._kept = bytearray()

    def add(self, events: list[bytes]) -> None:
        """The client gets these events."""
        if not self.first:
            self.first = events[0]
        for event in events:
            self._waiting_bytes += len(event)
        self._waiting += events
        if len(self._waiting) > MOST_WAITING or self._waiting_bytes > MOST_WAITING_BYTES:
            self._read()

    def _read(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        kept = self._kept
        if kept is not None:
            if b"".join(waiting).find(REASONING) < 0:
                pieces = [text_of(event) for event in waiting]
            else:
                pieces = [content_of(event) for event in waiting]
                self._thought = self._thought or any(thinks(event) for event in waiting)
            kept += b"\n".join(pieces)
            kept += b"\n"
            if len(kept) > MOST_KEPT:
                self._kept = None
        self._tail = (self._tail + waiting)[-2:]

    @property
    def said(self) -> bytearray | None:
        """The text of the stream so far, spelled as in JSON, each piece ended by a line break. None: it is not kept,
        and no replica can continue after it."""
        self._read()
        return self._kept

    @property
    def answering(self) -> bool:
        """Whether text of the answer has been passed on and is kept."""
        said = self.said
        return said is not None and bool(said.strip(b"\n"))

    @property
    def thought(self) -> bool:
        """Whether reasoning has been passed on: no replica can continue after that."""
        self._read()
        return self._thought

    @property
    def is_complete(self) -> bool:
        """Whether only the end itself is missing."""
        self._read()
        return bool(self._tail) and has_ended(self._tail[-1])

    @property
    def has_finished(self) -> bool:
        """Whether one of the last two events has a finish_reason: behind it engines send usage, and hardly more."""
        last = self._waiting[-2:] if len(self._waiting) > 1 else self._tail + self._waiting
        return bool(last) and (has_finish(last[-1]) or (len(last) > 1 and has_finish(last[-2])))


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


def has_ended(last: bytes) -> bool:
    """Whether a stream's last event has a finish_reason or usage: then only the end itself is missing."""
    try:
        said = decode_event(last)
        if not said["choices"]:
            return isinstance(said.get("usage"), dict)
        return any(one.get("finish_reason") for one in said["choices"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError):
        return False


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
