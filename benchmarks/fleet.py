"""Whether the fleet is ever cold. Step load with and without a warm pool, a killed replica, a start from zero, cold
starts.

Each piece is a gateway of its own with replicas as processes on this machine. Where engines are emulated they take an
H100's time, stretched, and a modelled cold start: what is measured is the gateway, the controller and the processes.
The load is open: a stream is sent when it is due, and its time to first token counts from then. Use a quiet machine.
"""

import argparse
import asyncio
import datetime
import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fleet_load import Ask, Gateway, Shot, arrivals, gateway, percentile, play

RESULTS = Path(__file__).resolve().parent / "results"
PROFILE, DILATE, SLOTS = "h100-llama3-8b", 4.0, 12
COLD_START_S = 10.0
CHAT = Ask(prompt_tokens=1000, output_tokens=64)
RATE = 1.6
"""Streams a second: a little less than half of one emulated replica's room, so that four times as much is far too much
for it, and few by chance have to wait before."""
STEADY_S, STEP_S, AFTER_S = 45.0, 20.0, 5.0
"""The 20 s after the step are judged: two cold starts long. What comes later shows where it settles."""
STEP_BOUND = 1.5
REAL = Ask(prompt_tokens=24, output_tokens=8)
REAL_RATES = (0.6, 2.4)
"""Streams a second: about a third of what an engine of one thread serves, and somewhat more than that."""
SEED = 7

Figures = dict[str, Any]


def emulated(**scale: Any) -> Figures:
    return {
        # Nobody is refused: what waiting for a start costs is to be seen.
        "lanes": {"slow": {"wait_bound_s": 60}, "fast": {"wait_bound_s": 60}},
        "timeouts": {"no_replica_wait_s": 60},
        "fleet": {
            "kind": "processes",
            # Everything here is some ten times quicker than in earnest: so are cold starts, so are cooldowns.
            "scale": {"forecast": False, "queue_per_replica": 0.1, "up_cooldown_s": 6, "down_cooldown_s": 60, **scale},
            "emulate": {"profile": PROFILE, "dilate": DILATE, "cold_start_s": COLD_START_S, "slots": SLOTS},
        },
    }


# -- the pieces ---------------------------------------------------------------------------------------------------


def step() -> Figures:
    """1× → 4×: without a warm pool, and with one."""
    found: Figures = {}
    for name, scale in (("cold", {"min": 1, "max": 4}), ("warm", {"min": 1, "max": 4, "warm": 3})):
        with gateway(emulated(**scale)) as here:
            here.until({"serving": 1, "parked": scale.get("warm", 0)})
            due = arrivals([(RATE, STEADY_S), (4 * RATE, STEP_S + AFTER_S)], SEED)
            shots = asyncio.run(play(here.url, due, CHAT, SEED))
            found[name] = _around_a_step(shots, STEADY_S, STEP_S) | {"decisions": _decisions(here)}
    found["step_over_steady"] = found["warm"]["step_p99_s"] / found["warm"]["steady_p99_s"]
    found["passed"] = found["step_over_steady"] <= STEP_BOUND and found["warm"]["failed"] == 0
    return found


