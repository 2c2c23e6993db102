"""Configures how many replicas a pool may have, and what makes it grow or shrink. policy/scaling/scale.py reads it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from headgate.config.hints import BEND, Count, Seconds, SecondsOrZero, ShareAboveZero, Weight, between


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleConfig:
    """Settings of one pool: replicas that can stand in for each other."""

    min: Annotated[int, between(0, 10_000)] = 1
    """Minimum replicas that serve. 0 only together with to_zero."""
    max: Annotated[int, between(1, 10_000)] = 8
    """Maximum replicas at once, parked ones included: the number of machines there are."""
    warm: Annotated[int, between(0, 10_000)] = 0
    """Parked replicas: loaded, warmed and idle, so that taking one into use takes milliseconds. They cost as much as
    others."""
    sleep_after_s: Seconds | None = None
    """Time after which a parked replica sleeps: it gives its GPU's memory back, and is woken in seconds when the
    forecast or the first waiting request wants it; None: parked replicas stay awake."""
    utilisation_target: ShareAboveZero = BEND
    """Share of the replicas' room that should be in use. Above it latency begins to bend. Up to five points less where
    requests come in bursts, up to five more where they come evenly."""
    queue_per_replica: Weight = 1.0
    """Requests waiting per serving replica above which more replicas are needed at once."""
    tokens_per_replica: Count | None = None
    """Outstanding tokens, prompt and output, that fill a replica; None: only requests count."""
    tokens_per_s: Weight | None = None
    """Tokens per second, prompt and output, that keep a replica at the target; None: learned."""
    up_cooldown_s: SecondsOrZero = 60.0
    """Time after growing before more replicas are started, so that those added can take effect."""
    down_cooldown_s: SecondsOrZero = 300.0
    """Minimum time without need of more replicas, and since any change, before replicas are stopped."""
    down_share: ShareAboveZero = 0.25
    """Maximum share of the replicas stopped at a time; always at least one replica."""
    forecast: bool = True
    """True: learn the demand by hour and weekday, and have replicas ready before it comes."""
    forecast_quantile: ShareAboveZero = 0.5
    """Quantile of the remembered days' demand that the forecast's floor must cover."""
    ahead_s: SecondsOrZero = 120.0
    """Time by which the forecast looks further ahead than a start takes."""
    to_zero: bool = False
    """True: after idle_s without any request even the last replica stops, and the next request waits for a start."""
    idle_s: Seconds = 600.0
    """Idle time after which a pool with to_zero stops its last replica."""

    @property
    def least(self) -> int:
        """Minimum replicas that serve while requests come."""
        return max(1, self.min)


def contradictions(config: ScaleConfig, path: str) -> Iterator[tuple[str, str]]:
    """Yields (path, problem) for values that are valid alone."""
    if config.min < 1 and not config.to_zero:
        yield f"{path}.min", "expected at least 1, or to_zero: true if the first request may wait for a start"
    if config.to_zero and config.min > 0:
        yield f"{path}.to_zero", f"expected min: 0 with it, got {config.min}"
    if config.max < config.least:
        yield f"{path}.max", f"expected at least {config.least}, which is the fewest that serve"
    elif config.least + config.warm > config.max:
        yield f"{path}.warm", f"expected at most {config.max - config.least}: max includes those that are parked"
    if config.sleep_after_s is not None and not config.warm:
        yield f"{path}.sleep_after_s", "expected warm of at least 1 with it: only parked replicas sleep"
