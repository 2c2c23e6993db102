"""Mistakes that people make: each gives one clear line that names the thing and what to do, and the right status.

2: the command line, a file that it names, or the config has to be changed. 1: something else is in the way.
"""

import http.server
import io
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headgate.__main__ import app
from headgate.cli.setup.lines import run
from tests.engine.process import TESTED

MISUSED, FAILED = 2, 1
NOWHERE = "http://127.0.0.1:1"


@dataclass(frozen=True)
class Mistake:
    words: str
    """The command line; FILE stands for a file with `text`."""
    says: tuple[str, ...]
    status: int = MISUSED
    text: str | bytes = ""


def config(text: str, *says: str) -> Mistake:
    return Mistake("serve --check --config FILE", says, text=text)


MISTAKES = [
    # -- words
    Mistake("serv", ('unknown command "serv"', 'Did you mean "serve"?')),
    Mistake("serve --prot 1", ("--prot", "Did you mean --port?")),
    Mistake("serve extra", ("serve has no place for 'extra'",)),
    Mistake("serve --replica", ("--replica requires an argument",)),
    Mistake("serve --port x", ("--port", "expected a whole number, got 'x'")),
    Mistake("serve --port 99999", ("99999", "--port", "65535")),
    Mistake("serve --engines -1", ("-1", "--engines", ">= 1")),
    Mistake("serve --log-level loud", ("loud", "--log-level", '"debug"')),
    Mistake("fleet drian gpu-a", ("fleet has no place for 'drian'", "did you mean drain?")),
    Mistake("export shema", ("shema", 'Did you mean "schema"?')),
    Mistake("why", ("REQUEST-ID is missing",)),
    Mistake("rollout start assistant", ("VERSION is missing",)),
    Mistake("simulate", ("--load requires an argument",)),
    Mistake("completion tcsh", ("tcsh", '"bash"')),
    Mistake("plan --load poisson:rate=1 --price -3", ("-3", "--price", ">= 0")),
    Mistake("epp", ("--replica URL, or --config FILE",)),
    Mistake("epp --config FILE", ("no replicas in the config",), text="listen: {port: 0}\n"),
    # -- addresses
    Mistake("serve --check --replica 10.0.0.7:8000", ("--replica", "did you mean http://10.0.0.7:8000?")),
    Mistake("serve --check --replica ftp://h", ("--replica", "such as http://host:8000", "'ftp://h'")),
    Mistake("serve --check --replica http://h:1/v1/chat/completions", ("--replica", "leave out the path: http://h:1")),
    Mistake("why x --url nonsense://", ("--url", "such as http://127.0.0.1:8000")),
    Mistake("export nginx --gateway nowhere", ("--gateway", "host:port")),
    Mistake(f"why x --url {NOWHERE}/v1", (f"can't reach {NOWHERE}: Connection refused", "headgate serve"), FAILED),
    Mistake(f"bench {NOWHERE} --requests 1", (f"{NOWHERE} can't be reached: connection refused",), FAILED),
    Mistake("serve --check --host 0.0.0.0", ("0.0.0.0", "no API key is configured", "--insecure")),
    Mistake("serve --check --uds /tmp/x --port 1", ("--uds is instead of --host and --port",)),
    # -- what does not go together
    Mistake("serve --watch", ("--watch", "give --config FILE")),
    Mistake("serve --check --replica http://h --slots 4", ("engine options have no effect",)),
    Mistake("serve --check --engines 2 --replica http://h", ("--engines has no effect",)),
    Mistake("serve --check --replica-key-file k", ("--replica-key-file is for --replica",)),
    Mistake("engine --cold-start 5m", ("--cold-start has no effect without --emulate",)),
    Mistake("engine --emulate h100-llama3-8b --lora FILE", ("no effect with --emulate",)),
    Mistake("engine --context 64 --max-tokens 5000", ("--max-tokens", "64 tokens", "raise context or lower this")),
    Mistake("engine --slots 0", ("--slots", "from 1 to 100000")),
    Mistake("engine --emulate b200", ("no profile 'b200'", "h100-llama3-8b")),
    # -- times and shares
    Mistake("engine --gap-target-ms soon", ("--gap-target-ms", "such as 200ms or 0.2s", "'soon'")),
    Mistake("simulate --load poisson:rate=1 --duration soon", ("--duration", "such as 90s, 5m or 1h", "'soon'")),
    Mistake(f"slow --last parsec --url {NOWHERE}", ("--last", "such as 90s, 5m or 1h")),
    Mistake("rollout start a b --share 120%", ("--share", "from 0 to 1, or a percentage", "'120%'")),
    Mistake("slow --limit -1", ("-1", "--limit")),
    Mistake(f"bench {NOWHERE} --rate -1", ("--rate", "> 0")),
    Mistake("simulate --load poisson:rate=1 --replicas 0", ("--replicas", ">= 1")),
    # -- files
    Mistake("serve --config absent.yaml", ("absent.yaml: No such file or directory", "headgate init")),
    Mistake("serve --config FOLDER", ("Is a directory", "headgate init")),
    Mistake("serve --check --replica http://h --replica-key-file absent", ("can't read its api_key_file absent",)),
    Mistake("engine --model absent.gguf", ("--model: absent.gguf is not there", "GGUF")),
    Mistake("engine --model FOLDER", ("is a folder", "GGUF")),
    Mistake("engine --port 0 --model FILE", ("is not a GGUF file", "convert_hf_to_gguf.py"), FAILED, "just some notes"),
    Mistake("replay FILE", ("is empty: there is nothing to replay", "--event-log")),
    Mistake("replay FILE", ("is no event log",), text="hello\n"),
    Mistake("replay absent.log", ("can't read absent.log: No such file or directory",)),
    Mistake("simulate --load file:absent.jsonl", ("absent.jsonl can't be read: No such file or directory",)),
    Mistake("simulate --load poisson:rate=1 --json nowhere/x.json", ("nowhere/x.json can't be written", "no folder")),
    Mistake("bench compare FILE FILE", ("is no JSON",), text="listen: {}"),
    Mistake("fit FILE out.json", ("line 1: not the header of a step log",)),
    Mistake("init FILE", ("is there already", "--force"), text="x"),
    Mistake("init nowhere/x.yaml", ("nowhere/x.yaml can't be written", "there is no folder")),
    Mistake("export helm /proc/chart", ("/proc/chart: ", "choose another"), FAILED),
    Mistake("export grafana --config FOLDER", ("Is a directory",)),
    # -- loads and promises
    Mistake("simulate --load nonsense", ("'nonsense'", "there are poisson")),
    Mistake("simulate --load poisson:rat=1", ("'rat=1'", "did you mean 'rate'?")),
    Mistake("simulate --load poisson:rate=-1", ("rate is a number above 0", "'-1'")),
    Mistake("plan --load poisson:rate=1 --slo fast:p99", ("'fast:p99'", "such as fast:ttft:p99:0.5")),
    Mistake("simulate --load poisson:rate=1 --fail x", ("REPLICA@SECONDS",)),
    Mistake(f"tune {NOWHERE} --sla ttft", ("--sla is like ttft:500",)),
    # -- keys
    Mistake("key --hash", ("there is no key on standard input", "headgate key --hash")),
    Mistake("init x.yaml --host 0.0.0.0", ("--host", "add --tenant NAME")),
    Mistake("init x.yaml --replica 10.0.0.7:8000", ("--replica", "did you mean http://10.0.0.7:8000?")),
    Mistake(f"bench {NOWHERE} --key env:NOT_SET_ANYWHERE", ("--key", "the environment has no NOT_SET_ANYWHERE")),
    # -- the config
    config("listen:\n\tport: 1\n", ":2: a tab", "indented with spaces"),
    config("- a\n- b\n", ":1: expected a mapping, got a list"),
    config("lisen: {}\n", ":1: lisen: unknown key; did you mean listen?"),
    config("listen: {port: 1}\nlisten: {port: 2}\n", ":2: listen: given twice, first on line 1"),
    config('{"listen": {"port": 1,}\n', ":2: not YAML: "),
    config("listen: {port: eight}\n", ":1: listen.port: expected a whole number", "'eight'"),
    config("timeouts:\n  stall_s: 5 minutes\n", ":2: timeouts.stall_s: ", "a time such as 5m", "'5 minutes'"),
    config("lanes: {fast: {reserve: 25%}}\n", ":1: lanes.fast.reserve: ", "write 0.25"),
    config("retry: {attempts: -1}\n", ":1: retry.attempts: expected a whole number from 1 to 10, got -1"),
    config("embedded: {truncate: yes}\n", ":1: embedded.truncate: expected true or false, got 'yes'"),
    config("tenants: {a: {key_sha256: [sk-plain]}}\n", ":1: tenants.a.key_sha256[0]: ", "`headgate key --hash`"),
    config("tenants: {a: {}}\n", ":1: tenants.a.key_sha256: expected at least one key"),
    config(f"admin_keys: [{'A' * 64}]\n", ":1: admin_keys[0]: ", "write it in lowercase"),
    config("replicas: [{url: 10.0.0.7:8000}]\n", ":1: replicas[0].url: ", "did you mean http://10.0.0.7:8000?"),
    config("replicas:\n- url: '${NOT_SET_ANYWHERE}'\n", ":2: ", "the environment has no NOT_SET_ANYWHERE"),
    config("listen: {port: '${PORT'}\n", ":1: expected ${NAME} or ${NAME:-default}"),
    config("shared: {redis_file: absent}\n", ":1: shared.redis_file: can't read absent: No such file"),
    config("embedded: {context: 64, default_max_tokens: 100}\n", ":1: embedded.default_max_tokens: ", "raise context"),
    Mistake("serve --check --config FILE", ("not UTF-8 text",), text=b"\xff\xfe"),
]


