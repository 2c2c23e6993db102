"""The brain of a gateway with several workers, told by hand-made workers over a socket: what is cut off, what makes no
sense, and ids that two workers have at once."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.config import file as config_file
from headgate.config.gateway import GatewayConfig
from headgate.gateway.catalog import Catalog
from headgate.gateway.gateway import Gateway
from headgate.gateway.worker import frames
from headgate.gateway.worker.brain import Brain
from headgate.gateway.worker.frames import packed, unpacked
from headgate.gateway.worker.state import WorkerState, frozen, thawed
from headgate.model.clock import monotonic
from headgate.model.event import Ended, FirstToken, Probed, ReplicaJoined
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.replica.http import Connections
from headgate.wiring.gateway import build_gateway
from tests.policy.test_dispatcher import request
from tests.wire.serving import live, until

encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode


class ByHand:
    """A worker's end of the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, *said: tuple[int, Any]) -> None:
        frame = encode(said)
        self.writer.write(len(frame).to_bytes(4, "little") + frame)

    async def hear(self, kind: int) -> Any:
        """The content of the next message of this kind."""
        while True:
            size = int.from_bytes(await self.reader.readexactly(4), "little")
            for heard, content in decode(await self.reader.readexactly(size)):
                if heard == kind:
                    return content


@asynccontextmanager
async def brain(slots: int = 2) -> AsyncIterator[tuple[Brain, Gateway, Path]]:
    gateway = build_gateway(GatewayConfig(), monotonic, 1)
    made = Brain(gateway, Catalog(gateway.placing.places, gateway.hear), GatewayConfig(), monotonic)
    replica = Replica(id="a", url="http://127.0.0.1:9", slots=slots)
    connections = Connections(replica.url, clock=monotonic)
    gateway.placing.join(replica, connections)
    gateway.hear(ReplicaJoined(replica))
    gateway.hear(Probed("a", ok=True))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "b.sock"
        await made.listen(path)
        try:
            yield made, gateway, path
        finally:
            made.close()
            connections.close()


async def worker(path: Path, number: int = 1) -> ByHand:
    made = ByHand(*await asyncio.open_unix_connection(str(path)))
    made.say((frames.HELLO, (number, 4711)))
    state = thawed(await made.hear(frames.STATE))
    assert isinstance(state, WorkerState)
    assert [one.replica.id for one in state.replicas] == ["a"]
    return made


def asked(id: str) -> Request:
    now = monotonic()
    return request(at=now).but(id=id, wait_until=now + 30, first_token_by=now + 30)


