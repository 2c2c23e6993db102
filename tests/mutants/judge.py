"""Finds out whether a mutant is noticed: runs the tests of its folders that run the changed line, until one fails.

The file of tests that is named like the module goes first, then those that take the least time for a test. A failure
counts if the same test passes without the mutant; where the test uses sockets or ran out of time, it also has to fail
with the mutant a second time. A test that ran out of time counts only if it takes a small part of that time without the
mutant. So what fails because the machine is busy is not taken for a mutant's end.
"""

import ast
import compileall
import py_compile
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.forked import ROOT, Failure, run_tests, warm_up
from tests.mutants.lines import Mutant
from tests.mutants.reach import KEPT, Reach

PACKAGE = ROOT / "src" / "headgate"
TESTS = {
    "policy": ("tests/policy", "tests/invariants", "tests/sim"),
    "gateway": ("tests/gateway",),
    "wire": ("tests/wire",),
    "replica": ("tests/replica",),
    "measure": ("tests/observe",),
}
"""Folders of tests that judge the modules of a folder."""
PURE = ("tests/policy/", "tests/sim/")
"""Tests without a socket and without a wait: one failure is enough."""
FIRST_S = 6.0
"""About how long the first round of tests takes; the second has the others."""
MOST_S = 75.0
"""Tests beyond this are not asked: those that take the most time for a test, of lines that nearly every test runs."""
OVERHEAD = 3.0
"""Longest a round may take, as a multiple of what its tests took before, and ROUND_S beside it."""
ROUND_S = 60.0
ALONE_S = 60.0
"""Longest time of one test, run again."""
SOON_S = 5.0
"""A test that passes in this time without a mutant is not about time; pytest's limit is 20 s."""


@dataclass(frozen=True)
class Verdict:
    killed: bool
    by: str
    """The test that noticed; empty: none did."""
    seconds: float


