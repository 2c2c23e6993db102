"""Defines an Explanation: one request's time, part by part, each with its cause. Picks the part that made it slow."""

from typing import Literal

import msgspec

from headgate.model.outcome import Outcome

Stage = Literal[
    "accept", "queue", "retry", "route", "engine_queue", "prefill", "answer", "decode", "gap", "stalled", "end",
    "unknown",
]  # fmt: skip
"""answer: prefill and decode of an unstreamed answer, where no figure separates the two."""
Kind = Literal[
    "own_prompt", "flood", "queue", "asleep", "long_prefill", "killed_replica", "refused_replica", "cold_replica",
    "eviction", "gave_way", "gc_pause", "loop_lag", "slow_client", "retry", "generation", "ordinary", "unknown",
]  # fmt: skip
"""ordinary: no delay, and not the model's own work either."""
Figures = dict[str, float | str]

MATERIAL = 0.05
"""Share of a request's time below which no part is called the reason for its slowness."""


class Because(msgspec.Struct, frozen=True, gc=False):
    kind: Kind
    who: str = ""
    """The request, tenant or replica that caused it; empty: none."""
    figures: Figures = {}


class Part(msgspec.Struct, frozen=True, gc=False):
    stage: Stage
    at_s: float
    """When the part began, in seconds from the request's arrival. Gaps lie within decode; all other parts follow each
    other."""
    took_s: float
    cause: str
    because: Because
    excess_s: float
    """Seconds beyond the usual. For waiting, all of `took_s`."""


class Explanation(msgspec.Struct, frozen=True, gc=False):
    id: str
    lane: str
    tenant: str
    replica: str | None
    outcome: Outcome
    message: str
    e2e_s: float
    ttft_s: float | None
    parts: tuple[Part, ...]
    """The parts of the request's time; they add up to `e2e_s`."""


def main_part(explanation: Explanation) -> Part:
    """The part that made the request slower than its lane usually is; without one, the longest part. For a request that
    failed, was refused or was given up, the part that shows that."""
    parts, outcome = explanation.parts, explanation.outcome
    telling: tuple[Kind, ...] = ()
    if outcome.kind == "failed":
        telling = ("killed_replica", "refused_replica")
    elif outcome is Outcome.SLOW_CLIENT:
        telling = ("slow_client",)
    elif outcome.kind == "refused":
        return next((part for part in parts if part.stage == "queue"), parts[0])
    told = [part for part in parts if part.because.kind in telling]
    if told:
        return max(told, key=lambda part: part.took_s)
    worst = max(parts, key=lambda part: part.excess_s)
    return worst if worst.excess_s > MATERIAL * explanation.e2e_s else max(parts, key=lambda part: part.took_s)


_WHERE: dict[Stage, str] = {
    "accept": "to arrive: ",
    "queue": "in the queue ",
    "retry": "lost: ",
    "route": "to choose a replica: ",
    "engine_queue": "in the replica's queue: ",
    "prefill": "to the first token: ",
    "answer": "at the replica: ",
    "decode": "for tokens: ",
    "gap": "in one gap: ",
    "stalled": "stalled: ",
    "end": "at the end: ",
    "unknown": "",
}


def headline(explanation: Explanation) -> str:
    """Returns one line for a list: how much time, where, and why."""
    part = main_part(explanation)
    if explanation.outcome.kind == "refused" and explanation.message:
        return f"{explanation.outcome.value}: {explanation.message}"
    line = f"{seconds(part.took_s)} of {seconds(explanation.e2e_s)} {_WHERE[part.stage]}{part.cause}"
    return line if explanation.outcome is Outcome.COMPLETED else f"{explanation.outcome.value}; {line}"


def seconds(value: float) -> str:
    """Formats a duration for people."""
    return f"{value * 1e3:.0f} ms" if value < 0.9995 else f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def many(count: int, noun: str) -> str:
    """1 token, 4 096 tokens."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}".replace(",", " ")
