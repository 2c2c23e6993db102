"""A version whose replicas are gone: the stable one answers for it, at once, and the record says so."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from headgate.config.gateway import Tenant, TimeoutsConfig
from headgate.config.models import CanaryConfig
from headgate.model.clock import monotonic
from headgate.policy.dispatch.passage import ModelQueue
from headgate.policy.rollout.rollout import Stage
from tests.gateway.test_rollout import HALF, PIN, started
from tests.gateway.versions import CHAT, Scene, awaited, scene
from tests.wire.serving import until

pytestmark = pytest.mark.timeout(60)
IDLE = ModelQueue("chat-2")
TRUSTED: dict[str, Any] = {"anonymous": Tenant(name="anonymous", trusted=True)}


async def die(it: Scene, model: str) -> None:
    """As if killed: what is asked breaks off, and its port no longer listens."""
    await it.servers[model].drain(0)


async def ask_all(it: Scene, count: int, **more: Any) -> list[tuple[int, float]]:
    """Status and seconds of each."""

    async def one(number: int) -> tuple[int, float]:
        began = monotonic()
        answer = await it.ask(headers=(f"x-headgate-session: s{number}",), **more)
        return answer.status, monotonic() - began

    return await asyncio.gather(*[one(number) for number in range(count)])


@pytest.mark.parametrize("stream", [True, False])
@awaited
async def test_the_other_version_answers_at_once_and_the_record_says_so(stream: bool) -> None:
    async with scene(HALF) as it:
        await die(it, "chat-2")
        answers = await ask_all(it, 40, stream=stream)
        assert {status for status, _ in answers} == {200}
        assert max(took_s for _, took_s in answers) < 3.0
        assert {record.replica for record in it.records} == {"chat-1"}
        fallen = [record for record in it.records if record.fell_back]
        assert 8 <= len(fallen) <= 32
        for record in fallen:
            assert (record.version, record.fell_back, record.model) == ("v1", "v2", "chat")
            assert record.choice == "version v1: no replica of v2 is usable; version v2: 0.5 of chat"
        assert all(record.version == "v1" for record in it.records)
        assert {body["model"] for body in it.engines["chat-1"].bodies} == {"double"}
        await until(lambda: it.gateway.dispatcher.index.loads["chat-2"].usable == 0)
        answers = await ask_all(it, 40, stream=stream)
        assert max(took_s for _, took_s in answers) < 1.0
        assert {record.attempts for record in it.records[-40:]} == {1}


@awaited
async def test_requests_that_wait_for_a_version_as_it_dies_are_answered_by_the_other() -> None:
    async with scene(HALF, slots=1) as it:
        it.engines["chat-2"].held_s = 60.0
        asking = asyncio.ensure_future(ask_all(it, 10))
        await until(lambda: it.gateway.dispatcher.model_queues.get("chat-2", IDLE).waiting > 0)
        await die(it, "chat-2")
        answers = await asking
        assert {status for status, _ in answers} == {200}
        assert max(took_s for _, took_s in answers) < 5.0
        assert any(record.fell_back == "v2" and record.queue_s > 0 for record in it.records)


@awaited
async def test_a_version_that_is_back_has_its_share_again() -> None:
    async with scene(HALF) as it:
        dispatcher = it.gateway.dispatcher
        it.roster.route("chat-2", False)
        await ask_all(it, 20)
        assert it.asked()["chat-2"] == 0
        it.roster.route("chat-2", True)
        await until(lambda: dispatcher.index.loads["chat-2"].usable == 1)
        await ask_all(it, 20)
        assert it.asked()["chat-2"] > 2
        assert not any(record.fell_back for record in it.records[-20:])


@awaited
async def test_the_stable_version_is_stood_in_for_too_and_with_nobody_left_it_is_waited_for() -> None:
    async with scene(HALF, timeouts=TimeoutsConfig(no_replica_wait_s=0.5)) as it:
        it.roster.route("chat-1", False)
        assert {status for status, _ in await ask_all(it, 10)} == {200}
        assert it.asked()["chat-1"] == 0
        assert {record.fell_back for record in it.records} == {"", "v1"}
        it.roster.route("chat-2", False)
        assert {status for status, _ in await ask_all(it, 4)} == {503}
        assert not any(record.fell_back for record in it.records[-4:])


@awaited
async def test_a_version_that_was_named_is_not_stood_in_for_but_refused_in_clear_words() -> None:
    async with scene(HALF, **TRUSTED) as it:
        it.roster.route("chat-2", False)
        began = monotonic()
        answer = await it.ask(headers=(f"{PIN}v2",))
        assert answer.status == 503
        assert monotonic() - began < 1.0
        message = json.loads(answer.body)["error"]["message"]
        assert "no replica of version v2 of chat is usable" in message
        assert "x-headgate-version" in message
        assert "retry-after" in answer.headers
        assert it.asked() == {"chat-1": 0, "chat-2": 0}
        assert (await it.ask(headers=(f"{PIN}v1",))).status == 200


@awaited
async def test_a_canary_that_is_dead_is_rolled_back_though_nobody_noticed() -> None:
    canary = CanaryConfig(steps=(0.5, 0.6), step_requests=20, min_samples=10)
    async with scene(replace(CHAT, canary=canary)) as it:
        started(it.rollouts.start("chat", "v2", "canary", None))
        it.roster.route("chat-2", False)
        for _ in range(20):
            assert {status for status, _ in await ask_all(it, 20)} == {200}
            it.instruments.catch_up()
            if it.rollouts._rollouts["chat"].stage is Stage.ROLLED_BACK:
                break
        assert it.rollouts._rollouts["chat"].stage is Stage.ROLLED_BACK


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("slots", [1, 8], ids=["waiting", "running"])
@awaited
async def test_a_named_version_that_dies_is_said_at_once_to_those_who_wait_and_run(stream: bool, slots: int) -> None:
    """It took `no_replica_wait_s`, 10 s, to tell them."""
    async with scene(HALF, slots=slots, **TRUSTED) as it:
        it.engines["chat-2"].held_s = 60.0
        asking = [
            asyncio.ensure_future(it.ask(headers=(f"{PIN}v2",), stream=stream, session=str(number)))
            for number in range(3)
        ]
        await until(lambda: len(it.gateway.tickets) == 3 and it.asked()["chat-2"] >= 1)
        began = monotonic()
        await die(it, "chat-2")
        answers = await asyncio.gather(*asking)
        assert monotonic() - began < 5.0
        assert {answer.status for answer in answers} == {503}
        for answer in answers:
            assert "x-headgate-version" in json.loads(answer.body)["error"]["message"]
        assert it.asked()["chat-1"] == 0


@awaited
async def test_a_stream_of_a_named_version_that_dies_says_so_at_once() -> None:
    async with scene(HALF, **TRUSTED) as it:
        asking = asyncio.ensure_future(it.ask("n=1000 itl=20", headers=(f"{PIN}v2",), stream=True))
        await until(lambda: any(ticket.relay and ticket.relay.events > 2 for ticket in it.gateway.tickets.values()))
        began = monotonic()
        await die(it, "chat-2")
        answer = await asking
        assert monotonic() - began < 5.0
        assert b'"error"' in answer.body
        assert b"[DONE]" not in answer.body
