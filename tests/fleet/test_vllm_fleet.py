"""A gateway that starts vLLM by itself: `headgate serve --vllm`. The vLLM here is a program that starts, listens, fails
and leaves processes behind as vLLM does; tests/vllm/ has the real one."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

import pytest

from headgate.config.fleet import VllmConfig
from headgate.fleet.vllm_program import VllmProgram, device_sets, devices_here, devices_left
from headgate.model.errors import StartupError
from headgate.replica import local
from tests.engine.process import TESTED, ask, headgate
from tests.fleet.fake_vllm import install
from tests.fleet.test_processes import alive, is_zombie
from tests.gateway.test_gateway import chat, eventually

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(install(tmp_path_factory.mktemp("bin")))


@contextmanager
def serving(command: str, *words: str, model: str = "tiny") -> Iterator[tuple[subprocess.Popen[str], str]]:
    arguments = ("serve", "--port", "0", "--vllm", model, "--vllm-bin", command, *words)
    with headgate(*arguments) as (process, url):
        assert process.stderr is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process, url


def failing(command: str, *words: str, environ: dict[str, str] | None = None) -> str:
    """What the last line says of a gateway that does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "headgate", "serve", "--port", "0", "--vllm-bin", command, *words],
        capture_output=True, text=True, timeout=30, check=False,
        env={**os.environ, "PYTHONPATH": TESTED, "COLUMNS": "300", **(environ or {})},
    )  # fmt: skip
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr.replace("vllm-1 | Traceback", "").replace("pid=1) Traceback", "").replace(
        "[core.py:9] Traceback", ""
    )
    return done.stderr.splitlines()[-1]


