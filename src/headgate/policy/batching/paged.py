"""Accounts for KV memory that is paged, as GPU engines have it: a table gives each sequence its blocks, and sequences
that begin alike share them.

A block in use counts once, however many sequences use it. A full block that no sequence uses any more stays as prefix
cache; when its memory is needed, the block that was used longest ago goes first, to host memory if there is room there
and time to copy it. Emulated and simulated GPUs have this account. llama.cpp, which Headgate's own engine runs, has no
such table: see docs/decisions/0002.

Of two blocks of one prompt, the one nearer to the beginning is never evicted first: the blocks of a chain that are on
the device are its first, and a binary search finds how many.
"""

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final

from headgate.model.sequence import Sequence
from headgate.model.step import Drop, Move, Restore, Save
from headgate.policy.batching.ledger import BlockPlacement, KvLedger, Short

UNNAMED: Final = -1
"""Stands for the slot or blob of a move where single blocks are moved: only their number matters."""


class _Table:
    """The blocks of one sequence."""

    __slots__ = ("blocks", "chain", "length")

    def __init__(self, chain: list[bytes], length: int, blocks: int) -> None:
        self.chain = chain
        """Full blocks that are computed: these can be shared."""
        self.length = length
        """Tokens computed."""
        self.blocks = blocks
        """Blocks reserved, computed or not."""


