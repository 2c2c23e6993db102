"""A command in a real pseudo-terminal: what it writes, the keys it gets, and how it leaves the terminal."""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.compiled import CHOSEN
from tests.engine.process import TESTED

ALTERNATE, ORDINARY = "\x1b[?1049h", "\x1b[?1049l"
"""Sequences that show the terminal's other screen, and its ordinary one again."""
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
"""Sequences that hide the cursor, and show it."""
STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    def __init__(self, process: subprocess.Popen[bytes], outside: int, inside: int) -> None:
        self.process = process
        self.said = ""
        """All that it has written."""
        self._outside = outside
        self._inside = inside
        self.before = termios.tcgetattr(inside)

    @property
    def text(self) -> str:
        """What it has written, without colours and movements."""
        return STYLES.sub("", self.said)

    def until(self, wanted: str, within_s: float = 10.0, since: int = 0) -> str:
        """Reads until it has written this, and returns all from `since` on."""
        ends = time.monotonic() + within_s
        while wanted not in STYLES.sub("", self.said[since:]):
            left = ends - time.monotonic()
            assert left > 0, f"it did not say {wanted!r}, but {self.said[-3000:]!r}"
            if not self._read(min(left, 0.2)):
                raise AssertionError(f"it ended without {wanted!r}, but with {self.said[-3000:]!r}")
        return STYLES.sub("", self.said[since:])

    def press(self, keys: str) -> int:
        """Sends keys, and returns where what it says next begins."""
        begins = len(self.said)
        os.write(self._outside, keys.encode())
        return begins

    def resize(self, lines: int, columns: int) -> int:
        begins = len(self.said)
        fcntl.ioctl(self._inside, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)
        return begins

    def left(self, within_s: float = 10.0) -> int:
        """Its exit status, once it has ended."""
        ends = time.monotonic() + within_s
        while self.process.poll() is None:
            assert time.monotonic() < ends, self.said[-2000:]
            self._read(0.05)
        while self._read(0.0):
            pass
        return self.process.wait()

    def ends(self, within_s: float) -> bool:
        ends = time.monotonic() + within_s
        while self.process.poll() is None and time.monotonic() < ends:
            self._read(0.05)
        return self.process.poll() is not None

    @property
    def as_before(self) -> bool:
        """Whether the terminal is as it was: its modes, its screen and its cursor."""
        modes = termios.tcgetattr(self._inside) == self.before
        screen = self.said.rfind(ORDINARY) >= self.said.rfind(ALTERNATE)
        return modes and screen and self.said.rfind(SHOW) >= self.said.rfind(HIDE)

    def _read(self, within_s: float) -> bool:
        ready, _, _ = select.select([self._outside], [], [], within_s)
        if not ready:
            return self.process.poll() is None and within_s > 0
        try:
            data = os.read(self._outside, 65536)
        except OSError:
            return False
        self.said += data.decode("utf-8", "replace")
        return bool(data)


@contextmanager
def terminal(*arguments: str, lines: int = 24, columns: int = 80, program: Path | None = None) -> Iterator[Terminal]:
    """`headgate …`, or a program, in a terminal of its own, which it controls."""
    outside, inside = os.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {
        "PATH": os.environ.get("PATH", ""), "TERM": "xterm-256color", "PYTHONPATH": TESTED, CHOSEN: TESTED,
        "LANG": "C.UTF-8", "PYTHONUTF8": "1", "HOME": "/nonexistent",
    }  # fmt: skip
    runs = ["-m", "headgate"] if program is None else [str(program)]
    command = [sys.executable, "-c", CONTROLS, sys.executable, *runs, *arguments]
    process = subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True
    )  # fmt: skip
    it = Terminal(process, outside, inside)
    try:
        yield it
    finally:
        process.kill()
        process.wait()
        os.close(outside)
        os.close(inside)


CONTROLS = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes the terminal the one that controls the process, and its ctrl-C a signal: a shell lets what it runs in the
background ignore that one."""
