"""Whether a client notices that engines are killed. Streams under random `kill -9`, compared with what is said in
peace.

A gateway runs three engines of the bundled model, each in a process of its own with one thread. First each prompt is
answered by one engine with nothing else to do: that text is the reference. Then clients ask one after the other, as
fast as they are answered, for a while in peace and for a while with an engine killed every so often, as long as two
serve. Everything is greedy, so every answer must be the reference, whole, once, and with its usage; and the gateway
must have exactly one record of each request. Correctness is judged, not speed: any machine will do.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
from benchmarks.fleet_load import Gateway, gateway  # noqa: E402
from benchmarks.report import Grid, Report, Row, Samples, Verdict, judge, machine, verdict_grid  # noqa: E402

TITLE = "Chaos: engines are killed, and no client notices"
RESULTS = ROOT / "benchmarks" / "results" / "chaos.json"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ENGINES, SLOTS, CLIENTS = 3, 4, 6
"""Two engines have room for all clients."""
ANSWER_WITHIN_S, BACK_WITHIN_S = 300.0, 120.0
SERVE = ("serving", "ramping")
WHOLE = 0.1
"""The share of requests that want their answer in one piece."""
CHATS = (
    "Count from one to thirty in words.|Write a short story about a lost dog.|Name ten animals, each on its own line.|"
    "Explain photosynthesis to a child.|Write a poem about the sea.|Write Python code that sorts a list of numbers.|"
    "Make a Markdown table of three planets.|What is the capital of France, and what is it known for?|"
    "Make a JSON list of five fruits with their colours.|Say hello in five languages, with emoji."
)
TEXTS = (
    "Once upon a time there was a lighthouse,",
    "def fibonacci(n):\n",
    "1. Boil the water\n2.",
    "The Roman Empire is",
)
LENGTHS = (16, 48, 80, 112)
"""Tokens, of one prompt after the other."""


def config(engines: int) -> dict[str, Any]:
    # Nobody is refused, however slow the machine is.
    patient = {"wait_bound_s": 120, "generation_s": 600}
    return {
        "lanes": {"slow": patient, "fast": patient},
        "timeouts": {"no_replica_wait_s": 120, "stall_s": 120},
        "fleet": {"kind": "processes", "scale": {"min": engines, "max": engines, "forecast": False}},
        "embedded": {"slots": SLOTS, "context": 512, "threads": 1},
    }


# -- one request --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    path: str
    prompt: str
    tokens: int

    def body(self, stream: bool) -> dict[str, Any]:
        asked = (
            {"messages": [{"role": "user", "content": self.prompt}]} if self.path == CHAT else {"prompt": self.prompt}
        )
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        return {"model": "default", **asked, "max_tokens": self.tokens, "temperature": 0, **more}


@dataclass(slots=True)
class Heard:
    id: str
    ask: Ask
    stream: bool
    text: str = ""
    finish: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    """Ids that its events had."""
    roles: int = 0
    usage: tuple[int, int] | None = None
    done: bool = False
    error: str = ""

    @property
    def begun(self) -> bool:
        return bool(self.text) or bool(self.names)

    def event(self, said: dict[str, Any]) -> None:
        if "error" in said:
            self.error = str(said["error"].get("message"))
            return
        self.names.add(said["id"])
        if usage := said.get("usage"):
            self.usage = (usage["prompt_tokens"], usage["completion_tokens"])
        for choice in said["choices"]:
            part = choice.get("delta") or choice.get("message") or choice
            self.text += part.get("content") or part.get("text") or ""
            self.roles += "role" in part
            if choice.get("finish_reason"):
                self.finish.append(choice["finish_reason"])


def asks() -> list[Ask]:
    prompts = [(CHAT, text) for text in CHATS.split("|")] + [(TEXT, text) for text in TEXTS]
    return [Ask(path, text, LENGTHS[at % len(LENGTHS)]) for at, (path, text) in enumerate(prompts)]


async def send(url: str, ask: Ask, name: str, stream: bool) -> Heard:
    host, _, port = url.removeprefix("http://").partition(":")
    heard, data = Heard(name, ask, stream), json.dumps(ask.body(stream)).encode()
    head = f"POST {ask.path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nx-request-id: {name}\r\n"
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(f"{head}content-length: {len(data)}\r\nconnection: close\r\n\r\n".encode() + data)
                status = (await reader.readline()).split()[1]
                if stream and status == b"200":
                    async for line in reader:
                        if line.startswith(b"data: {"):
                            heard.event(json.loads(line[6:]))
                        heard.done = heard.done or line.startswith(b"data: [DONE]")
                else:
                    answer = await reader.read()
                    heard.event(json.loads(answer[answer.index(b"\r\n\r\n") + 4 :]))
                    heard.done = status == b"200"
                    heard.error = heard.error or ("" if heard.done else f"status {status.decode()}")
            finally:
                writer.close()
    except (OSError, TimeoutError, LookupError, ValueError) as failure:
        heard.error = f"{type(failure).__name__}: {failure}"
    return heard


async def load(
    url: str, clients: int, seconds: float, seed: int, part: str, every: Sequence[Ask] | None = None
) -> list[Heard]:
    """Each client asks again as soon as it is answered, and until the time is over."""
    rng, heard, until = random.Random(seed), [], monotonic() + seconds
    every = every or asks()

    async def client(number: int) -> None:
        count = 0
        while monotonic() < until:
            count += 1
            stream = rng.random() >= WHOLE
            heard.append(await send(url, rng.choice(every), f"{part}-{number}-{count}", stream))

    await asyncio.gather(*(client(number) for number in range(clients)))
    return heard


async def peace(url: str) -> dict[Ask, Heard]:
    """What each prompt is answered, one after the other."""
    return {ask: await send(url, ask, f"reference-{number}", True) for number, ask in enumerate(asks())}


# -- what goes wrong ----------------------------------------------------------------------------------------------


class Killer:
    """Every so often one that serves, if two do."""

    def __init__(self, here: Gateway, every_s: float, seed: int) -> None:
        self.kills: list[str] = []
        self._here = here
        self._every_s = every_s
        self._rng = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Killer":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._every_s * self._rng.uniform(0.5, 1.5)):
            while len(serving := [name for name, state in sorted(self._here.states().items()) if state in SERVE]) < 2:
                if self._over.wait(0.1):
                    return
            victim = self._rng.choice(serving)
            os.kill(self._here.pid(victim), signal.SIGKILL)
            self.kills.append(victim)


def records(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/admin/records?last=86400&limit=50000", timeout=60) as answer:
        return [json.loads(line) for line in answer.read().splitlines()]


# -- what is found ------------------------------------------------------------------------------------------------


def faults(heard: list[Heard], reference: dict[Ask, Heard], kept: list[dict[str, Any]]) -> dict[str, list[str]]:
    """By kind, one line for each."""
    found: dict[str, list[str]] = {"truncated": [], "refused": [], "text": [], "stream": [], "usage": [], "outcome": []}
    outcomes = Counter(record["id"] for record in kept)
    for one in heard:
        expected = reference[one.ask]
        if one.error or not one.done:
            kind = "truncated" if one.begun else "refused"
            found[kind].append(f"{one.id}: {one.error or 'no end'}, after {len(one.text)} characters")
        elif one.text != expected.text:
            pairs = enumerate(zip(one.text, expected.text, strict=False))
            at = max(30, next((at for at, (said, wanted) in pairs if said != wanted), 0))
            found["text"].append(f"{one.id} {one.ask}: {one.text[at - 30 :]!r} instead of {expected.text[at - 30 :]!r}")
        elif one.finish != expected.finish or len(one.names) != 1 or (one.ask.path == CHAT and one.roles != 1):
            found["stream"].append(f"{one.id}: ended by {one.finish}, {len(one.names)} ids, {one.roles} roles")
        elif one.usage != expected.usage:
            found["usage"].append(f"{one.id} {one.ask}: {one.usage} instead of {expected.usage}")
        if outcomes[one.id] != 1:
            found["outcome"].append(f"{one.id}: {outcomes[one.id]} records")
    known = {one.id for one in heard}
    found["outcome"] += [f"{name}: nobody asked" for name in outcomes if name not in known]
    return found


def note(part: str, heard: list[Heard], kept: list[dict[str, Any]], wrong: dict[str, list[str]], out: Samples) -> None:
    out[f"{part}.requests"] = [float(len(heard))]
    out[f"{part}.streams"] = [float(sum(one.stream for one in heard))]
    moved = [record for record in kept if record.get("failed")]
    out[f"{part}.moved"] = [float(len(moved))]
    begun = [record for record in moved if record.get("stream") and any(one["begun"] for one in moves(record))]
    out[f"{part}.gone_on"] = [float(len(begun))]
    out[f"{part}.moved_twice"] = [float(sum(len(record["failed"]) > 1 for record in moved))]
    for kind, lines in wrong.items():
        out[f"{part}.{kind}"] = [float(len(lines))]


def moves(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Its failed attempts, and of each whether the first token had come before it ended."""
    ttft_s = record.get("ttft_s")
    return [{**one, "begun": ttft_s is not None and ttft_s < one["at_s"] + one["took_s"]} for one in record["failed"]]


