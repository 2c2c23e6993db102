"""Are there compiled modules of exactly these sources? Then whatever computes for long had better run on those.

Sources in a checkout run interpreted, and `make compiled` puts a compiled copy beside them (docs/decisions/0007). A
simulation is three times as fast on it. It is used only where every file of it says the same as the source: nobody is
to edit a module and run another.
"""

import os
import sys
from pathlib import Path

import headgate

TRIED = "HEADGATE_COMPILED"
"""In the environment of a process that has been started on the compiled modules already."""


def prefer_compiled() -> None:
    """Start anew on the compiled modules, where there are some; returns where there are none, or they run already."""
    sources = Path(headgate.__file__).resolve().parent
    made = sources.parent.parent / "build" / "compiled"
    if TRIED in os.environ or sources.parent.name != "src" or not same(sources, made / "headgate"):
        return
    path = os.pathsep.join(filter(None, (str(made), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, TRIED: "1", "PYTHONPATH": path}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-m", "headgate", *sys.argv[1:]], environment)


def same(sources: Path, made: Path) -> bool:
    """Whether `made` has compiled modules, and every source as it is now."""
    if next(made.glob("policy/*.so"), None) is None:
        return False
    try:
        return all(
            source.read_bytes() == (made / source.relative_to(sources)).read_bytes() for source in sources.rglob("*.py")
        )
    except OSError:
        return False
