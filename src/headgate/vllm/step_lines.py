"""Writes the steps of vLLM as the step log that `headgate fit` reads (engine/runner/step_log.py), without its needs."""

import json
from collections.abc import Iterable
from pathlib import Path

from headgate.line_file import LineFile

VERSION = 1


class StepLines:
    def __init__(self, path: Path, sizes: dict[str, str | int], started: float) -> None:
        """Raises OSError when `path` can't be written. `sizes`: a profile without its times."""
        header = {"headgate": "step log", "version": VERSION, "profile": sizes}
        self._file = LineFile(path, json.dumps(header).encode(), _lacks, "step log")
        self._started = started

    def take(
        self,
        began: float,
        took_s: float,
        prefill: Iterable[tuple[int, int]],
        drafts: int,
        decodes: int,
        context: int,
    ) -> None:
        """`prefill`: of each prompt the tokens computed before, and those of the step. `context`: KV tokens that all
        streams read together."""
        if not self._file.takes:
            self._file.miss()
            return
        rows = [list(row) for row in prefill]
        line = {
            "at": round(began - self._started, 6),
            "took_s": round(took_s, 7),
            "run_s": round(took_s, 7),
            "prefill": rows,
            "drafts": drafts,
            "decodes": decodes,
            "context": context,
            "sequences": decodes + len(rows),
        }
        self._file.add(json.dumps(line).encode())

    def close(self) -> None:
        self._file.close()


def _lacks(missing: int) -> bytes:
    return json.dumps({"dropped": missing}).encode()
