"""Shows a run's progress: one line, redrawn; on a console that can't redraw, a line every ten seconds."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headgate.bench.player import Player, RunTally
from headgate.model.clock import Clock
from headgate.report.words import count, ms, rate

REDRAW_S, LINE_S = 0.5, 10.0
WINDOW_S = 5.0
"""Seconds over which rates are averaged."""


class Watcher:
    def __init__(self, console: Console, tally: RunTally, total_s: float | None, clock: Clock) -> None:
        """`total_s`: scheduled length of the whole run, in seconds; None: unknown."""
        self._console, self._tally, self._total_s, self._clock = console, tally, total_s, clock
        self.player: Player | None = None
        """The player at work; None: none is."""
        self.passed_s = 0.0
        """Seconds of the schedule that earlier players have played."""
        self._said: list[tuple[float, int, int]] = [(clock(), 0, 0)]
        """(time, requests sent, output tokens received) at each redraw of the last WINDOW_S seconds."""
        self._live: Live | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        every = REDRAW_S if self._console.is_terminal else LINE_S
        handle: asyncio.TimerHandle

        def again() -> None:
            nonlocal handle
            self._show()
            handle = loop.call_later(every, again)

        handle = loop.call_later(every, again)
        try:
            if self._console.is_terminal:
                # Redrawn from our own timer: rich's own thread would compete with the loop at bad moments.
                with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
                    yield
            else:
                yield
        finally:
            handle.cancel()
            self._live = None

    def _show(self) -> None:
        if self._live is not None:
            self._live.update(self._line(), refresh=True)
        else:
            self._console.print(Text("  " + self._words()), soft_wrap=True)

    def _line(self) -> Table:
        table = Table.grid(padding=(0, 1))
        passed, total = self._passed()
        if total:
            table.add_row(ProgressBar(total=total, completed=min(passed, total), width=24), self._words())
        else:
            table.add_row(self._words())
        return table

    def _passed(self) -> tuple[float, float | None]:
        player = self.player
        passed = self.passed_s
        if player is not None and player.started is not None:
            passed += self._clock() - player.started
        return max(0.0, passed), self._total_s

    def _words(self) -> str:
        tally, now = self._tally, self._clock()
        recent = [said for said in self._said if said[0] >= now - WINDOW_S]
        self._said = [*(recent or self._said[-1:]), (now, tally.sent, tally.tokens)]
        begin, sent, tokens = self._said[0]
        took = now - begin
        said = [f"{rate((tally.sent - sent) / took)}/s" if took else "…"]
        said.append(f"{count(self.player.in_flight if self.player else 0)} in flight")
        said.append(f"{count(tally.completed)} done")
        if tally.refused:
            said.append(f"{count(tally.refused)} refused")
        if tally.failed:
            said.append(f"{count(tally.failed)} errors")
        name, sketch = ("TTFT", tally.ttft) if tally.ttft.count else ("e2e", tally.e2e)
        if sketch.count:
            p50, p99 = sketch.quantiles((0.5, 0.99))
            of = " of the served" if tally.refused or tally.failed else ""
            said.append(f"{name} p50 {ms(p50 or 0.0)} p99 {ms(p99 or 0.0)} ms{of}")
        if took and tally.tokens > tokens:
            said.append(f"{rate((tally.tokens - tokens) / took)} tokens/s")
        passed, total = self._passed()
        if total is not None:
            left = total - passed
            said.append(f"{left:.0f} s left" if left > 0 else "waiting for the last answers")
        return " · ".join(said)
