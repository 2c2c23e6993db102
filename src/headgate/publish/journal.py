"""Writes and reads the file of all requests: one JSON line each, for `replay` and for an operator's own analysis.

    {"headgate":"0.3.0","schema":1,"wall":1760000000.0,"prompts":false}
    {"id":"…","at":…,"wall":…,"lane":"fast",…}

A thread of its own writes, so that no request waits for a slow disk. A full disk costs records, which are counted,
never requests. A header begins every file, and whatever a process appends to an existing file: times named `at` are on
the clock of the process that wrote the last header.
"""

import contextlib
import fcntl
import logging
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headgate import __version__
from headgate.model.clock import Clock, wall
from headgate.model.errors import StartupError
from headgate.model.record import Record

log = logging.getLogger(__name__)

SCHEMA = 1
MOST_WAITING = 65_536
"""Maximum records that wait for the disk; any more are dropped."""
MOST_PROMPT_BYTES = 64 << 20
"""Maximum bytes of prompts that wait for their record or the disk; any more are dropped."""
_AT_ONCE = 128
"""Maximum records written at a time; encoding them takes half a millisecond in which nothing else in this process
runs."""
_PROMPTS = ("messages", "prompt", "input")
_HEADER = b'{"headgate":'
_encode = msgspec.json.Encoder().encode


class JournalHeader(msgspec.Struct, frozen=True):
    headgate: str
    """The version of Headgate that wrote the header."""
    schema: int
    wall: float = 0.0
    """When the header was written, in seconds since 1970."""
    prompts: bool = False


