"""A warm pool that sleeps, as a user runs it: processes, emulated engines, real sockets; one hangs, one dies."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headgate.cli import fleet_client
from tests.engine.process import ask, headgate
from tests.fleet.test_local_fleet import pids, state, states
from tests.gateway.test_gateway import eventually

WAKE_S = 0.4
LIMIT_S = 1.5
pytestmark = pytest.mark.timeout(60)


@contextmanager
def fleet(folder: Path, **scale: Any) -> Iterator[str]:
    path = folder / "headgate.yaml"
    config = {
        "listen": {"port": 0},
        "record": {"path": str(folder / "records.jsonl")},
        "fleet": {
            "kind": "processes",
            "scale": {"forecast": False, "queue_per_replica": 0.1, "sleep_after_s": 0.5, **scale},
            "wake_limit_s": LIMIT_S,
            "emulate": {"profile": "h100-llama3-8b", "wake_s": WAKE_S, "slots": 2},
        },
    }
    path.write_text(json.dumps(config))
    with headgate("serve", "--config", str(path)) as (process, url):
        assert process.stderr is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield url


class Asking:
    """Completions at once, each of this many tokens."""

    def __init__(self, url: str, count: int, tokens: int = 150) -> None:
        self.answers: list[tuple[int, bytes, float]] = []
        self._url, self._tokens = url, tokens
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self, number: int) -> None:
        body = {"model": "default", "prompt": f"hello {number}", "max_tokens": self._tokens, "ignore_eos": True}
        began = time.monotonic()
        status, answer = ask(f"{self._url}/v1/completions", body)
        self.answers.append((status, answer, time.monotonic() - began))

    def statuses(self) -> list[int]:
        for thread in self._threads:
            thread.join()
        return [status for status, _, _ in self.answers]


def recorded(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()[1:]]


def which(url: str, wanted: str) -> str:
    return next(str(one["id"]) for one in state(url)["replicas"] if one["state"] == wanted)


def test_who_waits_for_a_sleeping_one_is_answered_and_everything_that_shows_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fleet(tmp_path, min=1, max=2, warm=1) as url:
        eventually(lambda: states(url) == ["asleep", "serving"], 30.0)
        sleeping = which(url, "asleep")
        assert b'headgate_replicas{condition="asleep"} 1' in ask(f"{url}/metrics")[1]
        fleet_client.show(url)
        shown = capsys.readouterr().out
        assert "asleep" in shown
        assert "a wake-up 5.0 s" in shown
        asking = Asking(url, 4)
        assert asking.statuses() == [200] * 4
        # Both are there: the one that woke up, and the one that served before.
        eventually(lambda: any("woke up in" in note["text"] for note in state(url)["notes"]))
        assert state(url)["wake_s"] == pytest.approx(WAKE_S, abs=0.5)
        eventually(lambda: len(recorded(tmp_path)) == 4)
        records = recorded(tmp_path)
    held = [one for one in records if one.get("woke_s")]
    assert held
    assert {one["replica"] for one in held} == {sleeping}
    assert all(one["queue_s"] >= one["woke_s"] > 0.2 for one in held)
    assert max(took_s for _, _, took_s in asking.answers) < 10


def test_one_that_hangs_in_its_wake_up_is_replaced_and_costs_no_answer(tmp_path: Path) -> None:
    with fleet(tmp_path, min=1, max=3, warm=2) as url:
        eventually(lambda: states(url) == ["asleep", "asleep", "serving"], 30.0)
        asleep = pids(url, "asleep")
        victim = sorted(asleep)[0]
        os.kill(asleep[victim], signal.SIGSTOP)
        try:
            assert Asking(url, 8).statuses() == [200] * 8
            eventually(lambda: any("did not wake up" in note["text"] for note in state(url)["notes"]), 20.0)
        finally:
            with suppress(ProcessLookupError):
                os.kill(asleep[victim], signal.SIGCONT)
        troubles = [note for note in state(url)["notes"] if note["kind"] == "trouble"]
        assert {note["replica"] for note in troubles} == {victim}


def test_one_that_dies_asleep_is_started_again(tmp_path: Path) -> None:
    with fleet(tmp_path, min=1, max=2, warm=1) as url:
        eventually(lambda: states(url) == ["asleep", "serving"], 30.0)
        ((name, pid),) = pids(url, "asleep").items()
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: pids(url).get(name) not in (pid, None), 30.0)
        eventually(lambda: states(url) == ["asleep", "serving"], 30.0)
        assert Asking(url, 4).statuses() == [200] * 4


def test_an_operator_wakes_one_and_lets_it_sleep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fleet(tmp_path, min=1, max=2, warm=1, sleep_after_s=3600) as url:
        eventually(lambda: states(url) == ["parked", "serving"], 30.0)
        parked, serving = which(url, "parked"), which(url, "serving")
        fleet_client.act(url, parked, "sleep")
        eventually(lambda: states(url) == ["asleep", "serving"])
        fleet_client.act(url, parked, "wake")
        eventually(lambda: states(url) == ["parked", "serving"])
        fleet_client.act(url, serving, "sleep")
        assert states(url) == ["parked", "serving"]
        assert "nothing to do" in capsys.readouterr().out


def test_a_gateway_that_starts_finds_a_replica_asleep_and_wakes_it() -> None:
    with headgate("engine", "--emulate", "h100-llama3-8b", "--wake", "0.3", "--port", "0") as (_, engine):
        assert ask(f"{engine}/sleep?level=1&mode=wait", b"")[0] == 200
        with headgate("serve", "--replica", engine, "--port", "0") as (_, url):
            assert Asking(url, 1, 4).statuses() == [200]
        assert json.loads(ask(f"{engine}/is_sleeping")[1]) == {"is_sleeping": False}
