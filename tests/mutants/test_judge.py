"""Which tests judge a mutant, and what counts as its end."""

import json
from pathlib import Path

import pytest

from tests.mutants import judge as judging
from tests.mutants import reach as reaching
from tests.mutants.forked import Failure, Run
from tests.mutants.judge import Judge, neighbours, statement
from tests.mutants.reach import Reach

SOURCE = """LIMIT = 5


class Cold(Struct, frozen=True):
    seen: int

    def late(self, now: float) -> bool:
        return (
            now
            > LIMIT
        )
"""


def test_a_statement_over_several_lines_is_one_and_a_class_runs_on_import() -> None:
    assert statement(SOURCE, 10) == (range(8, 12), False)
    assert statement(SOURCE, 4) == (range(4, 5), True)
    assert statement(SOURCE, 5) == (range(5, 6), True)


def test_tests_of_a_file_stay_together() -> None:
    assert neighbours(["a.py::1", "b.py::1", "a.py::2"]) == ["a.py::1", "a.py::2", "b.py::1"]


def test_lines_are_found_again_after_the_module_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "KEPT", tmp_path)
    monkeypatch.setattr(reaching, "ROOT", tmp_path)
    (tmp_path / "headgate").mkdir()
    (tmp_path / "sources").mkdir()
    (tmp_path / "reach").mkdir()
    (tmp_path / "test_x.py").write_text("")
    (tmp_path / "sources" / "old").write_text("a\nb\nc\n")
    (tmp_path / "headgate" / "m.py").write_text("a\nnew\nb\nc\n")
    kept = {
        "seconds": {"test_x.py::one": 1.0, "test_x.py::two": 1.0},
        "lines": {"": {"m.py": "2"}, "test_x.py::one": {"m.py": "4"}, "test_x.py::two": {"m.py": "8"}},
        "beside": {"m.py": "8"},
        "sources": {"m.py": "old"},
    }
    name = f"test_x.py.{reaching._hash('')}.json"
    (tmp_path / "reach" / name).write_text(json.dumps(kept))
    reach = Reach(tmp_path)
    assert reach.running("test_x.py", "m.py", range(3, 4)) == ["test_x.py::one"]
    assert reach.running("test_x.py", "m.py", range(4, 5)) == ["test_x.py::two"]
    assert reach.running("test_x.py", "m.py", range(2, 3)) == []
    assert reach.beside("test_x.py", "m.py", range(4, 5)) == ["test_x.py::one", "test_x.py::two"]
    assert reach.beside("test_x.py", "m.py", range(3, 4)) == []
    assert reach.using("test_x.py", "m.py") == ["test_x.py::one", "test_x.py::two"]
    assert reach.importing("test_x.py", "m.py", range(1, 2))
    assert not reach.importing("test_x.py", "m.py", range(3, 4))


@pytest.mark.parametrize(
    ("test", "timed_out", "runs", "counts"),
    [
        ("tests/policy/test_x.py::t", False, [Run()], True),
        ("tests/policy/test_x.py::t", False, [Run(broken=True)], False),
        ("tests/policy/test_x.py::t", True, [Run(seconds=1), Run(broken=True)], True),
        ("tests/gateway/test_x.py::t", False, [Run(seconds=9), Run(broken=True)], True),
        ("tests/gateway/test_x.py::t", False, [Run(), Run()], False),
        ("tests/gateway/test_x.py::t", False, [Run(broken=True)], False),
        ("tests/gateway/test_x.py::t", True, [Run(seconds=9)], False),
        ("tests/gateway/test_x.py::t", True, [Run(seconds=1), Run()], False),
        ("tests/gateway/test_x.py::t", True, [Run(seconds=1), Run(over=True)], True),
    ],
)
def test_a_failure_counts_if_it_comes_with_the_mutant_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: str, timed_out: bool, runs: list[Run], counts: bool
) -> None:
    file = tmp_path / "m.py"
    texts = []

    def run_tests(copy: Path, tests: list[str], limit_s: float) -> Run:
        texts.append(file.read_text())
        return runs[len(texts) - 1]

    monkeypatch.setattr(judging, "run_tests", run_tests)
    judge = object.__new__(Judge)
    judge._copy, judge._sound = tmp_path, {}
    file.write_text("source")
    assert judge._confirmed(Failure(test, timed_out), file, "source", "mutated") is counts
    assert texts == ["source", "mutated"][: len(runs)]
    assert file.read_text() == "source"
