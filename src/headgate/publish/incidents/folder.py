"""Keeps incidents as files: one trace each, in a folder whose number of files and bytes are bounded.

    {"headgate": {…the digest…},
    "displayTimeUnit": "ms", "traceEvents": [
    …

The digest is the first line, so that a list of incidents reads no trace. All methods block: they are for a thread.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Any, Final

import msgspec

NAME: Final = re.compile(r"\d{8}T\d{6}Z-[a-z0-9_]{1,48}(?:-\d{1,3})?")
"""An incident's id: when it ended, in UTC, and the alert."""
MOST_DIGEST_BYTES: Final = 1 << 20
BEGUN: Final = ".new"
LEFT_S: Final = 600.0
"""Seconds after which a file that was begun and never finished is removed: its writer has died."""

_encode = msgspec.json.Encoder().encode


class IncidentFolder:
    def __init__(self, path: Path, most_files: int, most_bytes: int) -> None:
        self.path = path
        self._most_files = most_files
        self._most_bytes = most_bytes

    def free_id(self, wanted: str) -> str:
        """The id, with a number behind it where there is such an incident already."""
        taken = {path.stem for path in self._files()}
        return next(
            (each for each in (wanted, *(f"{wanted}-{n}" for n in range(2, 1000))) if each not in taken), wanted
        )

    def write(self, digest: dict[str, Any], events: list[dict[str, Any]]) -> Path:
        """Writes an incident and removes the oldest ones beyond the bounds. All of the file is there, or nothing.
        Raises OSError."""
        data = b'{"headgate": %b,\n"displayTimeUnit": "ms", "traceEvents": [\n%b\n]}\n' % (
            _encode(digest),
            b",\n".join(map(_encode, events)),
        )
        if len(data) > self._most_bytes:
            raise OSError(0, f"it has {len(data)} bytes, and observe.incidents.bytes is {self._most_bytes}")
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Before it is written: a folder that is full of old incidents has room for this one.
        self._remove_oldest(self._most_files - 1, self._most_bytes - len(data))
        path = self.path / f"{digest['id']}.json"
        begun = path.with_name(f".{path.name}.{os.getpid()}{BEGUN}")
        try:
            # Readable by its owner only: the file says which tenant asked, and when.
            fd = os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
            self._remove_begun(begun.stat().st_mtime - LEFT_S)
            begun.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                begun.unlink()
            raise
        return path

    def digests(self) -> list[dict[str, Any]]:
        """The digests of all incidents, the newest first; a file that holds something else is left out."""
        found = (self.digest(path.stem) for path in reversed(self._files()))
        return [each for each in found if each is not None]

    def digest(self, name: str) -> dict[str, Any] | None:
        """None: there is no such incident, or it can't be read."""
        path = self._path(name)
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                first = file.readline(MOST_DIGEST_BYTES)
                size = os.fstat(file.fileno()).st_size
            found = msgspec.json.decode(first.rstrip().removesuffix(b",") + b"}", type=dict[str, Any])["headgate"]
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError):
            return None
        return {**found, "bytes": size} if isinstance(found, dict) else None

    def trace(self, name: str) -> bytes | None:
        """The whole file. None: there is none, or it can't be read."""
        path = self._path(name)
        try:
            return None if path is None else path.read_bytes()
        except OSError:
            return None

    def _path(self, name: str) -> Path | None:
        """None: the name is no incident's, so that no other file is ever read."""
        return self.path / f"{name}.json" if NAME.fullmatch(name) else None

    def _files(self) -> list[Path]:
        """The incidents' files, the oldest first."""
        try:
            found = [path for path in self.path.iterdir() if path.suffix == ".json" and NAME.fullmatch(path.stem)]
        except OSError:
            return []
        return sorted(found, key=lambda path: path.stem)

    def _remove_oldest(self, most_files: int, most_bytes: int) -> None:
        kept = []
        for path in self._files():
            with contextlib.suppress(OSError):
                kept.append((path, path.stat().st_size))
        total = sum(size for _, size in kept)
        while kept and (len(kept) > most_files or total > most_bytes):
            path, size = kept.pop(0)
            total -= size
            with contextlib.suppress(OSError):
                path.unlink()

    def _remove_begun(self, before: float) -> None:
        for path in self.path.glob(f".*{BEGUN}"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()
