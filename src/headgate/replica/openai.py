"""Reads usage and errors from an engine's answer, in any engine's dialect.

Only what is needed is decoded: one event of a stream, and bodies that are passed on anyway.
"""

import json
import re
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from headgate.model.record import EngineTimings
from headgate.replica.mend import mended
from headgate.replica.shape import (
    NOTHING,
    AnswerParts,
    AnswerUsage,
    Usage,
    decode_answer,
    decode_chunk,
    decode_foreign,
    decode_parts,
    decode_timings,
    decode_whole,
)

MOST_MESSAGE = 4096
"""Maximum characters of an engine's error message that are passed on."""
MOST_QUOTED: Final = 400
"""Maximum characters of an engine's error message that are quoted in a message of the gateway."""
MOST_S: Final = 86_400.0
"""Maximum of a time that a replica names, in seconds; a longer one is nonsense."""
MOST_TOKENS: Final = 100_000_000
"""Maximum tokens of a prompt or an answer. A larger number is nonsense, and would use up a tenant's limit for years; so
is a negative one."""
INT_DIGITS: Final = 300
"""Maximum digits of a number; a longer one counts as absent."""
_ERROR: Final = re.compile(rb'\{\s*"error"\s*:\s*(?!null)\S')
FULL: Final = (429, 503)
"""Statuses of engines without capacity: 429 from TGI and proxies, 503 from vLLM, SGLang and llama.cpp."""


