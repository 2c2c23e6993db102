"""Shows the gateway's inside over HTTP: one request and why it was slow, the slowest, promises, findings, records.

    GET /admin/requests/ID                              the record and its waterfall; also for a running request
    GET /admin/slow?lane=&last=300&limit=20&by=e2e      the slowest of the last seconds, with one-line reasons
    GET /admin/blame?lane=&last=300&by=ttft             which tenant cost which how much of its p99
    GET /admin/slo                                      promises and alerts
    GET /admin/doctor                                   what is wrong, and the figures that say so
    GET /admin/records?last=300&limit=1000              records as JSON lines, the newest last
    GET /admin/state                                    all that the page shows
    GET /admin/history?range=1h                         each lane's last 10m, 1h or 24h, in slices

Searching all kept records takes milliseconds, and streams must not wait for that: a search is done in pieces, with the
event loop's other work between.
"""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Sequence
from heapq import nlargest
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from headgate.explain.costs import around_p99, charged, costs
from headgate.explain.neighbours import Neighbour, keep, neighbours
from headgate.explain.why import Explanation, explain, headline, main_part
from headgate.measure.evidence import Evidence
from headgate.measure.timeline import RANGES
from headgate.measure.underway import neighbours_at
from headgate.model.errors import EngineFailed, InvalidRequest, QueueFull, ServeError
from headgate.model.labels import plain
from headgate.model.record import Record
from headgate.surface.access import AdminAccess
from headgate.surface.snapshot import Snapshot, Sources
from headgate.surface.view import WINDOW_S
from headgate.wire.errors import refusal_body
from headgate.wire.exchange import Exchange, Handler
from headgate.wire.router import Routes

log = logging.getLogger(__name__)

PIECE = 2048
"""Records searched in one turn of the loop: about a millisecond."""
JOBS = 8
"""Maximum searches at once; more are refused, to be retried."""
MOST_SLOW = 200
MOST_TENANTS = 24
"""Maximum tenants whose p99 is explained: those with most requests."""
MOST_RECORDS = 50_000
LONGEST_S = 7 * 86_400.0

_encode = msgspec.json.Encoder().encode

Job = Callable[[], Coroutine[Any, Any, bytes]]


def _ttft(record: Record) -> float:
    return record.ttft_s or 0.0


def _e2e(record: Record) -> float:
    return record.e2e_s


def _gap(record: Record) -> float:
    return record.max_gap_s


BY: dict[str, Callable[[Record], float]] = {"ttft": _ttft, "e2e": _e2e, "gap": _gap}


