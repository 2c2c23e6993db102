"""When is a second replica asked because the first has not answered? See policy/dispatch/hedge.py, which reads it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeConfig:
    enabled: bool = False
    """True: a request whose replica takes longer than most of its lane is sent to another as well."""
    share: float = 0.02
    """Of a lane's requests, those that may be sent twice."""
    percentile: float = 0.95
    """Of the lane's times from dispatch to first token, the one that has to pass first."""
    least_s: float = 0.05
    """Never sooner than this: a few milliseconds are not worth a second prefill."""
    least_samples: int = 200
    """First tokens of a lane that have to be seen before its percentile is believed."""
    longest_prompt_tokens: int = 2048
    """A longer prompt is prefilled once: twice would cost others more than it could save."""
    most_use: float = 0.65
    """Share of the replicas' room in use from which on nothing is sent twice. Nor is it while anybody waits."""
    lanes: frozenset[str] = frozenset(("fast", "slow"))
    """Lanes it is done for: those in which somebody waits for the first token."""
