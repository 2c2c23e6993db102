"""Headgate as its users run it: a process of its own, asked over sockets."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import headgate as package
from tests import ledger

TESTED = str(Path(package.__file__).parent.parent)
"""Where the tests themselves have it from: the sources, or the compiled copy of them."""


@contextmanager
def headgate(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running `headgate …` and where it listens. Fails with what it printed if it does not get ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "300", "NO_COLOR": "1", "PYTHONPATH": TESTED},
    )
    assert process.stderr is not None
    printed = []
    url = ""
    try:
        for line in process.stderr:
            printed.append(line)
            if found := re.search(r"Ready on (\S+)", line):
                url = found[1]
                if "serve" in arguments:
                    ledger.running[url] = process
                yield process, url
                if ledger.running.get(url) is process and process.poll() is None:
                    ledger.check(url)
                return
        raise AssertionError(f"it did not get ready: {''.join(printed)}")
    finally:
        if ledger.running.get(url) is process:
            del ledger.running[url]
        process.kill()
        process.wait()
        process.stderr.close()


def ask(
    url: str, body: dict[str, Any] | bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """GET, or POST when there is a body. With an admin key, where one may be needed and none is given."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    given = {"content-type": "application/json", **(headers or {})}
    if "/admin/" in url and "authorization" not in given:
        given.setdefault("x-api-key", ledger.ADMIN_KEY)
    request = urllib.request.Request(url, data, given)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
