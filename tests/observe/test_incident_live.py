"""A real gateway loses its only replica: the incident is there, and an operator reads it."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import chat, eventually, gateway
from tests.observe.test_incidents import check, named
from tests.observe.test_instruments import headgate as command

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A gateway whose only replica, an emulated engine, died while it answered."""
    folder = tmp_path_factory.mktemp("incidents")
    config = {"observe": {"incidents": {"folder": str(folder / "kept"), "per_hour": 1}}}
    engine = headgate("engine", "--emulate", "h100-llama3-8b", "--port", "0")
    with engine as (process, where), gateway(folder, config, where) as url:
        for number in range(4):
            body = chat("Say something.", stream=True, max_tokens=40)
            assert ask(f"{url}/v1/chat/completions", body, headers={"x-request-id": f"well-{number}"})[0] == 200
        asked = ask(f"{url}/admin/incidents", {"reason": "  before\nit  "})
        assert asked[0] == 200
        waiting = threading.Thread(
            target=lambda: ask(f"{url}/v1/chat/completions", chat("Too late?"), headers={"x-request-id": "late"})
        )
        process.kill()
        waiting.start()
        eventually(lambda: len(incidents(url)) == 2, 20)
        waiting.join()
        yield url, folder / "kept"


def incidents(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ask(f"{url}/admin/incidents")[1])["incidents"]
    return found


def test_it_is_kept_as_a_trace_with_the_steps_of_the_engine_that_was(lost: tuple[str, Path]) -> None:
    url, folder = lost
    outage, asked = incidents(url)
    assert (outage["alerts"][0]["alert"], asked["reason"]) == ("no_usable_replica", "before it")
    assert {path.stem for path in folder.iterdir()} == {outage["id"], asked["id"]}
    before = json.loads((folder / f"{asked['id']}.json").read_bytes())["traceEvents"]
    check(before)
    assert {one["name"] for one in named(before, "request")} == {f"well-{number}" for number in range(4)}
    assert len(named(before, "step")) > 100
    assert any(one["args"]["decodes"] for one in named(before, "step"))
    (replica,) = asked["steps"]
    status, body = ask(f"{url}/admin/incidents/{outage['id']}/trace")
    assert status == 200
    events = json.loads(body)["traceEvents"]
    check(events)
    assert [one["name"] for one in named(events, "alert")] == ["no_usable_replica is critical"]
    assert [one["name"] for one in named(events, "state")][-1] in ("ejected", "probation")
    assert outage["replicas"][0]["id"] == replica


def test_an_operator_reads_it_in_words(lost: tuple[str, Path], tmp_path: Path) -> None:
    url, _ = lost
    outage, asked = incidents(url)
    listed = command("incident", "ls", "--url", url).stdout
    assert listed.index(outage["id"]) < listed.index(asked["id"])
    said = command("incident", "show", "--url", url).stdout
    assert said.startswith(outage["id"])
    assert "✗ no_usable_replica" in said
    assert "nothing can be answered" in said
    assert "headgate incident show" in said
    file = tmp_path / "trace.json"
    told = command("incident", "show", asked["id"], "--trace", str(file), "--url", url)
    assert f"Open {file} at https://ui.perfetto.dev" in " ".join(told.stdout.split())
    assert "4 completed" in told.stdout
    assert json.loads(file.read_bytes())["headgate"]["id"] == asked["id"]
    as_json = json.loads(command("incident", "show", asked["id"], "--json", "--url", url).stdout)
    assert as_json["reason"] == "before it"
    assert json.loads(command("incident", "ls", "--json", "--url", url).stdout)["failed"] == 0
    recorded = command("incident", "record", "--reason", "a look", "--url", url)
    assert recorded.stdout.splitlines()[1].startswith("a look. ")


def test_what_can_not_be_done_is_one_line(lost: tuple[str, Path], tmp_path: Path) -> None:
    url, _ = lost
    unknown = command("incident", "show", "../../etc/passwd", "--url", url)
    assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)
    assert "headgate incident ls" in unknown.stderr
    nowhere = command("incident", "show", "--trace", str(tmp_path / "no" / "folder"), "--url", url)
    assert nowhere.returncode == 1
    assert "can't be written: No such file" in nowhere.stderr
    assert ask(f"{url}/admin/incidents", {"reason": 3})[0] == 400
    assert ask(f"{url}/admin/incidents", {"reasons": "x"})[0] == 400
    assert ask(f"{url}/admin/incidents/x/y")[0] == 404
    assert ask(f"{url}/admin/incidents/x/trace")[0] == 404
