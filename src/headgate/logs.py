"""Writes log lines, as text for people or as JSON for machines, from a thread of its own: no request waits for a slow
terminal or a full pipe.

    2026-10-05 14:03:11.482 WARNING headgate.upkeep.prober: replica gpu-a is out: 3 failures in a row
    {"time":"2026-10-05T12:03:11.482Z","level":"warning","logger":"headgate.upkeep.prober","message":"…"}

One event is one line, whatever a client has written into it: control characters are escaped, and the lines of a
traceback are indented (text) or a field (JSON).
"""

import json
import logging
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Literal, TextIO

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
LEVEL_ENV, FORMAT_ENV, QUIET_ENV = "HEADGATE_LOG_LEVEL", "HEADGATE_LOG_FORMAT", "HEADGATE_QUIET"
"""Variables with the defaults of the options; the engines that a gateway starts inherit them."""
PACKAGE = "headgate"
MOST_WAITING = 8192
"""Maximum lines that wait to be written; further ones are dropped and counted."""
LONGEST_MESSAGE = 8192
"""Maximum characters of a message: a client may have written a part of it."""
CLOSE_S = 2.0
"""Maximum seconds for writing what waits at the end."""
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LINE_ENDS = re.compile("[\x7f-\x9f\u2028\u2029]")
"""What JSON allows in a string, and some readers take for the end of a line."""
_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every LogRecord has; anything else was given as `extra`."""
_FIRST_FIELDS = frozenset(("time", "level", "logger", "message", "exception"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    level: LogLevel = "info"
    format: LogFormat = "text"
    quiet: bool = False
    """True: no banner; without a level of its own, warnings and errors only."""
    access: bool = False
    """True: each request that is answered is a line, too."""

    @property
    def banner(self) -> bool:
        """Whether lines for people, which are no log lines, may be printed among them."""
        return self.format == "text" and not self.quiet


def one_line(text: str) -> str:
    """The text with control characters, line ends and lone surrogates escaped."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text[:LONGEST_MESSAGE])


class TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created)
        said = one_line(record.getMessage())
        line = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} {record.levelname:<7} {record.name}: {said}"
        if record.exc_info:
            line += "".join(f"\n    {one_line(part)}" for part in self.formatException(record.exc_info).splitlines())
        return line


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, Any] = {
            "time": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _plain(record.getMessage()[:LONGEST_MESSAGE]),
        }
        for name, value in vars(record).items():
            if name not in _OWN_FIELDS and name not in _FIRST_FIELDS:
                fields[_plain(name)] = _plain(value)
        if record.exc_info:
            fields["exception"] = _plain(self.formatException(record.exc_info))
        line = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        return _LINE_ENDS.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def _plain(value: object) -> Any:
    """A value that is valid in JSON, whatever it was."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value)):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


FORMATTERS: dict[LogFormat, Callable[[], logging.Formatter]] = {"text": TextLines, "json": JsonLines}


class LogWriter(logging.Handler):
    """Passes lines to a thread that writes them. Lines that find no place are dropped; how many is logged as soon as
    there is room again."""

    def __init__(self, stream: TextIO, most: int = MOST_WAITING) -> None:
        super().__init__()
        self.dropped = 0
        self._told = 0
        self._stream = stream
        self._most = most
        self._waiting: deque[Callable[[], str]] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        self.put(lambda: line)

    def put(self, line: Callable[[], str]) -> None:
        """Adds a line, which the thread makes and writes. Never waits."""
        if len(self._waiting) >= self._most:
            self.dropped += 1
            return
        self._waiting.append(line)
        self._wake.set()

    def close(self) -> None:
        """Writes what waits, for at most CLOSE_S seconds. Further lines are dropped."""
        self._closing = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)
        super().close()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            closing = self._closing
            self._wake.clear()
            while self._waiting:
                self._write()
            if closing:
                return

    def _write(self) -> None:
        lines = [self._waiting.popleft()() for _ in range(min(256, len(self._waiting)))]
        if self.dropped > self._told:
            lost, self._told = self.dropped - self._told, self.dropped
            lines.append(self.format(_record(f"{lost} log lines were dropped: they came too fast to be written")))
        try:
            self._stream.write("".join(f"{line}\n" for line in lines))
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone; requests are served all the same
            self.dropped += len(lines)


def _record(message: str) -> logging.LogRecord:
    return logging.LogRecord(f"{PACKAGE}.logs", logging.WARNING, "", 0, message, None, None)


@contextmanager
def logging_to(options: LogOptions, stream: TextIO | None = None) -> Iterator[LogWriter]:
    """Logs as the options say while the block runs, to standard error where no stream is given. Engines that are
    started meanwhile log likewise."""
    writer = LogWriter(sys.stderr if stream is None else stream)
    writer.setFormatter(FORMATTERS[options.format]())
    root, ours = logging.getLogger(), logging.getLogger(PACKAGE)
    before = root.handlers[:], root.level, ours.level
    root.handlers[:] = [writer]
    root.setLevel(logging.WARNING)  # of libraries
    ours.setLevel(options.level.upper())
    told = {LEVEL_ENV: options.level, FORMAT_ENV: options.format, QUIET_ENV: "1" if options.quiet else ""}
    outside = {name: os.environ.get(name) for name in told}
    _set_environment(told)
    try:
        yield writer
    finally:
        _set_environment(outside)
        root.handlers[:], level, own_level = before
        root.setLevel(level)
        ours.setLevel(own_level)
        writer.close()


def _set_environment(told: Mapping[str, str | None]) -> None:
    for name, value in told.items():
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)
