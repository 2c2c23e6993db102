"""How often a new version is judged rightly. Many rollouts, each of up to 20 000 requests, in virtual time.

    python benchmarks/rollout.py [--seeds 400] [--jobs 2] [--write]

The policy is the gateway's own (policy/rollout/rollout.py, policy/rollout/verdict.py), with its default settings; only
requests are made up. A rollout counts as promoted if it gets all requests in the end, after a soak of 24 h during which
harm is still looked for; the verdict itself must come within 20 000 requests. The times of one request:

    TTFT    lognormal, median 150 ms, p99/p50 about 4; one in 200 takes five times as long
    TPOT    lognormal, median 25 ms, p99/p50 about 1.8
    output  lognormal, median 150 tokens, p99/p50 about 5, at most 1 024; end to end is TTFT + TPOT × (output − 1)
    steady      each request by itself
    wandering   both versions share a load that goes up and down, with a memory of some 200 requests
    bursty      besides, each has spells of its own in which its replicas are slower: one each 3 000 requests, 5 to 40
                requests long, e^0.5 times as slow in the mean
    stormy      one such spell each 800 requests

"+20 %" is made in three ways: everything 1.2 times as slow; TTFT only; or only the slowest 5 % of TTFT stretched until
its p99 is 1.2 times what it was, with p95 and everything else unchanged.

Quality: versions that differ in their scores alone. The old one's mean is 0.8; scores are beta-distributed, with a
standard deviation of 0.2 ("judge", of one request in three), or 0 and 1 ("thumbs", of every request).
"""

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from headgate.config.models import CanaryConfig, ModelConfig, QualityConfig, VersionConfig
from headgate.policy.rollout.rollout import Rollout, RolloutStep, Stage
from headgate.policy.rollout.verdict import VersionSample

RESULTS = Path(__file__).resolve().parent / "results"
PER_S = 0.25
"""Requests a second: so that the soak is no shorter than the verdict."""
MOST = 45_000
MEAN_SCORE = 0.8
JUDGED = 1 / 3
"""Share of the answers that a judge scores."""
SPELLS = {"steady": 0.0, "wandering": 0.0, "bursty": 1 / 3000, "stormy": 1 / 800}
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scenario:
    title: str
    weather: str
    how: str = "all"
    """Which figure the factor changes: all, ttft, tail, error, short, mixed; judge, thumbs: the mean score."""
    factor: float = 1.0
    goal: str = ""
    """What must come out in 95 % of cases."""


P99_ONLY = "+20 %: p99 of TTFT only"
SCENARIOS = (
    Scenario("equal", "steady", goal="promoted"),
    Scenario("equal", "wandering", goal="promoted"),
    Scenario("+20 %: everything", "steady", "all", 1.2, "rolled back"),
    Scenario("+20 %: everything", "wandering", "all", 1.2, "rolled back"),
    Scenario("+20 %: TTFT only", "steady", "ttft", 1.2, "rolled back"),
    Scenario("+20 %: TTFT only", "wandering", "ttft", 1.2, "rolled back"),
    Scenario(P99_ONLY, "steady", "tail", 1.2, "rolled back"),
    Scenario(P99_ONLY, "wandering", "tail", 1.2, "rolled back"),
    Scenario("equal", "bursty"),
    Scenario("+20 %: everything", "bursty", "all", 1.2),
    Scenario(P99_ONLY, "bursty", "tail", 1.2),
    Scenario("equal", "stormy"),
    Scenario("+20 %: everything", "stormy", "all", 1.2),
    Scenario(P99_ONLY, "stormy", "tail", 1.2),
    Scenario("−10 %: everything", "steady", "all", 0.9),
    Scenario("+5 %: everything", "steady", "all", 1.05),
    Scenario("+10 %: everything", "steady", "all", 1.1),
    Scenario("+50 %: p99 of TTFT only", "steady", "tail", 1.5),
    Scenario("2 % of requests fail, 0.2 % before", "steady", "error", 0.02),
    Scenario("answers half as long", "steady", "short", 0.5),
    Scenario("quality, judge: equal", "steady", "judge", 1.0, "promoted"),
    Scenario("quality, judge: −5 %", "steady", "judge", 0.95, "rolled back"),
    Scenario("quality, judge: −10 %", "steady", "judge", 0.9, "rolled back"),
    Scenario("quality, thumbs: equal", "steady", "thumbs", 1.0),
    Scenario("quality, thumbs: −5 %", "steady", "thumbs", 0.95, "rolled back"),
    Scenario("quality, thumbs: −10 %", "steady", "thumbs", 0.9, "rolled back"),
)


