"""Paged memory: sequences that begin alike share blocks, and what none uses any more is kept until it is needed."""

from headgate.model.sampling import Sampled
from headgate.model.step import Drop, Restore, Save
from headgate.policy.batching.ledger import BlockPlacement, Short, extend_chain
from headgate.policy.batching.paged import UNNAMED, PagedLedger
from headgate.policy.compose import batcher_for
from tests.scripted import sequence

B = 4


def ledger(slots: int = 4, slot_tokens: int = 400, blocks: int = 100, host_blocks: int = 0) -> PagedLedger:
    return PagedLedger(slots=slots, slot_tokens=slot_tokens, blocks=blocks, host_blocks=host_blocks, block_tokens=B)


def chain(tokens: list[int]) -> list[bytes]:
    made: list[bytes] = []
    extend_chain(made, tokens, B, b"")
    return made


def compute(book: PagedLedger, slot: int, tokens: list[int]) -> None:
    one = sequence(1, tokens)
    one.slot, one.computed, one.chain = slot, len(tokens), chain(tokens)
    book.commit([one])


def put(book: PagedLedger, tokens: list[int]) -> BlockPlacement:
    """Places a sequence and computes all of it."""
    placed = book.place(1, chain(tokens), len(tokens), 0.0)
    assert isinstance(placed, BlockPlacement)
    compute(book, placed.slot, tokens)
    return placed


SHARED = list(range(40))


def test_what_running_sequences_share_is_held_once() -> None:
    book = ledger()
    put(book, [*SHARED, 91, 92, 93, 94])
    assert book.owned_blocks == 11
    second = put(book, [*SHARED, 81, 82, 83, 84])
    assert second.length == 40
    assert second.moves == ()
    assert book.owned_blocks == 12
    assert book.available_blocks == 88
    # Predictions count each sequence's blocks, so that much more may be predicted than there is.
    assert book.spared(chain([*SHARED, 71])) == 10 + 10
    assert book.spared(chain([7, 7, 7, 7])) == 10


def test_a_prompt_computed_twice_at_the_same_time_is_held_once_afterwards() -> None:
    book = ledger()
    one, other = book.place(1, chain(SHARED), 40, 0.0), book.place(2, chain(SHARED), 40, 0.0)
    assert isinstance(one, BlockPlacement)
    assert isinstance(other, BlockPlacement)
    assert book.owned_blocks == 20
    compute(book, one.slot, SHARED[:24])
    compute(book, other.slot, SHARED)
    assert book.owned_blocks == 10 + 4
    compute(book, one.slot, SHARED)
    assert book.owned_blocks == 10


def test_what_is_not_used_any_more_stays_cached_and_a_partial_block_does_not() -> None:
    book = ledger()
    first = put(book, [*SHARED, 91, 92])
    book.release(first.slot, 1.0)
    assert (book.owned_blocks, book.cached_blocks, book.free_slots) == (0, 10, 4)
    assert book.match(chain([*SHARED, 1, 2, 3, 4])) == 10
    again = book.place(2, chain([*SHARED, 1, 2, 3, 4]), 44, 2.0)
    assert again == BlockPlacement(first.slot, 40, ())
    assert (book.owned_blocks, book.cached_blocks) == (11, 0)


def test_what_was_forgotten_is_found_by_no_prompt() -> None:
    book = ledger(blocks=10, host_blocks=8)
    book.release(put(book, SHARED).slot, 1.0)
    book.release(put(book, [7] * 16).slot, 2.0)
    assert book.host_used == 4
    book.clear()
    assert (book.owned_blocks, book.cached_blocks, book.host_used, book.free_slots) == (0, 0, 0, 4)
    assert book.match(chain(SHARED)) == 0
    assert put(book, SHARED).moves == ()


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    book = ledger()
    book.release(put(book, SHARED).slot, 1.0)
    placed = book.place(2, chain(SHARED), 40, 2.0)
    assert isinstance(placed, BlockPlacement)
    assert placed.length == 36


