"""A transcript has what was said, whether or not its events have been read yet."""

import pytest

from headgate.gateway.answer.transcript import MOST_KEPT, MOST_WAITING, MOST_WAITING_BYTES, Transcript

ROLE = b'{"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}'
STOP = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
THOUGHT = b'{"choices":[{"index":0,"delta":{"reasoning_content":"Hm."},"finish_reason":null}]}'


def told(text: str) -> bytes:
    return b'{"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}' % text.encode()


def kept(events: list[bytes], at_once: int = 1) -> Transcript:
    made = Transcript()
    made.keep()
    for start in range(0, len(events), at_once):
        made.add(events[start : start + at_once])
    return made


@pytest.mark.parametrize("count", [1, MOST_WAITING, MOST_WAITING + 1, 3 * MOST_WAITING + 5])
@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_the_text_is_the_same_however_many_events_come_at_once(count: int, at_once: int) -> None:
    words = [f"w{number}" for number in range(count)]
    made = kept([ROLE, *map(told, words)], at_once)
    assert made.first == ROLE
    assert bytes(made.said or b"").decode() == "\n" + "".join(f"{word}\n" for word in words)
    assert made.said == made.said, "asking changes nothing"
    assert made.answering
    assert not made.thought
    assert not made.has_finished


@pytest.mark.parametrize("before", [0, MOST_WAITING - 2, MOST_WAITING - 1, MOST_WAITING, 2 * MOST_WAITING])
def test_the_end_is_known_on_both_sides_of_a_reading(before: int) -> None:
    words = [told("x")] * before
    assert not kept([ROLE, *words]).has_finished
    for events in ([*words, STOP], [*words, STOP, told("")]):
        made = kept(events)
        assert made.has_finished
        assert kept(events).is_complete is (events[-1] is STOP)
    assert not kept([*words, STOP, told(""), told("")]).has_finished


def test_reasoning_is_noticed_and_is_no_text() -> None:
    for events in ([THOUGHT, told("Four")], [THOUGHT, *[told("Four")] * MOST_WAITING, told("")]):
        made = kept(events)
        assert made.thought
        assert b"Hm" not in bytes(made.said or b"")


def test_without_a_token_nothing_is_being_answered() -> None:
    assert not kept([ROLE]).answering
    assert not Transcript().answering
    assert not Transcript().is_complete
    assert not Transcript().has_finished


def test_what_is_not_to_be_kept_holds_a_bounded_number_of_events() -> None:
    made = Transcript()
    for number in range(10 * MOST_WAITING):
        made.add([told(f"w{number}")])
    assert made.said is None
    assert len(made._waiting) <= MOST_WAITING
    made.add([STOP])
    assert made.has_finished


def test_long_events_do_not_wait_and_a_long_text_is_let_go_of() -> None:
    made = kept([told("x" * MOST_WAITING_BYTES)])
    assert made._waiting == []
    assert made.said is not None
    assert kept([told("x" * (MOST_KEPT - 1))]).said is not None, "with its line break it just fits"
    assert kept([told("x" * MOST_KEPT)]).said is None
    made = kept([told("x" * 1000)] * (MOST_KEPT // 1000 + 1))
    assert made.said is None
    assert not made.answering
