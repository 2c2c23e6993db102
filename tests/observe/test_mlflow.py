"""A real MLflow server takes our traces and shows them as such.

It has an environment of its own: it is large, and its dependencies are none of ours.
"""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.gateway.trace_context import Contexts
from headgate.model.clock import monotonic
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.quantile import Sketch
from headgate.model.record import Attempt, EngineTimings, Gap, Record
from headgate.publish.otlp import OtlpSender
from headgate.publish.traces import Traces

pytestmark = pytest.mark.timeout(400)
ROOT = Path(__file__).parent.parent.parent

READ_BACK = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
found = {}
for trace in client.search_traces(locations=[sys.argv[2]]):
    spans = [
        {
            "id": span.span_id, "parent": span.parent_id, "name": span.name, "type": span.span_type,
            "status": span.status.status_code.name, "message": span.status.description,
            "start": span.start_time_ns, "end": span.end_time_ns, "attributes": span.attributes,
            "events": [(event.name, event.attributes) for event in span.events],
        }
        for span in trace.data.spans
    ]
    found[trace.info.trace_id] = {
        "state": trace.info.state.name, "ms": trace.info.execution_duration, "tokens": trace.info.token_usage,
        "spans": spans,
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def python() -> str:
    """One that has MLflow."""
    named = os.environ.get("HEADGATE_MLFLOW_PYTHON")
    found = Path(named) if named else ROOT / ".bench" / "mlflow" / "bin" / "python"
    if not found.exists():
        pytest.skip(f"no MLflow: {found} is missing; `make mlflow` installs it, or name a Python that has it in "
                    "HEADGATE_MLFLOW_PYTHON")  # fmt: skip
    return str(found)


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """MLflow without its telemetry."""
    return {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "GIT_PYTHON_REFRESH": "quiet"}


@pytest.fixture(scope="module")
def mlflow(python: str, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        ends = time.monotonic() + 240
        while not answers(f"{url}/health"):
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < ends, (folder / "log").read_text()[-2000:]
            time.sleep(0.2)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its workers too, none of them ours to keep
        process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    asked = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=20) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


class NoFigures:
    def sketch(self, figure: str, window_s: int, now: float, *, lane: str | None = None) -> Sketch:
        return Sketch()


def records(contexts: Contexts) -> tuple[Record, Record]:
    begun, ours = time.time() - 10, contexts.of({})
    good = Record(
        id="r-good", at=1.0, wall=begun, lane="fast", tenant="acme", tier="premium", model="smol", version="v2",
        replica="127.0.0.1:9000", stream=True, outcome=Outcome.COMPLETED, attempts=2, reason="longest prefix",
        failed=(Attempt("127.0.0.1:9001", 0.011, 0.1, Outcome.REPLICA_FAILED, False, "cut off"),),
        prompt_tokens=100, cached_tokens=64, output_tokens=21, accept_s=0.001, queue_s=0.01, retry_s=0.1, first_s=0.3,
        stream_s=2.0, end_s=0.005, ttft_s=0.411, tpot_s=0.1, e2e_s=2.416, max_gap_s=0.3, gaps=(Gap(1.0, 0.3),),
        engine=EngineTimings(queue_ms=60, tokenize_ms=10, prefill_ms=200, decode_ms=1995, detokenize_ms=20),
        trace=ours.traceparent, parent=ours.parent_id,
    )  # fmt: skip
    bad = Record(
        id="r-bad", at=1.0, wall=begun, lane="slow", tenant="acme", model="smol", outcome=Outcome.WAITED_TOO_LONG,
        status=503, message="waited 2 s for a replica", queue_s=2.0, e2e_s=2.0,
    )  # fmt: skip
    return good, bad


async def send(endpoint: str, experiment: str) -> OtlpSender:
    sender = OtlpSender(endpoint, {"x-mlflow-experiment-id": experiment}, monotonic)
    rng = random.Random()
    traces = Traces(LANES, 0.0, sender, rng, NoFigures(), url_of={"127.0.0.1:9000": "http://127.0.0.1:9000"}.get)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(sender.run())
        traces.take(records(Contexts(0.0, rng)), 0.0)
        await sender.finish(60)
        task.cancel()
    return sender


def test_mlflow_shows_our_traces(mlflow: str, python: str, environment: dict[str, str]) -> None:
    experiment = post(f"{mlflow}/api/2.0/mlflow/experiments/create", {"name": "headgate"})["experiment_id"]
    sender = asyncio.run(send(mlflow, experiment))
    assert (sender.traces.lost, sender.traces.dropped) == (0, 0)
    read = subprocess.run(
        [python, "-c", READ_BACK, mlflow, experiment], env=environment, capture_output=True, text=True, check=False
    )
    assert read.returncode == 0, read.stderr[-2000:]
    by_id = {
        next(span for span in trace["spans"] if span["parent"] is None)["attributes"]["headgate.request_id"]: trace
        for trace in json.loads(read.stdout.splitlines()[-1]).values()
    }
    assert set(by_id) == {"r-good", "r-bad"}
    check_good(by_id["r-good"])
    check_bad(by_id["r-bad"])


def check_good(trace: dict[str, Any]) -> None:
    spans = {span["name"]: span for span in trace["spans"]}
    assert set(spans) == {
        "chat smol", "accept", "queue", "attempt", "route", "tokenize", "engine queue", "prefill", "decode",
        "detokenize", "relay",
    }  # fmt: skip
    root = spans.pop("chat smol")
    inner = spans.pop("detokenize")
    assert inner["parent"] == spans["decode"]["id"]
    assert {span["parent"] for span in spans.values()} == {root["id"]}
    # What MLflow itself makes of it.
    assert trace["state"] == "OK"
    assert trace["ms"] == 2416
    assert trace["tokens"]["input_tokens"] == 100
    assert trace["tokens"]["output_tokens"] == 21
    assert root["type"] == "CHAT_MODEL"
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "headgate",
        "gen_ai.request.model": "smol",
        "gen_ai.response.model": "smol",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 21,
        "gen_ai.server.time_to_first_token": 0.411,
        "server.address": "127.0.0.1",
        "server.port": 9000,
        "headgate.lane": "fast",
        "headgate.tier": "premium",
        "headgate.outcome": "completed",
        "headgate.sampled": "retried",
    }
    assert {name: root["attributes"].get(name) for name in expected} == expected
    assert round((spans["decode"]["end"] - spans["decode"]["start"]) / 1e6) == 2000
    assert spans["attempt"]["status"] == "ERROR"
    assert spans["attempt"]["message"] == "cut off"
    assert [name for name, _ in spans["decode"]["events"]] == ["gap"]


def check_bad(trace: dict[str, Any]) -> None:
    spans = {span["name"]: span for span in trace["spans"]}
    assert set(spans) == {"chat smol", "accept", "queue"}
    root = spans["chat smol"]
    assert trace["state"] == "ERROR"
    assert root["status"] == "ERROR"
    assert root["attributes"]["error.type"] == "waited_too_long"
    ((name, about),) = root["events"]
    assert name == "exception"
    assert about["exception.message"] == "waited 2 s for a replica"
