"""KEDA's queries about each of two pools, with one gateway and with two: real gateways, a real Prometheus, pods of the
API stub."""

import json
import urllib.request
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headgate.export.fleet_figures import utilisation, waiting_per_replica
from tests.engine.process import headgate
from tests.export.proxies import free_port
from tests.export.test_prometheus import prometheus
from tests.export.test_shared_fleet import LONG, becomes, value, waiting
from tests.fleet.test_kubernetes import running_pods, serving
from tests.gateway.test_gateway import chat, eventually

pytestmark = pytest.mark.timeout(120)
SLOTS = 4
LANES = {"batch": ["batch"], "rest": ["fast", "slow", "long"]}


def in_use(url: str) -> bool:
    return len(serving(url)) == 3


def hold(stack: ExitStack, url: str, number: int, **more: Any) -> None:
    """This number of requests, each past its first token at a replica, until the end."""
    for _ in range(number):
        body = json.dumps(chat(LONG, stream=True, **more)).encode()
        request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"})
        assert stack.enter_context(urllib.request.urlopen(request, timeout=30)).status == 200


@pytest.mark.parametrize("gateways", [1, 2])
def test_each_pool_has_its_own_figures_with_one_gateway_and_with_two(gateways: int, tmp_path: Path) -> None:
    with ExitStack() as stack:
        pools = []
        for name, replicas in (("batch", 2), ("rest", 1)):
            port = free_port()
            it, _ = stack.enter_context(running_pods(port, replicas=replicas, name=f"engine-{name}"))
            place = {"api": it.url, "namespace": "prod", "name": f"engine-{name}", "port": port, "scaled_here": False}
            pools.append(
                {"name": name, "kind": "kubernetes", "lanes": LANES[name], "slots": SLOTS, "kubernetes": place}
            )
        path = tmp_path / "headgate.yaml"
        path.write_text(json.dumps({"listen": {"port": 0}, "fleet": {"pools": pools}}))
        urls = [stack.enter_context(headgate("serve", "--config", str(path)))[1] for _ in range(gateways)]
        for url in urls:
            eventually(partial(in_use, url), 30.0)
        server = stack.enter_context(prometheus(tmp_path, *urls))
        for url in urls:
            hold(stack, url, 2, service_tier="flex")
        hold(stack, urls[0], 1)
        becomes(server, "sum(headgate_replica_requests)", 2 * gateways + 1)
        becomes(server, utilisation("batch"), 2 * gateways / (2 * SLOTS))
        becomes(server, utilisation("rest"), 1 / SLOTS)
        for name in LANES:
            becomes(server, waiting_per_replica(name), 0)
        stack.enter_context(waiting(urls[0], 3 * SLOTS))  # more than its two replicas have room for
        eventually(lambda: value(urls[0], "headgate_waiting") >= SLOTS)
        waits = value(urls[0], "headgate_waiting")
        becomes(server, waiting_per_replica("batch"), waits / 2)
        becomes(server, waiting_per_replica("rest"), 0)
