"""A `headgate serve` or `headgate engine` whose standard error is kept, as an operator's log collector keeps it."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.process import TESTED


@dataclass
class Logged:
    process: subprocess.Popen[bytes]
    place: Path
    url: str = ""

    @property
    def text(self) -> str:
        return self.place.read_text()

    def objects(self) -> list[dict[str, Any]]:
        """The lines, each of which must be a JSON object."""
        return [json.loads(line) for line in self.text.splitlines()]

    def until(self, true: Callable[[], object], within_s: float = 50.0) -> None:
        ends = time.monotonic() + within_s
        while not true():
            assert self.process.poll() is None, self.text
            assert time.monotonic() < ends, self.text
            time.sleep(0.02)

    def until_said(self, *parts: str) -> None:
        self.until(lambda: all(part in self.text for part in parts))


@contextmanager
def logging_process(
    tmp_path: Path, *arguments: str, ready: bool = True, environ: dict[str, str] | None = None
) -> Iterator[Logged]:
    place = tmp_path / f"stderr-{len(list(tmp_path.iterdir()))}"
    command = [sys.executable, "-m", "headgate", *arguments]
    env = {**os.environ, "COLUMNS": "300", "NO_COLOR": "1", "PYTHONPATH": TESTED, **(environ or {})}
    with place.open("wb") as stderr:
        process = subprocess.Popen(command, stderr=stderr, env=env)
    run = Logged(process, place)
    try:
        if ready:
            run.until(lambda: re.search(r"Ready on (\S+)", run.text))
            found = re.search(r"Ready on (\S+)", run.text)
            assert found is not None
            run.url = found[1]
        yield run
    finally:
        process.kill()
        process.wait()
