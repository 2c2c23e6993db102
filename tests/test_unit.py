"""The unit for systemd starts what the docs say, drains as long as the config does, and systemd takes it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.__main__ import app
from headgate.config.listen import ListenConfig

UNIT = Path(__file__).resolve().parent.parent / "packaging" / "headgate.service"
TEXT = UNIT.read_text()
MOST_EXPOSED = 3.0
"""Highest exposure, of ten, by `systemd-analyze security`, which calls a unit OK up to there."""


def values(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", TEXT, re.MULTILINE)


def test_what_it_runs_is_a_command() -> None:
    for line in (*values("ExecStart"), *values("ExecStartPre")):
        program, *words = line.split()
        assert program == "/opt/headgate/bin/headgate"
        app.parse_args(words, exit_on_error=False, print_error=False)
    assert "--check" in values("ExecStartPre")[0]
    assert values("ExecReload") == ["/bin/kill -HUP $MAINPID"]


def test_running_answers_may_finish() -> None:
    assert float(values("TimeoutStopSec")[0]) >= ListenConfig().drain_s + 5
    assert values("KillMode") == ["mixed"]


def test_the_docs_install_it_where_it_looks() -> None:
    text = (UNIT.parents[1] / "docs" / "install.md").read_text()
    assert "python3 -m venv /opt/headgate" in text
    assert "/etc/headgate/" in text
    assert "packaging/headgate.service" in text


def test_systemd_takes_it_and_finds_it_little_exposed(tmp_path: Path) -> None:
    if not (analyze := shutil.which("systemd-analyze")):
        pytest.skip("systemd-analyze is not here")
    unit = tmp_path / "headgate.service"
    unit.write_text(TEXT.replace("/opt/headgate/bin/headgate", sys.executable))
    checked = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    judged = subprocess.run(
        [analyze, "security", "--offline=true", unit], capture_output=True, text=True, check=False
    ).stdout  # fmt: skip
    level = re.search(r"exposure level for headgate\.service: ([\d.]+)", judged)
    assert level is not None, judged
    assert float(level[1]) <= MOST_EXPOSED
