"""Throw nonsense at a running gateway and a running engine, for a while.

    python -m tests.fuzz [--seconds 180] [--seed N] [--kind raw] [--case 17]

Four kinds: raw HTTP, JSON bodies, engines' answers, WebSocket frames. Nothing may answer 500, hang, print a traceback,
end, keep a slot or grow; and requests that are in order are answered meanwhile. Every case follows from the seed and
its number alone, so that one which went wrong can be tried again.
"""

import argparse
import asyncio
import json
import random
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import uvloop

from tests.fuzz.bodies import ask
from tests.fuzz.frames import frames, upgrade
from tests.fuzz.raw import talk
from tests.fuzz.stage import Process, Stage, staged
from tests.fuzz.talking import Unanswered, answers_in, heads_in, judged, post, talked

AT_ONCE, ROUND_S = 64, 12.0
SETTLE_S = 25.0
"""Until everything that was held is back."""
MOST_GROWTH_MB = 32.0
"""From the most in the first third to the least in the last: bodies of 9 MB come and go, and what is remembered of
prompts and sessions fills up. A kilobyte of each case would be more."""
MOST_FAILURES = 20
ORDINARY = b'{"model":"good","stream":true,"messages":[{"role":"user","content":"hello"}]}'


@dataclass(slots=True)
class Run:
    stage: Stage
    seed: int
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    """Seconds of the slowest well-formed request."""

    def rng(self, kind: str, index: int) -> random.Random:
        return random.Random(f"{self.seed}/{kind}/{index}")

    def fail(self, where: str, why: str) -> None:
        self.failures.append(f"{where}: {why}")
        print(f"  WRONG  {self.failures[-1]}", flush=True)

    def port(self, rng: random.Random) -> int:
        return (self.stage.engine if rng.random() < 0.2 else self.stage.gateway).port


# -- the four kinds: each does one case, and returns what came back --------------------------------------------------


async def raw(run: Run, index: int) -> bytes:
    rng = run.rng("raw", index)
    said, port = talk(rng), run.port(rng)
    return await talked(port, said.pieces, said.leaves, says_all=True, pause_s=rng.choice((0.0, 0.0, 0.002)))


async def bodies(run: Run, index: int) -> bytes:
    rng = run.rng("bodies", index)
    said, port = ask(rng), run.port(rng)
    return await talked(port, [post(said.path, said.body)], leaves=rng.random() < 0.05)


async def answers(run: Run, index: int) -> bytes:
    rng = run.rng("answers", index)
    path = rng.choice(("/v1/chat/completions",) * 3 + ("/v1/completions", "/v1/responses", "/v1/embeddings"))
    asked: dict[str, Any] = {
        "model": rng.choice(("odd", "odd", "odd", "worse")),
        "stream": rng.random() < 0.6 and path != "/v1/embeddings",
    }
    words = f"case={index}"
    named = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}.get(path, "input")
    asked[named] = [{"role": "user", "content": words}] if named == "messages" else words
    return await talked(run.stage.gateway.port, [post(path, json.dumps(asked).encode())])


async def sockets(run: Run, index: int) -> bytes:
    rng = run.rng("sockets", index)
    return await talked(
        run.stage.gateway.port, [upgrade(rng), *frames(rng)], says_all=True, pause_s=rng.choice((0.0, 0.01))
    )


KINDS: dict[str, Callable[[Run, int], Awaitable[bytes]]] = {
    "raw": raw, "bodies": bodies, "answers": answers, "sockets": sockets,
}  # fmt: skip


async def tried(run: Run, kind: str, index: int) -> None:
    where = f"{kind} {index}"
    try:
        heard = await KINDS[kind](run, index)
    except Unanswered as error:
        run.fail(where, str(error))
        return
    except OSError as error:
        run.fail(where, f"no connection: {error}")
        return
    try:
        found = heads_in(heard) if kind == "raw" else answers_in(heard)
    except ValueError as error:
        run.fail(where, str(error))
        return
    run.statuses.update([f"{kind} {one.status}" for one in found] or [f"{kind} closed"])
    for wrong in filter(None, map(judged, found)):
        run.fail(where, wrong)


# -- rounds ----------------------------------------------------------------------------------------------------------


async def beside(run: Run) -> None:
    """One who asks properly, again and again, until cancelled."""
    while True:
        began = time.monotonic()
        try:
            (answer,) = answers_in(await talked(run.stage.gateway.port, [post("/v1/chat/completions", ORDINARY)]))
            if answer.status != 200 or b"[DONE]" not in answer.body:
                run.fail("one who asks properly", f"{answer.status} {answer.body[:300]!r}")
        except (Unanswered, OSError, ValueError) as error:
            run.fail("one who asks properly", repr(error))
        run.slowest_s = max(run.slowest_s, time.monotonic() - began)
        await asyncio.sleep(0.1)


