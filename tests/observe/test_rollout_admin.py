"""Rollouts over HTTP and from the command line."""

import asyncio
import io
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from headgate.cli import rollout_client
from headgate.model.errors import StartupError
from tests.gateway.test_rollout import closed
from tests.gateway.versions import CHAT, V1, V2, Scene, awaited, scene

pytestmark = pytest.mark.timeout(60)


async def told(it: Scene, what: Any, *arguments: Any) -> str:
    console = Console(file=io.StringIO(), width=160)
    await asyncio.to_thread(lambda: what(it.url, None, *arguments, console))
    out = console.file
    assert isinstance(out, io.StringIO)
    return out.getvalue()


def message(body: bytes) -> str:
    said: str = json.loads(body)["error"]["message"]
    return said


@awaited
async def test_all_of_it_over_http() -> None:
    async with scene() as it:
        start = await it.http("POST", "/admin/rollout/chat/start", {"version": "v2", "mode": "split", "share": 0.25})
        assert json.loads(start.body)["step"] | {"at": 0} == {
            "at": 0, "stage": "split", "share": 0.25, "reason": "v2 started as split",
        }  # fmt: skip
        (status,) = json.loads((await it.http("GET", "/admin/rollout")).body)["models"]
        assert [(version["name"], version["share"]) for version in status["versions"]] == [("v1", 0.75), ("v2", 0.25)]
        assert status["versions"][1]["room"] == 64
        again = await it.http("POST", "/admin/rollout/chat/start", {"version": "v2"})
        assert (again.status, message(again.body)[:2]) == (400, "v2")
        assert (await it.http("POST", "/admin/rollout/chat/promote", {})).status == 200
        assert (await it.http("POST", "/admin/rollout/chat/rollback", {})).status == 200
        assert it.rollouts.status()[0]["stage"] == "rolled_back"


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("nobody/promote", {}, 404, "there is chat"),
        ("chat/destroy", {}, 404, "start, promote, rollback"),
        ("chat/start", {}, 400, "needs a version"),
        ("chat/start", {"version": "v2", "mode": "odd"}, 400, "needs a version"),
        ("chat/start", {"version": "v2", "weight": 3}, 400, "needs a version"),
        ("chat/promote", {}, 400, "nothing of chat is being tried out"),
    ],
)
@awaited
async def test_what_can_not_be_done_is_refused_with_its_reason(path: str, body: Any, status: int, said: str) -> None:
    async with scene() as it:
        answer = await it.http("POST", f"/admin/rollout/{path}", body)
        assert (answer.status, said in message(answer.body)) == (status, True), answer.body


@awaited
async def test_another_page_in_the_admins_browser_may_not_change_anything() -> None:
    async with scene() as it:
        start = {"version": "v2", "mode": "blue_green"}
        evil = await it.http("POST", "/admin/rollout/chat/start", start, "origin: http://evil.example")
        assert evil.status == 403
        assert it.rollouts.status()[0]["stage"] == "stable"
        own = await it.http("POST", "/admin/rollout/chat/start", start, f"origin: {it.url}")
        assert own.status == 200
        it.access.change(("00" * 32,))
        assert (await it.http("POST", "/admin/rollout/chat/rollback")).status == 401
        assert (await it.http("GET", "/admin/rollout")).status == 401


@awaited
async def test_the_page_gets_the_same() -> None:
    async with scene() as it:
        snapshot = json.loads((await it.http("GET", "/admin/state")).body)
        assert [one["name"] for one in snapshot["rollouts"]] == ["chat"]


@awaited
async def test_the_command_says_what_was_done_and_how_it_compares() -> None:
    async with scene(replace(CHAT, versions=(V1, V2))) as it:
        body = {"version": "v2", "mode": "canary", "share": None}
        assert "chat is canary, at 5%: v2 started as canary" in await told(
            it, rollout_client.act, "chat", "start", body
        )
        rng = random.Random(1)
        for number in range(2000):
            closed(it, number % 20 == 0, 1.0, rng)
        shown = await told(it, rollout_client.status, "chat")
        assert "v2 canary, 20%" in shown
        assert "TTFT p99" in shown
        assert "undecided: " in shown
        assert "no harm seen in 100 of its requests" in shown
        assert "promoted, at 100%" in await told(it, rollout_client.act, "chat", "promote", {})
        assert "v2 promoted, 100%" in await told(it, rollout_client.status, None)
        assert "rolled back, at 0%" in await told(it, rollout_client.act, "chat", "rollback", {})
        with pytest.raises(StartupError, match="there is nothing to roll back"):
            await told(it, rollout_client.act, "chat", "rollback", {})
        with pytest.raises(StartupError, match="there is chat"):
            await told(it, rollout_client.status, "other")
        it.rollouts.start("chat", "v2", "shadow", None)
        assert "0 copied, 0 left out, 0 failed" in await told(it, rollout_client.status, "chat")
        it.rollouts.reconfigure(())
        assert "No model has versions" in await told(it, rollout_client.status, None)
