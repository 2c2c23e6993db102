"""Decides what an engine does whose runner has launched a step before it was planned.

Nearly always the plan turns out to be that step, and while the Batcher made it the GPU was computing. Only where
sequences have arrived would the plan add their prompts, and the streams, whose tokens are there, would wait for these
prompts. So what is under way counts as a step of its own, and the arrivals are planned after it.
"""

from typing import Protocol, cast

from headgate.engine.engine import Engine
from headgate.model.step import Step
from headgate.policy.batching.batch import Batcher


class LaunchesAhead(Protocol):
    @property
    def device_s(self) -> float:
        """Seconds that the device computed the latest step."""

    def under_way(self) -> Step | None:
        """Returns the step that was launched before it was planned, with the rows that still run."""


def next_step(runner: LaunchesAhead, batcher: Batcher, now: float) -> Step | None:
    step = runner.under_way() if batcher.waiting else None
    return batcher.plan(now) if step is None else step


class AheadEngine(Engine):
    def plan(self, now: float) -> Step | None:
        return next_step(cast(LaunchesAhead, self.runner), self.batcher, now)

    def step_s(self, seconds: float) -> float:
        # After a pause of this thread a step may be done before it is looked at. Counted as no time, it would teach the
        # Batcher that steps take none, and a fit of the step log likewise.
        return max(seconds, cast(LaunchesAhead, self.runner).device_s)
