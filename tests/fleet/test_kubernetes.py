"""Pods as replicas, against a small API server of ours (kubernetes_server.py) that speaks the parts used."""

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headgate.config.cluster import KubernetesConfig
from headgate.fleet.follow import Follow
from headgate.fleet.kubernetes_api import Api, ApiAccess, ApiError, find_access
from headgate.fleet.kubernetes_fleet import KubernetesFleet, _as_text, read_pod
from headgate.fleet.port import Appeared, Change, FleetError, Spec, Vanished
from headgate.model.clock import monotonic
from headgate.policy.scaling.lifecycle import Lifecycle
from headgate.policy.scaling.scale import Activate, PoolMember, PoolView
from headgate.wire.server import HttpServer
from tests.engine.process import ask, headgate
from tests.export.proxies import eventually, free_port
from tests.fleet.kubernetes_server import Cluster, cluster
from tests.gateway.double import Double
from tests.gateway.test_gateway import chat, post
from tests.wire.serving import live, until
from tests.wire.test_lifecycle import LOCALHOST_KEY_AND_CERT

SPEC = Spec(pool="gpu", model="llama", slots=16, tags={"gpu_type": "h100"})


class Heard:
    def __init__(self) -> None:
        self.changes: list[Change] = []

    def __call__(self, change: Change) -> None:
        self.changes.append(change)

    @property
    def there(self) -> set[str]:
        """Who has appeared and not vanished; told in an order that makes sense."""
        names: set[str] = set()
        for change in self.changes:
            if isinstance(change, Appeared):
                assert change.replica.id not in names
                names.add(change.replica.id)
            else:
                names.remove(change.id)
        return names

    @property
    def last(self) -> Change:
        return self.changes[-1]


def config(it: Cluster, **more: Any) -> KubernetesConfig:
    return KubernetesConfig(**{"name": "engine", "namespace": "prod", "api": it.url, "workload": it.kind, **more})


@contextlib.asynccontextmanager
async def opened(it: Cluster, **more: Any) -> AsyncIterator[tuple[KubernetesFleet, Heard]]:
    fleet, heard = KubernetesFleet(config(it, **more), SPEC), Heard()
    await fleet.open()
    fleet.watch(heard)
    await until(lambda: it.watches)
    try:
        yield fleet, heard
    finally:
        await fleet.close()


# -- found ------------------------------------------------------------------------------------------------------


@live
async def test_pods_that_are_there_are_told_at_once_with_all_that_is_known_of_them() -> None:
    async with cluster(replicas=2) as it:
        next(iter(it.pods.values()))["metadata"]["labels"]["app.kubernetes.io/version"] = "2"
        async with opened(it) as (fleet, heard):
            assert heard.there == set(it.pods)
            first = next(one for one in fleet.list() if one.tags.get("version"))
            assert first.url == "http://127.0.1.1:8001"
            assert (first.model, first.kind, first.slots) == ("llama", "headgate", 16)
            assert first.tags == {"gpu_type": "h100", "version": "2"}


@live
async def test_pods_that_come_and_go_are_told_as_it_happens() -> None:
    async with cluster(replicas=1) as it, opened(it) as (_, heard):
        it.scale(3)
        await until(lambda: len(heard.there) == 3)
        it.bookmark()
        it.scale(0)
        await until(lambda: not heard.there)


@live
async def test_a_pod_without_an_address_is_no_replica_yet() -> None:
    async with cluster(replicas=1, placing=False) as it, opened(it) as (fleet, heard):
        name = next(iter(it.pods))
        assert not fleet.list()
        it.place(name)
        await until(lambda: heard.there == {name})


@live
async def test_a_pod_that_is_being_deleted_gets_no_more_requests_and_may_finish() -> None:
    async with cluster(replicas=2, lingering=True) as it, opened(it) as (fleet, heard):
        name = next(iter(it.pods))
        it.delete(name)  # a node is drained, say
        await until(lambda: name not in heard.there)
        assert name in it.pods  # still there, and serving what it has
        gone = next(change for change in heard.changes if isinstance(change, Vanished))
        assert gone == Vanished(name, "its pod is being deleted: no more requests, and what it has may finish")
        await until(lambda: len(heard.there) == 2)  # its workload has replaced it
        before = len(heard.changes)
        it.finish(name)
        await until(lambda: name not in fleet._pods)
        assert len(heard.changes) == before  # told once


