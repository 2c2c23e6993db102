"""A chat that says nothing about it is protected, for every client and every form of answer."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.gateway.answer.transcript import FIRST_LOOK, MOST_BETWEEN_LOOKS, Repeats, plain
from headgate.policy.answers.runaway import Detector
from tests.engine.process import ask
from tests.gateway.test_gateway import chat, double, eventually, gateway, seen
from tests.gateway.test_websocket import answer, opened, say
from tests.ordinary.answers import ANSWERS
from tests.ordinary.corpus import ordinary
from tests.ordinary.loops import LOOPS

pytestmark = pytest.mark.timeout(60)
LINE = "The sea is vast and blue, and nobody has seen the end of it. "
"""As an engine says it again and again, all of it in one event."""
LONG = 1500


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with double() as (_, url):
        assert ask(f"{url}/word", LINE.encode())[0] == 200
        yield url


@pytest.fixture(scope="module")
def url(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gateway(tmp_path_factory.mktemp("gateway"), {}, engine) as where:
        yield where


def figures(url: str, name: str) -> float:
    lines = ask(f"{url}/metrics")[1].decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


@pytest.mark.parametrize("limit", [{}, {"max_tokens": LONG}, {"max_tokens": 200}, {"max_completion_tokens": LONG}])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_plain_chat_that_repeats_itself_is_ended(url: str, engine: str, stream: bool, limit: dict[str, Any]) -> None:
    before = len(seen(engine)["closed_at"])
    began = time.monotonic()
    body = ask(f"{url}/v1/chat/completions", chat(f"n={LONG} itl=20", stream=stream, **limit))[1]
    assert time.monotonic() - began < 5
    assert b'"headgate_stop":"repetition"' in body
    assert body.count(LINE.encode()) <= 2 * 5  # the double says a text in two fields
    eventually(lambda: len(seen(engine)["closed_at"]) == before + 1)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_so_is_a_plain_response(url: str, stream: bool) -> None:
    body = {"model": "double", "input": f"n={LONG} itl=20", "stream": stream, "max_output_tokens": LONG}
    began = time.monotonic()
    assert ask(f"{url}/v1/responses", body)[0] == 200
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_so_is_a_plain_chat_over_a_websocket(url: str, stream: bool) -> None:
    with opened(url) as client:
        say(client, chat(f"n={LONG} itl=20", stream=stream, max_tokens=LONG))
        said = [client.recv(timeout=20)] if not stream else answer(client)
    assert any('"headgate_stop":"repetition"' in str(message) for message in said)


def test_what_says_otherwise_is_left_alone(url: str) -> None:
    for where, body, headers in (
        ("completions", {"model": "double", "prompt": "n=40", "stream": True, "max_tokens": 40}, {}),
        ("chat/completions", chat("n=40", stream=True, max_tokens=40), {"x-headgate-task": "other"}),
        ("chat/completions", chat("n=40", stream=True, max_tokens=40), {"x-headgate-task": "code"}),
    ):
        said = ask(f"{url}/v1/{where}", body, headers)[1]
        assert b"headgate_stop" not in said
        assert said.count(b"data: ") == 41


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_what_was_asked_for_that_often_is_left_alone_and_no_more(url: str, stream: bool) -> None:
    path = f"{url}/v1/chat/completions"
    said = ask(path, chat("n=30 Say it 30 times.", stream=stream, max_tokens=400))[1]
    assert b"headgate_stop" not in said
    assert said.count(LINE.encode()) in (30, 60)
    said = ask(path, chat("n=300 itl=5 Say it 30 times.", stream=stream, max_tokens=400))[1]
    assert b'"headgate_stop":"repetition"' in said
    assert 30 <= said.count(LINE.encode()) <= 2 * 40  # the double says a text in two fields


def test_an_answer_in_one_piece_that_is_short_anyway_is_the_engines_own(url: str, engine: str) -> None:
    said = ask(f"{url}/v1/chat/completions", chat("n=20", max_tokens=64))[1]
    assert json.loads(said)["choices"][0]["message"]["content"] == LINE * 20


# -- as seldom as the answer allows --------------------------------------------------------------------------


def event(text: str, ascii_only: bool = True) -> bytes:
    return b'{"choices":[{"index":0,"delta":{"content":%b}}]}' % json.dumps(text, ensure_ascii=ascii_only).encode()


def ended_after(pieces: list[str], at_once: int = 1, ascii_only: bool = True) -> int | None:
    """Events until it has run away."""
    repeats = Repeats(Detector())
    events = [event(piece, ascii_only) for piece in pieces]
    for at in range(0, len(events), at_once):
        if repeats.hear(events[at : at + at_once]):
            return at + repeats.heard
    return None


@pytest.mark.parametrize("at_once", [1, 3, 7, 50, 1000])
@pytest.mark.parametrize("size", [3, 6, 20, 200])
def test_it_is_told_as_soon_as_if_every_event_were_looked_at(size: int, at_once: int) -> None:
    text = "Here is what I know about it, as far as I can tell you now. " + LINE * 60
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    detector = Detector()
    exact = next(count for count, piece in enumerate(pieces, 1) if detector.hear(piece.encode()))
    found = ended_after(pieces, at_once)
    assert found is not None
    assert found <= max(exact + 2, FIRST_LOOK)
    assert found * size <= 60 + 5 * len(LINE) + FIRST_LOOK * size


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("name", LOOPS)
def test_it_is_the_text_that_counts_however_the_engine_writes_it(name: str, ascii_only: bool) -> None:
    """Engines may write `\\u0939` for a letter, and must write `\\n` for the end of a line."""
    before, unit = LOOPS[name]
    text = before + unit * 20
    ended = ended_after([text[at : at + 4] for at in range(0, len(text), 4)], 1, ascii_only)
    assert ended is not None
    assert ended * 4 <= len(before) + max(4 * len(unit), len(unit) + 96) + 8


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("name", ANSWERS)
def test_equal_lines_that_were_asked_for_are_left_alone(name: str, ascii_only: bool) -> None:
    text = ANSWERS[name]
    assert ended_after([text[at : at + 4] for at in range(0, len(text), 4)], 1, ascii_only) is None


def test_half_of_a_character_is_taken_as_it_is_written() -> None:
    assert plain(rb"\ud83d") == rb"\ud83d"
    assert plain(rb"\ud83d\ude00\n") == "\U0001f600\n".encode()


def test_ordinary_text_is_left_alone() -> None:
    for text in [text.text for text in ordinary()][::7]:
        cut = [text[at : at + 4] for at in range(0, len(text), 4)]
        assert ended_after(cut) is None


@pytest.mark.interpreted_only("a compiled class can't be changed for a test")
def test_prose_is_looked_at_seldom() -> None:
    looks = 0

    class Counting(Detector):
        def hear(self, piece: bytes) -> bool:
            nonlocal looks
            looks += 1
            return super().hear(piece)

    repeats = Repeats(Counting())
    prose = "".join(text.text for text in ordinary() if text.kind == "essay")
    events = [event(prose[at : at + 4]) for at in range(0, len(prose), 4)]
    for one in events:
        repeats.hear([one])
    assert looks < len(events) / 4
    assert MOST_BETWEEN_LOOKS >= FIRST_LOOK


def test_what_the_replica_has_ended_itself_is_left_to_it() -> None:
    """The verdict came with its last words, and was passed on; the end of the stream came later."""
    repeats = Repeats(Detector())
    lines = [event(LINE) for _ in range(40)]
    assert any(repeats.hear([one]) for one in lines)
    for _ in range(3):
        repeats.hear([b"[DONE]"])
        assert repeats.heard >= 0


def test_events_without_text_are_counted_and_say_nothing() -> None:
    repeats = Repeats(Detector())
    assert not any(repeats.hear([b'{"choices":[]}']) for _ in range(100))


def test_what_was_ended_and_what_that_saved_is_told(url: str) -> None:
    names = ('headgate_answers_ended_total{task="chat",by="repetition"}', "headgate_decode_saved_tokens_total")
    before = [figures(url, name) for name in names]
    for stream in (True, False):
        ask(f"{url}/v1/chat/completions", chat(f"n={LONG} itl=5", stream=stream, max_tokens=1000))
    capped = figures(url, 'headgate_answers_ended_total{task="other",by="cap"}')
    ask(f"{url}/v1/completions", {"model": "double", "prompt": "n=256"})
    ask(f"{url}/v1/completions", {"model": "double", "prompt": "n=20"})
    eventually(lambda: figures(url, names[0]) == before[0] + 2)
    saved = figures(url, names[1]) - before[1]
    assert 2 * 980 < saved < 2 * 1000
    eventually(lambda: figures(url, 'headgate_answers_ended_total{task="other",by="cap"}') == capped + 1)
