"""Names that stand for versions or rules, on live sockets: which version answers, and that no client notices a
change."""

import asyncio
import json
import os
import random
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest

from headgate.bench.asker import Asker, Asking
from headgate.config.gateway import GatewayConfig, Tenant
from headgate.config.models import CanaryConfig, ModelConfig, RolloutConfig, RuleConfig, ShadowConfig
from headgate.model.clock import monotonic, wall
from headgate.model.errors import StartupError
from headgate.policy.rollout.rollout import No, RolloutStep, Stage
from headgate.replica.http import Once
from headgate.upkeep.rollouts import read_state
from headgate.workload.arrival import Arrival
from tests.gateway.versions import CHAT, V1, V2, Scene, awaited, scene
from tests.policy.records import record
from tests.wire.serving import until

pytestmark = pytest.mark.timeout(60)
HALF = replace(CHAT, versions=(V1, replace(V2, weight=1)))
TRUSTED: dict[str, Any] = {"anonymous": Tenant(name="anonymous", trusted=True)}
PIN = "x-headgate-version: "


def started(answer: RolloutStep | No) -> RolloutStep:
    assert isinstance(answer, RolloutStep)
    return answer


# -- versions ------------------------------------------------------------------------------------------------


@awaited
async def test_versions_share_by_weight_sessions_stay_and_records_say_which() -> None:
    async with scene(HALF) as it:
        for _ in range(2):
            for number in range(40):
                answer = await it.ask(headers=(f"x-headgate-session: s{number}",))
                assert answer.status == 200
        asked = it.asked()
        assert sum(asked.values()) == 80
        assert 16 <= asked["chat-2"] <= 64
        assert all(count % 2 == 0 for count in asked.values())  # the second time as the first
        assert {body["model"] for engine in it.engines.values() for body in engine.bodies} == {"double"}
        for closed in it.records:
            assert (closed.model, closed.drawn_from) == ("chat", "chat")
            assert closed.replica == {"v1": "chat-1", "v2": "chat-2"}[closed.version]
            assert closed.choice == f"version {closed.version}: 0.5 of chat"


@awaited
async def test_clients_see_the_name_and_not_what_is_behind_it() -> None:
    async with scene() as it:
        listed = json.loads((await it.http("GET", "/v1/models")).body)["data"]
        assert [card["id"] for card in listed] == ["chat"]
        assert (await it.ask(model="chat-2")).status == 200  # who knows it may ask for it
        assert it.records[-1].drawn_from == ""
        assert (await it.ask(model="other")).status == 404


@pytest.mark.parametrize("sticky", ["tenant", "request"])
@awaited
async def test_what_stays_with_one_version_can_be_chosen(sticky: Any) -> None:
    async with scene(replace(HALF, sticky=sticky)) as it:
        for _ in range(30):
            await it.ask(headers=("x-headgate-session: s",))
        versions = {closed.version for closed in it.records}
        assert len(versions) == (1 if sticky == "tenant" else 2)


@awaited
async def test_a_trusted_client_may_name_the_version_and_is_not_part_of_the_comparison() -> None:
    async with scene(**TRUSTED) as it:
        started(it.rollouts.start("chat", "v2", "split", 0.5))
        assert (await it.ask(headers=(f"{PIN}v2",))).status == 200
        assert it.asked() == {"chat-1": 0, "chat-2": 1}
        it.instruments.catch_up()
        assert (it.records[-1].version, it.records[-1].drawn_from) == ("v2", "")
        assert it.rollouts.status()[0]["requests"] == 0
        wrong = await it.ask(headers=(f"{PIN}v9",))
        assert wrong.status == 400
        assert "there is v1, v2" in json.loads(wrong.body)["error"]["message"]


@awaited
async def test_bench_can_aim_at_one_version_alone() -> None:
    async with scene(HALF, **TRUSTED) as it:
        asker = Asker((it.url,), Asking(model="chat", pin="v2", stream=False), monotonic)
        for number in range(6):
            listener = Once(asyncio.get_running_loop().create_future())
            asker.send(asker.prepare(Arrival(at_s=float(number), prompt_tokens=8, output_tokens=1)), listener)
            assert (await listener.answer)[0] == 200
        await asker.close()
        assert it.asked() == {"chat-1": 0, "chat-2": 6}


