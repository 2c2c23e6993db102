"""Whether a recorded live run replays to the same decisions. Ten minutes of everything, then `headgate replay`.

Four emulated replicas behind a gateway with `--event-log`; three tenants, one of them with tight limits; short
interactive, long and batch requests in their lanes; clients that hang up in the middle; a replica that is killed and
comes back; the config changed twice while it runs, the second time with a replica less. Then a fresh dispatcher lives
through the log. That it would notice is shown too: with one decision of the log changed, it must say where.

It needs little of the machine (about twenty requests a second), and no quiet one: what is compared is no time.
"""

import argparse
import collections
import hashlib
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

from benchmarks.kit import free_port  # noqa: E402
from benchmarks.local_fleet import Program, engines, gateway, modules  # noqa: E402
from benchmarks.report import Report, Row, Samples, judge, machine, verdict_grid  # noqa: E402
from rich.console import Console  # noqa: E402

REPLICAS = 4
PROFILE = "a100-llama3-8b"
DILATION = 2.0
TENANTS = ("acme", "free", "nightly")
MIX = (
    "chat=poisson:rate=11,prompt=40-400,output=8-40,tenant=acme|free,sessions=40,shared=512;"
    "long=gamma:cv=2,rate=1.2,prompt=2000-9000,output=8-40,tenant=acme;"
    "whole=poisson:rate=3,prompt=100-900,output=4-24,tenant=free,stream=no;"
    "nightly=gamma:cv=3,rate=3,prompt=200-2000,output=16-64,tenant=nightly"
)
HANG_UPS = "gone=poisson:rate=1.5,prompt=50-300,output=400-800,tenant=acme"
HANG_UP_AFTER_S = 0.8


def config(ports: list[int], changed: bool) -> dict[str, Any]:
    tenants: dict[str, Any] = {
        "acme": {"tier": "premium", "weight": 3, "tokens_per_min": 900_000},
        "free": {"requests_per_min": 240 if changed else 330, "max_tokens": 64},
        "nightly": {"default_lane": "batch", "tokens_per_min": 400_000},
    }
    for name, tenant in tenants.items():
        tenant["key_sha256"] = [hashlib.sha256(key_of(name).encode()).hexdigest()]
    return {
        "lanes": {"fast": {"weight": 4 if changed else 8}, "batch": {"hold_above": 0.6 if changed else 0.8}},
        "tenants": tenants,
        "anonymous": {"allowed": False},
        "routing": {"algorithm": "power_of_two" if changed else "balanced", "exploration": 0.02},
        "replicas": [{"url": f"http://127.0.0.1:{port}", "kind": "headgate", "slots": 6} for port in ports],
    }


def key_of(tenant: str) -> str:
    return f"key-of-{tenant}"


def bench(port: int, mix: str, duration_s: float, out: Path, where: Path, *more: object) -> Program:
    keys = [part for tenant in TENANTS for part in ("--key", f"{tenant}={key_of(tenant)}")]
    options = ("--duration", duration_s, "--allow-lag", "--json", out, "--seed", 7, "--no-progress")
    return Program("bench", f"http://127.0.0.1:{port}", "--load", mix, *options, *keys, *more, where=where)


def live(folder: Path, log: Path, seconds: float, where: Path, say: Any) -> None:
    """The run, with all that happens in it."""
    ports, port = [free_port() for _ in range(REPLICAS)], free_port()
    settings = folder / "headgate.yaml"
    settings.write_text(json.dumps(config(ports, False)))  # JSON is YAML
    emulated = ("--emulate", PROFILE, "--dilate", DILATION, "--no-banner")
    with (
        engines(ports, emulated, where) as replicas,
        gateway(port, ("--config", settings, "--event-log", log), where) as served,
    ):
        began = time.monotonic()

        def until(share: float, what: str) -> None:
            time.sleep(max(0.0, began + share * seconds - time.monotonic()))
            say(f"{time.monotonic() - began:4.0f} s: {what}")

        main = bench(port, MIX, seconds, folder / "main.json", where)
        gone = bench(port, HANG_UPS, seconds, folder / "gone.json", where, "--timeout", HANG_UP_AFTER_S)
        try:
            until(0.2, "a replica is killed")
            replicas[1].kill()
            until(0.35, "it is started again")
            replicas[1].revive()
            until(0.5, "another config")
            settings.write_text(json.dumps(config(ports, True)))
            served.signal(signal.SIGHUP)
            until(0.6, "another replica is killed, and started again")
            replicas[2].kill()
            replicas[2].revive()
            until(0.75, "the first config again, with a replica less")
            settings.write_text(json.dumps(config(ports[:-1], False)))
            served.signal(signal.SIGHUP)
            until(1.0, "the load ends")
            main.finished(60)
            gone.finished(60)
        finally:
            main.stop()
            gone.stop()


