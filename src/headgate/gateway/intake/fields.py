"""The fields of a request body that the gateway reads, with OpenAI's ranges."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

LONGEST_STOP = 1024
"""Maximum characters of a stop sequence."""


class StreamFields(msgspec.Struct, gc=False):
    include_usage: bool | None = None


class ChatFields(msgspec.Struct, kw_only=True, gc=False):
    """The fields of a body that the gateway reads; all others pass through. None: not given, or null."""

    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[Any] | None = None
    input: str | list[Any] | None = None
    stream: bool | None = None
    stream_options: StreamFields | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_logprobs: int | None = None
    logprobs: bool | int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | list[Any] | None = None
    dimensions: int | None = None
    tools: list[Any] | None = None
    user: str | None = None
    service_tier: str | None = None
    priority: int | None = None
    lane: str | None = None


_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_AtLeastOne = Annotated[int, Meta(ge=1)]
_Stop = Annotated[str, Meta(max_length=LONGEST_STOP)]


class UsualFields(ChatFields, kw_only=True, gc=False):
    """The same with all values in OpenAI's ranges, as in nearly every body; such a body needs no further range
    check."""

    max_tokens: _AtLeastOne | None = None
    max_completion_tokens: _AtLeastOne | None = None
    max_output_tokens: _AtLeastOne | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    logprobs: bool | Annotated[int, Meta(ge=0, le=5)] | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=4)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    dimensions: _AtLeastOne | None = None
    tools: Annotated[list[Any], Meta(max_length=128)] | None = None


class ResponsesBody(msgspec.Struct, kw_only=True):
    """The fields of a /v1/responses body that the gateway reads, whichever engine answers."""

    model: str = ""
    input: str | list[str | dict[str, Any]] | None = None
    instructions: str | list[Any] | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    store: bool | None = None
    tools: list[Any] | None = None
    parallel_tool_calls: bool | None = None


class MessagesBody(msgspec.Struct, kw_only=True):
    """The fields of a /v1/messages body whose kind the gateway relies on."""

    model: str = ""
    messages: list[dict[str, Any]] | None = None
    system: str | list[Any] | None = None
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    tools: list[Any] | None = None


INTEGERS = (
    "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "top_logprobs", "logprobs", "seed", "dimensions",
    "priority",
)  # fmt: skip
"""Whole-number fields, which may also be written as 100.0."""
