"""What does a stream say, and how is one ended that the replica would go on with?

For those requests only whose text is watched, and for those that reach the end of their time. Nothing here is on the
path of any other.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, Final

import msgspec

from headgate.model.lane import Lane
from headgate.policy.answers.output import Allowance
from headgate.replica.openai import decode_event, encode_told
from headgate.wire.errors import Headers

TIMINGS: Final = "x-headgate-timings"
"""Clients that send it are told about times."""
REPETITION: Final = "repetition"
TIME: Final = "time"
DONE: Final = b"[DONE]"
GRACE_S: Final = 1.0
"""What our own engine has beyond its limit to end an answer itself."""
_CONTENT: Final = b'content":"'
"""The end of a name, so that it is `reasoning_content` too."""
_TEXT: Final = b'"text":"'
REASONING: Final = b'"reasoning'
"""How the name of a field begins that holds what a model thinks."""
_NO_REASONING: Final = b'"reasoning_content":null'
"""In every event, with some engines."""


def answer_headers(allowance: Allowance | None, lane: str, given: dict[str, str], queue_s: float) -> Headers:
    """Beside an answer: why it may say no more; and for clients that ask for it, in which lane it was, and how long it
    waited there."""
    told: list[tuple[str, str]] = []
    if allowance is not None and allowance.why:
        told.append(("x-headgate-max-tokens", allowance.why))
    if TIMINGS in given:
        told.append(("x-headgate-lane", lane))
        told.append(("x-headgate-queue-ms", f"{queue_s * 1e3:.3f}"))
    return tuple(told)


def text_of(event: bytes) -> bytes:
    """What an event adds to the text, as it is written in JSON: repeated text is repeated JSON."""
    start = event.find(_CONTENT)
    if start >= 0:
        start += 10
    else:
        start = event.find(_TEXT)
        if start < 0:
            return _decoded_text(event)
        start += 8
    end = event.find(b'"', start)
    while end > 0 and event[end - 1] == 92 and _escaped(event, start, end):
        end = event.find(b'"', end + 1)
    return event[start:end] if end > 0 else b""


_READ_TEXT: Final = msgspec.json.Decoder(str)


def plain(text: bytes) -> bytes:
    """The text that is written so in JSON."""
    ended = text.replace(b"\\n", b"\n")
    if b"\\" not in ended:
        return ended  # the ends of lines are by far the most of what is written otherwise
    try:
        return _READ_TEXT.decode(b'"' + text + b'"').encode()
    except (msgspec.DecodeError, UnicodeError):
        return text  # half of a character, the other half may come in the next event


def _escaped(event: bytes, start: int, at: int) -> bool:
    """Whether the character at `at` has an odd number of backslashes before it."""
    first = at
    while first > start and event[first - 1] == 92:
        first -= 1
    return (at - first) % 2 == 1


def _decoded_text(event: bytes) -> bytes:
    """For whoever writes JSON with spaces."""
    if b'": "' not in event:
        return b""
    try:
        choices = decode_event(event)["choices"]
        delta = choices[0].get("delta") or choices[0]
        text = delta.get("content") or delta.get("reasoning_content") or delta.get("text") or ""
        # Of anything but a text there may be nothing within its first and last byte.
        return encode_told(text)[1:-1] if isinstance(text, str) else b""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError):
        return b""


def speaks(event: bytes) -> bool:
    """Whether it brings anything of an answer: a token, a call, why it ends. That it is the assistant's turn is said
    before anything has been computed, by some engines."""
    if text_of(event):
        return True
    try:
        choices = decode_event(event)["choices"]
        for choice in choices:
            delta = choice.get("delta") or {}
            if choice.get("finish_reason") is not None or choice.get("text"):
                return True
            if any(value for name, value in delta.items() if name != "role"):
                return True
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError):
        return True  # it is something else, which is nobody's to hold back
    return False


def thinks(event: bytes) -> bool:
    """Whether it brings something that the model thinks, which is no part of its answer."""
    at = event.find(REASONING)
    if at < 0 or (event.startswith(_NO_REASONING, at) and event.find(REASONING, at + 1) < 0):
        return False
    delta = _delta(event)
    return bool(delta.get("reasoning_content") or delta.get("reasoning"))


def content_of(event: bytes) -> bytes:
    """What an event adds to the answer, as it is written in JSON, without what is thought."""
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
    """The events that end a stream in the replica's place. `first` is any of its own: who it is, is the same in all.
    `usage` is what the gateway knows, since the replica is not asked any more. `still`: the choices that go on."""
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
    """How long a stream may go on before the gateway ends it; or an answer in one piece be under way, of which nobody
    hears when its first token was made: as long as its lane promises that to nearly all. Our own engine ends both
    itself, knows its own counts, and so comes first."""
    if lane.generation_s is None or (own and not stream):
        return inf
    if not stream:
        return lane.generation_s + max(lane.ttft_target_s, lane.ttft_p99_s or 0.0)
    return lane.generation_s + (GRACE_S if own else 0.0)


def bounds_told(allowance: Allowance, lane: Lane) -> dict[str, Any]:
    """What our own engine keeps by itself."""
    told: dict[str, Any] = {"runaway": allowance.runaway}
    if lane.generation_s is not None:
        told["generation_limit_ms"] = lane.generation_s * 1e3
    return told
