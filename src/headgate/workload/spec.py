"""Parses a workload, such as `interactive=poisson:rate=8,prompt=120,lane=fast; long=azure-conv:rate=0.5`.

mix      stream [";" stream …]
stream   [name "="] source [":" option ["," option …]]
option   key "=" value, or for `servegen` and `file` first of all the model or the path

docs/loads.md explains the sources and options to users.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from headgate.model.labels import plain
from headgate.workload.arrival import WorkloadError
from headgate.workload.catalog import CATALOG, listed

SYNTHETIC = ("poisson", "gamma", "constant")
LENGTHS_ONLY = ("sharegpt",)
TRACES = ("azure-conv", "azure-code", "mooncake")
AGENTS = "agents"
WITH_FILE = ("mooncake", "azure")
"""Formats of traces for which a file may be named."""
SOURCES = (*SYNTHETIC, *TRACES, *LENGTHS_ONLY, AGENTS, "servegen", "azure", "file", "catalog")
SERVEGEN_MODELS = ("m-small", "m-mid", "m-large", "deepseek-r1")


@dataclass(frozen=True, slots=True)
class Range:
    """A number of tokens, or a range to draw from."""

    least: int
    most: int

    @property
    def mean(self) -> float:
        return (self.least + self.most) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One source of arrivals, and the changes to make to it."""

    source: str
    argument: str = ""
    """The model of servegen, or the file's path."""
    file: str | None = None
    """Path of a trace in the format that the source names; None: the bundled one."""
    name: str = ""
    rate: float | None = None
    """Mean requests per second. A trace is stretched or squeezed to it; with `time_scale` too, requests are left out or
    doubled instead."""
    cv: float | None = None
    """Coefficient of variation of the gaps between arrivals."""
    time_scale: float | None = None
    """Factor by which a trace is played faster."""
    start: float = 0.0
    """Seconds of a trace to skip."""
    prompt: Range | None = None
    """Prompt tokens; None: the trace's own."""
    output: Range | None = None
    lengths: str | None = None
    """A trace from which prompt and output lengths are taken together."""
    length_scale: float = 1.0
    """Factor for lengths from a trace."""
    max_prompt: int | None = None
    """Maximum prompt tokens; longer prompts are cut."""
    max_output: int | None = None
    lane: str | None = None
    tenant: tuple[str, ...] = ()
    """Tenants; one is drawn for each request."""
    model: str | None = None
    stream: bool | None = None
    unstreamed: float | None = None
    """Share of requests that are not streamed; None: as `stream` says, or the trace."""
    sessions: int | None = None
    """Number of sessions; each request belongs to one of them, drawn at random."""
    shared: int = 0
    """Tokens that the prompts of one session share at their beginning, or without sessions those of the whole stream;
    in blocks of 512."""
    prefixes: int | None = None
    """Number of different beginnings of `shared` tokens, of which each prompt has one; None: one, or one a session."""
    goodput: tuple[str, ...] = ()
    """Targets that make an answer good, as in `--goodput`, where the catalog has the workload; empty: none."""
    turns: Range | None = None
    """Turns of an agent's session; `rate` is that of sessions."""
    new: Range | None = None
    """Prompt tokens of a further turn beside all that was said before."""
    think: tuple[float, float] | None = None
    """Least and most seconds from the end of a turn to the next one."""
    ttft: float | None = None
    """Seconds to the first token that each request promises itself; None: as its lane, or the file, says."""
    tpot: float | None = None
    """Seconds per further token that each request promises itself; None: as its lane, or the file, says."""


def parse(text: str) -> list[Stream]:
    """The streams of the workload, one or several. Raises WorkloadError."""
    streams = [_stream(part.strip()) for part in text.split(";") if part.strip()]
    if not streams:
        raise WorkloadError(f"no workload in {text!r}; try one of {', '.join(SOURCES)}")
    names = [stream.name or stream.source for stream in streams]
    if len(streams) > 1 and (twice := {name for name in names if names.count(name) > 1}):
        raise WorkloadError(
            f"two streams of the mix are called {min(twice)!r}; give them names, as in a=poisson:rate=1"
        )
    return streams


