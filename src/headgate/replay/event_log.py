"""Logs every event that the dispatcher hears and its commands: one JSON line each, appended to a file.

The first line says how the dispatcher was made: its part of the config, the seed of its random numbers, the versions.
Every other line is `[now, event, fields, [[command, fields], …]]`. From both, replay/replay.py can put a fresh
dispatcher through the same events, and it must decide the same.

`add` is on the path of every request, so it only remembers; a thread of its own encodes and writes. If that thread
can't keep up, the log ends: a log with a hole can't be replayed. The log has no API keys, and of the prompts only
hashes.
"""

import contextlib
import platform
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

import headgate
from headgate.config.gateway import (
    GatewayConfig,
    HealthConfig,
    RetryConfig,
    RoutingConfig,
    Tenant,
    TimeoutsConfig,
)
from headgate.config.hedge import HedgeConfig
from headgate.model.errors import StartupError
from headgate.model.event import (
    Arrived,
    AttemptFailed,
    Command,
    Dispatch,
    Ended,
    Event,
    FirstToken,
    Hedge,
    HedgeWon,
    Leased,
    Probed,
    Quote,
    QuoteAsked,
    Refuse,
    ReplicaAsleep,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaParked,
    Reported,
    Resumed,
    Shared,
    Tick,
)
from headgate.model.request import Request

FORMAT: Final = "headgate-events-1"
RECONFIGURED: Final = "reconfigured"
EVENTS: Final[dict[str, type]] = {
    "arrived": Arrived,
    "quote_asked": QuoteAsked,
    "first_token": FirstToken,
    "ended": Ended,
    "attempt_failed": AttemptFailed,
    "resumed": Resumed,
    "hedge_won": HedgeWon,
    "probed": Probed,
    "reported": Reported,
    "replica_joined": ReplicaJoined,
    "replica_left": ReplicaLeft,
    "replica_parked": ReplicaParked,
    "replica_asleep": ReplicaAsleep,
    "leased": Leased,
    "shared": Shared,
    "tick": Tick,
}
COMMANDS: Final[dict[str, type]] = {"dispatch": Dispatch, "refuse": Refuse, "hedge": Hedge, "quote": Quote}
NAMES: Final[dict[type, str]] = {made: name for name, made in (EVENTS | COMMANDS).items()}
WRITE_EVERY_S: Final = 0.2
MOST_PENDING: Final = 200_000
"""Maximum events waiting to be written: some ten seconds of the busiest gateway."""
MOST_BYTES: Final = 4 << 30
"""Maximum bytes of the log, which ends there: about three million requests."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a config that the dispatcher decides by. Lanes and tiers are plain fields: where their types are
    compiled, msgspec can't decode into them."""

    lanes: tuple[dict[str, Any], ...]
    tenants: tuple[Tenant, ...]
    anonymous: Tenant
    tiers: tuple[dict[str, Any], ...]
    routing: RoutingConfig
    timeouts: TimeoutsConfig
    health: HealthConfig
    retry: RetryConfig
    hedge: HedgeConfig = HedgeConfig()
    """The default where a log has none: it was written before hedging existed."""


def settings_of(config: GatewayConfig) -> Settings:
    return Settings(
        lanes=tuple(msgspec.to_builtins(lane) for lane in config.lanes),
        tenants=tuple(replace(tenant, key_sha256=()) for tenant in config.tenants),
        anonymous=replace(config.anonymous, key_sha256=()),
        tiers=tuple(msgspec.to_builtins(tier) for tier in config.tiers),
        routing=config.routing,
        timeouts=config.timeouts,
        health=config.health,
        retry=config.retry,
        hedge=config.hedge,
    )


class EventLogHeader(msgspec.Struct, frozen=True, kw_only=True):
    format: str
    headgate: str
    python: str
    seed: str
    """The seed of the dispatcher's random numbers, in hex."""
    config: Settings


Entry = tuple[float, Event | GatewayConfig, list[Command]]


def _fields(thing: Any) -> dict[str, object]:
    """Returns the fields of a Request, the one type that msgspec can't encode."""
    if isinstance(thing, Request):
        return thing.fields()
    raise NotImplementedError


_encode = msgspec.json.Encoder(enc_hook=_fields).encode


def header(config: GatewayConfig, seed: int) -> bytes:
    made = EventLogHeader(
        format=FORMAT,
        headgate=headgate.__version__,
        python=platform.python_version(),
        seed=f"{seed:x}",
        config=settings_of(config),
    )
    return _encode(made) + b"\n"


def line(entry: Entry) -> bytes:
    now, event, commands = entry
    answered = [(NAMES[type(command)], command) for command in commands]
    if isinstance(event, GatewayConfig):
        return _encode((now, RECONFIGURED, settings_of(event), answered)) + b"\n"
    if isinstance(event, ReplicaJoined):
        event = ReplicaJoined(event.replica.public)
    return _encode((now, NAMES[type(event)], event, answered)) + b"\n"


class EventLog:
    """One file, written from the beginning. `seed` is what the dispatcher's `random.Random` was made with."""

    def __init__(
        self,
        path: Path,
        config: GatewayConfig,
        seed: int,
        *,
        most_pending: int = MOST_PENDING,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.events = -1
        """Events written so far, without the header."""
        self.stopped = ""
        """Why nothing more is recorded; empty: recording continues."""
        self._pending: deque[Entry] = deque()
        self._most_pending = most_pending
        self._bytes_left = most_bytes
        self._closing = threading.Event()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None
        try:
            self._file: BinaryIO = path.open("wb")
            try:
                self._write(header(config, seed))
                self._file.flush()
            except OSError:
                self._close_file()
                raise
        except OSError as error:
            reason = error.strerror or error
            raise StartupError(f"can't write the event log {path}: {reason}; name another file") from error

    def start(self) -> None:
        """Writes in the background from now on; without it only `flush` and `close` write."""
        self._thread = threading.Thread(target=self._main, name="headgate-events", daemon=True)
        self._thread.start()

    # -- on the path of every request -------------------------------------------------------------------

    def add(self, event: Event, now: float, commands: list[Command]) -> None:
        """Records an event and the dispatcher's commands. The caller must not change `commands` afterwards."""
        self._keep((now, event, commands))

    def reconfigured(self, config: GatewayConfig, now: float) -> None:
        """Records that the dispatcher has just taken this config."""
        self._keep((now, config, []))

    def _keep(self, entry: Entry) -> None:
        if self.stopped:
            return
        if len(self._pending) < self._most_pending:
            self._pending.append(entry)
        else:
            self.stopped = f"{self._most_pending} events waited to be written: the disk is too slow"

    # -- aside --------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes all that was added before this call."""
        with self._writing:
            try:
                for _ in range(len(self._pending)):
                    self._write(line(self._pending.popleft()))
                self._file.flush()
            except OSError as error:
                self._bytes_left = 0
                self.stopped = f"it can't be written: {error.strerror or error}"

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()
        self._close_file()
        self.stopped = self.stopped or "closed"

    def _close_file(self) -> None:
        with contextlib.suppress(OSError):  # what could not be written has been reported already
            self._file.close()

    def _write(self, encoded: bytes) -> None:
        if len(encoded) > self._bytes_left:
            self._bytes_left = 0  # nor anything after it, however short
            self.stopped = self.stopped or "it has reached the size that it may have"
            return
        self._bytes_left -= len(encoded)
        self._file.write(encoded)
        self.events += 1

    def _main(self) -> None:
        while not self._closing.wait(WRITE_EVERY_S):
            self.flush()
