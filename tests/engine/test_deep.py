"""A health check takes nothing from the streams that run: the deep check over real sockets, on a full engine."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from openai import AsyncOpenAI

from headgate.engine import deep_check
from headgate.engine.engine import Engine
from headgate.engine.runner.emulated_runner import EmulatedRunner
from headgate.machine.profile import Profile, StepCost
from headgate.model.clock import monotonic
from tests.engine.process import ask
from tests.engine.test_emulated import QUICK, served

SLOTS = 4
SMALL = replace(QUICK, slots=SLOTS, context=4096, kv_tokens=4 * 4096, host_tokens=4096)


async def deep(url: str) -> tuple[int, dict[str, Any]]:
    status, body = await asyncio.to_thread(ask, f"{url}/health/deep")
    return status, json.loads(body)


async def true(it: Callable[[], bool], within_s: float = 5.0) -> None:
    ends = monotonic() + within_s
    while not it():
        assert monotonic() < ends
        await asyncio.sleep(0.005)


def full(
    check: Callable[[Engine, str], Awaitable[None]],
    profile: Profile = SMALL,
    prompt: str = "Tell me",
    lanes: tuple[str, ...] = ("fast", "slow", "long", "batch"),
) -> None:
    """Runs `check` while every slot is taken by a stream that goes on for long."""

    async def run(engine: Engine, url: str, client: AsyncOpenAI) -> None:
        async with AsyncExitStack() as open_streams:
            for number in range(profile.slots):
                extra = {"lane": lanes[number % len(lanes)]}
                coming = client.completions.create(
                    model="default", prompt=f"{number} {prompt}", max_tokens=2000, stream=True, extra_body=extra
                )
                if prompt == "Tell me":
                    await open_streams.enter_async_context(await coming)
                else:  # no first token for long
                    task = asyncio.ensure_future(coming)
                    open_streams.callback(task.cancel)
            await true(lambda: len(engine.batcher.running) == profile.slots)
            await check(engine, url)

    served(run, profile)


def test_on_a_full_engine_nobody_is_swapped_out_for_a_check_and_a_streams_token_is_the_proof() -> None:
    async def check(engine: Engine, url: str) -> None:
        counts = engine.batcher.counts
        for _ in range(5):
            answer = await deep(url)
            assert (counts.yields, counts.swaps, counts.recomputes) == (0, 0, 0)
            assert answer == (200, {"status": "generates", "proof": "a token of a running stream"})

    full(check)


def test_a_check_that_has_to_generate_waits_behind_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no token is fresh enough, its own generation is asked for: even then no sequence makes way for it."""
    monkeypatch.setattr(deep_check, "FRESH_S", -1.0)

    async def check(engine: Engine, url: str) -> None:
        assert await deep(url) == (200, {"status": "generates", "proof": "a token of a running stream"})
        counts = engine.batcher.counts
        assert (counts.yields, counts.swaps, counts.recomputes) == (0, 0, 0)
        await true(lambda: not engine.batcher.waiting)  # nothing is left of it

    full(check, lanes=("batch",))


def test_an_idle_engine_generates_a_token_of_its_own() -> None:
    async def check(engine: Engine, url: str, client: AsyncOpenAI) -> None:
        before = engine.batcher.counts.generated
        assert await deep(url) == (200, {"status": "generates", "proof": "a token of its own"})
        assert engine.batcher.counts.generated == before + 1

    served(check)


def test_checks_at_once_share_one_generation() -> None:
    async def check(engine: Engine, url: str, client: AsyncOpenAI) -> None:
        before = engine.spent.lives
        answers = await asyncio.gather(*(deep(url) for _ in range(8)))
        assert {status for status, _ in answers} == {200}
        assert engine.spent.lives - before < 8

    served(check, replace(QUICK, cost=StepCost(fixed=0.2)))


def test_a_full_engine_that_only_reads_prompts_is_well_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sequence decodes for longer than a check waits: that prompts are computed is the proof."""
    monkeypatch.setattr(deep_check, "DEEP_CHECK_S", 0.5)
    slow = replace(SMALL, cost=StepCost(fixed=0.05, per_prefill=0.02))

    async def check(engine: Engine, url: str) -> None:
        assert await deep(url) == (200, {"status": "generates", "proof": "prompts that are being computed"})
        assert engine.batcher.counts.swaps == 0

    full(check, slow, "and so on " * 200)


def test_an_engine_that_computes_nothing_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every slot is taken and the step under way does not end."""
    monkeypatch.setattr(deep_check, "DEEP_CHECK_S", 0.3)
    monkeypatch.setattr(deep_check, "FRESH_S", 0.1)

    async def check(engine: Engine, url: str) -> None:
        assert isinstance(engine.runner, EmulatedRunner)
        engine.runner._due += 30.0
        await asyncio.sleep(0.3)
        status, body = await deep(url)
        assert status == 500
        assert "no token within 0.3 s" in body["error"]["message"]

    full(check)


def test_a_full_queue_is_no_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep_check, "FRESH_S", -1.0)

    async def check(engine: Engine, url: str) -> None:
        engine.batcher.config = replace(engine.batcher.config, queue_limit=0)
        assert await deep(url) == (200, {"status": "generates", "proof": "a token of a running stream"})

    full(check)