def test_the_block_used_longest_ago_is_evicted_first_and_the_end_of_a_prompt_before_its_beginning() -> None:
    book = ledger(blocks=12)
    book.release(put(book, SHARED).slot, 1.0)
    book.release(put(book, [7, 7, 7, 7]).slot, 2.0)
    assert book.cached_blocks == 11
    third = put(book, [8] * 16)
    assert third.moves == ()  # there is no host memory to copy to
    assert book.evictions == 3
    assert book.match(chain(SHARED)) == 7
    assert book.match(chain([7, 7, 7, 7])) == 1
    book.release(put(book, [*SHARED[:20], 1]).slot, 3.0)  # the first five are used again
    put(book, [9] * 12)
    assert book.match(chain(SHARED)) == 5
    assert book.match(chain([7, 7, 7, 7])) == 0


def test_evicted_blocks_go_to_the_host_and_are_loaded_from_there() -> None:
    book = ledger(blocks=10, host_blocks=8)
    book.release(put(book, SHARED).slot, 1.0)
    other = put(book, [7] * 16)
    assert other.moves == (Save(UNNAMED, UNNAMED, 16),)
    assert book.host_used == 4
    assert book.match(chain(SHARED)) == 10
    book.release(other.slot, 2.0)
    again = book.place(2, chain([*SHARED, 1]), 41, 3.0)
    assert isinstance(again, Short)
    assert again == Short(1)
    again = book.place(2, chain(SHARED), 40, 3.0)
    assert isinstance(again, BlockPlacement)
    assert again.length == 36
    assert again.moves == (Save(UNNAMED, UNNAMED, 16), Restore(UNNAMED, again.slot, 12))
    assert book.host_used == 8
    book.release(again.slot, 4.0)
    # What the host has already is not copied again.
    assert put(book, [6] * 8).moves == ()
    # What has not been used longest makes room there.
    assert put(book, [5] * 32).moves == (Save(UNNAMED, UNNAMED, 24),)
    assert book.host_used == 8


def test_no_more_is_copied_to_the_host_before_a_step_than_that_has_time_for() -> None:
    book = ledger(blocks=10, host_blocks=8)
    book.release(put(book, SHARED).slot, 1.0)
    book.save_up_to = 10
    assert put(book, [7] * 16).moves == (Save(UNNAMED, UNNAMED, 8),)
    assert book.save_up_to == 2
    # The first two that were evicted are on the host; what lies between them and the beginning is lost.
    assert book.match(chain(SHARED)) == 6


def test_memory_that_is_short_is_said_before_anything_changes() -> None:
    book = ledger(blocks=12)
    put(book, SHARED)
    assert book.place(2, chain([7] * 16), 16, 0.0) == Short(2)
    # With a beginning that is in use, it fits.
    assert isinstance(book.place(2, chain([*SHARED, 1, 2, 3, 4]), 48, 0.0), BlockPlacement)
    assert book.place(3, chain([5]), 1, 0.0) == Short(1)
    assert book.owned_blocks == 12


def test_no_slot_is_short_of_nothing() -> None:
    book = ledger(slots=1)
    put(book, SHARED)
    assert book.place(2, chain([7]), 1, 0.0) == Short(0)


def test_growth_takes_free_blocks_then_cached_ones_and_says_when_there_are_none() -> None:
    book = ledger(blocks=12, host_blocks=4)
    book.release(put(book, [7] * 8).slot, 1.0)
    slot = put(book, SHARED[:36]).slot
    assert book.grow(slot, 36) == []
    assert book.full([sequence(1, SHARED)]) == []
    one = sequence(1, SHARED)
    one.slot = slot
    assert book.full([one]) == [one]
    assert book.grow(slot, 40) == []
    assert book.full([one]) == []
    assert book.grow(slot, 44) == [Save(UNNAMED, UNNAMED, 4)]
    assert book.grow(slot, 60) == Short(3)
    assert book.owned_blocks == 11


def test_a_sequence_without_a_slot_has_nothing_to_record() -> None:
    book = ledger()
    book.commit([sequence(1, SHARED)])
    assert book.match(chain(SHARED)) == 0


