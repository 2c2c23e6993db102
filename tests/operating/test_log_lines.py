"""What an operator reads in the log: what became of replicas, of the config, and of requests that were refused."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.process import ask
from tests.gateway.test_gateway import chat, double
from tests.keys import hash_key
from tests.operating.logged import logging_process

pytestmark = pytest.mark.timeout(120)
KEY, ADMIN = "hg-a-tenants-key", "hg-an-admins-key"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (DEBUG|INFO|WARNING|ERROR)\s+headgate\.[a-z_.]+: .+")


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with double() as (_, url):
        yield url


def write(path: Path, **config: Any) -> Path:
    path.write_text(
        json.dumps({"listen": {"port": 0}, "health": {"probe_interval_s": 0.1, "cooldown_s": 0.1}, **config})
    )
    return path


def test_replicas_that_join_go_out_come_back_and_leave_are_told(engine: str, tmp_path: Path) -> None:
    with double() as (process, other):
        port = int(other.rsplit(":", 1)[1])
        replicas = [{"id": "stays", "url": engine}, {"id": "comes-and-goes", "url": other}]
        config = write(tmp_path / "c.yaml", replicas=replicas)
        with logging_process(tmp_path, "serve", "--config", str(config)) as run:
            run.until_said("replica comes-and-goes joins: ", "replica comes-and-goes is in use: ", "serves double")
            process.kill()
            process.wait()
            run.until_said("replica comes-and-goes is out: ")
            assert "connection refused" in run.text
            with double(port):
                run.until_said("replica comes-and-goes is back after ")
                write(config, replicas=replicas[:1])
                run.process.send_signal(signal.SIGHUP)
                run.until_said("config taken", "replica comes-and-goes has left")
            write(config, replicas=[{"url": "nowhere"}], lanes={"fast": {"wait": 1}})
            run.process.send_signal(signal.SIGHUP)
            run.until_said("config not taken, the old one stays")
            assert "did you mean http://nowhere?" in run.text
            run.process.send_signal(signal.SIGTERM)
            assert run.process.wait(20) == 0
        told = [line for line in run.text.splitlines() if "replica comes-and-goes" in line]
        assert all(LINE.fullmatch(line) for line in told), told
        assert run.text.rstrip().endswith("stopped")
        assert "Traceback" not in run.text


def test_refusals_are_summaries_and_no_line_holds_a_key(engine: str, tmp_path: Path) -> None:
    tenant = {"key_sha256": [hash_key(KEY)], "requests_per_min": 1}
    config = write(
        tmp_path / "c.yaml", replicas=[{"url": engine}], tenants={"acme": tenant}, admin_keys=[hash_key(ADMIN)]
    )
    flags = ("--log-format", "json", "--log-level", "debug", "--access-log")
    with logging_process(tmp_path, "serve", "--config", str(config), *flags) as run:
        bearer = {"authorization": f"Bearer {KEY}"}
        statuses = [ask(f"{run.url}/v1/chat/completions?key={KEY}", chat("n=1"), bearer)[0] for _ in range(20)]
        assert statuses[0] == 200
        assert set(statuses[1:]) == {429}
        ask(f"{run.url}/admin/doctor", None, {"authorization": f"Bearer {ADMIN}"})
        ask(f"{run.url}/v1/chat/completions", chat("n=1"), {"authorization": "Bearer hg-somebodys"})
        run.until(lambda: any(line.get("over_limit") for line in run.objects()))
        told = [line for line in run.objects() if line.get("over_limit")]
        assert len(told) <= 2
        assert "acme" in told[0]["message"]
        run.process.send_signal(signal.SIGTERM)
        run.process.wait(20)
    assert run.objects()
    for secret in (KEY, ADMIN, "hg-somebodys"):
        assert secret not in run.text


def test_a_replica_that_never_answers_is_told_with_the_reason(tmp_path: Path) -> None:
    flags = ("--replica", "http://127.0.0.1:1", "--port", "0")
    with logging_process(tmp_path, "serve", *flags, ready=False) as run:
        run.until_said("the replica does not answer yet; until one does, a request waits 10 s and gets 503")
        assert "127.0.0.1:1: connection refused" in run.text
        assert re.search(r"listens   http://127\.0\.0\.1:\d+  \(page /, API docs /docs, figures /metrics\)", run.text)
        assert re.match(r"Headgate \S+ \((compiled|interpreted)", run.text)


def test_the_banner_tells_which_replicas_answer_and_why_others_do_not(engine: str, tmp_path: Path) -> None:
    flags = ("--replica", engine, "--replica", "http://127.0.0.1:1", "--port", "0")
    with logging_process(tmp_path, "serve", *flags) as run:
        run.until_said("s, 1 of 2 replicas. Try:")
        assert f"✓ {engine}: " in run.text
        assert "– http://127.0.0.1:1: connection refused" in run.text


@pytest.mark.parametrize("command", ["serve", "engine"])
def test_json_means_nothing_but_json(engine: str, tmp_path: Path, command: str) -> None:
    what = ("--replica", engine) if command == "serve" else ("--emulate", "h100-llama3-8b")
    with logging_process(tmp_path, command, *what, "--port", "0", "--log-format", "json") as run:
        lines = run.objects()
        assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) for line in lines)
        assert any(line["message"].startswith("Ready on http") for line in lines)


@pytest.mark.parametrize("command", ["serve", "engine"])
def test_quiet_means_nothing_at_all_while_all_is_well(engine: str, tmp_path: Path, command: str) -> None:
    path = tmp_path / "it.sock"
    what = ("--replica", engine) if command == "serve" else ("--emulate", "h100-llama3-8b")
    with logging_process(tmp_path, command, *what, "--uds", str(path), "--quiet", ready=False) as run:
        run.until(path.exists)
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(20) == 0
        assert run.text == ""


def test_engines_of_a_gateway_log_as_it_does(tmp_path: Path) -> None:
    config = write(
        tmp_path / "c.yaml", fleet={"kind": "processes", "emulate": {"profile": "h100-llama3-8b"}, "scale": {"max": 1}}
    )
    flags = ("--log-format", "json", "--log-level", "info")
    with logging_process(tmp_path, "serve", "--config", str(config), *flags) as run:
        run.until(lambda: any("replica emulated-1" in line["message"] for line in run.objects()))
        run.until(lambda: any(line.get("kind") == "decision" for line in run.objects()))
        assert any(line["message"].startswith("engine ready on unix:") for line in run.objects())


# -- the access log ------------------------------------------------------------------------------------------


def test_each_answered_request_is_a_line_with_its_tenant_lane_and_tokens(engine: str, tmp_path: Path) -> None:
    config = write(tmp_path / "c.yaml", replicas=[{"id": "one", "url": engine}])
    flags = ("--log-format", "json", "--access-log")
    with logging_process(tmp_path, "serve", "--config", str(config), *flags) as run:
        for stream in (True, False):
            ask(f"{run.url}/v1/chat/completions", chat("n=3", stream=stream), {"x-request-id": f"mine-{stream}"})
        ask(f"{run.url}/v1/chat/completions", {"messages": []}, {"x-request-id": "wrong"})
        ask(f"{run.url}/v1/models")
        ask(f"{run.url}/nowhere?token=secret")

        def entries() -> dict[str, dict[str, Any]]:
            found = [line for line in run.objects() if line["logger"] == "headgate.access"]
            return {
                f"{line['path']} {line['id']}" if "completions" in line["path"] else line["path"]: line
                for line in found
            }

        run.until(lambda: len(entries()) >= 5)
        found = entries()
        for stream in (True, False):
            line = found[f"/v1/chat/completions mine-{stream}"]
            assert (line["status"], line["outcome"], line["tenant"], line["replica"]) == (
                200,
                "completed",
                "anonymous",
                "one",
            )
            assert line["output_tokens"] == 3
            assert line["ms"] > 0
        assert found["/v1/chat/completions wrong"]["status"] == 400
        assert found["/v1/models"]["status"] == 200
        assert found["/nowhere"]["status"] == 404
        assert found["/v1/models"]["client"] == "127.0.0.1"
        assert "secret" not in run.text


def test_without_it_no_request_is_logged(engine: str, tmp_path: Path) -> None:
    with logging_process(tmp_path, "serve", "--replica", engine, "--port", "0") as run:
        ask(f"{run.url}/v1/chat/completions", chat("n=3"))
        assert "/v1/chat" not in run.text.split("-d ", 1)[1]


def test_an_engine_has_one_too(tmp_path: Path) -> None:
    flags = ("--emulate", "h100-llama3-8b", "--port", "0", "--access-log")
    with logging_process(tmp_path, "engine", *flags) as run:
        ask(f"{run.url}/v1/completions", {"prompt": "x", "max_tokens": 2})
        run.until_said("headgate.access: POST /v1/completions 200 ")


def test_what_becomes_of_a_rollout_is_told(engine: str, tmp_path: Path) -> None:
    versions = [{"name": "v1", "model": "double", "weight": 1}, {"name": "v2", "model": "two"}]
    with double(model="two") as (_, other):
        replicas = [{"url": engine, "model": "double"}, {"url": other, "model": "two"}]
        config = write(tmp_path / "c.yaml", replicas=replicas, models=[{"name": "assistant", "versions": versions}])
        with logging_process(tmp_path, "serve", "--config", str(config), "--log-format", "json") as run:
            run.until(lambda: sum(line.get("condition") == "up" for line in run.objects()) == 2)
            asked = {"version": "v2", "mode": "split", "share": 0.2}
            assert ask(f"{run.url}/admin/rollout/assistant/start", asked)[0] == 200
            run.until(lambda: any(line.get("stage") == "split" for line in run.objects()))
            told = next(line for line in run.objects() if line.get("stage") == "split")
            assert told["message"].startswith("rollout of assistant: split at 20 %: ")
            assert (told["level"], told["model"], told["version"], told["share"]) == ("info", "assistant", "v2", 0.2)
