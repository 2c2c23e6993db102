"""Whether one client's JSON schema can hold up another client's stream.

Four streams run on the embedded engine while requests with schemas come: small ones, large ones, ones that can't be
compiled, and ones made to be as costly as 64 KB can be. Each phase has a control just before it: the same requests
without their schemas. What is compared is the longest gap of the four streams.
"""

import argparse
import asyncio
import gc
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks.engine import SHORT, Prompts
from benchmarks.peers import ROOT, Client, Setup, Unusable, bundled_model, running, servers
from benchmarks.report import CpuTime, Report, Row, Samples, judge, machine, verdict_grid

TITLE = "One client's JSON schema and another's stream"
RESULTS = ROOT / "benchmarks" / "results" / "schemas.json"
STREAMS, AT_ONCE, PHASE_S = 4, 3, 3.0
BOUND_MS = 20.0

Schema = dict[str, Any]


def of(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def text(pattern: str) -> Schema:
    return {"type": "string", "pattern": pattern}


def alternatives(depth: int, name: str) -> Schema:
    if not depth:
        return {"const": name}
    return {"anyOf": [alternatives(depth - 1, f"{name}{side}") for side in "abc"]}


def items(depth: int) -> Schema:
    inner = items(depth - 1) if depth else {"type": "string"}
    return {"type": "array", "items": inner, "minItems": 1000, "maxItems": 10_000}


SCHEMAS: dict[str, Callable[[int], Schema]] = {
    "small": lambda at: of({f"name_{at}": {"type": "string"}, "age": {"type": "integer"}}),
    "1 000 properties": lambda at: of({f"property_{at}_{n}": {"type": "string"} for n in range(1000)}),
    "1 400 optional properties": lambda at: {
        "type": "object",
        "properties": {f"property_{at}_{n}": {"type": "string"} for n in range(1400)},
    },
    "an enum of 2 300": lambda at: {"enum": [f"value-{at}-{n}-abcdefgh" for n in range(2300)]},
    "wrong in its last line": lambda at: of(
        {**{f"p{at}_{n}": text(f"[a-z]{{1,{n + 1}}}") for n in range(900)}, "z": {"type": "nonsense"}}
    ),
    "800 patterns": lambda at: of({f"p{at}_{n}": text(f"^[a-z]{{1,{n + 10}}}@[a-z]+$") for n in range(800)}),
    "recursive references": lambda at: {
        "$defs": {
            f"d{n}": of({"a": {"$ref": f"#/$defs/d{(n + 1) % 300}"}, f"b{at}": {"$ref": f"#/$defs/d{(n + 7) % 300}"}})
            for n in range(300)
        },
        "$ref": "#/$defs/d0",
    },
    "1 200 patternProperties": lambda at: {
        "type": "object",
        "patternProperties": {f"^k{at}_{n}[a-z]*$": {"type": "string"} for n in range(1200)},
    },
    "60 patterns at once": lambda at: {"allOf": [text(f"a.*b.{{{n}}}c{at}") for n in range(1, 60)]},
    "an exponential pattern": lambda at: text(f"^.*a.{{{200 + at}}}b.{{200}}$"),
    "repeated repetitions": lambda at: text(f"^(([a-z]{{1,100}}){{1,{100 + at}}}){{1,100}}$"),
    "minLength 10 000": lambda at: {"type": "string", "minLength": 10_000 + at, "maxLength": 1_000_000},
    "minItems 1 000, nested": lambda at: items(2) | {"maxItems": 10_000 + at},
    "nested anyOf": lambda at: alternatives(6, f"x{at}"),
}


async def longest_gap_ms(client: Client, prompts: Prompts, name: str | None, first: int) -> tuple[float, list[int]]:
    """The streams' longest gap while requests with such schemas come, AT_ONCE at a time; and how those were
    answered."""
    streams = [await client.start(await prompts.of(SHORT), 3000) for _ in range(STREAMS)]
    await asyncio.gather(*(stream.more(12) for stream in streams))
    loop = asyncio.get_running_loop()
    began, answered, number = loop.time(), list[int](), iter(range(first, first + 10_000))

    async def keep_asking() -> None:
        while loop.time() < began + PHASE_S:
            at = next(number)
            body: dict[str, Any] = {"prompt": f"Number {at}:", "max_tokens": 4, "temperature": 0}
            if name is not None:
                schema = SCHEMAS[name](at // 2)  # each one twice: a refusal is to be remembered
                body["response_format"] = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
            status, _ = await client.ask("POST", "/v1/completions", body)
            answered.append(status)
            await asyncio.sleep(0.05)

    await asyncio.gather(*(keep_asking() for _ in range(AT_ONCE)))
    await asyncio.gather(*(stream.more(8) for stream in streams))
    stamps = [stream.cut() for stream in streams]
    await asyncio.sleep(0.5)  # for the server to see that they were cut
    return 1e3 * max(later - earlier for one in stamps for earlier, later in pairwise(one)), answered


async def measure(args: argparse.Namespace, setup: Setup, console: Console) -> Samples:
    samples: Samples = defaultdict(list)
    names = [name for name in SCHEMAS if args.only is None or name in args.only]
    async with running(servers(setup)["headgate"]) as client:
        prompts = Prompts(client, seed=1)
        await longest_gap_ms(client, prompts, None, 0)
        for at in range(args.rounds):
            for index, name in enumerate(names):
                first = 1 + 1000 * (at * len(names) + index)
                control, _ = await longest_gap_ms(client, prompts, None, first)
                beside, answered = await longest_gap_ms(client, prompts, name, first)
                samples[f"{name}.control_ms"].append(control)
                samples[f"{name}.gap_ms"].append(beside)
                samples[f"{name}.over_ms"].append(beside - control)
                said = ", ".join(f"{answered.count(status)} × {status}" for status in sorted(set(answered)))
                console.print(f"{name}: {beside:.0f} ms, control {control:.0f} ms ({said})", highlight=False)
    for name in names:
        samples["worst_over_ms"].append(median(samples[f"{name}.over_ms"]))
    return dict(samples)


async def run(args: argparse.Namespace, console: Console) -> bool:
    setup = Setup(model=args.model or bundled_model(), threads=args.threads)
    before = CpuTime.now()
    samples = await measure(args, setup, console)
    stolen = f"{before.kept_of_all(CpuTime.now()):.1%}"
    facts = machine() | {"model": setup.model.name, "threads": setup.threads, "cpu_time_stolen_by_the_host": stolen}
    rows = [
        Row(f"longest gap over control, ms: {key.removesuffix('.over_ms')}", key, None, "≤", BOUND_MS)
        for key in samples
        if key.endswith(".over_ms")
    ]
    verdicts = [judge(row, samples) for row in rows]
    console.print(verdict_grid(verdicts).table(TITLE), f"CPU time stolen by the host: {stolen}")
    if out := args.out or (RESULTS if args.only is None and args.rounds >= 3 else None):
        Report(TITLE, "benchmarks/schemas.py", facts, verdicts, samples).keep(out)
        console.print(f"written: {out}", highlight=False)
    return all(verdict.passed is not False for verdict in verdicts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=tuple(SCHEMAS))
    parser.add_argument("--model", type=Path, help="a GGUF; the bundled weights without it")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--sizes", action="store_true", help="only say how large the schemas are")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    console = Console()
    if args.sizes:
        for name, schema in SCHEMAS.items():
            console.print(f"{name}: {len(json.dumps(schema(1)))} bytes", highlight=False)
        return 0
    gc.disable()  # a collection here would be read as a gap there; the process is short
    try:
        return 0 if uvloop.run(run(args, console)) else 1
    except Unusable as error:
        console.print(f"no result: {error}", style="red", markup=False)
        return 2


if __name__ == "__main__":
    sys.exit(main())
