"""Reads the text out of stream events, for the repetition detector and others, and writes the events that end a stream
in the replica's place.

The first events of every stream are read here, and all events of a stream that is watched or could be continued by
another replica. Only a stream that the gateway itself ends needs the closing events.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, Final

import msgspec

from headgate.model.lane import Lane
from headgate.policy.answers.output import Allowance
from headgate.policy.answers.runaway import Detector
from headgate.replica.openai import decode_event, encode_told
from headgate.wire.errors import Headers

TIMINGS: Final = "x-headgate-timings"
"""Clients that send this header get lane and queue time in the answer's headers."""
REPETITION: Final = "repetition"
TIME: Final = "time"
DONE: Final = b"[DONE]"
GRACE_S: Final = 1.0
"""Seconds beyond the generation time that our own engine has to end a stream itself."""
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


def answer_headers(allowance: Allowance | None, lane: str, given: dict[str, str], queue_s: float) -> Headers:
    """Headers for an answer: the output cap that applied, and, for clients that send TIMINGS, the lane and the queue
    time in milliseconds."""
    told: list[tuple[str, str]] = []
    if allowance is not None and allowance.why:
        told.append(("x-headgate-max-tokens", allowance.why))
    if TIMINGS in given:
        told.append(("x-headgate-lane", lane))
        told.append(("x-headgate-queue-ms", f"{queue_s * 1e3:.3f}"))
    return tuple(told)


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


def generation_s(lane: Lane, own: bool, stream: bool = True) -> float:
    """Seconds after its first token until the gateway ends a stream; inf: never. For an unstreamed answer, seconds
    after it was asked for: its first token is not seen, so the lane's TTFT target, or P99 if longer, is added. Our own
    engine ends both itself, with its own counts: it has no limit for unstreamed answers, and GRACE_S more for
    streams."""
    if lane.generation_s is None or (own and not stream):
        return inf
    if not stream:
        return lane.generation_s + max(lane.ttft_target_s, lane.ttft_p99_s or 0.0)
    return lane.generation_s + (GRACE_S if own else 0.0)


def bounds_told(allowance: Allowance, lane: Lane) -> dict[str, Any]:
    """Body fields with the bounds that our own engine keeps itself."""
    told: dict[str, Any] = {"runaway": allowance.runaway}
    if lane.generation_s is not None:
        told["generation_limit_ms"] = lane.generation_s * 1e3
    return told


class Repeats:
    """Feeds the events of an answer to the repetition detector, as seldom as possible.

    Nearly all answers are ordinary, and most are short. So events are only collected until they can matter: until the
    detector could reach another verdict, at the number of bytes that an event of this answer usually has. Then they are
    read together."""

    __slots__ = ("_detector", "_due", "_waiting", "heard")

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._waiting: list[bytes] = []
        """Events that have come and were not read yet."""
        self._due = 1 if detector.period else FIRST_LOOK
        """Number of waiting events at which they are read."""
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
        each = size // len(events)  # an event of several tokens has more bytes
        most = MOST_IN_DOUBT if detector.period else MOST_BETWEEN_LOOKS
        self._due = max(1, min(most, detector.patience // each)) if each else FIRST_LOOK
        return False
