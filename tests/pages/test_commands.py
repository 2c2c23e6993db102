"""Every command that a document shows is run, or, where it needs what a test has not, is parsed and named here."""

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cyclopts import CoercionError, CycloptsError, MissingArgumentError, ValidationError

from headgate.__main__ import app
from headgate.config.file import parse
from tests.pages.blocks import ROOT, Command, blocks, commands, mentioned, of
from tests.pages.session import Session, as_pattern

SESSIONS = ("docs/start.md", "docs/tutorial.md")
"""Pages that are typed from their first command to their last."""
OFFLINE = re.compile(
    r"headgate (?:--version|engine --help|init |key|export (?!usage)|simulate |plan |serve .*--check)"
    r"|sha256sum|printf"
)
LIVE = re.compile(
    r"headgate (?:doctor$|slow|fleet$|blame|incident|batch|top|bench (?:compare|http://127\.0\.0\.1))|curl "
)
NOT_RUN = {
    r"^make ": "part of the tests, or sets up what they run in; its target is looked up",
    r"^(?:pip|python3 -m venv|podman|docker) ": "installs, or builds an image; make test-wheel installs the wheels",
    r"(?:^|[|&] )(?:kubectl|helm) ": "needs a cluster; in tests/export schemas and Helm judge what is applied",
    r"^ray ": "needs a Ray cluster; tests/fleet has one",
    r"^mkdir -p /tmp/vllm-metrics$": "a folder for another engine",
    r"^(?:\w+=\S+ )?(?:vllm|python -m sglang\.launch_server|llama-server) ": "another engine, mostly on a GPU",
    r"^export PATH=": "the tests have a path of their own",
    r"headgate (?:serve --replica|tune) .*http://10\.": "engines on other machines",
    r"headgate serve --config headgate\.yaml(?: --(?:record run\.jsonl|workers 4))?$": "replicas on other machines",
    r"headgate serve --vllm ": "needs vLLM; tests/fleet starts a stand-in, tests/vllm the real one on a CPU",
    r"headgate epp --config": "its replicas are on other machines; tests/epp has a picker behind a real Envoy",
    r"(?:--url https://|--key \"\$ADMIN_KEY\")": "a gateway on another machine",
    r"headgate (?:serve|engine) .*--?model (?:path/to/)?model\.gguf": "a model of the reader's own",
    r"headgate fit ": "wants a step log of many steps; tests/sim fits one",
    r"headgate why 7f3a91c0de-1b42": "run in the sessions, where there is such a request",
    r"/admin/rollout/chat/scores": "wants a rollout under way; tests/gateway/test_scores.py has one",
    r"--load azure-code --rate": "an hour of recorded requests",
    r"poisson:rate=60,prompt=800": "half a minute of one core; the same with a smaller load is run",
    r"--event-log run\.jsonl": "tests/sim/test_replay.py replays a run of a gateway",
    r"^headgate engine --emulate h100-llama3-8b$": "run in a session, with a port",
    r"benchmarks/|^for |HEADGATE_": "measures, for minutes to hours",
}
"""Commands that are parsed and not run, by pattern, and why."""
LONG = {'headgate plan --load "poisson:rate=20,prompt=800,output=200" --price 3 --requests 1000 --draws 1'}
"""Commands that several pages have and that take long: they are run in a session only."""
SHORTER = (("--duration 60", "--duration 2 --allow-lag"), ("HOST:PORT", "127.0.0.1:8001"))
"""What a live command is run with instead."""


def reason(command: Command) -> str | None:
    """Why a command is not run; None: it is run."""
    if command.is_root:
        return "needs root"
    if command.page in SESSIONS and not command.bare.startswith(("make ", "export PATH=")):
        return None
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command.bare)), None)


def problem(words: list[str]) -> str | None:
    """What is wrong with a command line of `headgate`, by its own parser; None: nothing, but for placeholders."""
    given = [word.replace("|", "") for word in words if word not in ("…", "...") and word != "&"]
    try:
        app.parse_args(given, exit_on_error=False, print_error=False)
    except (MissingArgumentError, CoercionError, ValidationError):
        return None  # an argument is left to the reader, or a word such as N stands for it
    except CycloptsError as error:
        return f"{type(error).__name__}: headgate {' '.join(given)}: {error}"
    return None


def of_headgate(command: Command) -> Iterator[list[str]]:
    for words in command.words:
        if words[0] == "headgate":
            yield words[1:]


def test_there_are_commands_and_each_is_run_or_named() -> None:
    assert len(commands()) > 90
    unnamed = [f"{each.page}: {each.text}" for each in commands() if reason(each) is None and not _runs(each)]
    assert unnamed == []


def test_no_command_that_is_run_writes_outside_of_its_folder() -> None:
    run = [each for each in commands() if reason(each) is None]
    assert [
        each.bare for each in run if re.search(r">\s*[/~]|\b(?:sudo|rm|cp|mv|mkdir|tee|systemctl)\b", each.bare)
    ] == []