def replicas(url: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(ask(f"{url}/admin/fleet")[1])["replicas"]
    return told


def of_vllm(replica: dict[str, Any], path: str = "/facts", post: bool = False) -> Any:
    """What the vLLM of a replica itself says."""

    class OnSocket(HTTPConnection):
        def connect(self) -> None:
            self.sock = socket(AF_UNIX)
            self.sock.connect(replica["url"].removeprefix("unix:"))

    connection = OnSocket("vllm")
    try:
        connection.request("POST" if post else "GET", path, b"{}" if post else None)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def serve(url: str, count: int) -> bool:
    return [replica["state"] for replica in replicas(url)] == ["serving"] * count


def facts(url: str, count: int = 1, but: int = 0) -> list[dict[str, Any]]:
    """What each vLLM says of itself, once all serve, and none of them is the process `but`."""
    found: list[dict[str, Any]] = []

    def all_there() -> bool:
        try:
            found[:] = [of_vllm(replica) for replica in replicas(url)]
        except OSError:  # one that has just ended
            return False
        return serve(url, count) and all(fact["pid"] != but for fact in found)

    eventually(all_there, 20.0)
    return found


def gone(pid: int) -> bool:
    return not alive(pid) or is_zombie(pid)


def completes(url: str, model: str = "tiny") -> None:
    status, body = ask(f"{url}/v1/chat/completions", {**chat("hello"), "model": model, "max_tokens": 3})
    assert status == 200, body
    assert json.loads(body)["choices"][0]["message"]["content"] == "w w w "


def test_each_replica_has_devices_of_its_own_and_headgates_scheduler(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,GPU-5a,7")
    with serving(command, "--engines", "2", "--", "-tp", "2", "--max-num-seqs", "9") as (_, url):
        found = facts(url, 2)
        assert sorted(fact["devices"] for fact in found) == ["0,1", "GPU-5a,7"]
        assert all(fact["metrics"] == [] for fact in found)
        (first, _) = found
        flags = first["flags"]
        assert flags[flags.index("--scheduler-cls") + 1] == "headgate.vllm.scheduler.Scheduler"
        assert flags[-4:] == ["-tp", "2", "--max-num-seqs", "9"]
        told = json.loads(ask(f"{url}/admin/state")[1])["replicas"]
        assert [replica["kind"] for replica in told] == ["vllm", "vllm"]
        completes(url)
        # Its environment can import what the scheduler needs from there, and needs nothing else for it.
        script = "import headgate.vllm.part, headgate.vllm.settings, headgate.vllm.supported as s; print(s.__file__)"
        path = first["path"].split(os.pathsep)[0]
        done = subprocess.run(
            [sys.executable, "-S", "-c", script], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith(path)


def test_one_that_dies_is_started_again_on_its_devices_and_its_processes_are_ended(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with serving(command, "--engines", "2") as (_, url):
        before = {fact["devices"]: fact for fact in facts(url, 2)}
        os.kill(before["0"]["pid"], signal.SIGKILL)
        eventually(lambda: gone(before["0"]["child"]))
        completes(url)
        after = {fact["devices"]: fact for fact in facts(url, 2, but=before["0"]["pid"])}
        assert after["1"] == before["1"]
        assert set(after) == {"0", "1"}


def test_one_that_is_drained_ends_with_all_that_it_started_and_another_takes_its_devices(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with serving(command) as (_, url):
        (fact,), (replica,) = facts(url), replicas(url)
        status, _ = ask(f"{url}/admin/replicas/{replica['id']}/drain", {})
        assert status == 200
        eventually(lambda: gone(fact["pid"]) and gone(fact["child"]), 20.0)
        (other,) = facts(url, but=fact["pid"])
        assert other["devices"] == "3"


@pytest.mark.parametrize(
    ("model", "how"), [("tiny", signal.SIGKILL), ("tiny", signal.SIGTERM), ("deaf", signal.SIGKILL)]
)
def test_nothing_outlives_the_gateway(command: str, model: str, how: signal.Signals) -> None:
    with serving(command, "--engines", "2", model=model) as (process, url):
        found, (replica, _) = facts(url, 2), replicas(url)
        folder = next(one for one in Path(replica["url"].removeprefix("unix:")).parents if "headgate-" in one.name)
        assert folder.is_dir()
        process.send_signal(how)
        process.wait()
        eventually(lambda: all(gone(fact["pid"]) and gone(fact["child"]) for fact in found), 20.0)
        eventually(lambda: not folder.exists())


def test_nothing_is_left_where_the_keeper_itself_is_killed(command: str) -> None:
    with serving(command, model="grouped") as (_, url):
        (fact,) = facts(url)
        keeper = int(Path(f"/proc/{fact['pid']}/stat").read_text().rpartition(")")[2].split()[1])
        assert b"keeper.py" in Path(f"/proc/{keeper}/cmdline").read_bytes()
        os.kill(keeper, signal.SIGKILL)
        eventually(lambda: gone(fact["pid"]) and gone(fact["child"]))
        assert facts(url, but=fact["pid"])


def test_one_that_does_not_heed_is_killed_with_all_that_it_started(command: str, tmp_path: Path) -> None:
    async def test() -> None:
        program = VllmProgram(VllmConfig(model="deaf", bin=command), 1, tmp_path, os.environ, ())
        address = tmp_path / "1.sock"
        process = await program.spawn((), address, 0)
        await local.until_it_listens(address)
        fact = of_vllm({"url": f"unix:{address}"})
        await local.end(process, 0.1)
        assert gone(fact["pid"])
        assert gone(fact["child"])

    asyncio.run(test())
    assert (tmp_path / "python").is_dir()  # the folder is not the keeper's


def test_one_that_listens_late_is_waited_for(command: str) -> None:
    with serving(command, model="slow") as (_, url):
        completes(url, "slow")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--vllm", "missing"), "OSError: /nope is not a local folder and is not a valid model"),
        (("--vllm", "unready"), "ValueError: No available memory for the cache blocks."),
    ],
)
def test_one_that_does_not_start_is_one_line_with_its_own_words(
    command: str, words: tuple[str, ...], said: str
) -> None:
    assert failing(command, *words) == (
        f"headgate: no replica gets ready: vllm-1: its process ended with exit code 1: {said}; given up"
    )


def test_a_vllm_that_is_not_there_is_said_before_anything_starts() -> None:
    assert "there is no command '/nope/vllm'; install vLLM, or say where it is with --vllm-bin" in failing(
        "/nope/vllm", "--vllm", "tiny"
    )


def test_more_devices_than_there_are_is_said_before_anything_starts(command: str) -> None:
    said = failing(command, "--vllm", "x", "--engines", "2", "--", "-tp=2", environ={"CUDA_VISIBLE_DEVICES": "0,1,2"})
    assert "2 vLLM replicas with 2 devices each: this machine has 3 (0,1,2); lower --engines" in said


def test_a_config_file_says_the_same(command: str, tmp_path: Path) -> None:
    vllm = {"model": "tiny", "bin": command, "devices": ["5"], "scheduler": False}
    scale = {"min": 1, "max": 1, "forecast": False}
    config = {"listen": {"port": 0}, "fleet": {"kind": "processes", "scale": scale, "vllm": vllm}}
    path = tmp_path / "headgate.yaml"
    path.write_text(json.dumps(config))
    with headgate("serve", "--config", str(path)) as (process, url):
        assert process.stderr is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        (fact,) = facts(url)
        assert fact["devices"] == "5"
        assert "--scheduler-cls" not in fact["flags"]
        with urllib.request.urlopen(f"{url}/v1/models") as answer:
            assert json.load(answer)["data"][0]["id"] == "tiny"


def test_pools_share_the_devices_out_and_say_when_none_is_left() -> None:
    first, second = VllmConfig(model="a", flags=("-tp", "2")), VllmConfig(model="b")
    named = VllmConfig(model="c", devices=("0",))
    pools = [(first, 1), (second, 1), (named, 1)]
    here = ("0", "1", "2", "3", "4")
    assert devices_left(first, pools, here) == ("1", "2", "3", "4")
    assert devices_left(second, pools, here) == ("3", "4")
    assert device_sets(named, devices_left(named, pools, here)) == ("0",)
    assert devices_left(second, pools, ()) == ()
    with pytest.raises(StartupError, match=r"no device is left for vLLM with b: other pools have all 3 \(0,1,2\)"):
        devices_left(second, pools, here[:3])


def test_devices_are_those_that_this_process_may_use_or_else_all_of_nvidia(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert devices_here({}, tmp_path) == ("0", "2", "10")
    assert devices_here({"CUDA_VISIBLE_DEVICES": "3, MIG-a,-1"}, tmp_path) == ("3", "MIG-a")
    assert devices_here({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()
