"""Runs Headgate's engine in a process of its own, on a Unix socket.

A process of its own, because a busy Python thread beside the model's threads doubles the time of a step.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from pathlib import Path

from headgate.compiled import same_copy
from headgate.model.errors import StartupError

log = logging.getLogger(__name__)

STOP_S = 12.0
KEEPER_S = 12.0
LONGEST_PAUSE_S = 5.0
KNOCK_EVERY_S = 0.25
_PR_SET_PDEATHSIG = 1
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)
"""None: the system has none, as macOS; an engine may then outlive a gateway that is killed."""


async def keep_engine_running(flags: Sequence[str], socket: Path, was_ready: Callable[[], bool]) -> None:
    """Keeps a `headgate engine` running on this socket until cancelled. An engine that ends is started again, after a
    pause that grows; one that was never ready raises StartupError, since the next start would fail too."""
    pause_s = 0.1
    while True:
        code = await _run(flags, socket)
        if not was_ready():
            raise StartupError(f"the embedded engine ended with exit code {code}; its own message is above")
        log.warning("the embedded engine ended with exit code %d; it is started again", code)
        await asyncio.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, 2.0 * pause_s)


async def spawn(flags: Sequence[str], socket: Path) -> Process:
    """Starts a `headgate engine` that does not outlive this process, however this process ends."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "headgate", "engine", "--uds", str(socket), "--no-banner", *flags,
        preexec_fn=_dying_with(os.getpid()),
        start_new_session=True,  # Ctrl-C is for the gateway, which then stops the engine in order
        env={**same_copy(), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


async def end(process: Process, grace_s: float = STOP_S) -> None:
    """Asks the process to stop, and kills it after `grace_s` seconds. Returns once it has ended."""
    if process.returncode is not None:
        return
    ended = await _asked(process, signal.SIGTERM, grace_s)
    if not ended and process.stdin is not None:
        # A keeper (fleet/keeper.py) has an input, and kills what it keeps.
        ended = await _asked(process, signal.SIGINT, KEEPER_S)
    if not ended:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    end_group(process.pid)


async def _asked(process: Process, number: signal.Signals, within_s: float) -> bool:
    """Returns whether the process has ended in time."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
    try:
        async with asyncio.timeout(within_s):
            await process.wait()
    except TimeoutError:
        return False
    return True


def end_group(leader: int) -> None:
    """Kills what a process that led a group has left behind. As long as any of it lives, no other group has its
    number."""
    if leader != os.getpgrp():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


async def until_it_listens(socket: Path) -> None:
    """Waits until a server accepts connections there."""
    while True:
        try:
            _, writer = await asyncio.open_unix_connection(socket)
        except OSError:
            await asyncio.sleep(KNOCK_EVERY_S)
        else:
            writer.close()
            return


async def _run(flags: Sequence[str], socket: Path) -> int:
    process = await spawn(flags, socket)
    try:
        return await process.wait()
    finally:
        await end(process)


def _dying_with(parent: int) -> Callable[[], None]:
    """Prepares the child between fork and exec: if the gateway is killed, so is its engine. Killed, not asked to stop:
    its gateway is gone, and an engine that hangs would stay for good."""

    def prepare() -> None:
        if _PRCTL is not None:
            _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the signal was set
            os._exit(1)

    return prepare