def _runs(command: Command) -> bool:
    return command.page in SESSIONS or bool(OFFLINE.search(command.bare) or LIVE.search(command.bare))


def test_every_reason_is_of_a_command() -> None:
    unused = [pattern for pattern in NOT_RUN if not any(re.search(pattern, each.bare) for each in commands())]
    assert unused == []


def test_every_command_of_headgate_is_one_that_it_takes() -> None:
    shown = [problem(words) for command in commands() for words in of_headgate(command)]
    said = [problem(text.replace("'", "").replace('"', "").split()[1:]) for _, text in mentioned()]
    assert len(said) > 80
    assert [one for one in (*shown, *said) if one] == []


@pytest.mark.parametrize("text", ["serve --replcia http://a:1", "explode", "rollout strat chat v2"])
def test_a_command_that_it_does_not_take_is_found(text: str) -> None:
    assert problem(text.split())


def test_every_target_of_make_is_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [path.read_text() for path in (ROOT / "docs").rglob("*.md")] + [(ROOT / "README.md").read_text()]
    said = [words for command in commands() for words in command.words if words[0] == "make"]
    said += [found.split() for text in texts for found in re.findall(r"`(make [a-z][^`]*)`", text)]
    named = {word for words in said for word in words[1:] if re.fullmatch(r"[a-z][a-z-]*", word)}
    assert len(named) > 8
    assert named - targets == set()


def test_every_line_is_one_that_a_shell_reads() -> None:
    for command in commands():
        done = subprocess.run(["bash", "-n", "-c", command.text], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command.page}: {command.text}: {done.stderr}"


def test_every_file_that_is_shown_is_fine() -> None:
    seen = {"yaml": 0, "json": 0, "python": 0}
    for block in blocks():
        if block.language == "yaml" and block.title in ("", "headgate.yaml"):
            parse(block.text, block.page)
        elif block.language == "yaml":
            assert list(yaml.safe_load_all(block.text)), block.page
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "python":
            ast.parse(block.text)
        if block.language in seen:
            seen[block.language] += 1
    assert min(seen.values()) >= 1
    assert seen["yaml"] > 10


def test_pages_scripts_are_read_by_node(tmp_path: Path) -> None:
    if not (node := shutil.which("node")):
        pytest.skip("node is not here")
    for block in blocks():
        if block.language == "js":
            (tmp_path / "block.js").write_text(block.text)
            subprocess.run([node, "--check", "block.js"], cwd=tmp_path, check=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", SESSIONS)
def test_a_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    _need("curl", "sha256sum")
    session = Session(tmp_path)
    try:
        for block in of(page):
            if block.title:
                session.write(block)
            elif block.language == "python":
                assert len(session.python(block.text)) > 5
            elif block.language == "console":
                for command in block.commands():
                    if reason(command) is None:
                        session.run(command)
    finally:
        session.close()


@pytest.mark.timeout(300)
def test_all_other_commands_say_what_their_pages_show(tmp_path: Path) -> None:
    """Those that need no server in the folder of their page, those that ask a gateway in front of one."""
    _need("curl", "sha256sum")
    session, done = Session(tmp_path), set()
    in_sessions = {each.bare for each in commands() if each.page in SESSIONS}
    try:
        session.run(Command("", "headgate engine --emulate h100-llama3-8b --port 8001", ""))
        session.run(Command("", "headgate serve --replica http://127.0.0.1:8001", ""))
        session.run(Command("", "headgate incident record", ""))  # one, for those that are shown
        page = ""
        for block in blocks():
            if block.page != page:
                page = block.page
                shutil.copy(ROOT / "headgate.example.yaml", tmp_path / "headgate.yaml")
            if block.title:
                (tmp_path / block.title).write_text(block.text)
            elif block.language == "python" and "websockets" in block.text:
                assert len(session.python(block.text)) > 5
            for command in block.commands() if block.language == "console" and block.page not in SESSIONS else ():
                told = (command.bare, command.shown)
                if reason(command) is None and told not in done and not (LONG & in_sessions & {command.bare}):
                    done.add(told)
                    if command.bare.startswith("headgate init"):
                        (tmp_path / "headgate.yaml").unlink()  # it overwrites nothing
                    session.run(_shorter(command) if LIVE.search(command.bare) else command)
    finally:
        session.close()
    assert len(done) > 15


def _shorter(command: Command) -> Command:
    text = command.bare
    for given, instead in SHORTER:
        text = text.replace(given, instead)
    return Command(command.page, text, command.shown)


def _need(*programs: str) -> None:
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"{program} is not here")


def test_figures_may_differ_and_words_may_not() -> None:
    shown = as_pattern("fast: 40.3 % of 491 requests … first 66 ms in a70508523e-308")
    assert shown.search("✓ fast:  7 %  of 1 093 requests\n answered, first 1.2 s in 0a0508523e-9 .")
    assert not shown.search("slow: 40.3 % of 491 requests answered, first 66 ms in a70508523e-308")
    assert not shown.search("fast: none of 491 requests answered, first 66 ms in a70508523e-308")
