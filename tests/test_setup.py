"""The first minutes: a config that is asked for or takes flags, keys, help with examples, and completion in a shell."""

import hashlib
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App
from jsonschema import Draft202012Validator

from headgate.__main__ import app
from headgate.cli.setup import init
from headgate.cli.setup.examples import EXAMPLES
from headgate.cli.setup.lines import run
from headgate.config.file import load
from headgate.config.forms.schema import schema
from headgate.model.errors import UsageError
from tests.engine.process import TESTED, ask
from tests.gateway.test_gateway import chat, double
from tests.operating.logged import logging_process
from tests.test_config_forms import as_json

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert run(app, words) == status
    return capsys.readouterr().out


# -- init -----------------------------------------------------------------------------------------------------------


INITS = [
    "",
    "--port 9000",
    "--replica http://10.0.0.7:8000 --replica unix:/run/x.sock",
    "--tenant acme --tenant nightly --host 0.0.0.0",
    "--admin",
    "--example",
]


@pytest.mark.parametrize("flags", INITS)
def test_what_init_writes_is_a_config_and_says_what_was_asked_for(
    flags: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "wrote headgate.yaml" in said(capsys, "init", *flags.split())
    assert said(capsys, "serve", "--check", "--config", "headgate.yaml").startswith("ok: ")
    config = load(Path("headgate.yaml"))
    if "--replica" in flags:
        assert [one.url for one in config.replicas] == ["http://10.0.0.7:8000", "unix:/run/x.sock"]
    if "--port" in flags:
        assert config.listen.port == 9000
    text = Path("headgate.yaml").read_text()
    assert list(Draft202012Validator(schema()).iter_errors(as_json(text))) == []
    assert sum(line.lstrip().startswith("#") for line in text.splitlines()) > 10


def test_keys_are_shown_once_and_only_their_hashes_written(capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, "init", "--tenant", "acme")
    keys = dict(re.findall(r"^  (\w+) +(hg-\S+)$", told, re.MULTILINE))
    assert keys.keys() == {"acme", "admin"}
    config = load(Path("headgate.yaml"))
    assert config.tenants[0].key_sha256 == (hashlib.sha256(keys["acme"].encode()).hexdigest(),)
    assert config.admin_keys == (hashlib.sha256(keys["admin"].encode()).hexdigest(),)
    assert "hg-" not in Path("headgate.yaml").read_text()


def test_what_is_commented_out_can_be_switched_on(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "init")
    text = re.sub(r"^#(?! \S|$)", "", Path("headgate.yaml").read_text(), flags=re.MULTILINE)
    text = re.sub(r"^replicas:\n(  .*\n)+", "", text, flags=re.MULTILINE)  # not together with embedded
    Path("on.yaml").write_text(text)
    config = load(Path("on.yaml"), {"HEADGATE_WEBHOOK": "https://example.com/hook"})
    assert config.observe.webhook == "https://example.com/hook"
    assert config.tenants[0].requests_per_min == 600


def test_a_file_is_never_overwritten_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text("mine")
    said(capsys, "init", "mine.yaml", status=2)
    assert Path("mine.yaml").read_text() == "mine"
    said(capsys, "init", "mine.yaml", "--force")
    assert "mine" not in Path("mine.yaml").read_text()


def test_it_asks_where_a_person_sits_at_a_terminal() -> None:
    answers = iter(["http://a:1 http://b:2", "9000", "yes", "acme nightly"])
    asked: list[str] = []

    def answer(question: str, usual: str) -> str:
        asked.append(question)
        return next(answers) or usual

    chosen = init.ask_for(answer)
    assert chosen == init.FirstConfig(
        replicas=("http://a:1", "http://b:2"), host="0.0.0.0", port=9000, tenants=("acme", "nightly")
    )
    assert len(asked) == 4
    with pytest.raises(UsageError, match="port"):
        init.ask_for(lambda question, usual: "eight" if "Port" in question else usual)


@pytest.mark.timeout(60)
def test_what_it_writes_serves_and_its_keys_open_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with double() as (_, engine):
        told = said(capsys, "init", "--replica", engine, "--tenant", "acme", "--port", "0")
        keys = dict(re.findall(r"^  (\w+) +(hg-\S+)$", told, re.MULTILINE))
        with logging_process(tmp_path, "serve", "--config", "headgate.yaml") as run_:
            where = f"{run_.url}/v1/chat/completions"
            assert ask(where, chat("n=1"))[0] == 401
            assert ask(where, chat("n=1"), {"authorization": f"Bearer {keys['acme']}"})[0] == 200
            assert ask(f"{run_.url}/admin/doctor", None, {"authorization": f"Bearer {keys['admin']}"})[0] == 200


# -- key ------------------------------------------------------------------------------------------------------------


def test_a_key_comes_with_the_hash_that_a_config_takes(capsys: pytest.CaptureFixture[str]) -> None:
    made = json.loads(said(capsys, "key", "--json"))
    assert made["key_sha256"] == hashlib.sha256(made["key"].encode()).hexdigest()
    told = said(capsys, "key")
    key, digest = re.findall(r"^(?:key|hash) +(\S+)$", told, re.MULTILINE)
    assert digest == hashlib.sha256(key.encode()).hexdigest()
    assert key not in (made["key"], "")
    assert len(key) > 40
    snippet = next(line for line in told.splitlines() if line.startswith("tenants:"))
    Path("c.yaml").write_text(snippet.replace("NAME", "acme"))
    assert load(Path("c.yaml")).tenants[0].key_sha256 == (digest,)


def test_a_key_that_is_there_already_is_hashed_and_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("mine\n"))
    assert said(capsys, "key", "--hash") == hashlib.sha256(b"mine").hexdigest() + "\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("two words\n"))
    said(capsys, "key", "--hash", status=2)


