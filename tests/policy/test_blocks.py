import pytest

from headgate.model.step import Copy, Drop, Restore, Save, Trim
from headgate.policy.batching.blocks import Ledger
from headgate.policy.batching.ledger import BlockPlacement, Short, extend_chain
from tests.scripted import sequence

B = 4


def ledger(slots: int = 3, slot_tokens: int = 400, blocks: int = 300, host_blocks: int = 300) -> Ledger:
    made = Ledger(slots=slots, slot_tokens=slot_tokens, blocks=blocks, host_blocks=host_blocks, block_tokens=B)
    made.save_from = 8
    return made


def chain(tokens: list[int], salt: bytes = b"") -> list[bytes]:
    made: list[bytes] = []
    extend_chain(made, tokens, B, salt)
    return made


def put(book: Ledger, owner: int, tokens: list[int], now: float = 0.0) -> BlockPlacement:
    """Place a sequence and compute all of it."""
    placed = book.place(owner, chain(tokens), len(tokens), now)
    assert isinstance(placed, BlockPlacement)
    compute(book, placed.slot, tokens)
    return placed


def compute(book: Ledger, slot: int, tokens: list[int]) -> None:
    one = sequence(1, tokens)
    one.slot, one.computed, one.chain = slot, len(tokens), chain(tokens)
    book.commit([one])


def test_a_chain_hash_covers_everything_before_it_and_the_salt() -> None:
    assert chain([1, 2, 3, 4, 5, 6, 7, 8])[:1] == chain([1, 2, 3, 4])
    assert chain([9, 2, 3, 4, 5, 6, 7, 8])[1] != chain([1, 2, 3, 4, 5, 6, 7, 8])[1]
    assert chain([1, 2, 3, 4], b"tenant") != chain([1, 2, 3, 4])
    assert chain([1, 2, 3]) == []


def test_a_finished_slot_is_trimmed_and_reused_in_place() -> None:
    book = ledger()
    first = put(book, 1, list(range(20)))
    book.release(first.slot, 1.0)
    again = book.place(2, chain([*range(12), 99, 98, 97, 96]), 16, 2.0)
    assert again == BlockPlacement(first.slot, 12, (Trim(first.slot, 12),))


@pytest.mark.parametrize(("held", "taken_over"), [(16, True), (20, False)])
def test_a_finished_slot_is_reused_if_at_least_half_of_it_is_asked_for_and_copied_from_otherwise(
    held: int, taken_over: bool
) -> None:
    book = ledger()
    first = put(book, 1, list(range(held)))
    book.release(first.slot, 1.0)
    again = book.place(2, chain([*range(8), 99, 98, 97, 96]), 12, 2.0)
    assert isinstance(again, BlockPlacement)
    assert again.length == 8
    assert (again.slot == first.slot) == taken_over


def test_a_finished_slot_that_holds_just_what_is_asked_for_is_reused_as_it_is() -> None:
    book = ledger()
    first = put(book, 1, list(range(20)))
    book.release(first.slot, 1.0)
    assert book.place(2, chain([*range(20), 99, 98, 97, 96]), 24, 2.0) == BlockPlacement(first.slot, 20, ())


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    book = ledger()
    book.release(put(book, 1, list(range(8))).slot, 1.0)
    again = book.place(2, chain(list(range(8))), 8, 2.0)
    assert isinstance(again, BlockPlacement)
    assert again.length == 4


def test_a_busy_slots_prefix_is_copied() -> None:
    book = ledger()
    busy = put(book, 1, list(range(20)))
    again = book.place(2, chain([*range(16), 99]), 17, 2.0)
    assert again == BlockPlacement(1, 16, (Copy(busy.slot, 1, 16),))


def test_a_slot_that_holds_much_more_than_the_match_is_copied_rather_than_cut() -> None:
    book = ledger()
    book.release(put(book, 1, list(range(40))).slot, 1.0)
    again = book.place(2, chain([*range(8), 99]), 9, 2.0)
    assert again == BlockPlacement(1, 8, (Copy(0, 1, 8),))


