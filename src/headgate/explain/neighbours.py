"""Finds the requests that were at the same replica at the same time. They share its steps, so one request's prefill is
another's wait."""

from collections.abc import Iterable
from heapq import nlargest
from operator import attrgetter

import msgspec

from headgate.model.record import Record

MOST = 64
"""Maximum neighbours considered: those with most to prefill. A reader would not read further."""
DECODE_WEIGHT = 30.0
"""Cost of an output token, in prompt tokens. It serves only to guess when the prefill of an unstreamed answer ended
whose engine did not say."""


class Neighbour(msgspec.Struct, frozen=True, gc=False):
    """Another request at the same replica. Times are on the same clock as `Record.at`."""

    id: str
    tenant: str
    lane: str
    replica: str
    tokens: int
    """Prompt tokens that had to be prefilled."""
    context: int
    """Tokens of prompt and answer: what each step of the request reads from KV memory at its end."""
    sent_at: float
    first_at: float
    """End of the prefill, which began at `sent_at` and includes the replica's own queue."""
    ended_at: float

    def prefilled_in(self, since: float, until: float) -> float:
        """Seconds for which the request's prefill overlaps this interval."""
        return max(0.0, min(self.first_at, until) - max(self.sent_at, since))

    def there_in(self, since: float, until: float) -> bool:
        return self.sent_at < until and self.ended_at > since


def as_neighbour(record: Record) -> Neighbour:
    sent_at = record.at + record.accept_s + record.queue_s + record.retry_s
    ended_at = record.at + record.e2e_s
    first_at = ended_at if record.ttft_s is None else record.at + record.ttft_s
    if record.whole:
        first_at = sent_at + record.first_s * prefill_share(
            record.prompt_tokens - record.cached_tokens, record.output_tokens
        )
    prompt = record.prompt_tokens
    return Neighbour(
        record.id, record.tenant, record.lane, record.replica or "", max(0, prompt - record.cached_tokens),
        prompt + record.output_tokens, sent_at, first_at, ended_at,
    )  # fmt: skip


def neighbours(record: Record, others: Iterable[Record], most: int = MOST) -> list[Neighbour]:
    """The requests among `others` that were at the record's replica during its time, most to prefill first. One pass;
    most requests are rejected by their replica alone."""
    replica, record_id = record.replica, record.id
    if replica is None:
        return []
    since, until = record.at, record.at + record.e2e_s
    found = [
        other
        for other in others
        if other.replica == replica
        and other.at < until
        and other.at + other.e2e_s > since
        and (other.id != record_id or other.at != since)
    ]
    if len(found) > 4 * most:  # only possible winners become neighbours
        found = nlargest(4 * most, found, key=lambda other: other.prompt_tokens - other.cached_tokens)
    near = [as_neighbour(other) for other in found]
    return keep([neighbour for neighbour in near if neighbour.there_in(since, until)], most)


def keep(found: list[Neighbour], most: int = MOST) -> list[Neighbour]:
    """Keeps the neighbours with most to prefill, for callers that look through many records a few at a time."""
    return nlargest(most, found, key=attrgetter("tokens"))


def prefill_share(prompt_tokens: int, output_tokens: int) -> float:
    """Assumed share of prefill in the time of an unstreamed answer without engine timings: in proportion to its
    tokens."""
    prompt = max(1, prompt_tokens)
    return prompt / (prompt + DECODE_WEIGHT * output_tokens)
