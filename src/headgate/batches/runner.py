"""Runs batches: sends their lines while there is room, and keeps what comes of each.

`pump` is called whenever something changes and sends what may go; it only chooses among lines that are at hand. The
clerk does all that needs the store: it commits results, reads further lines, validates and finishes batches. What the
store can't take stays in memory, nothing more is sent, and the clerk tries again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from headgate.batches.again import after
from headgate.batches.call import LineCall
from headgate.batches.desk import Desk
from headgate.batches.forms.formats import answered_line, request_id, tokens_of
from headgate.batches.forms.lines import body_of
from headgate.batches.jobs import Jobs, MissingInput, Result, Waiting
from headgate.batches.pacing import Pacing
from headgate.batches.run import AT_HAND, AT_HAND_BYTES, BatchRun
from headgate.batches.shelf import Shelf
from headgate.batches.store import Row, StorageTrouble
from headgate.config.batches import BatchesConfig
from headgate.gateway.gateway import Gateway
from headgate.model.clock import Clock
from headgate.model.errors import ServeError

log = logging.getLogger(__name__)

LOOK_S: Final = 0.025
"""Seconds between two looks at the room while lines run or wait."""
POLL_S: Final = 2.0
"""Seconds between two looks for batches made by another gateway, and for the lock."""
TROUBLE_S: Final = 2.0
"""Seconds until the store is tried again."""
SWEEP_S: Final = 3600.0
MOST_COMMITTED: Final = 256
"""Results of one commit."""


class BatchRunner:
    """Built within the running loop."""

    def __init__(
        self, gateway: Gateway, desk: Desk, jobs: Jobs, shelf: Shelf, config: BatchesConfig, clock: Clock, wall: Clock
    ) -> None:
        self.runs: dict[int, BatchRun] = {}
        """Batches that are not over, by their place in the order."""
        self.trouble = ""
        """Why the store can't be used; empty: it can."""
        self._gateway = gateway
        self._desk = desk
        self._jobs = jobs
        self._shelf = shelf
        self._config = config
        self._clock = clock
        self._wall = wall
        self._pacing = Pacing(gateway)
        self._results: deque[tuple[int, Result]] = deque()
        self._tries: list[tuple[int, int, int]] = []
        self._wanted = asyncio.Event()
        """Set when there is work for the clerk."""
        self._fresh = True
        """Whether the rows of batches have to be read again."""
        self._looked_at = self._swept_at = float("-inf")
        self._whole: set[asyncio.Task[None]] = set()
        self._stopped = False

    # -- told by others ---------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is a new batch, or one was cancelled."""
        self._fresh = True
        self._wanted.set()

    def stop(self) -> None:
        """Sends nothing more, and puts back what is under way."""
        self._stopped = True
        for run in self.runs.values():
            self._take_back(run)

    async def close(self) -> None:
        """Commits the results that are at hand."""
        self.stop()
        for task in self._whole:
            task.cancel()
        await asyncio.gather(*self._whole, return_exceptions=True)
        try:
            await self._commit()
        except StorageTrouble as trouble:
            log.error("results of %d lines are lost, and their lines run again: %s", len(self._results), trouble)

    # -- the clerk --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Works until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look())
            while True:
                try:
                    await self._work()
                    self.trouble = ""
                except StorageTrouble as trouble:
                    if not self.trouble:
                        log.error("batches wait: %s", trouble)
                    self.trouble = str(trouble)
                    await asyncio.sleep(TROUBLE_S)
                    continue
                except Exception:
                    log.exception("batches wait %g s", TROUBLE_S)
                    await asyncio.sleep(TROUBLE_S)
                    continue
                self.pump()
                try:
                    async with asyncio.timeout(POLL_S):
                        await self._wanted.wait()
                except TimeoutError:
                    self._fresh = True
                self._wanted.clear()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S if self.runs else POLL_S)
            try:
                self.pump()
            except Exception:
                log.exception("lines of batches could not be sent")
                await asyncio.sleep(TROUBLE_S)

    async def _work(self) -> None:
        if not await self._desk.do(self._desk.store.lock):
            return  # another gateway runs them
        await self._commit()
        now = self._clock()
        if self._fresh:
            self._fresh = False
            self._take_rows(await self._desk.do(self._jobs.open_batches))
        if now - self._swept_at > SWEEP_S:
            self._swept_at = now
            await self._desk.do(lambda: self._shelf.sweep(self._wall()))
        for run in tuple(self.runs.values()):
            if not run.busy:
                await self._tend(run)

    def _take_rows(self, rows: list[Row]) -> None:
        open_now = {row["seq"]: row for row in rows}
        for seq in [seq for seq in self.runs if seq not in open_now]:
            self._take_back(self.runs.pop(seq))
        for seq, row in open_now.items():
            if seq in self.runs:
                self.runs[seq].row = row
            else:
                self.runs[seq] = BatchRun(row)

    async def _commit(self) -> None:
        tries, self._tries = self._tries, []
        try:
            if tries:
                await self._desk.do(lambda: self._jobs.attempted(tries))
            while self._results:
                some = [self._results[index] for index in range(min(MOST_COMMITTED, len(self._results)))]
                await self._desk.do(lambda some=some: self._jobs.record(some))  # type: ignore[misc]
                for _ in some:
                    self._results.popleft()
        except BaseException:
            self._tries = tries + self._tries  # harmless twice
            raise

    async def _tend(self, run: BatchRun) -> None:
        """Does what the batch needs next."""
        status = run.row["status"]
        if status == "validating":
            self._whole_batch(run, lambda: self._jobs.validating(run.row, self._wall))
            return
        ending = self._ending(run)
        if ending is not None:
            self._take_back(run)
            if not any(seq == run.seq for seq, _ in self._results):
                self._whole_batch(run, lambda: self._jobs.finishing(run.row, ending, self._wall))
            return
        try:
            for number in run.due_again(self._clock()):
                run.ready.extend(await self._desk.do(lambda number=number: self._jobs.line(run.row, number)))  # type: ignore[misc]
            if run.wants_lines():
                run.took(
                    await self._desk.do(lambda: self._jobs.waiting(run.row, run.after, AT_HAND // 2, AT_HAND_BYTES))
                )
        except MissingInput as missing:
            log.error("batch %s: %s", run.id, missing)
            await self._desk.do(lambda missing=missing: self._jobs.give_up(run.row, missing))  # type: ignore[misc]
            run.ready.clear()
            run.again.clear()
            run.read_all = True
        if run.idle and not self._results:
            if await self._desk.do(lambda: self._jobs.unfinished(run.seq)):
                run.start_over()
            else:
                self._whole_batch(run, lambda: self._jobs.finishing(run.row, "completed", self._wall))

    def _ending(self, run: BatchRun) -> str | None:
        """How the batch ends now, whatever its lines do; None: it goes on."""
        if run.stopping:
            return "cancelled"
        if run.row["status"] == "finalizing":  # a restart came in between
            return "expired" if run.row["expired_at"] is not None else "completed"
        return "expired" if self._wall() >= run.row["expires_at"] else None

    def _whole_batch(self, run: BatchRun, steps: Callable[[], Iterator[None]]) -> None:
        """Goes through the steps of what changes a batch as a whole, while others run."""
        run.busy = True

        async def go() -> None:
            try:
                iterator = await self._desk.do(steps)
                while await self._desk.do(lambda: next(iterator, self) is not self):
                    pass
            except StorageTrouble as trouble:
                self.trouble = str(trouble)
                log.error("batch %s waits: %s", run.id, trouble)
                await asyncio.sleep(TROUBLE_S)
            except Exception:
                log.exception("batch %s waits", run.id)
                await asyncio.sleep(TROUBLE_S)
            finally:
                run.busy = False
                self.wake()

        task = asyncio.get_running_loop().create_task(go())
        self._whole.add(task)
        task.add_done_callback(self._whole.discard)

    # -- lines ------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Sends the lines that may go now, and puts back those that are in the way of others."""
        if self._stopped:
            return
        now = self._clock()
        for run, number in self._pacing.to_end(self.runs.values(), now):
            self._take_back(run, number)
        if self.trouble:
            return
        while (found := self._pacing.next(self.runs.values(), now)) is not None:
            run, line, tenant = found
            run.ready.popleft()
            self._send(run, line, LineCall(
                self._gateway, tenant, run.row["endpoint"], request_id(run.id, line.number), self._body(line),
                lambda status, body, error, run=run, line=line: self._answered(run, line, status, body, error),  # type: ignore[misc]
                self._clock,
            ))  # fmt: skip
        if any(run.wants_lines() or (run.again and run.again[0][0] <= now) for run in self.runs.values()):
            self._wanted.set()

    def _body(self, line: Waiting) -> bytes:
        try:
            return body_of(line.data)
        except ValueError:  # the file was changed behind our back: the gateway refuses what is no JSON
            return b""

    def _send(self, run: BatchRun, line: Waiting, call: LineCall) -> None:
        run.calls[line.number] = (call, line)
        call.send()
        self._pacing.sent(line, call)

    def _answered(self, run: BatchRun, line: Waiting, status: int, body: bytes, error: ServeError | None) -> None:
        if run.calls.pop(line.number, None) is None:
            return
        now, attempts = self._clock(), line.attempts + 1
        outcome = None if error is None else error.outcome
        told = after(outcome, attempts, self._config.attempts, None if error is None else error.retry_after_s)
        if told.what == "over":
            result = answered_line(run.id, line.number, line.custom_id, status, body)
            tokens = tokens_of(body) if status == 200 else (0, 0, 0)
            self._pacing.served(run.tenant, sum(tokens))
            self._results.append((run.seq, Result(line.number, status == 200, result, tokens)))
            self._wanted.set()
        elif told.what == "again":
            self._tries.append((run.seq, line.number, attempts))
            run.send_again(now + told.pause_s, line.number)
        else:
            run.put_back(line)
            run.paused_until = now + told.pause_s
            run.reason = "" if error is None else error.message
        self.pump()

    def _take_back(self, run: BatchRun, number: int | None = None) -> None:
        """Ends lines that are under way, and has them sent again later. `number` None: all of the batch."""
        for one in [number] if number is not None else [*run.calls]:
            found = run.calls.pop(one, None)
            if found is not None:
                call, line = found
                run.put_back(line)
                call.take_back()
