"""How the engines and a gateway are started on a machine that they share, and what the engines say they did.

No process is pinned to a core, unlike in gateway.py: the cores are there for all, and must not be what anybody waits
for.
"""

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateway_peers import GATEWAYS, Site
from benchmarks.kit import Command, Processes, ask, end, free_port, wait_until_serving
from benchmarks.local_fleet import stretched_lanes
from benchmarks.peers import ROOT, Unusable
from benchmarks.tail_mix import Setup

READY_WITHIN_S = 60.0
COMPILED = Path(os.environ.get("HEADGATE_COMPILED", ROOT / "build" / "compiled"))
"""As `make compiled` has built it: the gateway, the engines and this client all run from there."""
KEY = "none"


@dataclass(frozen=True, slots=True)
class Alive:
    port: int
    gateway: Processes
    engines: tuple[Processes, ...]
    engine_ports: tuple[int, ...]


@contextmanager
def alive(setup: Setup, gateway: str) -> Iterator[Alive]:
    """Fresh engines behind a fresh gateway."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = tuple(free_port() for _ in range(setup.replicas))
        engines = tuple(stack.enter_context(_started(_engine(setup, port))) for port in ports)
        for engine, port in zip(engines, ports, strict=True):
            _await_health(engine.first, port)
        site = Site(free_port(), ports, folder, KEY, setup.slots)
        process = stack.enter_context(_started(command(setup, gateway, site)))
        wait_until_serving(process.first, site.port, KEY)
        yield Alive(site.port, process, engines, ports)


# -- who is started -------------------------------------------------------------------------------


def _engine(setup: Setup, port: int) -> Command:
    argv = [sys.executable, "-m", "headgate", "engine", *setup.engine, "--model-name", "mock", "--port", str(port)]
    # As benchmarks/peers.py: without it threads that wait for each other spin on a core that others need.
    return Command(argv, {"PYTHONPATH": _path(), "GOMP_SPINCOUNT": "1000"})


def _headgate(setup: Setup, site: Site) -> Command:
    """Default policies. Told is what it can't know: how many sequences an engine takes, how slow it is, and whose lanes
    to believe."""
    replicas = [{"url": url, "slots": site.slots, "kind": "headgate"} for url in site.urls]
    path = site.folder / "headgate.yaml"
    lanes = {} if setup.stretched == 1.0 else {"lanes": stretched_lanes(setup.stretched)}
    path.write_text(json.dumps({"replicas": replicas, "anonymous": {"trusted": True}, **lanes}))  # JSON is YAML
    argv = [sys.executable, "-m", "headgate", "serve", "--config", str(path), "--port", str(site.port)]
    return Command(argv, {"PYTHONPATH": _path()})


def _nginx(site: Site) -> Command:
    """By least connections, and as patient as the others: its own minute of patience would cut answers off."""
    command = GATEWAYS["nginx"].command(site)
    config = site.folder / "nginx.conf"
    text = config.read_text().replace("upstream replicas {", "upstream replicas { least_conn;")
    config.write_text(text.replace("proxy_buffering off;", "proxy_buffering off; proxy_read_timeout 1800s;"))
    return command


def command(setup: Setup, gateway: str, site: Site) -> Command:
    if gateway == "headgate":
        return _headgate(setup, site)
    return _nginx(site) if gateway == "nginx" else GATEWAYS[gateway].command(site)


NAMES = {key: GATEWAYS[key].name for key in ("headgate", "nginx", "sglang", "vllm")} | {"nginx": "nginx, least_conn"}


def _path() -> str:
    if not (COMPILED / "headgate").is_dir():
        raise Unusable("Headgate is not compiled: make compiled, and see build/compile.log")
    return str(COMPILED)


@contextmanager
def _started(command: Command) -> Iterator[Processes]:
    """Alive inside the block, gone after it, however the block is left."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command.argv,
            env=os.environ | command.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            yield Processes(process)
        except (Unusable, OSError, http.client.HTTPException) as error:
            log.seek(0)
            tail = log.read().decode(errors="replace").splitlines()[-8:]
            raise Unusable("\n".join(filter(None, [str(error) or type(error).__name__, *tail]))) from error
        finally:
            end(process)


def _await_health(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Unusable(f"an engine ended with {process.returncode} before it was ready")
        with suppress(OSError, http.client.HTTPException):
            if ask(port, "GET", "/health/ready")[0] == 200:
                return
        time.sleep(0.1)
    raise Unusable(f"an engine was not ready within {READY_WITHIN_S:.0f} s")


# -- what the engines say -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Work:
    """What all engines together have done so far."""

    prompt: float
    output: float
    behind_s: float
    """Modelled time that the machine was too slow to keep."""
    preempted: float

    @classmethod
    def of(cls, ports: tuple[int, ...]) -> "Work":
        pages = [ask(port, "GET", "/metrics")[1] for port in ports]

        def total(pattern: str) -> float:
            return sum(
                float(value) for page in pages for value in re.findall(rf"^{pattern} (\S+)$", page, re.MULTILINE)
            )

        return cls(
            total(r'headgate_engine_prompt_tokens_total\{source="computed"\}'),
            total("headgate_engine_generation_tokens_total"),
            total("headgate_engine_emulation_behind_seconds_total"),
            total(r"headgate_engine_preemptions_total\{kind=\"[a-z]+\"\}"),
        )

    def since(self, before: "Work") -> "Work":
        return Work(
            self.prompt - before.prompt,
            self.output - before.output,
            self.behind_s - before.behind_s,
            self.preempted - before.preempted,
        )
