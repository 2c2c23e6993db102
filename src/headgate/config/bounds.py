"""Bounds the config values of classes that policies and the simulator use too, and whose own type hints have no
bounds."""

from pathlib import Path
from typing import Annotated, Any

from headgate.config.cluster import KubernetesConfig, RayConfig
from headgate.config.fleet import EmulateConfig, FleetConfig
from headgate.config.hedge import HedgeConfig
from headgate.config.hints import (
    GIGA,
    Count,
    CountOrZero,
    DnsName,
    HeaderValue,
    HttpUrl,
    Kind,
    Name,
    Prompt,
    RedisUrl,
    ReplicaName,
    ReplicaUrl,
    Seconds,
    SecondsOrZero,
    Share,
    ShareAboveZero,
    Text,
    TierName,
    Weight,
    above_zero,
    between,
)
from headgate.config.models import (
    CanaryConfig,
    ModelConfig,
    RuleConfig,
    ShadowConfig,
    VersionConfig,
)
from headgate.config.output import AliasConfig, OutputConfig, TaskConfig
from headgate.config.scale import ScaleConfig
from headgate.config.shared import SharedConfig
from headgate.config.warm import AdapterConfig, WarmConfig
from headgate.model.lane import Lane, WhenSlow
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
        "slow_client": WhenSlow,
        "max_tokens": Count,
        "generation_s": Seconds | None,
        "choices_limit": Count,
        "inputs_limit": Count,
        "stops_limit": Count,
        "entries_limit": Count,
        "logprobs_limit": CountOrZero,
        "ttft_p50_s": Seconds | None,
        "ttft_p99_s": Seconds | None,
        "tpot_p50_s": Seconds | None,
        "e2e_p95_s": Seconds | None,
        "e2e_p99_s": Seconds | None,
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
        "api_key_file": Path | None,
        "headers": dict[Name, HeaderValue],
        "ca": Path | None,
    },
    SharedConfig: {"redis": RedisUrl, "prefix": Name},
    HedgeConfig: {
        "share": Share,
        "percentile": Share,
        "least_s": SecondsOrZero,
        "least_samples": Annotated[int, between(20, 1000)],
        "longest_prompt_tokens": Count,
        "most_use": Share,
        "lanes": frozenset[Name],
    },
    AdapterConfig: {"name": Text, "path": Text},
    WarmConfig: {
        "timeout_s": Seconds,
        "limit_s": SecondsOrZero,
        "longest_tokens": Annotated[int, between(16, 131_072)],
        "system_prompts": tuple[Prompt, ...],
        "keep_alive_s": SecondsOrZero,
    },
    TaskConfig: {"max_tokens": Count, "stop": tuple[Prompt, ...]},
    AliasConfig: {"name": Text, "task": Name, "model": Text | None},
    OutputConfig: {"long_prompt_tokens": Count, "long_prompt_max_tokens": Count},
    ScaleConfig: {
        "min": Annotated[int, between(0, 10_000)],
        "max": Annotated[int, between(1, 10_000)],
        "warm": Annotated[int, between(0, 10_000)],
        "utilisation_target": ShareAboveZero,
        "queue_per_replica": Weight,
        "tokens_per_replica": Count | None,
        "tokens_per_s": Weight | None,
        "up_cooldown_s": SecondsOrZero,
        "down_cooldown_s": SecondsOrZero,
        "down_share": ShareAboveZero,
        "forecast_quantile": ShareAboveZero,
        "ahead_s": SecondsOrZero,
        "idle_s": Seconds,
    },
    FleetConfig: {
        "drain_s": SecondsOrZero,
        "start_s": Seconds,
        "start_limit_s": Seconds,
    },
    KubernetesConfig: {
        "name": DnsName,
        "namespace": DnsName | None,
        "selector": Text | None,
        "port": Annotated[int, between(1, 65_535)],
        "place_s": Seconds,
        "api": HttpUrl | None,
    },
    RayConfig: {
        "address": Text,
        "namespace": Text,
        "cpus": Annotated[float, between(0, 10_000)],
        "gpus": Annotated[float, between(0, 10_000)],
        "resources": dict[Text, Weight],
        "place_s": Seconds,
    },
    EmulateConfig: {
        "profile": Text,
        "dilate": Annotated[float, above_zero(10_000)],
        "cold_start_s": SecondsOrZero,
        "slots": Annotated[int, between(1, 1024)] | None,
        "context": Annotated[int, between(16, GIGA)] | None,
    },
    ModelConfig: {"name": Text, "use": Text | None, "when_full": Text | None, "full_above": ShareAboveZero},
    VersionConfig: {"name": Name, "model": Text, "weight": Annotated[float, between(0, 1_000_000)]},
    CanaryConfig: {
        "steps": tuple[ShareAboveZero, ...],
        "step_requests": Count,
        "min_samples": Count,
        "limit_requests": Count,
        "acceptable": Annotated[float, between(1, 100)],
        "unacceptable": Annotated[float, between(1, 100)],
        "longer": Annotated[float, between(1.01, 100)],
        "error_margin": ShareAboveZero,
        "soak_s": Annotated[float, between(0, 30 * 86_400)],
    },
    ShadowConfig: {"share": ShareAboveZero, "concurrency": Annotated[int, between(1, 10_000)]},
    RuleConfig: {
        "name": Name,
        "use": Text,
        "when_full": Text | None,
        "tasks": frozenset[Name],
        "prompt_tokens_above": CountOrZero | None,
        "prompt_tokens_below": Count | None,
        "headers": dict[Name, Text],
    },
}
"""Type hints with bounds, by class and field. Every field of a class whose module is compiled (hatch_build.py) is
listed here: a compiled class does not keep the types of its fields."""
