"""Makes one stream's arrivals: synthetic, from a trace, or from a day's clients."""

import random
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import msgspec

from headgate.model.labels import plain
from headgate.workload import play, servegen, traces
from headgate.workload.arrival import Arrival, NextTurn, WorkloadError, blocks
from headgate.workload.finish import DEFAULT_OUTPUT, WorkloadFinish, draw
from headgate.workload.spec import AGENTS, LENGTHS_ONLY, TRACES, Range, Stream

TURNS, CONTEXT, NEW, THINK_S = Range(20, 20), Range(2000, 6000), Range(500, 3000), (1.0, 10.0)
"""An agent's sessions, where the workload does not say otherwise: turns, tokens of the first prompt, new tokens of each
further one, and seconds between an answer and the next turn, such as a tool takes."""
OPEN_CHATS = 32
"""Chats of a lengths-only trace that run at once."""


class Source:
    def __init__(self, stream: Stream) -> None:
        """Raises WorkloadError where the stream lacks something that it needs."""
        self.stream = stream
        self._chats: tuple[Arrival, ...] = ()
        self._trace: tuple[Arrival, ...] = ()
        if stream.file is not None:
            self._trace = traces.read(Path(stream.file), stream.source)
        elif stream.source in TRACES:
            self._trace = traces.bundled(stream.source)
        elif stream.source in LENGTHS_ONLY:
            self._chats = traces.bundled(stream.source)
        elif stream.source == "file":
            rows = traces.read(Path(stream.argument))
            if rows[0].session is None:
                self._trace = rows
            else:
                self._chats = rows
        if stream.rate is None and not self._trace and stream.source != "servegen":
            raise WorkloadError(f"{stream.source}: how many a second? Say {stream.source}:rate=5, or --rate 5")
        end = servegen.DAY_S if stream.source == "servegen" else self._trace[-1].at_s if self._trace else 0.0
        if stream.start and stream.start >= end:
            raise WorkloadError(f"{stream.source}: start={plain(stream.start, 6)} is past its end, {end:.0f} s")
        self._speed = stream.time_scale or 1.0
        self.period_s, self.rate = self._measure()
        """Its own length in seconds (None: endless), and its mean rate in requests per second."""

    def _measure(self) -> tuple[float | None, float]:
        stream = self.stream
        if stream.source == "servegen":
            left = servegen.DAY_S - stream.start
            own = servegen.mean_rate(stream.argument, stream.start, servegen.DAY_S)
            return left / self._speed, stream.rate or own * self._speed
        if not self._trace:
            assert stream.rate is not None
            return None, stream.rate
        trace = play.Trace(self._trace, stream.start)
        if stream.rate is not None and stream.time_scale is None:
            return len(trace) / stream.rate, stream.rate
        return trace.period_s / self._speed, stream.rate or trace.rate * self._speed

    def describe(self, duration_s: float | None) -> str:
        stream = self.stream
        name = f"{stream.name} = " if stream.name else ""
        source = f"{stream.source} {stream.argument or stream.file or ''}".strip()
        lasts = duration_s or self.period_s
        return f"{name}{source}, {plain(self.rate)}/s" + (f" for {lasts:.0f} s" if lasts else "")

    def arrivals(self, seed: str, duration_s: float | None, fill_s: float | None, name: str) -> Iterator[Arrival]:
        """Arrivals up to `duration_s`; None: for as long as the source lasts. `fill_s`: the time in seconds that a
        trace at a given rate is fitted to; with it, a shorter trace repeats."""
        rng = random.Random(seed)
        made = self._made(seed, rng, fill_s)
        if duration_s is not None:
            until = duration_s
            made = takewhile(lambda arrival: arrival.at_s < until, made)
        return map(WorkloadFinish(self.stream, name, rng), made)

    def _made(self, seed: str, rng: random.Random, fill_s: float | None) -> Iterator[Arrival]:
        stream = self.stream
        if stream.source == "servegen":
            return self._day(seed, fill_s)
        if self._trace:
            return self._rows(rng, fill_s)
        assert stream.rate is not None
        if stream.source == AGENTS:
            return _agents(play.poisson(stream.rate, rng), stream, rng)
        if stream.source == "constant":
            times = play.constant(stream.rate)
        elif stream.cv is None:
            times = play.poisson(stream.rate, rng)
        else:
            times = play.gamma(stream.rate, stream.cv, rng)
        return _chats(times, self._chats, rng) if self._chats else (Arrival(at, 0, 0) for at in times)

    def _rows(self, rng: random.Random, fill_s: float | None) -> Iterator[Arrival]:
        stream = self.stream
        trace = play.Trace(traces.spread(self._trace, rng), stream.start)
        if stream.rate is None:
            timed = trace.play(1 / self._speed, once=fill_s is None)
        elif stream.time_scale is None:
            timed = trace.at_rate(stream.rate, fill_s)
        else:
            timed = trace.thinned(stream.rate, 1 / self._speed, rng, once=fill_s is None)
        return (play.placed(*item) for item in timed)

    def _day(self, seed: str, fill_s: float | None) -> Iterator[Arrival]:
        stream, speed = self.stream, self._speed
        end = servegen.DAY_S if fill_s is None else min(servegen.DAY_S, stream.start + fill_s * speed)
        own = servegen.mean_rate(stream.argument, stream.start, end) * speed
        factor = stream.rate / own if stream.rate is not None and own else 1.0
        arrivals = servegen.day(stream.argument, seed, factor, stream.start, end)
        return (msgspec.structs.replace(a, at_s=(a.at_s - stream.start) / speed) for a in arrivals)


def _chats(times: Iterator[float], rows: tuple[Arrival, ...], rng: random.Random) -> Iterator[Arrival]:
    """Each arrival is the next turn of one of the open chats, and begins with all that was said in that chat before."""
    chats: dict[str | None, list[Arrival]] = {}
    for row in rows:
        chats.setdefault(row.session, []).append(row)
    known = list(chats.values())
    under_way: list[tuple[int, Iterator[Arrival]]] = [(0, iter(())) for _ in range(OPEN_CHATS)]
    begun = 0
    for at in times:
        index = rng.randrange(OPEN_CHATS)
        number, left = under_way[index]
        turn = next(left, None)
        if turn is None:
            begun += 1
            number, left = under_way[index] = begun, iter(rng.choice(known))
            turn = next(left)
        prefix = tuple((number << 16) + block for block in range(blocks(turn.prompt_tokens)))
        yield msgspec.structs.replace(turn, at_s=at, session=f"chat-{number}", prefix=prefix)


def _agents(times: Iterator[float], stream: Stream, rng: random.Random) -> Iterator[Arrival]:
    """The first turns of sessions, each with those that follow it."""
    outputs, news = stream.output or DEFAULT_OUTPUT, stream.new or NEW
    least_s, most_s = stream.think or THINK_S
    for number, at in enumerate(times, 1):
        prompt, output = draw(stream.prompt or CONTEXT, rng), draw(outputs, rng)
        context, later = prompt + output, []
        for _ in range(draw(stream.turns or TURNS, rng) - 1):
            turn = NextTurn(rng.uniform(least_s, most_s), draw(news, rng), draw(outputs, rng))
            context += turn.new_tokens + turn.output_tokens
            if stream.max_prompt is not None and context - turn.output_tokens > stream.max_prompt:
                break
            later.append(turn)
        prefix = tuple((number << 16) + block for block in range(blocks(prompt + output)))
        yield Arrival(at, prompt, output, prefix=prefix, session=f"agent-{number}", turn=1, later=tuple(later))
