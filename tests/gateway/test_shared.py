"""Gateways that share limits through a real Redis: two in one process, and two processes."""

import asyncio
import functools
import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, ParamSpec

import pytest
import uvloop

from headgate.model.clock import monotonic
from headgate.model.errors import StartupError
from headgate.model.event import Arrived, Command, Ended, Event, Refuse
from headgate.model.outcome import Outcome
from headgate.model.request import Request
from headgate.policy.replicas.allowance import AllowanceClaim
from headgate.policy.tenants.limits import OverLimit, TenantLimits
from headgate.policy.tenants.shared_limits import SharedLimits
from headgate.upkeep import shared_store
from headgate.upkeep.shared import HOLD_S, MOST_HELD, Sharing
from headgate.upkeep.shared_store import Lease, RedisStore, StoreGone
from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import chat, double, eventually
from tests.policy.test_dispatcher import dispatcher, request
from tests.wire.serving import until

P = ParamSpec("P")
aioredis = pytest.importorskip("redis.asyncio", reason="needs the Redis client: pip install 'headgate[redis]'")
SERVER = shutil.which("redis-server")
needs_server = pytest.mark.skipif(SERVER is None, reason="needs redis-server")
pytestmark = pytest.mark.timeout(60)

REQUESTS = TenantLimits(requests_per_min=6000, burst=0.01)
"""A hundred a second, and sixty at once."""
TOKENS = TenantLimits(tokens_per_min=600_000, burst=0.01)
"""Ten thousand a second, and six thousand at once."""


