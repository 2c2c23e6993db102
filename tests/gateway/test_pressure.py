"""More is asked than fits: who is served, who is refused, and what the refused are told."""

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.gateway.test_gateway import double, eventually, gateway, seen
from tests.wire.serving import until

pytestmark = pytest.mark.timeout(60)


def tenant(key: str, **settings: Any) -> dict[str, Any]:
    return {"key_sha256": [hashlib.sha256(key.encode()).hexdigest()], **settings}


def client(url: str, key: str, retries: int = 0) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=retries)


async def spoken(asker: AsyncOpenAI, text: str) -> float:
    """Seconds to the first token of a streamed answer."""
    asked = time.monotonic()
    first = 0.0
    stream = await asker.chat.completions.create(
        model="double", messages=[{"role": "user", "content": text}], stream=True, max_tokens=4000
    )
    async for _ in stream:
        first = first or time.monotonic() - asked
    return first


async def keep_asking(asker: AsyncOpenAI, text: str) -> None:
    while True:
        try:
            await spoken(asker, text)
        except openai.APIStatusError:
            await asyncio.sleep(0.05)


def test_a_quiet_tenant_is_served_beside_one_that_keeps_thirty_long_streams_coming(tmp_path: Path) -> None:
    config = {"tenants": {"loud": tenant("loud"), "quiet": tenant("quiet")}}

    async def both(url: str, engine: str) -> list[float]:
        async with client(url, "loud") as loud, client(url, "quiet") as quiet:
            flood = [asyncio.ensure_future(keep_asking(loud, "itl=100 n=40")) for _ in range(30)]
            await until(lambda: seen(engine)["running"] >= 7)
            firsts = []
            for _ in range(20):
                firsts.append(await spoken(quiet, "itl=5 n=10"))
                await asyncio.sleep(0.15)
            # Not after they leave: an engine may get the next request before it notices that one has gone.
            assert seen(engine)["most"] == 8
            for one in flood:
                one.cancel()
            await asyncio.gather(*flood, return_exceptions=True)
            return firsts

    with double() as (_, engine), gateway(tmp_path, config, engine) as url:
        firsts = asyncio.run(both(url, engine))  # a refusal would raise
        assert sorted(firsts)[-2] < 0.3
        eventually(lambda: seen(engine)["running"] == 0)


def test_default_clients_get_their_answers_where_the_backlog_drains_in_time(tmp_path: Path) -> None:
    async def six(url: str) -> list[float]:
        async with client(url, "none", retries=2) as asker:
            return await asyncio.gather(*(spoken(asker, "itl=50 n=30") for _ in range(6)))

    with double() as (_, engine), gateway(tmp_path, {}, engine, slots=2) as url:
        assert len(asyncio.run(six(url))) == 6  # one that gives up would raise


def test_beyond_its_concurrency_a_tenant_waits_and_is_told_why(tmp_path: Path) -> None:
    config = {"tenants": {"loud": tenant("loud", concurrency=2), "quiet": tenant("quiet")}}

    async def three(url: str, engine: str) -> openai.RateLimitError:
        async with client(url, "loud") as loud, client(url, "quiet") as quiet:
            running = [asyncio.ensure_future(spoken(loud, "itl=50 n=60")) for _ in range(2)]
            await until(lambda: seen(engine)["running"] == 2)
            late = asyncio.ensure_future(spoken(loud, "n=1"))
            assert await spoken(quiet, "n=1") < 0.3
            with pytest.raises(openai.RateLimitError) as refused:
                await late
            await asyncio.gather(*running)
            return refused.value

    with double() as (_, engine), gateway(tmp_path, config, engine) as url:
        refused = asyncio.run(three(url, engine))
        assert "2 requests at work, as many as it may" in str(refused)
        assert float(refused.response.headers["retry-after-ms"]) > 0
        assert seen(engine)["most"] == 3
