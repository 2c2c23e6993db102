"""Twenty minutes of everything at once: the gateway is to keep its memory, and every request to have one outcome.

    python benchmarks/soak.py [--minutes 20] [--quick]

Half a million requests and more, of every kind, on the compiled gateway, while engines die, freeze, refuse and answer
nonsense, clients leave, do not read and send nonsense, and the config changes. README.md beside this file says what
each figure means.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks.kit import OPEN_FILES, compiled
from benchmarks.peers import ROOT, Unusable
from benchmarks.report import CpuTime, Grid, Report, Row, Samples, judge, machine, verdict_grid
from benchmarks.soak_book import Book, Tail
from benchmarks.soak_load import Clients
from benchmarks.soak_memory import Seen
from benchmarks.soak_picture import draw
from benchmarks.soak_site import Stage, Trouble, compiled_copy, staged

TITLE = "A soak"
RESULTS = ROOT / "benchmarks" / "results" / "soak.json"
MINUTES, RATE = 20.0, 700.0
LEAST_PER_MIN = 25_000
"""500 000 in 20 minutes."""
RING = 50_000
"""Records that the gateway keeps; fewer in a run too short to fill its ring in a fifth of the time."""
MOST_GROWTH_MB, SHORT_GROWTH_MB, FILLED_MIN = 3.0, 12.0, 10.0
"""What is remembered of prompts fills up within five minutes. A run shorter than FILLED_MIN may grow by as much as that
takes: a kilobyte for each request would be three times as much."""
LOOK_EVERY_S, SAY_EVERY_S, SETTLE_WITHIN_S = 1.0, 10.0, 20.0
HAPPENS = ("completed", "cancelled", "slow_client", "invalid", "unauthorized", "unknown_model", "over_limit")
"""Outcomes without which the run was no soak."""


@dataclass(slots=True)
class Run:
    stage: Stage
    clients: Clients
    book: Book
    trouble: Trouble
    seen: Seen
    counted_before: float
    """Outcomes in /metrics when the first request was sent."""
    ledger: dict[str, float] = field(default_factory=dict)
    outcomes: float = 0.0
    """In /metrics, of all that was sent."""
    idle_mb: float = 0.0


# -- the run -------------------------------------------------------------------------------------------------------


async def soak(stage: Stage, minutes: float, rate: float, console: Console) -> Run:
    book = Book()
    before = await settled(stage)
    tail = Tail(stage.journal)
    tail.records()  # of those who only asked whether it serves
    until = time.monotonic() + minutes * 60
    run = Run(stage, Clients(stage.port, stage.keys, rate, book), book, Trouble(stage), Seen(time.monotonic()), before)
    run.idle_mb = stage.memory_mb()[0]
    try:
        await watched(run, tail, until, console)
        if run.clients.broken is not None:
            raise Unusable(f"a client broke: {run.clients.broken!r}") from run.clients.broken
        run.ledger = await zero(stage)
        run.outcomes = await settled(stage) - before
        await caught_up(run, tail)
        for double in stage.doubles.values():
            await run.trouble.hear(double)
    finally:
        tail.close()
    return run


async def watched(run: Run, tail: Tail, until: float, console: Console) -> None:
    """Clients and trouble until all of it is over; nothing more if the gateway ends."""

    async def work() -> None:
        await asyncio.gather(run.clients.run(until), run.trouble.run(until))

    working, watching = asyncio.create_task(work()), asyncio.create_task(watch(run, tail, console))
    await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
    (working if watching.done() else watching).cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    await working


async def watch(run: Run, tail: Tail, console: Console) -> None:
    say_at = time.monotonic() + SAY_EVERY_S
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        if run.stage.gateway.first.poll() is not None:
            raise Unusable(f"the gateway ended with {run.stage.gateway.first.returncode}")
        for record in tail.records():
            run.book.record(record)
        run.seen.look(*run.stage.memory_mb(), ring_full=run.book.outcomes.total() >= run.stage.keep)
        if time.monotonic() >= say_at:
            say_at += SAY_EVERY_S
            console.print(progress(run), highlight=False)


def progress(run: Run) -> str:
    book, seen = run.book, run.seen
    ring = "ring full" if seen.full_s is not None else f"ring {book.outcomes.total() / run.stage.keep:.0%}"
    return (
        f"{seen.at_s[-1]:6.0f} s: {book.sent} sent, {run.clients.under_way} under way, "
        f"{book.without_record} without a record yet, {book.unanswered} unanswered, {book.contradicted} contradicted; "
        f"{seen.resident_mb[-1]:.1f} MB resident, {ring}; {sum(run.trouble.done.values())} troubles"
    )


async def settled(stage: Stage) -> float:
    """Outcomes in /metrics. Asking for it hands all closed records to the journal, which a thread writes."""
    counted = (await asyncio.to_thread(stage.metrics)).get("headgate_requests_total", 0.0)
    await asyncio.sleep(1.0)
    return counted


async def zero(stage: Stage) -> dict[str, float]:
    """The ledger, once it is zero or has had its time."""
    deadline = time.monotonic() + SETTLE_WITHIN_S
    while True:
        left = await asyncio.to_thread(stage.ledger)
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.5)


async def caught_up(run: Run, tail: Tail) -> None:
    deadline = time.monotonic() + SETTLE_WITHIN_S
    while True:
        for record in tail.records():
            run.book.record(record)
        if not run.book.without_record or time.monotonic() > deadline:
            return
        await asyncio.sleep(0.5)


# -- the verdict ---------------------------------------------------------------------------------------------------


def rows(minutes: float) -> list[Row]:
    most_growth_mb = MOST_GROWTH_MB if minutes >= FILLED_MIN else SHORT_GROWTH_MB
    return [
        Row("requests sent", "requests", None, "≥", LEAST_PER_MIN * minutes),
        Row("resident growth in the second half, MB", "growth_mb", None, "≤", most_growth_mb),
        Row("the same from median to median, MB", "growth_medians_mb", None),
        Row("unshared growth in the second half, MB", "unshared_growth_mb", None),
        Row("requests without a record", "without_record", None, "≤", 0),
        Row("records too many: a second one, or of no request", "records_too_many", None, "≤", 0),
        Row("outcomes in /metrics, apart from requests sent", "metrics_apart", None, "≤", 0),
        Row("clients that got no answer, or one cut short", "unanswered", None, "≤", 0),
        Row("clients whose answer is not what the record says", "contradicted", None, "≤", 0),
        Row("answered 500", "internal", None, "≤", 0),
        Row("left in the ledger at the end", "ledger", None, "≤", 0),
        Row("config changes answered otherwise than they should be", "changes_wrong", None, "≤", 0),
        Row("kinds of trouble that never happened", "missing_trouble", None, "≤", 0),
        Row("most failed attempts in one record", "attempts_most", None),
        Row("slowest answer, s", "slowest_s", None),
    ]


def samples_of(run: Run) -> Samples:
    book, seen = run.book, run.seen
    growth, medians = seen.growth_mb(seen.resident_mb)
    return {
        "requests": [float(book.sent)],
        "growth_mb": [growth],
        "growth_medians_mb": [medians],
        "unshared_growth_mb": [seen.growth_mb(seen.unshared_mb)[0]],
        "without_record": [float(book.without_record)],
        "records_too_many": [float(book.twice + book.foreign)],
        "metrics_apart": [abs(run.outcomes - book.counted)],
        "unanswered": [float(book.unanswered)],
        "contradicted": [float(book.contradicted)],
        "internal": [float(book.statuses[500])],
        "ledger": [sum(run.ledger.values())],
        "changes_wrong": [float(len(run.trouble.unexpected))],
        "missing_trouble": [float(len(never(run)))],
        "attempts_most": [float(book.attempts_most)],
        "slowest_s": [run.clients.slowest_s],
        "at_s": seen.at_s,
        "resident_mb": seen.resident_mb,
        "proportional_mb": seen.proportional_mb,
        "unshared_mb": seen.unshared_mb,
    }


def never(run: Run) -> list[str]:
    happened = run.trouble.done | run.trouble.told | run.book.outcomes
    wanted = ("engines killed", "engines frozen", "configs taken", "wrong configs refused", "full", "rude", *HAPPENS)
    return [name for name in wanted if not happened[name]]


def counts(heading: str, counted: Counter[str]) -> Grid:
    shown = tuple((name, f"{number:,}".replace(",", " ")) for name, number in counted.most_common())
    return Grid((heading, "count"), shown)


def troubles(run: Run) -> Counter[str]:
    told = run.trouble.told
    return run.trouble.done + Counter({"refusals by the double": told["full"], "wrong answers by one": told["rude"]})


def conclude(run: Run, args: argparse.Namespace, others: float, console: Console) -> int:
    seen, book = run.seen, run.book
    if seen.full_s is None:
        raise Unusable(f"only {book.outcomes.total()} records: the ring of {run.stage.keep} was never full")
    samples, shipped = samples_of(run), compiled_copy(run.stage.gateway)
    verdicts = [judge(row, samples) for row in rows(args.minutes)]
    tables = (
        counts("requests", book.kinds),
        counts("outcomes", book.outcomes),
        counts("trouble", troubles(run)),
    )
    facts = machine() | {
        "minutes": args.minutes,
        "compiled": "yes" if shipped else "no",
        "ring": f"{run.stage.keep} records, full after {seen.full_s:.0f} s; growth counts from {seen.half_s():.0f} s",
        "resident": f"{run.idle_mb:.1f} MB before, {seen.resident_mb[-1]:.1f} MB at the end",
        "held back": f"{run.clients.held_back} requests, as too many were under way",
        "others used": f"{others:.0%} of the machine",
    }
    for grid, title in zip(tables, ("Sent", "Ended", "Trouble"), strict=True):
        console.print(grid.table(title))
    console.print(verdict_grid(verdicts).table(TITLE))
    for line in (*book.told(), *book.missing(), *run.trouble.unexpected[:10], *never(run)):
        console.print(f"  {line}", style="yellow", markup=False, highlight=False)
    if any(run.ledger.values()):
        console.print(f"  left in the ledger: {run.ledger}", style="yellow", markup=False)
    if out := args.out or (RESULTS if shipped and args.minutes >= MINUTES else None):
        Report(TITLE, "benchmarks/soak.py", facts, verdicts, samples, tables).keep(out)
        picture = out.with_suffix(".svg")
        picture.write_text(draw(seen.at_s, seen.resident_mb, seen.full_s, seen.half_s(), samples["growth_mb"][0]))
        page = out.with_suffix(".md")
        page.write_text(page.read_text() + f"\n![Resident memory over time]({picture.name})\n")
        console.print(f"written: {out}, {page.name} and {picture.name}", highlight=False)
    if any(verdict.passed is False for verdict in verdicts):
        return 1
    return 0 if shipped else 2


# -- the command ---------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, help="20 without it; what is shorter is kept only where --out says")
    parser.add_argument("--quick", action="store_true", help="for a look: two minutes")
    parser.add_argument("--rate", type=float, default=RATE, help="requests a second")
    parser.add_argument(
        "--kit", type=Path, default=Path(os.environ.get("HEADGATE_KIT", ROOT.parent / "shared" / "kit"))
    )
    parser.add_argument("--out", type=Path, help="a JSON file; otherwise benchmarks/results/soak.json")
    args = parser.parse_args()
    args.minutes = args.minutes or (2.0 if args.quick else MINUTES)
    return args


def run(args: argparse.Namespace, console: Console) -> int:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Unusable("it takes two cores: one is the gateway's alone")
    os.sched_setaffinity(0, {cores[1]})
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    before = CpuTime.now()
    with tempfile.TemporaryDirectory() as folder:
        kit = compiled(args.kit, Path(folder))
        keep = max(100, min(RING, int(args.rate * args.minutes * 60 / 5)))
        with staged(kit, Path(folder), (cores[0], cores[1]), keep) as stage:
            if not compiled_copy(stage.gateway):
                console.print("The gateway runs interpreted, which proves nothing: make compiled.", style="bold red")
            done = uvloop.run(soak(stage, args.minutes, args.rate, console))
            return conclude(done, args, before.others_of_all(CpuTime.now()), console)


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the blocks that end processes run then, too
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        return run(arguments(), console)
    except Unusable as error:
        console.print(f"no result: {error}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
