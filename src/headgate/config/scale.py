"""How many replicas may a pool have, and what makes it grow or shrink? See policy/scaling/scale.py, which reads it."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleConfig:
    """Of one pool: replicas that can stand in for each other."""

    min: int = 1
    """Fewest that serve. 0 only together with to_zero."""
    max: int = 8
    """Most at once, parked ones included: what there are machines for."""
    warm: int = 0
    """Parked: loaded, warmed and idle, so that taking one into use takes milliseconds. They cost as much as others."""
    utilisation_target: float = 0.65
    """Share of the replicas' room that should be taken. Past it latency begins to bend. Five points less where requests
    come in bursts, five more where they come evenly."""
    queue_per_replica: float = 1.0
    """Requests waiting for each replica that serves above which more are needed at once."""
    tokens_per_replica: int | None = None
    """Outstanding tokens, prompt and output, that fill a replica; None: only requests do."""
    tokens_per_s: float | None = None
    """Tokens, prompt and output, of the requests a second that keep a replica at the target; None: learned."""
    up_cooldown_s: float = 60.0
    """After growing: how long what was added is given to show, before more is started."""
    down_cooldown_s: float = 300.0
    """Fewer only after so long without need of more, and so long after any change."""
    down_share: float = 0.25
    """Most that may go at a time; always at least one."""
    forecast: bool = True
    """Learn how much comes at which hour of which day, and be up before it does."""
    forecast_quantile: float = 0.5
    """Of the days that are remembered, the share that the forecast's floor would have been enough for."""
    ahead_s: float = 120.0
    """The forecast looks ahead by what a start takes and this much more."""
    to_zero: bool = False
    """On purpose: with nobody here for idle_s even the last replica goes, and the next request waits for a start."""
    idle_s: float = 600.0
    """See to_zero."""

    @property
    def least(self) -> int:
        """Fewest that serve while anybody comes."""
        return max(1, self.min)


def contradictions(config: ScaleConfig, path: str) -> Iterator[tuple[str, str]]:
    """(path, what is wrong) for values that are fine alone."""
    if config.min < 1 and not config.to_zero:
        yield f"{path}.min", "expected at least 1, or to_zero: true if the first request may wait for a start"
    if config.to_zero and config.min > 0:
        yield f"{path}.to_zero", f"expected min: 0 with it, got {config.min}"
    if config.max < config.least:
        yield f"{path}.max", f"expected at least {config.least}, which is the fewest that serve"
    elif config.least + config.warm > config.max:
        yield f"{path}.warm", f"expected at most {config.max - config.least}: max includes those that are parked"
