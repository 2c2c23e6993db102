"""Defines the lanes: the classes of service, each with its queue and its promises.

The engine uses a lane's priority and targets; the gateway also uses its waiting bound, share and limits.
"""

from dataclasses import dataclass
from typing import Final, Literal

WhenSlow = Literal["cancel", "spool"]
WhenLate = Literal["refuse", "relegate"]
WAIT_SHARE: Final = 0.8
"""Share of a promised time to first token that may be spent waiting; the rest is left for prefill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    name: str
    priority: int
    """0 goes first. Ageing lifts a waiting sequence one priority at a time."""
    ttft_target_s: float
    """Promised p95 time to first token. A sequence's deadline is its arrival plus this."""
    gap_target_s: float
    """Promised p99 gap between two tokens. The engine sizes prefill chunks to keep it."""
    wait_bound_s: float
    """Maximum wait in the gateway. A request predicted to wait longer is refused at once; one that has waited this long
    is refused then. Only waiting counts: a request that finds room is served however slow its own prefill."""
    weight: float
    """Relative share of the fleet's capacity while other lanes wait too."""
    queue_limit: int = 1024
    """Maximum requests waiting. A longer queue would only make refusals slower."""
    concurrency: int | None = None
    """Maximum requests of this lane at the replicas at once; None: as many as fit."""
    reserve: float = 0.0
    """Share of the fleet's room that this lane can always get back. Other lanes use it while this one is idle."""
    hold_above: float = 1.0
    """Share of the fleet's room in use above which this lane waits, unless it has less than its weight's share: low
    lanes are held back first, and none starves."""
    when_late: WhenLate = "refuse"
    """What happens to a request that would wait past its bound, or has: "refuse" it, or "relegate" it to the next lane
    by priority, where it waits as one of that lane, and what that lane says holds if it can't be in time there either.
    A client may wish otherwise for its own request."""
    slow_client: WhenSlow = "cancel"
    """What happens when a client does not read: "cancel" ends its generation, "spool" continues it into bounded
    memory."""
    max_tokens: int = 4096
    """Maximum output tokens of one request, whatever it asks for."""
    generation_s: float | None = 60.0
    """Maximum generation time, measured from the first token. On expiry a stream ends with finish_reason "length". For
    an unstreamed answer of an engine other than ours, which does not tell when its first token came, the promised time
    to first token is added and the request fails. None: unlimited."""
    choices_limit: int = 128
    """Maximum answers of one request: n, or best_of, for each of its prompts."""
    inputs_limit: int = 2048
    """Maximum texts of one embeddings request."""
    stops_limit: int = 64
    """Maximum stop sequences of one request. OpenAI's own limit of 4 applies where an engine takes no more."""
    entries_limit: int = 1024
    """Maximum entries of logit_bias, and of engines' own lists of tokens and words."""
    logprobs_limit: int = 20
    """Maximum alternatives reported per token: top_logprobs, and its names in other engines."""
    ttft_p50_s: float | None = None
    """Promised median time to first token; None: not promised. This and the following promises are watched but do not
    steer any decision."""
    ttft_p99_s: float | None = None
    """Promised p99 time to first token; None: not promised. The p95 is ttft_target_s."""
    tpot_p50_s: float | None = None
    """Promised median of the mean time per token after the first; None: not promised. gap_target_s is the p99 of every
    gap."""
    e2e_p95_s: float | None = None
    """Promised p95 time for the whole answer; None: not promised."""
    e2e_p99_s: float | None = None
    """Promised p99 time for a whole answer of up to `e2e_p99_tokens` tokens; None: not promised."""
    e2e_p99_tokens: int = 1000
    """Output tokens up to which e2e_p99_s is promised; longer answers are promised their pace only."""

    def wait_bound_of(self, ttft_s: float | None) -> float:
        """Maximum wait in the gateway of a request that promises its own time to first token; None: it promises none.
        A promise no laxer than the lane's never waits longer than the lane allows, a laxer one never shorter."""
        if ttft_s is None:
            return self.wait_bound_s
        own_s = WAIT_SHARE * ttft_s
        return min(self.wait_bound_s, own_s) if ttft_s <= self.ttft_target_s else max(self.wait_bound_s, own_s)


PROMISES: Final = (
    ("ttft_p50_s", "ttft", 50),
    ("ttft_target_s", "ttft", 95),
    ("ttft_p99_s", "ttft", 99),
    ("tpot_p50_s", "tpot", 50),
    ("gap_target_s", "gap", 99),
    ("gap_target_s", "answer", 95),
    ("e2e_p95_s", "e2e", 95),
    ("e2e_p99_s", "e2e", 99),
)
"""Fields of a lane that promise a percentile, in the order in which people read them: field, figure, percentile. What
the file may set, judges, alerts, `headgate doctor`, /metrics, histogram edges, Prometheus rules, Grafana and the
simulator follow this. Not the row `answer` in the simulator, which has no such figure."""

LANES: dict[str, Lane] = {
    lane.name: lane
    for lane in (
        Lane(
            name="fast", priority=0, ttft_target_s=0.5, gap_target_s=0.2, wait_bound_s=0.4, weight=8, reserve=0.25,
            ttft_p50_s=0.5, ttft_p99_s=2.0, tpot_p50_s=0.08, e2e_p95_s=5.0, e2e_p99_s=30.0,
        ),
        Lane(
            name="slow", priority=1, ttft_target_s=2.0, gap_target_s=0.2, wait_bound_s=2.0, weight=4, reserve=0.125,
            when_late="relegate",
            ttft_p99_s=5.0, tpot_p50_s=0.08, e2e_p99_s=30.0,
        ),
        Lane(
            name="long", priority=2, ttft_target_s=10.0, gap_target_s=0.4, wait_bound_s=8.0, weight=1, hold_above=0.9,
            when_late="relegate",
            ttft_p99_s=20.0, tpot_p50_s=0.08,
        ),
        Lane(
            name="batch", priority=3, ttft_target_s=300.0, gap_target_s=2.0, wait_bound_s=240.0, weight=1,
            hold_above=0.8, ttft_p99_s=300.0,
        ),
    )
}  # fmt: skip
"""The default lanes. Configuration may change every field."""
