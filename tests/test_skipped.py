"""`make test` says what it did not run, and with `--all` that is a failure."""

from pathlib import Path

import pytest

from tests.skipped import lines

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parent.parent

TESTS = """
import pytest
def test_that_runs(): pass
@pytest.mark.skip(reason="no Helm: pip install helm-python-sdk")
def test_charts(): pass
@pytest.mark.parametrize("n", [1, 2])
def test_schemas(n): pytest.importorskip("no_such_package", reason="no schemas: pip install kubernetes-validate")
@pytest.mark.skip(reason="no NVIDIA GPU here, or no NVML: pip install nvidia-ml-py")
def test_gpus(): pass
@pytest.mark.skip(reason="HEADGATE_SCREENSHOTS=1 makes docs/images anew")
def test_pictures(): pass
"""
WHOLE_FILE = """
import pytest
pytest.importorskip("no_such_package", reason="needs the Redis client: pip install 'headgate[redis]'")
def test_shared(): pass
"""
CONFTEST = """
from tests import skipped
pytest_addoption, pytest_terminal_summary = skipped.addoption, skipped.pytest_terminal_summary
pytest_sessionfinish = skipped.pytest_sessionfinish
"""


def run(pytester: pytest.Pytester, *arguments: str, **files: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(**files)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments, "-o", f"pythonpath={ROOT}")


def test_what_was_skipped_is_named_with_the_command_that_runs_it(pytester: pytest.Pytester) -> None:
    ran = run(pytester, test_some=TESTS, test_file=WHOLE_FILE)
    assert ran.ret == 0
    ran.stdout.fnmatch_lines(
        [
            "5 not run:",
            "  test_file.py",
            "    needs the Redis client: pip install 'headgate[[]redis]'",
            "  test_some.py::test_charts",
            "    no Helm: pip install helm-python-sdk",
            "  test_some.py::test_schemas[[]1]",
            "  test_some.py::test_schemas[[]2]",
            "    no schemas: pip install kubernetes-validate",
            "  Run them with: make test-all (installs what is missing)",
            "  test_some.py::test_gpus",
            "  Run them with: a machine with an NVIDIA GPU",
        ]
    )
    ran.stdout.no_fnmatch_line("*test_pictures*")


def test_where_all_must_run_a_skip_is_a_failure_unless_it_needs_a_gpu(pytester: pytest.Pytester) -> None:
    ran = run(pytester, "--all", test_some=TESTS)
    assert ran.ret == 1
    ran.stdout.fnmatch_lines(["3 should have run (--all): test_some.py::test_charts, *"])
    only_gpu = TESTS.replace("no Helm", "no NVIDIA GPU").replace("no schemas", "no NVIDIA GPU")
    assert run(pytester, "--all", test_some=only_gpu).ret == 0


def test_a_run_that_left_nothing_out_says_nothing(pytester: pytest.Pytester) -> None:
    ran = run(pytester, "--all", test_some="def test_that_runs(): pass")
    assert ran.ret == 0
    ran.stdout.no_fnmatch_line("*not run*")
    assert lines([]) == []


def test_all_is_what_the_makefile_says_and_ci_installs_what_it_needs() -> None:
    assert "--all" in (ROOT / "Makefile").read_text()
    ci = ROOT / ".ci" / "run"
    if ci.exists():  # not in a source archive
        assert "make components" in ci.read_text()