class PagedLedger(KvLedger):
    def __init__(self, *, slots: int, slot_tokens: int, blocks: int, host_blocks: int, block_tokens: int = 16) -> None:
        super().__init__(slots, slot_tokens, blocks, host_blocks, block_tokens)
        self._forget()

    def _forget(self) -> None:
        self._free = list(range(self.slots))
        """A heap of the slots that no sequence has."""
        self._tables: dict[int, _Table] = {}
        self._users: dict[bytes, int] = {}
        """Sequences that use each full block."""
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        """Full blocks that no sequence uses, the least recently used first."""
        self._copies: OrderedDict[bytes, None] = OrderedDict()
        """Blocks copied to host memory when they were evicted, the least recently used first."""
        self._pinned: dict[bytes, None] = {}
        """Blocks copied to host memory for good."""
        self._blobs: dict[int, _Table] = {}
        """Sequences that are swapped out."""
        self._away: dict[bytes, int] = {}
        """Sequences swapped out with each full block."""
        self._next_blob = self.slots
        self._reserved = 0
        """Blocks of all tables, each as often as it is in one."""
        self._listed = 0
        """Full blocks of all tables, likewise."""
        self._swapped = 0
        """Blocks of the sequences that are swapped out."""

    # -- questions ----------------------------------------------------------------------------------

    def match(self, chain: list[bytes]) -> int:
        here = self._on_device(chain)
        return here + self._on_host(chain, here, len(chain))

    def spared(self, chain: list[bytes]) -> int:
        return self._listed - len(self._users) + self._in_use(chain)

    def _in_use(self, chain: list[bytes]) -> int:
        """Returns the number of leading blocks that sequences use."""
        users, low, high = self._users, 0, len(chain)
        while low < high:
            middle = (low + high + 1) // 2
            if chain[middle - 1] in users:
                low = middle
            else:
                high = middle - 1
        return low

    def _on_device(self, chain: list[bytes]) -> int:
        low, high = self._in_use(chain), len(chain)
        idle = self._idle
        while low < high:
            middle = (low + high + 1) // 2
            if chain[middle - 1] in idle:
                low = middle
            else:
                high = middle - 1
        return low

    def _on_host(self, chain: list[bytes], start: int, end: int) -> int:
        """Returns the number of blocks from `start` on that host memory holds without a gap."""
        at = start
        while at < end and self._has_copy(chain[at]):
            at += 1
        return at - start

    def _has_copy(self, digest: bytes) -> bool:
        return digest in self._copies or digest in self._pinned or digest in self._away

    # -- sequences come, grow and go ------------------------------------------------------------------

    def place(self, owner: int, chain: list[bytes], tokens: int, now: float) -> BlockPlacement | Short:
        most = (tokens - 1) // self.block_tokens
        if (short := self._short(chain[:most], tokens)) is not None:
            return short
        here = self._on_device(chain[:most])
        loaded = self._on_host(chain, here, most)
        for digest in chain[here : here + loaded]:
            if digest in self._copies:
                self._copies.move_to_end(digest)
        length = (here + loaded) * self.block_tokens
        slot = self._give(chain[: here + loaded], length, tokens)
        moves = self._make_room()
        if loaded:
            moves.append(Restore(UNNAMED, slot, loaded * self.block_tokens))
        return BlockPlacement(slot, length, tuple(moves))

    def full(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        tables, size = self._tables, self.block_tokens
        return [s for s in sequences if s.slot is not None and len(s.tokens) > tables[s.slot].blocks * size]

    def grow(self, slot: int, length: int) -> list[Move] | Short:
        table = self._tables[slot]
        needed = self.blocks_for(length) - table.blocks
        if needed <= 0:
            return []
        if needed > self.available_blocks:
            return Short(needed - self.available_blocks)
        table.blocks += needed
        self._reserved += needed
        return self._make_room()

    def commit(self, sequences: Iterable[Sequence]) -> None:
        size, more = self.block_tokens, False
        for sequence in sequences:
            if sequence.slot is None:
                continue
            table = self._tables[sequence.slot]
            table.length = sequence.computed
            known, full = len(table.chain), sequence.computed // size
            if full > known:
                self._use(sequence.chain[known:full])
                table.chain += sequence.chain[known:full]
                more = True
        if more:
            self._count()

    def release(self, slot: int, now: float) -> None:
        # The end of a prompt first, so that it is evicted before the beginning.
        for digest in reversed(self._take(slot).chain):
            if _less(self._users, digest):
                self._idle[digest] = None
        self._count()

    # -- host memory --------------------------------------------------------------------------------

    def swap_out(self, slot: int, now: float) -> tuple[int, list[Move]] | Short:
        table = self._tables[slot]
        blocks = self.blocks_for(table.length)
        if (short := self._host_room(blocks)) is not None:
            return short
        blob, self._next_blob = self._next_blob, self._next_blob + 1
        self._blobs[blob] = _Table(table.chain, table.length, blocks)
        self._swapped += blocks
        for digest in table.chain:
            self._away[digest] = self._away.get(digest, 0) + 1
        self.release(slot, now)
        return blob, [Save(slot, blob, table.length)]

    def swap_in(self, owner: int, blob: int, tokens: int, now: float) -> BlockPlacement | Short:
        held = self._blobs[blob]
        if (short := self._short(held.chain, tokens)) is not None:
            return short
        loaded = held.length - self._on_device(held.chain) * self.block_tokens
        slot = self._give(held.chain, held.length, tokens)
        moves = [*self._make_room(), Restore(blob, slot, loaded), *self.drop(blob)]
        return BlockPlacement(slot, held.length, tuple(moves))

    def drop(self, blob: int) -> list[Move]:
        held = self._blobs.pop(blob)
        self._swapped -= held.blocks
        for digest in held.chain:
            _less(self._away, digest)
        self._count()
        return [Drop(blob)]

    def pin(self, slot: int, now: float) -> list[Move] | Short:
        wanted = [digest for digest in self._tables[slot].chain if digest not in self._pinned]
        missing = sum(digest not in self._copies for digest in wanted)
        for digest in wanted:  # a copy that is there already must not make room for itself
            self._copies.pop(digest, None)
        self._count()
        if (short := self._host_room(len(wanted))) is not None:
            return short
        self._pinned.update(dict.fromkeys(wanted))
        self._count()
        return [Save(slot, UNNAMED, missing * self.block_tokens)]

    def _host_room(self, blocks: int) -> Short | None:
        """Drops copies of evicted blocks, the least recently used first, until this many blocks fit. Short: they would
        not fit without any."""
        most = self.host_blocks - self._swapped - len(self._pinned)
        if blocks > most:
            return Short(blocks - most)
        while len(self._copies) > most - blocks:
            self._copies.popitem(last=False)
        self._count()
        return None

    # -- how it is done -----------------------------------------------------------------------------

    def _short(self, chain: list[bytes], tokens: int) -> Short | None:
        """Returns what a sequence lacks that begins with this chain; None: nothing."""
        short = self.blocks_for(tokens) - self._in_use(chain) - self.available_blocks
        return Short(max(0, short)) if short > 0 or not self._free else None

    def _give(self, chain: list[bytes], length: int, tokens: int) -> int:
        """Gives a sequence the lowest free slot, these full blocks, and room for its `tokens`."""
        slot = heappop(self._free)
        self._tables[slot] = _Table(list(chain), length, self.blocks_for(tokens))
        self._reserved += self.blocks_for(tokens)
        self.free_slots -= 1
        self._use(chain)
        return slot

    def _take(self, slot: int) -> _Table:
        table = self._tables.pop(slot)
        self._reserved -= table.blocks
        self._listed -= len(table.chain)
        self.free_slots += 1
        heappush(self._free, slot)
        return table

    def _use(self, chain: list[bytes]) -> None:
        users, idle = self._users, self._idle
        for digest in chain:
            before = users.get(digest, 0)
            users[digest] = before + 1
            if not before:
                idle.pop(digest, None)
        self._listed += len(chain)

    def _count(self) -> None:
        self.owned_blocks = self._reserved - self._listed + len(self._users)
        self.cached_blocks = len(self._idle)
        self.host_used = self._swapped + len(self._pinned) + len(self._copies)

    def _make_room(self) -> list[Move]:
        """Evicts as many cached blocks as the blocks in use now exceed the free memory."""
        self._count()
        over = self.owned_blocks + self.cached_blocks - self.blocks
        if over <= 0:
            return []
        self.evictions += over
        saved = sum(self._evict() for _ in range(over))
        self._count()
        return [Save(UNNAMED, UNNAMED, saved * self.block_tokens)] if saved else []

    def _evict(self) -> bool:
        """Evicts the block that was used longest ago. Returns whether it is copied to host memory."""
        digest, _ = self._idle.popitem(last=False)
        if self._has_copy(digest) or (self.save_up_to is not None and self.save_up_to < self.block_tokens):
            return False
        most = self.host_blocks - self._swapped - len(self._pinned)
        if most < 1:
            return False
        if len(self._copies) >= most:
            self._copies.popitem(last=False)
        if self.save_up_to is not None:
            self.save_up_to -= self.block_tokens
        self._copies[digest] = None
        return True


def _less(counts: dict[bytes, int], digest: bytes) -> bool:
    """Counts a block once less. Returns whether none is left."""
    left = counts[digest] - 1
    if left:
        counts[digest] = left
        return False
    del counts[digest]
    return True
