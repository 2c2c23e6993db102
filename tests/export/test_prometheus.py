"""A real Prometheus scrapes a running gateway: every query of the dashboard has an answer, and the rules work."""

import json
import math
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headgate.config.file import load
from headgate.config.gateway import GatewayConfig
from headgate.export.grafana import dashboard
from headgate.export.prometheus_rules import rules
from tests.engine.process import ask
from tests.export.promql import queries
from tests.gateway.test_gateway import chat, double, gateway
from tests.keys import hash_key

pytestmark = pytest.mark.timeout(120)

CONFIG: dict[str, Any] = {
    "observe": {"price_per_replica_hour": 2.5},
    "tenants": {"limited": {"key_sha256": [hash_key("k")], "requests_per_min": 1}},
    "anonymous": {"allowed": True},
}
WINDOW = "10s"


@dataclass
class Prometheus:
    url: str
    log: Path

    def get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}") as answer:
            return json.load(answer)["data"]

    def query(self, expr: str) -> list[float]:
        """The numbers it answers with; those that are none are left out."""
        found = [float(sample["value"][1]) for sample in self.get("/api/v1/query", query=expr)["result"]]
        return [value for value in found if math.isfinite(value)]


@contextmanager
def prometheus(folder: Path, *targets: str, rule_text: str = "") -> Iterator[Prometheus]:
    """Scrapes every second, and judges as often."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus (Debian: apt-get install prometheus)")
    (folder / "rules.yaml").write_text(rule_text.replace("interval: 15s", "interval: 1s"))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"] if rule_text else [],
        "scrape_configs": [
            {
                "job_name": "headgate",
                "static_configs": [{"targets": [target.removeprefix("http://") for target in targets]}],
            }
        ],
    }
    (folder / "prometheus.yaml").write_text(json.dumps(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "prometheus.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stderr=file,
        )
        try:
            server = Prometheus(f"http://127.0.0.1:{port}", log)
            eventually(lambda: ready(server), log.read_text)
            yield server
        finally:
            process.kill()
            process.wait()


def ready(server: Prometheus) -> bool:
    try:
        with urllib.request.urlopen(f"{server.url}/-/ready") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def eventually(true: Callable[[], bool], why: Callable[[], object], within_s: float = 60.0) -> None:
    ends = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < ends, why()
        time.sleep(0.1)


@contextmanager
def scraped_gateway(tmp_path: Path, engine: str) -> Iterator[tuple[str, GatewayConfig]]:
    with gateway(tmp_path, CONFIG, engine, slots=64) as url:
        yield url, load(tmp_path / "headgate.yaml")


@contextmanager
def traffic(url: str, *bodies: dict[str, Any], threads: int = 4) -> Iterator[None]:
    """Requests of all these kinds, one after the other, for as long as it takes; some over a tenant's limit."""
    stop = threading.Event()

    def send() -> None:
        for number in count():
            for body in bodies:
                ask(f"{url}/v1/chat/completions", body)
                if stop.is_set():
                    return
            if number % 4 == 0:
                ask(f"{url}/v1/chat/completions", bodies[0], {"authorization": "Bearer k"})

    senders = [threading.Thread(target=send) for _ in range(threads)]
    for sender in senders:
        sender.start()
    try:
        yield
    finally:
        stop.set()
        for sender in senders:
            sender.join()


ORDINARY = (
    chat("ttft=10 itl=5 n=4 cached=2", stream=True),
    chat("ttft=10 itl=5 n=4"),
    chat("ttft=5 n=3", stream=True, service_tier="flex"),
    # Asked for in one piece from an engine that does not say when its first token was there.
    chat("ttft=5 n=3", tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]),
)


def test_every_query_of_the_dashboard_has_an_answer(tmp_path: Path) -> None:
    with double() as (_, engine), scraped_gateway(tmp_path, engine) as (url, config):
        asked = queries(dashboard(config), interval=WINDOW)
        assert len(asked) > 40
        with prometheus(tmp_path, url) as server, traffic(url, *ORDINARY):
            unanswered = list(asked)

            def answered() -> bool:
                unanswered[:] = [expr for expr in unanswered if not server.query(expr)]
                return not unanswered

            eventually(answered, lambda: f"no answer to {unanswered}")


