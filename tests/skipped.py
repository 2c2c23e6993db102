"""What a run of the tests left out: by name, with what is missing, and the one command that would run it.

With `--all` nothing may be left out but what this machine can't have: a skip fails the run. `make test-all` installs
what can be had, and says `--all`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pytest

NOT_A_PROOF = ("HEADGATE_SCREENSHOTS=1",)
"""Begins the reason of what makes files and proves nothing: never listed."""
COMMANDS = {
    "no NVIDIA GPU": "a machine with an NVIDIA GPU",
    "interpreted only": 'make test ARGS="-m interpreted_only"',
    "time says nothing": "make test",
}
"""By how a reason begins, what runs it that `make test-all` does not, or in its second half."""
ALL = "make test-all"
OTHERWISE = f"{ALL} (installs what is missing)"


@dataclass(frozen=True, slots=True)
class Skipped:
    name: str
    reason: str

    @property
    def command(self) -> str:
        return next((said for begin, said in COMMANDS.items() if self.reason.startswith(begin)), OTHERWISE)


def found(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[Skipped]:
    """The skips of a run that are proofs; each once. A file that could not be read is one, with all its tests."""
    made = {}
    for report in reports:
        if isinstance(report.longrepr, tuple):
            reason = str(report.longrepr[2]).removeprefix("Skipped: ")
            if not reason.startswith(NOT_A_PROOF):
                made[report.nodeid] = Skipped(report.nodeid, reason)
    return [made[name] for name in sorted(made)]


def lines(skipped: list[Skipped]) -> list[str]:
    """For people, by the command that would run them."""
    by_command: dict[str, dict[str, list[str]]] = {}
    for one in skipped:
        by_command.setdefault(one.command, {}).setdefault(one.reason, []).append(one.name)
    said = [f"{len(skipped)} not run:"] if skipped else []
    for command, reasons in sorted(by_command.items(), key=lambda item: (item[0] != OTHERWISE, item[0])):
        for reason, names in reasons.items():
            said += [*(f"  {name}" for name in names), f"    {reason}"]
        said.append(f"  Run them with: {command}")
    return said


def must_run(skipped: list[Skipped]) -> list[Skipped]:
    """Those that `make test-all` should have run."""
    return [one for one in skipped if one.command == OTHERWISE]


# -- pytest's hooks, for tests/conftest.py -----------------------------------------------------------------------


def addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", dest="must_run_all", help="fail if a test is skipped; see make test-all"
    )


def _of(terminal: pytest.TerminalReporter) -> list[Skipped]:
    return found(terminal.stats.get("skipped", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = _of(terminalreporter)
    for line in lines(skipped):
        terminalreporter.write_line(line)
    missed = must_run(skipped) if config.getoption("must_run_all") else []
    if missed:
        names = ", ".join(one.name for one in missed)
        terminalreporter.write_line(f"{len(missed)} should have run (--all): {names}", red=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if (
        terminal is not None
        and exitstatus == 0
        and session.config.getoption("must_run_all")
        and must_run(_of(terminal))
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