def middle(runs: list[Figures]) -> Figures:
    """The one of several steps whose p99 rose by the median, and what all of them came to: one run has too few
    requests for a steady p99."""
    ordered = sorted(runs, key=lambda run: float(run["step_over_steady"]))
    return {**ordered[len(ordered) // 2], "runs": [run["step_over_steady"] for run in ordered]}


def real() -> Figures:
    """The real engine, one thread each: 1 → 2 replicas under twice the load, the second parked before."""
    found: Figures = {}
    steady_s, step_s = 25.0, 25.0
    for name, scale in (("cold", {"min": 1, "max": 2}), ("warm", {"min": 1, "max": 2, "warm": 1})):
        config = emulated(**scale)
        config["fleet"]["emulate"] = None
        config["embedded"] = {"slots": 3, "context": 1024, "threads": 1}
        with gateway(config) as here:
            here.until({"serving": 1, "parked": scale.get("warm", 0)})
            due = arrivals([(REAL_RATES[0], steady_s), (REAL_RATES[1], step_s)], SEED)
            shots = asyncio.run(play(here.url, due, REAL, SEED))
            found[name] = _around_a_step(shots, steady_s, step_s) | {"decisions": _decisions(here)}
            found[name]["serving"] = sum(state in ("serving", "ramping") for state in here.states().values())
            found[name]["cold_starts"] = here.ask("/admin/fleet")["cold_starts"]
    found["passed"] = all(found[name]["failed"] == 0 and found[name]["serving"] == 2 for name in ("cold", "warm"))
    return found


def zero() -> Figures:
    """To zero on purpose, with the command for it, and what the next request pays."""
    from headgate.cli import fleet_client

    with gateway(emulated(min=1, max=2)) as here:
        here.until({"serving": 1})
        figures = fleet_client.zero(here.url, None, None, requests=10, patience_s=60.0)
        kept = here.ask("/admin/fleet")["baseline"]
    return {"baseline": figures, "kept": kept == figures, "passed": figures["cold_ttft_s"] > COLD_START_S}


def kill() -> Figures:
    """One of three is killed with -9 while streams run."""
    steady_s, rest_s = 12.0, 30.0
    with gateway(emulated(min=3, max=3)) as here:
        here.until({"serving": 3})
        told: Figures = {"seen": []}
        killer = threading.Thread(target=_kill_one, args=(here, steady_s, rest_s, told))
        killer.start()
        shots = asyncio.run(play(here.url, arrivals([(2 * RATE, steady_s + rest_s)], SEED), CHAT, SEED))
        killer.join()
    before_first = [shot for shot in shots if shot.ttft_s is None and not shot.whole]
    told |= {
        "requests": len(shots),
        "errors_before_first_byte": len(before_first),
        "streams_cut": sum(shot.ttft_s is not None and not shot.whole for shot in shots),
        "errors": sorted({shot.error for shot in shots if shot.error}),
        "p99_before_s": percentile([s.ttft_s for s in shots if s.due_s < steady_s and s.ttft_s is not None], 0.99),
        "p99_after_s": percentile([s.ttft_s for s in shots if s.due_s >= steady_s and s.ttft_s is not None], 0.99),
    }
    told["passed"] = not before_first and told["serving_again_s"] is not None and "ramping" in told["seen"]
    return told


def _kill_one(here: Gateway, after_s: float, within_s: float, told: Figures) -> None:
    time.sleep(after_s)
    victim = sorted(here.states())[0]
    os.kill(here.pid(victim), signal.SIGKILL)
    began, told["victim"], told["serving_again_s"] = time.monotonic(), victim, None
    while time.monotonic() - began < within_s:
        state = here.states().get(victim, "gone")
        if not told["seen"] or told["seen"][-1] != state:
            told["seen"].append(state)
        if state == "serving" and len(told["seen"]) > 1:
            told["serving_again_s"] = time.monotonic() - began
            return
        time.sleep(0.05)


def cold() -> Figures:
    """Cold starts by phase, as each engine measures them, and from being asked for to being ready."""
    found: Figures = {}
    for name in ("emulated", "real"):
        config = emulated(min=1, max=1)
        if name == "real":
            config["fleet"]["emulate"] = None
            config["embedded"] = {"threads": 1}
        with gateway(config) as here:
            here.until({"serving": 1})
            while not (starts := here.ask("/admin/fleet")["cold_starts"]):
                time.sleep(0.05)
            found[name] = {"took_s": starts[0]["took_s"], **starts[0]["phases"]}
    found["passed"] = {"process", "weights", "KV", "warm-up"} <= set(found["real"])
    return found


PIECES: dict[str, Callable[[], Figures]] = {"cold": cold, "step": step, "real": real, "zero": zero, "kill": kill}


def _around_a_step(shots: list[Shot], steady_s: float, step_s: float) -> Figures:
    steady = [s.ttft_s for s in shots if s.ttft_s is not None and s.due_s < steady_s]
    during = [s.ttft_s for s in shots if s.ttft_s is not None and steady_s <= s.due_s < steady_s + step_s]
    return {
        "requests": len(shots),
        "failed": sum(not shot.whole for shot in shots),
        "steady_p50_s": percentile(steady, 0.5),
        "steady_p99_s": percentile(steady, 0.99),
        "step_p50_s": percentile(during, 0.5),
        "step_p99_s": percentile(during, 0.99),
        "step_requests": len(during),
    }


def _decisions(here: Gateway) -> list[str]:
    notes = [note for note in here.ask("/admin/fleet")["notes"] if note["kind"] == "decision"]
    return [f"{note['text']} ({note['reasons'][1] if len(note['reasons']) > 1 else ''})" for note in reversed(notes)]


# -- the report ---------------------------------------------------------------------------------------------------


def report(found: Figures) -> str:
    lines = ["# The fleet", "", found["when"], ""]
    if "step" in found:
        lines += ["## Step 1× → 4×, emulated replicas", "", f"Modelled cold start {COLD_START_S:g} s.", ""]
        lines += _step_table(found["step"])
        lines += [
            "",
            f"With the warm pool p99 during the step is {found['step']['step_over_steady']:.2f} × steady "
            f"(bound {STEP_BOUND} ×): {_word(found['step'])}.{_all_runs(found['step'])}",
            "",
        ]
    if "real" in found:
        lines += ["## Step with the real engine, 1 → 2 replicas of one thread", ""]
        lines += [*_step_table(found["real"]), "", f"Both serve in the end: {_word(found['real'])}.", ""]
    if "zero" in found:
        told = ", ".join(f"{name} {value}" for name, value in found["zero"]["baseline"].items())
        lines += ["## To zero on purpose", "", f"{told}: {_word(found['zero'])}.", ""]
    if "kill" in found:
        k = found["kill"]
        lines += [
            "## kill -9 of one of three under load",
            "",
            f"{k['requests']} streams: {k['errors_before_first_byte']} errors before the first byte, "
            f"{k['streams_cut']} cut after it. {k['victim']} went through {', '.join(k['seen'])}; serving again after "
            f"{k['serving_again_s'] or float('nan'):.1f} s. p99 TTFT {k['p99_before_s']:.2f} s before, "
            f"{k['p99_after_s']:.2f} s from then on: {_word(k)}.",
            "",
        ]
    if "cold" in found:
        lines += [
            "## Cold start by phase",
            "",
            "| | process | weights | KV | warm-up | asked to ready |",
            "|---|---|---|---|---|---|",
        ]
        for name in ("emulated", "real"):
            one = found["cold"][name]
            cells = [
                f"{one[phase]:.2f} s" if phase in one else "–" for phase in ("process", "weights", "KV", "warm-up")
            ]
            lines.append(f"| {name} | {' | '.join(cells)} | {one['took_s']:.2f} s |")
        lines.append("")
    return "\n".join(lines)


def _all_runs(found: Figures) -> str:
    runs = found.get("runs", ())
    return f" The middle of {len(runs)} runs: {', '.join(f'{run:.2f} ×' for run in runs)}." if len(runs) > 1 else ""


def _step_table(found: Figures) -> list[str]:
    lines = [
        "| | requests | failed | TTFT p50 steady | p99 steady | p50 in the step | p99 in the step |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, label in (("cold", "without a warm pool"), ("warm", "with one")):
        one = found[name]
        times = [f"{one[key]:.2f} s" for key in ("steady_p50_s", "steady_p99_s", "step_p50_s", "step_p99_s")]
        lines.append(f"| {label} | {one['requests']} | {one['failed']} | {' | '.join(times)} |")
    return lines


def _word(found: Figures) -> str:
    return "passed" if found["passed"] else "**missed**"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=tuple(PIECES), action="append", help="one piece; nothing is kept")
    parser.add_argument("--out", type=Path, help="where to keep the JSON; the Markdown goes beside it")
    parser.add_argument("--steps", type=int, default=3, help="how often the step is run: the middle one is kept")
    chosen = parser.parse_args()
    out = chosen.out or (None if chosen.only else RESULTS / "fleet.json")
    now = datetime.datetime.now(datetime.UTC)
    found: Figures = {
        "when": f"{now:%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    }
    if out is not None and out.exists() and chosen.only:
        found = {**json.loads(out.read_text()), **found}  # the other pieces stay as they were measured
    for name in chosen.only or PIECES:
        began = time.monotonic()
        found[name] = middle([step() for _ in range(chosen.steps)]) if name == "step" else PIECES[name]()
        print(f"{name}: {_word(found[name])}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    text = report(found)
    print(text)
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")
        out.with_suffix(".md").write_text(text)
    sys.exit(0 if all(found[name]["passed"] for name in PIECES if name in found) else 1)


if __name__ == "__main__":
    main()
