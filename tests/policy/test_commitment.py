import random
from itertools import pairwise

import pytest
from benchmarks.burst import PROFILE, Case, comes
from benchmarks.stepped import serve

from headgate.policy.batching.commitment import FIRST, Commitment, spans
from headgate.policy.batching.output_length import LengthClass, OutputLength
from tests.policy.test_output_length import ends, started
from tests.scripted import sequence


def of_a_thousand(most: int = 1000, trusted: int = 1000) -> tuple[OutputLength, LengthClass]:
    """They say anything from 1 to `most`."""
    book, rng = OutputLength(None, 64), random.Random(3)
    for number in range(1000):
        ends(book, started(book, number), rng.randint(1, most))
    kind = book.kind(sequence(-1, [1] * 10, max_output=1000))
    kind.trusted = trusted
    return book, kind


def together(book: OutputLength, count: int, said: int = 0) -> float:
    """Tokens that this number of sequences needs."""
    made = Commitment(book, 1, 4096)
    one = sequence(-1, [1] * 10, max_output=1000)
    one.tokens += [2] * said
    for _ in range(count - 1):
        made.add(one)
    return made.needs(one)


def test_the_spans_of_the_future_reach_as_far_as_a_sequence_can() -> None:
    assert spans(10) == [0, 10]
    found = spans(4096)
    assert found[:3] == [0, FIRST, 90]
    assert found[-1] == 4096
    assert all(later > earlier for earlier, later in pairwise(found))


def test_what_is_not_known_is_counted_as_all_they_may_say() -> None:
    assert together(OutputLength(None, 8), 5) == 5 * 1010
    assert together(OutputLength(100, 8), 5) == 5 * 110
    assert together(OutputLength(100, 8), 5, said=100) == 5 * 211  # more than was guessed
    assert together(OutputLength(None, 8), 5, said=999) == 5 * 1010


def test_when_some_are_long_others_have_ended() -> None:
    """At half of the way half of them are left: a quarter of what all would hold at their limits."""
    book, _ = of_a_thousand()
    assert 0.25 * 200 * 1010 < together(book, 200) < 0.45 * 200 * 1010


def test_a_lone_one_has_room_for_nearly_all_that_they_say() -> None:
    book, _ = of_a_thousand(most=200)
    assert 150 < together(book, 1) < 250


def test_more_at_once_than_have_been_seen_are_counted_as_all_they_may_say() -> None:
    book, kind = of_a_thousand(most=100)
    assert together(book, 200) < 200 * 110
    kind.trusted = 20
    assert 180 * 1010 < together(book, 200) < 180 * 1010 + 20 * 110


def test_one_that_has_said_more_than_any_is_taken_to_go_on() -> None:
    book, _ = of_a_thousand(most=100)
    assert together(book, 10, said=200) == 10 * 1010


def test_nothing_is_longer_than_a_slot() -> None:
    made = Commitment(OutputLength(None, 8), 16, 100)
    made.add(sequence(1, [1] * 90, max_output=1000))
    assert made.needs(sequence(2, [1] * 90, max_output=1000)) == 2 * 7


def test_a_commitment_tells_the_urgent_from_all() -> None:
    made = Commitment(OutputLength(8, 4), 1, 100)
    new = sequence(3, [1] * 8, max_output=8)
    assert made.needs(new, 0) == 16
    made.add(sequence(1, [1] * 24, max_output=100))
    made.add(sequence(2, [1] * 80, max_output=100, priority=2))
    assert (made.needs(new, 0), made.needs(new, 2), made.needs(new)) == (48, 136, 136)
    assert made.exceeds(new, 47.0, 0)
    assert not made.exceeds(new, 48.0, 0)
    late = Commitment(OutputLength(None, 4), 1, 1000)
    late.add(sequence(1, [1] * 24, max_output=900))
    assert late.exceeds(sequence(2, [1] * 8, max_output=8), 923.0)  # it has ended when the other needs most
    assert not late.exceeds(sequence(2, [1] * 8, max_output=8), 924.0)
    made.add(sequence(4, [1] * 1, max_output=100))
    assert (made.needs(new, 0), made.needs(new)) == (57, 145)


@pytest.mark.parametrize("seed", range(20))
def test_what_exceeds_needs_more(seed: int) -> None:
    rng = random.Random(seed)
    book, _ = of_a_thousand(rng.choice((100, 1000)), rng.choice((0, 5, 1000)))
    made = Commitment(book, 16, 2048)
    for number in range(rng.randint(0, 40)):
        one = sequence(number, [1] * rng.randint(1, 900), max_output=rng.choice((3, 200, 1000)), priority=number % 3)
        one.tokens += [2] * rng.randint(0, one.max_output - 1)
        made.add(one)
    new = sequence(-1, [1] * rng.randint(1, 900), max_output=rng.choice((3, 200, 1000)))
    for urgent in range(3):
        needs = made.needs(new, urgent)
        assert made.exceeds(new, needs - 0.1, urgent)
        assert not made.exceeds(new, needs + 0.1, urgent)


@pytest.mark.timeout(120)  # traced line by line for coverage, it takes half a minute
def test_long_answers_after_short_ones_with_the_same_limit_are_not_swapped_out() -> None:
    served = serve(PROFILE, comes(Case(name="", count=250, output=(1500, 4000), before=300), seed=0))
    assert served.swaps + served.recomputes == 0


@pytest.mark.parametrize("asked_first", [True, False])
def test_what_is_needed_is_what_is_not_exceeded_whatever_the_priorities(asked_first: bool) -> None:
    book, _ = of_a_thousand()
    made, one = Commitment(book, 1, 4096), sequence(-1, [1] * 10, max_output=1000)
    if asked_first:
        made.needs(one)
    for number in range(20):
        made.add(sequence(number, [1] * 10, max_output=1000, priority=number % 3))
    needs = made.needs(one)
    assert needs > 1.2 * 10 * 500  # more than they need on average
    assert not made.exceeds(one, needs + 1e-6)
    assert made.exceeds(one, needs - 1e-6)
