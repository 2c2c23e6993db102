"""Which classes of service are there, and what is each promised?

A lane is a class of service and its queue. The engine uses a lane's priority and targets; the gateway also its waiting
bound, share and limits.
"""

from dataclasses import dataclass
from typing import Literal

WhenSlow = Literal["cancel", "spool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    name: str
    priority: int
    """0 goes first. Ageing lifts a waiting sequence one priority at a time."""
    ttft_target_s: float
    """The p95 promise for the first token: a sequence's deadline is its arrival plus this."""
    gap_target_s: float
    """The p99 promise for a token after the previous one; the engine sizes prefill chunks to keep it."""
    wait_bound_s: float
    """Longest wait in the gateway; a request predicted to wait longer is refused at once, one that has is refused then.
    Only waiting counts: a request that finds room is served however slow its own prefill."""
    weight: float
    """Share of what the fleet can do while other lanes wait too."""
    queue_limit: int = 1024
    """Most requests waiting; more would only make refusals slower."""
    concurrency: int | None = None
    """Most requests of this lane at the replicas at once; None: as many as fit."""
    reserve: float = 0.0
    """Share of the fleet's room that this lane can always get back. While it is idle others use it."""
    hold_above: float = 1.0
    """Share of the fleet's room in use beyond which this lane waits, unless it has less than its weight's share: low
    lanes are held back first, and none starves."""
    slow_client: WhenSlow = "cancel"
    """What happens when a client does not read: its generation is cancelled, or goes on into bounded memory."""
    max_tokens: int = 4096
    """Most output tokens of one request, whatever it asks for."""
    generation_s: float | None = 60.0
    """Longest generation, from the first token on: then it is ended, and what there is is the answer. None: any."""
    choices_limit: int = 128
    """Most answers of one request: n, or best_of, for each of its prompts."""
    inputs_limit: int = 2048
    """Most texts of one request for embeddings."""
    stops_limit: int = 64
    """Most stop sequences; OpenAI's own limit of 4 counts where an engine takes no more."""
    entries_limit: int = 1024
    """Most entries of logit_bias, and of engines' own lists of tokens and words."""
    logprobs_limit: int = 20
    """Most alternatives of each token that are reported: top_logprobs, and whatever engines call it."""
    ttft_p50_s: float | None = None
    """Further promises, watched but not steered by. None: not promised. First token, at the median."""
    ttft_p99_s: float | None = None
    """First token, at p99; the p95 is ttft_target_s."""
    tpot_p50_s: float | None = None
    """Mean time per token after the first, at the median; gap_target_s is the p99 of every gap between two tokens."""
    e2e_p95_s: float | None = None
    """Whole answer, at p95."""
    e2e_p99_s: float | None = None
    """Whole answer of up to `e2e_p99_tokens`, at p99."""
    e2e_p99_tokens: int = 1000
    """Tokens of an answer up to which e2e_p99_s is promised; longer ones are promised their pace only."""


LANES: dict[str, Lane] = {
    lane.name: lane
    for lane in (
        Lane(
            name="fast", priority=0, ttft_target_s=0.5, gap_target_s=0.2, wait_bound_s=0.4, weight=8, reserve=0.25,
            ttft_p50_s=0.5, ttft_p99_s=2.0, tpot_p50_s=0.08, e2e_p95_s=5.0, e2e_p99_s=30.0,
        ),
        Lane(
            name="slow", priority=1, ttft_target_s=2.0, gap_target_s=0.2, wait_bound_s=2.0, weight=4, reserve=0.125,
            ttft_p99_s=5.0, tpot_p50_s=0.08, e2e_p99_s=30.0,
        ),
        Lane(
            name="long", priority=2, ttft_target_s=10.0, gap_target_s=0.4, wait_bound_s=8.0, weight=1, hold_above=0.9,
            ttft_p99_s=20.0, tpot_p50_s=0.08,
        ),
        Lane(
            name="batch", priority=3, ttft_target_s=300.0, gap_target_s=2.0, wait_bound_s=240.0, weight=1,
            hold_above=0.8, ttft_p99_s=300.0,
        ),
    )
}  # fmt: skip
"""The defaults. All of it is config."""
