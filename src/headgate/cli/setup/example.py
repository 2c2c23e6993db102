"""Finds headgate.example.yaml, which shows every setting: beside the package where that was installed, else in the
checkout."""

from pathlib import Path

from headgate import __file__ as PACKAGE_FILE
from headgate.model.errors import StartupError

NAME = "headgate.example.yaml"


def example_text() -> str:
    package = Path(PACKAGE_FILE).parent
    for folder in (package, *package.parents[:3]):
        if (folder / NAME).is_file():
            return (folder / NAME).read_text()
    raise StartupError(f"{NAME} is not here: this installation is not complete; install headgate again")
