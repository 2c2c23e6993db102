"""What has happened? One record for each request, written exactly once, and the sums over them."""

from collections import deque
from typing import Final

from headgate.model.outcome import Outcome
from headgate.model.record import Record

NO_LANE: Final = "none"
"""Of what was refused before it was understood."""
FULL: Final = 503


class Account:
    def __init__(self, keep: int = 50_000) -> None:
        self.records: deque[Record] = deque(maxlen=keep)
        self._fresh: deque[Record] = deque(maxlen=keep)
        self.ended: dict[tuple[str, Outcome], int] = {}
        """By lane and outcome: both are from closed sets, so this is bounded."""
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.opened = 0
        self.unseen: dict[int, int] = {}
        """What the wire refused, by status, of which it has a handful."""

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
        """One that the wire refused before anybody saw it. It leaves no record: there may be as many as anybody likes
        to send, and of those that were understood the last ones are kept. Being full is our own matter, so that those
        that would have asked for an answer count as refused; what is malformed or late is the client's."""
        self.unseen[status] = self.unseen.get(status, 0) + 1
        if status == FULL and (not path or path.startswith("/v1/")):
            self.opened += 1
            key = (NO_LANE, Outcome.QUEUE_FULL)
            self.ended[key] = self.ended.get(key, 0) + 1

    def fresh(self, most: int | None = None) -> list[Record]:
        """Those closed since this was last asked: figures and traces are made of them aside from the requests' path."""
        if most is not None and len(self._fresh) > most:
            return [self._fresh.popleft() for _ in range(most)]
        records = list(self._fresh)
        self._fresh.clear()
        return records

    @property
    def open_now(self) -> int:
        return self.opened - sum(self.ended.values())
