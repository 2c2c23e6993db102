"""Agents' sessions: twenty turns, 2 000 to 40 000 tokens of context, tool gaps. Is a turn a short request?

    python benchmarks/agents.py            some minutes; writes results/agents.json and .md

Rows are kept in `.bench/agents`, so that `--resume` goes on after an interruption.

In virtual time, step by step, on four emulated H100s. Each run is made three times: as it is; with requests without a
history that are as much work, each as long as the machine takes for that turn's new tokens (which attend to all before
them); and with whole prompts counted, as before prefixes were known (sessions stay with their replica, so that the
engines' caches are as warm). Requests without a history have no long contexts to attend to while they decode beside
others' prompts, which is work, too: the first two are made again on a machine for which that costs nothing.

The bound on TTFT is judged at loads where the contexts of all sessions under way take at most half of the fleet's KV
memory, by arithmetic over the arrivals alone: then a replica with twice its share of the sessions still keeps them.
"""

import argparse
import json
import sys
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import PROFILES, Profile
from headgate.model.outcome import Outcome
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.replicas.prefix_index import NOTHING_CACHED, CacheGuess, PrefixLinks
from headgate.sim.fleet import fleet_of
from headgate.sim.gateway import SimTicket
from headgate.sim.run import run
from headgate.sim.world import World
from headgate.workload.arrival import Arrival
from headgate.workload.load import Workload

LOAD = "agents:rate={},turns=20,prompt=2000-6000,new=500-3000,output=50-300,think=1-10,max_prompt=40000"
RATES, SEEDS, SECONDS, REPLICAS = (0.2, 0.3, 0.5), (21, 22, 23), 180.0, 4
"""Sessions a second; the settings were looked at with seeds 1 to 9."""
INTERACTIVE = ("fast", "slow")
PROFILE = PROFILES["h100-llama3-8b"]
FREE_CONTEXT = replace(PROFILE, cost=replace(PROFILE.cost, per_context=0.0))
"""The same machine, for which contexts cost nothing while it decodes."""
JUDGED_UPTO = 0.5
"""Share of KV memory that contexts may take at their peak where the bound on TTFT is judged."""
FIRST_S, EACH_S = 0.3, 0.01
"""Seconds to a first token, and per further one, for the arithmetic of contexts."""
RESULTS = Path(__file__).resolve().parent / "results" / "agents.json"


@dataclass
class Seen:
    """What became of each turn, and of each session."""

    whole_prompts: bool = False
    turns: list[tuple[float, int, int, str, float | None]] = field(default_factory=list)
    """Arrival, tokens of a prompt that is as much work, output, lane, time to first token (None: no answer)."""
    began: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    def begin(self, world: World, dispatcher: Dispatcher) -> None:
        if self.whole_prompts:
            dispatcher.book.prefixes.guess = nothing  # type: ignore[method-assign]
            dispatcher.book.prefixes.holders = lambda prefix: []  # type: ignore[method-assign]

    def closed(self, ticket: SimTicket, outcome: Outcome, now: float) -> None:
        arrival, first = ticket.arrival, ticket.first_at
        ok = outcome is Outcome.COMPLETED and first is not None
        ttft_s = first - arrival.at_s if ok and first is not None else None
        computed = as_much_work(max(1, arrival.prompt_tokens - ticket.cached), ticket.cached)
        self.turns.append((arrival.at_s, computed, arrival.output_tokens, ticket.request.lane, ttft_s))
        name = arrival.session or ""
        self.began.setdefault(name, arrival.at_s)
        if ok and not arrival.later:
            self.ended[name] = now

    @property
    def p99_s(self) -> float:
        """Over all turns; one without an answer counts as never."""
        return float(
            np.quantile([np.inf if turn[4] is None else turn[4] for turn in self.turns], 0.99, method="higher")
        )

    @property
    def job_p99_s(self) -> float:
        """Duration of whole sessions; one that was given up counts as never."""
        jobs = [self.ended.get(name, np.inf) - began for name, began in self.began.items()]
        return float(np.quantile(jobs, 0.99, method="higher"))

    @property
    def interactive(self) -> float:
        return sum(turn[3] in INTERACTIVE for turn in self.turns) / len(self.turns)


def as_much_work(tokens: int, after: int) -> int:
    """Tokens of a prompt without a history that takes as long as this many after `after` cached ones."""
    cost = PROFILE.cost
    each_s = cost.per_prefill + cost.per_token_beyond
    asked_s = each_s * tokens + cost.per_pair * (2 * after * tokens + tokens * tokens)
    root = sqrt(each_s * each_s + 4 * cost.per_pair * asked_s)
    return max(1, int((root - each_s) / (2 * cost.per_pair) + 0.5))


def nothing(prefix: tuple[bytes, ...], link_tokens: float, prompt_tokens: int, links: PrefixLinks) -> CacheGuess:
    return NOTHING_CACHED


