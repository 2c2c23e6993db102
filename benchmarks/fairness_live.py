"""Whether a loud tenant moves a quiet one. As fairness.py, but live: a gateway and an emulated engine over sockets.

A loud tenant keeps as many streams of some ten seconds coming as are nearly four times the slots; a quiet one sends a
10-token request each second. Figures and bounds are those of fairness.py; the engine is an emulated H100 at a quarter
of its speed.

    python -m benchmarks.fairness_live       seven minutes; writes results/fairness_live.json and .md
"""

import argparse
import asyncio
import hashlib
import json
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from benchmarks.fairness import BOUNDS, MOST_REFUSED, MOST_TTFT, QUIET_FROM_S
from benchmarks.kit import free_port
from benchmarks.local_fleet import engines, gateway

DILATE = 4
LOUD_TOKENS = 320
"""Ten seconds' worth, about."""
LOUD_STREAMS = 3.75
"""For each slot: thirty for eight."""


@dataclass
class Heard:
    """What clients were told."""

    tokens: int = 0
    quiet: int = 0
    quiet_refused: int = 0
    ttfts: list[float] = field(default_factory=list)


async def ask(port: int, key: str, tokens: int, heard: Heard) -> tuple[int, float]:
    """Status and seconds to the first token of one streamed chat on a connection of its own."""
    messages = [{"role": "user", "content": "word " * 40}]
    asked = {"model": "default", "messages": messages, "stream": True, "max_tokens": tokens, "ignore_eos": True}
    body = json.dumps(asked).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began, first_s = time.monotonic(), 0.0
    try:
        writer.write(head.encode() + body)
        status = int((await reader.readline()).split()[1])
        while piece := await reader.read(65_536):
            if b'data: {"' in piece and not first_s:
                first_s = time.monotonic() - began
            heard.tokens += piece.count(b'data: {"')
    finally:
        writer.close()
    return status, first_s


async def loud(port: int, heard: Heard) -> None:
    while True:
        status, _ = await ask(port, "loud", LOUD_TOKENS, heard)
        if status != 200:
            await asyncio.sleep(0.2)


async def quiet(port: int, heard: Heard) -> None:
    status, first_s = await ask(port, "quiet", 10, heard)
    heard.quiet += 1
    if status == 200:
        heard.ttfts.append(first_s)
    else:
        heard.quiet_refused += 1


async def run(port: int, slots: int, seconds: float, with_quiet: bool) -> Heard:
    heard = Heard()
    flood = [asyncio.ensure_future(loud(port, heard)) for _ in range(int(LOUD_STREAMS * slots))]
    await asyncio.sleep(QUIET_FROM_S)
    heard.tokens = 0
    asked = []
    for _ in range(int(seconds)):
        if with_quiet:
            asked.append(asyncio.ensure_future(quiet(port, heard)))
        await asyncio.sleep(1.0)
    for one in (*flood, *asked):
        one.cancel()
        with suppress(asyncio.CancelledError, OSError, ValueError, IndexError):
            await one
    return heard


def measure(slots: int, seconds: float, *, with_quiet: bool = True, loud_concurrency: int | None = None) -> Heard:
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        engine_port, port = free_port(), free_port()
        keys = {name: [hashlib.sha256(name.encode()).hexdigest()] for name in ("loud", "quiet")}
        tenants: dict[str, object] = {"loud": {"key_sha256": keys["loud"], "concurrency": loud_concurrency}}
        if with_quiet:
            tenants["quiet"] = {"key_sha256": keys["quiet"]}
        config = where / "headgate.yaml"
        replica = {"url": f"http://127.0.0.1:{engine_port}", "slots": slots}
        config.write_text(json.dumps({"replicas": [replica], "tenants": tenants}))
        emulated = ("--emulate", "h100-llama3-8b", "--dilate", DILATE, "--slots", slots)
        with engines([engine_port], emulated, where), gateway(port, ("--config", config), where):
            return asyncio.run(run(port, slots, seconds, with_quiet))


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--seconds", type=float, default=60.0, help="of each of the six runs (default 60)")
    options.add_argument("--keep", action=argparse.BooleanOptionalAction, default=True, help="write results/")
    asked = options.parse_args()
    lines = ["| slots | quiet requests | refused | p99 TTFT, ms | beside a fair share, ms | ratio | tokens/s ratio | |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    kept, missed = [], 0
    for slots, least in BOUNDS.items():
        alone = measure(slots, asked.seconds, with_quiet=False)
        fair = measure(slots, asked.seconds, loud_concurrency=slots // 2)
        both = measure(slots, asked.seconds)
        p99, fair_p99 = (float(np.quantile(heard.ttfts, 0.99)) for heard in (both, fair))
        refused, tokens = both.quiet_refused / both.quiet, both.tokens / alone.tokens
        good = refused <= MOST_REFUSED and p99 <= MOST_TTFT * fair_p99 and tokens >= least
        missed += not good
        figures = f"{refused:.1%} | {1000 * p99:.0f} | {1000 * fair_p99:.0f} | {p99 / fair_p99:.2f} | {tokens:.3f}"
        lines.append(f"| {slots} | {both.quiet} | {figures} | {'pass' if good else 'missed'} |")
        print(lines[-1], flush=True)
        kept.append({"slots": slots, "alone": asdict(alone), "fair": asdict(fair), "both": asdict(both)})
    if asked.keep:
        folder = Path(__file__).parent / "results"
        (folder / "fairness_live.json").write_text(json.dumps(kept, indent=1) + "\n")
        text = ["# A loud tenant and a quiet one, live", "", f"{asked.seconds:g} s for each run.", "", *lines, ""]
        (folder / "fairness_live.md").write_text("\n".join(text))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
