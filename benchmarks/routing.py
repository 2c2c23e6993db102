"""Whether choosing a replica costs the same in a large fleet as in a small one.

Every decision is followed by what a real one brings: the chosen replica takes the request, some running ones get their
first token, some end, and now and then a measured speed changes. Conversations come back with a longer prefix.
"""

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from headgate.config.gateway import RoutingConfig
from headgate.config.hints import Algorithm
from headgate.model.replica import Load, Replica
from headgate.model.request import Request
from headgate.policy.replicas.entry import new_entry
from headgate.policy.replicas.index import RouteIndex
from headgate.policy.replicas.prefix_index import PrefixIndex
from headgate.policy.replicas.route import ALGORITHMS, RouteChoice, route

SLOTS = 16
SIZES = (10, 100, 1000)


@dataclass(slots=True)
class Costs:
    """Microseconds of each decision, and of all that comes with one: load changes and prefix memory."""

    decisions: list[float]
    changes: list[float]


def conversations(rng: random.Random, count: int) -> Iterator[Request]:
    """Chats of up to ten turns, many at a time, over five system prompts; a third have a session."""
    systems = [rng.randbytes(16) for _ in range(5)]
    open_chats: list[tuple[bytes, ...]] = [(rng.choice(systems),) for _ in range(count)]
    for number in range(sys.maxsize):
        at = rng.randrange(count)
        chain = open_chats[at]
        chain = (rng.choice(systems),) if len(chain) > 20 else chain
        chain = open_chats[at] = (*chain, rng.randbytes(16), rng.randbytes(16))
        yield Request(
            id=str(number),
            arrived=0.0,
            model="m",
            lane="fast",
            priority=rng.choice((0, 0, 1, 3)),
            prompt_tokens=100 * len(chain),
            max_output=rng.randrange(20, 400),
            wait_until=1.0,
            first_token_by=10.0,
            prefix=chain,
            link_tokens=100.0,
            session=f"session {at}" if at % 3 == 0 else None,
        )


class Traffic:
    """A fleet at about 60 % of its room."""

    def __init__(self, size: int, algorithm: Algorithm, rng: random.Random) -> None:
        self.config = RoutingConfig(algorithm=algorithm)
        self.fleet = RouteIndex({}, ALGORITHMS[algorithm].order)
        self.prefixes = PrefixIndex()
        self.rng = rng
        self.running: deque[tuple[Load, Request]] = deque()
        self.most = int(size * SLOTS * 0.6)
        for number in range(size):
            name = f"replica-{number}"
            entry = self.fleet.entries[name] = new_entry(name)
            self.fleet.add(entry, Load(Replica(id=name, url="http://x", model="m"), limit=float(SLOTS)))
        self.requests = conversations(rng, 8 * size)

    def step(self, costs: Costs) -> None:
        request = next(self.requests)
        start = time.perf_counter()
        choice = route(request, self.fleet, self.prefixes, self.config, 0.0, self.rng)
        chosen = time.perf_counter()
        if isinstance(choice, RouteChoice):
            self.take(self.fleet.loads[choice.replica_id], request)
        self.move_on()
        costs.changes.append((time.perf_counter() - chosen) * 1e6)
        costs.decisions.append((chosen - start) * 1e6)

    def take(self, load: Load, request: Request) -> None:
        load.requests += 1
        load.prefill_tokens += request.prompt_tokens
        self.fleet.changed(load)
        self.prefixes.remember(request, self.fleet.entries[load.id].links, request.tokens)
        self.running.append((load, request))

    def move_on(self) -> None:
        """One first token, and one end where the fleet is as busy as it should be."""
        load, request = self.running[-1]
        load.prefill_tokens -= request.prompt_tokens
        load.decode_tokens += request.max_output
        self.fleet.changed(load)
        if len(self.running) > self.most:
            self.running.rotate(-self.rng.randrange(8))
            load, request = self.running.popleft()
            load.requests -= 1
            load.decode_tokens -= request.max_output
            load.prefill_token_s += 0.1 * (0.0005 * self.rng.uniform(0.8, 1.2) - load.prefill_token_s)
            self.fleet.changed(load)


def measure(algorithm: Algorithm, decisions: int, rounds: int) -> dict[int, dict[str, float]]:
    """Sizes take turns within a round, so that a noisy minute hits all of them."""
    fleets = {size: Traffic(size, algorithm, random.Random(size)) for size in SIZES}
    for size, traffic in fleets.items():
        for _ in range(traffic.most + 10 * size):
            traffic.step(Costs([], []))
    medians: dict[int, list[tuple[float, float]]] = {size: [] for size in SIZES}
    gc.collect()
    gc.freeze()
    for _ in range(rounds):
        for size, traffic in fleets.items():
            costs = Costs([], [])
            for _ in range(decisions):
                traffic.step(costs)
            medians[size].append((statistics.median(costs.decisions), statistics.median(costs.changes)))
    return {
        size: {
            "decision_us": round(statistics.median(one for one, _ in found), 2),
            "changes_us": round(statistics.median(other for _, other in found), 2),
        }
        for size, found in medians.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--decisions", type=int, default=3000, help="per size and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--algorithm", choices=[*ALGORITHMS, "all"], default="balanced")
    parser.add_argument("--json", type=Path, help="where to keep the result")
    args = parser.parse_args()
    names: list[Algorithm] = list(ALGORITHMS) if args.algorithm == "all" else [args.algorithm]
    result = {}
    for name in names:
        figures = measure(name, args.decisions, args.rounds)
        small, large = figures[SIZES[0]], figures[SIZES[-1]]
        ratio = large["decision_us"] / small["decision_us"]
        both = sum(large.values()) / sum(small.values())
        print(f"{name:18}", *(f"{size}: {figures[size]['decision_us']:5.1f} µs" for size in SIZES), end="  ")
        print(f"ratio {ratio:.2f}   changes {small['changes_us']:.1f} → {large['changes_us']:.1f}, both {both:.2f}")
        result[name] = {"sizes": figures, "ratio": round(ratio, 3), "ratio_with_changes": round(both, 3)}
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
