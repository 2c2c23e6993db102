from collections.abc import Iterator
from typing import Any

import pytest

from headgate.engine.grammar.grammar import MAX_SCHEMA_BYTES, Grammar, Grammars, response_grammar
from headgate.engine.runner.llama import Model
from headgate.engine.runner.tokenizer import Tokenizer
from headgate.model.errors import InvalidRequest

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"enum": ["up", "down"]}},
    "required": ["x", "y"],
    "additionalProperties": False,
}


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "t", "schema": value}}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        value = {"items": value}
    return value


@pytest.fixture(scope="module")
def grammars(model: Model, tokenizer: Tokenizer) -> Iterator[Grammars]:
    grammars = Grammars(tokenizer, model.c)
    yield grammars
    grammars.close()


def compiled(grammars: Grammars, response_format: dict[str, Any]) -> Grammar:
    text = response_grammar(response_format)
    assert text is not None
    return grammars.compile(text)


def follow(grammar: Grammar, tokens: list[int]) -> int:
    """How many of the tokens it takes."""
    for taken, token in enumerate(tokens):
        if not grammar.allows(token):
            return taken
        grammar.accept(token)
    return len(tokens)


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "xml"},
        {"type": "json_schema"},
        schema(None),
        schema("x"),
        schema(nested(100)),
        schema({"enum": ["x" * MAX_SCHEMA_BYTES]}),
    ],
)
def test_a_response_format_that_makes_no_sense_is_refused(response_format: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        response_grammar(response_format)
    assert refused.value.param == "response_format"


def test_plain_text_needs_no_grammar() -> None:
    assert response_grammar(None) is None
    assert response_grammar({"type": "text"}) is None


@pytest.mark.model
@pytest.mark.parametrize(
    "value",
    [
        {"type": "nonsense"},
        {"$ref": "#/nowhere"},
        {"type": "string", "pattern": "((("},
        {"type": "string", "format": "?"},
    ],
)
def test_a_schema_that_can_not_be_compiled_is_refused(grammars: Grammars, value: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="response_format: ") as refused:
        compiled(grammars, schema(value))
    assert refused.value.param == "response_format"


@pytest.mark.model
@pytest.mark.parametrize("grammar", ["start: ((", "no grammar at all", "start: \0", "start: " + '"a" ' * 40_000])
def test_a_grammar_that_is_none_is_refused(grammars: Grammars, grammar: str) -> None:
    with pytest.raises(InvalidRequest):
        grammars.compile(grammar)


@pytest.mark.model
def test_a_schema_takes_what_it_describes_and_the_end_only_after_it(grammars: Grammars, tokenizer: Tokenizer) -> None:
    grammar = compiled(grammars, schema(POINT))
    tokens = tokenizer.encode('{"x": -12, "y": "down"}')
    end = min(tokenizer.eog)
    for token in tokens:
        assert not grammar.allows(end)
        assert not grammar.mask()[end]
        assert grammar.allows(token)
        assert grammar.mask()[token]
        grammar.accept(token)
    assert all(grammar.allows(end) for end in tokenizer.eog)
    assert set(grammar.mask().nonzero()[0].tolist()) == tokenizer.eog
    grammar.accept(end)
    assert grammar.allows(end)
    assert not grammar.allows(tokens[0])
    grammar.close()
    grammar.close()


@pytest.mark.model
@pytest.mark.parametrize("text", ['{"x": "1"', '{"y"', '{"x": 1, "y": "left"', "[", '{"x": 1, "y": "up", "z"', "{ \n"])
def test_a_schema_takes_nothing_else(grammars: Grammars, tokenizer: Tokenizer, text: str) -> None:
    grammar = compiled(grammars, schema(POINT))
    tokens = tokenizer.encode(text)
    assert follow(grammar, tokens) < len(tokens)
    grammar.close()


@pytest.mark.model
def test_control_tokens_never_match_a_grammars_text(grammars: Grammars, tokenizer: Tokenizer) -> None:
    grammar = compiled(grammars, {"type": "json_object"})
    assert follow(grammar, tokenizer.encode('{"')) == len(tokenizer.encode('{"'))
    [control] = tokenizer.encode("<|im_start|>", special=True)
    assert not grammar.allows(control)
    assert not grammar.mask()[control]
    assert grammar.allows(tokenizer.encode("<|im")[0])
    grammar.close()


@pytest.mark.model
def test_each_sequence_has_a_state_of_its_own_and_old_grammars_are_dropped(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    one, two = (compiled(grammars, schema(POINT)) for _ in range(2))
    start = tokenizer.encode('{"x')
    assert follow(one, start) == len(start)
    for number in range(40):
        compiled(grammars, schema({"const": number})).close()
    assert follow(two, start) == len(start)
    assert not one.allows(start[0])
    one.close()
    two.close()


@pytest.mark.model
def test_a_grammar_that_gets_stuck_ends_its_own_sequence_only(grammars: Grammars, tokenizer: Tokenizer) -> None:
    grammar = compiled(grammars, schema(POINT))
    grammar.accept(tokenizer.encode("nonsense")[0])  # the sampler never does this; nothing may abort
    assert grammar.allows(min(tokenizer.eog))
    assert set(grammar.mask().nonzero()[0].tolist()) == tokenizer.eog
    grammar.close()


@pytest.mark.model
@pytest.mark.parametrize("text", ["start: <|im_end|>", "start: <[2]>", "start: <|endoftext|>", "start: <[0,2]>"])
def test_a_grammar_that_wants_an_end_as_its_text_is_stuck(grammars: Grammars, tokenizer: Tokenizer, text: str) -> None:
    grammar = grammars.compile(text)
    assert set(grammar.mask().nonzero()[0].tolist()) == tokenizer.eog
    assert grammar.stuck
    grammar.close()
