"""Runs the tests that should notice a mutant: the nearest first, until one fails.

Nearness is counted in imports: a test file that imports the mutated module is at 1, one that imports a module which
imports it at 2. A file named like the module goes first.
"""

import ast
import compileall
import contextlib
import io
import os
import py_compile
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from tests.mutants.lines import Mutant

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "headgate"
COPY = ROOT / "build" / "mutants" / "src"
TESTS = {
    "policy": ("tests/policy", "tests/invariants", "tests/sim"),
    "gateway": ("tests/gateway",),
    "wire": ("tests/wire",),
    "replica": ("tests/replica",),
    "measure": ("tests/observe",),
}
"""Folders of tests that judge the modules of a folder."""
NEAR_FILES = 6
"""Test files of the first round; the second has all others."""
ROUND_S = (150.0, 420.0)
"""Longest time of each round: on a machine that others use too."""
EXIT_FAILED = 1
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    killed: bool
    by: str
    """The test that noticed; empty: none did."""
    seconds: float


class Judge:
    def __init__(self, rounds: int = len(ROUND_S)) -> None:
        """`rounds` 1: only the nearest tests judge."""
        self._rounds = rounds
        self._imports = {name: _imported(path) for name, path in _modules().items()}
        self._sound: dict[str, bool] = {}
        """Tests that were run on the sources as they are, and whether they passed."""
        shutil.rmtree(COPY, ignore_errors=True)
        shutil.copytree(PACKAGE, COPY / "headgate", ignore=shutil.ignore_patterns("__pycache__"))
        # By their hash, not by time and size: a mutant has the size of what it replaces, within the same second.
        checked = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(COPY, quiet=1, invalidation_mode=checked)
        _warm_up()

    def judge(self, mutant: Mutant) -> Verdict:
        began = time.monotonic()
        file = COPY / "headgate" / mutant.path
        source = file.read_text(encoding="utf-8")
        near = self.nearest(mutant.path)
        file.write_text(mutant.applied(source), encoding="utf-8")
        try:
            for files, limit_s in list(zip((near[:NEAR_FILES], near[NEAR_FILES:]), ROUND_S, strict=True))[
                : self._rounds
            ]:
                if files and (by := self._noticed(files, limit_s, file, source)):
                    return Verdict(True, by, time.monotonic() - began)
            return Verdict(False, "", time.monotonic() - began)
        finally:
            file.write_text(source, encoding="utf-8")

    def nearest(self, path: str) -> list[str]:
        """Test files that judge a module, the nearest first."""
        module = "headgate." + path.removesuffix(".py").replace("/", ".")
        stem = Path(path).stem
        files = [file for folder in TESTS[path.split("/")[0]] for file in sorted((ROOT / folder).glob("test_*.py"))]
        return [
            str(file.relative_to(ROOT))
            for file in sorted(
                files, key=lambda file: (file.stem != f"test_{stem}", self._distance(file, module), file.stat().st_size)
            )
        ]

    def _distance(self, file: Path, module: str) -> int:
        seen: set[str] = set()
        edge = _imported(file)
        for distance in range(1, 8):
            if module in edge:
                return distance
            seen |= edge
            edge = {one for name in edge for one in self._imports.get(name, ())} - seen
        return 9

    def _noticed(self, files: list[str], limit_s: float, file: Path, source: str) -> str:
        """The first test that fails with the mutant and passes without it. A run that does not end in time counts as
        if no test had noticed."""
        left_out: list[str] = []
        until = time.monotonic() + limit_s
        while (left_s := until - time.monotonic()) > 1:
            code, printed = _pytest([*files, *(f"--deselect={test}" for test in left_out)], left_s)
            if code != EXIT_FAILED and not (code > 1 and _FAILED.search(printed)):
                return "the import" if code in (2, 3, 4) else ""
            found = _FAILED.search(printed)
            test = found[1] if found else ""
            if not test or self._passes_without(test, file, source):
                return test or "a crash"
            left_out.append(test)
        return ""

    def _passes_without(self, test: str, file: Path, source: str) -> bool:
        if test not in self._sound:
            mutated = file.read_text(encoding="utf-8")
            file.write_text(source, encoding="utf-8")
            try:
                self._sound[test] = _pytest([test], 120.0)[0] == 0
            finally:
                file.write_text(mutated, encoding="utf-8")
        return self._sound[test]


def _warm_up() -> None:
    """Imports what tests import from elsewhere, once: each run is then forked, and imports only the package and its
    tests. That is three quarters of what a run of a few tests takes."""
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(
            ["-q", "--collect-only", "-p", "no:cacheprovider", *sorted({one for of in TESTS.values() for one in of})]
        )
    for name in [name for name in sys.modules if name.split(".")[0] in ("headgate", "tests")]:
        if name != "tests" and not name.startswith("tests.mutants"):
            del sys.modules[name]


def _pytest(arguments: list[str], limit_s: float) -> tuple[int, str]:
    """Exit code and output of a run; -1: it took too long."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        child = os.fork()
        if not child:
            _become_pytest(arguments, output.fileno())
        ends = time.monotonic() + limit_s
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            if time.monotonic() > ends:
                os.killpg(child, signal.SIGKILL)  # with the gateways and engines that its tests started
                os.waitpid(child, 0)
                return -1, ""
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read()


def _become_pytest(arguments: list[str], output: int) -> NoReturn:
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(ROOT)
    os.environ.update(PYTHONPATH=str(COPY), PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    fixed = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-o", f"pythonpath={COPY} ."]
    code = 1
    try:
        code = int(pytest.main([*fixed, *arguments]))
    finally:
        sys.stdout.flush()
        os._exit(code)


def _modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    }


def _imported(path: Path) -> set[str]:
    """Modules of the package, and of the tests, that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.startswith(("headgate", "tests"))}
