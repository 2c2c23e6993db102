"""Replicas on a real Ray cluster of several nodes, all on this machine (Ray's own cluster utility)."""

import asyncio
import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headgate.config.cluster import RayConfig
from headgate.fleet.port import Appeared, Change, FleetError, Spec, Vanished
from headgate.fleet.ray_fleet import RayFleet

# Ray opens sockets and processes that it leaves to the interpreter's end, and warns of its own future.
pytestmark = [pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore")]

SPEC = Spec(pool="gpu", flags=("--emulate", "h100-llama3-8b"), slots=4, tags={"gpu_type": "h100"})
SMALL = {"object_store_memory": 80 * 1024 * 1024, "include_dashboard": False}
QUICK = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray: Any = pytest.importorskip("ray.cluster_utils", reason="no Ray: pip install 'headgate[ray]'")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = ray.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": QUICK, **SMALL})
    for _ in range(2):
        made.add_node(num_cpus=1, resources={"engine": 2}, **SMALL)
    try:
        yield made
    finally:
        made.shutdown()


def config(cluster: Any, **more: Any) -> RayConfig:
    return RayConfig(**{"address": cluster.address, "cpus": 0.1, "resources": {"engine": 1.0}, **more})


class Heard:
    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.there: dict[str, str] = {}

    def __call__(self, change: Change) -> None:
        self.changes.append(change)
        if isinstance(change, Appeared):
            self.there[change.replica.id] = change.replica.url
        else:
            self.there.pop(change.id, None)

    def lost(self, replica_id: str) -> list[bool]:
        """Whether it was to come back, each time that it vanished."""
        gone = [change for change in self.changes if isinstance(change, Vanished) and change.id == replica_id]
        return [change.comes_back for change in gone]


async def until(fact: Callable[[], object]) -> None:
    for _ in range(1200):
        if fact():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError


async def ready(url: str) -> None:
    def asks() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/health/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    for _ in range(600):
        if await asyncio.to_thread(asks):
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(url)


def test_replicas_spread_come_back_elsewhere_and_are_found_by_others(cluster: Any) -> None:
    """One story, because a cluster takes seconds to start."""

    async def story() -> None:
        fleet, heard = RayFleet(config(cluster)), Heard()
        await fleet.open()
        fleet.watch(heard)
        first, second = await asyncio.gather(fleet.start(SPEC), fleet.start(SPEC))
        assert heard.there == {first.id: first.url, second.id: second.url}
        assert all(one.slots == 4 and one.tags == {"gpu_type": "h100"} for one in fleet.list())
        places = {it.id: await fleet.where(it.id) for it in (first, second)}
        assert len({place.node for place in places.values()}) == 2  # each on a node of its own
        await asyncio.gather(ready(first.url), ready(second.url))

        # A second gateway finds them, and is told of what happens to them.
        other, also = RayFleet(config(cluster)), Heard()
        await other.open()
        other.watch(also)
        await until(lambda: set(also.there) == {first.id, second.id})
        assert {one.id: one.slots for one in other.list()} == {first.id: 4, second.id: 4}

        # An engine that dies comes back.
        os.kill(places[first.id].pid, 9)
        await until(lambda: heard.lost(first.id) == also.lost(first.id) == [True])
        await until(lambda: first.id in heard.there and heard.there == also.there)
        await ready(heard.there[first.id])

        # A node that dies takes its engine along; the replica comes back on the other one.
        victim = (await fleet.where(second.id)).node
        remaining = next(node for node in cluster.worker_nodes if node.node_id != victim)
        doomed = next(node for node in cluster.worker_nodes if node.node_id == victim)
        here = [it.id for it in (first, second) if (await fleet.where(it.id)).node == victim]
        pids = [(await fleet.where(it)).pid for it in here]
        before = {it: len(heard.lost(it)) for it in here}
        cluster.remove_node(doomed, allow_graceful=False)
        await until(lambda: all(len(heard.lost(it)) > before[it] for it in here))
        await until(lambda: set(heard.there) == {first.id, second.id})
        now = [(await fleet.where(it)).node for it in here]
        assert set(now) == {remaining.node_id}
        assert not any(alive(pid) for pid in pids)
        await asyncio.gather(*(ready(url) for url in heard.there.values()))

        # No room for a third: it is said what is missing, and nothing is left behind.
        full = RayFleet(config(cluster, place_s=1.0))
        await full.open()
        with pytest.raises(
            FleetError, match=r"no node had 0\.1 CPU, 1 engine free within 1 s; free in all: .*0 engine"
        ):
            await full.start(SPEC)
        await full.close()

        # Stopped: politely, and for everybody. Closing ends what this one started.
        pid = (await fleet.where(first.id)).pid
        await fleet.stop(first.id, 5.0)
        assert heard.changes[-1] == Vanished(first.id, "stopped")
        assert not alive(pid)
        await until(lambda: first.id not in also.there)
        pid = (await fleet.where(second.id)).pid
        await fleet.stop("nobody", 1.0)
        await other.close()
        assert alive(pid)
        await fleet.close()
        assert not heard.there
        assert not alive(pid)

    uvloop.run(story())  # as the gateway does


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except OSError:
        return False


def test_no_cluster_and_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("headgate.fleet.ray_fleet.importlib.import_module", missing)
    with pytest.raises(FleetError, match=r"pip install 'headgate\[ray\]'"):
        asyncio.run(RayFleet(RayConfig()).open())