@awaited
async def test_anybody_else_is_told_that_naming_one_does_not_count() -> None:
    async with scene() as it:
        answer = await it.ask(headers=(f"{PIN}v2",))
        assert answer.status == 400
        assert "counts only for trusted keys" in json.loads(answer.body)["error"]["message"]
        assert it.asked() == {"chat-1": 0, "chat-2": 0}


# -- changing them -------------------------------------------------------------------------------------------


@awaited
async def test_a_rollback_takes_one_command_and_less_than_a_second_and_running_streams_go_on() -> None:
    async with scene() as it:
        switched = await it.http("POST", "/admin/rollout/chat/start", {"version": "v2", "mode": "blue_green"})
        assert switched.status == 200
        running = asyncio.ensure_future(it.ask("n=40 itl=10", stream=True))
        await until(lambda: it.asked()["chat-2"] == 1)
        began = monotonic()
        assert (await it.http("POST", "/admin/rollout/chat/rollback")).status == 200
        assert (await it.ask()).status == 200
        assert monotonic() - began < 1.0
        assert it.asked() == {"chat-1": 1, "chat-2": 1}
        stream = await running
        assert stream.body.count(b'"content":"w "') == 40
        assert stream.body.endswith(b"data: [DONE]\n\n")


@awaited
async def test_a_version_without_replicas_is_not_tried_out() -> None:
    async with scene(replicas=("chat-1",)) as it:
        answer = await it.http("POST", "/admin/rollout/chat/start", {"version": "v2"})
        assert answer.status == 400
        assert "no replica serves chat-2 right now" in json.loads(answer.body)["error"]["message"]


def made_up(it: Scene, **given: Any) -> None:
    """A request that has just ended."""
    it.gateway.account.open()
    it.gateway.account.close(record(**{"model": "chat", "drawn_from": "chat", **given}))


def closed(it: Scene, canary: bool, factor: float, rng: random.Random) -> None:
    ttft, tpot = 0.15 * exp(rng.gauss(0, 0.6)), 0.025 * exp(rng.gauss(0, 0.25))
    if canary:
        ttft, tpot = ttft * factor, tpot * factor
    version = "v2" if canary else "v1"
    times = {"ttft_s": ttft, "tpot_s": tpot, "first_s": ttft, "stream_s": 20 * tpot}
    made_up(it, version=version, wall=wall() + 1, **times)


@awaited
async def test_a_canary_that_is_slower_is_rolled_back_by_itself_and_the_next_request_knows() -> None:
    async with scene() as it:
        started(it.rollouts.start("chat", "v2", "canary", None))
        rng = random.Random(1)
        while it.rollouts.status()[0]["stage"] == "canary":
            for _ in range(500):
                closed(it, rng.random() < it.rollouts.status()[0]["share"], 1.5, rng)
            it.instruments.catch_up()
        status = it.rollouts.status()[0]
        assert status["stage"] == "rolled_back"
        assert status["requests"] < 20_000
        assert "times the baseline's" in status["history"][-1].reason
        assert status["rows"][0].canary is not None
        for _ in range(5):
            await it.ask()
        assert it.asked() == {"chat-1": 5, "chat-2": 0}


@awaited
async def test_requests_from_before_the_step_do_not_count() -> None:
    async with scene() as it:
        started(it.rollouts.start("chat", "v2", "canary", None))
        made_up(it, version="v1", wall=wall() - 10)
        made_up(it, drawn_from="", version="v1", wall=wall() + 1)
        made_up(it, version="v1", wall=wall() + 1)
        it.instruments.catch_up()
        assert it.rollouts.status()[0]["requests"] == 1


# -- shadows -------------------------------------------------------------------------------------------------

COPIED = replace(CHAT, shadow=ShadowConfig(share=0.99, concurrency=3))


