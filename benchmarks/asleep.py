"""What a warm pool costs that sleeps: load rises to four times as much, and three replicas have to wake up for it.

Live: a gateway with emulated replicas as processes, whose wake-up takes two seconds. Beside it, in turn, the same with
the warm pool awake: what the machine itself adds is in both. Simulated: the same arrivals, config and profile in
virtual time. Settings were chosen before results were seen.

A request is *held* if it waited in the gateway while replicas were asleep or waking up; all others of the step are
compared with those before it.
"""

import argparse
import asyncio
import datetime
import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fleet_load import Ask, Gateway, Shot, arrivals, gateway, percentile, play

from headgate.config.file import parse
from headgate.engine.runner.profile_file import find
from headgate.policy.scaling.scale import Scaler
from headgate.sim.fleet import dilated
from headgate.sim.scaling.autoscale import Scaled, autoscale
from headgate.workload.arrival import Arrival

RESULTS = Path(__file__).resolve().parent / "results"
PROFILE, DILATE, SLOTS, WAKE_S = "h100-llama3-8b", 4.0, 12, 2.0
CHAT = Ask(prompt_tokens=1000, output_tokens=64)
RATE = 1.6
"""Streams a second: a little less than half of one emulated replica's room."""
STEADY_S, STEP_S = 45.0, 20.0
HELD_BOUND_S, OTHERS_BOUND = WAKE_S + 0.3, 1.2
WAITED_S = 0.01
"""Seconds in the gateway above which a request has waited."""
SEED = 7
Figures = dict[str, Any]


def config(sleep_after_s: float | None) -> Figures:
    """Lanes and time limits are the usual ones. What is cooldown in earnest is ten times quicker."""
    return {
        "fleet": {
            "kind": "processes",
            "scale": {
                "min": 1, "max": 4, "warm": 3, "sleep_after_s": sleep_after_s, "forecast": False,
                "queue_per_replica": 0.1, "up_cooldown_s": 6, "down_cooldown_s": 60,
            },
            "emulate": {"profile": PROFILE, "dilate": DILATE, "wake_s": WAKE_S, "slots": SLOTS},
        },
    }  # fmt: skip


def live(sleep_after_s: float | None, seed: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "records.jsonl"
        with gateway({**config(sleep_after_s), "record": {"path": str(journal)}}) as here:
            here.until({"serving": 1, "asleep" if sleep_after_s else "parked": 3})
            due = arrivals([(RATE, STEADY_S), (4 * RATE, STEP_S)], seed)
            shots = asyncio.run(play(here.url, due, CHAT, seed))
            woke_s = _wake_ups(here)
        records = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    return figures(records, shots, woke_s)


def _wake_ups(here: Gateway) -> list[float]:
    """Seconds that each wake-up took, as the fleet noted them."""
    notes = [note["text"] for note in here.ask("/admin/fleet")["notes"]]
    return sorted(float(text.split()[-2]) for text in notes if " woke up in " in text)


def figures(records: Sequence[Figures], shots: Sequence[Shot], woke_s: list[float]) -> Figures:
    began = min(record["wall"] for record in records)
    rows = [(record["wall"] - began, record) for record in records if record.get("ttft_s") is not None]
    before = [record["ttft_s"] for at_s, record in rows if at_s < STEADY_S]
    after = [record for at_s, record in rows if at_s >= STEADY_S]
    held = [record for record in after if record.get("woke_s") or record["queue_s"] >= WAITED_S]
    others = [record["ttft_s"] for record in after if record not in held]
    refused = [record for record in records if record["outcome"] not in ("completed",)]
    return summary(before, [record["ttft_s"] for record in held], others) | {
        "requests": len(shots),
        "answered": sum(shot.whole for shot in shots),
        "errors": sorted({shot.error for shot in shots if shot.error}),
        "not_completed": sorted(record["outcome"] for record in refused),
        "told_of_a_wake_up": sum(bool(record.get("woke_s")) for record in after),
        "wake_ups_s": woke_s,
    }


def summary(before: list[float], held: list[float], others: list[float]) -> Figures:
    p99 = {"before": percentile(before, 0.99), "held": percentile(held, 0.99), "others": percentile(others, 0.99)}
    counts = {"before": len(before), "held": len(held), "others": len(others)}
    over = None if not before or not others else p99["others"] / p99["before"]
    return {"p99_s": p99, "counts": counts, "others_over_before": over}


def simulated(sleep_after_s: float | None, seed: int) -> Figures:
    made = config(sleep_after_s)
    parsed = parse(json.dumps(made), "asleep")
    member = dilated(find(PROFILE), DILATE)
    member = replace(member, slots=SLOTS, wake_s=WAKE_S)
    due = arrivals([(RATE, STEADY_S), (4 * RATE, STEP_S)], seed)
    asks = [
        Arrival(10.0 + at, CHAT.prompt_tokens, CHAT.output_tokens, stream=number % 3 != 2)
        for number, at in enumerate(due)
    ]
    scaled = Scaled(member=member, scaler=Scaler(parsed.fleet.scale), at_first=1, parked_at_first=3)
    outcomes = autoscale(parsed, asks, scaled, seed, "step")
    results = outcomes.simulated.results
    ok = results.ok
    since = results.at_s - 10.0
    known = ok & ~(results.ttft_s != results.ttft_s)
    step = since >= STEADY_S
    waited = results.queue_s >= WAITED_S
    return summary(
        list(results.ttft_s[known & ~step]),
        list(results.ttft_s[known & step & waited]),
        list(results.ttft_s[known & step & ~waited]),
    ) | {
        "requests": len(due),
        "answered": int(ok.sum()),
        "told_of_a_wake_up": len(outcomes.held_s),
        "wake_ups": outcomes.wake_ups,
    }


def passed(found: Figures) -> bool:
    p99 = found["p99_s"]
    return bool(
        found["answered"] == found["requests"]
        and p99["held"] <= HELD_BOUND_S
        and found["others_over_before"] <= OTHERS_BOUND
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=("simulated", "live"))
    parser.add_argument("--write", action="store_true", help="keep the result")
    options = parser.parse_args()
    found: Figures = {"when": datetime.date.today().isoformat(), "machine": platform.processor() or platform.machine()}
    if options.only != "live":
        found["simulated"] = {
            "asleep": [simulated(5.0, SEED + run) for run in range(options.runs)],
            "awake": [simulated(None, SEED + run) for run in range(options.runs)],
        }
    if options.only != "simulated":
        runs: dict[str, list[Figures]] = {"asleep": [], "awake": []}
        for run in range(options.runs):
            for name, after_s in (("asleep", 5.0), ("awake", None)):
                runs[name].append(live(after_s, SEED + run))
                print(name, json.dumps(runs[name][-1]), flush=True)
        found["live"] = runs
    print(json.dumps(found, indent=1))
    if options.write:
        (RESULTS / "asleep.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
