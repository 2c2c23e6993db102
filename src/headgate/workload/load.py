"""From a text and a seed to arrivals, in order: what bench plays, and what the simulator is fed.

    for arrival in load("interactive=poisson:rate=8,prompt=120,lane=fast; code=azure-code:rate=0.5", seed=1, duration_s=60):
        …

The same text and seed give the same arrivals, on any machine. Long ones are made as they are asked for.
"""

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import islice, takewhile
from pathlib import Path

import msgspec

from headgate.workload import play, servegen, traces
from headgate.workload.arrival import BLOCK_TOKENS, Arrival, WorkloadError
from headgate.workload.spec import LENGTHS_ONLY, SYNTHETIC, TRACES, Range, Stream, parse

DEFAULT_DURATION_S = 60.0
"""Of what has no end of its own."""
DEFAULT_PROMPT, DEFAULT_OUTPUT = Range(256, 256), Range(64, 64)
OPEN_CHATS = 32
"""Chats of a lengths-only trace that are under way at once."""


class Workload:
    """Streams, and how long they are played. Whatever is wrong with them is raised here, as WorkloadError."""

    def __init__(
        self,
        text: str,
        *,
        rate: float | None = None,
        time_scale: float | None = None,
        duration_s: float | None = None,
        requests: int | None = None,
    ) -> None:
        """`rate` is of all streams together: they keep their shares. `time_scale` is for traces that name none."""
        for name, value in (("rate", rate), ("time scale", time_scale), ("duration", duration_s), ("requests", requests)):
            if value is not None and not value > 0:
                raise WorkloadError(f"{name} must be above 0, not {value:g}")
        self.text = text
        self.requests = requests
        streams = parse(text)
        if time_scale is not None:
            streams = [
                s if s.time_scale or s.source in (*SYNTHETIC, *LENGTHS_ONLY) else replace(s, time_scale=time_scale)
                for s in streams
            ]
        if len(streams) == 1 and rate is not None:
            streams = [replace(streams[0], rate=rate)]
        self._sources = [_Source(stream) for stream in streams]
        endless = any(source.period_s is None for source in self._sources)
        if duration_s is None and requests is None and endless:
            duration_s = DEFAULT_DURATION_S
        if duration_s is None and len(streams) > 1 and requests is None:
            duration_s = min(source.period_s or DEFAULT_DURATION_S for source in self._sources)
        self.duration_s = duration_s
        if len(streams) > 1 and rate is not None:
            factor = rate / sum(source.rate for source in self._sources)
            self._sources = [_Source(replace(s.stream, rate=s.rate * factor)) for s in self._sources]

    @property
    def rate(self) -> float:
        """Mean requests a second, all streams together."""
        return sum(source.rate for source in self._sources)

    @property
    def streams(self) -> list[Stream]:
        return [source.stream for source in self._sources]

    def arrivals(self, seed: int = 0) -> Iterator[Arrival]:
        mixed = len(self._sources) > 1
        parts = [source.arrivals(f"{seed}/{index}", self.duration_s, mixed) for index, source in enumerate(self._sources)]
        merged = heapq.merge(*parts, key=lambda arrival: arrival.at_s) if mixed else parts[0]
        return islice(merged, self.requests)

    def describe(self) -> str:
        return "; ".join(source.describe(self.duration_s) for source in self._sources)


def load(
    text: str,
    seed: int = 0,
    *,
    rate: float | None = None,
    time_scale: float | None = None,
    duration_s: float | None = None,
    requests: int | None = None,
) -> Iterator[Arrival]:
    """Arrivals in order. Raises WorkloadError before the first."""
    workload = Workload(text, rate=rate, time_scale=time_scale, duration_s=duration_s, requests=requests)
    return workload.arrivals(seed)