@awaited
async def test_copies_are_measured_thrown_away_and_nobody_else_notices() -> None:
    tenant: dict[str, Any] = {"anonymous": Tenant(name="anonymous", requests_per_min=1000)}
    async with scene(COPIED, **tenant) as it:
        started(it.rollouts.start("chat", "v2", "shadow", None))
        for number in range(10):
            answer = await it.ask(f"n=3 call {number}", stream=bool(number % 2))
            assert answer.status == 200
            await until(lambda: it.rollouts.status()[0]["shadow"]["under_way"] == 0)
        status = it.rollouts.status()[0]
        shadow = status["shadow"]
        assert shadow["copied"] + shadow["left_out"] <= 10
        assert it.asked() == {"chat-1": 10, "chat-2": shadow["copied"]}
        assert shadow["copied"] >= 8
        assert shadow["failed"] == 0
        asked = [body["messages"] for body in it.engines["chat-1"].bodies]
        assert all(body["messages"] in asked for body in it.engines["chat-2"].bodies)
        it.instruments.catch_up()
        assert len(it.records) == 10
        assert {one.replica for one in it.records} == {"chat-1"}
        assert it.rollouts.status()[0]["samples"] == shadow["copied"]
        limits = it.gateway.dispatcher.rates("anonymous", monotonic())
        assert limits is not None
        assert limits.requests is not None
        assert limits.requests.remaining >= 1000 - 10


@awaited
async def test_a_shadow_that_hangs_holds_nobody_up_and_has_so_many_at_once() -> None:
    async with scene(COPIED) as it:
        started(it.rollouts.start("chat", "v2", "shadow", None))
        it.engines["chat-2"].jobs = Stuck()
        for _ in range(8):
            assert (await it.ask()).status == 200
        shadow = it.rollouts.status()[0]["shadow"]
        assert (shadow["under_way"], shadow["copied"]) == (3, 3)
        assert shadow["left_out"] >= 4
        started(it.rollouts.rollback("chat"))
        await it.ask()
        assert it.rollouts.status()[0]["shadow"]["copied"] == 3
        it.engines["chat-2"].jobs = it.engines["chat-2"].jobs[:]  # it works again


class Stuck(list[Any]):
    """Jobs without a worker."""

    def __iter__(self) -> Any:
        return iter(())


@awaited
async def test_copies_that_fail_are_the_shadows_failures_and_long_ones_are_not_made() -> None:
    async with scene(COPIED) as it:
        started(it.rollouts.start("chat", "v2", "shadow", None))
        it.engines["chat-2"].refuse = 1
        while it.rollouts.status()[0]["shadow"]["copied"] < 1:
            assert (await it.ask()).status == 200
        await until(lambda: it.rollouts.status()[0]["shadow"]["failed"] == 1)
        before = it.rollouts.status()[0]["shadow"]
        for _ in range(3):
            assert (await it.ask("n=1 " + "x" * 300_000)).status == 200
        assert it.rollouts.status()[0]["shadow"]["copied"] == before["copied"]
        it.roster.leave("chat-2")
        for _ in range(3):
            assert (await it.ask()).status == 200
        await until(lambda: it.rollouts.status()[0]["shadow"]["under_way"] == 0)
        assert it.rollouts.status()[0]["shadow"]["copied"] == before["copied"]


# -- restarts and reloads ------------------------------------------------------------------------------------


@awaited
async def test_a_restart_changes_nothing_if_there_is_a_file(tmp_path: Path) -> None:
    kept: dict[str, Any] = {"rollout": RolloutConfig(state=tmp_path / "rollout.json")}
    async with scene(**kept) as it:
        started(it.rollouts.start("chat", "v2", "blue_green", None))
    assert os.listdir(tmp_path) == ["rollout.json"]
    async with scene(**kept) as it:
        await it.ask()
        assert it.asked() == {"chat-1": 0, "chat-2": 1}
        started(it.rollouts.rollback("chat"))
    async with scene(**kept) as it:
        await it.ask()
        assert it.asked() == {"chat-1": 1, "chat-2": 0}


