"""Headgate's scheduler inside a real vLLM on a CPU: `make test-vllm`."""

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headgate.engine.runner.profile_file import fitted
from headgate.engine.runner.step_log import read
from headgate.vllm.supported import OF_OUTPUT, OF_REQUEST, OF_SCHEDULER
from tests.engine.process import ask
from tests.gateway.test_gateway import eventually
from tests.vllm.test_vllm import HOME, STARTS_WITHIN_S, healthy

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "headgate"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, and a folder from which vLLM imports Headgate and nothing else."""
    made = tmp_path_factory.mktemp("scheduler")
    script = Path(__file__).parent / "tiny_model.py"
    subprocess.run([f"{HOME}/bin/python", str(script), str(made / "model")], check=True)
    (made / "path").mkdir()
    (made / "path" / "headgate").symlink_to(PACKAGE)
    (made / "path" / "failing.py").symlink_to(Path(__file__).parent / "failing.py")
    return made


@contextmanager
def vllm(folder: Path, name: str, *flags: str, **more: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    metrics = folder / f"{name}.metrics"
    metrics.mkdir()
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": str(folder / "path"), **more}
    environment["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)
    log = folder / f"{name}.log"
    command = [f"{HOME}/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model")]
    command += ["--port", str(port), "--served-model-name", "tiny", "--max-model-len", "2048", "--dtype", "float32"]
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*command, "--enforce-eager", *flags], env=environment, stdout=written, stderr=written,
            start_new_session=True,
        )  # fmt: skip
        try:
            url, ends = f"http://127.0.0.1:{port}", time.monotonic() + STARTS_WITHIN_S
            while not healthy(url):
                assert process.poll() is None, log.read_text()[-4000:]
                assert time.monotonic() < ends, log.read_text()[-4000:]
                time.sleep(0.5)
            yield url
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 15)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, 9)
                    process.wait()
            shutil.rmtree(metrics, ignore_errors=True)


OURS = ("--scheduler-cls", "headgate.vllm.scheduler.Scheduler")


@pytest.fixture(scope="module")
def stock(folder: Path) -> Iterator[str]:
    with vllm(folder, "stock", "--num-gpu-blocks-override", "18") as url:
        yield url


@pytest.fixture(scope="module")
def ours(folder: Path) -> Iterator[str]:
    log = str(folder / "steps.jsonl")
    with vllm(folder, "ours", *OURS, "--num-gpu-blocks-override", "18", HEADGATE_STEP_LOG=log) as url:
        yield url


def all_completed(url: str) -> dict[int, str]:
    """What twenty requests at once are answered."""
    said: dict[int, str] = {}

    def run(number: int) -> None:
        said[number] = completed(url, number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def completed(url: str, number: int, tokens: int = 90) -> str:
    prompt = " ".join(f"w{(number * 37 + at * at) % 400}" for at in range(5 + 11 * number))
    body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    wishes = {"headgate_priority": number % 4, "headgate_gap_ms": 20, "headgate_uncached_tokens": 5}
    status, got = ask(f"{url}/v1/completions", {**body, "vllm_xargs": wishes})
    assert status == 200, got
    return str(json.loads(got)["choices"][0]["text"])


def counted(url: str, name: str) -> float:
    lines = ask(f"{url}/metrics")[1].decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"headgate_vllm_{name}"))


def test_greedy_text_is_vllms_own_though_memory_is_short(ours: str, stock: str) -> None:
    """Twenty at once need more KV memory than there is: some are preempted."""
    assert all_completed(ours) == {number: completed(stock, number) for number in range(20)}
    preempted = ask(f"{ours}/metrics")[1].decode()
    assert any(
        line.startswith("vllm:num_preemptions_total") and not line.endswith(" 0.0") for line in preempted.splitlines()
    )
    assert counted(ours, "failures_total") == 0
    assert counted(ours, "steps_total") > 40


@contextmanager
def asking(url: str, prompt: str) -> Iterator[socket.socket]:
    """A client that asks for a stream, and leaves."""
    host, port = url.removeprefix("http://").split(":")
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 900, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    with socket.create_connection((host, int(port))) as connection:
        head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        yield connection


def none_runs(url: str) -> bool:
    lines = ask(f"{url}/metrics")[1].decode().splitlines()
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting{")
    return all(line.endswith(" 0.0") for line in lines if line.startswith(names))


def test_a_client_that_leaves_frees_its_place(ours: str) -> None:
    with asking(ours, "w1 w2") as connection:
        assert connection.recv(1)
    eventually(lambda: none_runs(ours), within_s=20)
    assert completed(ours, 1)


def test_clients_leave_while_their_long_prompts_are_left_out_for_short_ones(ours: str) -> None:
    """Long prompts that are read, short ones that push ahead, and all the clients of the long ones leave meanwhile."""
    before = counted(ours, "left_out_total")
    for _ in range(8):
        long = " ".join(f"w{number % 400}" for number in range(900))
        with asking(ours, "w1 w2") as stream, asking(ours, long), asking(ours, f"w9 {long}"):
            assert stream.recv(1)
            assert completed(ours, 2, tokens=2)
        if counted(ours, "left_out_total") > before:
            break
    eventually(lambda: none_runs(ours), within_s=20)
    assert completed(ours, 1)
    assert counted(ours, "failures_total") == 0


def test_what_breaks_in_headgates_part_costs_no_request_and_changes_no_text(folder: Path, stock: str) -> None:
    flags = ("--scheduler-cls", "failing.Scheduler", "--num-gpu-blocks-override", "18")
    with vllm(folder, "failing", *flags) as url:
        assert all_completed(url) == {number: completed(stock, number) for number in range(20)}
        eventually(lambda: none_runs(url), within_s=20)
        assert counted(url, "failures_total") > 20


def test_the_step_log_is_read_and_a_profile_is_fitted_to_it(ours: str, folder: Path) -> None:
    completed(ours, 3)
    eventually(lambda: sum(1 for _ in read(folder / "steps.jsonl")) > 20)
    steps = list(read(folder / "steps.jsonl"))
    assert all(step.took_s > 0 for step in steps)
    assert all(later.at >= earlier.at for earlier, later in pairwise(steps))
    for number in range(4):
        completed(ours, number)
    eventually(lambda: sum(1 for _ in read(folder / "steps.jsonl")) > 60)
    profile = fitted(folder / "steps.jsonl", "tiny")
    assert profile.cost.fixed > 0
    assert profile.context == 2048


CONTRACT = """
import inspect, json, sys
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request
from collections import deque
assert issubclass(AsyncScheduler, Scheduler) and issubclass(FCFSRequestQueue, deque)
def missing(names, *classes):
    text = "".join(map(inspect.getsource, classes))
    return [name for name in names if f"self.{name}" not in text and f"def {name}(" not in text
            and name not in getattr(classes[0], "__annotations__", {})]
scheduler, request, output = json.loads(sys.argv[1])
print(json.dumps([missing(scheduler, Scheduler), missing(request, Request), missing(output, SchedulerOutput)]))
"""


def test_vllm_has_all_that_is_read() -> None:
    names: Any = json.dumps([OF_SCHEDULER, OF_REQUEST, OF_OUTPUT])
    done = subprocess.run([f"{HOME}/bin/python", "-c", CONTRACT, names], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [[], [], []]
