"""Which classes of service are there, and what is each promised?

A lane is a class of service and its queue. The engine uses a lane's deadlines; the gateway also
uses its waiting bound and share.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    name: str
    priority: int
    """0 goes first. Ageing lifts a waiting sequence one priority at a time."""
    ttft_target_s: float
    """The p95 promise for the first token: a sequence's deadline is its arrival plus this."""
    gap_target_s: float
    """The p99 promise for a token after the previous one; the engine sizes prefill chunks to keep it."""


LANES: dict[str, Lane] = {
    lane.name: lane
    for lane in (
        Lane(name="fast", priority=0, ttft_target_s=0.5, gap_target_s=0.2),
        Lane(name="slow", priority=1, ttft_target_s=2.0, gap_target_s=0.2),
        Lane(name="long", priority=2, ttft_target_s=10.0, gap_target_s=0.4),
        Lane(name="batch", priority=3, ttft_target_s=300.0, gap_target_s=2.0),
    )
}