@live
async def test_pods_that_end_or_restart() -> None:
    async with cluster(replicas=2) as it, opened(it) as (_, heard):
        one, other = it.pods
        it.change(one, phase="Failed", reason="Evicted")
        await until(lambda: one not in heard.there)
        assert heard.last == Vanished(one, "its pod has ended: Evicted")
        it.change(other, containerStatuses=[{"restartCount": 1}])
        await until(lambda: isinstance(heard.last, Appeared))
        lost = heard.changes[-2]
        assert isinstance(lost, Vanished)
        assert lost.comes_back


# -- the watch ---------------------------------------------------------------------------------------------------


@live
async def test_a_watch_that_breaks_off_goes_on_and_nothing_is_missed() -> None:
    async with cluster(replicas=2) as it, opened(it) as (_, heard):
        it.cut()
        it.scale(4)
        await until(lambda: len(heard.there) == 4)
        it.cut()
        await until(lambda: it.watches)
        it.scale(1)
        await until(lambda: len(heard.there) == 1)


@live
async def test_after_410_gone_pods_are_listed_anew() -> None:
    async with cluster(replicas=3) as it, opened(it) as (_, heard):
        lists = it.asked.count("GET /api/v1/namespaces/prod/pods")
        it.scale(1)
        it.scale(2)
        it.forget()
        it.cut()
        await until(lambda: heard.there == set(it.pods))
        assert it.asked.count("GET /api/v1/namespaces/prod/pods") > lists
        it.scale(5)  # and the watch goes on from there
        await until(lambda: len(heard.there) == 5)


@live
async def test_lists_are_read_page_by_page() -> None:
    async with cluster(replicas=7, page=3) as it, opened(it) as (_, heard):
        assert len(heard.there) == 7


@live
async def test_a_pod_made_again_under_its_name_is_another_one() -> None:
    async with cluster(kind="StatefulSet", replicas=1) as it, opened(it) as (fleet, heard):
        before = fleet.list()[0].url
        it.delete("engine-0")
        await until(lambda: fleet.list() and fleet.list()[0].url != before)
        assert heard.there == {"engine-0"}


# -- how many ----------------------------------------------------------------------------------------------------


@live
async def test_one_more_is_one_more_than_there_are() -> None:
    async with cluster(replicas=1) as it, opened(it) as (fleet, heard):
        started = await fleet.start(SPEC)
        assert it.replicas == 2
        assert started.id in heard.there
        both = await asyncio.gather(fleet.start(SPEC), fleet.start(SPEC))
        assert it.replicas == 4
        assert len({one.id for one in both} | {started.id}) == 3
        assert set(heard.there) == set(it.pods)


@live
async def test_starts_that_wait_for_machines_do_not_ask_twice() -> None:
    async with cluster(replicas=0, placing=False) as it, opened(it) as (fleet, _):
        first = asyncio.ensure_future(fleet.start(SPEC))
        await until(lambda: it.replicas == 1)
        second = asyncio.ensure_future(fleet.start(SPEC))
        await until(lambda: it.replicas == 2)
        names = list(it.pods)
        for name in names:
            it.place(name)
        assert {(await first).id, (await second).id} == set(names)
        assert it.replicas == 2


@live
async def test_what_the_workload_owes_already_is_waited_for_and_not_asked_for_again() -> None:
    """A node is lost, and the ReplicaSet makes another pod by itself: together with the Scaler's start that is one."""
    async with cluster(replicas=2, placing=False) as it:
        for name in it.pods:
            it.place(name)
        async with opened(it) as (fleet, heard):
            it.delete(next(iter(it.pods)))
            await until(lambda: len(fleet._pods) == 2 and len(heard.there) == 1)
            starting = asyncio.ensure_future(fleet.start(SPEC))
            await until(lambda: it.asked[-1].endswith("/scale"))
            it.place(next(name for name, pod in it.pods.items() if not pod["status"].get("podIP")))
            await starting
            assert it.replicas == 2


@live
async def test_one_less_is_the_one_that_was_named() -> None:
    async with cluster(replicas=4) as it, opened(it) as (fleet, heard):
        chosen = sorted(it.pods)[2]
        await fleet.stop(chosen, 1.0)
        assert it.replicas == 3
        assert chosen not in it.pods
        assert heard.there == set(it.pods)
        await fleet.stop("nobody", 1.0)
        assert it.replicas == 3


