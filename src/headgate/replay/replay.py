"""Replays a recorded event log through a fresh dispatcher, and compares its decisions.

This is the evidence that nothing but events, time and the seeded random numbers enters a decision: what the simulator
shows of the policies is then what the live gateway does.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from headgate.config.gateway import GatewayConfig
from headgate.model.errors import UsageError
from headgate.model.event import Arrived, Command, Event, QuoteAsked, ReplicaJoined, Resumed
from headgate.model.lane import Lane
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.model.tier import Tier
from headgate.policy.compose import dispatcher_for, reconfigure
from headgate.replay.event_log import COMMANDS, EVENTS, FORMAT, RECONFIGURED, EventLogHeader, Settings

ARRIVED = "arrived"
ASKED = "quote_asked"
RESUMED = "resumed"
JOINED = "replica_joined"


class BadLog(UsageError):
    """The file is no event log, or the named line can't be read."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay in which every decision was the same."""

    header: EventLogHeader
    events: int
    commands: int
    span_s: float
    truncated: bool
    """The last line was cut off, as when the gateway was killed while writing."""


@dataclass(frozen=True, slots=True)
class DecisionDifference:
    """The first decision that was not the same."""

    event_number: int
    """The first event is 1; it is in line 2, since the first line is the header."""
    now: float
    event: Event
    expected: list[Command]
    """The commands that were recorded."""
    got: list[Command]

    @property
    def line(self) -> int:
        return self.event_number + 1

    def __str__(self) -> str:
        said = [f"event {self.event_number} (line {self.line}) at {self.now:.6f} s: {_short(self.event)}"]
        count = max(len(self.expected), len(self.got))
        for index in range(count):
            expected = self.expected[index] if index < len(self.expected) else None
            got = self.got[index] if index < len(self.got) else None
            if expected != got:
                said.append(f"  expected {_short(expected)}")
                said.append(f"  got      {_short(got)}")
                said += [f"  {name}: {was!r} became {now!r}" for name, was, now in _fields(expected, got)]
                break
        return "\n".join(said)


class _Line(msgspec.Struct, array_like=True, frozen=True):
    now: float
    name: str
    fields: msgspec.Raw
    commands: tuple[tuple[str, msgspec.Raw], ...]


class _Arrived(msgspec.Struct, frozen=True):
    request: dict[str, Any]


class _Resumed(msgspec.Struct, frozen=True):
    request: dict[str, Any]
    replica_id: str
    begun: bool


class _Joined(msgspec.Struct, frozen=True):
    """A ReplicaJoined with its replica as plain fields: where that type is compiled, msgspec can't decode into it."""

    replica: dict[str, Any]


_header = msgspec.json.Decoder(EventLogHeader)
_line = msgspec.json.Decoder(_Line)
_settings = msgspec.json.Decoder(Settings)
_arrived = msgspec.json.Decoder(_Arrived)
_resumed = msgspec.json.Decoder(_Resumed)
_joined = msgspec.json.Decoder(_Joined)
_event: dict[str, msgspec.json.Decoder[Event]] = {
    name: msgspec.json.Decoder(made) for name, made in EVENTS.items() if name not in (ARRIVED, ASKED, JOINED, RESUMED)
}
_command: dict[str, msgspec.json.Decoder[Command]] = {
    name: msgspec.json.Decoder(made) for name, made in COMMANDS.items()
}

Recorded = tuple[float, Event | GatewayConfig, list[Command]]


