"""A command runs the compiled copy of the package where that is of exactly these sources, and says what it runs."""

import ast
import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hatch_build import HOT

import headgate
from headgate import compiled
from headgate.compiled import CHOSEN, STAMP, prefer_compiled, same_copy, stamp_of, version
from headgate.replica.local import end, spawn


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with sources, and a compiled copy of them."""
    root = tmp_path.resolve()
    (root / "hatch_build.py").write_text("")
    for folder in (root / "src" / "headgate", root / "build" / "compiled" / "headgate"):
        (folder / "policy" / "dispatch").mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "page.css").write_text("")
        (folder / "policy" / "dispatch" / "dispatcher.py").write_text("BEST = 1\n")
    copy = root / "build" / "compiled" / "headgate"
    (copy / "policy" / "dispatch" / f"dispatcher{compiled._SUFFIX}").write_bytes(b"\x7fELF")
    (copy / STAMP).write_text(stamp_of(root / "src" / "headgate"))
    monkeypatch.delenv(CHOSEN, raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return root


@dataclass
class Started:
    """What was started in place of this process."""

    argv: list[list[str]] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    seen = Started()

    def execve(program: str, argv: list[str], environ: dict[str, str]) -> None:
        seen.argv.append(argv)
        seen.environ = environ

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-X", "dev", "bin/headgate", "serve", "--port", "0"])
    monkeypatch.setattr(sys, "argv", ["bin/headgate", "serve", "--port", "0"])
    return seen


def test_a_copy_of_exactly_these_sources_takes_over_with_the_same_arguments(checkout: Path, started: Started) -> None:
    prefer_compiled(checkout / "src" / "headgate")
    assert started.argv == [[sys.executable, "-X", "dev", "-P", "-m", "headgate", "serve", "--port", "0"]]
    assert started.environ["PYTHONPATH"] == started.environ[CHOSEN] == str(checkout / "build" / "compiled")


@pytest.mark.parametrize("before", [("-m", "headgate"), ("-mheadgate",), ("bin/headgate",)])
@pytest.mark.parametrize("arguments", [(), ("--version",)])
def test_it_takes_over_from_any_way_to_call_it(
    before: tuple[str, ...],
    arguments: tuple[str, ...],
    checkout: Path,
    started: Started,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, *before, *arguments])
    monkeypatch.setattr(sys, "argv", ["whatever", *arguments])
    prefer_compiled(checkout / "src" / "headgate")
    assert started.argv == [[sys.executable, "-P", "-m", "headgate", *arguments]]


@pytest.mark.parametrize("name", ["policy/dispatch/dispatcher.py", "page.css", "policy/dispatch/fair.py"])
def test_a_copy_of_other_sources_is_not_run(name: str, checkout: Path, started: Started) -> None:
    package = checkout / "src" / "headgate"
    (package / name).write_text("BEST = 2\n")
    prefer_compiled(package)
    (package / name).unlink()
    prefer_compiled(package)
    assert len(started.argv) == (name == "policy/dispatch/fair.py")  # that one was new: without it all is as it was


def test_a_copy_for_another_python_or_without_a_stamp_is_not_run(checkout: Path, started: Started) -> None:
    stamp = checkout / "build" / "compiled" / "headgate" / STAMP
    stamp.write_text(stamp.read_text().replace(compiled._SUFFIX, ".cpython-310-x86_64-linux-gnu.so"))
    prefer_compiled(checkout / "src" / "headgate")
    stamp.unlink()
    prefer_compiled(checkout / "src" / "headgate")
    assert started.argv == []


def test_a_copy_of_other_sources_is_refused_where_it_was_named_by_hand(checkout: Path, started: Started) -> None:
    copy = checkout / "build" / "compiled" / "headgate"
    prefer_compiled(copy)
    (checkout / "src" / "headgate" / "policy" / "dispatch" / "dispatcher.py").write_text("BEST = 2\n")
    with pytest.raises(SystemExit, match="a copy of other sources; run 'make compiled'"):
        prefer_compiled(copy)
    assert started.argv == []


@pytest.mark.parametrize("folder", ["src", "build/compiled"])
def test_the_choice_is_made_once(
    folder: str, checkout: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child goes by its parent's; and a copy that Python did not find after all is not tried for ever."""
    monkeypatch.setenv(CHOSEN, str(checkout / folder))
    prefer_compiled(checkout / "src" / "headgate")
    prefer_compiled(checkout / "build" / "compiled" / "headgate")
    assert started.argv == []