@live
async def test_one_that_does_not_go_is_made_to() -> None:
    async with cluster(replicas=2, lingering=True) as it, opened(it) as (fleet, _):
        chosen = next(iter(it.pods))
        await fleet.stop(chosen, 0.05)
        assert chosen not in it.pods
        assert f"DELETE /api/v1/namespaces/prod/pods/{chosen}" in it.asked
        assert it.replicas == 1


@live
async def test_while_one_goes_another_start_does_not_count_it() -> None:
    async with cluster(replicas=2, lingering=True) as it, opened(it) as (fleet, _):
        chosen = next(iter(it.pods))
        stopping = asyncio.ensure_future(fleet.stop(chosen, 4.0))
        await until(lambda: it.replicas == 1)
        await fleet.start(SPEC)
        assert it.replicas == 2
        it.finish(chosen)
        await stopping


@live
async def test_a_stateful_set_loses_its_last_pod_and_the_one_named_goes_on() -> None:
    async with cluster(kind="StatefulSet", replicas=3) as it, opened(it) as (fleet, heard):
        await fleet.stop("engine-0", 1.0)
        assert set(it.pods) == {"engine-0", "engine-1"} == heard.there
        assert heard.changes[-2] == Vanished("engine-0", "engine-2 was taken in its place", comes_back=True)


@live
async def test_closing_leaves_the_pods_to_their_workload() -> None:
    async with cluster(replicas=1) as it:
        async with opened(it) as (fleet, _):
            await fleet.start(SPEC)
        assert it.replicas == 2
        async with opened(it) as (_, heard):
            assert len(heard.there) == 2


# -- trouble -----------------------------------------------------------------------------------------------------


@live
async def test_no_place_in_time_says_what_kubernetes_says_and_takes_the_pod_back() -> None:
    async with cluster(replicas=1) as it, opened(it, place_s=0.1) as (fleet, _):
        it.placing = False
        starting = asyncio.ensure_future(fleet.start(SPEC))
        await until(lambda: len(it.pods) == 2)
        waiting = next(name for name, pod in it.pods.items() if not pod["status"].get("podIP"))
        short = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no nvidia.com/gpu"}
        it.change(waiting, conditions=[short])
        with pytest.raises(
            FleetError, match=r"no pod got a place .* Unschedulable: no nvidia.com/gpu.*kubectl -n prod"
        ):
            await starting
        assert it.replicas == 1


@live
async def test_no_such_workload() -> None:
    async with cluster() as it:
        fleet = KubernetesFleet(config(it, name="other"), SPEC)
        with pytest.raises(FleetError, match="no Deployment other in namespace prod: `headgate export kubernetes`"):
            await fleet.open()


@live
async def test_no_permission_and_no_server() -> None:
    async with cluster(refuse=(403, "deployments.apps is forbidden")) as it:
        with pytest.raises(FleetError, match=r"is forbidden; `headgate export kubernetes` prints the role"):
            await KubernetesFleet(config(it), SPEC).open()
        it.refuse = None
        async with opened(it) as (fleet, _):
            it.refuse = (500, "etcd is unwell")
            with pytest.raises(FleetError, match="etcd is unwell"):
                await fleet.start(SPEC)
            it.refuse = None
            await fleet.start(SPEC)
            assert it.replicas == 1
    with pytest.raises(ApiError, match="can't be asked"):
        await KubernetesFleet(config(it), SPEC).open()


@live
async def test_when_the_api_server_is_gone_for_a_while_nothing_vanishes() -> None:
    async with cluster(replicas=2) as it, opened(it) as (_, heard):
        it.refuse = (503, "upgrading")
        it.forget()
        it.cut()
        asked = len(it.asked)
        await until(lambda: len(it.asked) > asked + 1)
        assert len(heard.there) == 2
        it.refuse = None
        it.scale(3)
        await until(lambda: len(heard.there) == 3)


@live
async def test_an_inference_pool_finds_the_pods_and_their_port() -> None:
    async with cluster(replicas=2) as it, opened(it, inference_pool="pool", scaled_here=False) as (fleet, _):
        assert {replica.url.rpartition(":")[2] for replica in fleet.list()} == {"8123"}
        assert not [path for path in it.asked if "deployments" in path]
    async with cluster() as it:
        with pytest.raises(FleetError, match="there is no InferencePool other in namespace prod"):
            await KubernetesFleet(config(it, inference_pool="other", scaled_here=False), SPEC).open()


