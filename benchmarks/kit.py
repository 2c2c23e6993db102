"""How a program is started on a core of its own, loaded, watched and stopped.

The kit is two C programs that live beside the repository: `mockd`, a mock replica, and `lg`, a load generator. Both are
fast enough that the gateway between them is what is measured.
"""

import ctypes
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers import Unusable

READY_WITHIN_S, STOP_WITHIN_S = 60.0, 3.0
OPEN_FILES = 16_384
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)  # looked up here: a child between fork and exec should not load anything


@dataclass(frozen=True, slots=True)
class Command:
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)


# -- the kit --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kit:
    mockd: Path
    lg: Path

    def replica(self, port: int) -> Command:
        return Command([str(self.mockd), str(port)])

    def load(self, port: int, mode: str, key: str, **flags: object) -> Command:
        pairs = [part for flag, value in flags.items() for part in (f"--{flag}", str(value))]
        return Command([str(self.lg), str(port), mode, "--hdr", f"Authorization: Bearer {key}", *pairs])


def compiled(source: Path, folder: Path) -> Kit:
    if missing := [name for name in ("mockd.c", "lg.c") if not (source / name).is_file()]:
        raise Unusable(f"{' and '.join(missing)} not in {source}: say where the kit is with --kit or HEADGATE_KIT")
    if not (compiler := shutil.which("gcc")):
        raise Unusable("no gcc to compile the kit with")
    kit = Kit(folder / "mockd", folder / "lg")
    for program in (kit.mockd, kit.lg):
        argv = [compiler, "-O2", "-o", str(program), str(source / f"{program.name}.c"), "-lm"]
        if (done := subprocess.run(argv, capture_output=True, text=True)).returncode != 0:
            raise Unusable(f"{program.name}.c does not compile: {done.stderr[-500:]}")
    return kit


# -- processes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Processes:
    """A process and all it started: they share its process group."""

    first: subprocess.Popen[bytes]

    def cpu_s(self) -> float:
        """User and system time so far, of those alive and of those they have waited for."""
        return sum(sum(map(int, stat[11:15])) for stat in self._stats().values()) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """Proportional set size: what is shared among them is counted once."""
        total = 0
        for pid in self._stats():
            with suppress(FileNotFoundError, ProcessLookupError):
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                total += sum(map(int, re.findall(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)))
        return total / 1024

    def _stats(self) -> dict[int, list[str]]:
        stats = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = path.read_text().rpartition(") ")[2].split()  # a name may contain anything
                if int(fields[2]) == self.first.pid:
                    stats[int(path.parent.name)] = fields
        return stats


@dataclass(frozen=True, slots=True)
class Load:
    process: subprocess.Popen[bytes]

    def finished(self, within_s: float) -> dict[str, Any]:
        """What the load generator counted, if every request was answered well."""
        try:
            out, _ = self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            raise Unusable("the load generator did not end") from None
        if self.process.returncode != 0:
            raise Unusable(f"the load generator ended with {self.process.returncode}: {out[-200:]!r}")
        counted: dict[str, Any] = json.loads(out)
        broken = sum(counted[kind] for kind in ("e_conn", "e_reset", "e_trunc", "e_trunc_clean", "e_errev"))
        if broken or set(counted["codes"]) - {"200"}:
            raise Unusable(f"of {counted['started']} requests {broken} broke; answers: {counted['codes']}")
        return counted


@contextmanager
def started(command: Command, core: int) -> Iterator[Processes]:
    """Alive on its core inside the block, gone after it, however the block is left."""
    with tempfile.TemporaryFile() as log:
        process = _spawn(command, core, log.fileno())
        try:
            yield Processes(process)
        except (Unusable, OSError, http.client.HTTPException) as error:
            log.seek(0)
            tail = log.read().decode(errors="replace").splitlines()[-8:]
            raise Unusable("\n".join(filter(None, [str(error) or type(error).__name__, *tail]))) from error
        finally:
            end(process)


@contextmanager
def loading(command: Command, core: int, talks: bool = False) -> Iterator[Load]:
    """`talks`: it waits for a line on its standard input."""
    process = _spawn(command, core, subprocess.PIPE, subprocess.PIPE if talks else subprocess.DEVNULL)
    with process:
        try:
            yield Load(process)
        finally:
            end(process)


def _spawn(command: Command, core: int, out: int, given: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command.argv,
        env=os.environ | command.env,
        stdin=given,
        stdout=out,
        stderr=subprocess.STDOUT,
        process_group=0,
        preexec_fn=partial(_settle, core),
    )


def _settle(core: int) -> None:
    os.sched_setaffinity(0, {core})
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # also when the benchmark itself is killed


def end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_WITHIN_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it may have left behind
        process.wait()


def ask(port: int, method: str, path: str, body: object = None, key: str = "") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


def wait_until_serving(process: subprocess.Popen[bytes], port: int, key: str) -> None:
    """Until a completion comes through: what else says "ready" differs from gateway to gateway."""
    body = {"model": "mock", "messages": [{"role": "user", "content": "MOCK:n=1,"}], "max_tokens": 1}
    deadline, seen = time.monotonic() + READY_WITHIN_S, "nothing"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Unusable(f"ended with {process.returncode} before it was ready")
        with suppress(OSError, http.client.HTTPException):
            status, seen = ask(port, "POST", "/v1/chat/completions", body, key)
            if status == 200:
                return
        time.sleep(0.1)
    raise Unusable(f"not serving within {READY_WITHIN_S:.0f} s; the last answer was {seen[:200]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
