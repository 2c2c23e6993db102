"""A reply that another engine began is continued, token by token as it was said."""

import itertools
import random
from pathlib import Path

import pytest

from headgate.config.engine import EngineConfig
from headgate.engine.intake import Intake
from headgate.engine.openai import TextBody
from headgate.engine.runner.continued import said_before
from headgate.engine.runner.emulated_tokenizer import EmulatedTokenizer
from headgate.model.errors import ContextOverflow, InvalidRequest
from headgate.model.sequence import Sequence

CONTEXT = 64


class Coder:
    """Takes the longest token first, but never \\n\\n: a line's end is split off, as by many real ones."""

    spelled = (b"a", b"b", b"ab", b"\n", b"\n\n", b"\xf0\x9f", b"\x99\x82")
    n_vocab = len(spelled)

    def encode(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        data, tokens = text.encode(), list[int]()
        while data:
            fits = [token for token in (2, 0, 1, 3, 5, 6) if data.startswith(self.spelled[token])]
            if not fits:
                return [*tokens, 0]
            tokens.append(fits[0])
            data = data.removeprefix(self.spelled[fits[0]])
        return tokens

    def piece(self, token: int) -> bytes:
        return self.spelled[token]


@pytest.mark.parametrize(
    ("pieces", "tokens"),
    [
        (["ab"], [2]),
        (["a", "b"], [0, 1]),  # the whole text would be one token, and the model would go on after another
        (["a", "\n\n", "\n"], [0, 4, 3]),  # one token, which the tokenizer itself would not choose
        (["🙂"], [5, 6]),  # two, which came together because neither is a character
        ([""], []),
    ],
)
def test_pieces_are_the_tokens_that_were_said(pieces: list[str], tokens: list[int]) -> None:
    assert said_before(Coder(), pieces) == tokens


def test_what_no_token_spells_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="spell 'z'"):
        said_before(Coder(), ["a", "z"])


def sequence(prompt: int, said: int, max_tokens: int | None) -> Sequence:
    config = EngineConfig(model=Path("none"), model_name="m", default_max_tokens=32)
    made = Intake(config, EmulatedTokenizer(), CONTEXT, itertools.count(1), random.Random(1))
    body = TextBody(model="m", prompt=[7] * prompt, max_tokens=max_tokens, continued=[" the"] * said)
    [found], _ = made.sequences(body, 0.0)
    return found


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "whole"),
    [(20, 30, 30), (34, 30, 30), (20, None, 32), (50, None, 14)],
    ids=["room to spare", "just fits", "the default", "the rest of the context"],
)
def test_both_say_as_much_as_one_would_have(prompt: int, max_tokens: int | None, whole: int) -> None:
    assert sequence(prompt, 0, max_tokens).max_output == whole
    for said in (1, whole - 1):
        found = sequence(prompt, said, max_tokens)
        assert (found.prompt_len, found.continued, found.max_output) == (prompt + said, said, whole - said)
        assert found.tokens[prompt:] == EmulatedTokenizer().encode(" the") * said


def test_only_one_answer_that_fits_is_gone_on_with() -> None:
    with pytest.raises(ContextOverflow):
        sequence(40, 30, 20)
    made = Intake(
        EngineConfig(model=Path("none"), model_name="m"), EmulatedTokenizer(), 64, itertools.count(1), random.Random(1)
    )
    with pytest.raises(InvalidRequest, match="only one answer"):
        made.sequences(TextBody(model="m", prompt=["a", "b"], continued=["x"]), 0.0)