def live(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on uvloop, as the gateway does."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        uvloop.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


class RedisServer:
    """One that forgets everything when it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = f"unix://{folder}/redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert SERVER is not None
        socket = self._folder / "redis.sock"
        socket.unlink(missing_ok=True)
        settings = [
            "--port",
            "0",
            "--unixsocket",
            str(socket),
            "--save",
            "",
            "--appendonly",
            "no",
            "--loglevel",
            "warning",
        ]
        self._process = subprocess.Popen([SERVER, *settings], cwd=self._folder, stdout=subprocess.DEVNULL)
        ends = time.monotonic() + 10
        while not socket.exists():
            assert time.monotonic() < ends
            assert self._process.poll() is None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if SERVER is None:
        pytest.skip("needs redis-server")
    server = RedisServer(tmp_path_factory.mktemp("r"))
    server.start()
    try:
        yield server
    finally:
        server.kill()


class Side:
    """A gateway without sockets: its dispatcher, and what it shares. Whatever it lets in has ended at once."""

    def __init__(
        self, name: str, url: str, tenants: dict[str, TenantLimits], usage: tuple[int, int] = (10, 10)
    ) -> None:
        self.dispatcher = dispatcher(tenants=tenants)
        self.usage = usage
        self.let_in = 0
        self.refused = 0
        self.longest_s = 0.0
        """That anybody was held."""
        self.sharing = Sharing(name, RedisStore(url, "test"), self.dispatcher, self.hear, self.arrive, monotonic)

    @property
    def limits(self) -> SharedLimits:
        assert self.dispatcher.shared_limits is not None
        return self.dispatcher.shared_limits

    def ask(self, tenant: str = "t", tokens: int = 10) -> None:
        asked = request(at=monotonic(), tenant=tenant, tokens=tokens)
        if not self.sharing.hold(asked):
            self.arrive(asked)

    def hear(self, event: Event) -> list[Command]:
        return self.dispatcher.on(event, monotonic())

    def arrive(self, asked: Request) -> None:
        self.longest_s = max(self.longest_s, monotonic() - asked.arrived)
        if any(isinstance(said, Refuse) and said.outcome is Outcome.OVER_LIMIT for said in self.hear(Arrived(asked))):
            self.refused += 1
            return
        self.let_in += 1
        self.hear(Ended(asked.id, Outcome.COMPLETED, self.usage))


@asynccontextmanager
async def sides(
    url: str, tenants: dict[str, TenantLimits], count: int = 2, usage: tuple[int, int] = (10, 10)
) -> AsyncIterator[list[Side]]:
    made = [Side(f"g{number}", url, tenants, usage) for number in range(count)]
    async with asyncio.TaskGroup() as group:
        for side in made:
            await side.sharing.start()
        tasks = [group.create_task(side.sharing.run()) for side in made]
        try:
            yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for side in made:
                await side.sharing.close()


async def overload(made: list[Side], for_s: float, tokens: int = 10, each_s: float = 0.002) -> float:
    """Every side is asked for several times what all may have. How long it took."""
    began = monotonic()
    while monotonic() < began + for_s:
        for side in made:
            side.ask(tokens=tokens)
        await asyncio.sleep(each_s)
    await until(lambda: not any(side.sharing._held for side in made))
    return monotonic() - began


def let_in(made: list[Side]) -> int:
    return sum(side.let_in for side in made)


@needs_server
@live
async def test_a_limit_of_requests_holds_across_two_gateways_within_5_percent(redis: RedisServer) -> None:
    async with sides(redis.url, {"t": REQUESTS}) as made:
        await until(lambda: all(side.limits.gateways == 2 for side in made))
        took_s = await overload(made, 2.0)
        assert let_in(made) == pytest.approx(60 + 100 * took_s, rel=0.05)
        assert all(side.refused > side.let_in for side in made)
        assert min(side.let_in for side in made) > 0.1 * let_in(made)


@needs_server
@live
async def test_a_limit_of_tokens_holds_for_what_was_really_used(redis: RedisServer) -> None:
    """Forty are reserved for each, and a hundred are used."""
    async with sides(redis.url, {"t": TOKENS}, usage=(60, 40)) as made:
        took_s = await overload(made, 2.0, tokens=20)
        assert 100 * let_in(made) == pytest.approx(6000 + 10_000 * took_s, rel=0.05)


@needs_server
@live
async def test_within_the_limit_nobody_is_refused_wherever_they_ask(redis: RedisServer) -> None:
    async with sides(redis.url, {"t": TenantLimits(requests_per_min=60_000)}) as made:
        await overload(made[:1], 0.5)
        await overload(made[1:], 0.5)
        assert [side.refused for side in made] == [0, 0]
        assert made[0].let_in > 50


@needs_server
@live
async def test_what_is_not_used_is_given_back_and_whoever_leaves_leaves_nothing_behind(
    redis: RedisServer,
) -> None:
    store = RedisStore(redis.url, "test")
    limits = TenantLimits(requests_per_min=60, burst=100.0)
    async with sides(redis.url, {"t": limits}, count=1) as made:
        for _ in range(20):
            made[0].ask()
        await until(lambda: made[0].let_in == 20)
        await until(lambda: not made[0].limits.purses)
        (lease,) = await store.lease([AllowanceClaim("t", 6000.0)])
        assert lease.requests_full_s == pytest.approx(20.0, abs=3.0)
        assert set((await store.beat("me", 0.0))[0]) == {"g0", "me"}
    assert set((await store.beat("me", 0.0))[0]) == {"me"}
    await store.close()


@needs_server
@live
async def test_replicas_are_divided_by_what_each_has_to_do(redis: RedisServer) -> None:
    async with sides(redis.url, {}) as made:
        await until(lambda: all(side.limits.gateways == 2 for side in made))
        for number in range(30):  # they wait: there is no replica
            made[0].hear(Arrived(request(at=monotonic()).but(id=f"w{number}")))
        await until(lambda: made[0].dispatcher.book.part[1] > 0.8)
        await until(lambda: made[0].dispatcher.book.part[1] == made[1].dispatcher.book.part[0])


@needs_server
@live
async def test_redis_may_go_and_come_back_and_the_limit_holds_all_the_time(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with sides(redis.url, {"t": REQUESTS}) as made:
        await until(lambda: all(side.limits.gateways == 2 for side in made))
        began = monotonic()
        await overload(made, 1.0)
        redis.kill()
        await overload(made, 1.5)
        assert not any(side.sharing.connected for side in made)
        assert sum("keeps to 1/2" in record.message for record in caplog.records) == 2  # once each
        before = let_in(made)
        took_s = await overload(made, 1.0)
        assert let_in(made) - before == pytest.approx(100 * took_s, rel=0.1)  # each half, by itself
        redis.start()
        await overload(made, 1.0)
        assert all(side.sharing.connected for side in made)
        await overload(made, 1.0)
        # Redis has forgotten all it knew, and nobody got a bucket twice for that.
        assert let_in(made) == pytest.approx(60 + 100 * (monotonic() - began), rel=0.05)


@live
async def test_without_redis_from_the_beginning_it_serves_all_the_same(tmp_path: Path) -> None:
    async with sides(f"unix://{tmp_path}/nobody.sock", {"t": REQUESTS}, count=1) as made:
        for _ in range(100):
            made[0].ask()
        assert made[0].let_in == pytest.approx(60, abs=2)
        assert made[0].let_in + made[0].refused == 100


class Silent:
    """A store that never answers once it has said that one is alone."""

    async def beat(self, gateway: str, demand: float | None) -> tuple[dict[str, float], bool]:
        return {gateway: 0.0}, False

    async def lease(self, asks: list[AllowanceClaim]) -> list[object]:
        await asyncio.Event().wait()
        raise StoreGone("never")

    async def close(self) -> None:
        pass


@live
async def test_a_store_that_does_not_answer_delays_nobody_and_refuses_nobody() -> None:
    made = dispatcher(tenants={"t": REQUESTS})
    entered: list[str] = []
    sharing = Sharing(
        "g",
        Silent(),  # type: ignore[arg-type]
        made,
        lambda event: made.on(event, monotonic()),
        lambda asked: entered.append(asked.id),
        monotonic,
    )
    await sharing.start()
    running = asyncio.get_running_loop().create_task(sharing.run())
    asked = [request(at=monotonic(), tenant="t") for _ in range(MOST_HELD + 1)]
    assert [sharing.hold(one) for one in asked] == [True] * MOST_HELD + [False]
    began = monotonic()
    await until(lambda: len(entered) == MOST_HELD)
    assert monotonic() - began < 100 * HOLD_S, "sooner than any call to it times out"
    assert entered == [one.id for one in asked[:MOST_HELD]]
    assert not any(isinstance(said, Refuse) for said in made.on(Arrived(asked[0]), monotonic()))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_without_the_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(StartupError, match=r"pip install 'headgate\[redis\]'"):
        RedisStore("redis://127.0.0.1:1", "x")


# -- two processes ----------------------------------------------------------------------------------------


@contextmanager
def asking(url: str, key: str) -> Iterator[Callable[[], int]]:
    yield lambda: ask(f"{url}/v1/chat/completions", chat("n=1"), headers={"authorization": f"Bearer {key}"})[0]


@needs_server
def test_two_gateway_processes_keep_one_limit(redis: RedisServer, tmp_path: Path) -> None:
    key = "secret"
    with double() as (_, engine):
        path = tmp_path / "headgate.yaml"
        tenant = {"key_sha256": [hashlib.sha256(key.encode()).hexdigest()], "requests_per_min": 60}
        config = {"listen": {"port": 0}, "replicas": [{"url": engine, "slots": 8}], "tenants": {"acme": tenant}}
        path.write_text(json.dumps({**config, "shared": {"redis": redis.url}}))
        with (
            headgate("serve", "--config", str(path)) as (_, first),
            headgate("serve", "--config", str(path)) as (_, second),
            asking(first, key) as ask_first,
            asking(second, key) as ask_second,
            ThreadPoolExecutor(4) as threads,
        ):
            began = time.monotonic()
            asked = [threads.submit((ask_first, ask_second)[number % 2]) for number in range(160)]
            statuses = [one.result() for one in asked]
            took_s = time.monotonic() - began
            assert set(statuses) == {200, 429}
            assert statuses.count(200) == pytest.approx(60 + took_s, abs=3)
            redis.kill()
            for asking_one in (ask_first, ask_second):  # each half, without Redis: one in two seconds
                eventually(lambda asking_one=asking_one: asking_one() == 200)  # type: ignore[misc]


# -- its clock -----------------------------------------------------------------------------------------------


class Moved:
    """Redis as it is, with a clock that can be set forward by a number of seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, redis: RedisServer) -> None:
        from redis import Redis

        self._redis = Redis.from_url(redis.url)
        real = "local time = redis.call('TIME')\n"
        told = f"{real}time[1] = tostring(tonumber(time[1]) + tonumber(redis.call('GET', 'moved') or '0'))\n"
        for name in ("LEASE", "BEAT"):
            script: str = getattr(shared_store, name)
            assert script.count(real) == 1
            monkeypatch.setattr(shared_store, name, script.replace(real, told))

    def set(self, seconds: float) -> None:
        """What is known until a moment that is past is forgotten, as Redis does it."""
        self._redis.set("moved", seconds)
        if seconds > 0:
            self._redis.delete("{test}:tenant:t")

    def close(self) -> None:
        self._redis.close()


