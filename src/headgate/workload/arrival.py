"""Defines an arrival: when one request of a workload comes, and for how many tokens."""

from typing import Any

import msgspec

from headgate.model.errors import StartupError

BLOCK_TOKENS = 512
"""Tokens that one id of a prefix stands for. Mooncake's traces were made with blocks of this size."""
UNNAMED = "all"
"""Label of arrivals without lane or name."""


class WorkloadError(StartupError):
    """A workload that can't be understood or read; the message says what and where, on one line."""


class Arrival(msgspec.Struct, frozen=True, gc=False):
    at_s: float
    """Seconds since the beginning."""
    prompt_tokens: int
    output_tokens: int
    lane: str | None = None
    """The lane that the request names; None: the server decides."""
    tenant: str | None = None
    stream: bool = True
    prefix: tuple[int, ...] = ()
    """Ids of the blocks that its prompt begins with, 512 tokens each; the last may be cut off by the prompt's end. The
    same ids from the start on are the same text. The text after them is unique."""
    session: str | None = None
    model: str | None = None
    name: str = ""
    """The stream of a mix that it belongs to."""
    prompt: Any = None
    """The original prompt, where a file of records kept it: messages, or text. None: made up by length."""
    choices: int = 1
    """Answers requested at once, each of `output_tokens` tokens."""

    @property
    def label(self) -> str:
        """The label that it is counted under."""
        return self.lane or self.name or UNNAMED

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.choices * self.output_tokens
