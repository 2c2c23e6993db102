"""Keeps one record per request, written exactly once, and totals over all records."""

from collections import deque
from typing import Final

from headgate.model.outcome import Outcome
from headgate.model.record import Record

NO_LANE: Final = "none"
"""The lane of requests that were refused before they were parsed."""
FULL: Final = 503


class Account:
    def __init__(self, keep: int = 50_000) -> None:
        self.records: deque[Record] = deque(maxlen=keep)
        self._fresh: deque[Record] = deque(maxlen=keep)
        self.ended: dict[tuple[str, Outcome], int] = {}
        """Ended requests by lane and outcome; both are closed sets, so the dict is bounded."""
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.opened = 0
        self.unseen: dict[int, int] = {}
        """Requests that the wire refused, by status; the wire uses a handful of statuses."""

    def open(self) -> None:
        self.opened += 1

    def close(self, record: Record) -> None:
        self.records.append(record)
        self._fresh.append(record)
        key = (record.lane, record.outcome)
        self.ended[key] = self.ended.get(key, 0) + 1
        self.prompt_tokens += record.prompt_tokens
        self.output_tokens += record.output_tokens

    def refuse(self, status: int, path: str) -> None:
        """Counts a request that the wire refused before the gateway saw it. It leaves no record: clients could send any
        number of them and so push out the records of parsed requests. A 503 is the gateway's own limit, so one on /v1/,
        or with an unknown path, also counts as refused with QUEUE_FULL; malformed and late requests are the client's
        fault."""
        self.unseen[status] = self.unseen.get(status, 0) + 1
        if status == FULL and (not path or path.startswith("/v1/")):
            self.opened += 1
            key = (NO_LANE, Outcome.QUEUE_FULL)
            self.ended[key] = self.ended.get(key, 0) + 1

    def fresh(self, most: int | None = None) -> list[Record]:
        """Records closed since the last call, at most `most` of them (None: all). Figures and traces are made from them
        off the request path."""
        if most is not None and len(self._fresh) > most:
            return [self._fresh.popleft() for _ in range(most)]
        records = list(self._fresh)
        self._fresh.clear()
        return records

    @property
    def open_now(self) -> int:
        return self.opened - sum(self.ended.values())
