"""A prompt that says how often is believed."""

from typing import Any

import pytest

from headgate.policy.answers.asked import MAX_CHARACTERS, MAX_TIMES, times_asked
from headgate.policy.answers.runaway import Detector

FOX = "The quick brown fox jumps over the lazy dog."
SIZE = 4


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("Write 'I will not talk in class' 50 times.", 50),
        ("Write it a hundred times", 100),
        ("say hello 20x", 20),
        ("Say it five times, then write it 12 times.", 12),
        ("Schreibe den Satz zwanzigmal.", 20),
        ("Schreib das 30 mal", 30),
        ("Escribe la frase cien veces", 100),
        ("Écris 25 fois la même phrase", 25),
        ("把这句话写一百遍", 100),
        ("この文を20回書いて", 20),
        ("напиши это 40 раз", 40),
        ("Repeat 9999 times", MAX_TIMES),
        ("Do not repeat yourself.", 0),
        ("Tell me about the times of 1984.", 0),
        ("A 4xl shirt, 50 timestamps", 0),
        ("", 0),
    ],
)
def test_a_count_is_read_in_the_words_of_several_languages(text: str, times: int) -> None:
    assert times_asked({"messages": [{"role": "user", "content": text}]}) == times


@pytest.mark.parametrize(
    ("body", "times"),
    [
        ({"messages": [{"role": "user", "content": "30 times"}, {"role": "user", "content": "Thanks"}]}, 0),
        ({"messages": [{"content": [{"text": "Say it"}, {"text": "30 times"}, {"text": 5}, 5]}]}, 30),
        ({"messages": [{"content": [{"type": "image_url", "image_url": {"url": "30 times"}}]}]}, 0),
        ({"messages": [{"role": "assistant"}]}, 0),
        ({"messages": ["30 times"]}, 30),
        ({"input": "30 times"}, 30),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "30 times"}]}]}, 30),
        ({"prompt": "30 times"}, 30),
        ({"prompt": [[1, 2, 3]]}, 0),
        ({"prompt": 5}, 0),
        ({}, 0),
        ({"prompt": "30 times" + " " * 2 * MAX_CHARACTERS}, 30),
        ({"prompt": " " * 2 * MAX_CHARACTERS + "30 times"}, 30),
        ({"prompt": " " * MAX_CHARACTERS + "30 times" + " " * MAX_CHARACTERS}, 0),
    ],
)  # fmt: skip
def test_only_the_last_message_is_read_and_its_ends(body: dict[str, Any], times: int) -> None:
    assert times_asked(body) == times


def said(text: str, times: int) -> int | None:
    """How often a unit was said until it was ended; None: it was not."""
    detector, data = Detector("safe", lambda: times), (text * 1000).encode()
    for at in range(0, len(data), SIZE):
        if detector.hear(data[at : at + SIZE]):
            return at // len(text.encode()) + 1
    return None


@pytest.mark.parametrize("text", [f"{FOX} ", f"{FOX}\n", "I love you. ", "我以后上课再也不说话了。", "Yes! "])
@pytest.mark.parametrize("times", [20, 100])
def test_what_was_asked_for_that_often_is_said_that_often_and_hardly_more(text: str, times: int) -> None:
    ended = said(text, times)
    least = said(text, 0)
    assert ended is not None
    assert least is not None
    assert max(least, times) <= ended <= max(least, times + 3)


def test_the_prompt_is_looked_at_once_and_only_where_something_repeats() -> None:
    looks: list[int] = []

    def asked() -> int:
        looks.append(1)
        return 20

    detector = Detector("quick", asked)
    assert not detector.hear(b"A text in which no word comes twice, however long one reads it, and so on until here.")
    assert not looks
    assert not any(detector.hear(FOX.encode()) for _ in range(20))
    assert len(looks) == 1
    assert any(detector.hear(FOX.encode()) for _ in range(4))
