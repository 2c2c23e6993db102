"""Defines what the batcher asks of an account of KV memory, and the hash chain that tells equal beginnings of prompts.

There are two accounts: `blocks.Ledger`, where each slot holds its own blocks, and `paged.PagedLedger`, where sequences
share them.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from headgate.model.sequence import Sequence
from headgate.model.step import Move


def extend_chain(chain: list[bytes], tokens: list[int], block_tokens: int, salt: bytes) -> None:
    """Appends the hashes of the full blocks of `tokens` that `chain` does not cover yet."""
    for start in range(len(chain) * block_tokens, len(tokens) - block_tokens + 1, block_tokens):
        block = array("q", tokens[start : start + block_tokens]).tobytes()
        # Not builtin hash(): it differs between processes, and replay compares decisions across them. `person` keeps a
        # salt, which a client may choose, from posing as the digest of a block: its prefix would be another client's.
        before, person = (chain[-1], b"block") if chain else (salt[:64], b"salt")
        chain.append(blake2b(block, digest_size=16, key=before, person=person).digest())


@dataclass(frozen=True, slots=True)
class BlockPlacement:
    """A sequence's slot, the tokens of it that are there already, and the moves that make this true."""

    slot: int
    length: int
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Short:
    """Not enough memory: `blocks` more would suffice."""

    blocks: int


class KvLedger(ABC):
    """An account of KV memory in blocks of a few tokens."""

    def __init__(self, slots: int, slot_tokens: int, blocks: int, host_blocks: int, block_tokens: int) -> None:
        self.slots = slots
        self.slot_tokens = slot_tokens
        self.block_tokens = block_tokens
        self.blocks = blocks
        self.host_blocks = host_blocks
        self.save_up_to: int | None = None
        """Maximum tokens of cached prefixes that may be copied to host memory before the next step; None: unlimited.
        More would delay that step for too long."""
        self.owned_blocks = 0
        """Blocks in use by sequences."""
        self.cached_blocks = 0
        """Blocks kept as prefix cache, which may be evicted at any time."""
        self.host_used = 0
        self.evictions = 0
        """Cached prefixes, or blocks of them, that had to give up their device memory."""
        self.free_slots = slots
        self.longest = min(slot_tokens, blocks * block_tokens)
        """Maximum tokens of a sequence."""

    def clear(self) -> None:
        """Forgets all prefixes, on the device and on the host. Only while there is no sequence."""
        self.owned_blocks = self.cached_blocks = self.host_used = 0
        self.free_slots = self.slots
        self._forget()

    @abstractmethod
    def _forget(self) -> None:
        """Makes the account that of an empty memory."""

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    @property
    def available_blocks(self) -> int:
        """Blocks that no sequence owns; cached ones count, since they can be evicted at any time."""
        return self.blocks - self.owned_blocks

    @abstractmethod
    def match(self, chain: list[bytes]) -> int:
        """Returns the number of leading blocks of `chain` that are held anywhere."""

    @abstractmethod
    def spared(self, chain: list[bytes]) -> int:
        """Returns the blocks that need not be held, because the sequences in slots and one with this chain share
        others."""

    @abstractmethod
    def place(self, owner: int, chain: list[bytes], tokens: int, now: float) -> BlockPlacement | Short:
        """Gives `owner` a slot with room for its `tokens`, holding as much of its prefix as is cached; never all of it,
        since the last token must be computed to know what comes next."""

    @abstractmethod
    def full(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Returns the sequences whose slots have no room for all their tokens: at a block's end, one step in
        sixteen."""

    @abstractmethod
    def grow(self, slot: int, length: int) -> list[Move] | Short:
        """Reserves blocks so that the slot's owner may have `length` tokens."""

    @abstractmethod
    def commit(self, sequences: Iterable[Sequence]) -> None:
        """Records that the slots of these sequences now really hold their computed tokens."""

    @abstractmethod
    def release(self, slot: int, now: float) -> None:
        """Frees the owner's slot; the KV that it computed stays as prefix cache."""

    @abstractmethod
    def swap_out(self, slot: int, now: float) -> tuple[int, list[Move]] | Short:
        """Copies an owned slot to host memory and frees its blocks. Short: host memory is full."""

    @abstractmethod
    def swap_in(self, owner: int, blob: int, tokens: int, now: float) -> BlockPlacement | Short:
        """Gives a swapped-out sequence a slot with its KV back in it, and room for its `tokens`."""

    @abstractmethod
    def drop(self, blob: int) -> list[Move]:
        """Frees the host memory of a swapped-out sequence."""

    @abstractmethod
    def pin(self, slot: int, now: float) -> list[Move] | Short:
        """Keeps a host copy of the slot's KV for good, so that its prefix never has to be computed again."""
