"""Several pools under one gateway, as a user runs them: processes, emulated engines, real sockets."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.cli import fleet_client
from tests.engine.process import ask, headgate
from tests.fleet.test_local_fleet import state
from tests.gateway.test_gateway import eventually

pytestmark = pytest.mark.timeout(60)
EMULATED = {"profile": "h100-llama3-8b", "cold_start_s": 0.1, "slots": 32}


def pool(name: str, model: str, **more: Any) -> dict[str, Any]:
    scale = {"forecast": False, "min": 1, "max": 2, "warm": 0, **more.pop("scale", {})}
    return {"name": name, "model": model, "emulate": EMULATED, "scale": scale, **more}


@contextmanager
def gateway(folder: Path, *pools: dict[str, Any], **more: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    config = {"listen": {"port": 0}, "timeouts": {"no_replica_wait_s": 30}, "fleet": {"pools": list(pools)}, **more}
    path = folder / "headgate.yaml"
    path.write_text(json.dumps(config))
    with headgate("serve", "--config", str(path)) as (process, url):
        assert process.stderr is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process, url


def versions(first: float, second: float) -> list[dict[str, Any]]:
    made = [{"name": "v1", "model": "m-1", "weight": first}, {"name": "v2", "model": "m-2", "weight": second}]
    return [{"name": "m", "versions": made, "sticky": "request"}]


def answer(url: str, model: str) -> dict[str, Any]:
    status, body = ask(f"{url}/v1/completions", {"model": model, "prompt": "hello", "max_tokens": 4})
    told: dict[str, Any] = json.loads(body)
    assert status == 200, told
    return told


def test_two_versions_in_pools_answer_by_their_names_and_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = pool("old", "m-1", version="v1", price=2, tags={"gpu_type": "a100"})
    new = pool("new", "m-2", version="v2", lanes=["fast", "slow"])
    with gateway(tmp_path, old, new, models=versions(1, 1)) as (_, url):
        eventually(lambda: [one["serving"] for one in state(url)["pools"]] == [1, 1], 30.0)
        assert {answer(url, "m")["model"] for _ in range(8)} == {"m"}
        assert answer(url, "m-1")["model"] == "m-1"
        assert ask(f"{url}/v1/completions", {"model": "nothing", "prompt": "x"})[0] == 404
        told = {one["name"]: one for one in state(url)["pools"]}
        assert (told["old"]["version"], told["old"]["price"], told["old"]["tags"]) == ("v1", 2.0, {"gpu_type": "a100"})
        assert (told["new"]["lanes"], told["new"]["max"]) == (["fast", "slow"], 2)
        replicas = {one["id"]: one["pool"] for one in state(url)["replicas"]}
        assert replicas == {"old-1": "old", "new-1": "new"}
        assert all(note["text"].startswith(f"{note['pool']}: ") for note in state(url)["notes"])
        fleet_client.show(url)
        shown = capsys.readouterr().out
        assert "1 of 1 serve" in shown
        assert "a100" in shown
        metrics = ask(f"{url}/metrics")[1].decode()
        assert 'headgate_pool_replicas{pool="new",state="serving"} 1' in metrics
        assert 'headgate_pool_wanted{pool="old",state="serving"} 1' in metrics
        path = tmp_path / "headgate.yaml"
        text = path.read_text()
        path.write_text(text.replace('"name": "new"', '"name": "newer"'))
        status, body = ask(f"{url}/admin/reload", {})
        assert (status, "another pool, or another model of one" in body.decode()) == (400, True)
        path.write_text(text.replace('"max": 2', '"max": 3').replace('"price": 2', '"price": 5'))
        assert ask(f"{url}/admin/reload", {})[0] == 200
        told = {one["name"]: one for one in state(url)["pools"]}
        assert (told["old"]["price"], told["old"]["max"], told["new"]["max"]) == (5.0, 3, 3)
        status, body = ask(f"{url}/admin/replicas/old-1/park", {})
        assert (status, json.loads(body)["done"]) == (200, True)
        status, body = ask(f"{url}/admin/fleet/zero", {})
        assert (status, json.loads(body)["stopping"]) == (200, 2)


def test_a_pool_that_cannot_start_takes_nothing_from_the_others(tmp_path: Path) -> None:
    broken = pool("broken", "m-2", emulate=None, engine={"model": str(tmp_path / "missing.gguf")})
    del broken["emulate"]
    with gateway(tmp_path, pool("old", "m-1"), broken) as (process, url):
        eventually(lambda: state(url)["pools"][0]["serving"] == 1, 30.0)
        eventually(lambda: any("broken" in note["text"] for note in state(url)["notes"] if note["kind"] == "trouble"))
        assert answer(url, "m-1")["model"] == "m-1"
        assert process.poll() is None