def read_usage(data: bytes) -> tuple[Usage | None, bool]:
    """The usage that an event or a body reports, and whether it reports nothing else (`choices` is empty). An estimate
    of the gateway itself is None."""
    try:
        answer = decode_answer(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, False
    found = answer.usage
    if found is None and answer.response is not None:
        found = answer.response.usage
    usage = None if found is None else _usage(found, answer.timings, answer.metrics)
    counted = answer.headgate_usage is NOTHING
    return usage if counted else None, usage is not None and answer.choices == []


def read_answer(body: bytes, wanted: str) -> tuple[str, Usage | None]:
    """The flaw of a whole answer, as `flaw_in` describes it, and the usage that the answer reports, from one
    decoding; None if the gateway itself has estimated it."""
    try:
        if not body.isascii():
            body.decode()
        whole = decode_whole(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return flaw_in(body, wanted), None  # the usage may be its only flaw
    flaw = _flaw(whole, body, wanted)
    if flaw or whole.usage is None or whole.headgate_usage is not NOTHING:
        return flaw, None
    return flaw, _usage(whole.usage, whole.timings, whole.metrics)


def read_mended(body: bytes, wanted: str) -> tuple[bytes, str, Usage | None]:
    """A flawed body after `mended`, its remaining flaw, and the usage that it reports."""
    told = mended(body)
    flaw, usage = read_answer(told, wanted)
    if told is not body and not flaw and wanted and not _has_objects(told, wanted):
        flaw = f"answered without {wanted}"  # the answer itself was not JSON
    return told, flaw, usage


def mended_event(data: bytes, wanted: str) -> bytes:
    """An event after `mended`; unchanged if it still is no event. `wanted`: the list that it must have; empty: none."""
    told = mended(data)
    if told is data:
        return data
    try:
        told.decode()
        decode_chunk(told)
        return told if not wanted or _has_objects(told, wanted) else data
    except (ValueError, RecursionError):
        return data


def _has_objects(body: bytes, wanted: str) -> bool:
    """Whether the list `wanted` in the body consists of objects."""
    found = decode_event(body).get(wanted)
    return isinstance(found, list) and all(isinstance(one, dict) for one in found)


def flaw_in(body: bytes, wanted: str) -> str:
    """The flaw of a whole answer, as the end of a sentence that begins with the replica; empty: it has none.
    `wanted`: the list that it must have (choices, data, output); empty: any object is an answer."""
    try:
        if not body.isascii():
            body.decode()
        parts = decode_parts(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "answered with nothing" if not body.strip() else "answered with something that is no JSON object"
    return _flaw(parts, body, wanted)


def _flaw(parts: AnswerParts, body: bytes, wanted: str) -> str:
    if not wanted:
        return ""
    found = parts.choices if wanted == "choices" else parts.data if wanted == "data" else parts.output
    if bytes(found)[:1] == b"[":
        return ""
    if bytes(parts.error) not in (b"", b"null"):
        return f"answered 200 with an error: {quoted(read_error(body))}"
    return f"answered without {wanted}"


def _usage(found: AnswerUsage, timings: msgspec.Raw, metrics: msgspec.Raw) -> Usage | None:
    """None: the counts are nonsense."""
    details = found.prompt_tokens_details or found.input_tokens_details
    cached = None if details is None else details.cached_tokens
    prompt, output = found.prompt_tokens or found.input_tokens, found.completion_tokens or found.output_tokens or 0
    if not (0 <= prompt <= MOST_TOKENS and 0 <= output <= MOST_TOKENS and 0 <= (cached or 0) <= MOST_TOKENS):
        return None
    told = None if timings is NOTHING else _timings(timings)
    if told is None and metrics is not NOTHING:
        told = _foreign(metrics)
    return Usage(prompt, output, cached, told)


def is_event(data: bytes) -> bool:
    """Whether it is a JSON object, as each event of a stream must be. A lone surrogate, as some engines write it, is
    allowed, although msgspec refuses it."""
    try:
        found = _lenient(data.decode())
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict)


def decode_event(data: bytes) -> Any:
    """Decodes an event. Infinite numbers such as 1e999 are JSON, although msgspec refuses them: the client gets null,
    as for everything that `mended` takes out. Raises msgspec.DecodeError or UnicodeDecodeError."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        try:
            return _lenient(data.decode())
        except (ValueError, RecursionError):
            pass
        try:
            return _lenient(mended(data).decode())
        except (ValueError, RecursionError) as error:
            raise msgspec.DecodeError(str(error)) from None


def encode_told(value: Any) -> bytes:
    """Encodes a value from `decode_event` as JSON. Adjacent halves of a character become one character again."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return mended(json.dumps(value, separators=(",", ":")).encode())


def _lenient(text: str) -> Any:
    return json.loads(text, parse_constant=_no_number, parse_int=_integer)


def _integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= INT_DIGITS else None


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def is_error(data: bytes) -> bool:
    """Whether an event begins with an error. Some engines write `error: null` into every event."""
    return _ERROR.match(data) is not None


def has_finish(event: bytes) -> bool:
    """Whether the event gives one of its choices a finish_reason. Some engines write an empty one into every event."""
    try:
        choices = decode_event(event)["choices"]
        return any(isinstance(finish := choice.get("finish_reason"), str) and finish != "" for choice in choices)
    except (ValueError, LookupError, TypeError, AttributeError):
        return False


def named(headers: dict[str, str]) -> str:
    """The content type that a head announces, for a message of our own."""
    said = "".join(char for char in headers.get("content-type", "")[:80] if char.isprintable())
    return said or "no type"


def _timings(raw: msgspec.Raw) -> EngineTimings | None:
    try:
        timings = decode_timings(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # All timings of Headgate's engine have a prefill.
    return timings if timings.prefill_ms else _foreign(raw) or timings


def _foreign(raw: msgspec.Raw) -> EngineTimings | None:
    """The timings of vLLM or llama.cpp in our own fields. None: they do not say when tokens came."""
    try:
        said = decode_foreign(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if said.time_to_first_token_ms is not None or said.generation_time_ms is not None:
        return EngineTimings(
            queue_ms=said.queue_time_ms or 0.0,
            prefill_ms=said.time_to_first_token_ms or 0.0,
            decode_ms=said.generation_time_ms or 0.0,
        )
    if said.predicted_ms is not None:
        return EngineTimings(prefill_ms=said.prompt_ms or 0.0, decode_ms=said.predicted_ms)
    return None


@dataclass(frozen=True, slots=True)
class EngineError:
    """OpenAI's error object, from any form in which an engine writes it."""

    message: str
    type: str
    param: str | None
    code: str | None
    status: int | None
    """The status that vLLM and its relatives give as `code`; None: not given."""


def read_error(data: bytes) -> EngineError:
    """The error in a body or event. vLLM's older form has no `error` around it and an integer for `code`, FastAPI's own
    refusals have only `detail`, and some are not JSON at all."""
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = data.decode("utf-8", "replace").strip()
    found = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(found, dict):
        found = {"message": found}
    message = found.get("message") or found.get("detail") or "the replica gave no reason"
    code = found.get("code")
    return EngineError(
        message=_text(message)[:MOST_MESSAGE],
        type=_or_none(found.get("type")) or "invalid_request_error",
        param=_or_none(found.get("param")),
        code=_or_none(code),
        status=code if type(code) is int and 300 <= code <= 599 else None,
    )


def quoted(error: EngineError) -> str:
    """The message on one line, for a message of our own: engines put whole tracebacks there, and any bytes."""
    words = "".join(char if char.isprintable() else " " for char in error.message[: 4 * MOST_QUOTED]).split()
    text = " ".join(words)
    return text if len(text) <= MOST_QUOTED else f"{text[: MOST_QUOTED - 1]}…"


def room_in_s(headers: dict[str, str]) -> float | None:
    """Seconds until the replica expects to have capacity. None: it does not say, or nothing plausible."""
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        told = headers.get(name, "").strip()
        try:
            seconds = float(told) * unit_s
        except ValueError:
            continue
        if 0.0 <= seconds <= MOST_S:
            return seconds
    until, since = _date(headers.get("retry-after", "")), _date(headers.get("date", ""))
    if until is None or since is None:
        return None
    return min(MOST_S, max(0.0, (until - since).total_seconds()))


def _date(text: str) -> datetime | None:
    """A date as HTTP writes it; None: it is none. Only the difference of two counts: our clock may differ from the
    replica's."""
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    return found if found.tzinfo is not None else None


def error_body(error: EngineError) -> bytes:
    return msgspec.json.encode(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    )


def _text(value: Any) -> str:
    """The message as text, whatever an engine puts there."""
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except (ValueError, OverflowError, RecursionError, TypeError):
        return "the replica's reason can't be read"


def _or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None
