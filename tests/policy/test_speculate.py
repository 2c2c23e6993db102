import pytest

from headgate.config.engine import BatchConfig
from headgate.policy.batching.blocks import Ledger
from headgate.policy.batching.estimate import StepTime
from headgate.policy.batching.speculate import draft_length, drafted_rows, learn_acceptance, look_up
from tests.scripted import sequence


def test_what_followed_the_same_ending_before_is_the_guess() -> None:
    assert look_up([1, 2, 3, 4, 5, 9, 2, 3], 2) == (4, 5)


def test_the_longest_ending_and_its_latest_occurrence_win() -> None:
    assert look_up([1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 1) == (7,)
    assert look_up([2, 3, 7, 2, 3, 8, 2, 3], 1) == (8,)


def test_nothing_is_guessed_where_nothing_repeats() -> None:
    assert look_up([1, 2, 3, 4], 4) == ()
    assert look_up([1], 4) == ()


def test_drafting_pays_only_when_guesses_are_right_and_cheap_to_check() -> None:
    def cheap(drafted: int) -> float:
        return 0.010 + 0.001 * drafted

    def dear(drafted: int) -> float:
        return 0.010 * (1 + drafted)

    assert draft_length(0.95, cheap, 8) == 8
    assert draft_length(0.0, cheap, 8) == 0
    assert draft_length(0.99, dear, 8) == 0
    assert draft_length(0.99, cheap, 0) == 0


def test_acceptance_follows_what_was_accepted_and_a_refusal_counts_once() -> None:
    one = sequence(1, [1])
    before = one.acceptance
    learn_acceptance(one, drafted=4, accepted=4)
    risen = one.acceptance
    assert risen > before
    learn_acceptance(one, drafted=4, accepted=0)
    assert one.acceptance == risen * 0.85


@pytest.mark.parametrize("rest", [0, 1, 5])
def test_where_drafts_do_not_pay_one_is_tried_after_a_rest(rest: int) -> None:
    one = sequence(1, [1, 2, 3, 4] * 4, max_output=60)
    one.slot, one.acceptance = 0, 0.0
    ledger = Ledger(slots=1, slot_tokens=80, blocks=80, host_blocks=0, block_tokens=1)
    drafts = []
    for _ in range(3 * (rest + 1)):
        (row,) = drafted_rows([one], BatchConfig(draft_rest=rest), ledger, StepTime(), [])
        drafts.append(len(row.draft))
    assert drafts == ([0] * rest + [2]) * 3
