"""Runs a program with all that it starts, and ends all of it: a script of its own, which needs only Python.

    python -I -S keeper.py NAME FOLDER SAID COMMAND…

vLLM starts processes that outlive it when it is killed, and hold the GPU's memory. The keeper adopts every process that
its program leaves behind. It ends them all once the program has ended, and at once when its standard input closes: then
the gateway has ended, however it did, and the gateway's own FOLDER goes too. A keeper that is killed takes the program
along, and the gateway ends the rest of the process group.

SIGTERM is passed on to the program; SIGINT kills it with all that it started. What the program writes goes to standard
error, each line after NAME; its last words, the line that says why it ended, go to the file SAID.
"""

import ctypes
import os
import re
import select
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

MOST_SAID = 400
MOST_LINE = 64 << 10
LOOKS, LOOK_AGAIN_MS = 1000, 10
"""How often it is looked, and after which pause, whether killed processes are gone. One that the GPU's driver holds
takes longer, and is left to it."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

PREFIX = re.compile(r"^(?:\([^)]*pid=\d+[^)]*\) ?)?(?:(?:ERROR|CRITICAL) \S+ \S+ \[[^]]*\] ?)?")
"""What vLLM's logger and its processes write before a line."""
EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt|Exit|Vllm))\b(?:: (.*))?$")
COMPLAINT = re.compile(r"^[\w .-]*: error: (.*)$")
"""How Python's argparse ends."""
VAGUE = ("Engine core initialization failed", "Engine process failed", "cancelled", "EngineCore encountered")
"""Beginnings of errors that only say that another one came before."""


class LastWords:
    """Finds the line that says why a program ended among what it wrote."""

    def __init__(self) -> None:
        self._error = ""
        self._vague = ""
        self._line = ""
        self._open = False
        """Whether the error's first line says nothing yet, as of pydantic's."""

    def take(self, line: str) -> None:
        text = PREFIX.sub("", line).strip()
        if not text:
            return
        self._line = text
        if self._open:
            self._error = f"{self._error}: {text}"
            self._open = False
            return
        found = EXCEPTION.match(text)
        if found is not None:
            name, about = found[1], found[2] or ""
            if about.startswith(VAGUE):
                self._vague = f"{name}: {about}"
            else:
                self._error = f"{name}: {about}" if about else name
                self._open = "validation error" in about
        elif (complaint := COMPLAINT.match(text)) is not None:
            self._error = complaint[1]

    @property
    def said(self) -> str:
        """One line; empty: nothing was written."""
        found = self._error or self._vague or self._line
        clean = "".join(letter if letter.isprintable() else " " for letter in found)
        return clean if len(clean) <= MOST_SAID else f"{clean[: MOST_SAID - 1]}…"


class _Reader(threading.Thread):
    """Passes on what the program writes."""

    def __init__(self, name: str, pipe: int) -> None:
        super().__init__(daemon=True)
        self._prefix = f"{name} | ".encode()
        self._pipe = pipe
        self.words = LastWords()

    def run(self) -> None:
        left = b""
        while data := os.read(self._pipe, MOST_LINE):
            *lines, left = (left + data).split(b"\n")
            if len(left) > MOST_LINE:
                lines, left = [*lines, left], b""
            self._pass_on(lines)
        self._pass_on([left] if left else [])

    def _pass_on(self, lines: list[bytes]) -> None:
        for line in lines:
            self.words.take(line.decode(errors="replace"))
        with suppress(OSError):  # nobody reads it any more
            os.write(2, b"".join([self._prefix + line + b"\n" for line in lines]))


class Keeper:
    def __init__(self, name: str, folder: Path, said: Path) -> None:
        self._name = name
        self._folder = folder
        self._said = said
        self._pid = 0
        self._wake, self._woken = os.pipe()
        self._code: int | None = None
        self._asked = False
        self._now = False
        """Whether all is to end at once."""

    def run(self, command: Sequence[str]) -> int:
        """Returns the program's exit code; negative: the signal that ended it."""
        _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1)
        os.set_blocking(self._woken, False)
        signal.signal(signal.SIGCHLD, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        read, write = os.pipe()
        reader = _Reader(self._name, read)
        self._pid = _started(command, write)
        os.close(write)
        reader.start()
        self._reap()
        if self._asked:
            self._pass_on_term()
        left_alone = self._watch()
        self._end_all()
        if left_alone:
            shutil.rmtree(self._folder, ignore_errors=True)
            with suppress(OSError):  # others' files are in it
                self._folder.parent.rmdir()
            return 1
        reader.join(1.0)
        with suppress(OSError):
            self._said.write_text(reader.words.said)
        return self._code if self._code is not None else 1

    def _watch(self) -> bool:
        """Waits for the program's end. Returns True if the gateway's came first."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while self._code is None and not self._now:
            for ready, _ in poll.poll():
                if ready == self._wake:
                    os.read(self._wake, 4096)
                elif not _reads(0):
                    return True
            self._reap()
        return False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self._asked = True
            if self._pid:
                self._pass_on_term()
        self._now = self._now or number == signal.SIGINT
        with suppress(BlockingIOError):
            os.write(self._woken, b"!")

    def _pass_on_term(self) -> None:
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def _reap(self) -> None:
        """Takes the exit codes of processes that have ended, adopted ones too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._pid:
                self._code = os.waitstatus_to_exitcode(status)

    def _end_all(self) -> None:
        pause = select.poll()
        for _ in range(LOOKS):
            found = descendants(os.getpid())
            if not found:
                return
            for pid in found:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            pause.poll(LOOK_AGAIN_MS)


def descendants(pid: int) -> list[int]:
    """The processes below this one that have not ended, or whose exit code was not taken yet."""
    below: dict[int, list[int]] = {}
    for one in os.listdir("/proc"):
        if one.isdecimal():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{one}/stat", "rb") as stat:
                below.setdefault(int(stat.read().rpartition(b")")[2].split()[1]), []).append(int(one))
    found, look = [], [pid]
    while look:
        children = below.get(look.pop(), [])
        found += children
        look += children
    return found


def _reads(descriptor: int) -> bool:
    """Whether the other end is still open."""
    try:
        return bool(os.read(descriptor, 4096))
    except OSError:
        return False


def _started(command: Sequence[str], output: int) -> int:
    """Starts the program, which ends with the keeper."""
    keeper, libc = os.getpid(), _libc()
    pid = os.fork()
    if pid:
        return pid
    try:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.execvp(command[0], list(command))
    except OSError as error:
        os.write(2, f"{command[0]}: error: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def main() -> None:
    name, folder, said, *command = sys.argv[1:]
    code = Keeper(name, Path(folder), Path(said)).run(command)
    if code < 0:  # it ends as the program did
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)


if __name__ == "__main__":
    main()