class Log:
    """An event log being read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncated = False
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise BadLog(f"can't read {path}: {error.strerror or error}") from error
        try:
            first = self._file.readline()
            if not first:
                self._file.close()
                raise BadLog(
                    f"{path} is empty: there is nothing to replay; `headgate serve --event-log FILE` writes one"
                )
            self.header = _header.decode(first)
            self.config = config_of(self.header.config)
        except (msgspec.DecodeError, TypeError) as error:
            self._file.close()
            raise BadLog(f"{path} is no event log: its first line is {error}") from error
        if self.header.format != FORMAT:
            self._file.close()
            raise BadLog(f"{path} is of format {self.header.format!r}; this version reads {FORMAT!r}")

    def close(self) -> None:
        self._file.close()

    def entries(self) -> Iterator[Recorded]:
        """Yields the entries to the end, once. A last line that was cut off is left out."""
        with self._file:
            held: bytes | None = None
            for number, read in enumerate(self._file, 2):
                if held is not None:
                    yield self._entry(held, number - 1)
                held = read
            if held is None:
                return
            try:
                last = self._entry(held, number)
            except BadLog:
                if held.endswith(b"\n"):
                    raise
                self.truncated = True
            else:
                yield last

    def _entry(self, encoded: bytes, number: int) -> Recorded:
        try:
            read = _line.decode(encoded)
            commands: list[Command] = [_command[name].decode(fields) for name, fields in read.commands]
            if read.name == RECONFIGURED:
                return read.now, config_of(_settings.decode(read.fields)), commands
            if read.name == ARRIVED:
                return read.now, Arrived(request_of(_arrived.decode(read.fields).request)), commands
            if read.name == ASKED:
                return read.now, QuoteAsked(request_of(_arrived.decode(read.fields).request)), commands
            if read.name == RESUMED:
                was = _resumed.decode(read.fields)
                return read.now, Resumed(request_of(was.request), was.replica_id, was.begun), commands
            if read.name == JOINED:
                return read.now, ReplicaJoined(replica_of(_joined.decode(read.fields).replica)), commands
            return read.now, _event[read.name].decode(read.fields), commands
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise BadLog(f"{self.path}, line {number}: {error}") from error


def config_of(settings: Settings) -> GatewayConfig:
    """Returns the part of a config that the dispatcher is made of; the rest has its defaults."""
    fields = {name: getattr(settings, name) for name in Settings.__struct_fields__}
    fields["lanes"] = tuple(Lane(**lane) for lane in settings.lanes)
    fields["tiers"] = tuple(Tier(**tier) for tier in settings.tiers)
    return GatewayConfig(**fields)


def request_of(fields: dict[str, Any]) -> Request:
    """Raises msgspec.ValidationError, KeyError or TypeError for fields that are no request."""
    made = {**fields, "prefix": msgspec.convert(fields["prefix"], tuple[bytes, ...])}
    return Request(
        **{**made, "unfit": frozenset(made.get("unfit", ())), "fallback": tuple(made.get("fallback", ()))}
    )  # fmt: skip


def replica_of(fields: dict[str, Any]) -> Replica:
    made = dict(fields)
    for name in ("models", "lanes"):
        made[name] = frozenset(made.get(name, ()))
    return Replica(**made)


def replay(path: Path) -> Replayed | DecisionDifference:
    """Replays the log at `path`. Raises BadLog for a file that can't be read."""
    log = Log(path)
    dispatcher = dispatcher_for(log.config, random.Random(int(log.header.seed, 16)))
    events = decided = 0
    first = now = 0.0
    for now, event, expected in log.entries():
        events += 1
        first = now if events == 1 else first
        if isinstance(event, GatewayConfig):
            reconfigure(dispatcher, event)
            continue
        got = dispatcher.on(event, now)
        decided += len(got)
        if got != expected:
            return DecisionDifference(events, now, event, expected, got)
    return Replayed(log.header, events, decided, now - first, log.truncated)


def _short(thing: Any) -> str:
    text = "nothing" if thing is None else repr(thing)
    return text if len(text) <= 400 else text[:400] + "…"


def _fields(expected: Command | None, got: Command | None) -> Iterator[tuple[str, Any, Any]]:
    if expected is not None and type(expected) is type(got):
        for name in expected.__struct_fields__:
            was, now = getattr(expected, name), getattr(got, name)
            if was != now:
                yield name, was, now
