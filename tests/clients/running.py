"""Runs a client's script against a gateway."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.clients.catalog import ROOT, Client
from tests.engine.process import headgate

TIMEOUT_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    model: str
    is_small: bool
    """The model is the bundled one, of which good answers can't be expected."""


def run(client: Client, served: Served) -> subprocess.CompletedProcess[str]:
    told = {
        "HEADGATE_URL": served.url,
        "HEADGATE_MODEL": served.model,
        "HEADGATE_SMALL": "1" if served.is_small else "0",
        "NODE_PATH": str(client.folder / "node_modules"),
        "CLIENT_HOME": str(client.folder),
        "NO_PROXY": "*",
    }
    return subprocess.run(
        client.command, env={**os.environ, **told}, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=client.folder
    )


@contextmanager
def scripted(where: Path) -> Iterator[Served]:
    """A gateway in front of the scripted engine."""
    command = [sys.executable, "-m", "tests.clients.scripted_engine", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        engine = f"http://127.0.0.1:{int(process.stdout.readline())}"
        config = {
            "replicas": [{"url": engine, "slots": 8}],
            "listen": {"port": 0},
            "batches": {"folder": str(where / "batches")},
        }
        path = where / "headgate.yaml"
        path.write_text(json.dumps(config))
        with headgate("serve", "--config", str(path)) as (_, url):
            yield Served(url, "scripted", False)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def small(where: Path) -> Iterator[Served]:
    """A gateway with the embedded engine and the bundled model."""
    path = where / "headgate.yaml"
    path.write_text(json.dumps({"listen": {"port": 0}}))
    with headgate("serve", "--config", str(path)) as (_, url):
        yield Served(url, "default", True)
