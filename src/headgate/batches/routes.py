"""Serves /v1/files and /v1/batches as OpenAI's API describes them, each tenant for its own.

POST   /v1/files                       upload (multipart/form-data: file, purpose=batch)
GET    /v1/files                       list
GET    /v1/files/ID, /v1/files/ID/content
DELETE /v1/files/ID
POST   /v1/batches                     create
GET    /v1/batches, /v1/batches/ID
POST   /v1/batches/ID/cancel
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn

import msgspec

from headgate.batches.desk import Desk
from headgate.batches.forms.formats import batch_object, file_object, page
from headgate.batches.forms.lines import ENDPOINTS
from headgate.batches.jobs import Jobs
from headgate.batches.query import Query
from headgate.batches.shelf import InUse, Shelf
from headgate.batches.store import StorageTrouble, troubled
from headgate.batches.upload import TooLarge, Upload
from headgate.batches.uploads import Uploads
from headgate.config.batches import BatchesConfig
from headgate.config.gateway import Tenant
from headgate.model.clock import Clock
from headgate.model.errors import EngineFailed, InvalidRequest, QueueFull, ServeError
from headgate.wire.errors import Headers, error_body, refusal_body
from headgate.wire.exchange import Exchange, Handler
from headgate.wire.router import Routes

log = logging.getLogger(__name__)

FILES: Final = "/v1/files"
BATCHES: Final = "/v1/batches"
WINDOW: Final = "24h"
MOST_PAIRS, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512
FORM_BYTES: Final = 1024 * 1024
PIECE_BYTES: Final = 256 * 1024
NOT_AGAIN: Headers = (("x-should-retry", "false"),)
"""Tells OpenAI's clients that the same request would fail again."""

_encode = msgspec.json.Encoder().encode
Job = Callable[[Exchange, str], Coroutine[Any, Any, None]]


class BatchRequest(msgspec.Struct):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: Any = None


_read = msgspec.json.Decoder(BatchRequest).decode


