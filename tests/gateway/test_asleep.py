"""Putting engines to sleep and waking them: in each engine's own way, whatever it answers."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from headgate.model.clock import monotonic
from headgate.model.dialect import DIALECTS
from headgate.replica.http import Connections
from headgate.upkeep.sleep import Rest, SleepSwitch
from headgate.wire.exchange import Exchange
from tests.wire.serving import serving

VLLM, SGLANG = DIALECTS["vllm"], DIALECTS["sglang"]


@dataclass
class Engine:
    """Answers what a test says, and notes what it was asked."""

    sleep: tuple[int, bytes] | None = (200, b"")
    """None: it never answers."""
    wake: tuple[int, bytes] | None = (200, b"")
    sleeping: list[bytes] = field(default_factory=lambda: [b'{"is_sleeping":true}'])
    """Its answers to /is_sleeping, the last one again and again."""
    loads: tuple[int, bytes] = (200, b'{"loads":[{"num_running_reqs":0,"num_waiting_reqs":0}]}')
    asked: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def __call__(self, exchange: Exchange) -> None:
        path = exchange.path + (f"?{exchange.query}" if exchange.query else "")
        if exchange.path == "/is_sleeping":
            self.answer(exchange, (200, self.sleeping.pop(0) if len(self.sleeping) > 1 else self.sleeping[0]))
            return
        self.asked.append(path)
        self.bodies.append(exchange.body)
        if exchange.path in ("/sleep", "/release_memory_occupation"):
            self.answer(exchange, self.sleep)
        elif exchange.path in ("/wake_up", "/resume_memory_occupation"):
            self.answer(exchange, self.wake)
        else:
            self.answer(exchange, self.loads)

    def answer(self, exchange: Exchange, what: tuple[int, bytes] | None) -> None:
        if what is not None:
            exchange.respond(*what)


def run(engine: Engine, check: Callable[[SleepSwitch, Connections], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving(engine) as served:
            connections = Connections(f"http://127.0.0.1:{served.port}", clock=monotonic)
            await check(SleepSwitch(), connections)
            connections.close()

    asyncio.run(main())


def test_vllm_is_put_to_sleep_without_aborting_anything_and_woken_until_it_says_that_it_is_awake() -> None:
    engine = Engine(sleeping=[b'{"is_sleeping":true}'] * 3 + [b'{"is_sleeping":false}'])

    async def check(switch: SleepSwitch, connections: Connections) -> None:
        assert (await switch.fall_asleep(VLLM, connections)).rest is Rest.ASLEEP
        assert switch.asleep
        assert await switch.wake_up(VLLM, connections, 5.0) == ""
        assert not switch.asleep

    run(engine, check)
    assert engine.asked == ["/sleep?level=1&mode=wait", "/wake_up"]
    assert engine.sleeping == [b'{"is_sleeping":false}']


def test_sglang_is_asked_first_whether_it_is_idle() -> None:
    engine = Engine()

    async def check(switch: SleepSwitch, connections: Connections) -> None:
        assert (await switch.fall_asleep(SGLANG, connections)).rest is Rest.ASLEEP
        assert await switch.wake_up(SGLANG, connections, 5.0) == ""

    run(engine, check)
    assert engine.asked == ["/v1/loads", "/release_memory_occupation", "/resume_memory_occupation"]
    assert json.loads(engine.bodies[1]) == {"tags": ["kv_cache", "weights"]}


@pytest.mark.parametrize(
    ("loads", "why"),
    [
        ((200, b'{"loads":[{"num_running_reqs":0},{"num_running_reqs":2}]}'), "counts 2"),
        ((200, b'[{"dp_rank":0,"num_reqs":1,"num_waiting_reqs":0}]'), "counts 1"),
        ((200, b'{"num_total_reqs":3}'), "counts 3"),
        ((404, b""), "it answered 404"),
        ((200, b"[[[["), "does not say"),
        ((200, b'{"loads":"none","num_running_reqs":true}'), "does not say"),
        ((200, b"\xff"), "does not say"),
    ],
)
def test_sglang_is_left_alone_unless_it_says_that_it_has_no_requests(loads: tuple[int, bytes], why: str) -> None:
    engine = Engine(loads=loads)

    async def check(switch: SleepSwitch, connections: Connections) -> None:
        rested = await switch.fall_asleep(SGLANG, connections)
        assert rested.rest is Rest.AWAKE
        assert why in rested.why
        assert not switch.asleep
        assert await switch.wake_up(SGLANG, connections, 1.0) == ""  # it would end an SGLang that does not sleep

    run(engine, check)
    assert engine.asked == ["/v1/loads"]


@pytest.mark.parametrize(
    ("sleep", "sleeping", "rest", "why"),
    [
        ((404, b""), b"{}", Rest.AWAKE, "VLLM_SERVER_DEV_MODE=1"),
        ((400, b'{"error":"not today"}'), b"{}", Rest.AWAKE, "not today"),
        ((200, b""), b'{"is_sleeping":false}', Rest.AWAKE, "does not sleep"),
        ((200, b""), b"nonsense", Rest.ASLEEP, ""),
        ((200, b""), b'{"is_sleeping":"yes"}', Rest.ASLEEP, ""),
        ((500, b"out of memory"), b"{}", Rest.UNKNOWN, "out of memory"),
        (None, b"{}", Rest.UNKNOWN, "did not answer"),
    ],
)
def test_what_an_engine_may_answer_to_an_order_to_sleep(
    sleep: tuple[int, bytes] | None, sleeping: bytes, rest: Rest, why: str
) -> None:
    async def check(switch: SleepSwitch, connections: Connections) -> None:
        found = await switch.fall_asleep(VLLM, connections, 0.2)
        assert found.rest is rest
        assert why in found.why
        assert switch.asleep is (rest is not Rest.AWAKE)

    run(Engine(sleep=sleep, sleeping=[sleeping]), check)


@pytest.mark.parametrize(
    ("wake", "sleeping", "why"),
    [
        ((500, b"CUDA error"), b'{"is_sleeping":true}', "CUDA error"),
        ((404, b""), b'{"is_sleeping":true}', "VLLM_SERVER_DEV_MODE"),
        ((200, b""), b'{"is_sleeping":true}', "still says that it sleeps after 0.3 s"),
        ((200, b""), b"nonsense", "still says"),
        (None, b"{}", "0.3 s"),
    ],
)
def test_a_wake_up_that_fails_or_hangs_is_told_in_words_and_ends(
    wake: tuple[int, bytes] | None, sleeping: bytes, why: str
) -> None:
    async def check(switch: SleepSwitch, connections: Connections) -> None:
        await switch.fall_asleep(VLLM, connections)
        assert why in await switch.wake_up(VLLM, connections, 0.3)
        assert switch.asleep

    run(Engine(wake=wake, sleeping=[b'{"is_sleeping":true}', sleeping]), check)


def test_an_order_to_wake_waits_until_the_order_to_sleep_is_over() -> None:
    engine = Engine(sleeping=[b'{"is_sleeping":true}', b'{"is_sleeping":false}'])
    orders: list[Exchange] = []

    def slowly(exchange: Exchange) -> None:
        if exchange.path == "/sleep":
            orders.append(exchange)
        else:
            engine(exchange)

    async def main() -> None:
        async with serving(slowly) as served:
            switch, connections = SleepSwitch(), Connections(f"http://127.0.0.1:{served.port}", clock=monotonic)
            sleeping = asyncio.create_task(switch.fall_asleep(VLLM, connections))
            await asyncio.sleep(0.05)
            waking = asyncio.create_task(switch.wake_up(VLLM, connections, 5.0))
            await asyncio.sleep(0.05)
            assert engine.asked == []
            orders[0].respond(200, b"")
            assert (await sleeping).rest is Rest.ASLEEP
            assert await waking == ""
            assert engine.asked == ["/wake_up"]
            connections.close()

    asyncio.run(main())


def test_a_kind_without_a_sleep_mode_says_so_and_is_asked_nothing() -> None:
    engine, tgi = Engine(), DIALECTS["tgi"]

    async def check(switch: SleepSwitch, connections: Connections) -> None:
        rested = await switch.fall_asleep(tgi, connections)
        assert (rested.rest, rested.why) == (Rest.AWAKE, "TGI has no sleep mode")
        assert await switch.wake_up(tgi, connections, 1.0) == ""
        assert await switch.wake_if_asleep(tgi, connections) == ""
        assert await switch.wake_if_asleep(SGLANG, connections) == ""

    run(engine, check)
    assert engine.asked == []


def test_one_found_asleep_when_it_joins_is_woken() -> None:
    engine = Engine(sleeping=[b'{"is_sleeping":true}', b'{"is_sleeping":false}'])

    async def check(switch: SleepSwitch, connections: Connections) -> None:
        assert await switch.wake_if_asleep(VLLM, connections) == ""
        assert await switch.wake_if_asleep(VLLM, connections) == ""

    run(engine, check)
    assert engine.asked == ["/wake_up"]
