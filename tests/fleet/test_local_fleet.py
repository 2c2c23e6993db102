"""A gateway that runs its own replicas, as a user runs it: processes, emulated engines, real sockets, real signals."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.cli import fleet_client
from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import eventually

COLD_START_S = 0.3
pytestmark = pytest.mark.timeout(60)


@contextmanager
def fleet(folder: Path, **scale: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    path = folder / "headgate.yaml"
    config = {
        "listen": {"port": 0},
        "timeouts": {"no_replica_wait_s": 30},
        "fleet": {
            "kind": "processes",
            "scale": {"forecast": False, **scale},
            "emulate": {"profile": "h100-llama3-8b", "cold_start_s": COLD_START_S, "slots": 32},
            "history": None,
        },
    }
    path.write_text(json.dumps(config))
    with headgate("serve", "--config", str(path)) as (process, url):
        # What it says would fill the pipe sooner or later.
        assert process.stderr is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process, url


def state(url: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(ask(f"{url}/admin/fleet")[1])
    return told


def states(url: str) -> list[str]:
    return sorted(replica["state"] for replica in state(url)["replicas"])


def pids(url: str, which: str | None = None) -> dict[str, int]:
    """Replicas' processes, found by the sockets they were told to listen on."""
    sockets = {
        replica["url"].removeprefix("unix:"): replica["id"]
        for replica in state(url)["replicas"]
        if which in (None, replica["state"])
    }
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_text().split("\0") if folder.name.isdecimal() else []
        except OSError:
            continue
        for word in words:
            if word in sockets:
                found[sockets[word]] = int(folder.name)
    return found


def completion(url: str, tokens: int = 4) -> tuple[int, bytes]:
    body = {"model": "default", "prompt": "hello", "max_tokens": tokens, "ignore_eos": True}
    return ask(f"{url}/v1/completions", body)


def test_a_killed_replica_costs_no_answer_is_stood_in_for_and_comes_back(tmp_path: Path) -> None:
    with fleet(tmp_path, min=2, max=3, warm=1) as (_, url):
        eventually(lambda: states(url) == ["parked", "serving", "serving"], 30.0)
        eventually(lambda: len(state(url)["cold_starts"]) == 3)
        told = state(url)
        assert {start["replica"] for start in told["cold_starts"]} == {one["id"] for one in told["replicas"]}
        for start in told["cold_starts"]:
            assert set(start["phases"]) >= {"process", "weights", "warm-up"}
            assert start["phases"]["weights"] == pytest.approx(COLD_START_S)
            assert start["took_s"] >= COLD_START_S
        parked = next(one["id"] for one in told["replicas"] if one["state"] == "parked")
        answers: list[int] = []
        asking = [threading.Thread(target=lambda: answers.append(completion(url, 400)[0])) for _ in range(6)]
        for thread in asking:
            thread.start()
        eventually(lambda: sum(one["requests"] for one in state(url)["replicas"]) == 6)
        killed, pid = next(iter(pids(url, "serving").items()))
        os.kill(pid, signal.SIGKILL)
        for thread in asking:
            thread.join()
        assert answers == [200] * 6
        eventually(lambda: states(url) == ["parked", "serving", "serving"], 30.0)
        after = {one["id"]: one["state"] for one in state(url)["replicas"]}
        assert after[parked] == "serving"
        assert after[killed] in ("parked", "serving")
        assert pids(url)[killed] != pid
        assert any(note["kind"] == "trouble" and killed in note["text"] for note in state(url)["notes"])


def test_nothing_is_left_when_the_gateway_is_killed(tmp_path: Path) -> None:
    with fleet(tmp_path, min=2, max=2) as (process, url):
        eventually(lambda: states(url) == ["serving", "serving"], 30.0)
        engines = pids(url)
        assert len(engines) == 2
        process.kill()
        process.wait()
        eventually(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in engines.values()))


def test_at_zero_on_purpose_the_next_request_pays_for_the_start_and_the_figure_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fleet(tmp_path, min=1, max=2) as (process, url):
        figures = fleet_client.zero(url, None, None, requests=3, patience_s=30.0)
        assert figures["cold_ttft_s"] >= COLD_START_S > figures["warm_ttft_s"]
        assert figures["weights_s"] == pytest.approx(COLD_START_S)
        assert state(url)["baseline"] == figures
        assert "from zero: first token after" in capsys.readouterr().out
        fleet_client.show(url)
        shown = capsys.readouterr().out
        assert "no longer held at zero" in shown
        assert "cold_ttft_s" in shown
        process.send_signal(signal.SIGTERM)
        process.wait()
        assert process.returncode == 0


def test_people_can_park_drain_and_activate_and_the_gateway_keeps_what_it_needs(tmp_path: Path) -> None:
    with fleet(tmp_path, min=1, max=2, warm=1) as (_, url):
        eventually(lambda: states(url) == ["parked", "serving"], 30.0)
        first = next(one["id"] for one in state(url)["replicas"] if one["state"] == "serving")
        status, body = ask(f"{url}/admin/replicas/{first}/drain", {})
        assert (status, json.loads(body)["done"]) == (200, True)
        eventually(lambda: first not in [one["id"] for one in state(url)["replicas"]])
        assert completion(url)[0] == 200  # the parked one has taken over
        eventually(lambda: states(url) == ["parked", "serving"], 30.0)
        status, body = ask(f"{url}/admin/replicas/nobody/drain", {})
        assert status == 400
        assert "no replica 'nobody'" in json.loads(body)["error"]["message"]
        status, body = ask(f"{url}/admin/replicas/{state(url)['replicas'][0]['id']}/praise", {})
        assert status == 400
        assert "drain, park, activate" in json.loads(body)["error"]["message"]


def test_an_engine_that_cannot_start_ends_the_gateway_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "headgate.yaml"
    path.write_text("listen: {port: 0}\nembedded: {model: /nowhere.gguf}\nfleet: {kind: processes}\n")
    said = r"no replica gets ready: local-1: its process ended with exit code 2"
    with pytest.raises(AssertionError, match=said), headgate("serve", "--config", str(path)):
        pass
