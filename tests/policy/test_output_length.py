import random

from headgate.model.sequence import Finish, Sequence
from headgate.policy.output_length import LEAST_STARTED, Commitment, OutputLength
from tests.scripted import sequence


def started(book: OutputLength, number: int, lane: str = "fast", most: int = 1000) -> Sequence:
    one = sequence(number, [1] * 10, max_output=most, lane=lane)
    book.start(one)
    return one


def ends(book: OutputLength, one: Sequence, said: int, finish: Finish = Finish.STOP) -> None:
    one.tokens = one.tokens[:10] + [2] * said
    one.finish = finish
    book.end(one)


def asked(book: OutputLength, lane: str = "fast", most: int = 1000) -> int:
    return book.of(sequence(-1, [1] * 10, max_output=most, lane=lane))


def test_what_is_not_known_is_taken_to_be_all_it_may_say() -> None:
    assert asked(OutputLength(None, 8)) == 1000
    assert asked(OutputLength(100, 8)) == 100


def test_it_is_an_upper_quantile_of_what_the_lane_says() -> None:
    book, rng = OutputLength(None, 8), random.Random(1)
    for number in range(500):
        ends(book, started(book, number), rng.randint(1, 100))
    assert 80 <= asked(book) <= 100
    assert asked(book, lane="slow") == 1000
    assert asked(book, most=100) == 100  # they may say less, and nobody knows what they do
    assert asked(book, most=4000) == 4000


def test_those_of_a_burst_that_end_first_do_not_stand_for_all() -> None:
    book = OutputLength(None, 8)
    burst = [started(book, number) for number in range(100)]
    for one in burst:
        one.tokens += [2] * 50
    for one in burst[:40]:
        ends(book, one, 50)
    assert asked(book) == 1000
    for one in burst[40:]:
        ends(book, one, 700)
    assert asked(book) == 700


def test_while_many_run_it_is_told_from_those_that_started_with_them() -> None:
    """Of each ten one is at work: their shortness so far says nothing."""
    book, rng = OutputLength(None, 64), random.Random(2)
    for number in range(2000):
        one = started(book, number)
        said = min(1000, int(rng.expovariate(1 / 100)))
        if number % 10:
            ends(book, one, said)
        else:
            one.tokens += [2] * (said // 2)
    assert 180 < asked(book) < 320  # 230 exactly


def test_a_cancelled_sequence_says_at_least_what_it_said() -> None:
    book = OutputLength(None, 8)
    for number in range(20):
        ends(book, started(book, number), 10, Finish.CANCELLED)
    assert asked(book) == 1000
    book.end(sequence(99, [1] * 10))  # it was never admitted
    for number in range(20, 40):
        ends(book, started(book, number), 30)
    assert asked(book) == 30


def test_one_that_says_more_than_most_may_say_twice_as_much() -> None:
    book = OutputLength(None, 8)
    for number in range(40):
        ends(book, started(book, number), 30)
    talks = started(book, 99)
    for said, predicted in ((0, 30), (29, 30), (30, 61), (100, 201), (700, 1000)):
        talks.tokens = talks.tokens[:10] + [2] * said
        assert book.of(talks) == predicted


def test_it_follows_a_lane_that_changes() -> None:
    book = OutputLength(None, 8)
    for number in range(300):
        ends(book, started(book, number), 30)
    for number in range(300, 300 + LEAST_STARTED):
        ends(book, started(book, number), 600)
    assert asked(book) == 600


def test_many_together_are_predicted_by_their_mean_and_how_far_it_varies() -> None:
    book, rng = OutputLength(None, 8), random.Random(3)
    for number in range(500):
        ends(book, started(book, number), rng.randint(1, 200))
    made = Commitment(book, 1, 4096)
    for number in range(100):
        made.add(sequence(number, [1] * 10, max_output=1000))
    needs = made.with_(sequence(-1, [1] * 10, max_output=1000))
    assert 101 * 110 < needs < 101 * 110 * 1.2  # far less than 101 times the quantile
    lone = Commitment(book, 1, 4096).with_(sequence(-1, [1] * 10, max_output=1000))
    assert lone > 10 + 180


def test_those_of_a_burst_that_still_talk_are_predicted_to_say_all_they_may() -> None:
    book = OutputLength(None, 8)
    burst = [started(book, number) for number in range(100)]
    for one in burst:
        one.tokens += [2] * 50
    for one in burst[:50]:
        ends(book, one, 50)
    expected = book.expected(burst[0])
    assert expected is not None
    assert 500 < expected.mean < 560  # half of them 50, the others 1 023


def test_in_a_sum_one_that_has_said_more_than_the_mean_counts_for_more() -> None:
    book = OutputLength(None, 8)
    for number in range(100):
        ends(book, started(book, number), number)
    talks, counted = started(book, 999), []
    for said in (0, 40, 60, 80, 95, 600):
        talks.tokens = talks.tokens[:10] + [2] * said
        counted.append(book.among_many(talks)[0])
    assert counted == [50, 50, 75, 85, 191, 1000]
    few = sequence(1, [1] * 10, max_output=520)  # it may say little more than half of what others of its kind may
    few.tokens += [2] * 515
    assert book.among_many(few) == (520, 0.0)


def test_a_commitment_tells_the_urgent_from_all() -> None:
    made = Commitment(OutputLength(8, 4), 16, 100)
    made.add(sequence(1, [1] * 24, max_output=100))  # two blocks
    made.add(sequence(2, [1] * 200, max_output=100, priority=2))  # seven: no sequence is longer than 100 tokens
    new = sequence(3, [1] * 8, max_output=8)
    assert (made.with_(new, 0), made.with_(new, 2), made.with_(new)) == (3, 10, 10)


def test_where_all_say_what_they_may_each_is_predicted_to() -> None:
    book = OutputLength(None, 8)
    for number in range(100):
        ends(book, started(book, number), 1000, Finish.LENGTH)
    assert book.among_many(sequence(-1, [1] * 10, max_output=1000))[0] == 1000
    assert book.among_many(sequence(-1, [1] * 10, max_output=600))[0] == 600
