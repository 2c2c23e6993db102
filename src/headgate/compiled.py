"""Chooses the copy of the package that a command runs: the compiled one, if it was made of exactly these sources.

A checkout's sources run interpreted. `make compiled` puts a copy under build/compiled, with the data path compiled
(docs/decisions/0007) and a stamp: the hash of its sources, and the Python it was made for. A command started on the
sources hashes them, and restarts on the copy if the stamps are equal; an outdated copy never runs. The processes that
the command starts (engines, replicas) run the same copy.

This module runs before any other of the package, so the version is all that it imports from the package.
"""

import hashlib
import os
import sys
import sysconfig
from pathlib import Path

from headgate import __version__

CHOSEN = "HEADGATE_COPY"
"""Environment variable: the folder whose copy runs, as chosen by a parent, a test or a person."""
COPY = Path("build", "compiled")
"""Path of the compiled copy in a checkout."""
STAMP = "COMPILED"
"""Name of the stamp file in a compiled copy of the package."""
EXAMPLE = "headgate.example.yaml"
"""Name of the file that a build puts into the package from the checkout's root."""
HERE = Path(__file__).resolve().parent
_SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")


def prefer_compiled(package: Path = HERE) -> None:
    """Restarts the command on the compiled copy of these sources. Returns where there is no such copy, or the choice
    was made already; exits where the running copy was made of other sources."""
    root = _checkout(package)
    chosen = os.environ.get(CHOSEN)
    if root is None or (chosen and Path(chosen).resolve() in (root / "src", root / COPY)):
        return
    copy = root / COPY / package.name
    fresh = stamp_in(copy) == stamp_of(root / "src" / package.name)
    if package == copy and not fresh:
        sys.exit(f"headgate: {copy.parent} is a copy of other sources; run 'make compiled' and try again")
    if package == copy or not fresh:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: a file or folder called headgate in the current directory is not meant.
    argv = [sys.executable, *_interpreter_options(), "-P", "-m", "headgate", *sys.argv[1:]]
    os.execve(sys.executable, argv, same_copy(copy))


def same_copy(package: Path = HERE) -> dict[str, str]:
    """The environment for a process that must run the same copy of the package as this one."""
    if _checkout(package) is None:
        return dict(os.environ)  # installed: there is only one
    first, given = str(package.parent), os.environ.get("PYTHONPATH", "")
    path = [first, *(folder for folder in given.split(os.pathsep) if folder and folder != first)]
    return {**os.environ, CHOSEN: first, "PYTHONPATH": os.pathsep.join(path)}


def version(package: Path = HERE) -> str:
    """The version, and whether it runs compiled or interpreted, in words."""
    return f"Headgate {__version__} ({_how(package)})"


def is_compiled(package: Path = HERE) -> bool:
    return (package / "policy" / "dispatch" / f"dispatcher{_SUFFIX}").is_file()


def stamp_of(package: Path, ending: str = "") -> str:
    """The stamp of a copy compiled from these sources for this Python. `ending`: hash only files whose names end with
    it."""
    names = []
    for folder, folders, files in os.walk(package):
        folders[:] = [name for name in folders if name != "__pycache__"]
        names += [os.path.join(folder, name) for name in files if name.endswith(ending) and not _is_made(name)]
    seen, skip = hashlib.sha256(), len(str(package)) + 1
    for name in sorted(names):
        with open(name, "rb", buffering=0) as file:
            content = file.read()
        seen.update(f"{name[skip:]}\0{len(content)}\0".encode())
        seen.update(content)
    return f"{seen.hexdigest()} {_SUFFIX}\n"


def stamp_in(copy: Path) -> str:
    """The stamp in a compiled copy; empty: the copy has none."""
    try:
        return (copy / STAMP).read_text()
    except OSError:
        return ""


def _is_made(name: str) -> bool:
    return name in (STAMP, EXAMPLE) or name.endswith((".so", ".pyc"))


def _checkout(package: Path) -> Path | None:
    """The checkout that contains this copy of the package; None: the package was installed from a wheel."""
    for folder in (Path("src"), COPY):
        root = package.parents[len(folder.parts)]
        if package.parent == root / folder and (root / "hatch_build.py").is_file():
            return root
    return None


def _how(package: Path) -> str:
    if is_compiled(package):
        return "compiled"
    if _checkout(package) is None:
        return "interpreted: a compiled wheel has twice the throughput"
    return "interpreted: run 'make compiled' for twice the throughput"


def _interpreter_options() -> list[str]:
    """The options that Python itself was started with, such as -X dev."""
    before = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    return before[:-2] if before[-2:-1] == ["-m"] else before[:-1]
