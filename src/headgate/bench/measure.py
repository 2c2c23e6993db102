"""Runs one benchmark, from the first arrival to the last answer; the reports are made elsewhere."""

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from rich.console import Console

from headgate.bench import told
from headgate.bench.asker import Asker, Asking
from headgate.bench.beside import Added, added, slices
from headgate.bench.closed import ClosedPlayer, endless
from headgate.bench.live import Watcher
from headgate.bench.options import BenchOptions, check_loop, check_tenants, read_extra, read_keys
from headgate.bench.player import Player, RunTally
from headgate.garbage import rarely_collected
from headgate.model.clock import Clock, monotonic
from headgate.report import goodput
from headgate.report.results import Results, Rows, Target
from headgate.report.words import ms
from headgate.workload.load import Workload


@dataclass(slots=True)
class Measured:
    """The findings of one run."""

    results: Results
    behind: str
    """Why the client's own slowness spoils the figures; empty: it does not."""
    interrupted: bool
    messages: dict[str, str] = field(default_factory=dict)
    lanes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Label that the load gives a request → lane that the server used → number of requests."""
    direct: Results | None = None
    added: list[Added] = field(default_factory=list)


async def measure(options: BenchOptions, console: Console | None = None, clock: Clock = monotonic) -> Measured:
    """Runs the benchmark that the options describe, without its reports. Raises StartupError."""
    workload = Workload(
        options.workload,
        rate=options.rate,
        time_scale=options.time_scale,
        duration_s=options.duration_s,
        requests=options.requests,
    )
    check_loop(options)
    targets = goodput.parse(options.goodput or workload.goodput)
    asking = Asking(
        endpoint=options.endpoint,
        model=options.model,
        keys=read_keys(options.keys, os.environ),
        ignore_eos=options.ignore_eos,
        extra=read_extra(options.extra_body),
        stream=options.stream,
        seed=options.seed,
        pin=options.pin,
    )
    check_tenants(workload, asking.keys)
    _open_files()
    ways = [Asker((options.url,), asking, clock)]
    if options.direct:
        ways.append(Asker(options.direct, replace(asking, keys={}), clock, salt=1))
    try:
        for way in ways:
            await way.probe()
        if console is None or not options.progress:
            console = Console(quiet=True)
        return await _Run(options, workload, targets, ways, console, clock).run()
    finally:
        for way in ways:
            await way.close()


class _Run:
    def __init__(
        self,
        options: BenchOptions,
        workload: Workload,
        targets: tuple[Target, ...],
        ways: list[Asker],
        console: Console,
        clock: Clock,
    ) -> None:
        self._options, self._workload, self._targets = options, workload, targets
        self._ways, self._console, self._clock = ways, console, clock
        self._tally = RunTally()
        self._interrupted = False
        self._closed: ClosedPlayer | None = None
        total = workload.duration_s
        if total is None and workload.requests is not None and options.concurrency is None:
            total = workload.requests / workload.rate
        self._watcher = Watcher(console, self._tally, total and total * len(ways), clock)

    async def run(self) -> Measured:
        options = self._options
        before, cpu = _cpu(), _own_cpu_s()
        began = self._clock()
        with rarely_collected(), self._interruptible(), self._watcher.watching():
            rows = await (self._alternating() if options.direct else self._once())
        took = self._clock() - began
        facts = self._facts(took, before, _own_cpu_s() - cpu)
        behind = self._tally.behind
        notes = [behind] if behind else []
        notes += told.notes(self._workload, self._tally, self._closed)
        if self._interrupted:
            notes.append("interrupted: what was still under way is counted as failed")
        results = self._results(rows[0], options.title or self._ways[0].urls[0], facts, notes)
        lanes = told.lanes(self._tally)
        measured = Measured(results, behind, self._interrupted, dict(self._tally.messages), lanes)
        if options.direct and len(rows[1]):
            measured.direct = self._results(rows[1], f"direct: {', '.join(self._ways[1].urls)}", facts, notes)
            measured.added = added(results, measured.direct, options.seed)
        return measured

    async def _once(self) -> list[Rows]:
        rows = Rows()
        if self._options.concurrency is not None:
            await self._play(self._closed_player(self._options.concurrency, rows), 0.0)
            return [rows]
        arrivals = self._workload.arrivals(self._options.seed)
        await self._play(Player(arrivals, self._ways[0], rows, self._tally, self._clock, self._options.timeout_s), 0.0)
        return [rows]

    def _closed_player(self, places: int, rows: Rows) -> ClosedPlayer:
        options, workload = self._options, self._workload
        self._closed = ClosedPlayer(
            endless(options.workload, options.seed), self._ways[0], rows, self._tally, self._clock, options.timeout_s,
            places=places, lasts_s=inf if workload.duration_s is None else workload.duration_s,
            requests=workload.requests,
        )  # fmt: skip
        return self._closed

    async def _alternating(self) -> list[Rows]:
        """Plays each slice both ways; a slice that was interrupted before its second way ended does not count."""
        options = self._options
        kept = [Rows(), Rows()]
        for index, (begin, slice_) in enumerate(slices(self._workload.arrivals(options.seed), options.slice_s)):
            tried = [Rows(), Rows()]
            for way in (0, 1) if index % 2 == 0 else (1, 0):
                player = Player(iter(slice_), self._ways[way], tried[way], self._tally, self._clock, options.timeout_s)
                await self._play(player, begin)
                if self._interrupted:
                    return kept
                self._watcher.passed_s += options.slice_s
            for rows, more in zip(kept, tried, strict=True):
                rows.extend(more)
        return kept

    async def _play(self, player: Player, from_s: float) -> None:
        self._watcher.player = player
        await player.play(from_s)
        self._watcher.player = None

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C ends the run with the results so far; a second Ctrl-C interrupts the process as usual."""
        loop = asyncio.get_running_loop()

        def stop() -> None:
            self._interrupted = True
            loop.remove_signal_handler(signal.SIGINT)
            if self._watcher.player is not None:
                self._watcher.player.stop()

        try:
            loop.add_signal_handler(signal.SIGINT, stop)
        except (RuntimeError, ValueError):  # not the main thread, which alone gets Ctrl-C
            yield
            return
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def _results(self, rows: Rows, title: str, facts: dict[str, str], notes: list[str]) -> Results:
        return rows.results(title, source="bench", goodput=self._targets, facts=facts, notes=notes)

    def _facts(self, took: float, before: tuple[float, float] | None, own_s: float) -> dict[str, str]:
        lag = self._tally.lag
        facts = {
            "workload": self._workload.describe(),
            "seed": str(self._options.seed),
            "model": self._ways[0].model,
            "address": self._ways[0].urls[0],
        }
        if lag.count:
            p50, p99 = lag.quantiles((0.5, 0.99))
            facts["client"] = (
                f"sent {ms(p50 or 0.0)} ms after it was due at p50, {ms(p99 or 0.0)} at p99, {ms(lag.max or 0.0)} at "
                f"most; {own_s / took:.0%} of a core"
            )
        facts |= told.facts(self._tally, self._closed)
        after = _cpu()
        if before is not None and after is not None and after[1] > before[1]:
            facts["machine"] = f"{(after[0] - before[0]) / (after[1] - before[1]):.0%} idle, {os.cpu_count()} cores"
        return facts


# -- the process and the machine ---------------------------------------------------------------------------------


def _open_files() -> None:
    """Raises the limit of open files, and with it of connections, to the most that the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _cpu() -> tuple[float, float] | None:
    """The machine's idle time and total time so far, in ticks; None: /proc/stat can't be read."""
    try:
        ticks = [float(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return ticks[3] + ticks[4], sum(ticks)
