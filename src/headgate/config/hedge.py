"""Configures hedging: sending a request to a second replica because the first has not answered.

policy/dispatch/hedge.py reads these settings.
"""

from dataclasses import dataclass
from typing import Annotated

from headgate.config.hints import BEND, Count, Name, SecondsOrZero, Share, between


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeConfig:
    enabled: bool = False
    """True: a request whose replica is slower than most of its lane is sent to a second replica as well."""
    share: Share = 0.02
    """Share of a lane's requests that may be sent twice."""
    percentile: Share = 0.95
    """Percentile of the lane's time from dispatch to first token after which a request is hedged. For an unstreamed
    answer, 1.5 times that percentile of the time to the whole answer."""
    least_s: SecondsOrZero = 0.05
    """Minimum delay of a hedge: a few milliseconds are not worth a second prefill."""
    least_samples: Annotated[int, between(20, 1000)] = 200
    """First tokens of a lane that must have been seen before its percentile is believed."""
    longest_prompt_tokens: Count = 2048
    """Prompt tokens above which a request is not hedged: a second prefill would cost others more than it could save."""
    most_use: Share = BEND
    """Share of the replicas' room in use from which on no request is hedged. Nor is one while any request waits."""
    lanes: frozenset[Name] = frozenset(("fast", "slow"))
    """Lanes that are hedged: those in which a client waits for the first token."""
