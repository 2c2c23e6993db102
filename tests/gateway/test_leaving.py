"""A client that leaves pays for what was computed for it, as far as that is known or can be guessed."""

import asyncio
import hashlib
from typing import Any

import pytest

from headgate.config.gateway import Tenant
from headgate.config.models import ModelConfig, VersionConfig
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.wire.errors import STATUS
from tests.gateway.versions import Scene, awaited, scene
from tests.wire.serving import until

ONE = ModelConfig(name="chat", versions=(VersionConfig(name="v1", model="chat-1", weight=1),))
KEY = "authorization: Bearer k"
PER_MIN = 6000
ANSWER = "ttft=50 itl=10 n=60"
"""60 tokens in 0.65 s."""


def tenant() -> Tenant:
    return Tenant(name="t", key_sha256=(hashlib.sha256(b"k").hexdigest(),), tokens_per_min=PER_MIN)


def spent(it: Scene) -> int:
    """Tokens that the tenant has used."""
    rates = it.gateway.dispatcher.rates("t", it.gateway._clock())
    assert rates is not None
    assert rates.tokens is not None
    return PER_MIN - rates.tokens.remaining


async def leave(it: Scene, after_s: float, **more: Any) -> Record:
    """Ask, leave after a while, and see what is recorded."""
    before = len(it.records)
    body = {"model": "chat", "messages": [{"role": "user", "content": ANSWER}], **more}
    client = await it.send("POST", "/v1/chat/completions", body, KEY)
    await asyncio.sleep(after_s)
    client.leave()
    await until(lambda: len(it.records) > before)
    record = it.records[-1]
    assert record.outcome is Outcome.CANCELLED
    return record


SHAPES: dict[str, dict[str, Any]] = {
    "nothing is heard before the end": {"max_tokens": 64, "n": 2},
    "it is streamed to the gateway": {"max_tokens": 64},
    "it is streamed": {"max_tokens": 64, "stream": True},
}


@pytest.mark.parametrize("shape", list(SHAPES))
@awaited
async def test_leaving_just_before_the_end_costs_what_was_computed(shape: str) -> None:
    async with scene(ONE, replicas=("chat-1",), tenants=(tenant(),)) as it:
        for _ in range(2):
            assert (await it.ask(ANSWER, headers=(KEY,), max_tokens=64)).status == 200
        before = spent(it)
        record = await leave(it, 0.6, **SHAPES[shape])
        choices = SHAPES[shape].get("n", 1)
        assert 30 * choices <= record.output_tokens <= 64 * choices
        assert spent(it) - before == pytest.approx(record.prompt_tokens + record.output_tokens, abs=70)
        early = await leave(it, 0.12, **SHAPES[shape])
        assert early.output_tokens < record.output_tokens / 2


@awaited
async def test_whoever_always_leaves_meets_its_limit() -> None:
    async with scene(ONE, replicas=("chat-1",), tenants=(tenant(),)) as it:
        await it.ask(ANSWER, headers=(KEY,), max_tokens=64)

        async def leave_often() -> int:
            for number in range(20):
                body = {"model": "chat", "messages": [{"role": "user", "content": ANSWER}], "max_tokens": 64, "n": 16}
                client = await it.send("POST", "/v1/chat/completions", body, KEY)
                try:
                    async with asyncio.timeout(0.5):
                        assert (await client.answer()).status == STATUS[Outcome.OVER_LIMIT]
                        return number
                except TimeoutError:
                    client.leave()
            return 20

        assert await leave_often() < 14


@awaited
async def test_leaving_a_queue_costs_nothing() -> None:
    async with scene(ONE, replicas=("chat-1",), slots=1, tenants=(tenant(),)) as it:
        other = await it.send(
            "POST", "/v1/chat/completions", {"model": "chat", "messages": [{"role": "user", "content": "ttft=800"}]}
        )
        await until(lambda: it.gateway.dispatcher.index.loads["chat-1"].requests == 1)
        record = await leave(it, 0.2, max_tokens=64)
        assert (record.output_tokens, record.attempts) == (0, 0)
        assert spent(it) == 0
        assert (await other.answer()).status == 200
