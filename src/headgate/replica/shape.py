"""What an engine's answer looks like, as far as the gateway reads it."""

import msgspec

from headgate.model.record import EngineTimings

NOTHING = msgspec.Raw()
"""Of a field that is not there."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    prompt: int
    output: int
    cached: int
    """Tokens of the prompt that were in the engine's cache."""
    timings: EngineTimings | None = None


class PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class AnswerUsage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    # What the same are called by /v1/responses.
    input_tokens: int = 0
    output_tokens: int | None = None
    input_tokens_details: PromptDetails | None = None


class Response(msgspec.Struct, gc=False):
    usage: AnswerUsage | None = None


class UsageEvent(msgspec.Struct, gc=False):
    """Of a stream's event that tells usage; whatever else is in it is skipped, not decoded."""

    usage: AnswerUsage | None = None
    choices: list[msgspec.Raw] | None = None
    timings: msgspec.Raw = NOTHING
    """Ours, or llama.cpp's of the same name: read by themselves, since anybody may say anything there. Not `| None`,
    with which msgspec takes nothing but null."""
    metrics: msgspec.Raw = NOTHING
    """vLLM's, with --enable-per-request-metrics; read in the same way."""
    response: Response | None = None
    """What an event of /v1/responses is about."""


class ForeignTimings(msgspec.Struct, gc=False):
    """What other engines say about where their time went. None: not said."""

    # vLLM's `metrics`: waiting, from there to the first token, from the first token to the last.
    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    # llama.cpp's `timings`; it does not say how long a request waited for a slot.
    prompt_ms: float | None = None
    predicted_ms: float | None = None


class Chunk(msgspec.Struct, gc=False):
    """One event of a stream: JSON throughout, as nothing else could be decoded, of which only these are ever looked
    into. They are as they are written; NOTHING where they are not there."""

    usage: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING


class AnswerParts(msgspec.Struct, gc=False):
    """Of a whole answer: what a client needs of it, as it is written."""

    choices: msgspec.Raw = NOTHING
    data: msgspec.Raw = NOTHING
    output: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING


class WholeAnswer(AnswerParts, gc=False):
    """A whole answer that also tells what it took, in one look."""

    usage: AnswerUsage | None = None
    timings: msgspec.Raw = NOTHING
    metrics: msgspec.Raw = NOTHING


decode_chunk = msgspec.json.Decoder(Chunk).decode
decode_parts = msgspec.json.Decoder(AnswerParts).decode
decode_whole = msgspec.json.Decoder(WholeAnswer).decode
decode_timings = msgspec.json.Decoder(EngineTimings).decode
decode_foreign = msgspec.json.Decoder(ForeignTimings).decode
decode_answer = msgspec.json.Decoder(UsageEvent).decode