async def round_of(run: Run, cases: Callable[[], tuple[str, int] | None], until: float) -> None:
    async def worker() -> None:
        while time.monotonic() < until and len(run.failures) < MOST_FAILURES and (case := cases()):
            await tried(run, *case)

    run.stage.calm(False)
    asking = asyncio.ensure_future(beside(run))
    async with asyncio.TaskGroup() as workers:
        for _ in range(AT_ONCE):
            workers.create_task(worker())
    asking.cancel()
    run.stage.calm(True)


async def settled(run: Run, where: str) -> None:
    """Both processes live, have printed no uncaught exception, and hold nothing."""
    for process in run.stage.processes:
        if wrong := process.wrong():
            run.fail(f"{process.name}, in {where}", f"it printed:\n{wrong}")
        if not process.alive:
            run.fail(
                f"{process.name}, in {where}",
                f"it ended with {process.process.returncode}:\n{process.printed()[-3_000:]}",
            )
            raise SystemExit(ended(run))
    ends = time.monotonic() + SETTLE_S
    while held := await asyncio.to_thread(left_over, run.stage.gateway):
        if time.monotonic() > ends:
            run.fail(f"gateway, after {where}", f"it still holds {held}")
            return
        await asyncio.sleep(0.05)
    real = b'{"model":"real","max_tokens":2,"prompt":"One two three"}'
    try:
        (answer,) = answers_in(await talked(run.stage.engine.port, [post("/v1/completions", real)]))
    except (Unanswered, OSError, ValueError) as error:
        run.fail(f"engine, after {where}", repr(error))
        return
    if answer.status != 200:
        run.fail(f"engine, after {where}", f"{answer.status} {answer.body[:300]!r}")


def left_over(gateway: Process) -> dict[str, int]:
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.port}/admin/ledger", timeout=SETTLE_S) as answer:
        held: dict[str, int] = json.loads(answer.read())
    return {name: number for name, number in held.items() if number}


async def fuzz(seed: int, seconds: float, kinds: list[str], chosen: range | None) -> int:
    async with staged(seed) as stage:
        run = Run(stage, seed)
        if chosen is not None:
            todo = iter([(kind, index) for kind in kinds for index in chosen])
            await round_of(run, lambda: next(todo, None), time.monotonic() + seconds)
            await settled(run, "these cases")
            return ended(run)
        await settled(run, "its start")
        numbers = {kind: count() for kind in kinds}
        turns = random.Random(seed)

        def case() -> tuple[str, int]:
            kind = turns.choice(kinds)
            return kind, next(numbers[kind])

        began, sizes = time.monotonic(), list[tuple[float, float]]()
        for number in count(1):
            await round_of(run, case, time.monotonic() + ROUND_S)
            await settled(run, f"round {number}")
            passed, resident = time.monotonic() - began, stage.gateway.resident_mb()
            sizes.append((passed, resident))
            print(
                f"{passed:5.0f} s: {sum(run.statuses.values())} answers, gateway {resident:.0f} MB, engine "
                f"{stage.engine.resident_mb():.0f} MB, {len(run.failures)} wrong", flush=True,
            )  # fmt: skip
            if passed >= seconds or len(run.failures) >= MOST_FAILURES:
                break
        early = max(size for at, size in sizes if at <= max(seconds / 3, sizes[0][0]))
        late = min(size for at, size in sizes if at >= min(2 * seconds / 3, sizes[-1][0]))
        if late - early > MOST_GROWTH_MB:
            run.fail("gateway", f"it grew from {early:.0f} to {late:.0f} MB")
        return ended(run)


def ended(run: Run) -> int:
    print(", ".join(f"{number} {what}" for what, number in sorted(run.statuses.items())))
    print(f"Those who asked properly waited for at most {run.slowest_s:.2f} s.")
    if not run.failures:
        print(f"Seed {run.seed}: nothing wrong.")
        return 0
    print(f"Seed {run.seed}: {len(run.failures)} wrong. One case again: --seed {run.seed} --kind KIND --case NUMBER")
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=180.0, help="how long (180)")
    parser.add_argument("--seed", type=int, help="the same cases again; one is drawn and printed otherwise")
    parser.add_argument("--kind", choices=sorted(KINDS), action="append", help="only this kind; may be given again")
    parser.add_argument("--case", help="only this case, or those from A to B: 17, 10:20")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    first, _, last = (given.case or "").partition(":")
    chosen = range(int(first), int(last or first) + 1) if first else None
    print(f"Seed {seed}.", flush=True)
    return uvloop.run(fuzz(seed, given.seconds, given.kind or list(KINDS), chosen))


if __name__ == "__main__":
    sys.exit(main())
