"""Draws one-line mutants of what decides, serves and measures, and counts how many of them the tests notice.

    python -m tests.mutants [--seconds 3600] [--part 0/2] [--survivors] [--check]

A verdict is kept in build/mutants/verdicts.jsonl and not sought again while the mutant's line stays as it is, so a run
may be stopped at any time; survivors are judged again with `--survivors`. Mutants that change nothing anyone could
notice are listed in tests/mutants/equivalent.txt, each with the reason. Those that no test noticed when they were first
judged are written to tests/mutants/missed.txt: what tests added since can't flatter. The exit status is 0 if at least
90 % of those that are not equivalent are killed and at most 5 % are equivalent, 1 if not, and 2 while some are not
judged. `--check` judges a second draw, for which no tests are written.
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from tests.mutants.forked import ROOT
from tests.mutants.judge import PACKAGE, TESTS, Judge, Verdict
from tests.mutants.lines import Mutant, candidates, draw

STATE = ROOT / "build" / "mutants" / "verdicts.jsonl"
HERE = Path(__file__).parent
EQUIVALENT = HERE / "equivalent.txt"
MISSED = HERE / "missed.txt"
RESULTS = ROOT / "benchmarks" / "results" / "mutants.md"
SEED, COUNT = 17, 300
CHECK_SEED, CHECK_COUNT = 18, 60
MIN_KILLED = 0.9
MAX_EQUIVALENT = 0.05


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.mutants")
    options.add_argument("--seconds", type=float, default=float("inf"), help="begin no further mutant after this time")
    options.add_argument("--part", default="0/1", help="judge only these: 0/2 and 1/2 may run beside each other")
    options.add_argument("--survivors", action="store_true", help="judge again those that no test noticed")
    options.add_argument("--check", action="store_true", help="judge the second draw")
    options.add_argument("--report", action="store_true", help="judge none; only count and write the results")
    options.add_argument("--note", default="", help="a sentence for the results, such as which sources were judged")
    asked = options.parse_args()
    everything = candidates(PACKAGE, tuple(TESTS))
    drawn = draw(everything, PACKAGE, SEED, COUNT)
    others = draw(everything, PACKAGE, CHECK_SEED, CHECK_COUNT + COUNT)
    check = [one for one in others if one not in drawn][:CHECK_COUNT]
    chosen = check if asked.check else drawn
    seed = CHECK_SEED if asked.check else SEED
    print(f"seed {seed}: {len(chosen)} of {len(everything)} mutants", flush=True)
    known, equivalent = read_verdicts(), read_listed(EQUIVALENT)
    todo = [
        mutant
        for mutant in chosen
        if mutant.id not in equivalent and (mutant.id not in known or (asked.survivors and not known[mutant.id].killed))
    ]
    part, parts = map(int, asked.part.split("/"))
    if todo and not asked.report:
        seek(todo[part::parts], asked.seconds, part)
    return report(len(everything), drawn, check, asked.note)


def seek(todo: list[Mutant], seconds: float, part: int) -> None:
    judge, ends = Judge(part), time.monotonic() + seconds
    for number, mutant in enumerate(todo, start=1):
        if time.monotonic() > ends:
            print(f"time is up: {len(todo) - number + 1} are left")
            return
        found = judge.judge(mutant)
        with STATE.open("a", encoding="utf-8") as file:
            line = {"id": mutant.id, "killed": found.killed, "by": found.by, "seconds": round(found.seconds, 1)}
            file.write(json.dumps(line) + "\n")
        if not found.killed and mutant.id not in read_listed(MISSED):
            with MISSED.open("a", encoding="utf-8") as file:
                file.write(f"{mutant.id} {mutant.path}: {mutant.after.strip()}\n")
        told = (
            f"killed by {found.by}" if found.killed else f"SURVIVED  {mutant.text.strip()}  →  {mutant.after.strip()}"
        )
        where = f"{mutant.path}:{mutant.line}"
        print(f"{number}/{len(todo)} {mutant.id} {where} {found.seconds:.0f} s {told}", flush=True)


def report(candidates: int, drawn: list[Mutant], check: list[Mutant], note: str) -> int:
    known, equivalent = read_verdicts(), read_listed(EQUIVALENT)
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
        f"`make mutants`: seed {SEED}, {len(drawn)} of {candidates} one-line mutants of `policy/`, the data path",
        "(`gateway/`, `wire/`, `replica/`) and the figures (`measure/`), judged by the tests of their folders that run",
        "the line (tests/mutants). Bound: 90 % killed of those that are not equivalent, and at most 5 % equivalent.",
        "",
        f"**{total['killed']} of {judged} judged mutants killed: {100 * share:.1f} %.** "
        f"Equivalent: {total['equivalent']}. Not judged yet: {total['not judged']}.",
        f"When first judged, before tests were written for survivors: {first_figure(drawn, known, equivalent)}.",
        f"A second draw, seed {CHECK_SEED}, for which no tests were written (`make mutants ARGS=--check`):",
        f"{first_figure(check, known, {})}; not judged yet: {sum(one.id not in known for one in check)}.",
        "A mutant survives too if the tests that would notice are left out, as all tests of a line may take 75 s,",
        "or run it in a process that is killed before it can say so. Verdicts are kept while lines stay as they are.",
        *([note] if note else []),
        "",
        "| folder | drawn | killed | survived | equivalent | not judged |",
        "|---|---|---|---|---|---|",
    ]
    for room, counts in rooms.items():
        row = [counts[kind] for kind in ("killed", "survived", "equivalent", "not judged")]
        lines.append(f"| `{room}/` | {counts.total()} | {' | '.join(map(str, row))} |")
    lines += listed("Survivors:", survivors)
    lines += listed("Survivors of the second draw:", [one for one in check if one.id in read_listed(MISSED)])
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines[6:10]))
    if total["not judged"]:
        return 2
    return int(share < MIN_KILLED or total["equivalent"] > MAX_EQUIVALENT * len(drawn))


def first_figure(drawn: list[Mutant], known: dict[str, Verdict], equivalent: dict[str, str]) -> str:
    missed = read_listed(MISSED)
    judged = [one for one in drawn if one.id in known and one.id not in equivalent]
    killed = sum(one.id not in missed for one in judged)
    return f"{killed} of {len(judged)} killed, {100 * killed / max(len(judged), 1):.1f} %"


def listed(title: str, mutants: list[Mutant]) -> list[str]:
    if not mutants:
        return []
    rows = [f"| {one.id} | `{one.path}` | `{_cell(one.text)}` | `{_cell(one.after)}` |" for one in sorted(mutants)]
    return ["", title, "", "| mutant | module | line | becomes |", "|---|---|---|---|", *rows]


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|")


def read_verdicts() -> dict[str, Verdict]:
    """By mutant; the last verdict counts."""
    STATE.parent.mkdir(parents=True, exist_ok=True)
    lines = STATE.read_text(encoding="utf-8").splitlines() if STATE.exists() else []
    return {one["id"]: Verdict(one["killed"], one["by"], one["seconds"]) for one in map(json.loads, lines)}


def read_listed(path: Path) -> dict[str, str]:
    """What is said by mutant. A line is `ID text`; others begin with #."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {line.split()[0]: line.partition(" ")[2] for line in lines if line and not line.startswith("#")}


if __name__ == "__main__":
    sys.exit(main())
