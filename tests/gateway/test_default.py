"""`default` stands for whatever is served, and a task's name for `default`: what is asked, and told."""

import json
from typing import Any

import pytest

from headgate.config.output import AliasConfig, OutputConfig
from headgate.model.replica import Replica
from headgate.replica.detect import Card
from tests.gateway.versions import CHAT, Scene, awaited, scene
from tests.wire.serving import until

pytestmark = pytest.mark.timeout(60)


async def plain(it: Scene, kind: str) -> None:
    """The only replica, as one that config says nothing of: it lists `double`."""
    url = it.roster.watches["chat-1"].replica.url
    it.roster.leave("chat-1")
    it.roster.join(Replica(id="plain", url=url, kind=kind, slots=8))
    fleet = it.gateway.dispatcher.index
    await until(lambda: "plain" in fleet.loads and fleet.loads["plain"].usable == 1)
    it.engines["chat-1"].bodies.clear()


def model_in(body: bytes, stream: bool) -> set[str]:
    if not stream:
        return {json.loads(body)["model"]}
    events = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
    return {json.loads(event)["model"] for event in events}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", ["vllm", "openai", "sglang"])
@awaited
async def test_a_replica_is_asked_for_what_it_lists(kind: str, stream: bool) -> None:
    """vLLM answered 404: the model `default` does not exist."""
    async with scene(replicas=("chat-1",)) as it:
        await plain(it, kind)
        answer = await it.ask(model="default", stream=stream)
        assert answer.status == 200
        assert [body["model"] for body in it.engines["chat-1"].bodies] == ["double"]
        assert model_in(answer.body, stream) == {"double"}
        assert it.records[-1].model == "default"


@awaited
async def test_an_adapter_that_is_listed_first_is_not_what_is_meant() -> None:
    async with scene(replicas=("chat-1",)) as it:
        await plain(it, "vllm")
        it.roster.said("plain", [Card("poet", parent="base"), Card("base"), Card("other")])
        assert (await it.ask(model="default")).status == 200
        it.roster.said("plain", [Card("default"), Card("base")])
        assert (await it.ask(model="default")).status == 200
        assert [body["model"] for body in it.engines["chat-1"].bodies] == ["base", "default"]


@pytest.mark.parametrize("stream", [True, False])
@awaited
async def test_where_all_have_names_it_is_the_first_that_is_listed(stream: bool) -> None:
    """It was a 404."""
    async with scene(CHAT) as it:
        answer = await it.ask(model="default", stream=stream)
        assert answer.status == 200
        assert [body["model"] for engine in it.engines.values() for body in engine.bodies] == ["double"]
        assert model_in(answer.body, stream) == {"chat"}
        it.catalog.models = None
        it.gateway.acceptor.serve_models(None)
        answer = await it.ask(model="default", stream=stream)
        assert model_in(answer.body, stream) == {"chat-1"}


ALIASES = OutputConfig(
    aliases=(
        AliasConfig(name="summary", task="extract", model="default"),
        AliasConfig(name="label", task="classify", model="chat"),
    )
)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("name", "more"), [("classify", {}), ("summary", {"output": ALIASES}), ("label", {"output": ALIASES})]
)
@awaited
async def test_an_alias_is_told_by_its_own_name(name: str, more: dict[str, Any], stream: bool) -> None:
    """rollout.md: clients see the public name in every answer and every event."""
    async with scene(CHAT, **more) as it:
        answer = await it.ask(model=name, stream=stream)
        assert answer.status == 200
        assert {body["model"] for engine in it.engines.values() for body in engine.bodies} == {"double"}
        assert model_in(answer.body, stream) == {name}
        response = await it.http("POST", "/v1/responses", {"model": name, "input": "n=1"})
        assert json.loads(response.body)["model"] == name


@awaited
async def test_names_that_are_found_out_reach_all_that_keep_a_replica() -> None:
    async with scene(replicas=("chat-1",)) as it:
        it.roster.said("chat-1", [Card("chat-1"), Card("poet", parent="chat-1")])
        load = it.gateway.dispatcher.index.get("chat-1")
        assert load is not None
        found = (load.replica, it.gateway.placing.places["chat-1"].replica, it.roster.watches["chat-1"].replica)
        assert [replica.names for replica in found] == [{"chat-1", "poet"}] * 3
        assert len({replica.kind for replica in found}) == 1
        assert it.roster.url("chat-1") == load.replica.url
        it.roster.leave("chat-1")
        assert it.roster.url("chat-1") is None