def test_another_checkouts_choice_does_not_count(
    checkout: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHOSEN, "/elsewhere/src")
    prefer_compiled(checkout / "src" / "headgate")
    assert len(started.argv) == 1


@pytest.mark.parametrize("folder", ["src", "build/compiled"])
def test_what_a_process_starts_runs_the_same_copy(folder: str, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = str(checkout / folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("/mine", first)))
    environ = same_copy(checkout / folder / "headgate")
    assert environ[CHOSEN] == first
    assert environ["PYTHONPATH"] == os.pathsep.join((first, "/mine"))


def test_an_installed_package_stays_what_it_is(tmp_path: Path, started: Started) -> None:
    package = tmp_path / "site-packages" / "headgate"
    package.mkdir(parents=True)
    prefer_compiled(package)
    assert started.argv == []
    assert same_copy(package) == dict(os.environ)
    assert version(package).endswith("(interpreted: a compiled wheel has twice the throughput)")


def test_the_version_says_how_it_runs(checkout: Path) -> None:
    name = f"Headgate {headgate.__version__}"
    assert version(checkout / "build" / "compiled" / "headgate") == f"{name} (compiled)"
    assert (
        version(checkout / "src" / "headgate") == f"{name} (interpreted: run 'make compiled' for twice the throughput)"
    )


# -- for real: what runs these tests --------------------------------------------------------------------------


def test_a_process_of_ours_runs_what_is_tested(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """Also where a folder with our name lies about."""
    (tmp_path / "headgate").mkdir()
    (tmp_path / "headgate" / "__init__.py").write_text("raise SystemExit('not me')")
    command = [sys.executable, "-P", "-m", "headgate", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=same_copy()).stdout
    assert said.strip() == version()
    assert ("(compiled)" in said) == bool(pytestconfig.getoption("--compiled"))


def about(pid: int, what: str) -> str:
    return Path(f"/proc/{pid}/{what}").read_text()


def test_an_engine_of_ours_runs_what_is_tested(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    async def look() -> None:
        process = await spawn(["--emulate", "h100-llama3-8b"], tmp_path / "engine.sock")
        try:
            while not (tmp_path / "engine.sock").exists():
                assert process.returncode is None
                await asyncio.sleep(0.02)
            library = str(compiled.HERE.parent / f"headgate__mypyc{compiled._SUFFIX}")
            assert (library in about(process.pid, "maps")) == bool(pytestconfig.getoption("--compiled"))
            assert f"{CHOSEN}={compiled.HERE.parent}\0" in about(process.pid, "environ")
        finally:
            await end(process)

    asyncio.run(look())


def test_no_compiled_module_has_a_constant_that_mypyc_cannot_read() -> None:
    """It takes a pair of floats for one that was never set, where that is the first thing a function reads (2.4.1)."""
    for package, names in HOT.items():
        for name in names.split():
            module = ast.parse((compiled.HERE / package / f"{name}.py").read_text())
            for line in module.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.value, ast.Tuple):
                    first = line.value.elts[0] if line.value.elts else None
                    assert not (isinstance(first, ast.Constant) and isinstance(first.value, float)), ast.unparse(line)


def test_the_sources_are_hashed_in_a_moment() -> None:
    stamp_of(compiled.HERE)
    usage = os.times()
    stamp_of(compiled.HERE)
    after = os.times()
    assert after.user + after.system - usage.user - usage.system < 0.1
