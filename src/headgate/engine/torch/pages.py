"""Names the page of device memory that holds each block: the ledger's account, with a place for every block in it.

PagedLedger counts blocks; a GPU's attention must know where they lie. This ledger makes the same decisions, since
every count is its parent's, and keeps a table of pages beside each sequence's blocks. Sequences that begin alike have
the same pages in their tables, and an evicted block gives its page back.

A table has one page more than the account: the step after the next may run before the Batcher has planned it, and must
have somewhere to write.
"""

from collections.abc import Iterable
from typing import Final

from headgate.model.sequence import Sequence
from headgate.model.step import Move
from headgate.policy.batching.ledger import BlockPlacement, Short
from headgate.policy.batching.paged import PagedLedger

NOWHERE: Final = 0
"""The page of rows that only fill a batch up. No sequence reads it."""


class PageLedger(PagedLedger):
    """Has no host memory: a preempted sequence is computed again, but for what survives in the cache."""

    def __init__(self, *, slots: int, slot_tokens: int, blocks: int, block_tokens: int = 16) -> None:
        super().__init__(slots=slots, slot_tokens=slot_tokens, blocks=blocks, host_blocks=0, block_tokens=block_tokens)

    def _forget(self) -> None:
        super()._forget()
        self.pages = self.blocks + self.slots + 1
        """Pages that the device must have: the account's, one more for each slot, and NOWHERE."""
        self._spare = list(range(self.pages - 1, NOWHERE, -1))
        self._page_of: dict[bytes, int] = {}
        """The page of each full block, in use or cached."""
        self._rows: dict[int, list[int]] = {}
        """The table of each slot."""
        self._shared: dict[int, int] = {}
        """How many of a slot's pages are in `_page_of`: its first."""
        self._changed: dict[int, int] = {}
        """The first entry of each slot's table that the device does not know yet."""

    def table(self, slot: int) -> list[int]:
        """Returns the pages of a slot's blocks, in order, and one more."""
        return self._rows[slot]

    def take_changes(self) -> dict[int, int]:
        """Returns the slots whose tables have changed since the last call, each with its first new entry."""
        changed, self._changed = self._changed, {}
        return changed

    # -- the parent's decisions, and the pages that follow from them --------------------------------------

    def place(self, owner: int, chain: list[bytes], tokens: int, now: float) -> BlockPlacement | Short:
        placed = super().place(owner, chain, tokens, now)
        if isinstance(placed, BlockPlacement):
            self._seat(placed.slot)
        return placed

    def swap_in(self, owner: int, blob: int, tokens: int, now: float) -> BlockPlacement | Short:
        placed = super().swap_in(owner, blob, tokens, now)
        if isinstance(placed, BlockPlacement):
            self._seat(placed.slot)
        return placed

    def grow(self, slot: int, length: int) -> list[Move] | Short:
        moves = super().grow(slot, length)
        if not isinstance(moves, Short):
            self._lengthen(slot)
        return moves

    def commit(self, sequences: Iterable[Sequence]) -> None:
        kept = list(sequences)
        super().commit(kept)
        for sequence in kept:
            slot = sequence.slot
            if slot is not None and len(self._tables[slot].chain) > self._shared[slot]:
                self._share(slot)

    def release(self, slot: int, now: float) -> None:
        row = self._rows.pop(slot)
        self._spare += reversed(row[self._shared.pop(slot) :])
        self._changed.pop(slot, None)
        super().release(slot, now)

    def pin(self, slot: int, now: float) -> list[Move] | Short:
        """Keeps the slot's full blocks in device memory for good, as one more user of them."""
        chain = list(self._tables[slot].chain)
        self._reserved += len(chain)
        self._use(chain)
        self._count()
        return []

    def _evict(self) -> bool:
        digest = next(iter(self._idle))
        saved = super()._evict()
        self._spare.append(self._page_of.pop(digest))
        return saved

    # -- tables -------------------------------------------------------------------------------------------

    def _seat(self, slot: int) -> None:
        chain = self._tables[slot].chain
        self._rows[slot] = [self._page_of[digest] for digest in chain]
        self._shared[slot] = len(chain)
        self._changed[slot] = 0
        self._lengthen(slot)

    def _lengthen(self, slot: int) -> None:
        row, wanted = self._rows[slot], self._tables[slot].blocks + 1
        if len(row) < wanted:
            self._changed[slot] = min(self._changed.get(slot, len(row)), len(row))
            while len(row) < wanted:
                row.append(self._spare.pop())

    def _share(self, slot: int) -> None:
        """Offers the slot's new full blocks to others. Where another sequence has computed the same block, its page is
        taken and the own one given back: the account counts it once."""
        row, chain, first = self._rows[slot], self._tables[slot].chain, self._shared[slot]
        for at in range(first, len(chain)):
            page = self._page_of.setdefault(chain[at], row[at])
            if page != row[at]:
                self._spare.append(row[at])
                row[at] = page
                self._changed[slot] = min(self._changed.get(slot, at), at)
        self._shared[slot] = len(chain)
