"""A gateway whose config, replicas or models change while it runs; and bodies too long to be read on the loop."""

import hashlib
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import chat, double, eventually, gateway, seen

KEY = "secret"


def write(path: Path, config: dict[str, Any]) -> None:
    path.write_text(json.dumps({"listen": {"port": 0}, **config}))


def replicas(*urls: str) -> list[dict[str, Any]]:
    return [{"url": url, "slots": 8} for url in urls]


def reload(process: subprocess.Popen[str]) -> str:
    """Have it read its file again. What it says to that."""
    process.send_signal(signal.SIGHUP)
    assert process.stderr is not None
    return next(line for line in process.stderr if "config" in line)


def test_a_changed_file_is_taken_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "headgate.yaml"
    with double() as (_, first), double() as (_, second):
        write(path, {"replicas": replicas(first)})
        with headgate("serve", "--config", str(path)) as (process, url):
            assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 200
            key = hashlib.sha256(KEY.encode()).hexdigest()
            write(path, {"replicas": replicas(second), "tenants": {"acme": {"key_sha256": [key]}}})
            assert "config taken" in reload(process)
            assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 401
            before = seen(first)["seen"]

            def served() -> bool:
                headers = {"authorization": f"Bearer {KEY}"}
                return ask(f"{url}/v1/chat/completions", chat("n=1"), headers=headers)[0] == 200

            eventually(served)
            assert seen(first)["seen"] == before
            assert seen(second)["seen"] >= 1


def test_a_broken_file_changes_nothing_and_what_needs_a_restart_is_named(tmp_path: Path) -> None:
    path = tmp_path / "headgate.yaml"
    with double() as (_, engine):
        write(path, {"replicas": replicas(engine)})
        with headgate("serve", "--config", str(path)) as (process, url):
            path.write_text("lanes: {fast: {weigth: 3}}")
            said = reload(process)
            assert "the old one stays" in said
            assert "weigth" in said
            assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 200
            write(path, {"replicas": replicas(engine), "limits": {"body_bytes": 1000}})
            assert "limits only with a restart" in reload(process)


def test_replicas_of_different_models_are_told_apart_without_a_config(tmp_path: Path) -> None:
    with (
        double(model="small") as (_, small),
        double(model="large") as (_, large),
        gateway(tmp_path, {}, small, large) as url,
    ):
        eventually(lambda: len(json.loads(ask(f"{url}/v1/models")[1])["data"]) == 2)
        for _ in range(6):
            assert ask(f"{url}/v1/chat/completions", {**chat("n=1"), "model": "large"})[0] == 200
        assert (seen(small)["seen"], seen(large)["seen"]) == (0, 6)
        status, body = ask(f"{url}/v1/chat/completions", {**chat("n=1"), "model": "huge"})
        assert status == 404
        assert "small" in json.loads(body)["error"]["message"]
        assert json.loads(ask(f"{url}/v1/models/small")[1])["id"] == "small"
        assert ask(f"{url}/v1/models/huge")[0] == 404


def test_a_long_body_is_understood_aside_and_served(tmp_path: Path) -> None:
    with double() as (_, engine), gateway(tmp_path, {}, engine) as url:
        # With spaces: read by the strict parser, not by the fast one.
        text = json.dumps({"model": "default", "prompt": list(range(100_000)), "max_tokens": 1}, indent=1).encode()
        assert ask(f"{url}/v1/completions", text)[0] == 200
        assert ask(f"{url}/v1/completions", text[:-2] + b',"model":"again"}')[0] == 400
