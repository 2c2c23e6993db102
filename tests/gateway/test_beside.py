"""What an engine puts beside its answer costs figures at most, never the answer; and what is passed on is JSON."""

import json
from collections.abc import Iterator

import pytest

from tests import ledger
from tests.engine.process import ask
from tests.gateway.raw_engine import GOOD, LAST, TOKEN, Answer, events, raw_engine, whole
from tests.gateway.test_gateway import chat, gateway

pytestmark = pytest.mark.timeout(60)
CHAT = "/v1/chat/completions"
DONE = b"[DONE]"
VALUES = {
    "nan": b'{"prompt_ms":NaN}',
    "bare": b"NaN",
    "infinity": b'{"predicted_ms":[-Infinity,Infinity]}',
    "printed": b'{"predicted_ms":-nan,"prompt_ms":inf}',
    "huge": b'{"prompt_ms":1e999}',
    "digits": b"9" * 5000,
    "deep": b"[" * 3000 + b"]" * 3000,
    "deeper": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "half": b'"\\ud83d"',
}
FIELDS = (b"timings", b"metrics", b"anything")


def beside(document: bytes, field: bytes, value: bytes) -> bytes:
    return document[:-1] + b',"%b":%b}' % (field, value)


ANSWERS: dict[str, Answer] = {
    **{f"whole-{n}-{f.decode()}": whole(beside(GOOD, f, v)) for n, v in VALUES.items() for f in FIELDS},
    **{
        f"stream-{n}-{f.decode()}": events(beside(TOKEN, f, v), beside(LAST, f, v), DONE)
        for n, v in VALUES.items()
        for f in FIELDS
    },
}


NATIVE = b'{"id":"r","object":"response","output":[{"type":"message","content":[{"type":"output_text","text":"w"}]}]}'
TOLD = b'{"type":"response.output_text.delta","delta":"w "}'
TOLD_LAST = b'{"type":"response.completed","response":%b}'
for number, (named, value) in enumerate(VALUES.items()):
    field = FIELDS[number % len(FIELDS)]
    inner = beside(NATIVE, field, value)
    ANSWERS[f"native-{named}"] = whole(inner)
    ANSWERS[f"native-stream-{named}"] = events(beside(TOLD, field, value), TOLD_LAST % inner)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway in front of an engine that has no /v1/responses of its own."""
    pages: dict[str, Answer] = {"/v1/models": whole(b'{"data":[{"id":"m","owned_by":"me"}]}')}
    with (
        raw_engine(ANSWERS, pages) as engine,
        gateway(tmp_path_factory.mktemp("gateway"), {"retry": {"attempts": 1}}, engine.url) as where,
    ):
        yield where


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        raw_engine(ANSWERS) as engine,
        gateway(tmp_path_factory.mktemp("gateway"), {"retry": {"attempts": 1}}, engine.url) as where,
    ):
        yield where


def no_number(word: str) -> None:
    raise AssertionError(f"{word} was passed on")


def read(said: bytes) -> dict[str, object]:
    """As a parser would that takes JSON and nothing else."""
    found = json.loads(said, parse_constant=no_number, parse_int=float)
    assert isinstance(found, dict)
    return found


def parts(said: bytes) -> list[bytes]:
    lines = [line.removeprefix(b"data: ") for line in said.split(b"\n") if line.startswith(b"data: ")]
    return [line for line in lines if line != DONE]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", VALUES)
def test_an_answer_in_one_piece_stands(url: str, name: str, field: bytes) -> None:
    status, said = ask(url + CHAT, chat(f"say=whole-{name}-{field.decode()}", max_tokens=16))
    assert status == 200, said
    assert read(said)["choices"] == read(GOOD)["choices"]
    ledger.check(url)


@pytest.mark.parametrize("name", VALUES)
def test_so_does_one_that_is_gathered(url: str, name: str) -> None:
    status, said = ask(url + CHAT, chat(f"say=stream-{name}-timings", max_tokens=300))
    assert status == 200, said
    assert read(said)["choices"][0]["message"]["content"] == "w w "  # type: ignore[index]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", VALUES)
def test_and_a_stream(url: str, name: str, field: bytes) -> None:
    status, said = ask(url + CHAT, chat(f"say=stream-{name}-{field.decode()}", stream=True))
    assert status == 200
    assert said.endswith(b"data: [DONE]\n\n")
    assert [read(part)["choices"] for part in parts(said)] == [read(TOKEN)["choices"], read(LAST)["choices"]]


@pytest.mark.parametrize("name", VALUES)
def test_and_what_is_asked_in_other_words(plain: str, name: str) -> None:
    prompt = {"model": "m", "prompt": f"say=whole-{name}-timings", "max_tokens": 16}
    status, said = ask(f"{plain}/v1/completions", prompt)
    assert (status, read(said)["choices"][0]["text"]) == (200, "w")  # type: ignore[index]
    body = {"model": "m", "input": f"say=whole-{name}-timings", "max_output_tokens": 16}
    status, said = ask(f"{plain}/v1/responses", body)
    assert (status, read(said)["output"][0]["content"][0]["text"]) == (200, "w")  # type: ignore[index]
    body = {"model": "m", "input": f"say=stream-{name}-timings", "stream": True}
    status, said = ask(f"{plain}/v1/responses", body)
    last = read(parts(said)[-1])
    assert (status, last["type"]) == (200, "response.completed"), said
    assert last["response"]["output"][0]["content"][0]["text"] == "w w "  # type: ignore[index]


@pytest.mark.parametrize("name", VALUES)
def test_and_an_engine_that_has_those_words_itself(url: str, name: str) -> None:
    status, said = ask(f"{url}/v1/responses", {"model": "m", "input": f"say=native-{name}"})
    assert (status, read(said)["output"]) == (200, read(NATIVE)["output"])
    status, said = ask(f"{url}/v1/responses", {"model": "m", "input": f"say=native-stream-{name}", "stream": True})
    first, last = [read(part) for part in parts(said)]
    assert (status, first["delta"]) == (200, "w ")
    assert last["response"]["output"] == read(NATIVE)["output"]  # type: ignore[index]


def test_usage_that_is_no_number_is_no_usage(url: str) -> None:
    ANSWERS["usage-nan"] = whole(GOOD.replace(b":3,", b":NaN,"))
    status, said = ask(url + CHAT, chat("say=usage-nan", max_tokens=16))
    assert (status, read(said)["usage"]) == (200, {"prompt_tokens": None, "completion_tokens": 1})
    ledger.check(url)


@pytest.mark.parametrize("streamed", [False, True])
def test_half_a_character_is_not_the_end_of_an_answer(url: str, streamed: bool) -> None:
    """Engines that are cut off within one write it so."""
    engine_says = {
        "half-whole": whole(GOOD.replace(b'"content":"w"', b'"content":"w\\ud83d"')),
        "half-stream": events(TOKEN.replace(b"w ", b"\\ud83d"), LAST.replace(b"w ", b"\\ude00"), DONE),
    }
    ANSWERS.update(engine_says)
    name, limit = ("half-stream", 300) if streamed else ("half-whole", 16)
    status, said = ask(url + CHAT, chat(f"say={name}", max_tokens=limit))
    assert status == 200, said
    content = read(said)["choices"][0]["message"]["content"]  # type: ignore[index]
    assert content == ("\U0001f600" if streamed else "w\ufffd")
