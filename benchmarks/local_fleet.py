"""How a gateway and its engines are started on this machine, and stopped. For benchmarks that need real ones.

The compiled modules are used where `make compiled` has built some: that is what `make serve` runs.
"""

import ctypes
import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES, COMPILED = ROOT / "src", ROOT / "build" / "compiled"
READY_WITHIN_S, STOP_WITHIN_S = 90.0, 15.0
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)  # looked up here: a child between fork and exec should not load anything


def modules(compiled: bool | None = None) -> Path:
    """Where Headgate is imported from. None: compiled if there is such a thing."""
    there = any((COMPILED / "headgate").glob("policy/*.so"))
    return COMPILED if (there if compiled is None else compiled) else SOURCES


STRETCHED = (
    "ttft_target_s", "gap_target_s", "wait_bound_s", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "e2e_p95_s", "e2e_p99_s",
)  # fmt: skip


def stretched_lanes(times: float) -> dict[str, dict[str, float]]:
    """The default lanes for the config of a gateway whose replicas are slower, by a factor, than those they are made
    for."""
    from headgate.model.lane import LANES

    stretched: dict[str, dict[str, float]] = {}
    for lane in LANES.values():
        promised = {name: getattr(lane, name) for name in STRETCHED}
        stretched[lane.name] = {name: value * times for name, value in promised.items() if value is not None}
    return stretched


class Program:
    """One `headgate` process. What it says goes to a file, and its end into the message when it fails."""

    def __init__(self, *arguments: object, where: Path, environ: Mapping[str, str] | None = None) -> None:
        self.arguments = [str(argument) for argument in arguments]
        self._where = where
        self._environ = environ or {}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 — open for as long as the program is
        self.process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "headgate", *self.arguments],
            env={**os.environ, **self._environ, "PYTHONPATH": str(self._where), "HEADGATE_COPY": str(self._where)},
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent,
        )

    def kill(self) -> None:
        """As a machine that is unplugged."""
        self.process.kill()
        self.process.wait()

    def revive(self) -> None:
        self.process = self._spawn()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def cpu_s(self) -> float:
        """User and system time so far."""
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
            return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    @property
    def said(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace")

    def wait_until_ready(self, port: int) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while not answers(port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"headgate {self.arguments[0]} is not ready:\n{self.said[-2000:]}")
            time.sleep(0.1)

    def finished(self, within_s: float) -> str:
        """What it said, when it has ended by itself."""
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise SystemExit(f"headgate {self.arguments[0]} did not end:\n{self.said[-2000:]}") from None
        return self.said


def _die_with_parent() -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@contextmanager
def engines(ports: Sequence[int], arguments: Sequence[object], where: Path) -> Iterator[list[Program]]:
    """One on each port, ready; gone afterwards, however the block is left."""
    made = [Program("engine", "--port", port, *arguments, where=where) for port in ports]
    try:
        for port, engine in zip(ports, made, strict=True):
            engine.wait_until_ready(port)
        yield made
    finally:
        for engine in made:
            engine.stop()


@contextmanager
def gateway(port: int, arguments: Sequence[object], where: Path) -> Iterator[Program]:
    made = Program("serve", "--port", port, *arguments, where=where)
    try:
        made.wait_until_ready(port)
        yield made
    finally:
        made.stop()
