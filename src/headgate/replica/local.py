"""An engine of our own, in a process of its own, on a Unix socket.

Its own process because a busy Python thread beside the model's threads doubles the time of a step.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from headgate.model.errors import StartupError

STOP_S = 12.0
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Between fork and exec: if the gateway is killed, so is its engine."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@asynccontextmanager
async def local_engine(flags: Sequence[str]) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A `headgate engine` with these flags and the url where it will be; it goes when the context does."""
    with tempfile.TemporaryDirectory(prefix="headgate-") as folder:
        socket = Path(folder) / "engine.sock"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headgate", "engine", "--uds", str(socket), "--no-banner", *flags,
            preexec_fn=_die_with_parent, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            yield f"unix:{socket}", process
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    async with asyncio.timeout(STOP_S):
                        await process.wait()
                except TimeoutError:
                    process.kill()
                    await process.wait()


async def until_it_ends(process: asyncio.subprocess.Process) -> None:
    """Raises when the engine ends by itself; never returns."""
    code = await process.wait()
    raise StartupError(f"the embedded engine ended with exit code {code}; its own message is above")