def test_a_file_that_holds_something_else_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "rollout.json"
    assert read_state(path) == {}
    for text in ("", "[]", '{"schema": 2, "models": {}}', '{"schema": 1, "models": []}'):
        path.write_text(text)
        with pytest.raises(StartupError, match="move it away"):
            read_state(path)
    with pytest.raises(StartupError, match="can't read"):
        read_state(tmp_path)


@awaited
async def test_a_disk_that_is_full_does_not_keep_anybody_from_rolling_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(rollout=RolloutConfig(state=tmp_path / "gone" / "rollout.json")) as it:
        started(it.rollouts.start("chat", "v2", "blue_green", None))
        assert "could not be written" in caplog.text
        started(it.rollouts.rollback("chat"))
        await it.ask()
        assert it.asked() == {"chat-1": 1, "chat-2": 0}


@awaited
async def test_a_new_config_keeps_what_is_being_tried_out(caplog: pytest.LogCaptureFixture) -> None:
    async with scene() as it:
        started(it.rollouts.start("chat", "v2", "canary", None))
        slower = replace(CHAT, canary=CanaryConfig(soak_s=3600))
        it.rollouts.reconfigure((slower, ModelConfig(name="other", use="chat-1")))
        status = it.rollouts.status()[0]
        assert (status["stage"], status["share"]) == ("canary", 0.05)
        it.rollouts.reconfigure((slower,))
        assert it.rollouts.status()[0]["history"][0].reason == "v2 started as canary"
        gone = replace(CHAT, versions=(V1,))
        it.rollouts.reconfigure((gone,))
        assert it.rollouts.status()[0]["stage"] == Stage.STABLE.value
        assert "versions of chat have changed: v2" in caplog.text
        it.wiring.reconfigure(GatewayConfig())
        assert (await it.ask()).status == 200  # the alias of the task again, on whatever is served
        assert (await it.ask(model="chat-9")).status == 404


# -- rules ---------------------------------------------------------------------------------------------------


@awaited
async def test_rules_choose_the_model_and_the_record_says_why() -> None:
    rules = (
        RuleConfig(name="long", use="chat-2", prompt_tokens_above=500),
        RuleConfig(name="tooled", use="chat-2", tools=True),
        RuleConfig(name="extracting", use="chat-2", tasks=frozenset({"extract"})),
    )
    async with scene(ModelConfig(name="auto", rules=rules, use="chat-1")) as it:
        await it.ask("n=1 " + "word " * 1000, model="auto")
        await it.ask(model="auto")
        await it.ask(model="auto", tools=[{"type": "function", "function": {"name": "f"}}])
        await it.ask(model="auto", headers=("x-headgate-task: extract",))
        assert [(closed.replica, closed.choice.partition(":")[0]) for closed in it.records] == [
            ("chat-2", "rule long"),
            ("chat-1", "no rule fits"),
            ("chat-2", "rule tooled"),
            ("chat-2", "rule extracting"),
        ]
        assert {closed.model for closed in it.records} == {"auto"}


@awaited
async def test_while_the_small_model_is_full_the_large_one_is_used_and_its_versions_too() -> None:
    auto = ModelConfig(name="auto", use="small", when_full="chat")
    async with scene(auto, CHAT, replicas=("small", "chat-1", "chat-2"), slots=2, **TRUSTED) as it:
        slow = [asyncio.ensure_future(it.ask("ttft=400 n=1", model="auto")) for _ in range(2)]
        await until(lambda: it.asked()["small"] == 2)
        assert (await it.ask(model="auto")).status == 200
        spilled = it.records[-1]
        assert (spilled.replica, spilled.version, spilled.drawn_from) == ("chat-1", "v1", "chat")
        assert spilled.choice == "the only choice; small is full (2 of 2, 0 waiting); version v1: 1 of chat"
        assert (await it.ask(model="auto", headers=(f"{PIN}v2",))).status == 200
        assert it.records[-1].choice.endswith("version v2: pinned")
        await asyncio.gather(*slow)
