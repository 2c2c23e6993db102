"""What is asked of Prometheus about a fleet is true for one gateway and for several in front of the same replicas: real
gateways, a real Prometheus, a real Redis where they share. KEDA scales by it, so a figure that is N times too large
starts N times too many engines."""

import json
import math
import socket
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.config.engine import EngineConfig
from headgate.config.gateway import GatewayConfig
from headgate.export.fleet_figures import utilisation, waiting_per_replica
from headgate.export.grafana import dashboard
from headgate.export.keda import scaled_object
from headgate.export.kubernetes import ManifestValues
from headgate.export.prometheus_rules import rules
from headgate.model.replica import Replica
from tests.engine.process import ask
from tests.export.promql import queries
from tests.export.test_prometheus import Prometheus, eventually, prometheus
from tests.gateway.test_gateway import chat, double, gateway
from tests.gateway.test_shared import RedisServer, redis

__all__ = ["redis"]  # a fixture
pytestmark = pytest.mark.timeout(120)

LONG = "ttft=20 itl=1000 n=100"
"""Held by a replica for longer than any test runs."""


def keda_queries() -> dict[str, str]:
    """By the name of the trigger."""
    triggers = scaled_object(GatewayConfig(), ManifestValues(gateways=2, keda=True))["spec"]["triggers"]
    return {trigger["name"]: trigger["metadata"]["query"] for trigger in triggers}


@contextmanager
def gateways(
    tmp_path: Path, fleets: Sequence[Sequence[str]], slots: int | None, shared: str | None
) -> Iterator[list[str]]:
    """One for each list of engines."""
    with ExitStack() as stack:
        urls = []
        for number, engines in enumerate(fleets):
            folder = tmp_path / f"gateway-{number}"
            folder.mkdir()
            replicas = [{"url": url, **({"slots": slots} if slots is not None else {})} for url in engines]
            config: dict[str, Any] = {"replicas": replicas, **({"shared": {"redis": shared}} if shared else {})}
            urls.append(stack.enter_context(gateway(folder, config)))
        if shared:
            known = {len(urls)}
            eventually(lambda: {value(url, "headgate_gateways") for url in urls} == known, lambda: "they are alone")
        yield urls


@contextmanager
def held(url: str, number: int) -> Iterator[None]:
    """This number of requests, each past its first token at a replica, until the end."""
    with ExitStack() as stack:
        for _ in range(number):
            body = json.dumps(chat(LONG, stream=True, service_tier="flex")).encode()
            request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"})
            answer = stack.enter_context(urllib.request.urlopen(request, timeout=30))
            assert answer.status == 200
        yield


@contextmanager
def waiting(url: str, number: int) -> Iterator[None]:
    """This number of requests that have to wait, without a thread for each: only sent, and never read."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps(chat(LONG, stream=True, service_tier="flex")).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(number):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            connection.sendall(head.encode() + body)
        yield


def value(url: str, name: str) -> float:
    """The sum of a figure's samples on one gateway's page; 0 if it has none."""
    lines = ask(f"{url}/metrics")[1].decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def becomes(server: Prometheus, query: str, expected: float, within_s: float = 30.0) -> None:
    def near() -> bool:
        found = server.query(query)
        return len(found) == 1 and math.isclose(found[0], expected, rel_tol=0.02)

    eventually(near, lambda: f"{query}: {server.query(query)}, expected {expected}", within_s=within_s)


@pytest.mark.parametrize("kind", ["one gateway", "two that share through Redis", "two that do not know of each other"])
def test_keda_sees_how_full_the_engines_are(kind: str, tmp_path: Path, redis: RedisServer) -> None:
    shared = redis.url if "Redis" in kind else None
    with double() as (_, one), double() as (_, two):
        fleets = [[one, two]] if kind == "one gateway" else [[one, two], [one, two]]
        with gateways(tmp_path, fleets, slots=8, shared=shared) as urls, ExitStack() as stack:
            server = stack.enter_context(prometheus(tmp_path, *urls))
            for url, number in zip(urls, (4, 2), strict=False):
                stack.enter_context(held(url, number))
            taken = 4 if kind == "one gateway" else 6
            becomes(server, "sum(headgate_replica_requests)", taken)
            becomes(server, keda_queries()["use"], taken / 16)
            becomes(server, keda_queries()["queue"], 0)


def test_keda_sees_how_full_engines_of_a_found_size_are(tmp_path: Path) -> None:
    """Each gateway finds how much of its own traffic such an engine can take beside the others'."""
    with (
        double() as (_, one),
        double() as (_, two),
        gateways(tmp_path, [[one, two]] * 2, None, None) as urls,
        prometheus(tmp_path, *urls) as server,
        held(urls[0], 4),
        held(urls[1], 2),
    ):
        becomes(server, "sum(headgate_replica_requests)", 6)
        limits = sum(value(url, "headgate_replica_limit") for url in urls)
        becomes(server, keda_queries()["use"], 6 / limits)


def test_keda_counts_each_engine_once_also_if_a_gateway_has_not_found_it_yet(tmp_path: Path) -> None:
    with (
        double() as (_, one),
        double() as (_, two),
        gateways(tmp_path, [[one, two], [one]], 1, None) as urls,
        prometheus(tmp_path, *urls) as server,
        held(urls[0], 2),
        held(urls[1], 1),
        ExitStack() as stack,
    ):
        for url, number in zip(urls, (3, 1), strict=True):
            stack.enter_context(waiting(url, number))
        becomes(server, "sum(headgate_waiting)", 4)
        becomes(server, keda_queries()["queue"], 4 / 2)
        becomes(server, keda_queries()["use"], 3 / 2)  # three requests where there is room for two


def test_keda_sees_the_queue_also_when_no_engine_is_left(tmp_path: Path) -> None:
    with (
        double() as (process, one),
        gateways(tmp_path, [[one]] * 2, 1, None) as urls,
        prometheus(tmp_path, *urls) as server,
    ):
        becomes(server, "count(headgate_replica_usable > 0)", 2)
        process.kill()
        becomes(server, "count(headgate_replica_usable == 0)", 2)
        becomes(server, keda_queries()["queue"], 0)  # an answer all the same: without one KEDA would do nothing
        assert server.query(keda_queries()["use"]) == []


def test_alerts_and_dashboard_are_about_the_fleet_too(tmp_path: Path) -> None:
    """Where gateways have no Redis in common, each sees its own part of what the engines have to do."""
    with double() as (_, one), double() as (_, two), gateways(tmp_path, [[one, two]] * 2, 4, None) as urls:
        config = GatewayConfig(replicas=(Replica(id="1", url=one, slots=4), Replica(id="2", url=two, slots=4)))
        with prometheus(tmp_path, *urls, rule_text=rules(config)) as server, held(urls[0], 4), held(urls[1], 2):
            becomes(server, "headgate:utilisation", 6 / 8)
            becomes(server, "headgate:waiting_per_replica", 0)
        text = rules(config)
        assert "avg_over_time(headgate:utilisation[5m]) > 0.65" in text
        assert "headgate:waiting_per_replica > " in text
        assert {utilisation(), waiting_per_replica()} <= set(queries(dashboard(config)))


def test_replicas_that_each_gateway_starts_for_itself_are_not_added_up() -> None:
    """They have the same names on every machine."""
    config = GatewayConfig(embedded=EngineConfig())
    assert "avg_over_time(headgate_utilisation[5m])" in rules(config)
    assert utilisation() not in queries(dashboard(config))
