"""Draws one-line mutants of what decides, serves and measures, and counts how many of them the tests notice.

    python -m tests.mutants [--seed 17] [--count 300] [--seconds 3600] [--quick] [--survivors]

A verdict is kept in build/mutants/verdicts.jsonl and not sought again while the mutant's line stays as it is, so a run
may be stopped at any time; survivors are judged again with `--survivors`. Mutants that change nothing anyone could
notice are listed in tests/mutants/equivalent.txt, each with the reason. The exit status is 0 if at least 90 % of the
others are killed and at most 5 % are equivalent, 1 if not, and 2 while some are not judged.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from tests.mutants.judge import PACKAGE, ROOT, TESTS, Judge, Verdict
from tests.mutants.lines import Mutant, candidates, draw

STATE = ROOT / "build" / "mutants" / "verdicts.jsonl"
EQUIVALENT = Path(__file__).parent / "equivalent.txt"
RESULTS = ROOT / "benchmarks" / "results" / "mutants.md"
MIN_KILLED = 0.9
MAX_EQUIVALENT = 0.05


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.mutants")
    options.add_argument("--seed", type=int, default=17)
    options.add_argument("--count", type=int, default=300)
    options.add_argument("--seconds", type=float, default=float("inf"), help="begin no further mutant after this time")
    options.add_argument("--survivors", action="store_true", help="judge again those that no test noticed")
    options.add_argument("--quick", action="store_true", help="by the nearest tests only; --survivors asks the others")
    options.add_argument("--report", action="store_true", help="judge none; only count and write the results")
    asked = options.parse_args()
    everything = candidates(PACKAGE, tuple(TESTS))
    drawn = draw(everything, PACKAGE, asked.seed, asked.count)
    print(f"seed {asked.seed}: {len(drawn)} of {len(everything)} mutants", flush=True)
    known, equivalent = read_verdicts(), read_equivalent()
    todo = [
        mutant
        for mutant in drawn
        if mutant.id not in equivalent and (mutant.id not in known or (asked.survivors and not known[mutant.id].killed))
    ]
    if todo and not asked.report:
        seek(todo, known, asked.seconds, 1 if asked.quick else 2)
    return report(asked.seed, len(everything), drawn, known, equivalent)


def seek(todo: list[Mutant], known: dict[str, Verdict], seconds: float, rounds: int) -> None:
    os.nice(19 - os.nice(0))
    judge, ends = Judge(rounds), time.monotonic() + seconds
    for number, mutant in enumerate(todo, start=1):
        if time.monotonic() > ends:
            print(f"time is up: {len(todo) - number + 1} are left")
            return
        found = known[mutant.id] = judge.judge(mutant)
        with STATE.open("a", encoding="utf-8") as file:
            line = {"id": mutant.id, "killed": found.killed, "by": found.by, "seconds": round(found.seconds, 1)}
            file.write(json.dumps(line) + "\n")
        told = (
            f"killed by {found.by}" if found.killed else f"SURVIVED  {mutant.text.strip()}  →  {mutant.after.strip()}"
        )
        where = f"{mutant.path}:{mutant.line}"
        print(f"{number}/{len(todo)} {mutant.id} {where} {found.seconds:.0f} s {told}", flush=True)


def report(
    seed: int, candidates: int, drawn: list[Mutant], known: dict[str, Verdict], equivalent: dict[str, str]
) -> int:
    rooms: dict[str, Counter[str]] = {room: Counter() for room in TESTS}
    survivors = []
    for mutant in drawn:
        verdict = known.get(mutant.id)
        kind = "not judged" if verdict is None else "killed" if verdict.killed else "survived"
        kind = "equivalent" if mutant.id in equivalent else kind
        rooms[mutant.path.split("/")[0]][kind] += 1
        if kind == "survived":
            survivors.append(mutant)
    total = sum(rooms.values(), Counter[str]())
    judged = total["killed"] + total["survived"]
    share = total["killed"] / judged if judged else 0.0
    lines = [
        "# Mutants",
        "",
        f"`make mutants`: seed {seed}, {len(drawn)} of {candidates} one-line mutants of `policy/`, the data path",
        "(`gateway/`, `wire/`, `replica/`) and the figures (`measure/`), judged by the tests of their folders",
        "(tests/mutants). Bound: 90 % killed of those that are not equivalent, and at most 5 % equivalent.",
        "",
        f"**{total['killed']} of {judged} judged mutants killed: {100 * share:.1f} %.** "
        f"Equivalent: {total['equivalent']}. Not judged yet: {total['not judged']}.",
        f"At first judgement, before tests were written for survivors: {first_figure(equivalent)} killed. With",
        "`--quick` a mutant is judged by the six nearest test files only, and some survivors may be killed by others.",
        "",
        "| folder | drawn | killed | survived | equivalent | not judged |",
        "|---|---|---|---|---|---|",
    ]
    for room, counts in rooms.items():
        row = [counts[kind] for kind in ("killed", "survived", "equivalent", "not judged")]
        lines.append(f"| `{room}/` | {counts.total()} | {' | '.join(map(str, row))} |")
    if survivors:
        lines += ["", "Survivors:", "", "| mutant | module | line | becomes |", "|---|---|---|---|"]
        lines += [
            f"| {one.id} | `{one.path}` | `{_cell(one.text)}` | `{_cell(one.after)}` |" for one in sorted(survivors)
        ]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines[6:7]))
    if total["not judged"]:
        return 2
    return int(share < MIN_KILLED or total["equivalent"] > MAX_EQUIVALENT * len(drawn))


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|")


def read_verdicts() -> dict[str, Verdict]:
    """By mutant; the last verdict counts."""
    STATE.parent.mkdir(parents=True, exist_ok=True)
    lines = STATE.read_text(encoding="utf-8").splitlines() if STATE.exists() else []
    return {one["id"]: Verdict(one["killed"], one["by"], one["seconds"]) for one in map(json.loads, lines)}


def first_figure(equivalent: dict[str, str]) -> str:
    """How many of all that were ever judged were killed by the tests of that time: what tests added since can't
    flatter."""
    first: dict[str, bool] = {}
    for line in STATE.read_text(encoding="utf-8").splitlines() if STATE.exists() else []:
        one = json.loads(line)
        first.setdefault(one["id"], one["killed"])
    counted = [killed for name, killed in first.items() if name not in equivalent]
    return f"{sum(counted)} of {len(counted)}"


def read_equivalent() -> dict[str, str]:
    """Reasons by mutant. A line is `ID reason`; others begin with #."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return {line.split()[0]: line.partition(" ")[2] for line in lines if line and not line.startswith("#")}


if __name__ == "__main__":
    sys.exit(main())