class Admin:
    """The admin routes; also a consumer of records: `take` is called a few times a second with those that closed."""

    def __init__(self, sources: Sources, access: AdminAccess) -> None:
        self.access = access
        self._sources = sources
        self._gateway = gateway = sources.gateway
        self.evidence = Evidence(
            lambda: gateway.dispatcher.lanes,
            lambda replicas, now: neighbours_at(gateway.tickets, replicas, now),
            lambda: sources.pulse.pauses,
        )
        self._snapshot = Snapshot(sources, self.evidence)
        self._jobs: set[asyncio.Task[None]] = set()

    def take(self, records: Sequence[Record], now: float) -> None:
        self.evidence.take(records, now)

    def snapshot(self, now: float) -> dict[str, Any]:
        """The snapshot for surface/live.py, which lists its content."""
        return self._snapshot.now(now)

    def history(self, now: float) -> dict[str, Any]:
        return self._snapshot.history(now)

    def routes(self) -> Routes:
        handlers: dict[str, Handler] = {
            "/admin/requests/*": self._request,
            "/admin/slow": self._slow,
            "/admin/blame": self._blame,
            "/admin/slo": self._slo,
            "/admin/doctor": self._doctor,
            "/admin/records": self._records,
            "/admin/state": self._state,
            "/admin/history": self._history,
        }
        return {("GET", path): self.access.guard(self._up_to_date(handler)) for path, handler in handlers.items()}

    def _up_to_date(self, handler: Handler) -> Handler:
        def handle(exchange: Exchange) -> None:
            self._sources.refresh()
            handler(exchange)

        return handle

    def close(self) -> None:
        for job in self._jobs:
            job.cancel()

    # -- what is at hand -----------------------------------------------------------------------------------

    def _slo(self, exchange: Exchange) -> None:
        exchange.respond(200, _encode(self._sources.alarms.state(self._sources.clock())))

    def _state(self, exchange: Exchange) -> None:
        exchange.respond(200, _encode(self.snapshot(self._sources.clock())))

    def _history(self, exchange: Exchange) -> None:
        span = QueryString(exchange.query, ("range",)).one_of("range", tuple(RANGES), "10m") or "10m"
        exchange.respond(200, _encode(self._snapshot.history(self._sources.clock(), span)))

    def _doctor(self, exchange: Exchange) -> None:
        now = self._sources.clock()
        view, found = self._snapshot.diagnosis(now)
        told = {
            "verdict": self._sources.alarms.state(now)["verdict"],
            "ended_early": self._sources.figures.ended.told(),
        }
        exchange.respond(200, _encode({**told, "findings": found, "figures": view, "window_s": WINDOW_S}))

    # -- what has to be looked for --------------------------------------------------------------------------

    def _request(self, exchange: Exchange) -> None:
        wanted = unquote(exchange.path.removeprefix("/admin/requests/"))
        now = self._sources.clock()
        ticket = self._gateway.tickets.get(wanted)
        record = self._gateway.so_far(ticket, now) if ticket is not None else self._kept(wanted)
        if record is None:
            kept = self._gateway.account.records.maxlen
            message = f"no request {wanted[:128]!r}: it never came here, or is not among the last {kept} any more"
            exchange.respond(404, refusal_body(404, message))
            return
        self._start(exchange, lambda: self._explained(record, ticket is not None))

    def _kept(self, wanted: str) -> Record | None:
        return next((record for record in reversed(self._gateway.account.records) if record.id == wanted), None)

    async def _explained(self, record: Record, running: bool) -> bytes:
        explanation = await self._explain(record, list(self._gateway.account.records))
        told = msgspec.to_builtins(explanation)
        told |= {"headline": headline(explanation), "main": main_part(explanation)}
        whole = msgspec.to_builtins(record)
        if running:
            whole["outcome"] = told["outcome"] = "running"
        return _encode({"record": whole, "explanation": told, "running": running})

    async def _explain(self, record: Record, records: list[Record]) -> Explanation:
        return self._why(record, await self._near(record, records))

    def _why(self, record: Record, near: Sequence[Neighbour]) -> Explanation:
        usual = self.evidence.usual(record, self._sources.clock())
        return explain(record, near, self._sources.pulse.pauses, usual)

    async def _near(self, record: Record, records: list[Record]) -> list[Neighbour]:
        """`records` are in the order of their end, so that those which ended before `record` arrived are skipped."""
        near: list[Neighbour] = []
        first = bisect_left(records, record.at, key=lambda other: other.at + other.e2e_s)
        for begin in range(first, len(records), PIECE):
            near = keep(near + neighbours(record, records[begin : begin + PIECE]))
            await asyncio.sleep(0)
        now = self._sources.clock()
        if record.replica is not None:
            until = record.at + record.e2e_s
            here = neighbours_at(self._gateway.tickets, {record.replica}, now).get(record.replica, [])
            near = keep(near + [n for n in here if n.id != record.id and n.there_in(record.at, until)])
        return near

    def _slow(self, exchange: Exchange) -> None:
        query = QueryString(exchange.query, ("lane", "last", "limit", "by"))
        lane = query.one_of("lane", self._gateway.dispatcher.lanes, None)
        last_s = query.number("last", 300.0, 1.0, LONGEST_S)
        limit = int(query.number("limit", 20, 1, MOST_SLOW))
        by = query.one_of("by", BY, "e2e") or "e2e"
        self._start(exchange, lambda: self._slowest(lane, last_s, limit, by))

    async def _slowest(self, lane: str | None, last_s: float, limit: int, by: str) -> bytes:
        records, measure = list(self._gateway.account.records), BY[by]
        now = self._sources.clock()
        first = bisect_left(records, now - last_s, key=lambda record: record.at + record.e2e_s)
        worst: list[Record] = []
        for begin in range(first, len(records), PIECE):
            piece = records[begin : begin + PIECE]
            candidates = [record for record in piece if lane in (None, record.lane) and measure(record) > 0]
            worst = nlargest(limit, worst + candidates, key=measure)
            await asyncio.sleep(0)
        found = []
        for record in worst:
            explanation = await self._explain(record, records)
            found.append(_row(record, explanation, now))
        return _encode({"slow": found, "by": by, "lane": lane, "last_s": last_s, "of": len(records) - first})

    def _blame(self, exchange: Exchange) -> None:
        query = QueryString(exchange.query, ("lane", "last", "by"))
        lane = query.one_of("lane", self._gateway.dispatcher.lanes, None)
        last_s = query.number("last", 300.0, 1.0, LONGEST_S)
        by = query.one_of("by", ("ttft", "e2e"), "ttft") or "ttft"
        self._start(exchange, lambda: self._blamed(lane, last_s, by))

    async def _blamed(self, lane: str | None, last_s: float, by: str) -> bytes:
        records, now, measure = list(self._gateway.account.records), self._sources.clock(), BY[by]
        begin = bisect_left(records, now - last_s, key=lambda record: record.at + record.e2e_s)
        of_tenant: dict[str, list[Record]] = {}
        at_replica: dict[str | None, list[Record]] = {}
        for number, record in enumerate(records[begin:]):
            at_replica.setdefault(record.replica, []).append(record)
            if lane in (None, record.lane) and record.answered and measure(record) > 0:
                of_tenant.setdefault(record.tenant, []).append(record)
            if number % PIECE == 0:
                await asyncio.sleep(0)
        tails, found = [], []
        for tenant in nlargest(MOST_TENANTS, of_tenant, key=lambda name: len(of_tenant[name])):
            own = of_tenant[tenant]
            p99_s, around = around_p99(own, measure)
            explained = [(one.id, await self._charged(one, at_replica[one.replica], by)) for one in around]
            tail, cost = costs(tenant, len(own), p99_s, explained)
            tails.append(tail)
            found += cost
        found.sort(key=lambda cost: -cost.seconds)
        told = {"by": by, "lane": lane, "last_s": last_s, "of": len(records) - begin, "costs": found, "tenants": tails}
        return _encode(told)

    async def _charged(self, record: Record, beside: list[Record], by: str) -> dict[str, float]:
        near = await self._near(record, beside)
        return charged(record, self._why(record, near), near, first=by == "ttft")

    def _records(self, exchange: Exchange) -> None:
        query = QueryString(exchange.query, ("last", "limit"))
        last_s = query.number("last", 300.0, 0.0, LONGEST_S)
        limit = int(query.number("limit", 1000, 1, MOST_RECORDS))
        self._start(exchange, lambda: self._lines(last_s, limit), "application/x-ndjson")

    async def _lines(self, last_s: float, limit: int) -> bytes:
        records, now = list(self._gateway.account.records), self._sources.clock()
        first = bisect_left(records, now - last_s, key=lambda record: record.at + record.e2e_s)
        lines: list[bytes] = []
        for number, record in enumerate(records[max(first, len(records) - limit) :]):
            lines.append(_encode(record))
            if number % (PIECE // 8) == 0:
                await asyncio.sleep(0)
        return b"".join(line + b"\n" for line in lines)

    # -- aside ---------------------------------------------------------------------------------------------------

    def _start(self, exchange: Exchange, job: Job, content_type: str = "application/json") -> None:
        if len(self._jobs) >= JOBS:
            raise QueueFull(f"{JOBS} such questions are being answered already: ask again in a second")
        task = asyncio.get_running_loop().create_task(self._answer(exchange, job, content_type))

        def gone() -> None:
            task.cancel()

        exchange.on_gone = gone
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _answer(self, exchange: Exchange, job: Job, content_type: str) -> None:
        try:
            body = await job()
        except ServeError as error:
            exchange.fail(error)
        except Exception as error:
            log.exception("%s could not be answered", exchange.path)
            exchange.fail(EngineFailed(f"internal error: {type(error).__name__}"))
        else:
            exchange.respond(200, body, content_type)


class QueryString:
    """The parameters after the `?`. Raises InvalidRequest, with the parameter's name, for one that does not fit."""

    def __init__(self, query: str, known: tuple[str, ...]) -> None:
        self._values = dict(parse_qsl(query, keep_blank_values=True))
        for name in self._values:
            if name not in known:
                raise InvalidRequest(f"{name[:64]} is not known here; there is {', '.join(known)}", param=name[:64])

    def number(self, name: str, default: float, least: float, most: float) -> float:
        given = self._values.get(name, "")
        if not given:
            return default
        try:
            value = float(given)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise InvalidRequest(
                f"{name} must be a number from {plain(least, 6)} to {plain(most, 6)}, got {given[:64]!r}", param=name
            )
        return value

    def one_of(self, name: str, known: Sequence[str] | dict[str, Any], default: str | None) -> str | None:
        given = self._values.get(name, "")
        if given and given not in known:
            raise InvalidRequest(f"{name} must be one of {', '.join(known)}, got {given[:64]!r}", param=name)
        return given or default


def _row(record: Record, explanation: Explanation, now: float) -> dict[str, Any]:
    return {
        "id": record.id,
        "lane": record.lane,
        "tenant": record.tenant,
        "model": record.model,
        "replica": record.replica,
        "outcome": record.outcome,
        "ttft_s": record.ttft_s,
        "e2e_s": record.e2e_s,
        "max_gap_s": record.max_gap_s,
        "ago_s": max(0.0, now - record.at - record.e2e_s),
        "cause": main_part(explanation).because.kind,
        "headline": headline(explanation),
    }
