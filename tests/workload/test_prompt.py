"""Texts: as long as asked for, shared where ids are, and cheap."""

import random

import pytest

from headgate.engine.runner.tokenizer import Tokenizer
from headgate.workload.arrival import Arrival
from headgate.workload.prompt import WORDS, prompt_text


def text(tokens: int, prefix: tuple[int, ...] = (), seed: int = 0, salt: int = 0) -> str:
    return prompt_text(Arrival(0.0, tokens, 1, prefix=prefix), random.Random(seed), salt)


def common(a: str, b: str) -> int:
    return next((i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))


@pytest.mark.parametrize("tokens", [1, 11, 12, 13, 512, 513, 70_000])
def test_four_characters_and_one_word_a_token(tokens: int) -> None:
    made = text(tokens)
    assert len(made) == 4 * tokens - 1
    assert len(made.split(" ")) == tokens
    assert set(made.split(" ")) <= set(WORDS)


def test_a_real_tokenizer_counts_the_same(tokenizer: Tokenizer) -> None:
    for tokens in (10, 100, 1000):
        assert len(tokenizer.encode(text(tokens))) == pytest.approx(tokens, rel=0.02, abs=1)


def test_the_same_ids_are_the_same_text_up_to_where_they_differ() -> None:
    a, b = text(2000, (1, 2, 3, 4), seed=1), text(1800, (1, 2, 9, 4), seed=2)
    assert common(a, b) >= 2 * 512 * 4
    assert common(a, b) < 2 * 512 * 4 + 24
    assert text(2000, (1, 2, 3, 4), seed=5) == a
    assert text(700, (1, 2), seed=3) == a[: 700 * 4 - 1], "a block that the prompt's end cuts off"


def test_without_ids_and_with_another_salt_nothing_is_the_same() -> None:
    assert common(text(500, seed=1), text(500, seed=2)) < 24
    assert common(text(500, (1,), salt=0), text(500, (1,), salt=1)) < 24


def test_what_goes_beyond_the_ids_is_its_own() -> None:
    a, b = text(1000, (7,), seed=1), text(1000, (7,), seed=2)
    assert 512 * 4 <= common(a, b) < 512 * 4 + 24