def test_a_swapped_sequence_comes_back_whole_and_loads_only_what_has_left_the_device() -> None:
    book = ledger(blocks=12, host_blocks=12)
    slot = put(book, [*SHARED, 1, 2]).slot
    swapped = book.swap_out(slot, 1.0)
    assert swapped == (4, [Save(slot, 4, 42)])
    assert (book.owned_blocks, book.cached_blocks, book.host_used) == (0, 10, 11)
    other = put(book, [7] * 16)
    assert other.moves == ()  # it is on the host with its sequence
    assert book.match(chain(SHARED)) == 10
    assert book.swap_in(1, 4, 44, 2.0) == Short(3)
    book.release(other.slot, 3.0)
    back = book.swap_in(1, 4, 44, 4.0)
    assert isinstance(back, BlockPlacement)
    assert back.length == 42
    assert back.moves == (Save(UNNAMED, UNNAMED, 12), Restore(4, back.slot, 42 - 32), Drop(4))
    assert book.host_used == 1


def test_two_swapped_sequences_that_begin_alike_each_keep_their_own() -> None:
    book = ledger(blocks=30, host_blocks=30)
    one, other = put(book, [*SHARED, 1]).slot, put(book, [*SHARED, 2]).slot
    blobs = [book.swap_out(slot, 1.0) for slot in (one, other)]
    assert book.host_used == 22
    assert not isinstance(blobs[0], Short)
    assert book.drop(blobs[0][0]) == [Drop(blobs[0][0])]
    put(book, [7] * 120)
    assert book.match(chain(SHARED)) == 10
    assert not isinstance(blobs[1], Short)
    book.drop(blobs[1][0])
    assert book.match(chain(SHARED)) == 0


def test_a_full_host_refuses_to_swap_but_gives_up_its_copies_first() -> None:
    book = ledger(blocks=10, host_blocks=9)
    book.release(put(book, SHARED).slot, 1.0)
    slot = put(book, [7] * 36).slot
    assert book.host_used == 9
    swapped = book.swap_out(slot, 2.0)
    assert not isinstance(swapped, Short)
    assert book.host_used == 9
    book.release(put(book, [6] * 8).slot, 3.0)
    assert book.swap_out(put(book, [5] * 8).slot, 3.0) == Short(2)
    # And then there is no room for what is evicted, either.
    assert put(book, [4] * 24).moves == ()


def test_a_pinned_prefix_outlives_every_other_host_copy() -> None:
    book = ledger(blocks=10, host_blocks=4)
    slot = put(book, [1] * 8).slot
    assert book.pin(slot, 1.0) == [Save(slot, UNNAMED, 8)]
    assert book.pin(slot, 1.0) == [Save(slot, UNNAMED, 0)]
    book.release(slot, 1.0)
    for token in range(2, 6):
        book.release(put(book, [token] * 36).slot, float(token))
    assert book.match(chain([1] * 8)) == 2
    assert book.host_used == 4
    found = book.place(9, chain([1] * 12), 12, 9.0)
    assert isinstance(found, BlockPlacement)
    assert found.length == 8
    assert book.pin(put(book, [6] * 20).slot, 9.0) == Short(3)


def test_a_copy_that_is_there_already_is_pinned_without_another() -> None:
    book = ledger(blocks=10, host_blocks=8)
    book.release(put(book, [1] * 16).slot, 1.0)
    book.release(put(book, [2] * 36).slot, 2.0)
    assert book.host_used == 3
    slot = put(book, [1] * 16).slot
    assert book.host_used == 6
    assert book.pin(slot, 3.0) == [Save(slot, UNNAMED, 4)]
    assert book.host_used == 7


def test_an_engine_with_paged_memory_admits_as_many_as_share_it() -> None:
    def running(paged: bool) -> int:
        batch = batcher_for(slots=8, slot_tokens=400, kv_tokens=45 * B, host_tokens=0, block_tokens=B, paged=paged)
        for number in range(8):
            assert batch.add(sequence(number, [*SHARED[:36], number, 91, 92], max_output=9)) is None
            step = batch.plan(0.0)
            assert step is not None
            batch.done(step, [Sampled(row.sequence.id, (5,)) for row in step.rows], frozenset(), 0.0, 0.01)
        return len(batch.running)

    # Each has 12 blocks in the end, nine of them shared: 96 apart, 33 together.
    assert running(paged=True) == 8
    assert running(paged=False) == 3
