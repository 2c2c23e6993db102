"""Bounds the config values of lanes, tiers and replicas.

Their classes are compiled, and a compiled class does not keep the type hints of its fields. All other config classes
have their bounds in their own hints.
"""

from pathlib import Path
from typing import Annotated, Any

from headgate.config.hints import (
    Count,
    CountOrZero,
    HeaderValue,
    Kind,
    Name,
    ReplicaName,
    ReplicaUrl,
    Seconds,
    Share,
    ShareAboveZero,
    Text,
    TierName,
    Weight,
    WeightOrZero,
    between,
)
from headgate.model.lane import PROMISES, Lane, WhenLate, WhenSlow
from headgate.model.replica import Replica
from headgate.model.tier import Tier

BOUNDS: dict[type, dict[str, Any]] = {
    Tier: {
        "name": TierName,
        "weight": Weight,
        "reserve": Share,
        "longest_neighbour": Count | None,
        "max_tokens": Count | None,
    },
    Lane: {
        **dict.fromkeys((field for field, *_ in PROMISES), Seconds | None),
        "name": Name,
        "priority": Annotated[int, between(0, 100)],
        "ttft_target_s": Seconds,
        "gap_target_s": Seconds,
        "wait_bound_s": Seconds,
        "weight": Weight,
        "queue_limit": Count,
        "concurrency": Count | None,
        "reserve": Share,
        "hold_above": ShareAboveZero,
        "when_late": WhenLate,
        "slow_client": WhenSlow,
        "max_tokens": Count,
        "generation_s": Seconds | None,
        "choices_limit": Count,
        "inputs_limit": Count,
        "stops_limit": Count,
        "entries_limit": Count,
        "logprobs_limit": CountOrZero,
        "e2e_p99_tokens": Count,
    },
    Replica: {
        "id": ReplicaName,
        "url": ReplicaUrl,
        "model": Text | None,
        "served_as": Text | None,
        "models": frozenset[Text],
        "kind": Kind | None,
        "priority": bool,
        "slots": Count | None,
        "token_limit": Count | None,
        "weight": Weight,
        "lanes": frozenset[Name],
        "tags": dict[Name, Text],
        "price": WeightOrZero | None,
        "api_key_file": Path | None,
        "headers": dict[Name, HeaderValue],
        "ca": Path | None,
    },
}
"""Type hints with bounds, by class and field. Every field of these classes is listed here."""
