"""Reads a trace's rows in order of arrival, in any known format; an error names the line that can't be read."""

import csv
import gzip
import io
import random
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache
from importlib.resources import files
from itertools import chain, groupby, pairwise
from pathlib import Path
from statistics import median
from typing import IO, cast

import msgspec

from headgate.workload.arrival import Arrival, WorkloadError

BUNDLED = {
    "azure-conv": "azure_conv.csv.gz",
    "azure-code": "azure_code.csv.gz",
    "mooncake": "mooncake_conversation.jsonl.gz",
    "sharegpt": "sharegpt_lengths.csv.gz",
}
FORMATS = (
    "Azure's csv, Mooncake's jsonl, csv of num_prefill_tokens,num_decode_tokens, or a file of `headgate serve --record`"
)
AZURE_COLUMNS = "TIMESTAMP,ContextTokens,GeneratedTokens"
MOONCAKE_FIELDS = "timestamp, input_length, output_length, hash_ids"

Lines = Iterator[tuple[int, str]]


@lru_cache(maxsize=4)
def bundled(name: str) -> tuple[Arrival, ...]:
    with data(BUNDLED[name]) as file:
        return _rows(name, file)


def data(name: str) -> IO[bytes]:
    return io.BytesIO(gzip.decompress(files("headgate.workload").joinpath("data", name).read_bytes()))


def read(path: Path, kind: str | None = None) -> tuple[Arrival, ...]:
    """Raises WorkloadError for a file that does not exist, has a malformed line, or is in no known format. `kind`: it
    must be of this one, `azure` or `mooncake`; None: any."""
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed below, and opened here so that the error is ours
    except OSError as error:
        raise WorkloadError(f"{path} can't be read: {error.strerror or error}") from None
    with file:
        if file.peek(2)[:2] == b"\x1f\x8b":
            with gzip.open(file) as unpacked:
                return _rows(str(path), cast(IO[bytes], unpacked), kind)
        return _rows(str(path), file, kind)


def _rows(name: str, file: IO[bytes], kind: str | None = None) -> tuple[Arrival, ...]:
    try:
        # Bytes that are no text fail later in their own line, which the error can name.
        lines: Lines = ((number, line.decode("utf-8", "surrogateescape")) for number, line in enumerate(file, 1))
        first = next(lines, (0, ""))
        reader = _reader(first[1])
        if kind is not None and reader is not KINDS[kind][0]:
            if not first[1].strip():
                raise WorkloadError(f"{name}, line 1: it is empty; {kind} has {KINDS[kind][1]}")
            raise _malformed(name, 1, first[1], KINDS[kind][1], ValueError(f"not {kind}'s format"))
        if reader is None:
            raise WorkloadError(f"{name}, line 1: no known trace; readable are {FORMATS}")
        rows = reader(name, chain([first], lines))
    except (OSError, EOFError) as error:  # such as a gzip file that is cut off
        raise WorkloadError(f"{name} can't be read: {error}") from None
    if not rows:
        raise WorkloadError(f"{name} has no requests in it")
    rows.sort(key=lambda row: row.at_s)
    return tuple(rows)


def _reader(first: str) -> Callable[[str, Lines], list[Arrival]] | None:
    if first.startswith('{"headgate":'):
        from headgate.workload.records import read_records

        return read_records
    if first.lstrip().startswith("{"):
        return _mooncake
    columns = [name.strip() for name in first.split(",")]
    if columns[:3] == AZURE_COLUMNS.split(","):
        return _azure
    return _lengths if columns[:2] == ["num_prefill_tokens", "num_decode_tokens"] else None


def _azure(name: str, lines: Lines) -> list[Arrival]:
    rows: list[Arrival] = []
    next(lines)
    begin: float | None = None
    for number, line in lines:
        try:
            when, prompt, output = next(csv.reader([line]))[:3]
            # No zone means UTC, not the local one: summer time would put an hour into the trace.
            stamp = datetime.fromisoformat(when if "+" in when[10:] else when + "+00:00").timestamp()
            begin = stamp if begin is None else begin
            rows.append(Arrival(stamp - begin, _tokens(prompt), _tokens(output)))
        except (ValueError, StopIteration) as error:
            raise _malformed(name, number, line, AZURE_COLUMNS, error) from None
    return _from_zero(rows)


def _lengths(name: str, lines: Lines) -> list[Arrival]:
    """Rows without times: consecutive rows whose prompt grows are one chat."""
    rows: list[Arrival] = []
    next(lines)
    chat = -1
    before = 0
    for number, line in lines:
        try:
            prompt, output = (_tokens(part) for part in line.split(",")[:2])
        except ValueError as error:
            raise _malformed(name, number, line, "num_prefill_tokens,num_decode_tokens", error) from None
        if prompt <= before:
            before = 0
        if not before:
            chat += 1
        before = prompt
        rows.append(Arrival(0.0, prompt, output, session=str(chat)))
    return rows


class _Mooncake(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def _mooncake(name: str, lines: Lines) -> list[Arrival]:
    decode = msgspec.json.Decoder(_Mooncake).decode
    rows: list[Arrival] = []
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = decode(line.encode("utf-8", "surrogateescape"))
            if row.input_length < 0 or row.output_length < 0 or not 0 <= row.timestamp < 1e15:
                raise ValueError("a number below zero, or no time")
        except (msgspec.DecodeError, ValueError) as error:
            raise _malformed(name, number, line, MOONCAKE_FIELDS, error) from None
        tokens = max(1, row.input_length), max(1, row.output_length)
        rows.append(Arrival(row.timestamp / 1e3, *tokens, prefix=row.hash_ids))
    return _from_zero(rows)


KINDS: dict[str, tuple[Callable[[str, Lines], list[Arrival]], str]] = {
    "azure": (_azure, AZURE_COLUMNS),
    "mooncake": (_mooncake, MOONCAKE_FIELDS),
}
"""How the formats are read that a workload may ask for by name, and what each line of theirs has."""


def spread(rows: tuple[Arrival, ...], rng: random.Random) -> tuple[Arrival, ...]:
    """Spreads rows with equal times, which a coarse clock did not tell apart, evenly at random until its next tick."""
    groups = [(at_s, list(group)) for at_s, group in groupby(rows, key=lambda row: row.at_s)]
    if len(groups) < 2 or len(groups) > 0.9 * len(rows):
        return rows
    width = median(after - before for (before, _), (after, _) in pairwise(groups))
    return tuple(
        msgspec.structs.replace(row, at_s=at_s + at)
        for at_s, group in groups
        for row, at in zip(group, sorted(rng.uniform(0.0, width) for _ in group), strict=True)
    )


def _from_zero(rows: list[Arrival]) -> list[Arrival]:
    begin = min((row.at_s for row in rows), default=0.0)
    return rows if begin == 0.0 else [msgspec.structs.replace(row, at_s=row.at_s - begin) for row in rows]


def _tokens(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(f"{value} tokens")
    return max(1, value)


def _malformed(name: str, number: int, line: str, wanted: str, error: Exception) -> WorkloadError:
    shown = line.strip().encode("utf-8", "replace").decode()
    shown = shown if len(shown) <= 60 else shown[:60] + "…"
    return WorkloadError(f"{name}, line {number}: expected {wanted}, got {shown!r} ({error})")
