"""What is attacked: a gateway and an engine as users run them, in processes of their own, and the engines behind."""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.config.output import TASKS
from headgate.model.lane import LANES
from tests.fuzz.engines import Engine

READY_WITHIN_S = 120.0
WRONG = re.compile(
    r"Traceback|Exception (?:in|ignored)|never retrieved|Segmentation|Aborted|GGML_ASSERT|terminate called"
)
"""In what a process prints: an uncaught exception."""


@dataclass(slots=True)
class Process:
    """`headgate …`, what it printed so far, and where it listens."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    port: int = 0
    read: int = 0

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def printed(self) -> str:
        return self.log.read_text(errors="replace")

    def wrong(self) -> str:
        """The first uncaught exception that it has printed since the last time; empty: none."""
        printed = self.printed()
        fresh, self.read = printed[self.read :], len(printed)
        found = WRONG.search(fresh)
        return fresh[found.start() : found.start() + 3_000] if found else ""

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    async def ready(self) -> None:
        ends = time.monotonic() + READY_WITHIN_S
        while not (found := re.search(r"Ready on \S+?:(\d+)\b", self.printed())):
            if not self.alive or time.monotonic() > ends:
                raise SystemExit(f"{self.name} did not get ready:\n{self.printed()}")
            await asyncio.sleep(0.05)
        self.port = int(found[1])


@dataclass(frozen=True, slots=True)
class Stage:
    gateway: Process
    engine: Process
    doubles: tuple[Engine, ...]

    def calm(self, calm: bool) -> None:
        """Engines whose health checks hang hold a connection, now and then; while the ledger is read, none should."""
        for one in self.doubles:
            one.calm = calm

    @property
    def processes(self) -> tuple[Process, Process]:
        return self.gateway, self.engine


LOWER = {"long": {"wait_bound_s": 3}, "batch": {"wait_bound_s": 5}}


def config(engines: dict[str, int]) -> dict[str, Any]:
    """Short times, so that each of them is met often."""
    return {
        "listen": {"port": 0},
        "replicas": [{"id": name, "url": f"http://127.0.0.1:{port}", "model": name} for name, port in engines.items()],
        "timeouts": {
            "header_s": 2, "body_s": 3, "idle_s": 5, "connect_s": 1, "first_token_s": 2, "stall_s": 1.5,
            "slow_client_grace_s": 0.5, "no_replica_wait_s": 1,
        },
        # What is relegated waits as long as lanes below allow: not 240 s.
        "lanes": {name: {"max_tokens": 16, **LOWER.get(name, {})} for name in LANES},
        "output": {"tasks": {name: {"max_tokens": 8} for name in TASKS}},
        "warm": {"timeout_s": 5},
        "health": {"deep_interval_s": 5},
        "observe": {"keep": 500},
    }  # fmt: skip


@contextlib.asynccontextmanager
async def staged(seed: int) -> AsyncIterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="headgate-fuzz-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        async with contextlib.AsyncExitStack() as doubles:
            engines = [Engine(name, seed) for name in ("good", "odd", "worse")]
            for one in engines:
                await doubles.enter_async_context(one.serving())
            real = _start(
                stack,
                folder,
                "engine",
                "--port",
                "0",
                "--slots",
                "4",
                "--context",
                "256",
                "--max-tokens",
                "8",
                "--model-name",
                "real",
            )
            await real.ready()
            file = folder / "headgate.json"
            file.write_text(json.dumps(config({one.name: one.port for one in engines} | {"real": real.port})))
            gateway = _start(stack, folder, "serve", "--config", str(file))
            await gateway.ready()
            yield Stage(gateway, real, tuple(engines))


def _start(stack: contextlib.ExitStack, folder: Path, *arguments: str) -> Process:
    log = folder / f"{arguments[0]}.log"
    file = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / "headgate"), *arguments], stdout=file, stderr=file, stdin=subprocess.DEVNULL
    )

    def end() -> None:
        process.kill()
        process.wait()

    stack.callback(end)
    return Process(arguments[0], process, log)
