"""Adds what a reader must know beside a run's figures: the lanes that the server used, the cached share, the loop."""

from headgate.bench.closed import ClosedPlayer
from headgate.bench.player import RunTally
from headgate.report.words import count, percent
from headgate.workload.load import Workload

MUCH = 0.5
"""Share of prompt tokens above which the run measured mostly the prefix cache."""
SHOWN = 12


def lanes(tally: RunTally) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (label, lane), many in sorted(tally.lanes.items()):
        found.setdefault(label, {})[lane] = many
    return found


def facts(tally: RunTally, closed: ClosedPlayer | None) -> dict[str, str]:
    said: dict[str, str] = {}
    if closed is not None:
        said["loop"] = f"closed, {closed.places} at once; every latency counts from when its request was sent"
    used = [f"{label} → {lane} {count(many)}" for label, by in lanes(tally).items() for lane, many in by.items()]
    if used:
        more = f" and {len(used) - SHOWN} more" if len(used) > SHOWN else ""
        said["lanes used"] = ", ".join(used[:SHOWN]) + more
    if tally.cached_tokens and tally.prompt_tokens:
        said["cached"] = f"{percent(tally.cached_tokens / tally.prompt_tokens)} of the prompts' tokens"
    return said


def notes(workload: Workload, tally: RunTally, closed: ClosedPlayer | None) -> list[str]:
    found: list[str] = []
    if closed is not None:
        found.append(
            "a closed loop sends nothing while the server stalls, so a stall is few slow requests; without "
            "--concurrency requests come as they would"
        )
        if closed.left_out:
            found.append(f"the first {count(closed.left_out)} requests began together, and are left out")
    asked = {stream.lane for stream in workload.streams if stream.lane}
    for label, by in lanes(tally).items():
        elsewhere = {lane: many for lane, many in by.items() if lane != label}
        if label in asked and elsewhere:
            where = ", ".join(elsewhere)
            wrong = (
                f"the server put {sum(elsewhere.values())} of {sum(by.values())} requests for lane {label} into {where}"
            )
            found.append(f"{wrong}: a lane that a request names counts only with a trusted key (--key)")
    if asked and tally.sent and not tally.lanes:
        found.append("the server does not say which lane it used: rows are named as the load names them")
    if tally.cached_tokens > MUCH * tally.prompt_tokens:
        found.append(
            "most of the prompts came from the server's prefix cache: if this load does not repeat itself, it was "
            "played before; leave --seed out, or give another"
        )
    return found
