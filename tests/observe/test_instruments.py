"""The instruments as an operator meets them: a real gateway, asked over HTTP and from the command line."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from headgate.compiled import CHOSEN
from headgate.publish.journal import read
from tests.engine.process import TESTED, ask
from tests.gateway.test_gateway import chat, double, eventually, gateway

STAGES = ("accept_s", "queue_s", "retry_s", "first_s", "stream_s", "end_s")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("instruments")
    journal = folder / "records.jsonl"
    with double() as (_, engine), gateway(folder, {"record": {"path": str(journal)}}, engine) as url:
        yield url, journal


def records(url: str) -> dict[str, dict[str, Any]]:
    lines = ask(f"{url}/admin/records?last=600")[1].splitlines()
    return {record["id"]: record for record in map(json.loads, lines)}


def complete(url: str, name: str, content: str, **more: Any) -> int:
    return ask(f"{url}/v1/chat/completions", chat(content, **more), headers={"x-request-id": name})[0]


def leave_early(url: str, name: str) -> None:
    """Ask for a stream, read a little of it, and go."""
    parts = urlsplit(url)
    body = json.dumps(chat("n=200 itl=20", stream=True)).encode()
    with socket.create_connection((parts.hostname, parts.port)) as client:
        client.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-request-id: {name}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        assert client.recv(100)


def test_every_request_leaves_one_record_whose_stages_are_all_of_its_time(served: tuple[str, Path]) -> None:
    url, journal = served
    assert complete(url, "whole", "n=3 ttft=20") == 200
    assert complete(url, "streamed", "n=5 ttft=20 itl=10", stream=True) == 200
    assert complete(url, "invalid", "n=1", max_tokens=0) == 400
    leave_early(url, "left")
    eventually(lambda: "left" in records(url))
    found = records(url)
    outcomes = {name: found[name]["outcome"] for name in ("whole", "streamed", "invalid", "left")}
    assert outcomes == {"whole": "completed", "streamed": "completed", "invalid": "invalid", "left": "cancelled"}
    for record in found.values():
        assert sum(record.get(stage, 0.0) for stage in STAGES) == pytest.approx(record["e2e_s"], abs=1e-6)
    streamed = found["streamed"]
    assert streamed["ttft_s"] >= 0.02
    assert streamed["max_gap_s"] >= 0.009
    assert (streamed["output_tokens"], streamed["lane"], streamed["replica"]) == (5, "fast", found["whole"]["replica"])
    eventually(lambda: {"whole", "streamed", "invalid", "left"} <= {line.id for line in read(journal)})
    assert all(not line.prompt for line in read(journal))


def test_the_figures_are_there_for_prometheus(served: tuple[str, Path]) -> None:
    url, _ = served
    complete(url, "figures", "n=2", stream=True)
    status, text = ask(f"{url}/metrics")
    assert status == 200
    assert re.search(rb'^headgate_time_to_first_token_seconds_count\{.*lane="fast".*\} [1-9]', text, re.MULTILINE)
    assert re.search(rb'^headgate_latency_seconds\{.*figure="ttft".*\} 0\.', text, re.MULTILINE)
    assert b"headgate_replica_limit{" in text


def headgate(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": TESTED, CHOSEN: TESTED, "COLUMNS": "120", "NO_COLOR": "1", "PATH": ""}
    return subprocess.run(
        [sys.executable, "-m", "headgate", *arguments], capture_output=True, text=True, env=environment, timeout=15
    )


def value(url: str, name: str) -> float:
    """The sum of all series of this name."""
    return sum(map(float, re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", ask(f"{url}/metrics")[1].decode(), re.M)))


def test_replicas_are_paid_for_and_gaps_are_counted(served: tuple[str, Path]) -> None:
    url, _ = served
    before = value(url, "headgate_inter_token_gap_seconds_count")
    assert complete(url, "gaps", "n=11 ttft=5 itl=20", stream=True) == 200
    assert value(url, "headgate_inter_token_gap_seconds_count") == before + 10
    assert records(url)["gaps"]["gaps"]
    eventually(lambda: value(url, "headgate_replica_seconds_total") > 0.5)
    paid = value(url, "headgate_replica_seconds_total")
    eventually(lambda: value(url, "headgate_replica_seconds_total") >= paid + 0.9)


def test_a_scraper_that_takes_openmetrics_gets_it(served: tuple[str, Path]) -> None:
    url, _ = served
    prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
    assert ask(f"{url}/metrics", headers={"accept": prometheus})[1].endswith(b"# EOF\n")
    assert b"# EOF" not in ask(f"{url}/metrics")[1]
    assert b"# EOF" not in ask(f"{url}/metrics", headers={"accept": "text/plain"})[1]


def test_the_command_line_says_why_which_and_what(served: tuple[str, Path]) -> None:
    url, _ = served
    complete(url, "asked-about", "n=4 ttft=50", stream=True)
    why = headgate("why", "asked-about", "--url", url)
    assert why.returncode == 0, why.stderr
    assert "prefill" in why.stdout
    assert "asked-about" in headgate("slow", "--lane", "fast", "--url", url).stdout
    assert "ready" in headgate("doctor", "--url", url).stdout
    missing = headgate("why", "nobody", "--url", url)
    assert missing.returncode == 1
    assert "nobody" in missing.stderr


def test_without_instruments_requests_are_counted_all_the_same(tmp_path: Path) -> None:
    with double() as (_, engine), gateway(tmp_path, {"observe": {"instruments": False}}, engine) as url:
        assert complete(url, "counted", "n=1") == 200
        text = ask(f"{url}/metrics")[1]
        assert b"headgate_requests_total" in text
        assert b"headgate_latency_seconds" not in text
