"""Draws a Flight as Chrome trace events, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

    gateway        alerts as marks, pauses of the gateway itself, and counters: requests that wait and run by lane, and
                   replicas by condition
    lane NAME      its requests, one slice each in as few rows as they fit in, with their stages and longest gaps inside
    replica ID     its state as slices, counters of its load, and its engine's steps, where the engine tells them

Times are microseconds from the beginning of the flight.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush, nlargest
from typing import Any, Final

from headgate.model.record import Record
from headgate.publish.incidents.flight import EngineStep, Flight, ReplicaMoment

MOST_REQUESTS: Final = 400
"""Maximum requests that are drawn: those that still run first, then the slowest."""
MOST_STEPS: Final = 16_000
"""Maximum steps that are drawn, all replicas together: about 5 MB."""
GATEWAY: Final = 1
LANES: Final = 100
REPLICAS: Final = 1000
"""Process numbers: of the gateway, and of the first lane and replica."""
ALERTS, PAUSES = 1, 2
STATE, STEPS = 1, 2
ROWS: Final = 10
"""Thread number of a lane's first row of requests."""
STAGES: Final = (
    ("accept", "accept_s"), ("queue", "queue_s"), ("retry", "retry_s"), ("first token", "first_s"),
    ("tokens", "stream_s"), ("end", "end_s"),
)  # fmt: skip

TraceEvent = dict[str, Any]


def trace_events(flight: Flight) -> list[TraceEvent]:
    drawn = _Drawing(flight)
    return [*drawn.gateway(), *drawn.lanes(), *drawn.replicas()]


