"""A client is told the name that it asked for, however its model is called behind the gateway."""

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.config.models import ModelConfig, RuleConfig
from headgate.gateway.intake.naming import Naming
from tests.engine.process import ask
from tests.gateway.test_gateway import double, gateway
from tests.gateway.test_rollout import HALF
from tests.gateway.test_websocket import answer, opened, say
from tests.gateway.versions import CHAT, awaited, scene
from tests.wire.serving import Answer

pytestmark = pytest.mark.timeout(60)


def models(answer: Answer) -> set[str]:
    """All names in an answer, streamed or not."""
    assert answer.status == 200, answer.body
    return names(answer.body)


def names(body: bytes) -> set[str]:
    if not body.startswith((b"data:", b"event:")):
        return {model_of(json.loads(body))}
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
    assert lines
    return {model_of(json.loads(line)) for line in lines} - {""}


def model_of(said: dict[str, Any]) -> str:
    return str(said.get("model") or said.get("response", {}).get("model") or "")


@pytest.mark.parametrize("stream", [True, False])
@awaited
async def test_a_public_name_is_what_clients_see(stream: bool) -> None:
    async with scene() as it:
        assert models(await it.ask("n=3", stream=stream)) == {"chat"}
        usage: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
        assert models(await it.ask("n=3", stream=stream, **usage)) == {"chat"}
        assert it.engines["chat-1"].bodies[0]["model"] == "double"


@pytest.mark.parametrize("stream", [True, False])
@awaited
async def test_so_is_the_name_that_a_replica_has_here_and_its_engine_does_not(stream: bool) -> None:
    async with scene() as it:
        assert models(await it.ask("n=3", "chat-2", stream=stream)) == {"chat-2"}


@pytest.mark.parametrize("stream", [True, False])
@awaited
async def test_rules_keep_the_name_too(stream: bool) -> None:
    auto = ModelConfig(name="auto", rules=(RuleConfig(name="r", use="chat"),), use="chat-2")
    async with scene(CHAT, auto) as it:
        assert models(await it.ask("n=3", "auto", stream=stream)) == {"auto"}


@pytest.mark.parametrize("stream", [True, False])
@awaited
async def test_in_the_words_of_responses_too(stream: bool) -> None:
    async with scene() as it:
        body = {"model": "chat", "input": "n=3", "stream": stream}
        assert models(await it.http("POST", "/v1/responses", body)) == {"chat"}


@pytest.mark.parametrize("stream", [True, False])
@awaited
async def test_another_version_that_stands_in_does_not_show(stream: bool) -> None:
    async with scene(HALF) as it:
        it.engines["chat-1"].model = "other"
        await it.servers["chat-2"].drain(0)
        answers = [await it.ask("n=3", headers=(f"x-headgate-session: {n}",), stream=stream) for n in range(12)]
        assert any(record.fell_back for record in it.records)
        assert {name for answer in answers for name in models(answer)} == {"chat"}


@pytest.mark.parametrize("stream", [True, False])
def test_over_a_websocket_too(stream: bool, tmp_path: Path) -> None:
    with double() as (_, engine):
        config: dict[str, Any] = {
            "replicas": [{"url": engine, "model": "chat-1", "served_as": "double", "kind": "openai"}],
            "models": [{"name": "chat", "versions": [{"name": "v1", "model": "chat-1", "weight": 1}]}],
        }
        with gateway(tmp_path, config) as url, opened(url) as client:
            say(client, {"model": "chat", "stream": stream, "messages": [{"role": "user", "content": "n=3"}]})
            *messages, done = answer(client)
            assert done == "[DONE]"
            assert {model_of(json.loads(message)) for message in messages} == {"chat"}


def test_a_name_that_is_the_engines_own_is_passed_on_as_it_is(tmp_path: Path) -> None:
    body = {"model": "default", "messages": [{"role": "user", "content": "n=3"}]}
    with double() as (_, engine), gateway(tmp_path, {}, engine) as url:
        status, said = ask(f"{url}/v1/chat/completions", body)
        assert (status, names(said)) == (200, {"double"})


# -- bytes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        b'{"id":"1","model":"m","choices":[]}',
        b'{"id": "1", "model" : "m", "choices": []}',
        b'{"choices":[{"delta":{"content":"\\"model\\":\\"m\\""}}],"model":"m"}',
        b'{"choices":[{"delta":{"content":"x","about":{"model":"another"}}}],"model":"m"}',
        b'{"type":"response.created","response":{"id":"r","model":"m"}}',
        b'{"model":"\\u006d","choices":[]}',
    ],
)
def test_only_the_name_is_changed(event: bytes) -> None:
    naming = Naming('a "b"')
    before, after = json.loads(event), json.loads(naming.told(event))
    assert model_of(after) == 'a "b"'
    where = after if "model" in after else after["response"]
    where["model"] = "m"
    assert after == before


@pytest.mark.parametrize(
    "data",
    [b"[DONE]", b"{", b'{"error":{"message":"no"}}', b'{"model":7}', b'["model"]', b'{"x":"model"}', b'{"model":null}',
     b'{"about":{"model":"m"}}'],
)  # fmt: skip
def test_what_names_no_model_is_left_alone(data: bytes) -> None:
    assert Naming("a").told(data) == data


def test_an_engine_that_goes_on_in_other_bytes_is_understood() -> None:
    naming = Naming("a")
    assert naming.told(b'{"model": "m"}') == b'{"model":"a"}'
    assert naming.told(b'{"model":"m"}') == b'{"model":"a"}'
    assert naming.told(b'{"model":"other"}') == b'{"model":"a"}'


@pytest.mark.parametrize(
    "said",
    [
        b'{"model":"secret","response":5}',
        b'{"about":{"model":"secret"},"model":"secret"}',
        b'{"response":[],"model" : "secret"}',
        b'{"response":{"model":"secret"},"model":"secret"}',
        b'{"model":"secret","choices":[{"delta":{"content":"\\ud83d"}}]}',
        b'{"model": "secret","x":NaN}',
    ],
)
def test_the_engines_own_name_shows_nowhere_whatever_is_beside_it(said: bytes) -> None:
    assert b"secret" not in Naming("public").told(said)
    assert b"public" in Naming("public").told(said)
