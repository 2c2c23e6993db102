"""Who was at the same replica at the same time? Requests share its steps, so one's prefill is another's wait."""

from collections.abc import Iterable
from heapq import nlargest
from operator import attrgetter

import msgspec

from headgate.model.record import Record

MOST = 64
"""Neighbours that are looked at: those with most to prefill. Beyond them nobody would read on."""
DECODE_WEIGHT = 30.0
"""An output token costs about as much as this many of the prompt. Used only to guess when the prefill of an answer that
was not streamed ended, and its engine did not say."""


class Neighbour(msgspec.Struct, frozen=True, gc=False):
    """Another request at the same replica. Times are on the same clock as `Record.at`."""

    id: str
    tenant: str
    lane: str
    replica: str
    tokens: int
    """Of its prompt, those that had to be prefilled."""
    context: int
    """Prompt and answer: what each of its steps reads of the KV memory at the end."""
    sent_at: float
    first_at: float
    """Its prefill, the replica's own queue included, lasted from `sent_at` to here."""
    ended_at: float

    def prefilled_in(self, since: float, until: float) -> float:
        """How long its prefill overlaps that, in seconds."""
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
    """Those of `others` who were at its replica while it was on its way, most to prefill first. Looks at each once, and
    at most of them only at whose replica they had."""
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
    if len(found) > 4 * most:  # only those are made neighbours that may be kept
        found = nlargest(4 * most, found, key=lambda other: other.prompt_tokens - other.cached_tokens)
    near = [as_neighbour(other) for other in found]
    return keep([neighbour for neighbour in near if neighbour.there_in(since, until)], most)


def keep(found: list[Neighbour], most: int = MOST) -> list[Neighbour]:
    """For whoever looks through many records a few at a time."""
    return nlargest(most, found, key=attrgetter("tokens"))


def prefill_share(prompt_tokens: int, output_tokens: int) -> float:
    """Of the time of an answer in one piece that nobody tells more of: in proportion to its tokens."""
    prompt = max(1, prompt_tokens)
    return prompt / (prompt + DECODE_WEIGHT * output_tokens)