@live
async def test_where_something_else_scales() -> None:
    async with cluster(replicas=2) as it, opened(it, scaled_here=False) as (fleet, heard):
        with pytest.raises(FleetError, match="scaled_here is false"):
            await fleet.start(SPEC)
        with pytest.raises(FleetError, match="scaled_here is false"):
            await fleet.stop(next(iter(it.pods)), 1.0)
        assert len(heard.there) == 2
        assert not any("PATCH" in asked for asked in it.asked)


def test_whoever_is_ready_serves_where_something_else_scales() -> None:
    states = {
        "a": Lifecycle.READY,
        "b": Lifecycle.SERVING,
        "c": Lifecycle.STARTING,
        "d": Lifecycle.PARKED,
        "e": Lifecycle.FAILED,
    }
    members = tuple(PoolMember(id=name, state=state, since=0.0) for name, state in states.items())
    decision = Follow().decide(PoolView(members=members, waiting=99), 0.0, 0.0)
    assert decision.actions == (Activate("a"), Activate("d"))
    assert decision.serving == 4


# -- access ------------------------------------------------------------------------------------------------------


@live
async def test_tls_and_a_token_that_is_replaced(tmp_path: Path) -> None:
    pem, token = tmp_path / "pem", tmp_path / "token"
    pem.write_text(LOCALHOST_KEY_AND_CERT)
    token.write_text("first\n")
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(pem)
    async with cluster(tls=served, token="first", replicas=1) as it:
        async with opened(it, ca_file=pem, token_file=token) as (fleet, heard):
            it.token = "second"
            with pytest.raises(ApiError, match="Unauthorized"):
                await fleet.start(SPEC)
            token.write_text("second\n")
            await fleet.start(SPEC)
            assert len(heard.there) == 2
        with pytest.raises(ApiError, match="certificate"):
            await KubernetesFleet(config(it, token_file=token), SPEC).open()
        token.unlink()
        with pytest.raises(FleetError, match="no token for the API server"):
            await KubernetesFleet(config(it, ca_file=pem, token_file=token), SPEC).open()


def test_from_within_a_pod(tmp_path: Path) -> None:
    for name, text in (("token", "t"), ("namespace", "prod\n"), ("ca.crt", "c")):
        (tmp_path / name).write_text(text)
    env = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = find_access(KubernetesConfig(), env, tmp_path)
    assert access == ApiAccess("https://[fd00::1]:6443", "prod", tmp_path / "token", tmp_path / "ca.crt")
    with pytest.raises(FleetError, match="kubectl proxy"):
        find_access(KubernetesConfig(), {}, tmp_path)
    with pytest.raises(FleetError, match="kubectl proxy"):
        find_access(KubernetesConfig(), env, tmp_path / "nothing")
    with pytest.raises(FleetError, match="expected https://host:port"):
        Api(ApiAccess("prod", "default", None, None))
    with pytest.raises(FleetError, match="no certificate of the API server"):
        Api(ApiAccess("https://a", "default", None, tmp_path / "nothing"))


def test_selectors_as_text() -> None:
    expressions = [
        {"key": "a", "operator": "In", "values": ["b", "c"]},
        {"key": "d", "operator": "NotIn", "values": ["e"]},
        {"key": "f", "operator": "Exists"},
        {"key": "g", "operator": "DoesNotExist"},
    ]
    assert _as_text({"matchLabels": {"x": "y"}, "matchExpressions": expressions}) == "x=y,a in (b,c),d notin (e),f,!g"


def test_what_keeps_a_pod_from_running() -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    pod = read_pod({"metadata": {"name": "a"}, "status": {"containerStatuses": [waiting]}})
    assert pod.trouble == "ImagePullBackOff: no such image"
    creating = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    assert not read_pod({"metadata": {"name": "a"}, "status": {"containerStatuses": [creating]}}).trouble


