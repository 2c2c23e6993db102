"""Configures hedging: sending a request to a second replica because the first has not answered.

policy/dispatch/hedge.py reads these settings.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeConfig:
    enabled: bool = False
    """True: a request whose replica is slower than most of its lane is sent to a second replica as well."""
    share: float = 0.02
    """Share of a lane's requests that may be sent twice."""
    percentile: float = 0.95
    """Percentile of the lane's time from dispatch to first token after which a request is hedged. For an unstreamed
    answer, 1.5 times that percentile of the time to the whole answer."""
    least_s: float = 0.05
    """Minimum delay of a hedge: a few milliseconds are not worth a second prefill."""
    least_samples: int = 200
    """First tokens of a lane that must have been seen before its percentile is believed."""
    longest_prompt_tokens: int = 2048
    """Prompt tokens above which a request is not hedged: a second prefill would cost others more than it could save."""
    most_use: float = 0.65
    """Share of the replicas' room in use from which on no request is hedged. Nor is one while any request waits."""
    lanes: frozenset[str] = frozenset(("fast", "slow"))
    """Lanes that are hedged: those in which a client waits for the first token."""