def waves(rng: np.random.Generator, n: int, keep: float) -> Floats:
    """A wandering load: autoregressive, of unit variance."""
    noise = rng.standard_normal(n) * np.sqrt(1 - keep * keep)
    found = np.empty(n)
    level = 0.0
    for index, step in enumerate(noise.tolist()):
        level = keep * level + step
        found[index] = level
    return found


def slowness(rng: np.random.Generator, n: int, weather: str) -> Floats:
    """Slowness of one version's own replicas, as a logarithm."""
    own = np.zeros(n)
    for begins in rng.integers(0, n, rng.poisson(n * SPELLS[weather])):
        own[begins : begins + rng.integers(5, 40)] += rng.exponential(0.5)
    return own


def first_tokens(rng: np.random.Generator, n: int, load: Floats) -> Floats:
    rare = np.where(rng.random(n) < 1 / 200, 5.0, 1.0)
    times: Floats = 0.15 * np.exp(0.6 * rng.standard_normal(n) + load) * rare
    return times


@cache
def tail(weather: str) -> tuple[float, float]:
    """p95 and p99 of TTFT, from a million requests."""
    rng, n = np.random.default_rng(1), 1_000_000
    load = slowness(rng, n, weather) + (0.3 * waves(rng, n, 0.995) if weather != "steady" else 0.0)
    p95, p99 = np.quantile(first_tokens(rng, n, load), (0.95, 0.99))
    return float(p95), float(p99)