def test_the_only_free_slot_is_cut_even_if_it_holds_much_more() -> None:
    book = ledger(slots=1)
    book.release(put(book, 1, list(range(40))).slot, 1.0)
    assert book.place(2, chain([*range(8), 99]), 9, 2.0) == BlockPlacement(0, 8, (Trim(0, 8),))


def test_an_evicted_prefix_is_kept_on_the_host_and_loaded_back() -> None:
    book = ledger(slots=1)
    book.release(put(book, 1, list(range(16))).slot, 1.0)
    other = put(book, 2, [50 + i for i in range(16)], 2.0)
    assert other.moves == (Save(0, 1, 16), Trim(0, 0))
    book.release(0, 3.0)
    back = book.place(3, chain([*range(16), 7]), 17, 4.0)
    assert isinstance(back, BlockPlacement)
    assert back.length == 16
    assert Restore(1, 0, 16) in back.moves
    assert book.evictions == 2


def test_a_short_prefix_is_not_worth_a_host_copy() -> None:
    book = ledger(slots=1)
    book.release(put(book, 1, list(range(4))).slot, 1.0)
    assert put(book, 2, [50, 51, 52, 53, 54], 2.0).moves == (Trim(0, 0),)


def test_what_is_held_elsewhere_too_is_not_saved_again() -> None:
    book = ledger(slots=1)
    book.release(put(book, 1, list(range(16))).slot, 1.0)
    assert book.pin(0, 1.0) == [Save(0, 1, 16)]
    assert put(book, 2, [50 + i for i in range(8)], 2.0).moves == (Trim(0, 0),)
    assert book.evictions == 1
    assert book.host_used == 4


def test_an_empty_slot_is_taken_before_a_cached_one_and_then_the_least_recently_used() -> None:
    book = ledger(slots=3)
    for owner, base in enumerate((0, 100), start=1):
        assert put(book, owner, [base + i for i in range(4)], float(owner)).slot == owner - 1
    book.release(0, 9.0)
    book.release(1, 8.0)
    assert put(book, 3, [200, 201, 202, 203]).slot == 2
    assert put(book, 4, [300, 301, 302, 303], 10.0).slot == 1


def test_a_salt_can_not_pose_as_another_prompts_beginning() -> None:
    whole = chain(list(range(8)))
    assert chain([4, 5, 6, 7], salt=whole[0])[0] != whole[1]


def test_eviction_never_drops_the_blob_that_is_about_to_be_loaded() -> None:
    book = ledger(slots=1, host_blocks=4)
    book.release(put(book, 1, list(range(16))).slot, 1.0)
    book.release(put(book, 2, [50 + i for i in range(16)], 2.0).slot, 2.0)
    back = book.place(3, chain([*range(16), 7]), 17, 4.0)
    assert isinstance(back, BlockPlacement)
    assert back.moves == (Trim(0, 0), Restore(1, 0, 16))


def test_the_next_oldest_host_copy_goes_where_the_oldest_is_about_to_be_loaded() -> None:
    book = ledger(slots=1, host_blocks=8)
    for owner, base in enumerate((0, 100, 200), start=1):
        book.release(put(book, owner, [base + i for i in range(16)], float(owner)).slot, float(owner))
    back = book.place(4, chain([*range(16), 7]), 17, 4.0)
    assert isinstance(back, BlockPlacement)
    assert back.moves == (Drop(2), Save(0, 3, 16), Trim(0, 0), Restore(1, 0, 16))
    book.release(0, 5.0)
    placed = book.place(5, chain([300 + i for i in range(16)]), 16, 6.0)  # the first was used since
    assert isinstance(placed, BlockPlacement)
    assert Drop(1) not in placed.moves


