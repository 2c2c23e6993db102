"""Runs on a Ray node: an actor that owns an engine process, and ends with it.

Ray starts the actor again, on this node or another, whenever it ends unasked: so a replica comes back after its engine
has crashed or its node has gone. The engine does not outlive the actor, however the actor ends.
"""

import ctypes
import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

from headgate.compiled import same_copy
from headgate.fleet.port import Spec

PAUSE_S = 2.0
"""Seconds between an engine's end and the next start: an engine that can't start must not take all of a node's time."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class RayPlace:
    """A replica's current address."""

    url: str
    node: str
    pid: int
    """Process id of the engine."""


class EngineActor:
    """The class that RayFleet makes an actor of. Its methods are called from anywhere in the cluster, several at a
    time."""

    def __init__(self, spec: Spec) -> None:
        ray: Any = importlib.import_module("ray")
        self._spec = spec
        host, self._node = ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id()
        self._port = _free_port(host)
        self._host = host
        self._stopping = Event()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "headgate",
                "engine",
                "--host",
                host,
                "--port",
                str(self._port),
                "--no-banner",
                *spec.flags,
            ],
            preexec_fn=_dying_with(os.getpid()),
            start_new_session=True,
            env={**same_copy(), "PYTHONUNBUFFERED": "1"},
        )
        Thread(target=self._end_with_it, daemon=True).start()

    def spec(self) -> Spec:
        return self._spec

    def where(self) -> RayPlace:
        return RayPlace(f"http://{self._host}:{self._port}", self._node, self._process.pid)

    def until_end(self) -> None:
        """Blocks until `stop` is called; if the actor ends unasked, Ray raises an error at the caller."""
        self._stopping.wait()

    def stop(self, grace_s: float) -> None:
        self._stopping.set()
        self._process.terminate()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _end_with_it(self) -> None:
        self._process.wait()
        if not self._stopping.wait(PAUSE_S):
            os._exit(1)  # unasked: Ray starts the actor again


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        free.bind((host, 0))
        port: int = free.getsockname()[1]
        return port


def _dying_with(parent: int) -> Callable[[], None]:
    """Prepares the child between fork and exec, as in replica/local.py."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return prepare
