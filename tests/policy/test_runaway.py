"""Answers that only repeat themselves are told, and not one of thousands of ordinary texts is taken for one."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.config.output import Runaway
from headgate.engine.bound import COLLAPSED
from headgate.policy.answers.repeat_kind import ITEMS, LEAST, LINES, MEMBERS, PATTERNS, PHRASES, SENTENCES, kind_of
from headgate.policy.answers.runaway import WINDOW, Detector
from tests.ordinary.answers import ANSWERS
from tests.ordinary.corpus import made, mixed
from tests.ordinary.loops import LATE, LOOPS, SEA
from tests.ordinary.words import paragraph, sentence


def stopped_at(text: str | bytes, size: int = 4, setting: Runaway = "safe") -> int | None:
    """Bytes after which it is ended; None: never. In pieces about as long as tokens are."""
    data = text.encode() if isinstance(text, str) else text
    detector = Detector(setting)
    for at in range(0, len(data), size):
        if detector.hear(data[at : at + size]):
            return at + size
    return None


def sentences(seed: int, count: int) -> str:
    return paragraph(random.Random(seed), count)


# -- what must not be ended ---------------------------------------------------------------------------------


def test_thousands_of_ordinary_texts_are_left_alone() -> None:
    texts = [*made(), *mixed(count=200)]
    ended = [(text.kind, text.number) for text in texts if stopped_at(text.text) is not None]
    assert len(texts) >= 2000
    assert ended == []


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("size", [1, 4, 23])
def test_equal_lines_that_were_asked_for_are_left_alone(name: str, size: int) -> None:
    assert stopped_at(ANSWERS[name], size) is None


@pytest.mark.parametrize("name", ANSWERS)
def test_the_same_where_the_model_is_sure_of_itself(name: str) -> None:
    """Our engine needs less then: a model that copies a line is sure of the next word."""
    detector, data = Detector(), ANSWERS[name].encode()
    detector.share = COLLAPSED
    assert not any(detector.hear(data[at : at + 4]) for at in range(0, len(data), 4))


def test_a_loop_in_which_numbers_counted_on_at_first_is_ended() -> None:
    said = " The table is formatted with the markdown header {} in the same row, and in the same column."
    assert stopped_at("".join(said.format(number) for number in range(10, 60))) is None
    counted = "".join(said.format(number) for number in range(10, 14))
    at = stopped_at(counted + 12 * said.format(14))
    assert at is not None
    assert 2 * len(said) < at - len(counted) < 5 * len(said)


def test_a_text_said_three_times_and_no_more_is_left_alone() -> None:
    for seed in range(50):
        text = sentences(seed, 2)
        assert stopped_at(f"{sentences(99, 3)} {text} {text} {text} {sentences(seed + 100, 3)}") is None


# -- what must be ended ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_sentences_that_repeat_are_ended_within_three_repetitions(count: int) -> None:
    for seed in range(30):
        start, unit = sentences(seed, 5) + "\n", sentences(seed + 1000, count) + " "
        at = stopped_at(start + unit * 12)
        assert at is not None
        assert at <= len(start) + max(4 * len(unit), len(unit) + LEAST) + 8


def test_one_that_says_two_things_in_turn_is_noticed_by_both_together() -> None:
    """The likeness of the halves must not hide the likeness of the wholes."""
    said, start = sentences(3, 1), sentences(4, 3) + " "
    unit = f"{said} {said}\n\n"
    at = stopped_at(start + unit * 12)
    assert at is not None
    assert at <= len(start) + 4 * len(unit) + 4


def test_one_that_says_each_of_two_things_twice_is_noticed() -> None:
    """Where what repeats goes on otherwise, a few bytes are found in many places: more of them say where it was so."""
    down, up = (f"but if you have a list of numbers you may want to sort it in {how} order, " for how in ["down", "up"])
    unit = down + down + up + up
    at = stopped_at(sentences(5, 2) + " " + unit * 8)
    assert at is not None
    assert at <= len(sentences(5, 2)) + 5 * len(unit)


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("size", [1, 4, 9])
def test_what_has_grown_out_of_the_text_is_ended_within_three_repetitions(name: str, size: int) -> None:
    before, unit = (text.encode() for text in LOOPS[name])
    at = stopped_at(before + unit * 20, size)
    assert at is not None
    assert at <= len(before) + max(4 * len(unit), len(unit) + LEAST) + size


@pytest.mark.parametrize("name", LATE)
def test_what_may_have_been_asked_for_is_ended_too_only_later(name: str) -> None:
    before, unit = (text.encode() for text in LATE[name][:2])
    at = stopped_at(before + unit * 1000)
    assert at is not None
    assert len(before) + 6 * len(unit) < at <= len(before) + LATE[name][2] * len(unit)


def test_a_list_is_ended_where_items_that_differ_came_first() -> None:
    """The numbers of the items count on; those within them are the same each time."""
    some = [sentences(seed, 1) for seed in range(20, 26)]
    items = [*some, *["The Roman Empire was divided into 12 tiers, each with its own capital city."] * 30]
    text = "".join(f"{at}. {item}\n" for at, item in enumerate(items, 1))
    at = stopped_at(text)
    assert at is not None
    assert text[:at].count("12 tiers") <= 7  # the tenth number is longer, and what was before it is no evidence


def test_lines_in_a_fence_are_code_however_long_ago_it_was_opened() -> None:
    code = "".join(f"{sentence(random.Random(at))}\n\n" for at in range(300)) + f"{SEA}\n\n"
    assert len(code) > 2 * WINDOW
    fenced, unit = f"```\n{code}", f"{sentences(1, 4)} {SEA}\n\n"
    late, soon = stopped_at(fenced + unit * 40), stopped_at(code + unit * 40)
    assert late is not None
    assert soon is not None
    assert soon - len(code) < 5 * len(unit) < 10 * len(unit) < late - len(fenced)


def test_short_phrases_need_more_and_patterns_most() -> None:
    phrase, row = stopped_at("over and over again, " * 1000), stopped_at("| 0 | 0 |\n" * 1000)
    assert phrase is not None
    assert row is not None
    assert SENTENCES.least < PHRASES.least <= phrase < PATTERNS.least <= row


def test_one_token_for_ever_is_ended_at_last() -> None:
    for token in (" the", "!", "\n", "0", "\u54c8"):
        assert stopped_at(token * 5000) is not None


def test_quick_needs_half_of_the_evidence() -> None:
    unit = sentences(5, 2) + " "
    safe, quick = stopped_at(unit * 12), stopped_at(unit * 12, setting="quick")
    assert safe is not None
    assert quick is not None
    assert quick - len(unit) == pytest.approx((safe - len(unit)) / 2, abs=8)


def test_a_text_that_goes_on_after_repeating_a_little_starts_from_nothing() -> None:
    unit = sentences(6, 1)
    assert stopped_at(f"{unit} {unit} {unit} But then it was not. {unit} {unit} {unit} And so on.") is None


# -- how it is fed -------------------------------------------------------------------------------------------


@given(st.integers(1, 64))
def test_the_size_of_the_pieces_hardly_matters(size: int) -> None:
    unit = sentences(7, 2) + " "
    at = stopped_at(sentences(8, 3) + unit * 20, size)
    assert at is not None
    assert at <= len(sentences(8, 3)) + 4 * len(unit) + 2 * size


@given(st.lists(st.binary(max_size=40), max_size=60))
@example([b"1", bytes(15), b"0", bytes(15)])
def test_whatever_comes_in_evidence_is_what_it_says(pieces: list[bytes]) -> None:
    detector, said = Detector(), b""
    for piece in pieces:
        said += piece
        detector.hear(piece)
        if detector.period:
            period, matched = detector.period, detector.matched
            text = said.translate(bytes.maketrans(b"123456789", b"000000000"))  # digits are ignored at first
            assert text[len(text) - matched :] == text[len(text) - matched - period : len(text) - period]


def test_memory_is_bounded_however_long_it_goes_on() -> None:
    rng, detector = random.Random(0), Detector()
    for _ in range(5000):
        detector.hear(sentence(rng).encode())
    assert len(detector._text) <= 2 * WINDOW + 200


def test_nothing_said_is_nothing_learned() -> None:
    detector = Detector()
    assert not any(detector.hear(b"") for _ in range(100))


@pytest.mark.parametrize(
    ("unit", "kind"),
    [
        ("The sea is a vast and mysterious realm beyond us. ", SENTENCES),
        ("The sea is a vast and mysterious realm beyond us.\n", SENTENCES),
        ("1. The sea is a vast and mysterious realm beyond us.\n", SENTENCES),
        ("- The sea is a vast and mysterious realm beyond us.\n", ITEMS),
        ("- The sea\n", PATTERNS),
        ("The sea is a vast and mysterious realm beyond us\n", LINES),
        ("Child: The sea is a vast and mysterious realm beyond us.\n", LINES),
        ("<p>The sea is a vast and mysterious realm beyond us.</p>", LINES),
        ("come back home\n", LINES),
        ('ead",\n  "origin": "east",\n  "name": "Br', MEMBERS),
        ('ead"},\n  {"origin": "east", "name": "Br', PATTERNS),
        ("terious realm beyond us. The sea is a vast and mys", SENTENCES),
        ("we will rock ", PHRASES),
        ("| pending | pending ", PATTERNS),
        ("0, ", PATTERNS),
        ("    <td></td>\n", PATTERNS),
        ("春花秋月何時了往事知多少", SENTENCES),
        ("████\n", PATTERNS),
    ],
)
def test_what_repeats_decides_how_much_is_enough(unit: str, kind: object) -> None:
    assert kind_of(unit) is kind
    assert LEAST > 0


def test_what_repeats_from_the_first_byte_on_is_found() -> None:
    detector = Detector()
    assert not detector.hear(b"sixteen letters." * 2)
    assert (detector.period, detector.matched) == (16, 16)


def test_it_says_how_much_has_to_come_before_it_could_say_otherwise() -> None:
    detector = Detector()
    assert detector.patience == LEAST
    detector.hear(b"What follows is a sentence that comes again and again, and then again. " * 2)
    assert detector.period > 0
    least = detector.patience
    assert least > 0
    detector.hear(b"W")
    assert detector.patience == least - 1
    other = Detector()
    other.hear(bytes(range(32, 127)) + b"!?" + bytes(range(97, 123)))
    other.hear(b"x")
    assert (other.period, 0 < other.patience <= 32) == (0, True)


def test_it_never_asks_for_more_patience_than_is_left_before_the_verdict() -> None:
    data = (sentences(99, 2) + 8 * (" " + sentences(3, 2))).encode()
    detector, patience = Detector(), []
    for at in range(len(data)):
        patience.append(detector.patience)
        if detector.hear(data[at : at + 1]):
            break
    over = len(patience)
    assert over < len(data)
    assert patience[-1] == 1
    assert all(at + least <= over for at, least in enumerate(patience))