@live
async def test_a_frame_that_is_cut_off_ends_its_workers_requests_and_no_others() -> None:
    async with brain() as (made, gateway, path):
        first, second = await worker(path), await worker(path, 2)
        first.say((frames.ARRIVED, packed(asked("one"))))
        second.say((frames.ARRIVED, packed(asked("two"))))
        assert (await first.hear(frames.DISPATCH))[:2] == ["one", "a"]
        assert (await second.hear(frames.DISPATCH))[:2] == ["two", "a"]
        frame = encode([(frames.FIRST, FirstToken("one")), (frames.ENDED, Ended("one", Outcome.COMPLETED))])
        first.writer.write(len(frame).to_bytes(4, "little") + frame[: len(frame) // 2])
        first.writer.close()
        await until(lambda: len(made.workers) == 1)
        assert list(gateway.tickets) == ["two"]
        assert [record.outcome for record in gateway.account.records] == [Outcome.CANCELLED]
        assert gateway.dispatcher.holdings()["room"] == 1
        second.writer.close()
        await until(lambda: not gateway.tickets)
        assert not any(gateway.dispatcher.holdings().values())


@pytest.mark.parametrize("said", [b"\xff" * 64, (9).to_bytes(4, "little") + b"\xc1" * 9])
@live
async def test_what_is_no_frame_loses_that_worker_alone(said: bytes) -> None:
    async with brain() as (made, _, path):
        first, second = await worker(path), await worker(path, 2)
        first.writer.write(said)
        assert await first.reader.read() == b""
        await until(lambda: len(made.workers) == 1)
        second.say((frames.ARRIVED, packed(asked("two"))))
        assert (await second.hear(frames.DISPATCH))[0] == "two"
        first.writer.close()
        second.writer.close()
        await until(lambda: not made.workers)


@live
async def test_a_message_that_makes_no_sense_harms_no_other_of_its_frame() -> None:
    async with brain() as (made, gateway, path):
        one = await worker(path)
        one.say((frames.ARRIVED, ["too", "short"]), (99, "?"), (frames.ENDED, 7), (frames.ARRIVED, packed(asked("x"))))
        assert (await one.hear(frames.DISPATCH))[0] == "x"
        one.writer.close()
        await until(lambda: not made.workers and not gateway.tickets)


@live
async def test_two_workers_may_have_the_same_id_at_once() -> None:
    async with brain() as (made, gateway, path):
        first, second = await worker(path), await worker(path, 2)
        for one in (first, second):
            one.say((frames.ARRIVED, packed(asked("same"))))
            assert (await one.hear(frames.DISPATCH))[0] == "same"
        assert len(gateway.tickets) == 2
        record = Record(
            id="same",
            at=0.0,
            wall=0.0,
            lane="fast",
            tenant="anonymous",
            model="m",
            outcome=Outcome.COMPLETED,
            replica="a",
        )
        for one in (second, first):
            one.say((frames.RECORD, record), (frames.ENDED, Ended("same", Outcome.COMPLETED, (10, 10))))
            await until(lambda: len(gateway.account.records) == (1 if one is second else 2))  # noqa: B023
        assert [record.reason != "" for record in gateway.account.records] == [True, True]
        await until(lambda: not any(gateway.dispatcher.holdings().values()))
        assert not any(found.tickets for found in made.workers)
        for one in (first, second):
            one.writer.close()
        await until(lambda: not made.workers)


@live
async def test_a_refused_request_is_forgotten_with_its_record() -> None:
    async with brain(slots=1) as (made, gateway, path):
        one = await worker(path)
        late = request(at=monotonic()).but(id="late", model="unknown")
        one.say((frames.ARRIVED, packed(asked("held"))), (frames.ARRIVED, packed(late)))
        refuse, _ = await one.hear(frames.REFUSE)
        assert refuse["request_id"] == "late"
        record = Record(
            id="late",
            at=0.0,
            wall=0.0,
            lane="fast",
            tenant="t",
            model="m",
            outcome=Outcome(refuse["outcome"]),
            replica="a",
        )
        one.say((frames.RECORD, record))
        await until(lambda: list(gateway.tickets) == ["held"])
        assert list(made.workers[0].tickets) == ["held"]
        one.writer.close()
        await until(lambda: not made.workers)


def test_a_request_is_the_same_at_the_other_end() -> None:
    made = request().but(
        prefix=(b"a", b"b"), session="s", unfit=frozenset(("x",)), fallback=("f",), choices=2, link_tokens=16.0,
        when_late="refuse", ttft_s=0.5, tpot_s=0.1, uncached_tokens=3,
    )  # fmt: skip
    assert unpacked(decode(encode(packed(made)))) == made
    cached = unpacked(decode(encode(packed(made))), lambda prefix, link, tokens, model, lane: 4)
    assert cached == made.but(uncached_tokens=made.prompt_tokens - 4)


def test_a_config_is_the_same_at_the_other_end() -> None:
    config = config_file.parse(
        "tenants: {a: {key_sha256: [" + "ab" * 32 + "], requests_per_min: 3}}\n"
        "lanes: {fast: {reserve: 0.2}}\nreplicas: [{url: 'http://h:1', tags: {x: y}}]",
        "file",
    )
    assert thawed(frozen(config)) == config
