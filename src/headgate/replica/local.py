"""An engine of our own, in a process of its own, on a Unix socket.

Its own process because a busy Python thread beside the model's threads doubles the time of a step.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from headgate.model.errors import StartupError

log = logging.getLogger(__name__)

STOP_S = 12.0
LONGEST_PAUSE_S = 5.0
_PR_SET_PDEATHSIG = 1


async def keep_engine_running(flags: Sequence[str], socket: Path, was_ready: Callable[[], bool]) -> None:
    """A `headgate engine` on this socket until cancelled. One that ends is started again, after a pause that grows; one
    that never got ready is a StartupError, since it would not the next time either."""
    pause_s = 0.1
    while True:
        code = await _run(flags, socket)
        if not was_ready():
            raise StartupError(f"the embedded engine ended with exit code {code}; its own message is above")
        log.warning("the embedded engine ended with exit code %d; it is started again", code)
        await asyncio.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, 2.0 * pause_s)


async def _run(flags: Sequence[str], socket: Path) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headgate", "engine", "--uds", str(socket), "--no-banner", *flags,
        preexec_fn=_die_with_parent,
        start_new_session=True,  # Ctrl-C is for the gateway, which then stops it in order
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


def _die_with_parent() -> None:
    """Between fork and exec: if the gateway is killed, so is its engine."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
