"""Four healthy emulated H100s behind a gateway, three requests in five unstreamed: all is to be as it should.

    python -m benchmarks.unstreamed_live               five minutes; writes results/unstreamed_live.json and .md
    python -m benchmarks.unstreamed_live --seconds 30  and keeps nothing
    python -m benchmarks.unstreamed_live --tells       engines that say when an answer's first token was there

The gateway is told that the engines are plain OpenAI servers, so that they tell nothing, and not how many requests
they take. Nothing is wrong with them: no replica may be put out, no alert raised, no limit cut.
"""

import argparse
import json
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks.kit import free_port
from benchmarks.local_fleet import Program, engines, gateway, modules, stretched_lanes

REPLICAS = 4
STREAMED, UNSTREAMED = 8.0, 12.0
"""Requests a second."""
RESULTS = Path(__file__).resolve().parent / "results" / "unstreamed_live.json"


@dataclass
class Seen:
    """What /admin told once a second."""

    ejections: int = 0
    alerts: list[str] = field(default_factory=list)
    lowest: float = 64.0
    looks: int = 0
    _out: set[str] = field(default_factory=set)

    def look(self, port: int) -> None:
        self.looks += 1
        state = _ask(port, "/admin/state")
        out = {one["id"] for one in state["replicas"] if one["usable"] <= 0}
        self.ejections += len(out - self._out)
        self._out = out
        self.lowest = min([self.lowest, *(one["limit"] for one in state["replicas"])])
        self.alerts = [f"{one['lane']} {one['alert']}: {one['message']}" for one in _ask(port, "/admin/slo")["recent"]]


def _ask(port: int, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def measure(seconds: float, tells: bool, dilate: float) -> tuple[Seen, dict[str, Any]]:
    where = modules()
    with tempfile.TemporaryDirectory() as folder:
        ports, port, config = [free_port() for _ in range(REPLICAS)], free_port(), Path(folder) / "headgate.yaml"
        kind = "headgate" if tells else "openai"
        replicas = [{"url": f"http://127.0.0.1:{each}", "kind": kind} for each in ports]
        lanes = stretched_lanes(dilate) if dilate > 1 else {}
        config.write_text(json.dumps({"replicas": replicas, "lanes": lanes}))
        emulated = ("--emulate", "h100-llama3-8b", "--dilate", dilate, "--slots", 128)
        load = "; ".join(
            f"{name}=poisson:rate={rate / dilate:g},prompt=50-400,output=300,stream={stream}"
            for name, rate, stream in (("streamed", STREAMED, "yes"), ("unstreamed", UNSTREAMED, "no"))
        )
        result, seen = Path(folder) / "result.json", Seen()
        with engines(ports, emulated, where), gateway(port, ("--config", config), where):
            asked = ("bench", f"http://127.0.0.1:{port}", "--load", load, "--duration", seconds, "--ignore-eos")
            playing = Program(*asked, "--allow-lag", "--json", result, where=where)
            ends = time.monotonic() + seconds + 120
            while playing.process.poll() is None and time.monotonic() < ends:
                time.sleep(1.0)
                seen.look(port)
            playing.finished(10)
        played: dict[str, Any] = json.loads(result.read_text())
    return seen, {name: played.get(name) for name in ("completed", "failed", "num_prompts")}


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--seconds", type=float, default=300.0, help="default 300; fewer are not kept")
    options.add_argument("--tells", action="store_true", help="engines that tell")
    options.add_argument("--dilate", type=float, default=1.0, help="slower engines and as much less load, on few cores")
    asked = options.parse_args()
    seen, played = measure(asked.seconds, asked.tells, asked.dilate)
    good = not seen.ejections and not seen.alerts and seen.lowest >= 64
    found = {**asdict(seen), **played, "seconds": asked.seconds, "tells": asked.tells, "dilate": asked.dilate}
    found.pop("_out")
    line = (
        f"{played['completed']} completed, {seen.ejections} ejections, {len(seen.alerts)} alerts, "
        f"lowest limit {seen.lowest:g}: {'pass' if good else 'missed'}"
    )
    print(line, *seen.alerts[:5], sep="\n")
    if asked.seconds >= 300:
        RESULTS.write_text(json.dumps(found, indent=1, default=list) + "\n")
        text = [
            "# Unstreamed requests, live",
            "",
            f"Written by `benchmarks/unstreamed_live.py`: {asked.seconds:g} s.",
            "",
        ]
        RESULTS.with_suffix(".md").write_text("\n".join([*text, line]) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
