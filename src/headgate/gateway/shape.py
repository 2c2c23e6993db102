"""What a client may say, as far as the gateway has to understand it."""

from typing import Any

import msgspec


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class Shape(msgspec.Struct, kw_only=True):
    """The part of a body that the gateway has to understand; the rest passes through."""

    model: str = ""
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[Any] | None = None
    input: str | list[Any] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    user: str | None = None
    service_tier: str | None = None
    priority: int | None = None
    lane: str | None = None
