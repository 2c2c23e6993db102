"""Lists, shows and records incidents over HTTP, for `headgate incident`.

    GET  /admin/incidents              digests of all that are kept, the newest first, and where they are
    GET  /admin/incidents/ID           one digest: which alert, queues, replicas, the slowest requests and why
    GET  /admin/incidents/ID/trace     the trace itself, which Perfetto opens
    POST /admin/incidents              {"reason": "…"} records the last minute now

Files are read and written by a thread.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from headgate.model.errors import EngineFailed, InvalidRequest, QueueFull, ServeError
from headgate.publish.incidents.recorder import FlightRecorder
from headgate.surface.access import AdminAccess
from headgate.wire.errors import refusal_body
from headgate.wire.exchange import Exchange
from headgate.wire.router import Routes

log = logging.getLogger(__name__)

PATH: Final = "/admin/incidents"
JOBS: Final = 4
"""Maximum questions answered at once; more are refused, to be asked again."""
LONGEST_REASON: Final = 200
KEPT: Final = "while the gateway runs: set observe.incidents.folder to keep them"

_encode = msgspec.json.Encoder().encode

Reply = tuple[int, bytes]


class IncidentNote(msgspec.Struct, forbid_unknown_fields=True):
    """Why an incident is recorded by hand."""

    reason: str = "asked for"


_note = msgspec.json.Decoder(IncidentNote).decode


class IncidentAdmin:
    def __init__(self, recorder: FlightRecorder, access: AdminAccess, refresh: Callable[[], None], lasts: bool) -> None:
        """`refresh` hands over the records that have just closed. `lasts`: the folder outlives the gateway."""
        self.recorder = recorder
        self._access = access
        self._refresh = refresh
        self._lasts = lasts
        self._jobs: set[asyncio.Task[None]] = set()

    def routes(self) -> Routes:
        guard = self._access.guard
        return {
            ("GET", PATH): guard(lambda exchange: self._start(exchange, self._list())),
            ("GET", f"{PATH}/*"): guard(self._one),
            ("POST", PATH): guard(self._record),
        }

    def close(self) -> None:
        for job in self._jobs:
            job.cancel()

    def _one(self, exchange: Exchange) -> None:
        name, _, part = exchange.path.removeprefix(f"{PATH}/").partition("/")
        name = unquote(name)
        if part not in ("", "trace"):
            exchange.respond(404, refusal_body(404, f"no such path: {exchange.path[:256]}"))
            return
        self._start(exchange, self._trace(name) if part else self._digest(name))

    def _record(self, exchange: Exchange) -> None:
        try:
            reason = _note(exchange.body or b"{}").reason
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"a recording may have a reason, and nothing else: {error}") from None
        self._refresh()
        self._start(exchange, self._recorded(" ".join(reason.split())[:LONGEST_REASON] or "asked for"))

    # -- what is looked for ----------------------------------------------------------------------------------

    async def _list(self) -> Reply:
        recorder = self.recorder
        found = await _aside(recorder.folder.digests)
        about = {
            "folder": str(recorder.folder.path),
            "kept": "" if self._lasts else KEPT,
            "skipped": recorder.skipped,
            "failed": recorder.failed,
            "under_way": recorder.under_way,
        }
        return 200, _encode({"incidents": found, **about})

    async def _digest(self, name: str) -> Reply:
        found = await _aside(self.recorder.folder.digest, name)
        return (404, _unknown(name)) if found is None else (200, _encode(found))

    async def _trace(self, name: str) -> Reply:
        found = await _aside(self.recorder.folder.trace, name)
        return (404, _unknown(name)) if found is None else (200, found)

    async def _recorded(self, reason: str) -> Reply:
        found = await self.recorder.record(reason)
        if found is None:
            folder = self.recorder.folder.path
            return 500, refusal_body(500, f"the incident could not be written to {folder}; the gateway's log says why")
        return 200, _encode(found)

    # -- aside -----------------------------------------------------------------------------------------------

    def _start(self, exchange: Exchange, job: Coroutine[Any, Any, Reply]) -> None:
        if len(self._jobs) >= JOBS:
            job.close()
            raise QueueFull(f"{JOBS} such questions are being answered already: ask again in a second")
        task = asyncio.get_running_loop().create_task(self._answer(exchange, job))

        def gone() -> None:
            task.cancel()

        exchange.on_gone = gone
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _answer(self, exchange: Exchange, job: Coroutine[Any, Any, Reply]) -> None:
        try:
            status, body = await job
        except ServeError as error:
            exchange.fail(error)
        except Exception as error:
            log.exception("%s could not be answered", exchange.path)
            exchange.fail(EngineFailed(f"internal error: {type(error).__name__}"))
        else:
            exchange.respond(status, body)


async def _aside(work: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)


def _unknown(name: str) -> bytes:
    return refusal_body(404, f"no incident {name[:80]!r} is kept; headgate incident ls lists them")
