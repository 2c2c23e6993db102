"""A request inside an engine."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from headgate.model.sampling import Sampling

LOWEST_PRIORITY: Final = 100
"""Nothing runs below it, so a sequence of this priority never has another swapped out for it."""


class Finish(Enum):
    """Why a sequence produces no more tokens."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """The fields above the line are facts; only the Batcher writes those below it."""

    id: int
    tokens: list[int]
    """The prompt; the Batcher appends the output."""
    prompt_len: int
    max_output: int
    arrived: float
    lane: str
    priority: int
    first_token_by: float
    gap_target_s: float
    sampling: Sampling = field(default_factory=Sampling)
    cache_salt: bytes = b""
    """Sequences share prefixes only with equal salts."""
    continued: int = 0
    """Of the prompt, the tokens at its end that are output of another replica, which broke off."""
    longest_neighbour: int | None = None
    """Longest sequence (in tokens) this one accepts in its batch; None: the engine's own cap."""

    # -- written by the Batcher -------------------------------------------------------------------
    slot: int | None = None
    """The KV slot it occupies; None while it waits."""
    computed: int = 0
    """How many of `tokens` have their KV in the slot (or in `blob` while swapped out)."""
    chain: list[bytes] = field(default_factory=list)
    """Hash of every full block of `tokens`, each covering all that comes before it."""
    blob: int | None = None
    """Host copy of its KV while it is preempted."""
    cached: int = 0
    """Prompt tokens that were found in the prefix cache at first admission."""
    preemptions: int = 0
    yields: int = 0
    """Of these, those in which its slot went to a more urgent sequence, and not for lack of KV memory."""
    chunks: int = 0
    """Steps in which its prompt was prefilled."""
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    acceptance: float = 0.5
    """Share of drafted tokens that turned out right, smoothed."""
    drafts_rested: int = 0
    """Tokens since drafting was last tried."""
    finish: Finish | None = None

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def pending(self) -> int:
        """Tokens not yet in the KV cache. Exactly one, the newest, while it decodes."""
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        # Asked of every sequence several times a step: not by way of the other two.
        length = len(self.tokens)
        return length - self.computed == 1 and length > self.prompt_len
