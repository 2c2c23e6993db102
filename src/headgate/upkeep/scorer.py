"""Has a command or an address score what both versions answered to one request.

It gets one JSON object, and gives one back:

    {"name": "chat", "request": {"messages": […], …}, "answers": {"v1": "…", "v2": "…"}}
    {"scores": {"v1": 0.9, "v2": 0.7}}

A scorer that fails, is too slow or says something else has given no score, which is counted and told.
"""

import asyncio
import contextlib
import logging
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec

from headgate.config.models import ScorerConfig
from headgate.model.clock import Clock
from headgate.model.errors import ServeError
from headgate.model.labels import plain
from headgate.replica.http import Connections

log = logging.getLogger(__name__)

MOST_BYTES: Final = 64 * 1024
"""Maximum bytes of a scorer's answer."""
MOST_WORDS: Final = 200
"""Maximum characters of a scorer's complaint."""

_encode = msgspec.json.Encoder().encode


class ScorerAnswer(msgspec.Struct):
    scores: dict[str, Annotated[float, msgspec.Meta(ge=0, le=1)]]


_answer = msgspec.json.Decoder(ScorerAnswer).decode


class ScorerFailed(Exception):
    """No score; the message says why."""


class Scorer:
    """The scorer of one model name. Built and used within the running loop."""

    def __init__(
        self, name: str, config: ScorerConfig, told: Callable[[str, dict[str, float]], None], clock: Clock
    ) -> None:
        """`told` is called with the name and the scores by version."""
        self.scored = self.failed = self.left_out = 0
        """Pairs that got scores, got none, and were never handed over: too many at once, or no answer to score."""
        self.last_error = ""
        self._name = name
        self.config = config
        self._told = told
        self._tasks: set[asyncio.Task[None]] = set()
        parts = urlsplit(config.url or "")
        self._path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        self._pool = None if config.url is None else Connections(f"{parts.scheme}://{parts.netloc}", clock=clock)

    @property
    def room(self) -> bool:
        return len(self._tasks) < self.config.concurrency

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    def leave_out(self) -> None:
        self.left_out += 1

    def take(self, request: dict[str, Any], answers: dict[str, str]) -> None:
        if not self.room:
            self.leave_out()
            return
        asked = _encode({"name": self._name, "request": request, "answers": answers})
        task = asyncio.get_running_loop().create_task(self._score(asked, frozenset(answers)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._pool is not None:
            self._pool.close()

    def counts(self) -> dict[str, Any]:
        return {
            "scored": self.scored,
            "failed": self.failed,
            "left_out": self.left_out,
            "under_way": self.under_way,
            "last_error": self.last_error,
        }

    async def _score(self, asked: bytes, versions: frozenset[str]) -> None:
        try:
            async with asyncio.timeout(self.config.timeout_s):
                said = await (self._run(asked) if self._pool is None else self._post(self._pool, asked))
            scores = _answer(said).scores
            if missing := sorted(versions - scores.keys()):
                raise ScorerFailed(f"it gave no score for {', '.join(missing)}")
        except TimeoutError:
            self._fail(f"no score within {plain(self.config.timeout_s, 6)} s")
        except (ScorerFailed, ServeError, OSError) as error:
            self._fail(str(error))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._fail(f"it did not say scores from 0 to 1: {error}")
        else:
            self.scored += 1
            self._told(self._name, {version: scores[version] for version in versions})

    def _fail(self, why: str) -> None:
        if not self.failed:
            log.warning("the scorer of %s: %s; its failures are counted in the rollout's status", self._name, why)
        self.failed += 1
        self.last_error = " ".join(why.split())[:MOST_WORDS]

    async def _post(self, pool: Connections, asked: bytes) -> bytes:
        status, body = await pool.ask("POST", self._path, asked, self.config.timeout_s)
        if status != 200:
            raise ScorerFailed(f"it answered {status}")
        return body

    async def _run(self, asked: bytes) -> bytes:
        # A session of its own: what the program has started ends with it.
        process = await asyncio.create_subprocess_exec(
            *self.config.command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        try:
            _, said, complaint = await asyncio.gather(
                _write(process, asked), _read(process.stdout), _read(process.stderr)
            )  # fmt: skip
            status = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if status:
            last = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise ScorerFailed(f"it ended with status {status}" + (f": {last}" if last else ""))
        return said


async def _write(process: Process, data: bytes) -> None:
    """Writes all of the input. A program that reads none of it may still answer."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """All that is said, of which the first MOST_BYTES are kept, so that no program waits for a reader."""
    assert stream is not None
    kept = b""
    while piece := await stream.read(MOST_BYTES):
        kept = (kept + piece)[:MOST_BYTES]
    return kept