def test_the_rules_run_and_agree_with_the_gateway_itself_that_a_promise_is_broken(tmp_path: Path) -> None:
    with double() as (_, engine), scraped_gateway(tmp_path, engine) as (url, config):
        slow = chat("ttft=700 n=2", stream=True)  # of 500 ms at p95
        with prometheus(tmp_path, url, rule_text=rules(config)) as server, traffic(url, slow, threads=12):

            def firing() -> set[tuple[str, ...]]:
                alerts = server.get("/api/v1/alerts")["alerts"]
                names = ("alertname", "lane", "figure", "percentile", "severity")
                return {tuple(a["labels"].get(n, "") for n in names) for a in alerts if a["state"] == "firing"}

            broken = ("HeadgatePromiseBroken", "fast", "ttft", "95", "critical")
            eventually(lambda: broken in firing(), firing)
            state = json.loads(ask(f"{url}/admin/slo")[1])
            assert ("ttft_p95", "fast", "critical") in [(a["name"], a["lane"], a["severity"]) for a in state["alerts"]]
            groups = server.get("/api/v1/rules")["groups"]
            assert len(groups) == 7
            assert [rule["lastError"] for group in groups for rule in group["rules"] if rule.get("lastError")] == []
            (measured,) = server.query('headgate:latency_seconds:5m{lane="fast", figure="ttft", percentile="95"}')
            assert measured == pytest.approx(0.7, rel=0.2)
            assert not any(name == "HeadgateErrorBudgetBurnsFast" for name, *_ in firing())


def test_an_outage_and_what_it_costs_reach_prometheus(tmp_path: Path) -> None:
    with double() as (process, engine), scraped_gateway(tmp_path, engine) as (url, config):
        assert ask(f"{url}/v1/chat/completions", chat("n=2", stream=True))[0] == 200
        with prometheus(tmp_path, url, rule_text=rules(config)) as server:

            def firing() -> set[tuple[str, str]]:
                alerts = server.get("/api/v1/alerts")["alerts"]
                return {(a["labels"]["alertname"], a["labels"]["severity"]) for a in alerts if a["state"] == "firing"}

            eventually(lambda: server.query("headgate_outage") == [0.0], firing)
            assert ("HeadgateNoUsableReplica", "critical") not in firing()
            process.kill()
            with traffic(url, chat("n=2", stream=True), threads=6):
                wanted = {("HeadgateNoUsableReplica", "critical"), ("HeadgateFailedShareHigh", "critical")}
                eventually(lambda: wanted <= firing(), firing)
            assert server.query('headgate_replicas{condition="down"}') == [1.0]


REPORTED = """\
headgate_replica_kv_ratio{{replica="a"}} 0.5
headgate_replica_batch_size{{replica="a"}} 3
headgate_replica_batch_limit{{replica="a"}} 8
headgate_replica_waiting{{replica="a"}} 1
headgate_replica_preemptions_total{{replica="a"}} {n}
headgate_replica_evictions_total{{replica="a"}} {n}
headgate_cold_start_seconds{{replica="a",phase="weights"}} 4
headgate_gpu_utilisation{{gpu="0"}} 0.7
headgate_gpu_memory_used_bytes{{gpu="0"}} 5e9
headgate_gpu_memory_total_bytes{{gpu="0"}} 8e9
"""


@contextmanager
def pretender() -> Iterator[str]:
    """Shows what only some replicas and machines report."""
    scrapes = count(1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = REPORTED.format(n=next(scrapes)).encode()
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_what_only_some_report_has_its_queries_answered_where_it_is_reported(tmp_path: Path) -> None:
    text = dashboard(GatewayConfig())
    asked = [q for q in queries(text, interval=WINDOW, reported=True) if q not in queries(text, interval=WINDOW)]
    assert len(asked) == 8
    with pretender() as url, prometheus(tmp_path, url) as server:
        eventually(lambda: all(server.query(expr) for expr in asked), lambda: [e for e in asked if not server.query(e)])
