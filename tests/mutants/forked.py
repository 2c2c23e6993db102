"""Runs some tests on a copy of the package, in a process forked from one that has imported everything else.

Each run imports the package and its tests anew; only pytest and what others wrote is imported once, before the fork. A
test that runs the package in a process of its own runs the copy too.
"""

import contextlib
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_MEMORY_BYTES = 12 << 30
"""A mutant may grow without end; the machine is shared."""
TIMED_OUT = ("Timeout >", "Timeout (>")
"""How pytest-timeout's failures begin."""


@dataclass(frozen=True)
class Failure:
    test: str
    timed_out: bool


@dataclass
class Run:
    failed: Failure | None = None
    """The first test that failed, or that was under way when the time was over."""
    broken: bool = False
    """A file of tests could not be imported, or the process died."""
    over: bool = False
    """It took too long."""
    began: list[str] = field(default_factory=list)
    """Tests in the order in which they were begun."""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not (self.failed or self.broken or self.over)


def warm_up(folders: Iterable[str]) -> None:
    """Imports what the tests of these folders import from elsewhere."""
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["-q", "--collect-only", "-p", "no:cacheprovider", *sorted(set(folders))])
    for name in [name for name in sys.modules if name.split(".")[0] in ("headgate", "tests")]:
        if name != "tests" and not name.startswith("tests.mutants"):
            del sys.modules[name]


def run_tests(copy: Path, tests: list[str], limit_s: float, plugin: object = None) -> Run:
    """Runs tests, or all of a file where its path is given, in this order until one fails. Tests of one file have to
    be neighbours. With `plugin` a failure does not end the run."""
    began_at = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as told:
        code = _fork(lambda: _become_pytest(copy, tests, plugin, told), limit_s)
        told.seek(0)
        run = Run(seconds=time.monotonic() - began_at, over=code is None)
        for line in told.read().splitlines():
            event = json.loads(line)
            if "began" in event:
                run.began.append(event["began"])
            elif "failed" in event:
                run.failed = run.failed or Failure(event["failed"], event["timed_out"])
            else:
                run.broken = True
    if run.over and run.began and not run.failed:
        run.failed = Failure(run.began[-1], True)
    if code not in (0, 1, None) and not run.failed:
        run.broken = True
    return run


def _fork(become: Callable[[], NoReturn], limit_s: float) -> int | None:
    """The exit code; None: it took too long. What a test has started is ended with it."""
    child = os.fork()
    if not child:
        os.setsid()
        become()
    ends = time.monotonic() + limit_s
    status = None
    while status is None and time.monotonic() < ends:
        ended, state = os.waitpid(child, os.WNOHANG)
        if ended:
            status = state
        else:
            time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
        return None
    return os.waitstatus_to_exitcode(status)


def _become_pytest(copy: Path, tests: list[str], plugin: object, told: IO[str]) -> NoReturn:
    code = 3
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        os.chdir(ROOT)
        os.environ.update(PYTHONPATH=str(copy), PYTHONDONTWRITEBYTECODE="1")
        sys.dont_write_bytecode = True
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        # An example that failed with one mutant is not to be tried first with the next.
        hypothesis = sys.modules["hypothesis"]  # pytest has to be the first to import it
        hypothesis.settings.register_profile("mutants", database=None)
        hypothesis.settings.load_profile("mutants")
        fixed = ["-q", "--tb=line", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-o", f"pythonpath={copy} ."]
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        plugins: list[object] = [Teller(tests, told)]
        if plugin is None:
            fixed.append("-x")
        else:
            plugins.append(plugin)
        code = int(pytest.main([*fixed, *files], plugins=plugins))
    finally:
        told.flush()
        os._exit(code)


class Teller:
    """Leaves out what was not asked for, and writes down what begins and fails as it does."""

    def __init__(self, tests: list[str], told: IO[str]) -> None:
        self._order = {test: place for place, test in enumerate(tests)}
        self._told = told

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = self._order
        asked = [item for item in items if item.nodeid in order or item.nodeid.partition("::")[0] in order]
        items[:] = sorted(asked, key=lambda item: order.get(item.nodeid, 0))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell({"broken": report.nodeid})

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell({"began": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            timed_out = any(word in str(report.longrepr) for word in TIMED_OUT)
            self._tell({"failed": report.nodeid, "timed_out": timed_out})

    def _tell(self, event: dict[str, object]) -> None:
        self._told.write(json.dumps(event) + "\n")
        self._told.flush()