def contexts(arrivals: list[Arrival]) -> float:
    """The share of the fleet's KV memory that the contexts of all sessions under way take at their peak."""
    changes: list[tuple[float, int]] = []
    for arrival in arrivals:
        at, length = arrival.at_s, arrival.prompt_tokens + arrival.output_tokens
        changes.append((at, length))
        at += FIRST_S + EACH_S * arrival.output_tokens
        for turn in arrival.later:
            at += turn.think_s
            changes.append((at, turn.new_tokens + turn.output_tokens))
            length += turn.new_tokens + turn.output_tokens
            at += FIRST_S + EACH_S * turn.output_tokens
        changes.append((at, -length))
    return max(accumulate(change for _, change in sorted(changes))) / (REPLICAS * PROFILE.kv_tokens)


def played(arrivals: list[Arrival], seed: int, whole_prompts: bool = False, profile: Profile = PROFILE) -> Seen:
    seen = Seen(whole_prompts)
    run(GatewayConfig(), arrivals, fleet_of(profile, REPLICAS), seed, onlooker=seen)
    return seen


def measured(rate: float, seed: int) -> dict[str, Any]:
    """One row."""
    arrivals = list(Workload(LOAD.format(rate), duration_s=SECONDS).arrivals(seed))
    ours = played(arrivals, seed)
    work = [Arrival(at, computed, output) for at, computed, output, _, _ in sorted(ours.turns)]
    alone, whole = played(work, seed), played(arrivals, seed, whole_prompts=True)
    free, free_alone = (played(them, seed, profile=FREE_CONTEXT) for them in (arrivals, work))
    return {
        "sessions_per_s": rate,
        "seed": seed,
        "turns": len(ours.turns),
        "contexts_of_kv": contexts(arrivals),
        "interactive": ours.interactive,
        "interactive_whole_prompts": whole.interactive,
        "ttft_p99_s": ours.p99_s,
        "ttft_p99_without_history_s": alone.p99_s,
        "ratio_with_free_contexts": free.p99_s / free_alone.p99_s,
        "job_p99_s": ours.job_p99_s,
        "job_p99_whole_prompts_s": whole.job_p99_s,
    }


def line(made: dict[str, Any]) -> tuple[str, bool]:
    """The row in Markdown, and whether it keeps its bounds."""
    ratio, judged = made["ttft_p99_s"] / made["ttft_p99_without_history_s"], made["contexts_of_kv"] <= JUDGED_UPTO
    good = made["interactive"] >= 0.95 and (not judged or ratio <= 1.2)
    figures = (
        f"{made['sessions_per_s']:g}", made["seed"], made["turns"], f"{made['contexts_of_kv']:.0%}",
        f"{made['interactive']:.1%}", f"{made['interactive_whole_prompts']:.1%}", f"{made['ttft_p99_s']:.2f}",
        f"{made['ttft_p99_without_history_s']:.2f}", f"{ratio:.2f}{'' if judged else ' (not judged)'}",
        f"{made['ratio_with_free_contexts']:.2f}", f"{made['job_p99_s']:.0f}",
        f"{made['job_p99_whole_prompts_s']:.0f}", "pass" if good else "missed",
    )  # fmt: skip
    return f"| {' | '.join(map(str, figures))} |", good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--resume", action="store_true", help="keep rows that are there")
    args = parser.parse_args()
    folder = RESULTS.parents[2] / ".bench" / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    kept, lines, missed = [], [], 0  # on the sources: a compiled class can't be changed
    for rate in args.rates:
        for seed in args.seeds:
            row = folder / f"{rate:g}-{seed}.json"
            if not (args.resume and row.exists()):
                row.write_text(json.dumps(measured(rate, seed)) + "\n")
            kept.append(json.loads(row.read_text()))
            text, good = line(kept[-1])
            missed += not good
            lines.append(text)
            print(text, flush=True)
    if (args.rates, args.seeds) != (list(RATES), list(SEEDS)):
        return 1 if missed else 0
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    head = f"""# Agents' sessions

Written by `benchmarks/agents.py`: `{LOAD}`, {REPLICAS} × h100-llama3-8b, {SECONDS:g} s of sessions, simulated step by
step. Bounds: 95 % of turns in lane fast or slow; p99 TTFT at most 1.2 times that of as much work without a history,
where all contexts under way take at most {JUDGED_UPTO:.0%} of the fleet's KV memory at their peak (by the arrivals
alone). A session without its last answer counts as never done. Free contexts: the same ratio on a machine for which
attending to contexts while decoding costs nothing.

| sessions/s | seed | turns | contexts of KV | interactive | with whole prompts | p99 TTFT, s \
| without history, s | ratio | with free contexts | job p99, s | with whole prompts, s | |
|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|"""
    RESULTS.with_suffix(".md").write_text("\n".join([head, *lines]) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
