"""The gateway in front of a real vLLM on a CPU: `make test-vllm`, which says where vLLM is. No part of `make test`: it
is a gigabyte, and takes a while to start."""

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.replica.dialects import continued
from headgate.replica.gauges import read_gauges
from tests.engine.process import ask
from tests.gateway.test_gateway import eventually, gateway

HOME = os.environ.get("HEADGATE_VLLM", "")
"""The environment that vLLM is installed in."""
STARTS_WITHIN_S = 600.0

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    subprocess.run([f"{HOME}/bin/python", str(Path(__file__).parent / "tiny_model.py"), str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ("--served-model-name", "tiny", "--max-model-len", "2048", "--dtype", "bfloat16", "--enforce-eager")
    more = ("--scheduling-policy", "priority", "--enable-lora", "--max-lora-rank", "8", "--max-num-seqs", "8")
    environment = {**os.environ, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_CPU_KVCACHE_SPACE": "1"}
    log = tmp_path_factory.mktemp("vllm") / "log"
    with log.open("wb") as written:
        # Not bin/vllm, which fails where the CPU build is installed as vllm-cpu: it asks for the version of "vllm".
        server = (f"{HOME}/bin/python", "-m", "vllm.entrypoints.openai.api_server")
        command = [*server, "--model", str(model), "--port", str(port), *flags, *more]
        process = subprocess.Popen(command, env=environment, stdout=written, stderr=written, start_new_session=True)
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
    shutil.rmtree(log.parent, ignore_errors=True)


def healthy(url: str) -> bool:
    try:
        return ask(f"{url}/health")[0] == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def url(engine: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    warm = {"adapters": [{"name": "poet", "path": str(model / "poet")}], "system_prompts": ["w1 w2 w3"]}
    replica = {"url": engine, "slots": 4, "priority": True}
    config = {"replicas": [replica], "warm": warm, "listen": {"port": 0}}
    with gateway(tmp_path_factory.mktemp("gateway"), config) as where:
        yield where


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "w5 w6 w7"}], "temperature": 0, **more}


def test_it_is_found_out_and_warmed(url: str) -> None:
    (replica,) = json.loads(ask(f"{url}/admin/state")[1])["replicas"]
    assert replica["kind"] == "vllm"
    assert replica["state"] == "up"
    assert re.search(r'headgate_replica_warm{replica="[^"]+"} 1', ask(f"{url}/metrics")[1].decode())


def test_a_request_is_served_with_its_priority(url: str) -> None:
    status, body = ask(f"{url}/v1/chat/completions", chat(max_tokens=8))
    assert status == 200, body
    assert json.loads(body)["usage"]["completion_tokens"] <= 8


def test_its_load_is_read(engine: str, url: str) -> None:
    said = read_gauges("vllm", ask(f"{engine}/metrics")[1].decode())
    assert said.keys() >= {"waiting", "batch_size", "kv_ratio", "preemptions"}
    eventually(lambda: "headgate_replica_kv_ratio" in ask(f"{url}/metrics")[1].decode())


def test_an_adapter_is_loaded_by_the_warm_up_and_asked_for_by_its_name(engine: str, url: str) -> None:
    names = [card["id"] for card in json.loads(ask(f"{url}/v1/models")[1])["data"]]
    assert names == ["tiny", "poet"]
    status, body = ask(f"{url}/v1/chat/completions", {**chat(max_tokens=4), "model": "poet"})
    assert status == 200, body
    assert json.loads(body)["model"] == "poet"


def test_a_stream_that_broke_off_goes_on(url: str, engine: str) -> None:
    whole = streamed(url, chat(max_tokens=12, ignore_eos=True))
    begun = streamed(url, chat(max_tokens=5, ignore_eos=True))
    assert whole.startswith(begun)
    going = continued("vllm", "/v1/chat/completions", chat(max_tokens=12, ignore_eos=True), begun, 5)
    assert going is not None
    assert (begun + streamed(engine, going)).split() == whole.split()


def test_a_client_that_leaves_frees_its_place(url: str, engine: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps(chat(max_tokens=1900, ignore_eos=True, stream=True)).encode()
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert connection.recv(1)
    eventually(lambda: read_gauges("vllm", ask(f"{engine}/metrics")[1].decode())["batch_size"] == 0, within_s=10)


def streamed(url: str, body: dict[str, Any]) -> str:
    status, got = ask(f"{url}/v1/chat/completions", {**body, "stream": True})
    assert status == 200, got
    events = [json.loads(line[6:]) for line in got.splitlines() if line.startswith(b"data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
