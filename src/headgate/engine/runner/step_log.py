"""Logs what every step did and how long it took: one JSON line each, for fitting a profile or finding a cause.

The engine's thread only adds a line to a list. A thread of its own writes the lines once a second: a disk that stalls
must not stall the streams. If the disk stalls for long, lines are dropped and the file says how many.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedWriter
from pathlib import Path
from typing import TypeVar

import msgspec

from headgate.engine.engine import Engine
from headgate.machine.profile_fit import StepLine
from headgate.machine.step_features import StepFeatures, is_decode, shape
from headgate.model.errors import StartupError
from headgate.model.step import Step

log = logging.getLogger(__name__)

T = TypeVar("T")
VERSION = 1
FLUSH_S = 1.0
MOST_WAITING = 20_000
"""Maximum lines waiting to be written; a busy GPU makes a hundred a second."""
MOST_BYTES = 2 << 30
"""Maximum bytes of the file: about a day of a busy GPU."""


class StepLogHeader(msgspec.Struct, kw_only=True, tag_field="headgate", tag="step log"):
    """The first line of a step log."""

    version: int = VERSION
    profile: dict[str, str | int]
    """The engine's sizes: a Profile without its times."""
    emulated: str | None = None
    """The profile that gave the times; None: a model computed the steps."""
    dilation: float = 1.0
    """Real seconds per second of the profile."""


class _Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    at: float = -1.0
    took_s: float = 0.0
    run_s: float = 0.0
    prefill: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """For each sequence that prefills: tokens computed before, tokens in this step."""
    drafts: int = 0
    decodes: int = 0
    context: int = 0
    """KV tokens that all decodes read, together."""
    save: int = 0
    load: int = 0
    copy: int = 0
    """KV tokens moved before computing: saved, loaded and copied."""
    moves: int = 0
    """All moves, also those that cost nothing."""
    sequences: int = 0
    dropped: int = 0
    """Lines missing here; such a line has no other field."""


def header_of(
    engine: Engine, model: str, bytes_per_token: int, emulated: str | None = None, dilation: float = 1.0
) -> StepLogHeader:
    ledger, batch = engine.batcher.ledger, engine.batcher.config
    sizes: dict[str, str | int] = {
        "name": model,
        "model": model,
        "slots": engine.runner.slots,
        "context": ledger.slot_tokens,
        "kv_tokens": ledger.blocks * ledger.block_tokens,
        "host_tokens": ledger.host_blocks * ledger.block_tokens,
        "block_tokens": ledger.block_tokens,
        "bytes_per_token": bytes_per_token,
        "step_tokens": batch.step_tokens,
        "chunk_limit": batch.chunk_limit,
    }
    return StepLogHeader(profile=sizes, emulated=emulated, dilation=dilation)


class StepLog:
    def __init__(self, path: Path, header: StepLogHeader, started: float, *, flush_s: float = FLUSH_S) -> None:
        """Raises StartupError when `path` can't be written. `started`: the engine's clock now."""
        try:
            self._file = _begun(path, msgspec.json.encode(header) + b"\n")
        except OSError as error:
            why = error.strerror or error
            raise StartupError(f"can't write the step log {path} ({why}): name another with --step-log FILE") from error
        self.dropped = 0
        self._path = path
        self._started = started
        self._flush_s = flush_s
        self._encode = msgspec.json.Encoder().encode
        self._waiting: deque[bytes] = deque()
        self._missed = 0
        """Lines dropped, counted by the engine's thread; the writing thread keeps in `_noticed` how many of them it has
        reported."""
        self._noticed = 0
        self._room = MOST_BYTES
        self._broken = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._main, name="step-log", daemon=True)
        self._thread.start()

    def take(self, step: Step, began: float, took_s: float, run_s: float) -> None:
        """Adds a step; called on the engine's thread after every step."""
        if self._broken or len(self._waiting) >= MOST_WAITING:
            self._missed += 1
            return
        self._waiting.append(self._encode(_line(step, began - self._started, took_s, run_s)))

    def close(self) -> None:
        """Writes the remaining lines and closes the file. No step may be added afterwards."""
        self._closing.set()
        self._thread.join()
        if self.dropped:
            log.warning("the step log %s lacks %d steps", self._path, self.dropped)

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
            lines.append(self._encode(_Line(dropped=missing)))
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
        """Ends the log; the engine continues without one."""
        if not self._broken:
            log.warning("the step log %s ends here: %s", self._path, why)
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


def _line(step: Step, at: float, took_s: float, run_s: float) -> _Line:
    whole = shape(step)
    prefill = [(row.start, row.count) for row in step.rows if not is_decode(row)]
    return _Line(
        at=round(at, 6),
        took_s=round(took_s, 7),
        run_s=round(run_s, 7),
        prefill=prefill,
        drafts=whole.prefill - sum(count for _, count in prefill),
        decodes=whole.decodes,
        context=whole.context,
        save=whole.saved,
        load=whole.loaded,
        copy=whole.copied,
        moves=len(step.moves),
        sequences=len(step.rows),
    )


# -- reading -------------------------------------------------------------------------------------------------


def read_header(path: Path) -> StepLogHeader:
    return _header(path, next(_lines(path), b""))


def read(path: Path) -> Iterator[StepLine]:
    """Yields the steps, in the profile's seconds. A line that makes no sense raises a StartupError with its number.
    Half a line at the end is what a killed process leaves behind, and is skipped."""
    dilation = 1.0
    for number, data in enumerate(_lines(path), 1):
        if number == 1:
            dilation = _header(path, data).dilation
            continue
        if not data.endswith(b"\n"):
            return
        line = _decoded(path, number, data, _Line)
        if line.dropped:
            continue
        if line.at < 0 or line.took_s < 0:
            raise StartupError(f"{path}, line {number}: a step needs at and took_s, neither of them negative")
        yield StepLine(line.at / dilation, line.took_s / dilation, line.run_s / dilation, _shape(line))


def _header(path: Path, data: bytes) -> StepLogHeader:
    header = _decoded(path, 1, data, StepLogHeader)
    if header.version != VERSION or not header.dilation > 0:
        wrong = f"version {header.version}" if header.version != VERSION else f"a dilation of {header.dilation}"
        raise StartupError(f"{path}, line 1: a step log with {wrong} can't be read here; make it again")
    return header


def _shape(line: _Line) -> StepFeatures:
    return StepFeatures(
        prefill=line.drafts + sum(count for _, count in line.prefill),
        decodes=line.decodes,
        context=line.context,
        pairs=sum(count * (2 * start + count) for start, count in line.prefill),
        saved=line.save,
        loaded=line.load,
        copied=line.copy,
    )


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise StartupError(
            f"can't read the step log {path} ({error.strerror}); make one with headgate engine --step-log FILE"
        ) from error


def _decoded(path: Path, number: int, data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        what = "the header of a step log" if kind is StepLogHeader else "a step"
        raise StartupError(f"{path}, line {number}: not {what} ({error})") from error