class JournalLine(Record, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A record as it is read back."""

    prompt: Any = None
    """The request's messages, prompt or input as the client sent it; None: prompts were not kept."""


class JournalError(Exception):
    """The file can't be read; the message says why and what to do, on one line."""


# -- writing ----------------------------------------------------------------------------------------------


class Journal:
    def __init__(self, path: Path, rotate_bytes: int, files: int, prompts: bool, *, now: Clock = wall) -> None:
        """Raises StartupError where the file can't be written, is locked by another process, or is not a journal."""
        self.prompts = prompts
        self.prompts_dropped = 0
        self.written = 0
        """Records written since the start."""
        # Each number is changed by one thread only, the caller's or the journal's: so none needs a lock.
        self._overflowed = 0
        self._unwritten = 0
        self._prompt_bytes_in = 0
        self._prompt_bytes_out = 0
        self._file = _File(path, rotate_bytes, files, lambda: _header(now(), prompts))
        self._waiting: deque[tuple[Record, bytes]] = deque()
        self._prompts: dict[str, bytes] = {}
        self._failing = False
        self._lost_before = 0
        self._wake = threading.Event()
        self._closing = False
        try:
            self._file.open()
        except OSError as error:
            raise StartupError(
                f"record.path: {path} can't be written: {error.strerror or error}; "
                "create its folder, choose another path, or leave it out"
            ) from None
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Records that were not written: the disk was full, or too slow."""
        return self._overflowed + self._unwritten

    def take(self, records: Sequence[Record], now: float) -> None:
        """Takes records to be written. Called by one thread only, the loop's, and does not wait."""
        for record in records:
            prompt = self._prompts.pop(record.id, b"")
            if len(self._waiting) < MOST_WAITING:
                self._waiting.append((record, prompt))
            else:
                self._overflowed += 1
                self._prompt_bytes_in -= len(prompt)
        if self._waiting:
            self._wake.set()

    def keep_prompt(self, request_id: str, body: Mapping[str, Any]) -> None:
        """Keeps a request's prompt, to be written with the record of that id; call it before the record is taken. Does
        nothing unless prompts are kept."""
        if not self.prompts:
            return
        asked = next((body[name] for name in _PROMPTS if name in body), None)
        encoded = _encode(asked)
        more = len(encoded) - len(self._prompts.get(request_id, b""))
        if self._prompt_bytes_in - self._prompt_bytes_out + more > MOST_PROMPT_BYTES:
            self.prompts_dropped += 1
            return
        self._prompt_bytes_in += more
        self._prompts[request_id] = encoded

    def close(self, timeout_s: float = 5.0) -> None:
        """Writes what waits, for at most `timeout_s` seconds. Blocks: not to be called on the loop."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("%s: %d records could not be written in time", self._file.path, len(self._waiting))

    # -- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait()
            closing = self._closing
            self._wake.clear()
            while self._waiting:
                self._write([self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))])
            if closing:
                self._file.close()
                return

    def _write(self, records: list[tuple[Record, bytes]]) -> None:
        lines = [self._line(record, prompt) for record, prompt in records]
        done = 0
        try:
            for batch in self._file.fitting(lines):
                self._file.append(batch)
                done += len(batch)
        except OSError as error:
            if not self._failing:
                self._failing, self._lost_before = True, self.dropped
                why = error.strerror or error
                log.error("%s can't be written: %s; requests are served, their records lost", self._file.path, why)
        else:
            if self._failing:
                self._failing = False
                lost = self.dropped - self._lost_before
                log.warning("%s can be written again; %d records were lost", self._file.path, lost)
        self.written += done
        self._unwritten += len(records) - done

    def _line(self, record: Record, prompt: bytes) -> bytes:
        line = _encode(record)
        self._prompt_bytes_out += len(prompt)
        return b'%b,"prompt":%b}\n' % (line[:-1], prompt) if prompt else line + b"\n"


class _File:
    """The current file and the rotated ones. Passes every OSError to the caller, which may then try again."""

    def __init__(self, path: Path, rotate_bytes: int, files: int, header: Callable[[], bytes]) -> None:
        self.path = path
        self._rotate_bytes = rotate_bytes
        self._files = files
        self._header = header
        self._fd: int | None = None
        self._size = 0
        self._empty = True
        """Whether the file holds nothing but headers: such a file is not rotated."""

    def open(self) -> None:
        if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
            raise OSError(0, "it is not a regular file")  # opening a pipe would wait for its reader
        # Readable by its owner only: the file says which tenant asked for what, and when.
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(fd)
            self._size = _whole_lines(fd)
            self._empty = self._size == 0
            if not self._empty:
                _check_ours(os.pread(fd, 4096, 0).partition(b"\n")[0])
            os.ftruncate(fd, self._size)  # a line that was cut off when its writer died is of no use
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        self._put(self._header())

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def fitting(self, lines: list[bytes]) -> Iterator[list[bytes]]:
        """Yields the lines in batches, each of which fits the current file; rotates the file between them."""
        batch: list[bytes] = []
        size = 0
        for line in lines:
            full = self._size + size + len(line) > self._rotate_bytes and not (self._empty and not batch)
            if full:
                if batch:
                    yield batch
                self._rotate()
                batch, size = [], 0
            batch.append(line)
            size += len(line)
        yield batch

    def append(self, lines: list[bytes]) -> None:
        if self._fd is None or self._moved():
            self.close()
            self.open()
        self._put(b"".join(lines))
        self._empty = False

    def _put(self, data: bytes) -> None:
        assert self._fd is not None
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)  # half a line would spoil the next one
            self.close()
            raise
        self._size += len(data)

    def _moved(self) -> bool:
        """Whether another process has moved or removed the file."""
        assert self._fd is not None
        try:
            return os.stat(self.path).st_ino != os.fstat(self._fd).st_ino
        except FileNotFoundError:
            return True

    def _rotate(self) -> None:
        self.close()
        aside = [self.path, *(Path(f"{self.path}.{number}") for number in range(1, self._files))]
        aside.pop().unlink(missing_ok=True)
        for number in range(len(aside), 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(aside[number - 1], f"{self.path}.{number}")
        self.open()


def _header(now: float, prompts: bool) -> bytes:
    return msgspec.json.encode(JournalHeader(__version__, SCHEMA, now, prompts)) + b"\n"


def _check_ours(line: bytes) -> None:
    try:
        ours = msgspec.json.decode(line, type=JournalHeader).schema == SCHEMA
    except (msgspec.DecodeError, UnicodeDecodeError):
        ours = False
    if not ours:
        raise OSError(0, "something else, or of another version, is in it; move it away")


def _lock(fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(0, "another process is writing it") from None
    except OSError:
        pass  # there are file systems without locks


def _whole_lines(fd: int) -> int:
    """Bytes of the file up to and including its last line break."""
    end = os.fstat(fd).st_size
    while end > 0:
        begin = max(0, end - 65_536)
        found = os.pread(fd, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


# -- reading ----------------------------------------------------------------------------------------------


def read(path: Path) -> Iterator[JournalLine]:
    """Yields the records of one file, oldest first. A last line that was cut off is left out; raises JournalError for a
    file that is not a journal, or of another schema."""
    decode = msgspec.json.Decoder(JournalLine).decode
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed below; opened here so that the error becomes a JournalError
    except OSError as error:
        raise JournalError(f"{path} can't be read: {error.strerror or error}") from None
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            if line.startswith(_HEADER):
                _check(line, path, number)
            elif number == 1:
                raise JournalError(f"{path} is no file of records: it does not begin with {_HEADER.decode()}…")
            else:
                try:
                    yield decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise JournalError(f"{path}, line {number}: no record: {error}; remove that line") from None


def _check(line: bytes, path: Path, number: int) -> None:
    try:
        header = msgspec.json.decode(line, type=JournalHeader)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JournalError(f"{path}, line {number}: no header: {error}") from None
    if header.schema != SCHEMA:
        raise JournalError(
            f"{path}, line {number}: written by Headgate {header.headgate} in schema {header.schema}, and this one "
            f"({__version__}) reads {SCHEMA}; use the version that wrote it"
        )
