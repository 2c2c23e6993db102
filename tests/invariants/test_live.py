"""Whatever clients and engines do to a live gateway, over real sockets, each request has one record, and the log of
events replays to the same commands."""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.gateway import GatewayConfig
from headgate.config.models import ModelConfig, VersionConfig
from headgate.model.event import Arrived, Command, Ended, Event, Refuse
from headgate.replay.event_log import EventLog
from headgate.replay.replay import Replayed, replay
from tests.gateway.versions import Scene, scene
from tests.wire.serving import until

REQUESTS = 40
SEED = 1
"""The scene's, with which the dispatcher draws."""
MODELS = (ModelConfig(name="chat", versions=(VersionConfig(name="v1", model="chat-1", weight=1),)),)
REPLICAS = ("chat-1", "chat-1#2", "chat-1#3")
CONFIG = GatewayConfig(models=MODELS)


class Watched:
    """Notes what the gateway tells its dispatcher, and hands it on to the log."""

    def __init__(self, log: EventLog) -> None:
        self.arrived: Counter[str] = Counter()
        self.over: Counter[str] = Counter()
        self.commands = 0
        self.log = log

    def add(self, event: Event, now: float, commands: list[Command]) -> None:
        if isinstance(event, Arrived):
            self.arrived[event.request.id] += 1
        elif isinstance(event, Ended):
            self.over[event.request_id] += 1
        for command in commands:
            if isinstance(command, Refuse):
                self.over[command.request_id] += 1
        self.commands += len(commands)
        self.log.add(event, now, commands)


async def ask(it: Scene, rng: random.Random) -> None:
    """One client: it asks for a stream or a whole answer, and may leave before the end."""
    await asyncio.sleep(rng.random() * 0.3)
    text = f"ttft={rng.randrange(60)} itl={rng.randrange(4)} n={rng.randrange(1, 12)}"
    body = {
        "model": "chat",
        "messages": [{"role": "user", "content": text}],
        "stream": rng.random() < 0.6,
        "max_tokens": rng.choice((8, 64, 400)),
        "n": rng.choice((1, 1, 1, 2)),
    }
    client = await it.send("POST", "/v1/chat/completions", body)
    if rng.random() < 0.25:
        await asyncio.sleep(rng.random() * 0.1)
        client.leave()
    else:
        await client.answer()


async def trouble(it: Scene, rng: random.Random) -> None:
    """Engines refuse some requests, or break the connections of those that they have."""
    for _ in range(4):
        await asyncio.sleep(0.08)
        engine = rng.choice(list(it.engines.values()))
        if rng.random() < 0.5:
            engine.refuse = rng.randrange(1, 4)
        else:
            for job in list(engine.jobs):
                job.exchange.abort()


async def live(seed: int, path: Path) -> tuple[Watched, Scene]:
    rng = random.Random(seed)
    watched = Watched(EventLog(path, CONFIG, SEED))
    async with scene(*MODELS, replicas=REPLICAS, slots=rng.choice((2, 3, 8)), events=watched.add) as it:
        clients: list[Coroutine[None, None, None]] = [ask(it, random.Random(rng.random())) for _ in range(REQUESTS)]
        await asyncio.gather(*clients, trouble(it, rng))
        await until(lambda: watched.arrived.keys() == watched.over.keys())
    watched.log.close()
    return watched, it


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_each_request_has_one_outcome_and_one_record_and_the_log_replays_to_the_same_commands(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    path = tmp_path_factory.mktemp("live") / "events.jsonl"
    watched, it = uvloop.run(asyncio.wait_for(live(seed, path), 20))
    assert len(watched.arrived) > REQUESTS / 2
    assert set(watched.arrived.values()) == {1}
    assert watched.over == watched.arrived
    recorded = Counter(record.id for record in it.records)
    assert set(recorded.values()) == {1}
    assert recorded.keys() >= watched.arrived.keys()
    found = replay(path)
    assert isinstance(found, Replayed), str(found)
    assert found.events == watched.log.events
    assert found.commands == watched.commands > 0