@needs_server
@pytest.mark.parametrize("jumps", [(-600.0,), (600.0,), (600.0, 0.0), (-7200.0, 0.0), (0.4, -0.4)])
@live
async def test_its_clock_may_be_set_and_nobody_waits_minutes_or_gets_a_bucket_twice(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch, jumps: tuple[float, ...]
) -> None:
    moved = Moved(monkeypatch, redis)
    async with sides(redis.url, {"t": REQUESTS}) as made:
        await until(lambda: all(side.limits.gateways == 2 for side in made))
        began = monotonic()
        await overload(made, 1.0)
        for seconds in jumps:
            moved.set(seconds)
            for _ in range(20):
                await overload(made, 0.1)
                assert all(side.limits.gateways == 2 for side in made), (
                    "nobody is taken for dead, nor the dead for alive"
                )
                for side in made:
                    said = side.limits.take("t", REQUESTS, 10, monotonic())
                    if isinstance(said, OverLimit):
                        assert said.retry_after_s < 2.0
                    else:
                        side.limits.give_back(said, monotonic())
        allowed = 60 + 100 * (monotonic() - began)
        # Forward: until the next beat, half a second, the buckets look full; what that gives is owed afterwards.
        assert 0.85 * allowed < let_in(made) < 1.15 * allowed + 60 * len(jumps)
    moved.close()


