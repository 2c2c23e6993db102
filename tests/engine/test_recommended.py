"""What a model is sampled with where a client does not say."""

import pytest

from headgate.engine.openai import ChatBody, TextBody, sampling_of
from headgate.engine.recommended import CARDS, OPENAI, Recommended, recommended
from headgate.model.sampling import Sampling

SMOL = CARDS["smollm2"]


def told(**meta: str) -> Recommended:
    return recommended({key.replace("__", "."): value for key, value in meta.items()}.get, chats=True)


def test_a_files_own_recommendation_comes_first() -> None:
    found = told(general__basename="smollm2", general__sampling__temp="0.7", general__sampling__top_k="40")
    assert found == Recommended(temperature=0.7, top_k=40, source="the GGUF's metadata")
    assert found.shown == {"temperature": 0.7, "top_k": 40}


@pytest.mark.parametrize("value", ["hot", "nan", "-1", "1e9", ""])
def test_nonsense_in_a_file_is_not_followed(value: str) -> None:
    assert told(general__sampling__temp=value) == OPENAI
    assert told(general__basename="smollm2", general__sampling__temp=value) == SMOL


@pytest.mark.parametrize(
    ("name", "card"),
    [("SmolLM2 135M Instruct", "smollm2"), ("Meta Llama 3.1 8B Instruct", "llama-3"), ("Qwen2.5 0.5B", "qwen2.5")],
)
def test_a_known_model_is_sampled_as_its_card_says(name: str, card: str) -> None:
    assert told(general__name=name) == CARDS[card]
    assert recommended({"general.name": name}.get, chats=False) == OPENAI


def test_an_unknown_model_is_sampled_as_openai_does() -> None:
    assert told(general__name="Llamalike") == OPENAI
    assert OPENAI.shown == {}
    plain = Sampling()
    assert [getattr(plain, name) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")] == [
        getattr(OPENAI, name) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    ]


def test_a_client_that_names_nothing_gets_what_the_model_recommends() -> None:
    drawn = sampling_of(ChatBody(messages=[], frequency_penalty=0.5, max_tokens=4), 1, None, CARDS["qwen2.5"])
    assert (drawn.temperature, drawn.top_p, drawn.top_k, drawn.repetition_penalty) == (0.7, 0.8, 20, 1.05)
    assert drawn.frequency_penalty == 0.5


@pytest.mark.parametrize("named", [{"temperature": 1.0}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.1}])
def test_a_client_that_names_one_of_them_chooses_for_itself(named: dict[str, float]) -> None:
    body = TextBody(prompt="x", **named)  # type: ignore[arg-type]
    assert sampling_of(body, 1, None, SMOL) == sampling_of(body, 1, None)
