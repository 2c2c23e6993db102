"""What has happened? One record for each request, written exactly once, and the sums over them."""

from collections import deque

from headgate.model.outcome import Outcome
from headgate.model.record import Record


class Account:
    def __init__(self, keep: int = 50_000) -> None:
        self.records: deque[Record] = deque(maxlen=keep)
        self._fresh: deque[Record] = deque(maxlen=keep)
        self.ended: dict[tuple[str, Outcome], int] = {}
        """By lane and outcome: both are from closed sets, so this is bounded."""
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.opened = 0

    def open(self) -> None:
        self.opened += 1

    def close(self, record: Record) -> None:
        self.records.append(record)
        self._fresh.append(record)
        key = (record.lane, record.outcome)
        self.ended[key] = self.ended.get(key, 0) + 1
        self.prompt_tokens += record.prompt_tokens
        self.output_tokens += record.output_tokens

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
