"""Counts tokens and requests by tenant, model and hour, for billing.

    GET /admin/usage?last=86400&format=jsonl|csv

Rows are counted from records, off the requests' path, and kept for at most a month. Names of models come from clients:
only those of requests that reached a replica are kept, up to a cap, and the rest are counted as `other`. The file of
all requests (`record.path`) lasts longer, and over restarts. A row's model is empty where no replica served.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import msgspec

from headgate.model.clock import Clock
from headgate.model.labels import Cap
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.policy.scaling.cost import ReplicaHours
from headgate.surface.access import AdminAccess
from headgate.surface.admin import QueryString
from headgate.wire.exchange import Exchange
from headgate.wire.router import Routes

HOUR_S = 3600
LEFT = (Outcome.CANCELLED, Outcome.SLOW_CLIENT)
KEEP_HOURS = 31 * 24
MOST_TENANTS = 10_000
MOST_ROWS = 100_000
"""Maximum rows over all hours; the oldest are dropped first."""
LONGEST_S = KEEP_HOURS * HOUR_S
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class UsageRow:
    hour: int
    """When the hour began, in seconds since 1970."""
    tenant: str
    model: str
    requests: int = 0
    completed: int = 0
    left: int = 0
    """Requests whose client left, or did not read."""
    refused: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    invalid: int = 0
    """Requests answered 4xx, which the client has to change."""
    cost: float | None = None
    """The row's share, by tokens, of the cost of that hour's replicas; None: no price is set."""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


COLUMNS = tuple(one.name for one in fields(UsageRow))


class UsageTable:
    def __init__(
        self, names: int, access: AdminAccess, wall: Clock, held: ReplicaHours | None = None, price: float | None = None
    ) -> None:
        """`names`: maximum models told apart. `held`: replica-hours, at `price` each; None: no cost is computed."""
        self._held = held
        self._price = price
        self._rows: dict[tuple[int, str, str], UsageRow] = {}
        """Rows in the order of their creation, which is that of their hours but for requests that span two hours."""
        self._models = Cap(names)
        self._tenants = Cap(MOST_TENANTS)
        self._access = access
        self._wall = wall

    def take(self, records: Sequence[Record], now: float) -> None:
        for record in records:
            if not record.tenant:
                continue  # the request was not understood, and its tenant is unknown
            served = record.replica is not None
            self._add(record, self._tenants.of(record.tenant), self._models.of(record.model) if served else "")
        if records:
            self._trim()

    def rows(self, last_s: float) -> list[UsageRow]:
        since = self._wall() - last_s
        rows = [row for row in self._rows.values() if row.hour + HOUR_S > since]
        if self._held is not None and self._price is not None:
            self._share_cost(rows, self._held.by_hour, self._price / HOUR_S)
        return rows

    def _share_cost(self, rows: Sequence[UsageRow], held: Mapping[int, float], per_s: float) -> None:
        tokens: dict[int, int] = {}
        for row in rows:
            tokens[row.hour] = tokens.get(row.hour, 0) + row.tokens
        for row in rows:
            row.cost = per_s * held.get(row.hour, 0.0) * row.tokens / max(1, tokens[row.hour])

    def routes(self) -> Routes:
        return {("GET", "/admin/usage"): self._access.guard(self._serve)}

    def _serve(self, exchange: Exchange) -> None:
        query = QueryString(exchange.query, ("last", "format"))
        rows = self.rows(query.number("last", 86_400.0, 1.0, LONGEST_S))
        if query.one_of("format", ("jsonl", "csv"), "jsonl") == "csv":
            exchange.respond(200, as_csv(rows), "text/csv; charset=utf-8")
        else:
            exchange.respond(200, b"".join(_encode(asdict(row)) + b"\n" for row in rows), "application/x-ndjson")

    def _add(self, record: Record, tenant: str, model: str) -> None:
        hour = int(record.wall) // HOUR_S * HOUR_S
        row = self._rows.get((hour, tenant, model))
        if row is None:
            row = self._rows[hour, tenant, model] = UsageRow(hour, tenant, model)
        kind = record.outcome.kind
        row.requests += 1
        row.completed += kind == "ok"
        went = record.outcome in LEFT
        row.left += went
        row.invalid += kind == "client" and not went
        row.refused += kind == "refused"
        row.failed += kind == "failed"
        if record.replica is not None and kind in ("ok", "client"):  # tenants do not pay for our failures
            row.prompt_tokens += record.prompt_tokens
            row.cached_tokens += record.cached_tokens
            row.output_tokens += record.output_tokens

    def _trim(self) -> None:
        oldest = int(self._wall()) - LONGEST_S
        while self._rows:
            first = next(iter(self._rows))
            if first[0] >= oldest and len(self._rows) <= MOST_ROWS:
                return
            del self._rows[first]


def as_csv(rows: Sequence[UsageRow]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for row in rows:
        # A name that begins like a formula must not become one in a spreadsheet.
        writer.writerow(
            [f"'{value}" if str(value)[:1] in ("=", "+", "-", "@") else value for value in asdict(row).values()]
        )
    return text.getvalue().encode()
