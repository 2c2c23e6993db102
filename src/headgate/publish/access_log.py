"""Logs each request that was answered, where that is asked for: who, what, which status, how long, and for a
completion its tenant, lane, model, replica and tokens.

Nothing is written on the request's path: the end of an exchange appends one entry, records join theirs by id a quarter
of a second later, and the lines are made and written by the log's own thread.
"""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from headgate.model.clock import Clock
from headgate.model.record import Record
from headgate.wire.exchange import Exchange

LOGGER = "headgate.access"
MOST_PENDING = 8192
"""Maximum entries that wait for their record; further ones are logged without it."""
RECORD_WITHIN_S = 2.0
"""Seconds after the end of an exchange within which its record must come: it waits for the end of the replica's
message."""
LONGEST_PATH = 256


class LineWriter(Protocol):
    """The part of the log's writer that is used here."""

    def put(self, line: Any) -> None: ...
    def format(self, record: logging.LogRecord) -> str: ...


class _Entry:
    __slots__ = ("at", "fields", "wall")

    def __init__(self, exchange: Exchange, at: float, wall: float) -> None:
        self.at = at
        self.wall = wall
        self.fields: dict[str, Any] = {
            "method": exchange.method,
            "path": exchange.path[:LONGEST_PATH],
            "status": exchange.status,
            "ms": round((at - exchange.received_at) * 1e3, 1),
            "client": exchange.client,
            "id": exchange.request_id,
        }


class AccessLog:
    def __init__(self, writer: LineWriter, clock: Clock, wall: Clock, recorded: frozenset[str] = frozenset()) -> None:
        """`recorded`: paths whose POSTs leave a record, which their lines wait for."""
        self._writer = writer
        self._clock = clock
        self._wall = wall
        self._recorded = recorded
        self._pending: dict[str, _Entry] = {}

    def ended(self, exchange: Exchange) -> None:
        """Called once at the end of every exchange. The query is left out: it may hold a key."""
        entry = _Entry(exchange, self._clock(), self._wall())
        waits = exchange.path in self._recorded and exchange.method == "POST"
        if waits and len(self._pending) < MOST_PENDING and exchange.request_id not in self._pending:
            self._pending[exchange.request_id] = entry
        else:
            self._put(entry)

    def take(self, records: Sequence[Record], now: float) -> None:
        """Joins records to the entries that wait for them. Called a few times a second."""
        for record in records:
            entry = self._pending.pop(record.id, None)
            if entry is not None:
                entry.fields.update(about(record))
                self._put(entry)
        while self._pending:
            first = next(iter(self._pending))
            if now - self._pending[first].at < RECORD_WITHIN_S:
                break
            self._put(self._pending.pop(first))

    def finish(self) -> None:
        """Logs the entries that still wait."""
        while self._pending:
            self._put(self._pending.pop(next(iter(self._pending))))

    def _put(self, entry: _Entry) -> None:
        self._writer.put(lambda: self._writer.format(_line(entry)))


def about(record: Record) -> dict[str, Any]:
    """What a record adds to a line."""
    told: dict[str, Any] = {
        "outcome": record.outcome.value,
        "tenant": record.tenant,
        "lane": record.lane,
        "model": record.model,
        "replica": record.replica or "",
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
    }
    if record.ttft_s is not None:
        told["ttft_ms"] = round(record.ttft_s * 1e3, 1)
    return told


def _line(entry: _Entry) -> logging.LogRecord:
    """The entry as a line: method, path, status and duration in the message, everything else as `name=value`."""
    fields = entry.fields
    head = f"{fields['method']} {fields['path']} {fields['status']} {fields['ms']} ms"
    rest = " ".join(f"{name}={value}" for name, value in list(fields.items())[4:] if value not in ("", None))
    record = logging.LogRecord(LOGGER, logging.INFO, "", 0, f"{head} {rest}", (), None)
    record.created = entry.wall
    for name, value in fields.items():
        setattr(record, name, value)
    return record
