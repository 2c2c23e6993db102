"""Two versions in pools under a 50 % split and a rollback, live: a gateway, emulated engines, real sockets.

Requests come at a steady rate, open loop. The split grows as the new pool does, then the version is rolled back. Pass:
no 404, no refusal and no failure, and the old pool is back to its size within its start time.
"""

import argparse
import json
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.engine.process import ask, headgate

from headgate.model.clock import monotonic

HERE = Path(__file__).resolve().parent
RATE, TOKENS = 5.0, 40
SCALE = {"min": 1, "max": 5, "warm": 1, "forecast": False, "up_cooldown_s": 1, "down_cooldown_s": 8, "down_share": 0.5}
EMULATE = {"profile": "h100-llama3-8b", "dilate": 4, "cold_start_s": 1, "slots": 4}
PHASES = {"before": 30.0, "split": 60.0, "rolled back": 40.0}


def pool(name: str, model: str) -> dict[str, Any]:
    return {"name": name, "model": model, "version": name, "scale": SCALE, "emulate": EMULATE, "drain_s": 20}


class Load:
    """Requests at a steady rate, each in a thread of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.phase = "warm-up"
        self.statuses: list[tuple[str, int, float]] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def run(self) -> None:
        next_at = monotonic()
        while not self._stop.is_set():
            thread = threading.Thread(target=self._one, args=(self.phase,))
            thread.start()
            self._threads.append(thread)
            next_at += 1.0 / RATE
            self._stop.wait(max(0.0, next_at - monotonic()))

    def _one(self, phase: str) -> None:
        body = {"model": "m", "prompt": "word " * 700, "max_tokens": TOKENS, "ignore_eos": True}
        head = {"content-type": "application/json"}
        began = monotonic()
        asked = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode(), head)
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                answer.read()
                status = answer.status
        except urllib.error.HTTPError as error:
            status = error.code
        except OSError:
            status = 0
        self.statuses.append((phase, status, monotonic() - began))

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def pools(url: str) -> dict[str, dict[str, Any]]:
    told: dict[str, Any] = json.loads(ask(f"{url}/admin/fleet")[1])
    return {one["name"]: one for one in told["pools"]}


def until(what: Any, within_s: float) -> float:
    began = monotonic()
    while not what():
        if monotonic() - began > within_s:
            return float("inf")
        time.sleep(0.1)
    return monotonic() - began


def share(url: str) -> float:
    told = json.loads(ask(f"{url}/admin/rollout")[1])
    (model,) = told["models"]
    return float(next(one["share"] for one in model["versions"] if one["name"] == "new"))


def played(folder: Path) -> dict[str, Any]:
    versions = [{"name": "old", "model": "m-1", "weight": 1}, {"name": "new", "model": "m-2"}]
    config = {
        "listen": {"port": 0},
        "timeouts": {"no_replica_wait_s": 60},
        "fleet": {"pools": [pool("old", "m-1"), pool("new", "m-2")]},
        "models": [{"name": "m", "versions": versions, "sticky": "request"}],
    }
    path = folder / "headgate.yaml"
    path.write_text(json.dumps(config))
    with headgate("serve", "--config", str(path)) as (process, url):
        assert process.stderr is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        until(lambda: all(one["serving"] and one["parked"] for one in pools(url).values()), 60.0)
        load = Load(url)
        running = threading.Thread(target=load.run)
        running.start()
        time.sleep(PHASES["before"])  # the old pool grows to its size
        load.phase, size = "before", pools(url)["old"]["serving"]
        time.sleep(5.0)
        size = max(size, pools(url)["old"]["serving"])
        load.phase = "split"
        ask(f"{url}/admin/rollout/m/start", {"version": "new", "mode": "split", "share": 0.5})
        first = share(url)
        reached_s = until(lambda: share(url) >= 0.5, PHASES["split"])
        time.sleep(25.0)
        during = {name: one["serving"] for name, one in pools(url).items()}
        load.phase = "rolled back"
        start_s = pools(url)["old"]["start_s"]
        ask(f"{url}/admin/rollout/m/rollback", {})
        back_s = until(lambda: pools(url)["old"]["serving"] >= size, PHASES["rolled back"])
        time.sleep(12.0)
        after = {name: one["serving"] for name, one in pools(url).items()}
        load.close()
        running.join()
    by_phase: dict[str, dict[str, int]] = {}
    for phase, status, _ in load.statuses:
        counts = by_phase.setdefault(phase, {})
        counts[str(status)] = counts.get(str(status), 0) + 1
    return {
        "statuses": by_phase,
        "old_before": size,
        "during": during,
        "after": after,
        "share_at_first": first,
        "reached_s": reached_s,
        "start_s": start_s,
        "back_s": back_s,
        "longest_s": {phase: max(took for one, _, took in load.statuses if one == phase) for phase in by_phase},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "pools_live.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = played(Path(folder))
    later = [found["statuses"].get(phase, {}) for phase in ("split", "rolled back")]
    verdicts = {
        "no 404, no refusal, no failure from the split on": all(set(counts) == {"200"} for counts in later),
        f"the share begins at {found['share_at_first']:.0%} and is 50 % after {found['reached_s']:.1f} s": found[
            "reached_s"
        ]
        < PHASES["split"],
        f"the old pool is back to {found['old_before']} after {found['back_s']:.1f} s; a start takes "
        f"{found['start_s']:.1f} s": found["back_s"] <= found["start_s"] + 1.0,
    }
    lines = [
        "# A split and a rollback between pools, live",
        "",
        "Written by `benchmarks/pools_live.py`. Machine was shared.",
        "",
    ]
    lines += [f"- {name}: {value}" for name, value in found.items()]
    lines += ["", *(f"- {'pass' if good else 'FAIL'}: {name}" for name, good in verdicts.items())]
    args.out.write_text(json.dumps({**found, "verdicts": verdicts}, indent=1) + "\n")
    args.out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