def _stream(text: str) -> Stream:
    found = re.fullmatch(r"(?:([\w-]+)\s*=\s*)?([\w-]+)\s*(?:[:,](.*))?", text, re.DOTALL)
    if found is None:
        raise WorkloadError(f"can't read {text!r}; it looks like NAME=SOURCE:key=value,key=value")
    name, source, rest = found[1] or "", found[2], found[3] or ""
    if source not in SOURCES:
        raise WorkloadError(
            f"no workload is called {source!r}{_meant(source, SOURCES)}; there are {', '.join(SOURCES)}"
        )
    items = [item.strip() for item in rest.split(",") if item.strip()]
    if source == "catalog":
        return _from_catalog(name, items)
    argument = ""
    if source in ("servegen", "file"):
        argument = items.pop(0) if items and (source == "file" or "=" not in items[0]) else ""
        _check_argument(source, argument)
    options: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        key, value = key.strip().replace("-", "_"), value.strip()
        if key not in READ or not equals:
            hint = f"{_meant(key, READ)}; there are {', '.join(READ)}" if equals else "; options look like key=value"
            raise WorkloadError(f"{source} has no option {item!r}{hint}")
        if key in options:
            raise WorkloadError(f"{source}: {key} is given twice")
        options[key] = READ[key](f"{source}: {key}", value)
    _check(source, options)
    return Stream(source=source, argument=argument, name=name, **options)


def _from_catalog(name: str, items: list[str]) -> Stream:
    """The workload of the catalog; options after its name replace its own."""
    wanted = items.pop(0) if items and "=" not in items[0] else ""
    if wanted not in CATALOG:
        wrong = f"no workload {wanted!r}{_meant(wanted, CATALOG)}" if wanted else "which workload?"
        raise WorkloadError(f"catalog: {wrong}; there are {listed()}")
    entry = CATALOG[wanted]
    source, _, own = entry.load.partition(":")
    given = {item.partition("=")[0].strip().replace("-", "_") for item in items}
    kept = [item for item in own.split(",") if item.partition("=")[0] not in given]
    return replace(_stream(f"{source}:{','.join([*kept, *items])}"), name=name or wanted, goodput=entry.goodput)


def _check_argument(source: str, argument: str) -> None:
    if source == "file" and not argument:
        raise WorkloadError("file: where is it? Say file:PATH")
    if source == "servegen" and argument not in SERVEGEN_MODELS:
        models = ", ".join(SERVEGEN_MODELS)
        wrong = f"no model {argument!r}{_meant(argument, SERVEGEN_MODELS)}" if argument else "which model?"
        raise WorkloadError(f"servegen: {wrong}; there are {models}: servegen:m-small")


def _check(source: str, options: dict[str, Any]) -> None:
    if source == "azure" and "file" not in options:
        raise WorkloadError("azure: which file? Say azure:file=PATH; azure-conv and azure-code need none")
    if source not in WITH_FILE and "file" in options:
        raise WorkloadError(f"{source}: file is for {' and '.join(WITH_FILE)}; any known format is file:PATH")
    if source == "gamma" and "cv" not in options:
        raise WorkloadError("gamma: how bursty? Say gamma:cv=2; cv=1 is poisson")
    if "cv" in options and source not in ("gamma", "sharegpt"):
        raise WorkloadError(f"{source}: cv is for gamma and sharegpt; try gamma:cv={plain(options['cv'], 6)}")
    if source in (*SYNTHETIC, *LENGTHS_ONLY, AGENTS) and ("time_scale" in options or "start" in options):
        raise WorkloadError(f"{source}: time_scale and start are for traces; say rate")
    if source == AGENTS and (wrong := {"sessions", "shared", "lengths", "cv", "length_scale"} & options.keys()):
        raise WorkloadError(f"agents: {min(wrong)} is not for them; they have prompt, new, output, turns and think")
    if source != AGENTS and (wrong := {"turns", "new", "think"} & options.keys()):
        raise WorkloadError(f"{source}: {min(wrong)} is for agents; try agents:rate=0.5,turns=20")
    if "prefixes" in options and (source == AGENTS or "sessions" in options or not options.get("shared")):
        raise WorkloadError(f"{source}: prefixes goes with shared, and not with sessions; try prefixes=9,shared=1024")
    if source == "sharegpt" and ("sessions" in options or "shared" in options):
        raise WorkloadError("sharegpt: it has sessions and shared beginnings of its own")
    if source == "mooncake" and "shared" in options:
        raise WorkloadError("mooncake: it has shared beginnings of its own")
    if "lengths" in options and ("prompt" in options or "output" in options):
        raise WorkloadError(f"{source}: lengths sets prompt and output both")