ROWS = (
    ("requests, in peace", "peace.requests", "≥", None),
    ("text unlike the reference, in peace", "peace.text", "≤", 0),
    ("kills", "chaos.kills", "≥", None),
    ("requests, while engines are killed", "chaos.requests", "≥", None),
    ("of them gone on with elsewhere after the first token", "chaos.gone_on", "≥", 1),
    ("truncated streams", "chaos.truncated", "≤", 0),
    ("refused before the first token", "chaos.refused", "≤", 0),
    ("text missing, doubled or unlike the reference", "chaos.text", "≤", 0),
    ("more than one id, role or end in a stream", "chaos.stream", "≤", 0),
    ("usage unlike the reference", "chaos.usage", "≤", 0),
    ("requests without exactly one outcome", "chaos.outcome", "≤", 0),
)


def run(seconds: float, every_s: float, seed: int, calm_s: float, say: Console) -> tuple[Samples, list[str]]:
    samples, lines = Samples(), []
    with gateway(config(1)) as here:
        here.until({"serving": 1})
        reference = asyncio.run(peace(here.url))
    bad = [one for one in reference.values() if one.error or not one.done]
    if bad:
        raise SystemExit(f"no reference: {bad[0].error}")
    with gateway(config(ENGINES)) as here:
        here.until({"serving": ENGINES}, BACK_WITHIN_S)
        for part, lasts_s in (("peace", calm_s), ("chaos", seconds)):
            if part == "chaos":
                with Killer(here, every_s, seed) as killer:
                    heard = asyncio.run(load(here.url, CLIENTS, lasts_s, seed + 1, part))
                samples["chaos.kills"] = [float(len(killer.kills))]
            else:
                heard = asyncio.run(load(here.url, CLIENTS, lasts_s, seed, part))
            kept = [record for record in records(here.url) if record["id"].startswith(part)]
            wrong = faults(heard, reference, kept)
            note(part, heard, kept, wrong, samples)
            lines += [f"{part}: {kind}: {line}" for kind, found in wrong.items() for line in found]
            say.print(f"{part}: {len(heard)} requests, {sum(map(len, wrong.values()))} faults")
    return samples, lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long engines are killed")
    parser.add_argument("--every", type=float, default=20.0, help="seconds from kill to kill, on average")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--peace", type=float, default=60.0, help="seconds of load before the first kill")
    parser.add_argument("--out", type=Path, help="where to keep the result; else results/chaos.json after a full run")
    args = parser.parse_args()
    console = Console(highlight=False)
    samples, lines = run(args.seconds, args.every, args.seed, args.peace, console)
    verdicts = [judge(Row(label, figure, None, sense, limit), samples) for label, figure, sense, limit in ROWS]  # type: ignore[arg-type]
    for line in lines[:60]:
        console.print(line, markup=False)
    console.print(verdict_grid(verdicts).table("Did anybody notice?"))
    return keep(args, samples, verdicts, console)


def keep(args: argparse.Namespace, samples: Samples, verdicts: list[Verdict], console: Console) -> int:
    facts = {
        **machine(),
        "engines": f"{ENGINES}, of one thread and {SLOTS} slots",
        "clients": CLIENTS,
        "engines were killed": f"for {args.seconds:g} s, every {args.every:g} s on average, seed {args.seed}",
    }
    parts = {"peace": "in peace", "chaos": "while engines are killed"}
    figures = {"requests": "requests", "streams": "streamed", "moved": "moved", "moved_twice": "moved twice or more"}
    grid = Grid(
        ("", *figures.values()),
        tuple((name, *(f"{samples[f'{part}.{figure}'][0]:.0f}" for figure in figures)) for part, name in parts.items()),
    )
    out: Path | None = args.out or (RESULTS if args.seconds >= 300 else None)
    if out is not None:
        Report(TITLE, "benchmarks/chaos.py", facts, verdicts, samples, (grid,)).keep(out)
        console.print(f"wrote {out}")
    return 0 if all(verdict.passed is not False for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