def ingredients(log: Path) -> dict[str, float]:
    """What was in it."""
    found: collections.Counter[str] = collections.Counter()
    times: list[float] = []
    retried: set[str] = set()
    with log.open("rb") as lines:
        next(lines)
        for line in lines:
            now, event, fields, commands = json.loads(line)
            times.append(now)
            found[event] += 1
            if event == "ended":
                found[f"ended: {fields['outcome']}"] += 1
            for name, answer in commands:
                found[name] += 1
                if name == "refuse":
                    found[f"refused: {answer['outcome']}"] += 1
                elif answer["attempt"] > 1:
                    retried.add(answer["request_id"])
    made = {name: float(count) for name, count in sorted(found.items())}
    return {**made, "events": float(len(times)), "seconds": times[-1] - times[0], "sent again": float(len(retried))}


def replayed(log: Path, where: Path) -> tuple[int, str]:
    program = Program("replay", log, where=where)
    said = program.finished(600)
    return program.process.returncode, said.strip()


def tampered(log: Path, out: Path) -> int:
    """The log with one dispatch in the middle sent elsewhere; its line, counted from 1."""
    lines = log.read_bytes().splitlines(keepends=True)
    for number in range(len(lines) // 2, len(lines)):
        now, event, fields, commands = json.loads(lines[number])
        if commands and commands[0][0] == "dispatch":
            commands[0][1]["replica_id"] = "elsewhere"
            lines[number] = json.dumps((now, event, fields, commands)).encode() + b"\n"
            out.write_bytes(b"".join(lines))
            return number + 1
    raise SystemExit("nothing was dispatched in the second half of the run")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=610.0)
    parser.add_argument("--keep-log", type=Path, help="where the event log is kept; else it is thrown away")
    parser.add_argument("--out", type=Path, help="where to keep the result; else results/replay.json, of a full run")
    args = parser.parse_args()
    console, where = Console(highlight=False), modules()
    with tempfile.TemporaryDirectory(prefix="headgate-replay-") as name:
        folder = Path(name)
        log = args.keep_log or folder / "events.jsonl"
        live(folder, log, args.seconds, where, console.print)
        samples: Samples = {name: [value] for name, value in ingredients(log).items()}
        answers = {build: replayed(log, path) for build, path in {"interpreted": modules(False), "live": where}.items()}
        line = tampered(log, folder / "tampered.jsonl")
        noticed, where_it_is = replayed(folder / "tampered.jsonl", modules(False))
    for build, (code, said) in answers.items():
        samples[f"differences.{build}"] = [float(code != 0)]
        console.print(f"{build}: {said}", soft_wrap=True)
    samples["noticed"] = [float(noticed == 1 and f"(line {line})" in where_it_is)]
    rows = [
        Row("runs that differ, interpreted", "differences.interpreted", None, "≤", 0),
        Row("runs that differ, on the modules of the live run", "differences.live", None, "≤", 0),
        Row("a changed decision is noticed, and where", "noticed", None, "≥", 1),
        Row("seconds recorded", "seconds", None, "≥", 600),
        Row("requests", "arrived", None, "≥", 1000),
        Row("decisions: dispatched", "dispatch", None, "≥", 1000),
        Row("decisions: refused", "refuse", None, "≥", 1),
        Row("… for a tenant's limit", "refused: over_limit", None, "≥", 1),
        Row("clients that hung up", "ended: cancelled", None, "≥", 10),
        Row("attempts that failed", "attempt_failed", None, "≥", 1),
        Row("… and were sent again", "sent again", None, "≥", 1),
        Row("configs taken while it ran", "reconfigured", None, "≥", 2),
        Row("replicas that left", "replica_left", None, "≥", 1),
    ]
    verdicts = [judge(row, samples) for row in rows]
    console.print(verdict_grid(verdicts).table("Replay"))
    facts = {
        **machine(),
        "fleet": f"{REPLICAS} × {PROFILE}, emulated, dilated × {DILATION:g}",
        "load": f"{MIX}; {HANG_UPS}",
    }
    out = args.out or (HERE / "results" / "replay.json" if args.seconds >= 600 else None)
    if out is not None:
        Report("Replay of a live run", "benchmarks/replay.py", facts, verdicts, samples).keep(out)
        console.print(f"wrote {out}")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
