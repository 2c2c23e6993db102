"""Engines are killed while they speak, and every client gets what it would have got in peace. `benchmarks/chaos.py` is
the long version."""

import asyncio
import json
import threading
from pathlib import Path

import pytest
from benchmarks.chaos import CHAT, TEXT, Ask, Killer, config, faults, load, records, send
from benchmarks.fleet_load import Gateway

from tests.engine.process import headgate

ASKS = (
    Ask(CHAT, "Count from one to thirty in words.", 64),
    Ask(CHAT, "Say hello in five languages, with emoji.", 48),
    Ask(TEXT, "def fibonacci(n):\n", 56),
)
SECONDS, EVERY_S, CLIENTS = 8.0, 3.0, 4
PATIENT = {"attempts": 10, "ratio": 1.0}
"""Where the machine is busy, every kill may meet the same request. When it is given up: tests/policy/test_retry.py."""


@pytest.mark.model
@pytest.mark.timeout(120)
def test_no_client_notices_that_engines_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "headgate.yaml"
    path.write_text(json.dumps({"listen": {"port": 0}, "retry": PATIENT, **config(3)}))
    with headgate("serve", "--config", str(path)) as (process, url):
        # What it says would fill the pipe sooner or later.
        assert process.stderr is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        here = Gateway(url, process)
        here.until({"serving": 3})
        expected = {ask: asyncio.run(send(url, ask, f"reference-{ask.tokens}", True)) for ask in ASKS}
        with Killer(here, EVERY_S, seed=1) as killer:
            heard = asyncio.run(load(url, CLIENTS, SECONDS, 1, "chaos", ASKS))
        kept = [record for record in records(url) if record["id"].startswith("chaos")]
    assert killer.kills
    assert any(record.get("failed") for record in kept), "none of them was in anybody's way"
    assert {kind: lines for kind, lines in faults(heard, expected, kept).items() if lines} == {}
