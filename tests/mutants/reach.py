"""Knows which tests run which lines of the package.

Each file of tests is run once, with what every test runs written down by coverage.py; that is kept in build/mutants
until the file changes. Where a module has changed since, its lines are found again by their text. What a fixture of a
module or a session runs counts for each test that uses the fixture, and what a process runs that a test has started
counts for each test of the file.
"""

import contextlib
import difflib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.mutants.forked import ROOT, run_tests

KEPT = ROOT / "build" / "mutants"
FILE_LIMIT_S = 400.0
LEAVES_S = 5.0
IMPORTED = ""
"""The context of lines that run while tests are collected."""


@dataclass(frozen=True)
class Reached:
    """What the tests of one file run."""

    seconds: dict[str, float]
    """How long each test took."""
    lines: dict[str, dict[str, int]]
    """By test: by module, its lines as bits."""
    imported: dict[str, int]
    """By module, lines that ran while the tests were collected."""
    beside: dict[str, int]
    """By module, lines that ran in processes which the tests started, if those could say so before they ended."""
    sources: dict[str, str]
    """By module, the hash of the text that these lines are of."""


class Reach:
    def __init__(self, copy: Path) -> None:
        self._copy = copy
        self._known: dict[str, Reached] = {}
        self._moved: dict[tuple[str, str], dict[int, int]] = {}

    def of(self, file: str) -> Reached:
        if file not in self._known:
            self._known[file] = self._read(file)
        return self._known[file]

    def running(self, file: str, module: str, lines: range) -> list[str]:
        """Tests of a file that run any of these lines."""
        reached = self.of(file)
        wanted = self._bits(reached, module, lines)
        return [test for test, ran in reached.lines.items() if ran.get(module, 0) & wanted]

    def importing(self, file: str, module: str, lines: range) -> bool:
        """Whether lines run while a file's tests are collected."""
        reached = self.of(file)
        return bool(reached.imported.get(module, 0) & self._bits(reached, module, lines))

    def beside(self, file: str, module: str, lines: range) -> list[str]:
        """The tests of a file if any of these lines ran in a process that one of them started."""
        reached = self.of(file)
        return list(reached.seconds) if reached.beside.get(module, 0) & self._bits(reached, module, lines) else []

    def using(self, file: str, module: str) -> list[str]:
        """Tests of a file that run anything of a module."""
        return [test for test, ran in self.of(file).lines.items() if ran.get(module)]

    def _bits(self, reached: Reached, module: str, lines: range) -> int:
        """These lines, numbered as they were when the tests were run."""
        before = reached.sources.get(module)
        text = (self._copy / "headgate" / module).read_text(encoding="utf-8")
        if before is None or before == _hash(text):
            return sum(1 << line for line in lines)
        if (before, module) not in self._moved:
            old = (KEPT / "sources" / before).read_text(encoding="utf-8").splitlines()
            blocks = difflib.SequenceMatcher(None, old, text.splitlines(), autojunk=False).get_matching_blocks()
            self._moved[before, module] = {at.b + n + 1: at.a + n + 1 for at in blocks for n in range(at.size)}
        moved = self._moved[before, module]
        return sum(1 << moved[line] for line in lines if line in moved)

    def _read(self, file: str) -> Reached:
        # The tests' helpers are not in the hash: what they run is found again when the file itself changes.
        kept = KEPT / "reach" / f"{file.replace('/', '.')}.{_hash((ROOT / file).read_text(encoding='utf-8'))}.json"
        if not kept.exists():
            began = time.monotonic()
            for stale in kept.parent.glob(f"{file.replace('/', '.')}.*.json"):
                stale.unlink(missing_ok=True)
            self._collect(file, kept)
            print(f"{file}: which lines it runs, found in {time.monotonic() - began:.0f} s", flush=True)
        return _told(json.loads(kept.read_text(encoding="utf-8")))

    def _collect(self, file: str, kept: Path) -> None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        recorder = Recorder(self._copy, kept)
        run_tests(self._copy, [file], FILE_LIMIT_S, recorder)
        if not kept.exists():
            raise RuntimeError(f"{file} did not come to its end on the sources as they are")
        for module in json.loads(kept.read_text(encoding="utf-8"))["sources"]:
            text = (self._copy / "headgate" / module).read_text(encoding="utf-8")
            store = KEPT / "sources" / _hash(text)
            store.parent.mkdir(exist_ok=True)
            store.write_text(text, encoding="utf-8")


