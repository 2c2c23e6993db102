"""Accounts for KV memory in blocks, and finds cached prefixes.

A block holds a few tokens and is held by exactly one *place*: a slot (device memory, one sequence at a time) or a blob
(a copy in host memory). A slot whose sequence has ended keeps its blocks as prefix cache until another sequence needs
them.

Prefixes are found by a hash chain: the hash of block i covers every token up to its end, so one look-up says that a
place holds all blocks before it too. That makes presence monotone along a chain, and the longest match a binary search.

Slots own whole streams because that is what llama.cpp gives without copying: a finished slot is trimmed and reused in
place, a busy one is copied, a blob is loaded. See docs/decisions/0002.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from headgate.model.sequence import Sequence
from headgate.model.step import Copy, Drop, Move, Restore, Save, Trim
from headgate.policy.batching.holders import Holders
from headgate.policy.batching.ledger import BlockPlacement, KvLedger, Short


class _Place:
    __slots__ = ("blocks", "chain", "length", "owner", "pinned", "used_at")

    def __init__(
        self,
        length: int = 0,
        blocks: int = 0,
        chain: list[bytes] | None = None,
        owner: int | None = None,
        used_at: float = 0.0,
    ) -> None:
        self.length = length
        self.blocks = blocks
        self.chain: list[bytes] = [] if chain is None else chain
        self.owner = owner
        self.pinned = False
        self.used_at = used_at


class Ledger(KvLedger):
    def __init__(self, *, slots: int, slot_tokens: int, blocks: int, host_blocks: int, block_tokens: int = 16) -> None:
        super().__init__(slots, slot_tokens, blocks, host_blocks, block_tokens)
        self.save_from = 128
        """Minimum tokens of a cached prefix that is worth a host copy: saving a shorter one costs about as much as
        computing it."""
        self._forget()

    def _forget(self) -> None:
        self._slots = [_Place() for _ in range(self.slots)]
        self._blobs: dict[int, _Place] = {}
        self._next_blob = self.slots
        self._holders = Holders()
        self._loose: list[tuple[float, int]] = []
        """A heap of (last use, blob) for blobs that may be dropped for room. An entry whose time differs from the
        blob's own is out of date."""
        self._loose_blocks = 0
        """Blocks of the blobs that may be dropped."""

    # -- questions ----------------------------------------------------------------------------------

    def match(self, chain: list[bytes]) -> int:
        return self._holders.known(chain)

    def spared(self, chain: list[bytes]) -> int:
        return 0

    # -- sequences come, grow and go ------------------------------------------------------------------

    def place(self, owner: int, chain: list[bytes], tokens: int, now: float) -> BlockPlacement | Short:
        if (short := self.blocks_for(tokens) - self.available_blocks) > 0:
            return Short(short)
        matched = min(self.match(chain), (tokens - 1) // self.block_tokens)
        length = matched * self.block_tokens
        source = self._source(chain[matched - 1], length) if matched else None
        slot = self._best_free(besides=source)
        if source is not None and (source == slot or self._worth_taking_over(source, length)):
            slot, moves = source, self._keep(source, length)
        elif slot is None:
            return Short(0)
        else:
            moves = self._evict(slot, spare=source)
            if source is not None:
                copy = Restore if source in self._blobs else Copy
                moves.append(copy(source, slot, length))
                self._touch(source, now)
        place = self._slots[slot]
        place.owner, place.used_at = owner, now
        self.free_slots -= 1
        self.cached_blocks -= place.blocks
        self.owned_blocks += place.blocks
        room = self._make_room(slot, tokens)
        assert not isinstance(room, Short)  # checked above
        self._publish(slot, chain, length)
        return BlockPlacement(slot, length, (*moves, *room))

    def full(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        slots, size = self._slots, self.block_tokens
        return [s for s in sequences if s.slot is not None and len(s.tokens) > slots[s.slot].blocks * size]

    def grow(self, slot: int, length: int) -> list[Move] | Short:
        return self._make_room(slot, length)

    def commit(self, sequences: Iterable[Sequence]) -> None:
        slots, size = self._slots, self.block_tokens
        for sequence in sequences:
            if sequence.slot is not None:
                place, length = slots[sequence.slot], sequence.computed
                if length < place.length or length // size > len(place.chain):
                    self._publish(sequence.slot, sequence.chain, length)
                else:  # within a block, as nearly always
                    place.length = length

    def release(self, slot: int, now: float) -> None:
        place = self._slots[slot]
        self.owned_blocks -= place.blocks
        place.blocks = self.blocks_for(place.length)
        self.cached_blocks += place.blocks
        # Less than a block can't be found again: its slot is the first to be given away.
        place.owner, place.used_at = None, now if place.chain else 0.0
        self.free_slots += 1

    # -- host memory --------------------------------------------------------------------------------

    def swap_out(self, slot: int, now: float) -> tuple[int, list[Move]] | Short:
        place = self._slots[slot]
        moves = self._host_room(self.blocks_for(place.length))
        if isinstance(moves, Short):
            return moves
        blob = self._new_blob(place, owner=place.owner, now=now)
        moves += [Save(slot, blob, place.length), *self.forget(slot)]
        return blob, moves

    def swap_in(self, owner: int, blob: int, tokens: int, now: float) -> BlockPlacement | Short:
        held = self._blobs[blob]
        slot = self._best_free(besides=None)
        short = self.blocks_for(tokens) - self.available_blocks
        if slot is None or short > 0:
            return Short(max(0, short))
        moves = [*self._evict(slot), Restore(blob, slot, held.length)]
        place = self._slots[slot]
        place.owner, place.used_at = owner, now
        self.free_slots -= 1
        room = self._make_room(slot, tokens)
        assert not isinstance(room, Short)  # checked above
        self._publish(slot, held.chain, held.length)
        return BlockPlacement(slot, held.length, (*moves, *room, *self.drop(blob)))

    def drop(self, blob: int) -> list[Move]:
        held = self._blobs.pop(blob)
        self._holders.remove(held.chain, 0, blob)
        self.host_used -= held.blocks
        if held.owner is None and not held.pinned:
            self._loose_blocks -= held.blocks
        return [Drop(blob)]

    def pin(self, slot: int, now: float) -> list[Move] | Short:
        place = self._slots[slot]
        moves = self._host_room(self.blocks_for(place.length))
        if isinstance(moves, Short):
            return moves
        blob = self._new_blob(place, owner=None, now=now)
        held = self._blobs[blob]
        held.pinned = True
        self._loose_blocks -= held.blocks
        return [*moves, Save(slot, blob, place.length)]

    def forget(self, slot: int) -> list[Move]:
        """Empties a slot, owned or cached."""
        place = self._slots[slot]
        if place.owner is None:
            self.cached_blocks -= place.blocks
        else:
            self.owned_blocks -= place.blocks
            self.free_slots += 1
        self._holders.remove(place.chain, 0, slot)
        moves: list[Move] = [Trim(slot, 0)] if place.length else []
        self._slots[slot] = _Place()
        return moves

    # -- how it is done -----------------------------------------------------------------------------

    def _source(self, deepest: bytes, length: int) -> int:
        """Returns the best place that holds this prefix: a free slot whose KV is mostly this prefix, then a blob (a
        load is cheaper than copying a whole stream), then a busy slot. Among free slots the one that loses least."""

        def cost(place: int) -> tuple[int, int, int]:
            if place in self._blobs:
                return (1, 0, place)
            held = self._slots[place]
            rank = 2 if held.owner is not None else 0 if self._worth_taking_over(place, length) else 1
            return (rank, held.length, place)

        places = self._holders.of(deepest)
        return places[0] if len(places) == 1 else min(places, key=cost)

    def _worth_taking_over(self, slot: int, length: int) -> bool:
        """True if the slot is free and at least half of its KV is this prefix: taking the slot over trims the rest."""
        if slot >= len(self._slots):
            return False
        held = self._slots[slot]
        return held.owner is None and 2 * length >= held.length

    def _best_free(self, besides: int | None) -> int | None:
        """Returns the lowest empty slot, because a batch over neighbouring slots is one pass and a hole makes it two;
        if none is empty, the one whose prefix was used longest ago. None: no slot is free."""
        empty = used = other = None
        for slot, place in enumerate(self._slots):
            if place.owner is not None:
                continue
            if slot == besides:
                other = slot
            elif not place.length:
                if empty is None or place.used_at < self._slots[empty].used_at:
                    empty = slot
            elif used is None or place.used_at < self._slots[used].used_at:
                used = slot
        return next((slot for slot in (empty, used, other) if slot is not None), None)

    def _keep(self, slot: int, length: int) -> list[Move]:
        place = self._slots[slot]
        if place.length == length:
            return []
        self._shorten(slot, length)
        return [Trim(slot, length)]

    def _shorten(self, slot: int, length: int) -> None:
        place = self._slots[slot]
        kept = length // self.block_tokens
        self._holders.remove(place.chain, kept, slot)
        del place.chain[kept:]
        place.length = length
        blocks = self.blocks_for(length)
        self.cached_blocks -= place.blocks - blocks
        place.blocks = blocks

    def _evict(self, slot: int, spare: int | None = None) -> list[Move]:
        """Empties a cached slot. Keeps a host copy if the prefix is worth one, but not at the cost of blob `spare`."""
        place = self._slots[slot]
        moves: list[Move] = []
        if place.length:
            self.evictions += 1
        if self._worth_saving(place):
            room = self._host_room(self.blocks_for(place.length), spare)
            if not isinstance(room, Short):
                if self.save_up_to is not None:
                    self.save_up_to -= place.length
                moves = [
                    *room,
                    Save(slot, self._new_blob(place, owner=None, now=place.used_at), place.length),
                ]
        return moves + self.forget(slot)

    def _worth_saving(self, place: _Place) -> bool:
        if place.length < self.save_from or (self.save_up_to is not None and place.length > self.save_up_to):
            return False
        return self._holders.only_one(place.chain[-1])

    def _make_room(self, slot: int, length: int) -> list[Move] | Short:
        """Reserves blocks for an owned slot, evicting cached prefixes, least recently used first."""
        place = self._slots[slot]
        needed = self.blocks_for(length) - place.blocks
        if needed <= 0:
            return []
        if needed > self.available_blocks:
            return Short(needed - self.available_blocks)
        moves: list[Move] = []
        while self.blocks - self.owned_blocks - self.cached_blocks < needed:
            cached = [i for i, held in enumerate(self._slots) if held.owner is None and held.blocks]
            moves += self._evict(min(cached, key=lambda i: self._slots[i].used_at))
        place.blocks += needed
        self.owned_blocks += needed
        return moves

    def _host_room(self, blocks: int, spare: int | None = None) -> list[Move] | Short:
        """Makes room in host memory by dropping cached copies; never pinned ones or a sequence's swapped KV."""
        most = self.host_blocks - self.host_used + self._loose_blocks
        spared = None if spare is None else self._blobs.get(spare)
        if spared is not None and spared.owner is None and not spared.pinned:
            most -= spared.blocks
        if blocks > most:
            return Short(blocks - most)
        moves: list[Move] = []
        kept: tuple[float, int] | None = None
        while self.host_blocks - self.host_used < blocks:
            used_at, blob = entry = heappop(self._loose)
            held = self._blobs.get(blob)
            if held is None or held.pinned or held.used_at != used_at:
                continue  # it was dropped, or used again
            if blob == spare:
                kept = entry
            else:
                moves += self.drop(blob)
        if kept is not None:
            heappush(self._loose, kept)
        return moves

    def _new_blob(self, place: _Place, owner: int | None, now: float) -> int:
        blob, self._next_blob = self._next_blob, self._next_blob + 1
        blocks = self.blocks_for(place.length)
        self._blobs[blob] = held = _Place(place.length, blocks, list(place.chain), owner, now)
        self.host_used += blocks
        if owner is None:
            self._loose_blocks += blocks
            self._loosen(blob, held)
        self._holders.add(held.chain, 0, blob)
        return blob

    def _loosen(self, blob: int, held: _Place) -> None:
        """Notes a blob's last use in the heap."""
        if len(self._loose) > 2 * len(self._blobs) + 64:
            self._loose = [(one.used_at, name) for name, one in self._blobs.items() if one.owner is None]
            heapify(self._loose)
        heappush(self._loose, (held.used_at, blob))

    def _publish(self, slot: int, chain: list[bytes], length: int) -> None:
        """Records that the slot holds `length` tokens, whose full blocks are the first of `chain`."""
        place, full = self._slots[slot], length // self.block_tokens
        known = len(place.chain)
        if length < place.length and full < known:  # drafts that were refused, or a shorter prefix
            self._holders.remove(place.chain, full, slot)
            del place.chain[full:]
        elif full > known:
            place.chain += chain[known:full]
            self._holders.add(place.chain, known, slot)
        place.length = length

    def _touch(self, place: int, now: float) -> None:
        held = self._blobs.get(place)
        if held is None:
            self._slots[place].used_at = now
        else:
            held.used_at = now
            if held.owner is None and not held.pinned:
                self._loosen(place, held)