@needs_server
@live
async def test_one_that_died_is_not_alive_because_the_clock_was_set_back(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = Moved(monkeypatch, redis)
    store, other = RedisStore(redis.url, "test"), RedisStore(redis.url, "test")
    await other.beat("other", 1.0)
    assert set((await store.beat("this", 1.0))[0]) == {"this", "other"}
    moved.set(-600.0)
    demands, unsure = await store.beat("this", 1.0)
    assert (set(demands), unsure) == ({"this", "other"}, True)
    moved.set(-600.0 + shared_store.ALIVE_S - 1.0)
    assert set((await store.beat("this", 1.0))[0]) == {"this", "other"}
    moved.set(-600.0 + shared_store.ALIVE_S + 1.0)
    assert set((await store.beat("this", 1.0))[0]) == {"this"}
    await store.close()
    await other.close()
    moved.close()


@live
async def test_a_store_that_says_something_else_counts_as_gone() -> None:
    class Strange(Silent):
        async def beat(self, gateway: str, demand: float | None) -> Any:
            return None

    made = dispatcher(tenants={"t": REQUESTS})
    heard: list[Event] = []

    def hear(event: Event) -> None:
        heard.append(event)
        made.on(event, monotonic())

    sharing = Sharing("g", Strange(), made, hear, lambda asked: None, monotonic)  # type: ignore[arg-type]
    running = asyncio.get_running_loop().create_task(sharing.run())
    await asyncio.sleep(1.2)
    assert not running.done()
    assert not sharing.connected
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


ODD = ["nan", "-nan", "inf", "-inf", "1e308", "-1", "x", "0x7fffffffffffff", ""]


@needs_server
@live
async def test_odd_values_of_one_gateway_count_as_that_gateway_not_being_there(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = aioredis.Redis.from_url(redis.url)
    async with sides(redis.url, {"t": REQUESTS}) as made:
        await until(lambda: all(side.limits.gateways == 2 for side in made))
        for odd in ODD:
            await client.hset("{test}:gateways", f"q{odd}", f"{time.time() + 2.0} {odd}")
            await client.hset("{test}:gateways", f"u{odd}", f"{odd} 1.0")
        await client.hset("{test}:gateways", b"\xff\xfe", "9999999999 1.0")
        await asyncio.sleep(1.2)
        assert [side.limits.gateways for side in made] == [2, 2]
        for clock in ODD:
            await client.hset("{test}:gateways", ":clock", clock)
            await asyncio.sleep(0.6)
        await client.set("{test}:gateways", "no hash")
        await asyncio.sleep(1.2)
        assert all(side.sharing.connected and side.limits.gateways == 2 for side in made)
    assert not any(record.exc_info for record in caplog.records)
    await client.aclose()


@needs_server
@live
async def test_odd_values_in_a_bucket_count_as_no_bucket(redis: RedisServer) -> None:
    client, store = aioredis.Redis.from_url(redis.url), RedisStore(redis.url, "test")
    ask_ = AllowanceClaim("t", 60.0, least=(1.0, 1.0), most=(1.0, 1.0))
    for odd in ODD:
        for field in ("requests", "tokens", "seen"):
            await client.delete("{test}:tenant:t")
            await client.hset("{test}:tenant:t", field, odd)
            (lease,) = await store.lease([ask_])
            assert (lease.requests_s, lease.tokens_s) == (1.0, 1.0), (field, odd)
            assert (lease.requests_full_s, lease.tokens_full_s) == (1.0, 1.0), (field, odd)
    await client.set("{test}:tenant:t", "no hash")
    (lease,) = await store.lease([ask_])
    assert lease.requests_full_s == 1.0
    await store.close()
    await client.aclose()


class Babbling:
    """Answers every script with what it is told to."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def eval(self, script: str, *given: object) -> Any:
        return self.answer

    async def aclose(self) -> None: ...


@live
async def test_an_answer_that_is_no_answer_is_a_store_that_is_gone() -> None:
    store = RedisStore("redis://127.0.0.1:1/0", "test")
    ask_ = AllowanceClaim("t", 60.0)
    answer: Any
    for answer in (
        None,
        5,
        "abc",
        [[]],
        [0],
        [None, None],
        ["x", "1"],
        [0, "nan"],
        [0, "inf"],
        [0, "1", "g", None],
        {},
    ):
        store._redis = Babbling(answer)
        if answer != {}:  # what a gateway that takes leave is told
            with pytest.raises(StoreGone):
                await store.beat("g", 1.0)
        with pytest.raises(StoreGone):
            await store.lease([ask_])
    for odd in ("nan", "inf", "-5", "1e308"):
        store._redis = Babbling([0, "100.0", "g", "1.0", "other", odd])
        assert (await store.beat("g", 1.0))[0] == {"g": 1.0}
        store._redis = Babbling([odd, "1", "1", "1", "1", "2", "3", "4"])
        first, second = await store.lease([ask_, ask_])
        assert first == Lease("t", 0.0, 0.0, 0.0, 0.0)
        assert second == Lease("t", 1.0, 2.0, 3.0, 4.0)


@live
async def test_whatever_a_store_says_the_gateway_goes_on_and_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    class Flawed(Silent):
        async def beat(self, gateway: str, demand: float | None) -> Any:
            raise RecursionError("too\ndeep" * 1000)

        async def lease(self, asks: list[AllowanceClaim]) -> list[object]:
            raise RecursionError

    made = dispatcher(tenants={"t": REQUESTS})
    store = Flawed()
    sharing = Sharing("g", store, made, lambda event: made.on(event, monotonic()), lambda asked: None, monotonic)  # type: ignore[arg-type]
    await sharing.start()
    running = asyncio.get_running_loop().create_task(sharing.run())
    await asyncio.sleep(1.2)
    assert not running.done()
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert not record.exc_info
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 400
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await sharing.close()