# -- the whole way -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running_pods(port: int, **settings: Any) -> Iterator[tuple[Cluster, Callable[[Callable[[], Any]], Any]]]:
    """A cluster in a thread of its own, whose pods are engines' doubles at their own addresses of this machine. Gives
    it, and how to do something there."""
    found: list[Cluster] = []
    started, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        servers: dict[str, HttpServer] = {}
        tasks: list[asyncio.Task[None]] = []
        async with cluster(**settings) as it:

            async def serve_pods() -> None:
                while True:
                    ips = [ip for pod in list(it.pods.values()) if (ip := pod["status"].get("podIP"))]
                    for ip in ips:
                        if ip not in servers:
                            double = Double()
                            servers[ip] = HttpServer(double.router(), clock=monotonic)
                            await servers[ip].listen(ip, port)
                            tasks.append(loop.create_task(double.run()))
                    await it.changed.wait()

            tasks.append(loop.create_task(serve_pods()))
            found.append(it)
            started.set()
            await stop.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for server in servers.values():
                await server.drain(0)

    def do(what: Callable[[], Any]) -> Any:
        async def now() -> Any:
            return what()

        return asyncio.run_coroutine_threadsafe(now(), loop).result(10)

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        assert started.wait(10)
        yield found[0], do
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


@pytest.mark.timeout(90)
def test_a_gateway_scales_its_workload_and_a_pod_that_is_deleted_finishes_what_it_has(tmp_path: Path) -> None:
    port = free_port()
    with running_pods(port, replicas=1, lingering=True) as (it, do):
        fleet = {
            "kind": "kubernetes",
            "kubernetes": {"api": it.url, "namespace": "prod", "name": "engine", "port": port},
            "scale": {"min": 2, "max": 2},
        }
        path = tmp_path / "headgate.yaml"
        path.write_text(json.dumps({"listen": {"port": 0}, "fleet": fleet}))
        with headgate("serve", "--config", str(path)) as (_, url):
            eventually(lambda: do(lambda: it.replicas) == 2)
            eventually(lambda: len(serving(url)) == 2)
            connection = post(url, chat("itl=50 n=40", stream=True))
            data = connection.recv(65536)
            (doomed,) = [name for name, running in serving(url).items() if running]
            do(lambda: it.delete(doomed))  # its node is drained; its workload makes another
            eventually(lambda: doomed not in serving(url) and len(serving(url)) == 2)
            assert {ask(f"{url}/v1/chat/completions", chat("n=1"))[0] for _ in range(6)} == {200}
            while b"[DONE]" not in data:
                data += (more := connection.recv(65536))
                assert more, data
            connection.close()
            assert data.count(b'"content":"w "') == 40
            assert b'"error"' not in data
            do(lambda: it.finish(doomed))
        assert do(lambda: it.replicas) == 2  # the gateway is gone, and its engines are not


@pytest.mark.timeout(90)
def test_a_gateway_drives_the_workloads_of_three_pools(tmp_path: Path) -> None:
    lanes = {"fast": ["fast", "slow"], "long": ["long"], "batch": ["batch"]}
    with contextlib.ExitStack() as stack:
        pods = {}
        for name in lanes:
            port = free_port()
            it, do = stack.enter_context(running_pods(port, replicas=1, name=f"engine-{name}"))
            pods[name] = it, do, port
        pools = [
            {
                "name": name,
                "kind": "kubernetes",
                "lanes": lanes[name],
                "kubernetes": {"api": it.url, "namespace": "prod", "name": f"engine-{name}", "port": port},
                "scale": {"min": 2 if name == "fast" else 1, "max": 2, "warm": 0, "forecast": False},
            }
            for name, (it, _, port) in pods.items()
        ]
        path = tmp_path / "headgate.yaml"
        path.write_text(json.dumps({"listen": {"port": 0}, "fleet": {"pools": pools}}))
        with headgate("serve", "--config", str(path)) as (_, url):
            eventually(lambda: sorted(one.split("-")[1] for one in serving(url)) == ["batch", "fast", "fast", "long"])
            assert [do(partial(getattr, it, "replicas")) for it, do, _ in pods.values()] == [2, 1, 1]
            assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 200
            assert ask(f"{url}/v1/chat/completions", chat("n=1", service_tier="flex"))[0] == 200
            told = {one["pool"] for one in json.loads(ask(f"{url}/admin/fleet")[1])["replicas"]}
            assert told == set(lanes)


def serving(url: str) -> dict[str, int]:
    """Replicas that get requests, and how many each has."""
    status, body = ask(f"{url}/admin/fleet")
    assert status == 200
    told = json.loads(body)["replicas"]
    return {it["id"]: it["requests"] for it in told if it["state"] in ("serving", "ramping")}