class _Source:
    """One stream and what it is made of."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._chats: tuple[Arrival, ...] = ()
        self._trace: tuple[Arrival, ...] = ()
        if stream.source in TRACES:
            self._trace = traces.bundled(stream.source)
        elif stream.source == "file":
            rows = traces.read(Path(stream.argument))
            if rows[-1].at_s > 0 or len(rows) == 1:
                self._trace = rows
            else:
                self._chats = rows
        elif stream.source in LENGTHS_ONLY:
            self._chats = traces.bundled(stream.source)
        if stream.rate is None and not self._trace and stream.source != "servegen":
            raise WorkloadError(f"{stream.source}: how many a second? Say {stream.source}:rate=5, or --rate 5")

    @property
    def period_s(self) -> float | None:
        """How long it lasts by itself; None: for ever."""
        stream = self.stream
        if stream.source == "servegen":
            return (servegen.DAY_S - stream.start) / (stream.time_scale or 1.0)
        if not self._trace:
            return None
        trace = play.Trace(self._trace, stream.start)
        if stream.rate is not None and stream.time_scale is None:
            return len(trace) / stream.rate
        return trace.period_s / (stream.time_scale or 1.0)

    @property
    def rate(self) -> float:
        stream = self.stream
        if stream.rate is not None:
            return stream.rate
        if stream.source == "servegen":
            return servegen.mean_rate(stream.argument, stream.start, servegen.DAY_S) * (stream.time_scale or 1.0)
        return play.Trace(self._trace, stream.start).rate * (stream.time_scale or 1.0)

    def describe(self, duration_s: float | None) -> str:
        stream = self.stream
        name = f"{stream.name} = " if stream.name else ""
        source = f"{stream.source} {stream.argument}".strip()
        lasts = duration_s or self.period_s
        return f"{name}{source}, {self.rate:.3g}/s" + (f" for {lasts:.0f} s" if lasts else "")

    def arrivals(self, seed: str, duration_s: float | None, mixed: bool) -> Iterator[Arrival]:
        rng = random.Random(seed)
        made = self._raw(seed, rng, duration_s)
        if duration_s is not None:
            until = duration_s
            made = takewhile(lambda arrival: arrival.at_s < until, made)
        finish = _finisher(self.stream, self.stream.name or (self.stream.source if mixed else ""), rng, mixed)
        return map(finish, made)

    def _raw(self, seed: str, rng: random.Random, duration_s: float | None) -> Iterator[Arrival]:
        stream = self.stream
        if stream.source == "servegen":
            return self._servegen(seed, duration_s)
        if self._trace:
            return self._rows(rng, duration_s)
        assert stream.rate is not None
        times = _times(stream, stream.rate, rng)
        if self._chats:
            return _chats(times, self._chats, rng)
        return (Arrival(at, 0, 0) for at in times)

    def _rows(self, rng: random.Random, duration_s: float | None) -> Iterator[Arrival]:
        stream = self.stream
        trace = play.Trace(traces.spread(self._trace, rng), stream.start)
        scale = 1 / (stream.time_scale or 1.0)
        if stream.rate is None:
            timed = trace.play(scale)
        elif stream.time_scale is None:
            timed = trace.at_rate(stream.rate, duration_s)
        else:
            timed = trace.thinned(stream.rate, scale, rng)
        if duration_s is None:
            timed = takewhile(lambda item: item[1] % 1000 == 0, timed)
        return (_again(at, rounds, row) for at, rounds, row in timed)

    def _servegen(self, seed: str, duration_s: float | None) -> Iterator[Arrival]:
        stream = self.stream
        speed = stream.time_scale or 1.0
        end = servegen.DAY_S if duration_s is None else min(servegen.DAY_S, stream.start + duration_s * speed)
        if stream.start >= servegen.DAY_S:
            raise WorkloadError(f"servegen: start={stream.start:g} is after the day's end, {servegen.DAY_S:g}")
        own = servegen.mean_rate(stream.argument, stream.start, end)
        factor = 1.0 if stream.rate is None else stream.rate / speed / own if own else 1.0
        arrivals = servegen.day(stream.argument, seed, factor, stream.start, end)
        return (msgspec.structs.replace(a, at_s=(a.at_s - stream.start) / speed) for a in arrivals)


def _times(stream: Stream, rate: float, rng: random.Random) -> Iterator[float]:
    if stream.source == "constant":
        return play.constant(rate)
    return play.poisson(rate, rng) if stream.cv is None else play.gamma(rate, stream.cv, rng)


def _again(at_s: float, rounds: int, row: Arrival) -> Arrival:
    if rounds and row.prefix:
        prefix = tuple(block + rounds * play.AGAIN for block in row.prefix)
        return msgspec.structs.replace(row, at_s=at_s, prefix=prefix)
    return msgspec.structs.replace(row, at_s=at_s)


def _chats(times: Iterator[float], rows: tuple[Arrival, ...], rng: random.Random) -> Iterator[Arrival]:
    """Some chats are under way at once; each arrival is the next turn of one of them, and begins with all that was said
    in it before."""
    chats: dict[str, list[Arrival]] = {}
    for row in rows:
        chats.setdefault(row.session or "", []).append(row)
    names = list(chats)
    under_way: list[tuple[int, list[Arrival]]] = []
    begun = 0
    for at in times:
        index = rng.randrange(OPEN_CHATS)
        if index >= len(under_way):
            index = len(under_way)
            under_way.append((0, []))
        number, left = under_way[index]
        if not left:
            begun += 1
            number, left = begun, list(chats[rng.choice(names)])
            under_way[index] = number, left
        turn = left.pop(0)
        prefix = tuple(number << 16 | block for block in range(-(-turn.prompt_tokens // BLOCK_TOKENS)))
        yield msgspec.structs.replace(turn, at_s=at, session=f"chat-{number}", prefix=prefix)


# -- what a stream says about all of its arrivals ------------------------------------------------------------------


def _finisher(stream: Stream, name: str, rng: random.Random, mixed: bool) -> Callable[[Arrival], Arrival]:
    home = int.from_bytes(blake2b(name.encode(), digest_size=3).digest(), "little") << 64 if mixed else 0
    """Two streams of a mix have nothing to say in common."""
    return partial(_finish, stream, name, _lengths(stream, rng), rng, home)


def _finish(
    stream: Stream, name: str, lengths: Callable[[Arrival], tuple[int, int]], rng: random.Random, home: int, row: Arrival
) -> Arrival:
    prompt, output = lengths(row)
    session = f"{name or stream.source}-{rng.randrange(stream.sessions)}" if stream.sessions else row.session
    if mixed_chat := (row.session is not None and session is row.session and name):
        session = f"{name}-{session}"
    prefix = row.prefix[: -(-prompt // BLOCK_TOKENS)]
    if stream.shared:
        whose = rng_free_hash(session if session and not mixed_chat else name)
        prefix = tuple(whose + block for block in range(min(stream.shared, prompt) // BLOCK_TOKENS))
    if home:
        prefix = tuple(home + block for block in prefix)
    return Arrival(
        row.at_s,
        prompt,
        output,
        stream.lane or row.lane,
        rng.choice(stream.tenant) if stream.tenant else row.tenant,
        row.stream if stream.stream is None else stream.stream,
        prefix,
        session,
        stream.model or row.model,
        name,
        row.prompt if prompt == row.prompt_tokens else None,
    )


def rng_free_hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "little") << 20


def _lengths(stream: Stream, rng: random.Random) -> Callable[[Arrival], tuple[int, int]]:
    borrowed = traces.bundled(stream.lengths) if stream.lengths else ()
    scale, max_prompt, max_output = stream.length_scale, stream.max_prompt, stream.max_output

    def of(row: Arrival) -> tuple[int, int]:
        source = rng.choice(borrowed) if borrowed else row
        prompt, output = source.prompt_tokens, source.output_tokens
        if scale != 1.0:
            prompt, output = max(1, round(prompt * scale)), max(1, round(output * scale))
        if stream.prompt is not None or not prompt:
            prompt = _draw(stream.prompt or DEFAULT_PROMPT, rng)
        if stream.output is not None or not output:
            output = _draw(stream.output or DEFAULT_OUTPUT, rng)
        return min(prompt, max_prompt or prompt), min(output, max_output or output)

    return of


def _draw(tokens: Range, rng: random.Random) -> int:
    return tokens.least if tokens.least == tokens.most else rng.randint(tokens.least, tokens.most)
