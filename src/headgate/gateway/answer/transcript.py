"""Reads the text of a stream out of its events: as far as it is kept, so that another replica can continue the stream,
and as far as it is watched for repetition.

The first events of every stream are read here, and all events of a stream that is watched or could be continued. An
event is decoded only where its text can't be found in its bytes.
"""

from typing import Any, Final

import msgspec

from headgate.policy.answers.runaway import Detector
from headgate.replica.openai import decode_event, encode_told, has_finish

DONE: Final = b"[DONE]"
REPETITION: Final = "repetition"
TIME: Final = "time"
_CONTENT: Final = b'content":"'
"""The end of the field name, so that `reasoning_content` matches too."""
_TEXT: Final = b'"text":"'
_THOUGHT: Final = b'"reasoning":"'
REASONING: Final = b'"reasoning'
"""Beginning of the names of fields that hold reasoning."""
_NO_REASONING: Final = b'"reasoning_content":null'
"""Some engines write this into every event."""
FIRST_LOOK: Final = 2
"""Events before the detector first gets some: the bytes per event are not known yet."""
MOST_BETWEEN_LOOKS: Final = 32
"""Maximum events between two looks of the detector."""
MOST_IN_DOUBT: Final = 4
"""The same while there is a candidate repetition: the repeating unit may change at any time."""
WIDE_EVENT: Final = 8
"""Bytes assumed for an event, if the last ones had fewer, while there is a candidate: the next may be a long word."""
MOST_KEPT: Final = 64 * 1024
"""Maximum bytes of a stream's text that are kept. A longer stream ends with an error if its replica fails."""
MOST_WAITING: Final = 32
"""Events that are kept as they are. Further ones are read together: most streams have ended before that, and their text
is never needed."""
MOST_WAITING_BYTES: Final = 8 * 1024


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


