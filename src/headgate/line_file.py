"""Writes lines to a file in a thread of its own: a disk that stalls must not stall the thread that adds them.

If the disk stalls for long, lines are dropped and the file says how many.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from io import BufferedWriter
from pathlib import Path

log = logging.getLogger(__name__)

FLUSH_S = 1.0
MOST_WAITING = 20_000
"""Maximum lines waiting to be written; a busy GPU makes a hundred a second."""
MOST_BYTES = 2 << 30
"""Maximum bytes of the file: about a day of a busy GPU."""


class LineFile:
    def __init__(
        self, path: Path, first: bytes, lacks: Callable[[int], bytes], name: str, flush_s: float = FLUSH_S
    ) -> None:
        """Begins the file with the line `first`; raises OSError when it can't be written. `lacks`: the line that says
        how many are missing. `name`: what the file is, for messages."""
        self._file = _begun(path, first + b"\n")
        self.dropped = 0
        self._path = path
        self._lacks = lacks
        self._name = name
        self._flush_s = flush_s
        self._waiting: deque[bytes] = deque()
        self._missed = 0
        """Lines dropped, counted by the adding thread; the writing thread keeps in `_noticed` how many of them it has
        reported."""
        self._noticed = 0
        self._room = MOST_BYTES
        self._broken = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._main, name=name.replace(" ", "-"), daemon=True)
        self._thread.start()

    @property
    def takes(self) -> bool:
        """Whether a line added now will be written; otherwise `miss` counts it."""
        return not self._broken and len(self._waiting) < MOST_WAITING

    def miss(self) -> None:
        self._missed += 1

    def add(self, line: bytes) -> None:
        self._waiting.append(line)

    def close(self) -> None:
        """Writes the remaining lines and closes the file. No line may be added afterwards."""
        self._closing.set()
        self._thread.join()
        if self.dropped:
            log.warning("the %s %s lacks %d lines", self._name, self._path, self.dropped)

    # -- the writing thread -------------------------------------------------------------------------------

    def _main(self) -> None:
        while not self._closing.wait(self._flush_s):
            self._write()
        self._write()
        try:
            self._file.close()
        except OSError as error:
            self._fail(error)

    def _write(self) -> None:
        lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
        missing = self._missed - self._noticed
        self._noticed += missing
        self.dropped += missing + (len(lines) if self._broken else 0)
        if missing:
            lines.append(self._lacks(missing))
        if not lines or self._broken:
            return
        data = b"\n".join(lines) + b"\n"
        self._room -= len(data)
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            self.dropped += len(lines)
            self._fail(error)
        else:
            if self._room < 0:
                self._fail(f"it has {MOST_BYTES >> 30} GiB")

    def _fail(self, why: object) -> None:
        """Ends the file; what adds lines continues without it."""
        if not self._broken:
            log.warning("the %s %s ends here: %s", self._name, self._path, why)
        self._broken = True


def _begun(path: Path, first: bytes) -> BufferedWriter:
    file = path.open("wb")
    try:
        file.write(first)
        file.flush()
    except OSError:
        with suppress(OSError):
            file.close()  # closing tries again to write what has just failed
        raise
    return file