# -- what ships with it ------------------------------------------------------------------------------------------


def test_the_example_and_the_schema_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "export", "example") == (ROOT / "headgate.example.yaml").read_text()
    assert json.loads(said(capsys, "export", "schema")) == json.loads(json.dumps(schema()))


# -- help ------------------------------------------------------------------------------------------------------------


def commands(found: App, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    yield words, found
    for name in found:
        if not name.startswith("-"):
            yield from commands(found[name], (*words, name))


ALL = dict(commands(app))


def test_every_command_has_an_example_and_every_example_a_command() -> None:
    assert {" ".join(words) for words in ALL} == set(EXAMPLES)


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_every_example_is_a_command_line(line: str) -> None:
    (part,) = (part for part in line.split(" | ") if "headgate " in part)
    words = shlex.split(part.partition(" > ")[0])
    assert words[0] == "headgate"
    _, bound, _ = app.parse_args(words[1:], exit_on_error=False, print_error=False)
    assert isinstance(bound, inspect.BoundArguments)


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_shows_no_default_that_only_python_knows(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = said(capsys, *words, "--help")
    assert not re.search(r"\[default: (\(.*|None|False|True|\"\"|'.*)\]", told)
    assert "Example" in told
    assert all(line in told for line in EXAMPLES[" ".join(words)])


def test_help_begins_with_what_is_used_most(capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, "serve", "--help")
    options = re.findall(r"(--[a-z-]+)", told[told.index("Start with these") :])
    assert options[:3] == ["--replica", "--config", "--port"]
    root = said(capsys, "--help")
    groups = ["Run", "See what it does", "Operate", "Measure", "Decide", "Fit in with other tools", "More"]
    assert [root.index(f"─ {name} ─") for name in groups] == sorted(root.index(f"─ {name} ─") for name in groups)


@pytest.mark.parametrize("command", ["serve", "epp"])
def test_a_reload_keeps_what_was_said_on_the_command_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ran = tmp_path / "c.yaml", list[Any]()
    path.write_text("replicas: [{url: http://127.0.0.1:1}]\nlisten: {drain_s: 3}\n")
    monkeypatch.setattr("headgate.wiring.gateway.run_gateway", lambda *given: ran.append(given))
    app([command, "--config", str(path), "--port", "1234"], result_action="return_value")
    ((config, _, reload, *_),) = ran
    assert reload() == config
    path.write_text(path.read_text().replace("drain_s: 3", "drain_s: 4"))
    assert (reload().listen.port, reload().listen.drain_s) == (1234, 4.0)


def test_make_help_lists_what_people_call() -> None:
    make = ["make", "--no-print-directory", "help"]
    told = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(line.startswith("make ") for line in told.splitlines())
    targets = re.findall(r"\.PHONY: (.*)", (ROOT / "Makefile").read_text())[0].split()
    assert {name for name in targets if not re.search(rf"make {name}\b", told)} == {"components"}


# -- completion ------------------------------------------------------------------------------------------------------


def completed(*words: str, script: Path) -> set[str]:
    """What bash offers for the last of these words."""
    line = f"""
        source {script}
        COMP_WORDS=({" ".join(shlex.quote(word) for word in words)})
        COMP_CWORD={len(words) - 1}
        COMP_LINE={shlex.quote(" ".join(words))}
        COMP_POINT=${{#COMP_LINE}}
        spec=$(complete -p headgate)
        function=${{spec##*-F }}
        "${{function%% *}}" headgate {shlex.quote(words[-1])} {shlex.quote(words[-2])}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "--norc", "-c", line], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_bash_really_completes_commands_options_and_choices(tmp_path: Path) -> None:
    script = tmp_path / "headgate.bash"
    env = {**os.environ, "PYTHONPATH": TESTED}
    command = [sys.executable, "-m", "headgate", "completion", "bash"]
    script.write_bytes(subprocess.run(command, capture_output=True, check=True, env=env).stdout)
    assert {"serve", "simulate", "slow"} <= completed("headgate", "s", script=script)
    assert "init" not in completed("headgate", "s", script=script)
    assert {"--replica", "--replica-key-file"} <= completed("headgate", "serve", "--rep", script=script)
    assert {"start", "status"} <= completed("headgate", "rollout", "st", script=script)
    assert completed("headgate", "serve", "--log-format", "j", script=script) == {"json"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_that_names_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, "completion", shell)
    assert all(words[0] in told for words in ALL if words)
