"""A running gateway changed through its admin API, its watched file and the commands for both."""

import hashlib
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from headgate.cli import fleet_client
from headgate.model.errors import StartupError
from tests.engine.process import ask, headgate
from tests.gateway.test_change import replicas, write
from tests.gateway.test_gateway import chat, double, eventually, gateway, seen
from tests.ledger import ADMIN_KEY, ADMIN_KEYS

KEY = "secret"
pytestmark = pytest.mark.timeout(60)


def send(method: str, url: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "x-api-key": ADMIN_KEY}
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def complaint(answer: tuple[int, dict[str, Any]]) -> str:
    status, body = answer
    assert status == 400
    message: str = body["error"]["message"]
    return message


def known(url: str) -> list[str]:
    return [replica["id"] for replica in json.loads(ask(f"{url}/admin/fleet")[1])["known"]]


def test_replicas_come_and_go_and_what_they_are_doing_is_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with double() as (_, first), double() as (_, second), gateway(tmp_path, {}, first) as url:
        fleet_client.add(url, second)
        assert "used once it has answered" in capsys.readouterr().out
        here = known(url)
        assert len(here) == 2
        assert "is here already" in complaint(send("POST", f"{url}/admin/replicas", {"url": second}))
        assert "unknown key" in complaint(send("POST", f"{url}/admin/replicas", {"url": second, "adress": 1}))
        fleet_client.act(url, here[0], "drain")
        eventually(lambda: ask(f"{url}/health/ready")[0] == 200)
        for _ in range(4):
            assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 200
        assert (seen(first)["seen"], seen(second)["seen"]) == (0, 4)
        answers: list[int] = []
        slow = threading.Thread(
            target=lambda: answers.append(ask(f"{url}/v1/chat/completions", chat("ttft=800 n=2"))[0])
        )
        slow.start()
        eventually(lambda: seen(second)["seen"] == 5)
        fleet_client.act(url, here[0], "activate")
        fleet_client.remove(url, here[1])
        assert known(url) == here[:1]
        assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 200
        assert seen(first)["seen"] == 1
        slow.join()
        assert answers == [200]
        with pytest.raises(StartupError, match="no replica"):
            fleet_client.remove(url, here[1])


def test_tenants_and_lanes_are_added_changed_and_removed(tmp_path: Path) -> None:
    with double() as (_, engine), gateway(tmp_path, {"admin_keys": ADMIN_KEYS}, engine) as url:
        key = hashlib.sha256(KEY.encode()).hexdigest()
        assert send("POST", f"{url}/admin/tenants", {"acme": {"key_sha256": [key], "requests_per_min": 2}})[0] == 200
        assert ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 401
        mine = {"authorization": f"Bearer {KEY}"}
        codes = [ask(f"{url}/v1/chat/completions", chat("n=1"), headers=mine)[0] for _ in range(3)]
        assert codes == [200, 200, 429]
        lane = {"priority": 1, "ttft_target_s": 1, "gap_target_s": 0.2, "weight": 2}
        assert send("POST", f"{url}/admin/lanes", {"agents": lane})[0] == 200
        changed = {"acme": {"key_sha256": [key], "default_lane": "agents"}}
        assert send("POST", f"{url}/admin/tenants", changed)[0] == 200
        assert ask(f"{url}/v1/chat/completions", chat("n=1"), headers=mine)[0] == 200
        assert "no lane is called agents" in complaint(send("DELETE", f"{url}/admin/lanes/agents"))
        assert "always there" in complaint(send("DELETE", f"{url}/admin/lanes/fast"))
        assert "no tenant is called" in complaint(send("DELETE", f"{url}/admin/tenants/nobody"))
        assert "weigth" in complaint(send("POST", f"{url}/admin/lanes", {"fast": {"weigth": 3}}))
        assert "not JSON" in complaint((400, json.loads(ask(f"{url}/admin/lanes", b"{")[1])))
        assert "not JSON" in complaint((400, json.loads(ask(f"{url}/admin/tenants", b"[" * 9000)[1])))
        assert send("DELETE", f"{url}/admin/tenants/acme")[0] == 200
        assert ask(f"{url}/v1/chat/completions", chat("n=1"), headers=mine)[0] == 401


def test_a_file_is_read_again_when_told_and_a_wrong_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "headgate.yaml"
    with double() as (_, first), double() as (_, second):
        write(path, {"replicas": replicas(first)})
        with headgate("serve", "--config", str(path)) as (_, url):
            write(path, {"replicas": replicas(second)})
            fleet_client.reload(url)
            assert "config taken" in capsys.readouterr().out
            assert known(url) == [second.removeprefix("http://")]
            path.write_text("lanes: {fast: {weigth: 3}}")
            with pytest.raises(StartupError, match="weigth"):
                fleet_client.reload(url)
            assert known(url) == [second.removeprefix("http://")]
            eventually(lambda: ask(f"{url}/v1/chat/completions", chat("n=1"))[0] == 200)


def test_without_a_file_there_is_nothing_to_read_again() -> None:
    with double() as (_, engine), headgate("serve", "--port", "0", "--replica", engine) as (_, url):
        with pytest.raises(StartupError, match="start with --config FILE"):
            fleet_client.reload(url)
        assert "starts no replicas of its own" in complaint(send("POST", f"{url}/admin/fleet/zero", {}))


def test_a_watched_file_is_taken_when_it_changes_and_not_when_it_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "headgate.yaml"
    with double() as (_, first), double() as (_, second):
        write(path, {"replicas": replicas(first)})
        with headgate("serve", "--config", str(path), "--watch") as (process, url):
            assert process.stderr is not None
            path.write_text("lanes: {fast: {weigth: 3}}")
            assert "the old one stays" in next(line for line in process.stderr if "config" in line)
            write(path, {"replicas": replicas(first, second)})
            assert "config taken" in next(line for line in process.stderr if "config" in line)
            assert len(known(url)) == 2


def test_what_each_tenant_used_can_be_had_as_lines_and_as_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "tenants": {"acme": {"key_sha256": [hashlib.sha256(KEY.encode()).hexdigest()]}},
        "anonymous": {"allowed": True},
    }
    with double() as (_, engine), gateway(tmp_path, config, engine) as url:
        mine = {"authorization": f"Bearer {KEY}"}
        for _ in range(3):
            assert ask(f"{url}/v1/chat/completions", chat("n=5"), headers=mine)[0] == 200
        assert ask(f"{url}/v1/chat/completions", chat("n=2"))[0] == 200
        eventually(lambda: ask(f"{url}/admin/usage")[1].count(b"\n") == 2)
        fleet_client.usage(url, "1h", "jsonl", None, ADMIN_KEY)
        rows = {row["tenant"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
        assert (rows["acme"]["requests"], rows["acme"]["completed"], rows["acme"]["output_tokens"]) == (3, 3, 15)
        assert rows["anonymous"]["output_tokens"] == 2
        out = tmp_path / "usage.csv"
        fleet_client.usage(url, "1h", "csv", out, ADMIN_KEY)
        head, *lines = out.read_text().splitlines()
        assert head.startswith("hour,tenant,model,requests")
        assert len(lines) == 2
        assert "must be one of jsonl, csv" in complaint((400, json.loads(ask(f"{url}/admin/usage?format=xml")[1])))
