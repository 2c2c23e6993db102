"""Keeps the bundled weights in the form that computes fastest: made once, at the first start, in a cache folder.

The file's name has a digest of the source's size, parts and target form, so that another source or form makes another
file. The file is written under another name and moved to its place when it is complete: a file in its place is whole.
Where several engines start at once, one makes the file and the others wait.
"""

import contextlib
import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final

from headgate.engine.runner.llama import Q4_0, Q8_0
from headgate.engine.runner.requantize import requantize
from headgate.model.clock import Clock, monotonic

FORM: Final = "Q4_0-Q8_0"
FILE_TYPE: Final = 2
"""llama.cpp's number for the file's main type, Q4_0."""
MIDDLE: Final = range(4, 26)
"""The middle layers of 30, which tolerate a coarser form."""
PIECES: Final = 64
PIECE_BYTES: Final = 64 * 1024
"""The digest covers 64 pieces all over the file: reading all 98 MB would make every start slower."""
LOCK_S: Final = 60.0
"""Seconds to wait for another process that makes the file. Then the file is made twice, which does no harm."""
LOOK_S: Final = 0.1


def wanted(tensor: str) -> int:
    """Returns the form of a tensor of the bundled model: Q4_0 for the feed-forward weights of the middle layers, which
    is fastest and loses a little; Q8_0 for all others, which loses next to nothing (docs/decisions/0017)."""
    layer, _, name = tensor.removeprefix("blk.").partition(".")
    return Q4_0 if name.startswith("ffn_") and layer.isdecimal() and int(layer) in MIDDLE else Q8_0


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Returns `HEADGATE_CACHE`, or Headgate's folder in the user's cache. Raises OSError if the user has no home."""
    if named := environ.get("HEADGATE_CACHE"):
        return Path(named)
    try:
        cache = Path(environ["XDG_CACHE_HOME"]) if environ.get("XDG_CACHE_HOME") else Path.home() / ".cache"
    except RuntimeError as error:
        raise OSError(str(error)) from error
    return cache / "headgate"


def kept_as(source: Path) -> str:
    """Returns the file name of the faster form of `source`."""
    size = source.stat().st_size
    digest = blake2b(f"{FORM} {size}".encode(), digest_size=8)
    with source.open("rb") as file:
        for piece in range(PIECES):
            file.seek(max(0, size - PIECE_BYTES) * piece // (PIECES - 1))
            digest.update(file.read(PIECE_BYTES))
    return f"{source.stem.removesuffix('.Q4_1')}.{FORM}-{digest.hexdigest()}.gguf"


def place(source: Path, environ: Mapping[str, str]) -> Path:
    """Returns where the faster form of `source` lies, or is to lie."""
    return cache_folder(environ) / kept_as(source)


def make(source: Path, path: Path, clock: Clock = monotonic) -> None:
    """Writes the faster form of `source` to `path`, unless another process has done so by then. Raises OSError if there
    is no room or no permission to write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.with_name(f".{path.name}.lock"), clock):
        if path.exists():
            return
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                requantize(source, file, wanted, FILE_TYPE)
                os.fchmod(file.fileno(), 0o644)  # a cache may be shared between users
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise


@contextlib.contextmanager
def _alone(path: Path, clock: Clock) -> Iterator[None]:
    """Lets in one process at a time, if the file system can lock; otherwise all of them at once. Removes files that a
    killed process has left unfinished."""
    ends = clock() + LOCK_S
    with path.open("w") as file:
        locked = _locked(file.fileno())
        while locked is False and clock() < ends:
            threading.Event().wait(LOOK_S)
            locked = _locked(file.fileno())
        if locked:
            for left in path.parent.glob(f"{path.name.removesuffix('lock')}*"):
                if left != path:
                    left.unlink(missing_ok=True)
        yield


def _locked(file: int) -> bool | None:
    """Tries to lock the file; None: this file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
