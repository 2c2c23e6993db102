from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headgate.engine.text import TextStream


def stream(pieces: list[bytes], stops: list[str]) -> str:
    text = TextStream(stops)
    return "".join([text.push(piece) for piece in pieces] + [text.finish()])


def up_to_first_stop(text: str, stops: list[str]) -> str:
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if stop and text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(borders)]


alphabet = st.text("ab<|é漢🙂", max_size=24)


@given(alphabet, st.lists(st.text("ab<|é漢🙂", max_size=4), max_size=4), st.lists(st.integers(0, 200), max_size=30))
def test_text_up_to_the_first_stop_comes_out_whatever_the_token_borders(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    assert stream(split(text.encode(), cuts), stops) == up_to_first_stop(text, stops)


@given(st.binary(max_size=30), st.lists(st.integers(0, 200), max_size=10))
def test_any_bytes_decode_as_they_would_in_one_piece(data: bytes, cuts: list[int]) -> None:
    assert stream(split(data, cuts), []) == data.decode("utf-8", "replace")


def test_half_a_character_waits_for_its_other_half() -> None:
    text = TextStream()
    assert text.push("é".encode()[:1]) == ""
    assert text.push("é".encode()[1:]) == "é"


def test_only_what_could_become_a_stop_is_held_back() -> None:
    text = TextStream(["\n\nUser:"])
    assert text.push(b"Hello\n") == "Hello"
    assert text.push(b"\nUs") == ""
    assert text.push(b"age") == "\n\nUsage"
    assert text.stopped is None


def test_a_stop_is_named_and_nothing_follows_it() -> None:
    text = TextStream(["END"])
    assert text.push(b"ok E") == "ok "
    assert text.push(b"ND more") == ""
    assert text.stopped == "END"
    assert text.push(b"more") + text.finish() == ""


def test_finish_gives_back_a_stop_that_never_completed() -> None:
    text = TextStream(["END"])
    assert text.push(b"the EN") == "the "
    assert text.finish() == "EN"