class Answered(Exception):
    """An answer that is not a ServeError's."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param


class BatchRoutes:
    def __init__(
        self,
        known: Callable[[dict[str, str]], Tenant],
        desk: Desk,
        shelf: Shelf,
        jobs: Jobs,
        uploads: Uploads,
        config: BatchesConfig,
        wall: Clock,
        woken: Callable[[], None],
    ) -> None:
        """`known`: the tenant of a request's headers; raises Unauthorized. `woken` is called when there is a new batch,
        or one is cancelled."""
        self._known = known
        self._desk = desk
        self._shelf = shelf
        self._jobs = jobs
        self._uploads = uploads
        self._config = config
        self._wall = wall
        self._woken = woken
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = ""
        """Why nothing is served; empty: it is."""

    def close_for(self, why: str) -> None:
        """Serves nothing from now on, and says why; empty: it serves."""
        self.closed = why

    def routes(self) -> Routes:
        return {
            ("POST", FILES): self._as(self._upload),
            ("GET", FILES): self._as(self._list_files),
            ("GET", f"{FILES}/*"): self._as(self._file),
            ("DELETE", f"{FILES}/*"): self._as(self._delete),
            ("POST", BATCHES): self._as(self._create),
            ("GET", BATCHES): self._as(self._list),
            ("GET", f"{BATCHES}/*"): self._as(self._batch),
            ("POST", f"{BATCHES}/*"): self._as(self._cancel),
        }

    @property
    def bodies(self) -> dict[str, int]:
        """Maximum bytes of a form that is uploaded, by path: a file, and what is around it."""
        return {FILES: self._config.file_bytes + FORM_BYTES}

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def begin(self, exchange: Exchange) -> None:
        """Prepares for a body of which only the headers are here: it is written to the disk as it comes, or refused
        unread. Part of the judge (gateway/judge.py)."""
        tenant = self._known(exchange.headers)
        try:
            self._refuse_closed()
            exchange.sink = self._uploads.begin(tenant.name, exchange.headers.get("content-type", ""))
        except Answered as answered:
            _answer(exchange, answered)

    # -- around every route ---------------------------------------------------------------------------------------

    def _as(self, job: Job) -> Handler:
        def handle(exchange: Exchange) -> None:
            sink, started = exchange.sink, False
            try:
                tenant = self._known(exchange.headers)
                self._refuse_closed()
                if self._desk.busy:
                    raise QueueFull("too many questions about files and batches wait: ask again in a second")
                task = asyncio.get_running_loop().create_task(self._do(job, exchange, tenant.name))
                started = True
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            except Answered as answered:
                _answer(exchange, answered)
            finally:
                if sink is not None and not started:
                    sink.drop()

        return handle

    def _refuse_closed(self) -> None:
        if self.closed:
            raise Answered(503, f"batches are not served here: {self.closed}", "batches_off")

    async def _do(self, job: Job, exchange: Exchange, tenant: str) -> None:
        try:
            await job(exchange, tenant)
        except Answered as answered:
            _answer(exchange, answered)
        except TooLarge as error:
            _answer(exchange, Answered(413, error.message, "file_too_large", error.param))
        except ServeError as error:
            exchange.fail(error)
        except StorageTrouble as trouble:
            log.error("%s %s: %s", exchange.method, exchange.path, trouble)
            _answer(exchange, Answered(507, str(trouble), "storage"))
        except Exception as flaw:
            log.exception("%s %s could not be answered", exchange.method, exchange.path)
            exchange.fail(EngineFailed(f"internal error: {type(flaw).__name__}"))

    # -- files ----------------------------------------------------------------------------------------------------

    async def _upload(self, exchange: Exchange, tenant: str) -> None:
        sink = exchange.sink
        if sink is None:  # all of it came in one read
            sink = self._uploads.begin(tenant, exchange.headers.get("content-type", ""))
            sink.take(exchange.body)
        assert isinstance(sink, Upload)
        await sink.end()
        try:
            purpose = sink.fields.get("purpose")
            if purpose != "batch":
                told = "is missing" if purpose is None else f"is {purpose[:64]!r}"
                raise InvalidRequest(f"purpose {told}: only files for batches are kept here ('batch')", param="purpose")
            file_id, name, size = sink.file_id, sink.filename, sink.size
            row = await self._desk.do(lambda: self._add(file_id, tenant, name, size))
        except BaseException:
            await self._desk.do(lambda: self._shelf.forget(sink.file_id))
            raise
        exchange.respond(200, _encode(file_object(row)))

    def _add(self, file_id: str, tenant: str, name: str, size: int) -> Any:
        self._refuse_over(tenant, size)
        return self._shelf.add(file_id, tenant, name, size, self._wall())

    def _refuse_over(self, tenant: str, size: int) -> None:
        held, config = self._shelf.held(tenant), self._config
        if held.files >= config.tenant_files:
            most = f"{config.tenant_files} files (batches.tenant_files)"
            raise Answered(413, f"you have {held.files} files, and may have {most}: delete some", "too_many_files")
        if held.bytes + size > config.tenant_bytes:
            most = f"{config.tenant_bytes} bytes (batches.tenant_bytes)"
            told = f"your files have {held.bytes} bytes, and with this one's {size} they would have more than {most}"
            raise Answered(413, f"{told}: delete some", "files_too_large")

    async def _list_files(self, exchange: Exchange, tenant: str) -> None:
        query = Query(exchange.query, ("after", "limit", "order", "purpose"))
        limit, after = query.number("limit", 10_000, 10_000), query.text("after")
        newest_first = query.one_of("order", ("desc", "asc")) != "asc"
        purpose = query.text("purpose")
        try:
            rows, more = await self._desk.do(
                lambda: self._shelf.page(tenant, after, limit, purpose, newest_first=newest_first)
            )
        except KeyError:
            raise InvalidRequest(f"after: no file {_shown(after)}", param="after") from None
        exchange.respond(200, _encode(page([file_object(row) for row in rows], more=more)))

    async def _file(self, exchange: Exchange, tenant: str) -> None:
        file_id, _, rest = exchange.path.removeprefix(f"{FILES}/").partition("/")
        row = await self._desk.do(lambda: self._shelf.get(tenant, file_id))
        if row is None or rest not in ("", "content"):
            _no_file(file_id)
        if rest:
            await self._send(exchange, file_id, row["bytes"])
        else:
            exchange.respond(200, _encode(file_object(row)))

    async def _send(self, exchange: Exchange, file_id: str, size: int) -> None:
        """Sends a file piece by piece, as fast as its client reads."""
        store = self._desk.store
        try:
            with troubled(store.folder):
                file = await self._desk.do(lambda: open(store.path(file_id), "rb"))  # noqa: SIM115
        except StorageTrouble:
            if await self._desk.do(store.path(file_id).exists):
                raise
            raise Answered(404, f"the content of file {file_id} is not there any more", "not_found") from None
        room = asyncio.Event()
        exchange.on_writable = room.set
        exchange.on_gone = room.set
        try:
            exchange.begin(size, "application/octet-stream")
            left = size
            while not exchange.done:
                want = min(PIECE_BYTES, left)
                data = await self._uploads.read(file, want)
                left -= len(data)
                if len(data) < want:  # cut off: the client must not take it for the whole
                    exchange.abort()
                    return
                exchange.piece(data, last=left == 0)
                if not exchange.done and not exchange.writable:
                    room.clear()
                    await room.wait()
        except OSError:
            exchange.abort()
        finally:
            file.close()

    async def _delete(self, exchange: Exchange, tenant: str) -> None:
        file_id = exchange.path.removeprefix(f"{FILES}/")
        try:
            gone = await self._desk.do(lambda: self._shelf.delete(tenant, file_id))
        except InUse as used:
            told = f"file {file_id} is the input of {used}, which is not over: cancel that first"
            raise Answered(409, told, "file_in_use") from None
        if not gone:
            _no_file(file_id)
        exchange.respond(200, _encode({"id": file_id, "object": "file", "deleted": True}))

    # -- batches --------------------------------------------------------------------------------------------------

    async def _create(self, exchange: Exchange, tenant: str) -> None:
        asked = self._asked(exchange.body)
        lanes = self._known(exchange.headers).lanes
        if lanes and "batch" not in lanes:
            raise InvalidRequest(f"lane 'batch' is not open to tenant {tenant!r}")
        row = await self._desk.do(lambda: self._make(asked, tenant))
        self._woken()
        exchange.respond(200, _encode(batch_object(row)))

    def _asked(self, body: bytes) -> BatchRequest:
        try:
            asked = _read(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"the body is not what creates a batch: {error}") from None
        if asked.endpoint not in ENDPOINTS:
            raise InvalidRequest(f"endpoint must be one of {', '.join(ENDPOINTS)}", param="endpoint")
        if asked.completion_window != WINDOW:
            raise InvalidRequest(f"completion_window must be {WINDOW!r}", param="completion_window")
        pairs = asked.metadata or {}
        if len(pairs) > MOST_PAIRS or any(len(k) > LONGEST_KEY or len(v) > LONGEST_VALUE for k, v in pairs.items()):
            most = f"{MOST_PAIRS} pairs, of keys up to {LONGEST_KEY} and values up to {LONGEST_VALUE} characters"
            raise InvalidRequest(f"metadata may have {most}", param="metadata")
        return asked

    def _make(self, asked: BatchRequest, tenant: str) -> Any:
        row = self._shelf.get(tenant, asked.input_file_id)
        if row is None:
            raise InvalidRequest(f"no file {_shown(asked.input_file_id)} is yours", param="input_file_id")
        if row["purpose"] != "batch":
            raise InvalidRequest(f"file {row['id']} is a result, no input", param="input_file_id")
        if not self._desk.store.path(row["id"]).is_file():
            gone = f"the content of file {row['id']} is not there any more: upload it again"
            raise InvalidRequest(gone, param="input_file_id")
        most = self._config.tenant_batches
        if self._jobs.open_count(tenant) >= most:
            told = f"{most} of your batches are not over (batches.tenant_batches): wait for one, or cancel one"
            raise Answered(429, told, "too_many_batches")
        return self._jobs.create(
            tenant, asked.endpoint, asked.completion_window, asked.input_file_id, asked.metadata, self._wall()
        )

    async def _list(self, exchange: Exchange, tenant: str) -> None:
        query = Query(exchange.query, ("after", "limit"))
        limit, after = query.number("limit", 20, 100), query.text("after")
        try:
            rows, more = await self._desk.do(lambda: self._jobs.page(tenant, after, limit))
        except KeyError:
            raise InvalidRequest(f"after: no batch {_shown(after)}", param="after") from None
        exchange.respond(200, _encode(page([batch_object(row) for row in rows], more=more)))

    async def _batch(self, exchange: Exchange, tenant: str) -> None:
        batch_id = exchange.path.removeprefix(f"{BATCHES}/")
        row = await self._desk.do(lambda: self._jobs.get(tenant, batch_id))
        if row is None:
            _no_batch(batch_id)
        exchange.respond(200, _encode(batch_object(row)))

    async def _cancel(self, exchange: Exchange, tenant: str) -> None:
        batch_id, _, verb = exchange.path.removeprefix(f"{BATCHES}/").partition("/")
        if verb != "cancel":
            raise Answered(404, f"no such path: {exchange.path[:256]}", "not_found")
        row = await self._desk.do(lambda: self._jobs.cancel(tenant, batch_id, self._wall()))
        if row is None:
            _no_batch(batch_id)
        self._woken()
        exchange.respond(200, _encode(batch_object(row)))


def _answer(exchange: Exchange, answered: Answered) -> None:
    if exchange.started:
        exchange.abort()
        return
    if answered.param is None:
        body = refusal_body(answered.status, answered.message, answered.code)
    else:
        error = InvalidRequest(answered.message, param=answered.param)
        error.code = answered.code
        body = error_body(error)
    exchange.respond(answered.status, body, headers=() if answered.status == 503 else NOT_AGAIN)


def _shown(name: str | None) -> str:
    return repr((name or "")[:64])


def _no_file(file_id: str) -> NoReturn:
    raise Answered(404, f"no file {_shown(file_id)} is yours", "not_found", "id")


def _no_batch(batch_id: str) -> NoReturn:
    raise Answered(404, f"no batch {_shown(batch_id)} is yours", "not_found", "id")
