import random

from headgate.model.sequence import Finish, Sequence
from headgate.policy.batching.output_length import LEAST_STARTED, OutputLength
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
    """One of each ten is at work: their shortness so far says nothing."""
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
    for number in range(20, 60):
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


def test_those_of_a_burst_that_still_talk_are_predicted_to_go_on() -> None:
    book = OutputLength(None, 8)
    burst = [started(book, number) for number in range(100)]
    for one in burst:
        one.tokens += [2] * 50
    for one in burst[:50]:
        ends(book, one, 50)
    expected = book.kind(burst[0]).expected
    assert expected is not None
    assert 0.5 < expected.surviving[-1] < 0.56


def test_what_was_cut_at_its_limit_would_have_gone_on() -> None:
    book = OutputLength(None, 8)
    for number in range(100):
        ends(book, started(book, number, most=600), 600, Finish.LENGTH)
    assert asked(book) == 1000
    for number in range(100, 200):
        ends(book, started(book, number), 700)
    expected = book.kind(sequence(-1, [1] * 10, max_output=1000)).expected
    assert expected is not None
    assert expected.surviving[600 >> expected.shift] == 1.0


def test_trust_grows_as_those_that_run_at_once_end_in_time() -> None:
    book = OutputLength(None, 8)
    kind = book.kind(sequence(-1, [1] * 10, max_output=1000))
    for number in range(100):
        ends(book, started(book, number), 30)
    assert kind.trusted == 2  # however many: there was never more than one at a time
    burst = [started(book, number) for number in range(100, 200)]
    for one in burst[:50]:
        ends(book, one, 30)
    assert kind.trusted == 52
    for one in burst[50:52]:
        ends(book, one, 500)  # more than most of them say
    assert kind.trusted == 44
    for one in burst[52:72]:
        ends(book, one, 500)
    trusted = kind.trusted
    assert trusted < 20
    for one in burst[72:]:
        ends(book, one, 30, Finish.CANCELLED)  # it tells nothing
    assert (kind.trusted, kind.running) == (trusted, 0)
    ends(book, started(book, 200), 30)  # nor does one alone for many
    assert kind.trusted == trusted - 1