def _meant(word: str, known: Any) -> str:
    close = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


# -- values ---------------------------------------------------------------------------------------------------


def _number(least: float, most: float, *, above: bool = False) -> Callable[[str, str], float]:
    def read(what: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not (least < value <= most if above else least <= value <= most):
            bound = f"above {plain(least, 6)}, at most" if above else f"from {plain(least, 6)} to"
            raise WorkloadError(f"{what} is a number {bound} {plain(most, 6)}, not {text!r}")
        return value

    return read


def _count(least: int, most: int = 10_000_000) -> Callable[[str, str], int]:
    def read(what: str, text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or not least <= int(text) <= most:
            raise WorkloadError(f"{what} is a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return read


def _range(what: str, text: str) -> Range:
    found = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", text)
    least = int(found[1]) if found else 0
    most = int(found[2] or found[1]) if found else 0
    if not 1 <= least <= most:
        raise WorkloadError(f"{what} is so many tokens, as in 120 or 50-200, not {text!r}")
    return Range(least, most)


def _span(what: str, text: str) -> tuple[float, float]:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(?:-([0-9]+(?:\.[0-9]+)?))?", text)
    least, most = (float(found[1]), float(found[2] or found[1])) if found else (1.0, 0.0)
    if not 0 <= least <= most <= 86_400:
        raise WorkloadError(f"{what} is in seconds, as in 5 or 0.5-10, not {text!r}")
    return least, most


def _name(what: str, text: str) -> str:
    if not re.fullmatch(r"[!-~]{1,256}", text):
        raise WorkloadError(f"{what} is a name without spaces, not {text!r}")
    return text


def _path(what: str, text: str) -> str:
    if not text:
        raise WorkloadError(f"{what} is a path, as in file=trace.jsonl.gz")
    return text


def _names(what: str, text: str) -> tuple[str, ...]:
    return tuple(_name(what, part) for part in text.split("|"))


def _lengths(what: str, text: str) -> str:
    known = (*TRACES, *LENGTHS_ONLY)
    if text not in known:
        raise WorkloadError(f"{what}: no trace {text!r}{_meant(text, known)}; there are {', '.join(known)}")
    return text


def _yes(what: str, text: str) -> bool:
    if text not in ("yes", "no", "true", "false"):
        raise WorkloadError(f"{what} is yes or no, not {text!r}")
    return text in ("yes", "true")


READ: dict[str, Callable[[str, str], Any]] = {
    "file": _path,
    "rate": _number(0, 1_000_000, above=True),
    "cv": _number(0, 100, above=True),
    "time_scale": _number(0, 1_000_000, above=True),
    "start": _number(0, 1e9),
    "prompt": _range,
    "output": _range,
    "lengths": _lengths,
    "length_scale": _number(0, 1000, above=True),
    "max_prompt": _count(1),
    "max_output": _count(1),
    "lane": _name,
    "tenant": _names,
    "model": _name,
    "stream": _yes,
    "unstreamed": _number(0, 1),
    "sessions": _count(1),
    "shared": _count(0),
    "prefixes": _count(1, 1_000_000),
    "turns": _range,
    "new": _range,
    "think": _span,
    "ttft": _number(0, 86_400, above=True),
    "tpot": _number(0, 86_400, above=True),
}
assert set(READ) == {field.name for field in fields(Stream)} - {"source", "argument", "name", "goodput"}
