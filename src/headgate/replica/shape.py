"""Declares the parts of an engine's answer that the gateway reads."""

import msgspec

from headgate.model.record import EngineTimings

NOTHING = msgspec.Raw()
"""The value of a field that is absent."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    prompt: int
    output: int
    cached: int | None
    """Tokens of the prompt that were in the engine's cache; None: the engine does not say."""
    timings: EngineTimings | None = None


class PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class AnswerUsage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    # The same counts under the names of /v1/responses.
    input_tokens: int = 0
    output_tokens: int | None = None
    input_tokens_details: PromptDetails | None = None


class Response(msgspec.Struct, gc=False):
    usage: AnswerUsage | None = None


class UsageEvent(msgspec.Struct, gc=False):
    """A stream's event that reports usage; other fields are skipped, not decoded."""

    usage: AnswerUsage | None = None
    choices: list[msgspec.Raw] | None = None
    timings: msgspec.Raw = NOTHING
    """From Headgate's engine, or llama.cpp's of the same name: decoded separately, since an engine may write anything
    there. Not `| None`, with which msgspec accepts nothing but null."""
    metrics: msgspec.Raw = NOTHING
    """From vLLM with --enable-per-request-metrics; decoded in the same way."""
    headgate_usage: msgspec.Raw = NOTHING
    """Present where the gateway itself has estimated the usage: nothing can be learned from that."""
    response: Response | None = None
    """The object that an event of /v1/responses is about."""


class ForeignTimings(msgspec.Struct, gc=False):
    """Where other engines say their time went, in milliseconds. None: not reported."""

    # vLLM's `metrics`: queue, from there to the first token, from the first token to the last.
    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    # llama.cpp's `timings`, which do not say how long a request waited for a slot.
    prompt_ms: float | None = None
    predicted_ms: float | None = None


class Chunk(msgspec.Struct, gc=False):
    """One event of a stream: valid JSON throughout, or it would not decode, of which only these fields are looked into.
    Their values are raw; NOTHING: the field is absent."""

    usage: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING


class AnswerParts(msgspec.Struct, gc=False):
    """The parts of a whole answer that a client needs, raw."""

    choices: msgspec.Raw = NOTHING
    data: msgspec.Raw = NOTHING
    output: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING


class WholeAnswer(AnswerParts, gc=False):
    """A whole answer together with its usage, from one decoding."""

    usage: AnswerUsage | None = None
    timings: msgspec.Raw = NOTHING
    metrics: msgspec.Raw = NOTHING
    headgate_usage: msgspec.Raw = NOTHING


decode_chunk = msgspec.json.Decoder(Chunk).decode
decode_parts = msgspec.json.Decoder(AnswerParts).decode
decode_whole = msgspec.json.Decoder(WholeAnswer).decode
decode_timings = msgspec.json.Decoder(EngineTimings).decode
decode_foreign = msgspec.json.Decoder(ForeignTimings).decode
decode_answer = msgspec.json.Decoder(UsageEvent).decode