class Repeats:
    """Feeds the events of an answer to the repetition detector, as seldom as possible.

    Nearly all answers are ordinary, and most are short. So events are only collected until they can matter: until the
    detector could reach another verdict, at the number of bytes that an event of this answer usually has. Then they are
    read together."""

    __slots__ = ("_bytes", "_detector", "_due", "_events", "_waiting", "heard")

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._waiting: list[bytes] = []
        """Events that have come and were not read yet."""
        self._due = 1 if detector.period else FIRST_LOOK
        """Number of waiting events at which they are read."""
        self._bytes, self._events = 0, 0
        """Bytes of text and events that were read: one of several tokens has more bytes."""
        self.heard = 0
        """Number of events of the last `hear` that were read until the runaway was detected."""

    def hear(self, events: list[bytes]) -> bool:
        """Takes the next events. True: the answer has run away."""
        waiting = self._waiting
        before = len(waiting)
        waiting += events
        if len(waiting) < self._due:
            return False
        looked_at = 0
        while len(waiting) - looked_at >= self._due:
            end = looked_at + self._due
            if self._look(waiting[looked_at:end]):
                self.heard = end - before
                waiting.clear()  # the caller may let it continue, if the replica has ended the answer itself
                return True
            looked_at = end
        del waiting[:looked_at]
        return False

    def _look(self, events: list[bytes]) -> bool:
        detector = self._detector
        pieces = [text_of(event) for event in events]
        size = 0
        for piece in pieces if detector.period else [b"".join(pieces)]:
            size += len(piece)
            if detector.hear(piece if 92 not in piece else plain(piece)):  # a backslash
                return True
        self._bytes += size
        self._events += len(events)
        each, most = max(size // len(events), self._bytes // self._events), MOST_BETWEEN_LOOKS
        if detector.period:
            most, each = MOST_IN_DOUBT, max(each, WIDE_EVENT)
        self._due = max(1, min(most, detector.patience // each)) if each else FIRST_LOOK
        return False


# -- the text of an event ----------------------------------------------------------------------------------------


def text_of(event: bytes) -> bytes:
    """The text that an event adds, spelled as in JSON, without quotes: repeated text is repeated JSON. Empty: none."""
    start = event.find(_CONTENT)
    if start >= 0:
        start += 10
    else:
        start = event.find(_TEXT)
        if start < 0:
            return _text_behind(event, 0) or _decoded_text(event)
        start += 8
    end = event.find(b'"', start)
    if end == start:
        return _text_behind(event, end)
    while end > 0 and event[end - 1] == 92 and _escaped(event, start, end):
        end = event.find(b'"', end + 1)
    return event[start:end] if end > 0 else b""


def _end_of(event: bytes, start: int) -> int:
    """Where the string ends that begins at `start`; -1: nowhere."""
    end = event.find(b'"', start)
    while end > 0 and event[end - 1] == 92 and _escaped(event, start, end):
        end = event.find(b'"', end + 1)
    return end


def _text_behind(event: bytes, at: int) -> bytes:
    """The text of an event whose first field for text is empty: some engines write each of them into every event."""
    for name in (_CONTENT, _THOUGHT, _TEXT):
        start = event.find(name, at) + len(name)
        if start >= len(name) and (end := _end_of(event, start)) > start:
            return event[start:end]
    return b""


_READ_TEXT: Final = msgspec.json.Decoder(str)


def plain(text: bytes) -> bytes:
    """The text itself, from its spelling in JSON."""
    ended = text.replace(b"\\n", b"\n")
    if b"\\" not in ended:
        return ended  # line ends are by far the most frequent escapes
    try:
        return _READ_TEXT.decode(b'"' + text + b'"').encode()
    except (msgspec.DecodeError, UnicodeError):
        return text  # half of a character: the other half may come in the next event


def _escaped(event: bytes, start: int, at: int) -> bool:
    """Whether the character at `at` has an odd number of backslashes before it."""
    first = at
    while first > start and event[first - 1] == 92:
        first -= 1
    return (at - first) % 2 == 1


def _decoded_text(event: bytes) -> bytes:
    """The text of an event in JSON with spaces, spelled as we would write it; empty: none."""
    if b'": "' not in event:
        return b""
    try:
        choices = decode_event(event)["choices"]
        delta = choices[0].get("delta") or choices[0]
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        text = delta.get("content") or thought or delta.get("text") or ""
        # Only the encoding of a string has a quote at each end to cut off.
        return encode_told(text)[1:-1] if isinstance(text, str) else b""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError):
        return b""


def speaks(event: bytes) -> bool:
    """Whether an event has a part of the answer: a token, a call, a finish_reason. The role alone does not count: some
    engines send it before anything has been computed."""
    if text_of(event):
        return True
    try:
        choices = decode_event(event)["choices"]
        for choice in choices:
            delta = choice.get("delta") or {}
            if choice.get("finish_reason") or choice.get("text"):
                return True
            if any(value for name, value in delta.items() if name != "role"):
                return True
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError):
        return True  # something else, which must not be held back
    return False


def thinks(event: bytes) -> bool:
    """Whether an event has reasoning, which is not part of the answer."""
    at = event.find(REASONING)
    if at < 0 or (event.startswith(_NO_REASONING, at) and event.find(REASONING, at + 1) < 0):
        return False
    delta = _delta(event)
    return bool(delta.get("reasoning_content") or delta.get("reasoning"))


def content_of(event: bytes) -> bytes:
    """The text that an event adds to the answer, spelled as in JSON, without reasoning."""
    if event.find(REASONING) < 0:
        return text_of(event)
    content = _delta(event).get("content")
    return encode_told(content)[1:-1] if isinstance(content, str) else b""


def _delta(event: bytes) -> dict[str, Any]:
    try:
        delta: dict[str, Any] = dict(decode_event(event)["choices"][0]["delta"])
        return delta
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
    ):
        return {}


def has_ended(last: bytes) -> bool:
    """Whether a stream's last event has a finish_reason or usage: then only the end itself is missing."""
    try:
        said = decode_event(last)
        if not said["choices"]:
            return isinstance(said.get("usage"), dict)
        return any(one.get("finish_reason") for one in said["choices"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError):
        return False
