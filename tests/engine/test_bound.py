"""Sequences that are ended early: by time, by repetition, and where the model itself says that this is the end."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headgate.engine.bound import CERTAIN, REPETITION, TIME, Bound, Bounds, bounds_for
from headgate.engine.runner.sampler import Sampler, chance
from headgate.model.sampling import Sampling
from tests.engine.process import ask, headgate
from tests.ordinary.words import paragraph

UNIT = paragraph(random.Random(3), 2) + " "


def said_until_ended(bound: Bound, chance_: float | None) -> int:
    """Characters of a text that repeats itself, a few at a time."""
    text = paragraph(random.Random(4), 3) + "\n" + UNIT * 20
    for at in range(0, len(text), 4):
        chances = (chance_,) if chance_ is not None and bound.doubts else ()
        if stop := bound.judge(text[at : at + 4], chances, 0.0, 0.0):
            assert stop == REPETITION
            return at
    raise AssertionError("it was never ended")


def test_what_repeats_itself_is_ended_and_sooner_where_the_model_has_no_choice_left() -> None:
    unknown, unsure, sure = (said_until_ended(Bound(Bounds("safe")), c) for c in (None, CERTAIN - 0.1, 0.999))
    assert unsure == unknown
    assert unknown - 0.5 * len(UNIT) < sure < unknown


def test_chances_are_asked_for_only_once_something_was_said_twice() -> None:
    bound = Bound(Bounds("safe"))
    bound.judge(paragraph(random.Random(5), 5), (), 0.0, 0.0)
    assert not bound.doubts
    for _ in range(2):
        bound.judge(UNIT, (), 0.0, 0.0)
    bound.judge(UNIT[:40], (), 0.0, 0.0)
    assert bound.doubts


def test_time_counts_from_the_first_token_on() -> None:
    bound = Bound(Bounds(limit_s=2.0))
    assert bound.judge("a", (), None, 100.0) == ""
    assert bound.judge("a", (), 100.0, 101.9) == ""
    assert bound.judge("a", (), 100.0, 102.0) == TIME
    assert not bound.doubts


def test_what_the_prompt_asks_for_that_often_is_said_that_often() -> None:
    line = "I will not talk in class while the teacher speaks. "
    body = {"messages": [{"role": "user", "content": f"Write {line!r} 30 times in one line."}]}
    bounds = bounds_for(body, "safe", None)
    assert bounds == Bounds("safe", None, 30)
    bound = Bound(bounds)
    said = [bound.judge(line, (1.0,) * 12, None, 0.0) for _ in range(40)]
    assert 29 < said.index(REPETITION) < 34


def test_a_request_without_bounds_has_none() -> None:
    assert bounds_for({"prompt": "30 times"}, "off", None) is None
    assert bounds_for({"prompt": "30 times"}, "off", 500.0) == Bounds("off", 0.5)


def test_an_unbounded_text_may_say_the_same_for_ever() -> None:
    bound = Bound(Bounds("off", 1e9))
    assert not any(bound.judge(UNIT, (), 0.0, 0.0) for _ in range(100))


# -- a confident end -----------------------------------------------------------------------------------------


def drawn(end: float, **more: Any) -> set[int]:
    """Which of an end (0) and two words are drawn, if the end is this likely."""
    logits = np.log(np.array([end, (1 - end) / 2, (1 - end) / 2], np.float32))
    sampler = Sampler(Sampling(temperature=2.0, **more), [1], 1, eog=[0])
    return {sampler.draw(logits, position) for position in range(200)}


def test_where_the_model_is_nearly_sure_of_the_end_it_ends_if_that_is_wanted() -> None:
    assert drawn(0.95, confident_end=True) == {0}
    assert drawn(0.95) == {0, 1, 2}
    assert drawn(0.8, confident_end=True) == {0, 1, 2}


def test_chance_is_the_models_own() -> None:
    logits = np.log(np.array([0.7, 0.2, 0.1], np.float32)) + np.float32(60)
    assert [chance(logits, token) for token in range(3)] == pytest.approx([0.7, 0.2, 0.1], rel=1e-4)


# -- on the bundled weights ------------------------------------------------------------------------------------

LOOPS = ["Tell me about a haunted house.", "Tell me about databases."]


@pytest.fixture(scope="module")
def url(model_path: Path) -> Iterator[str]:
    with headgate("engine", "--port", "0", "--slots", "2", "--context", "768") as (_, where):
        yield where


def asked(url: str, content: str, **more: Any) -> dict[str, Any]:
    given = {"messages": [{"role": "user", "content": content}], "temperature": 0, "ignore_eos": True}
    answer: dict[str, Any] = json.loads(ask(f"{url}/v1/chat/completions", {**given, **more})[1])
    return answer


@pytest.mark.model
@pytest.mark.timeout(180)
@pytest.mark.parametrize("content", LOOPS)
def test_a_real_loop_is_ended_and_says_why(url: str, content: str) -> None:
    answer = asked(url, content, max_tokens=480, runaway="safe")
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["headgate_stop"]) == ("stop", "repetition")
    assert answer["usage"]["completion_tokens"] < 400
    said = choice["message"]["content"]
    assert said.count(said[-40:]) >= 3


@pytest.mark.model
@pytest.mark.timeout(60)
@pytest.mark.parametrize("stream", [True, False])
def test_a_real_answer_at_the_end_of_its_time_is_what_there_is(url: str, stream: bool) -> None:
    given = {"messages": [{"role": "user", "content": "Tell me about tea."}], "ignore_eos": True, "max_tokens": 700}
    more = {"generation_limit_ms": 150, "stream": stream}
    body = ask(f"{url}/v1/chat/completions", {**given, **more}, {"x-headgate-timings": "1"})[1]
    last = json.loads(body.split(b"data: ")[-2] if stream else body)
    (choice,) = last["choices"]
    assert (choice["finish_reason"], choice["headgate_stop"], last["timings"]["stop"]) == ("length", "time", "time")
    assert last["timings"]["decode_ms"] >= 150