class Judge:
    def __init__(self, part: int = 0) -> None:
        """`part`: judges with different numbers may work at the same time."""
        self._copy = KEPT / f"src{part}"
        self._sound: dict[str, bool] = {}
        """Pure tests that were run on the sources as they are, and whether they passed."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(PACKAGE, self._copy / "headgate", ignore=shutil.ignore_patterns("__pycache__"))
        # By their hash, not by time and size: a mutant has the size of what it replaces, within the same second.
        checked = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(self._copy, quiet=1, invalidation_mode=checked)
        self.reach = Reach(self._copy)
        warm_up(one for of in TESTS.values() for one in of)

    def judge(self, mutant: Mutant) -> Verdict:
        file = self._copy / "headgate" / mutant.path
        source = file.read_text(encoding="utf-8")
        rounds = self.rounds(mutant, source)
        began = time.monotonic()
        for tests in rounds:
            if tests and (by := self._noticed(tests, file, source, mutant.applied(source))):
                return Verdict(True, by, time.monotonic() - began)
        return Verdict(False, "", time.monotonic() - began)

    def rounds(self, mutant: Mutant, source: str) -> list[list[str]]:
        """Tests that may notice a mutant: a few, and the others. Lines that run on import have those that use the
        module, and then all of the folders; so have lines that no test is known to run."""
        files = test_files(mutant.path)
        lines, on_import = statement(source, mutant.line)
        found = {file: self.reach.running(file, mutant.path, lines) for file in files}
        imported = any(self.reach.importing(file, mutant.path, lines) for file in files)
        tests = [] if on_import else self._ordered(mutant, found)
        tests += self._ordered(mutant, {file: self.reach.beside(file, mutant.path, lines) for file in files})
        if imported or on_import or not tests:
            tests += self._ordered(mutant, {file: self.reach.using(file, mutant.path) for file in files})
            tests += self._ordered(mutant, {file: list(self.reach.of(file).seconds) for file in files})
        else:
            # What a test keeps for the next ones of its file ran in the first of them only.
            tests += self._ordered(mutant, {file: list(self.reach.of(file).seconds) for file in files if found[file]})
        # A process that a test kills can't say what it has run: the file named like the module is asked in any case.
        named = [file for file in files if Path(file).stem == f"test_{Path(mutant.path).stem}"]
        tests += self._ordered(mutant, {file: list(self.reach.of(file).seconds) for file in named})
        return self._cut(list(dict.fromkeys(tests)))

    def _ordered(self, mutant: Mutant, found: dict[str, list[str]]) -> list[str]:
        def key(file: str) -> tuple[bool, float]:
            seconds = [self._seconds(test) for test in found[file]]
            return Path(file).stem != f"test_{Path(mutant.path).stem}", sum(seconds) / len(seconds)

        return [test for file in sorted((file for file in found if found[file]), key=key) for test in found[file]]

    def _cut(self, tests: list[str]) -> list[list[str]]:
        """The dearest tests go last, or not at all. Those of a file stay neighbours within a round."""
        left_s = MOST_S
        within: set[str] = set()
        for test in sorted(tests, key=self._seconds):
            left_s -= self._seconds(test)
            if left_s < 0 and within:
                break
            within.add(test)
        first: list[str] = []
        spent_s = 0.0
        for test in tests:
            if test in within and (spent_s + self._seconds(test) < FIRST_S or not first):
                spent_s += self._seconds(test)
                first.append(test)
        chosen = set(first)
        return [neighbours(first), neighbours([test for test in tests if test in within and test not in chosen])]

    def _seconds(self, test: str) -> float:
        return self.reach.of(test.partition("::")[0]).seconds.get(test, 0.0) + 0.005

    def _noticed(self, tests: list[str], file: Path, source: str, mutated: str) -> str:
        """The first test that fails with the mutant and not without."""
        left = tests
        while left:
            limit_s = ROUND_S + OVERHEAD * sum(map(self._seconds, left))
            file.write_text(mutated, encoding="utf-8")
            try:
                run = run_tests(self._copy, left, limit_s)
            finally:
                file.write_text(source, encoding="utf-8")
            if run.broken and not run.failed:
                return "the import"
            if not run.failed:
                return ""
            if self._confirmed(run.failed, file, source, mutated):
                return run.failed.test
            done = set(run.began) | {run.failed.test}
            left = [test for test in left if test not in done]
        return ""

    def _confirmed(self, failure: Failure, file: Path, source: str, mutated: str) -> bool:
        test, pure = failure.test, failure.test.startswith(PURE)
        if pure and not failure.timed_out:
            if test not in self._sound:
                self._sound[test] = run_tests(self._copy, [test], ALONE_S).passed
            return self._sound[test]
        without = run_tests(self._copy, [test], ALONE_S)
        if not without.passed or (failure.timed_out and without.seconds > SOON_S):
            return False
        file.write_text(mutated, encoding="utf-8")
        try:
            return not run_tests(self._copy, [test], ALONE_S).passed
        finally:
            file.write_text(source, encoding="utf-8")


def test_files(path: str) -> list[str]:
    """Files of tests that judge a module."""
    folders = TESTS[path.split("/")[0]]
    return [str(file.relative_to(ROOT)) for folder in folders for file in sorted((ROOT / folder).glob("test_*.py"))]


def neighbours(tests: list[str]) -> list[str]:
    """The same tests, those of a file together, where its first one is."""
    files = {file: place for place, file in enumerate(dict.fromkeys(test.partition("::")[0] for test in tests))}
    return sorted(tests, key=lambda test: files[test.partition("::")[0]])


def statement(source: str, line: int) -> tuple[range, bool]:
    """The lines of the innermost statement at a line, of a compound one only its head; and whether it runs when the
    module is imported."""
    found, on_import = range(line, line + 1), True
    todo: list[tuple[ast.AST, bool]] = [(ast.parse(source), True)]
    while todo:
        node, outside = todo.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt) and child.lineno <= line <= (child.end_lineno or child.lineno):
                body = getattr(child, "body", None)
                last = body[0].lineno - 1 if body else child.end_lineno or child.lineno
                if line <= max(last, child.lineno):
                    found, on_import = range(child.lineno, max(last, child.lineno) + 1), outside
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                todo.append((child, outside and not function))
            elif not isinstance(child, ast.stmt):
                todo.append((child, outside))
    return found, on_import
