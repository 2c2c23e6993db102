"""One request's time, part by part, each with its cause; and which of them was the one that made it slow."""

from typing import Literal

import msgspec

from headgate.model.outcome import Outcome

Stage = Literal[
    "accept", "queue", "retry", "route", "engine_queue", "prefill", "answer", "decode", "gap", "stalled", "end",
    "unknown",
]  # fmt: skip
"""answer: prefill and decode of what was not streamed, where nobody says which was which."""
Kind = Literal[
    "own_prompt", "flood", "queue", "long_prefill", "killed_replica", "refused_replica", "cold_replica", "eviction",
    "gave_way",
    "gc_pause", "loop_lag", "slow_client", "retry", "generation", "ordinary", "unknown",
]  # fmt: skip
"""ordinary: nothing held it up, and it is not the model's own work either."""
Figures = dict[str, float | str]

MATERIAL = 0.05
"""Share of a request's time below which nothing is called the reason for its slowness."""


class Because(msgspec.Struct, frozen=True, gc=False):
    kind: Kind
    who: str = ""
    """The request, tenant or replica whose doing it was; empty: nobody's."""
    figures: Figures = {}


class Part(msgspec.Struct, frozen=True, gc=False):
    stage: Stage
    at_s: float
    """When it began, from the request's arrival. Gaps lie within the time of decode; all else follows each other."""
    took_s: float
    cause: str
    because: Because
    excess_s: float
    """How much of it was beyond what is usual. All of it, where it is waiting."""


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
    """They add up to `e2e_s`."""


def main_part(explanation: Explanation) -> Part:
    """What made it slower than its lane usually is; if nothing did, what took longest. What failed, was refused or was
    given up is explained by that."""
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


def main_cause(explanation: Explanation) -> Kind:
    return main_part(explanation).because.kind


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
    """One line for a list: so much of it, where, because of what."""
    part = main_part(explanation)
    if explanation.outcome.kind == "refused" and explanation.message:
        return f"{explanation.outcome.value}: {explanation.message}"
    line = f"{seconds(part.took_s)} of {seconds(explanation.e2e_s)} {_WHERE[part.stage]}{part.cause}"
    return line if explanation.outcome is Outcome.COMPLETED else f"{explanation.outcome.value}; {line}"


def seconds(value: float) -> str:
    """As people say it."""
    return f"{value * 1e3:.0f} ms" if value < 0.9995 else f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def many(count: int, noun: str) -> str:
    """1 token, 4 096 tokens."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}".replace(",", " ")
