"""Reads a table of timings, as sweeps of `vllm bench` and profilers such as Dynamo's give: first tokens by prompt
length, gaps by context and batch. One row may have both."""

import csv
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Final

from headgate.machine.observed import Observation, first_token, gap
from headgate.model.errors import UsageError

MOST_ROWS: Final = 100_000
MOST_TOKENS: Final = 100_000_000
MOST_MS: Final = 3.6e6
PHASE: Final = ("phase",)
LENGTH: Final = (
    "isl_or_context",
    "isl",
    "input_len",
    "random_input_len",
    "prompt_tokens",
    "prompt_len",
    "context",
    "length",
)
OUTPUT: Final = ("osl", "output_len", "random_output_len", "output_tokens")
BATCH: Final = ("implied_batch", "batch", "batch_size", "concurrency", "max_concurrency")
TTFT: Final = ("ttft_ms", "median_ttft_ms", "p50_ttft_ms", "mean_ttft_ms", "prefill_ms", "ttft")
ITL: Final = ("itl_ms", "median_itl_ms", "mean_itl_ms", "median_tpot_ms", "mean_tpot_ms", "tpot_ms", "decode_ms", "itl")
EITHER: Final = ("ttft_or_itl_ms",)
COLUMNS: Final = (
    "expected a header line with a column of lengths (isl, input_len, context), of batches (batch, max_concurrency), "
    "and ttft_ms or itl_ms, or both"
)


def read_table(path: Path, chunk: int) -> list[Observation]:
    """Raises UsageError. `chunk`: tokens of a chunk of a prompt."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            named = {(name or "").strip().lower(): name for name in reader.fieldnames or ()}
            if not _known(named, LENGTH) or not (_known(named, TTFT) or _known(named, ITL) or _known(named, EITHER)):
                raise UsageError(f"{path}: {COLUMNS}")
            found: list[Observation] = []
            for number, row in enumerate(reader, 2):
                if number > MOST_ROWS:
                    raise UsageError(f"{path}: more than {MOST_ROWS} rows; leave some out")
                cells = {ours: (row.get(theirs) or "").strip() for ours, theirs in named.items()}
                found.extend(_observed(cells, chunk, f"{path}, line {number}"))
    except OSError as error:
        raise UsageError(f"can't read {path} ({error.strerror}); name another file") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is no table of comma-separated values ({error})") from error
    return found


def _observed(cells: dict[str, str], chunk: int, where: str) -> Iterator[Observation]:
    length = _number(cells, LENGTH, MOST_TOKENS, where)
    if length is None:
        raise UsageError(f"{where}: no length; {COLUMNS}")
    batch = _number(cells, BATCH, MOST_TOKENS, where) or 1.0
    output = _number(cells, OUTPUT, MOST_TOKENS, where) or 0.0
    phase = next((cells[name].lower() for name in PHASE if name in cells), "")
    ttft, itl = _number(cells, TTFT, MOST_MS, where), _number(cells, ITL, MOST_MS, where)
    either = _number(cells, EITHER, MOST_MS, where)
    if either is not None:
        ttft, itl = (either, None) if phase == "prefill" else (None, either)
    # At more than one at once a first token waits for others' prompts, which a table does not tell.
    if ttft is not None and batch == 1.0 and phase != "decode":
        yield first_token(max(1, round(length)), ttft / 1e3, chunk)
    if itl is not None and phase != "prefill":
        yield gap(max(1, round(batch)), length + output / 2, itl / 1e3)


def _known(named: dict[str, str], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in named), None)


def _number(cells: dict[str, str], names: tuple[str, ...], most: float, where: str) -> float | None:
    """None: there is no such column, or its cell is empty."""
    name = _known(cells, names)
    if name is None or not cells[name]:
        return None
    try:
        value = float(cells[name])
    except ValueError:
        value = -1.0
    if not isfinite(value) or not 0.0 < value <= most:
        raise UsageError(f"{where}: {name} is {cells[name][:40]!r}; expected a number above 0, at most {most:g}")
    return value
