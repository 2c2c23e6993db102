"""Shows operators the batches of all tenants, and cancels them.

GET  /admin/batches?limit=&after=    the newest first, each with what it waits for
GET  /admin/batches/ID
POST /admin/batches/ID/cancel
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from headgate.batches.desk import Desk
from headgate.batches.forms.formats import batch_object
from headgate.batches.jobs import Jobs
from headgate.batches.query import Query
from headgate.batches.runner import BatchRunner
from headgate.batches.store import Row, StorageTrouble
from headgate.model.clock import Clock
from headgate.model.errors import InvalidRequest, NotReady, ServeError
from headgate.wire.errors import refusal_body
from headgate.wire.exchange import Exchange, Handler
from headgate.wire.router import Routes

ADMIN = "/admin/batches"
_encode = msgspec.json.Encoder().encode


class Guard(Protocol):
    def guard(self, handler: Handler) -> Handler:
        """The handler, for admins."""


class BatchAdmin:
    def __init__(self, desk: Desk, jobs: Jobs, runner: BatchRunner, access: Guard, wall: Clock) -> None:
        self._desk = desk
        self._jobs = jobs
        self._runner = runner
        self._access = access
        self._wall = wall
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = ""
        """Why there are no batches; empty: there may be."""

    def close_for(self, why: str) -> None:
        """Answers that there are no batches, and why; empty: there may be."""
        self.closed = why

    def routes(self) -> Routes:
        handlers: dict[tuple[str, str], Callable[[Exchange], Coroutine[Any, Any, None]]] = {
            ("GET", ADMIN): self._list,
            ("GET", f"{ADMIN}/*"): self._one,
            ("POST", f"{ADMIN}/*"): self._cancel,
        }
        return {route: self._access.guard(self._aside(handler)) for route, handler in handlers.items()}

    def news(self) -> dict[str, Any]:
        """What the page shows: the batches that are not over, and how far each is."""
        running = [self._told(run.row) for run in self._runner.runs.values()]
        return {"off": self.closed, "trouble": self._runner.trouble, "running": running}

    def _told(self, row: Row) -> dict[str, Any]:
        """A batch as its tenant sees it, and what operators see besides."""
        run = self._runner.runs.get(row["seq"])
        more = {"tenant": row["tenant"], "lines_under_way": 0, "waits_for": ""}
        if run is not None:
            under_way = len(run.calls)
            waits_for = self._runner.trouble or ("" if under_way and not run.ready else run.reason)
            more |= {"lines_under_way": under_way, "waits_for": waits_for}
        return {**batch_object(row), **more}

    def _aside(self, handler: Callable[[Exchange], Coroutine[Any, Any, None]]) -> Handler:
        def handle(exchange: Exchange) -> None:
            if self.closed:
                raise NotReady(f"batches are not served here: {self.closed}")
            task = asyncio.get_running_loop().create_task(self._do(handler, exchange))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return handle

    async def _do(self, handler: Callable[[Exchange], Coroutine[Any, Any, None]], exchange: Exchange) -> None:
        try:
            await handler(exchange)
        except ServeError as error:
            exchange.fail(error)
        except StorageTrouble as trouble:
            exchange.respond(507, refusal_body(507, str(trouble), "storage"))

    async def _list(self, exchange: Exchange) -> None:
        query = Query(exchange.query, ("after", "limit"))
        limit, after = query.number("limit", 20, 100), query.text("after")
        try:
            rows, more = await self._desk.do(lambda: self._jobs.page(None, after, limit))
        except KeyError:
            raise InvalidRequest(f"after: no batch {(after or '')[:64]!r}", param="after") from None
        told = {"batches": [self._told(row) for row in rows], "has_more": more, "trouble": self._runner.trouble}
        exchange.respond(200, _encode(told))

    async def _one(self, exchange: Exchange) -> None:
        batch_id = exchange.path.removeprefix(f"{ADMIN}/")
        self._answer(exchange, batch_id, await self._desk.do(lambda: self._jobs.get(None, batch_id)))

    async def _cancel(self, exchange: Exchange) -> None:
        batch_id, _, verb = exchange.path.removeprefix(f"{ADMIN}/").partition("/")
        if verb != "cancel":
            exchange.respond(404, refusal_body(404, f"no such path: {exchange.path[:256]}"))
            return
        row = await self._desk.do(lambda: self._jobs.cancel(None, batch_id, self._wall()))
        self._runner.wake()
        self._answer(exchange, batch_id, row)

    def _answer(self, exchange: Exchange, batch_id: str, row: Row | None) -> None:
        if row is None:
            exchange.respond(404, refusal_body(404, f"no batch {batch_id[:64]!r}"))
        else:
            exchange.respond(200, _encode(self._told(row)))
