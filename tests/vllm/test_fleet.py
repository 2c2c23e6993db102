"""A gateway that starts real vLLMs on a CPU, with Headgate's scheduler: `make test-vllm`."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headgate.fleet.keeper import descendants
from tests.engine.process import TESTED, ask, headgate
from tests.fleet.test_vllm_fleet import gone, replicas
from tests.vllm.command import command as vllm_command
from tests.vllm.test_vllm import HOME, STARTS_WITHIN_S, chat

pytestmark = pytest.mark.timeout(900)

FLAGS = ("--served-model-name", "tiny", "--max-model-len", "2048", "--dtype", "float32", "--enforce-eager")


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> str:
    return vllm_command(HOME, tmp_path_factory.mktemp("bin"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    subprocess.run([f"{HOME}/bin/python", str(Path(__file__).parent / "tiny_model.py"), str(folder)], check=True)
    return str(folder)


def within(limit_s: float, true: object) -> None:
    assert callable(true)
    ends = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.2)


def said_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_it_serves_comes_back_and_leaves_nothing_behind(
    command: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    words = ("serve", "--port", "0", "--vllm", model, "--vllm-bin", command, "--", *FLAGS)
    with headgate(*words) as (process, url):
        assert process.stderr is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        status, body = ask(f"{url}/v1/chat/completions", chat(max_tokens=8))
        assert status == 200, body
        assert json.loads(body)["usage"]["completion_tokens"] <= 8
        below = descendants(process.pid)
        (core,) = [pid for pid in below if "EngineCore" in said_of(pid)]
        os.kill(core, 9)
        within(60.0, lambda: all(gone(pid) for pid in below))
        within(STARTS_WITHIN_S, lambda: [one["state"] for one in replicas(url)] == ["serving"])
        assert ask(f"{url}/v1/chat/completions", chat(max_tokens=4))[0] == 200
        below = descendants(process.pid)
        assert any("EngineCore" in said_of(pid) for pid in below)
        process.kill()
        process.wait()
        within(30.0, lambda: all(gone(pid) for pid in below))


def test_a_model_that_does_not_load_is_one_line(command: str) -> None:
    words = ("serve", "--port", "0", "--vllm", "/nope", "--vllm-bin", command)
    done = subprocess.run(
        [sys.executable, "-m", "headgate", *words],
        capture_output=True, text=True, check=False, timeout=STARTS_WITHIN_S,
        env={**os.environ, "PYTHONPATH": TESTED, "COLUMNS": "300"},
    )  # fmt: skip
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("headgate: no replica gets ready: vllm-1: its process ended with exit code 1: ")
    assert "'/nope'" in last