class _Drawing:
    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self._end = self._us(flight.ended)

    def _us(self, at: float) -> int:
        """A moment in microseconds, within the flight: what began before begins with it."""
        flight = self._flight
        return round((min(max(at, flight.began), flight.ended) - flight.began) * 1e6)

    # -- the gateway -----------------------------------------------------------------------------------------

    def gateway(self) -> Iterator[TraceEvent]:
        flight = self._flight
        yield from _named(GATEWAY, "gateway", 0, {ALERTS: "alerts", PAUSES: "own pauses"})
        for alert in flight.alerts:
            where = f" of lane {alert.lane}" if alert.lane else ""
            at = self._us(flight.ended - alert.ago_s)
            yield {
                "ph": "i", "s": "g", "pid": GATEWAY, "tid": ALERTS, "ts": at, "cat": "alert",
                "name": f"{alert.alert}{where} is critical", "args": {"message": alert.message},
            }  # fmt: skip
        reached = 0
        for pause in sorted(flight.pauses, key=lambda pause: pause.at):
            since, until = max(reached, self._us(pause.at)), self._us(pause.at + pause.took_s)
            if until > since:
                name = "garbage collection" if pause.kind == "gc" else "event loop held up"
                yield _slice(GATEWAY, PAUSES, since, until, name, "pause")
                reached = until
        for lanes in flight.lanes:
            for name, waiting, running in lanes.counts:
                yield _counter(GATEWAY, self._us(lanes.at), f"lane {name}", {"waiting": waiting, "running": running})
        for fleet in flight.fleet:
            if fleet.conditions:
                yield _counter(GATEWAY, self._us(fleet.at), "replicas", dict(fleet.conditions))

    # -- requests ----------------------------------------------------------------------------------------------

    def lanes(self) -> Iterator[TraceEvent]:
        flight = self._flight
        headlines = {told.record.id: told.headline for told in flight.slowest}
        by_lane: dict[str, list[tuple[Record, bool]]] = {}
        for record, runs in chosen(flight):
            by_lane.setdefault(record.lane or "unknown", []).append((record, runs))
        for number, lane in enumerate(sorted(by_lane)):
            pid, rows = LANES + number, _Rows()
            placed = []
            for record, runs in sorted(by_lane[lane], key=lambda one: one[0].at):
                since, until = self._us(record.at), self._us(record.at + record.e2e_s)
                if until > since:
                    placed.append((record, runs, since, until, ROWS + rows.place(since, until)))
            yield from _named(pid, f"requests of lane {lane}", 1, {ROWS + row: f"row {row + 1}" for row in rows.all})
            for record, runs, since, until, tid in placed:
                about = _about(record, runs, headlines.get(record.id, ""))
                yield _slice(pid, tid, since, until, record.id, "request", about)
                yield from self._stages(record, pid, tid)

    def _stages(self, record: Record, pid: int, tid: int) -> Iterator[TraceEvent]:
        at = record.at
        for name, field in STAGES:
            took_s: float = getattr(record, field)
            # Rounding must not make a stage longer than its request.
            since = self._us(at)
            until = min(self._us(at + took_s), self._us(record.at + record.e2e_s))
            if until > since:
                yield _slice(pid, tid, since, until, name, "stage")
                if name == "tokens":
                    yield from self._gaps(record, since, until, pid, tid)
            at += took_s

    def _gaps(self, record: Record, begins: int, ends: int, pid: int, tid: int) -> Iterator[TraceEvent]:
        reached = begins
        for gap in sorted(record.gaps, key=lambda gap: gap.at_s):
            since = max(reached, self._us(record.at + gap.at_s))
            until = min(ends, self._us(record.at + gap.at_s + gap.took_s))
            if until > since:
                yield _slice(pid, tid, since, until, "gap", "gap")
                reached = until

    # -- replicas ----------------------------------------------------------------------------------------------

    def replicas(self) -> Iterator[TraceEvent]:
        flight = self._flight
        seen: dict[str, list[tuple[float, ReplicaMoment]]] = {}
        for fleet in flight.fleet:
            for moment in fleet.replicas:
                seen.setdefault(moment.id, []).append((fleet.at, moment))
        steps = dict(flight.steps)
        for number, replica in enumerate(sorted({*seen, *steps})):
            pid, moments = REPLICAS + number, seen.get(replica, [])
            kind = next((moment.kind for _, moment in moments if moment.kind), "")
            title = f"replica {replica}" + (f" ({kind})" if kind else "")
            told = {STEPS: "steps"} if steps.get(replica) else {}
            yield from _named(pid, title, 2, {STATE: "state", **told})
            yield from self._states(pid, moments)
            for at, moment in moments:
                yield from _loads(pid, self._us(at), moment)
            yield from self._steps(pid, steps.get(replica, ()), max(1, len(steps)))

    def _states(self, pid: int, moments: list[tuple[float, ReplicaMoment]]) -> Iterator[TraceEvent]:
        since = 0
        for index, (at, moment) in enumerate(moments):
            before = moments[index - 1][1] if index else None
            if before is None or (before.state, before.why) != (moment.state, moment.why):
                since = self._us(at)
            last = index + 1 == len(moments)
            after = None if last else moments[index + 1][1]
            if after is None or (after.state, after.why) != (moment.state, moment.why):
                until = self._end if last else self._us(moments[index + 1][0])
                about = {"condition": moment.condition} | ({"why": moment.why} if moment.why else {})
                if until > since:
                    yield _slice(pid, STATE, since, until, moment.state, "state", about)

    def _steps(self, pid: int, steps: Iterable[EngineStep], engines: int) -> Iterator[TraceEvent]:
        latest = [step for step in steps if step.at >= self._flight.began][-(MOST_STEPS // engines) :]
        reached = 0
        for step in latest:
            since, until = max(reached, self._us(step.at)), self._us(step.at + step.took_s)
            if until <= since:
                continue
            reached = until
            about = {
                "prompt tokens": step.prefill, "prompts": step.prompts, "decodes": step.decodes,
                "context": step.context, "KV moves": step.moves,
            }  # fmt: skip
            name = "decode" if not step.prefill else "prefill and decode" if step.decodes else "prefill"
            yield _slice(pid, STEPS, since, until, name, "step", about)
            yield _counter(pid, since, "step", {"decodes": step.decodes, "prompt tokens": step.prefill})


class _Rows:
    """Puts slices into as few rows as possible, so that none overlaps another in its row."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []
        """When each row is free again."""
        self.count = 0

    @property
    def all(self) -> range:
        return range(self.count)

    def place(self, since: int, until: int) -> int:
        """The row of a slice; slices are placed in the order of their beginning."""
        if self._free and self._free[0][0] <= since:
            _, row = heappop(self._free)
        else:
            row, self.count = self.count, self.count + 1
        heappush(self._free, (until, row))
        return row


def chosen(flight: Flight) -> list[tuple[Record, bool]]:
    """The requests that are drawn, and whether each still runs."""
    running = flight.running[: MOST_REQUESTS // 2]
    ended = [record for record in flight.records if record.at + record.e2e_s >= flight.began]
    slow = nlargest(MOST_REQUESTS - len(running), ended, key=lambda record: record.e2e_s)
    return [*((record, True) for record in running), *((record, False) for record in slow)]


def _about(record: Record, runs: bool, headline: str) -> dict[str, Any]:
    about: dict[str, Any] = {
        "tenant": record.tenant,
        "model": record.model,
        "replica": record.replica or "none",
        "outcome": "still running" if runs else record.outcome.value,
        "prompt tokens": record.prompt_tokens,
        "cached tokens": record.cached_tokens,
        "output tokens": record.output_tokens,
        "seconds": round(record.e2e_s, 6),
    }
    if record.ttft_s is not None:
        about["first token after"] = round(record.ttft_s, 6)
    if headline:
        about["why"] = headline
    if record.message and not runs:
        about["message"] = record.message
    return about


def _loads(pid: int, at: int, moment: ReplicaMoment) -> Iterator[TraceEvent]:
    yield _counter(pid, at, "requests", {"in use": moment.requests, "limit": round(moment.limit, 3)})
    yield _counter(pid, at, "tokens to compute", {"tokens": moment.tokens})
    told = {"batch": moment.batch_size, "engine's queue": moment.waiting}
    batch = {name: value for name, value in told.items() if value is not None}
    if batch:
        yield _counter(pid, at, "engine", batch)
    if moment.kv_ratio is not None:
        yield _counter(pid, at, "KV memory, %", {"used": round(100 * moment.kv_ratio, 2)})


def _named(pid: int, process: str, order: int, threads: Mapping[int, str]) -> Iterator[TraceEvent]:
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": process}}
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": order}}
    for tid, thread in threads.items():
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": thread}}
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _slice(
    pid: int, tid: int, since: int, until: int, name: str, category: str, about: Mapping[str, Any] | None = None
) -> TraceEvent:
    event = {
        "ph": "X", "pid": pid, "tid": tid, "ts": since, "dur": until - since, "name": name, "cat": category,
    }  # fmt: skip
    return {**event, "args": dict(about)} if about else event


def _counter(pid: int, at: int, name: str, values: Mapping[str, float]) -> TraceEvent:
    return {"ph": "C", "pid": pid, "tid": 0, "ts": at, "name": name, "args": dict(values)}
