"""Defines a Sequence: a request inside an engine."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from headgate.model.sampling import Sampling

LOWEST_PRIORITY: Final = 100
"""The lowest priority. A sequence of this priority never has another swapped out for it."""


class Finish(Enum):
    """Why a sequence produces no more tokens."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One request inside an engine. Only the Batcher writes the fields below the line; those above it are facts,
    but for priority and deadline: a prompt whose expected prefix is not cached gets those of what it computes."""

    id: int
    tokens: list[int]
    """The prompt, to which the Batcher appends the output."""
    prompt_len: int
    max_output: int
    arrived: float
    lane: str
    priority: int
    first_token_by: float
    gap_target_s: float
    sampling: Sampling = field(default_factory=Sampling)
    cache_salt: bytes = b""
    """Sequences share cached prefixes only where their salts are equal."""
    continued: int = 0
    """Tokens at the end of the prompt that another replica had already produced before it broke off."""
    longest_neighbour: int | None = None
    """Longest sequence, in tokens, that this one accepts in its batch; None: the engine's own cap."""
    expected: int = 0
    """Prompt tokens that the gateway expected to be computed when it chose the lane; 0: it did not say."""

    # -- written by the Batcher -------------------------------------------------------------------
    slot: int | None = None
    """The KV slot that the sequence occupies; None: it waits."""
    computed: int = 0
    """Tokens of `tokens` whose KV is in the slot, or in `blob` while swapped out."""
    chain: list[bytes] = field(default_factory=list)
    """Hash of every full block of `tokens`; each hash covers all blocks before it."""
    blob: int | None = None
    """Host copy of the KV while the sequence is preempted; None: no copy."""
    cached: int = 0
    """Prompt tokens that were found in the prefix cache at first admission."""
    preemptions: int = 0
    yields: int = 0
    """Preemptions in which the slot went to a more urgent sequence, not for lack of KV memory."""
    chunks: int = 0
    """Steps that prefilled part of the prompt."""
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    acceptance: float = 0.5
    """Smoothed share of drafted tokens that were accepted."""
    drafts_rested: int = 0
    """Tokens since the last draft."""
    finish: Finish | None = None

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def pending(self) -> int:
        """Tokens not yet in the KV cache: exactly one, the newest, while the sequence decodes."""
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        # Called several times per step for every sequence, so it does not go through the other two properties.
        length = len(self.tokens)
        return length - self.computed == 1 and length > self.prompt_len
