"""Wraps a step of vLLM's scheduler: what Headgate chooses is set before it, and put back after it.

Nothing of vLLM's own `schedule` is copied. An exception in Headgate's part is counted and logged, and the step is
vLLM's own: no request is lost for it.
"""

import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

from headgate.model.clock import Clock, monotonic, wall
from headgate.policy.batching.estimate import StepTime
from headgate.vllm.counters import StepCounters
from headgate.vllm.part import StepPart, StepPlan
from headgate.vllm.settings import GAP_TARGET, batch_config, graph_sizes, log_path, milliseconds, sizes_of
from headgate.vllm.step_lines import StepLines
from headgate.vllm.supported import check_setting
from headgate.vllm.wishes import Mirror

log = logging.getLogger("vllm.headgate")
"""Below vLLM's own logger, so that its handlers show what is said."""

LOGGED = 5
"""Failures that are logged with their trace; further ones are only counted."""

T = TypeVar("T")
R = TypeVar("R")


def part_of(scheduler: Any, counters: StepCounters, clock: Clock = monotonic) -> StepPart:
    """Returns the part for this scheduler of vLLM, set up by the environment. Raises ValueError, OSError or
    UnsupportedVllm, each with what to do."""
    check_setting(scheduler)
    config, path = batch_config(scheduler, os.environ), log_path(os.environ, scheduler.vllm_config)
    lines = None if path is None else StepLines(path, sizes_of(scheduler), clock())
    counters.slots(int(scheduler.max_num_running_reqs))
    return StepPart(
        config,
        StepTime(),
        Mirror(milliseconds(os.environ, GAP_TARGET)),
        counters,
        graph_sizes(scheduler.vllm_config),
        lines,
        chunked=bool(getattr(scheduler.scheduler_config, "enable_chunked_prefill", True)),
    )


class StepHooks:
    """Headgate's part of one scheduler of vLLM."""

    def __init__(self, part: StepPart, clock: Clock = monotonic, wall_clock: Clock = wall) -> None:
        self.part = part
        self.failures = 0
        self._clock = clock
        self._wall = wall_clock

    def schedule(self, scheduler: Any, run: Callable[[], T]) -> T:
        """Runs vLLM's own `schedule` with what the plan sets."""
        plan = self._guarded(lambda: self._planned(scheduler))
        if plan is None:
            return run()
        tokens, slots = scheduler.max_num_scheduled_tokens, scheduler.max_num_running_reqs
        active = getattr(scheduler, "max_num_active_reqs", None)
        scheduler.max_num_scheduled_tokens = plan.budget
        scheduler.running = plan.running
        if plan.left_out:
            scheduler.max_num_running_reqs = slots - len(plan.left_out)
            if active is not None:
                scheduler.max_num_active_reqs = active - len(plan.left_out)
        try:
            output = run()
        finally:
            scheduler.max_num_scheduled_tokens, scheduler.max_num_running_reqs = tokens, slots
            if active is not None:
                scheduler.max_num_active_reqs = active
            scheduler.running = scheduler.running + plan.left_out
        self._guarded(lambda: self.part.sent(scheduler, plan, output, self._clock()))
        return output

    def back(self, scheduler: Any, output: Any) -> None:
        """Takes in that vLLM has taken the tokens of this step."""
        self._guarded(lambda: self.part.back(scheduler, output, self._clock()))

    def _planned(self, scheduler: Any) -> StepPlan | None:
        """Returns the plan, with the queue in its order; None: this step is vLLM's own, as while it is paused."""
        paused = getattr(scheduler, "_pause_state", None)
        if paused is not None and paused.value:
            return None
        plan = self.part.plan(scheduler, self._clock(), self._wall())
        if len(plan.running) + len(plan.left_out) != len(scheduler.running):
            raise RuntimeError("a step was planned that loses running requests")
        if plan.waiting is not None:
            scheduler.waiting.clear()
            scheduler.waiting.extend(plan.waiting)
        return plan

    def _guarded(self, run: Callable[[], R]) -> R | None:
        try:
            return run()
        except Exception as error:  # whatever it is, vLLM goes on without it
            self.failures += 1
            self.part.counts.failed()
            if self.failures <= LOGGED:
                last = "; further ones are only counted" if self.failures == LOGGED else ""
                log.warning(
                    "vLLM's own schedule for one step: %s%s", error or type(error).__name__, last, exc_info=True
                )
            return None
