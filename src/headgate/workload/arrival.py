"""Who comes when, and for how much? One Arrival for each request of a workload."""

from typing import Any

import msgspec

from headgate.model.errors import StartupError

BLOCK_TOKENS = 512
"""What one id of a prefix stands for. Mooncake's traces were made with blocks of this size."""
UNNAMED = "all"
"""What arrivals without lane or name are counted under."""


class WorkloadError(StartupError):
    """A workload that can't be understood or read; says what and where, on one line."""


class Arrival(msgspec.Struct, frozen=True, gc=False):
    at_s: float
    """Since the beginning."""
    prompt_tokens: int
    output_tokens: int
    lane: str | None = None
    """Asked for by name; None: whoever serves it decides."""
    tenant: str | None = None
    stream: bool = True
    prefix: tuple[int, ...] = ()
    """Ids of the blocks its prompt begins with, 512 tokens each; the last may be cut off by the prompt's end. The same
    ids from the start on are the same text. What goes beyond them is nobody else's."""
    session: str | None = None
    model: str | None = None
    name: str = ""
    """The stream of a mix that it belongs to."""
    prompt: Any = None
    """What was really asked, where a file of records kept it: messages, or text."""
    choices: int = 1
    """Answers that it asks for at once, each as long as `output_tokens`."""

    @property
    def label(self) -> str:
        """What it is counted under."""
        return self.lane or self.name or UNNAMED

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.choices * self.output_tokens