class Traffic:
    """What both versions would make of the same requests."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        rng = np.random.default_rng([seed, abs(hash_of(scenario))])
        n, weather = MOST, scenario.weather
        shared = 0.3 * waves(rng, n, 0.995) if weather != "steady" else np.zeros(n)
        self.draw = rng.random(n).tolist()
        self.sides = [self._side(rng, n, shared, scenario, canary) for canary in (False, True)]
        self.scores = [scores(rng, n, scenario, canary) for canary in (False, True)]

    def _side(
        self, rng: np.random.Generator, n: int, shared: Floats, scenario: Scenario, canary: bool
    ) -> tuple[list[Any], ...]:
        how, factor = scenario.how if canary else "", scenario.factor
        load = shared + slowness(rng, n, scenario.weather)
        ttft = first_tokens(rng, n, load)
        tpot = 0.025 * np.exp(0.25 * rng.standard_normal(n) + 0.5 * load)
        output = np.clip(rng.lognormal(np.log(150), 0.7, n) * (factor if how == "short" else 1.0), 2, 1024).astype(int)
        if how in ("all", "ttft"):
            ttft = ttft * factor
        if how == "all":
            tpot = tpot * factor
        if how == "tail":
            p95, p99 = tail(scenario.weather)
            power = np.log(factor * p99 / p95) / np.log(p99 / p95)
            ttft = np.where(ttft > p95, p95 * (ttft / p95) ** power, ttft)
        failed = rng.random(n) < (factor if how == "error" else 0.002)
        whole = ttft + tpot * (output - 1)
        return ttft.tolist(), tpot.tolist(), whole.tolist(), output.tolist(), failed.tolist()

    def sample(self, index: int, canary: bool) -> VersionSample:
        ttft, tpot, whole, output, failed = self.sides[canary]
        if failed[index]:
            return VersionSample(canary, failed=True)
        return VersionSample(canary, ttft[index], tpot[index], whole[index], 0.0, output[index], False)


def scores(rng: np.random.Generator, n: int, scenario: Scenario, canary: bool) -> list[float]:
    """The score of each answer; NaN: it gets none."""
    mean = MEAN_SCORE * (scenario.factor if canary else 1.0)
    if scenario.how == "thumbs":
        return [float(draw < mean) for draw in rng.random(n)]
    if scenario.how != "judge":
        return []
    found = rng.beta(3 * mean, 3 * (1 - mean), n)
    return [float(score) for score in np.where(rng.random(n) < JUDGED, found, np.nan)]


def hash_of(scenario: Scenario) -> int:
    return sum(ord(letter) * 31**place % 1_000_003 for place, letter in enumerate(f"{scenario}"))


@dataclass(frozen=True)
class Run:
    end: str
    decided: int
    """Requests until the verdict."""
    harmed: int
    """Requests that the new version had by then."""
    reason: str


def roll_out(scenario: Scenario, seed: int) -> Run:
    config = ModelConfig(
        name="chat",
        versions=(VersionConfig(name="old", model="a", weight=1), VersionConfig(name="new", model="b")),
        canary=CanaryConfig(quality=QualityConfig() if scenario.how in ("judge", "thumbs") else None),
    )
    rollout, traffic = Rollout(config), Traffic(scenario, seed)
    assert isinstance(rollout.start("new", "canary", None, 1.0), RolloutStep)
    decided = had = had_then = 0
    for index in range(MOST):
        canary = traffic.draw[index] < rollout.share
        had += canary
        rollout.take(traffic.sample(index, canary))
        if traffic.scores[canary] and not np.isnan(score := traffic.scores[canary][index]):
            rollout.score(canary, score)
        step = rollout.look(1.0 + index / PER_S)
        if step is None:
            continue
        if not decided and rollout.stage is not Stage.CANARY:
            decided, had_then = index + 1, had
        if rollout.stage in (Stage.PROMOTED, Stage.ROLLED_BACK):
            unsure = "not enough evidence" in step.reason
            proven = "during the soak" if decided != index + 1 else "on evidence"
            end = "promoted" if rollout.stage is Stage.PROMOTED else f"rolled back, {'unsure' if unsure else proven}"
            return Run(end, decided, had_then, rollout.history[-1].reason.partition(":")[0])
    raise RuntimeError(f"{scenario} did not end within {MOST} requests")


def measure(scenario: Scenario, seeds: int, jobs: ProcessPoolExecutor) -> dict[str, Any]:
    runs = list(jobs.map(partial(roll_out, scenario), range(seeds), chunksize=5))
    ends = Counter(run.end for run in runs)
    promoted = ends["promoted"]
    right = promoted if scenario.goal == "promoted" else seeds - promoted
    low, high = wilson(right, seeds)
    return {
        "title": scenario.title,
        "weather": scenario.weather,
        "goal": scenario.goal,
        "seeds": seeds,
        "promoted": promoted / seeds,
        "on_evidence": ends["rolled back, on evidence"] / seeds,
        "in_soak": ends["rolled back, during the soak"] / seeds,
        "unsure": ends["rolled back, unsure"] / seeds,
        "right_low": low,
        "right_high": high,
        "decided_p50": int(np.median([run.decided for run in runs])),
        "decided_most": max(run.decided for run in runs),
        "had_p50": int(np.median([run.harmed for run in runs])),
        "reasons": Counter(run.reason for run in runs).most_common(3),
        "kept": not scenario.goal or right >= 0.95 * seeds,
    }


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    share = hits / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * float(np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)))
    return max(0.0, middle - half), min(1.0, middle + half)


HEAD = (
    "new version", "traffic", "promoted", "rolled back: proven", "in the soak", "not enough evidence",
    "verdict after", "of them its own", "goal 95 %",
)  # fmt: skip


def row(found: dict[str, Any]) -> list[str]:
    goal = found["goal"]
    interval = f"{found['right_low']:.1%}–{found['right_high']:.1%}"
    return [
        found["title"],
        found["weather"],
        *(f"{found[name]:.1%}" for name in ("promoted", "on_evidence", "in_soak", "unsure")),
        f"{found['decided_p50']:,}".replace(",", " "),
        f"{found['had_p50']:,}".replace(",", " "),
        f"{goal} {'✓' if found['kept'] else '✗'} {interval}" if goal else "",
    ]


def table(rows: list[list[str]]) -> str:
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="scenarios whose title has this in it")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}/rollout.json and .md")
    options = parser.parse_args()
    began = time.monotonic()
    found = []
    with ProcessPoolExecutor(options.jobs) as jobs:
        for scenario in SCENARIOS:
            if options.only in scenario.title:
                seeds = options.seeds if scenario.goal else max(10, options.seeds // 2)
                found.append(measure(scenario, seeds, jobs))
                print(" | ".join(row(found[-1])), found[-1]["reasons"], flush=True)
    print(f"\n{table([row(one) for one in found])}\n\n{time.monotonic() - began:.0f} s")
    if options.write:
        what = __doc__.partition("The policy is")[2] if __doc__ else ""
        (RESULTS / "rollout.json").write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "rollout.md").write_text(REPORT.format(table=table([row(one) for one in found]), what=what.strip()))
    sys.exit(0 if all(one["kept"] for one in found) else 1)


REPORT = """# Is a new version judged rightly?

`python benchmarks/rollout.py --write`: rollouts in virtual time, by the gateway's own policy with its default settings.

{table}

Rolled back are all that are not promoted: on evidence, during the soak, or because nothing was proven within 20 000
requests (`when_unsure: rollback`). "verdict after" and "of them its own" are medians: all requests, and those the new
version had, until it was clear. The last column has the interval (Wilson, 95 %) of the share that came out as it must.

What it can't do: a p99 that alone is 20 % worse shows in one request of a hundred. In 20 000 requests that is seldom
proof, so such a version is mostly sent back because it could not be proven fine. The same limit makes equal versions
end without proof where slow spells are many (stormy): more requests (`limit_requests`) help, nothing else does.

The policy is {what}
"""


if __name__ == "__main__":
    main()
