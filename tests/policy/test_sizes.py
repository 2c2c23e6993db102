"""How many tokens a prompt is, learned from what replicas say."""

import random
from pathlib import Path

import msgspec
import pytest

from headgate.policy.answers.sizes import ENOUGH, MOST_NAMES, START, PromptSizes, TokenFit
from tests.ordinary.words import sentence


def test_it_begins_with_a_guess_and_believes_the_first_prompt() -> None:
    line = TokenFit()
    assert line.of(400) == int(400 * START)
    line.learn(100, 40)
    assert (line.of(100), line.of(200)) == (40, 80)


def test_what_a_template_adds_to_every_prompt_is_found() -> None:
    line = TokenFit()
    for size in (40, 400, 90, 800, 200, 1500, 60, 300):
        line.learn(size, 30 + size // 5)
    assert [line.of(size) for size in (50, 100, 1000, 20_000)] == [40, 50, 230, 4030]


def test_of_prompts_that_are_all_alike_no_slope_is_made_up() -> None:
    line, rng = TokenFit(), random.Random(1)
    for _ in range(100):
        line.learn(300 + rng.randrange(3), 100 + rng.randrange(-20, 20))
    assert 3000 < line.of(10_000) < 3700


def test_it_follows_a_change() -> None:
    line, rng = TokenFit(), random.Random(1)
    for per_byte in (0.2, 0.5):
        for _ in range(300):
            size = rng.randrange(50, 2000)
            line.learn(size, int(20 + per_byte * size))
        assert line.of(1000) == pytest.approx(20 + per_byte * 1000, rel=0.05)


def test_a_picture_says_nothing_about_text() -> None:
    sizes = PromptSizes()
    for _ in range(ENOUGH):
        sizes.learn("m", False, 400, 100)
    sizes.learn("m", False, 4_000_000, 1000)
    sizes.learn("m", False, 0, 10)
    assert sizes.of("m", False, 400) == 100


def test_models_are_learned_apart_and_a_new_one_starts_from_all_of_them() -> None:
    sizes = PromptSizes()
    for _ in range(50):
        sizes.learn("a", False, 100, 20)
        sizes.learn("b", False, 100, 40)
    assert (sizes.of("a", False, 100), sizes.of("b", False, 100)) == (20, 40)
    assert 20 < sizes.of("c", False, 100) < 40
    assert sizes.of("a", True, 100) == int(100 * START)


def test_names_are_bounded() -> None:
    sizes = PromptSizes()
    for number in range(MOST_NAMES + 10):
        sizes.learn(str(number), False, 100, 30)
    assert len(sizes._known) == MOST_NAMES
    assert sizes.of("unheard of", False, 100) == 30


@pytest.mark.model
def test_made_prose_is_counted_to_a_few_percent_with_the_real_vocabulary(model_path: Path) -> None:
    llama, tokenizer = (
        pytest.importorskip("headgate.engine.runner.llama"),
        pytest.importorskip("headgate.engine.runner.tokenizer"),
    )
    exact = tokenizer.Tokenizer(llama.Model(model_path, vocab_only=True))
    rng, sizes, errors = random.Random(1), PromptSizes(), []
    for number in range(600):
        opening = [{"role": "system", "content": "You are a helpful assistant."}] if rng.random() < 0.5 else []
        asked = " ".join(sentence(rng) for _ in range(rng.randint(1, 12)))
        chat = [*opening, {"role": "user", "content": asked}]
        size, tokens = sum(len(msgspec.json.encode(message)) for message in chat), len(exact.encode_chat(chat))
        if number >= 100:
            errors.append(abs(sizes.of("m", bool(opening), size) - tokens) / tokens)
        sizes.learn("m", bool(opening), size, tokens)
    errors.sort()
    assert errors[len(errors) // 2] < 0.03
    assert errors[int(0.95 * len(errors))] < 0.08