def test_no_more_is_copied_to_the_host_before_a_step_than_that_has_time_for() -> None:
    book = ledger(slots=2)
    for owner, base in enumerate((0, 100), start=1):
        put(book, owner, [base + i for i in range(16)], float(owner))
    for slot in (0, 1):
        book.release(slot, 3.0 + slot)
    book.save_up_to = 20
    assert Save(0, 2, 16) in put(book, 3, [200 + i for i in range(16)], 5.0).moves
    assert put(book, 4, [300 + i for i in range(16)], 6.0).moves == (Trim(1, 0),)


def test_older_host_copies_make_room_for_newer_ones() -> None:
    book = ledger(slots=1, host_blocks=4)
    for owner, base in enumerate((0, 100, 200), start=1):
        book.release(put(book, owner, [base + i for i in range(16)], float(owner)).slot, float(owner))
    placed = book.place(9, chain([300 + i for i in range(16)]), 16, 9.0)
    assert isinstance(placed, BlockPlacement)
    assert placed.moves == (Drop(2), Save(0, 3, 16), Trim(0, 0))


def test_memory_that_is_short_is_said_before_anything_changes() -> None:
    book = ledger(blocks=8)
    put(book, 1, list(range(24)))
    assert book.place(2, chain(list(range(100, 112))), 12, 1.0) == Short(1)
    assert book.grow(0, 36) == Short(1)
    assert (book.owned_blocks, book.cached_blocks) == (6, 0)


def test_no_slot_is_short_of_nothing() -> None:
    book = ledger(slots=1)
    put(book, 1, [1, 2, 3])
    assert book.place(2, [], 3, 1.0) == Short(0)


def test_growth_evicts_the_least_recently_used_prefix() -> None:
    book = ledger(blocks=8)
    for owner in (1, 2, 3):
        put(book, owner, [owner] * 8)
    book.release(0, 5.0)
    book.release(1, 4.0)
    assert book.grow(2, 24) == [Save(1, 3, 8), Trim(1, 0)]
    assert book.match(chain([2] * 8)) == 2  # on the host
    assert book.match(chain([1] * 8)) == 2  # still in its slot


def test_a_swapped_sequence_comes_back_whole() -> None:
    book = ledger()
    put(book, 1, list(range(20)))
    swapped = book.swap_out(0, 1.0)
    assert not isinstance(swapped, Short)
    blob, moves = swapped
    assert moves == [Save(0, blob, 20), Trim(0, 0)]
    assert book.owned_blocks == 0
    back = book.swap_in(1, blob, 21, 2.0)
    assert back == BlockPlacement(0, 20, (Restore(blob, 0, 20), Drop(blob)))
    assert (book.owned_blocks, book.host_used) == (6, 0)


def test_a_full_host_refuses_to_swap_and_a_full_device_to_restore() -> None:
    book = ledger(slots=2, blocks=8, host_blocks=4)
    put(book, 1, list(range(16)))
    swapped = book.swap_out(0, 1.0)
    assert not isinstance(swapped, Short)
    put(book, 2, list(range(100, 124)))
    assert book.swap_out(0, 2.0) == Short(6)
    assert book.pin(0, 2.0) == Short(6)
    assert book.swap_in(1, swapped[0], 16, 3.0) == Short(2)


def test_a_pinned_prefix_outlives_every_other_host_copy() -> None:
    book = ledger(slots=1, host_blocks=8)
    put(book, 1, list(range(16)))
    book.pin(0, 0.0)
    book.release(0, 0.0)
    for owner, base in enumerate((100, 200, 300), start=2):
        book.release(put(book, owner, [base + i for i in range(16)], float(owner)).slot, float(owner))
    assert book.match(chain(list(range(16)))) == 4


def test_refused_drafts_are_forgotten() -> None:
    book = ledger()
    put(book, 1, list(range(12)))
    compute(book, 0, list(range(6)))
    assert book.match(chain(list(range(12)))) == 1
