"""Reads keys one by one from a terminal, and puts the terminal back as it was, whatever happens."""

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from typing import Final

ESCAPE: Final = "\x1b"
SEQUENCES: Final = {
    "[A": "up", "OA": "up", "[B": "down", "OB": "down", "[5~": "page up", "[6~": "page down", "[H": "home",
    "[F": "end", "[1~": "home", "[4~": "end",
}  # fmt: skip
NAMES: Final = {"\r": "enter", "\n": "enter", "\x7f": "back", "\x08": "back", "\x03": "ctrl-c", "\x04": "ctrl-d"}
REST_S: Final = 0.05
"""Seconds that the rest of an escape sequence may take; what comes alone is the escape key."""


class Keyboard:
    """The keys of a terminal, and a way to end the wait for one from another thread or a signal handler."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._wake_from, self._wake_to = os.pipe()
        os.set_blocking(self._wake_to, False)
        os.set_blocking(self._wake_from, False)

    def close(self) -> None:
        os.close(self._wake_from)
        os.close(self._wake_to)

    def wake(self) -> None:
        """Ends the wait in `keys`."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_to, b"w")

    def keys(self, within_s: float) -> list[str] | None:
        """The keys that were pressed, after at most `within_s` seconds. None: the terminal is gone."""
        ready, _, _ = select.select([self._fd, self._wake_from], [], [], within_s)
        if self._wake_from in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_from, 4096)
        if self._fd not in ready:
            return []
        text = self._read()
        if text is None:
            return None
        if text.endswith(ESCAPE) and select.select([self._fd], [], [], REST_S)[0]:
            text += self._read() or ""
        return list(named(text))

    def _read(self) -> str | None:
        try:
            data = os.read(self._fd, 1024)
        except OSError:
            return None
        return data.decode("utf-8", "replace") if data else None


def named(text: str) -> Iterator[str]:
    """The names of the keys in what a terminal sent."""
    at = 0
    while at < len(text):
        if text[at] != ESCAPE:
            yield NAMES.get(text[at], text[at])
            at += 1
            continue
        end = at + 1
        if text[end : end + 1] in ("[", "O"):
            end += 1
            while end < len(text) and not (text[end].isalpha() or text[end] == "~"):
                end += 1
            end += 1
        rest = text[at + 1 : end]
        if not rest:
            yield "escape"
        elif rest in SEQUENCES:
            yield SEQUENCES[rest]
        at = end


@contextlib.contextmanager
def keyboard() -> Iterator[Keyboard]:
    """Reads keys as they are pressed until the block is left. A changed size wakes it; SIGTERM and SIGHUP leave the
    block as an exception does, so that the terminal is put back."""
    fd = sys.stdin.fileno()
    before, keys = termios.tcgetattr(fd), Keyboard(fd)

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    handlers = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: keys.wake())
    try:
        tty.setcbreak(fd)
        mode = termios.tcgetattr(fd)
        mode[6][termios.VSUSP] = b"\x00"  # a stop would leave the other screen behind
        termios.tcsetattr(fd, termios.TCSANOW, mode)
        yield keys
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        keys.close()
