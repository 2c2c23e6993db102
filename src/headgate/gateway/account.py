"""What has happened? One record for each request, written exactly once, and the sums over them."""

from collections import deque

import msgspec

from headgate.model.outcome import Outcome


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One request's passage, as measured here."""

    id: str
    at: float
    """When its first byte was read, on the monotonic clock."""
    lane: str
    tenant: str
    model: str
    outcome: Outcome
    replica: str | None = None
    attempts: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    queue_s: float = 0.0
    ttft_s: float | None = None
    e2e_s: float = 0.0
    max_gap_s: float = 0.0
    stalled_s: float = 0.0
    """How long the client made us wait."""
    reason: str = ""
    """Why that replica, or why not at all."""


class Account:
    def __init__(self, keep: int = 50_000) -> None:
        self.records: deque[Record] = deque(maxlen=keep)
        self.ended: dict[tuple[str, Outcome], int] = {}
        """By lane and outcome: both are from closed sets, so this is bounded."""
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.opened = 0

    def open(self) -> None:
        self.opened += 1

    def close(self, record: Record) -> None:
        self.records.append(record)
        key = (record.lane, record.outcome)
        self.ended[key] = self.ended.get(key, 0) + 1
        self.prompt_tokens += record.prompt_tokens
        self.output_tokens += record.output_tokens

    @property
    def open_now(self) -> int:
        return self.opened - sum(self.ended.values())
