"""Finds whose the milliseconds are by which a load tool's TTFT is above Headgate's own.

A double of an engine has its first token after 15 ms. Clients ask it through the gateway, in turn and in rounds, each
as a load tool would: openai-python, aiohttp (`vllm bench serve`), httpx (GuideLLM), and bare sockets, than which
nothing in Python is quicker. All processes share the machine's monotonic clock, so that what a client sees is divided
into

    before   from the client's call until the gateway has read the request's first byte
    own      Headgate's own TTFT, from there to the first token
    after    from there until the client's code has that token

What a client has more than bare sockets, before and after, is its own. `make test-clients` first installs the clients.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from tests.clients.catalog import INSTALLED
from tests.engine.process import ask
from tests.gateway.test_gateway import double, gateway

CLIENT = Path(__file__).with_name("ttft_client.py")
RAW = "raw"
KINDS = {
    RAW: Path(sys.executable),
    "raw-fresh": Path(sys.executable),
    "aiohttp": INSTALLED / "litellm" / "bin" / "python",
    "httpx": INSTALLED / "openai" / "bin" / "python",
    "openai": INSTALLED / "openai" / "bin" / "python",
}
AT_ONCE = (1, 8)
ROUNDS, REQUESTS = 5, 60
AGREES_MS = 2.0
"""Milliseconds, or 2 %, within which Headgate's TTFT and that of bare sockets have to agree: what is between them is
Headgate's loop and the kernel, and all else is a client's own."""


def measured(kind: str, url: str, at_once: int) -> list[tuple[float, float, float]]:
    """Milliseconds before, own and after, of each request."""
    command = [str(KINDS[kind]), str(CLIENT), kind, url, str(REQUESTS), str(at_once)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    records = {one["id"]: one for one in map(json.loads, ask(f"{url}/admin/records")[1].splitlines())}
    parts = []
    for name, began, first in json.loads(done.stdout):
        record = records.get(name)
        if record is not None and record.get("ttft_s") is not None:
            own = record["ttft_s"]
            parts.append(((record["at"] - began) * 1e3, own * 1e3, (first - record["at"] - own) * 1e3))
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kinds = [kind for kind, python in KINDS.items() if python.exists()]
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, double() as (_, engine), gateway(Path(folder), {}, engine) as url:
        for number in range(options.rounds):
            for at_once in AT_ONCE:
                for kind in kinds if number % 2 else reversed(kinds):
                    found.setdefault((kind, at_once), []).extend(measured(kind, url, at_once))
    rows: list[dict[str, Any]] = []
    for at_once in AT_ONCE:
        for kind in kinds:
            before, own, after = (statistics.median(one) for one in zip(*found[kind, at_once], strict=True))
            seen = statistics.median(sum(parts) for parts in found[kind, at_once])
            rows.append({"client": kind, "at_once": at_once, "requests": len(found[kind, at_once]), "seen_ms": seen}
                        | {"before_ms": before, "own_ms": own, "after_ms": after})  # fmt: skip
    floor = {row["at_once"]: row for row in rows if row["client"] == RAW}
    lines = [
        "| at once | client | seen, p50 | before | Headgate's own | after | the client's own part |",
        "|" + "--:|" * 7,
    ]
    for row in rows:
        least = floor[row["at_once"]]
        extra = row["before_ms"] + row["after_ms"] - least["before_ms"] - least["after_ms"]
        lines.append(
            f"| {row['at_once']} | {row['client']} | {row['seen_ms']:.2f} ms | {row['before_ms']:.2f} "
            f"| {row['own_ms']:.2f} | {row['after_ms']:.2f} | {extra:+.2f} |"
        )
    agree = all(row["before_ms"] + row["after_ms"] <= max(AGREES_MS, 0.02 * row["seen_ms"]) for row in floor.values())
    print("\n".join(lines))
    print("agrees" if agree else "does not agree")
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main()
