"""Compiled modules are preferred where they are of exactly these sources, and only there."""

import os
import sys
from pathlib import Path

import pytest

import headgate
from headgate.cli import compiled


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with sources, and a compiled copy of them."""
    for folder in (tmp_path / "src" / "headgate", tmp_path / "build" / "compiled" / "headgate"):
        (folder / "policy").mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "policy" / "route.py").write_text("BEST = 1\n")
    (tmp_path / "build" / "compiled" / "headgate" / "policy" / "route.cpython-311.so").write_bytes(b"\x7fELF")
    monkeypatch.setattr(headgate, "__file__", str(tmp_path / "src" / "headgate" / "__init__.py"))
    monkeypatch.delenv(compiled.TRIED, raising=False)
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    seen: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda program, argv, environ: seen.append((argv, environ)))
    monkeypatch.setattr(sys, "argv", ["headgate", "simulate", "--load", "poisson:rate=2"])
    return seen


def test_a_copy_of_exactly_these_sources_takes_over_with_the_same_arguments(
    checkout: Path, started: list[tuple[list[str], dict[str, str]]]
) -> None:
    compiled.prefer_compiled()
    ((argv, environ),) = started
    assert argv[1:] == ["-m", "headgate", "simulate", "--load", "poisson:rate=2"]
    assert environ["PYTHONPATH"].split(os.pathsep)[0] == str(checkout / "build" / "compiled")
    assert environ[compiled.TRIED]


def test_an_edited_a_new_or_an_uncompiled_module_runs_as_it_is(
    checkout: Path, started: list[tuple[list[str], dict[str, str]]]
) -> None:
    source = checkout / "src" / "headgate" / "policy" / "route.py"
    source.write_text("BEST = 2\n")
    compiled.prefer_compiled()
    source.write_text("BEST = 1\n")
    new = checkout / "src" / "headgate" / "policy" / "fair.py"
    new.write_text("")
    compiled.prefer_compiled()
    new.unlink()
    for library in (checkout / "build").rglob("*.so"):
        library.unlink()
    compiled.prefer_compiled()
    assert started == []


def test_it_is_tried_once(
    checkout: Path, started: list[tuple[list[str], dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(compiled.TRIED, "1")
    compiled.prefer_compiled()
    assert started == []
