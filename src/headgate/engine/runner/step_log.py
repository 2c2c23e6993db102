"""Logs what every step did and how long it took: one JSON line each, for fitting a profile or finding a cause.

The engine's thread only adds a line to a list; line_file.py writes them. If the disk stalls for long, lines are dropped
and the file says how many.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from headgate.engine.engine import Engine
from headgate.line_file import FLUSH_S, LineFile
from headgate.machine.profile_fit import StepLine
from headgate.machine.step_features import StepFeatures, is_decode, shape
from headgate.model.errors import StartupError, UsageError
from headgate.model.step import Step

T = TypeVar("T")
VERSION = 1


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
            self.file = LineFile(path, msgspec.json.encode(header), _lacks, "step log", flush_s)
        except OSError as error:
            why = error.strerror or error
            raise StartupError(f"can't write the step log {path} ({why}): name another with --step-log FILE") from error
        self._started = started
        self._encode = msgspec.json.Encoder().encode

    def take(self, step: Step, began: float, took_s: float, run_s: float) -> None:
        """Adds a step; called on the engine's thread after every step."""
        if self.file.takes:
            self.file.add(self._encode(_line(step, began - self._started, took_s, run_s)))
        else:
            self.file.miss()

    def close(self) -> None:
        """Writes the remaining steps and closes the file. No step may be added afterwards."""
        self.file.close()


def _lacks(missing: int) -> bytes:
    return msgspec.json.encode(_Line(dropped=missing))


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
            raise UsageError(f"{path}, line {number}: a step needs at and took_s, neither of them negative")
        yield StepLine(line.at / dilation, line.took_s / dilation, line.run_s / dilation, _shape(line))


def _header(path: Path, data: bytes) -> StepLogHeader:
    header = _decoded(path, 1, data, StepLogHeader)
    if header.version != VERSION or not header.dilation > 0:
        wrong = f"version {header.version}" if header.version != VERSION else f"a dilation of {header.dilation}"
        raise UsageError(f"{path}, line 1: a step log with {wrong} can't be read here; make it again")
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
        raise UsageError(
            f"can't read the step log {path} ({error.strerror}); make one with headgate engine --step-log FILE"
        ) from error


def _decoded(path: Path, number: int, data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        what = "the header of a step log" if kind is StepLogHeader else "a step"
        raise UsageError(f"{path}, line {number}: not {what} ({error})") from error