class Recorder:
    """A plugin of pytest: writes down what each test and each fixture that is shared runs."""

    def __init__(self, copy: Path, kept: Path) -> None:
        self._package, self._kept = copy / "headgate", kept
        self._coverage = coverage.Coverage(data_file=None, config_file=False, source=[str(self._package)])
        self._seconds: dict[str, float] = defaultdict(float)
        self._fixtures: dict[str, list[str]] = {}
        self._beside = Path(tempfile.mkdtemp())

    def pytest_sessionstart(self) -> None:
        settings = self._beside / "settings"
        settings.write_text(
            f"[run]\nsource = {self._package}\ndata_file = {self._beside / 'data'}\nparallel = true\nsigterm = true\n"
        )
        os.environ["COVERAGE_PROCESS_START"] = str(settings)  # coverage.py looks for it in every Python that starts
        subprocess.Popen.kill = _end  # type: ignore[method-assign, assignment]
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        asked: Any = item
        defined = asked._fixtureinfo.name2fixturedefs
        self._fixtures[item.nodeid] = [
            _shared(found[-1]) for found in defined.values() if found and found[-1].scope != "function"
        ]
        self._coverage.switch_context(item.nodeid)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: pytest.FixtureRequest) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        self._coverage.switch_context(_shared(fixturedef))
        try:
            return (yield)
        finally:
            # The one that asked, whatever fixtures are between.
            self._coverage.switch_context(next(reversed(self._fixtures)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        ran: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        sources = {}
        for name in data.measured_files():
            path = Path(name)
            module = str(path.relative_to(self._package))
            sources[module] = _hash(path.read_text(encoding="utf-8"))
            for line, contexts in data.contexts_by_lineno(name).items():
                for context in contexts:
                    ran[context][module] |= 1 << line
        for test, fixtures in self._fixtures.items():
            for fixture in fixtures:
                for module, bits in ran.get(fixture, {}).items():
                    ran[test][module] |= bits
        lines = {
            context: {module: f"{bits:x}" for module, bits in of.items()}
            for context, of in ran.items()
            if context in self._seconds or context == IMPORTED
        }
        beside = {module: f"{bits:x}" for module, bits in self._ran_beside(sources).items()}
        text = json.dumps({"seconds": self._seconds, "lines": lines, "beside": beside, "sources": sources})
        unfinished = self._kept.with_suffix(f".{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.rename(self._kept)  # another judge may read it

    def _ran_beside(self, sources: dict[str, str]) -> dict[str, int]:
        ran: dict[str, int] = defaultdict(int)
        for path in self._beside.glob("data.*"):
            data = coverage.CoverageData(str(path))
            data.read()
            for name in data.measured_files():
                module = str(Path(name).relative_to(self._package))
                sources[module] = _hash(Path(name).read_text(encoding="utf-8"))
                for line in data.lines(name) or ():
                    ran[module] |= 1 << line
        shutil.rmtree(self._beside)
        return ran


def _end(process: subprocess.Popen[Any]) -> None:
    """Instead of a kill, with which a process could not say what it has run."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(LEAVES_S)
    process.send_signal(signal.SIGKILL)


def _shared(fixture: Any) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


def _told(kept: dict[str, Any]) -> Reached:
    lines = {context: {module: int(bits, 16) for module, bits in of.items()} for context, of in kept["lines"].items()}
    imported = lines.pop(IMPORTED, {})
    beside = {module: int(bits, 16) for module, bits in kept["beside"].items()}
    return Reached(kept["seconds"], lines, imported, beside, kept["sources"])


@cache
def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
