"""What each client's script shares: it names its checks, runs them all, and says which failed.

A script runs in its client's own environment, so it imports nothing but its client and this file.
"""

import asyncio
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

URL = os.environ.get("HEADGATE_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("HEADGATE_MODEL", "default")
KEY = os.environ.get("HEADGATE_KEY", "none")
SMALL = os.environ.get("HEADGATE_SMALL") == "1"
"""The model is a very small one: what it says, and which tool it calls unasked, is not checked."""

_checks: list[Callable[[], Any]] = []


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    _checks.append(function)
    return function


def clever(function: Callable[[], Any]) -> Callable[[], Any]:
    """A check that needs a model which follows instructions."""
    return function if SMALL else check(function)


def main() -> None:
    failed = 0
    for function in _checks:
        name, began = function.__name__, time.monotonic()
        try:
            if inspect.iscoroutinefunction(function):
                asyncio.run(function())
            else:
                function()
        except Exception as error:
            failed += 1
            traceback.print_exc()
            told = str(error).splitlines() or [""]
            print(f"FAILED {name}: {type(error).__name__}: {told[0][:300]}", flush=True)
        else:
            print(f"ok {name} ({time.monotonic() - began:.2f} s)", flush=True)
    sys.exit(1 if failed else 0)