def words_of(mistake: Mistake, folder: Path) -> list[str]:
    file = folder / "file"
    if "FILE" in mistake.words.split():
        file.write_bytes(mistake.text if isinstance(mistake.text, bytes) else mistake.text.encode())
    places = {"FILE": str(file), "FOLDER": str(folder)}
    return [places.get(word, word) for word in mistake.words.split()]


def the_line(said: str) -> str:
    """The one line that it ends with. Before it there may be a banner."""
    lines = [line for line in said.splitlines() if line.startswith("headgate: ")]
    assert len(lines) == 1, said
    assert said.rstrip().endswith(lines[0]), said
    assert "Traceback" not in said
    return lines[0]


def test_there_are_sixty_of_them() -> None:
    assert len(MISTAKES) >= 60
    assert len({(one.words, one.text) for one in MISTAKES}) == len(MISTAKES)


@pytest.mark.parametrize(
    "mistake", MISTAKES, ids=lambda one: one.words if one.text == "" else f"{one.words} {one.text!r}"
)
def test_each_gives_one_clear_line_and_the_right_status(
    mistake: Mistake, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run(app, words_of(mistake, tmp_path)) == mistake.status
    told = capsys.readouterr()
    line = the_line(told.err)
    assert all(part in line for part in mistake.says), line
    assert "sk-plain" not in told.err + told.out


# -- as a process of its own -----------------------------------------------------------------------------------


def ended(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONPATH": TESTED}
    command = [sys.executable, "-m", "headgate", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=30, input=stdin)


@pytest.mark.parametrize("command", ["serve", "engine"])
def test_a_port_in_use_is_named(command: str) -> None:
    more = ("--replica", NOWHERE) if command == "serve" else ("--emulate", "h100-llama3-8b")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = ended(command, "--port", port, *more)
    assert done.returncode == FAILED
    assert the_line(done.stderr) == (
        f"headgate: can't listen on 127.0.0.1:{port}: Address already in use; choose another with --port"
    )


@pytest.mark.parametrize(
    "words", [("serve", "--prot", "1"), ("serve", "--config", "absent.yaml"), ("replay", "absent")]
)
def test_a_misused_process_ends_with_2(words: tuple[str, ...]) -> None:
    done = ended(*words)
    assert done.returncode == MISUSED
    assert done.stdout == ""
    assert the_line(done.stderr)


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m headgate export schema | head -1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": TESTED}, timeout=30
    )
    assert done.stdout == "{\n"
    assert done.stderr == ""


def test_a_record_that_can_not_be_written_is_named_before_anything_listens(tmp_path: Path) -> None:
    done = ended("serve", "--replica", NOWHERE, "--port", "0", "--record", str(tmp_path / "no" / "x.jsonl"))
    assert done.returncode == FAILED
    assert "create its folder" in the_line(done.stderr)


# -- another server where the gateway should be ------------------------------------------------------------------


@pytest.fixture
def other() -> Iterator[str]:
    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("command", ["why x", "slow", "doctor", "fleet", "rollout status"])
def test_another_server_there_is_told(command: str, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, [*command.split(), "--url", other]) == FAILED
    assert "is this the gateway's own address?" in the_line(capsys.readouterr().err)
