"""The scheduler class that vLLM loads: `vllm serve MODEL --scheduler-cls headgate.vllm.scheduler.Scheduler`.

It needs nothing but vLLM's own environment: `pip install --no-deps headgate` there.
"""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue

from headgate.vllm.counters import StepCounters
from headgate.vllm.hooks import StepHooks, log, part_of
from headgate.vllm.part import ASIDE
from headgate.vllm.supported import check, version

REMARK = check(version())
"""What there is to say about this version of vLLM; None: it is one that tests run on."""


class Scheduler(AsyncScheduler):
    """vLLM's own scheduler, with Headgate's choice of chunks, order and victim."""

    policy: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.headgate = StepHooks(part_of(self, StepCounters()))
        if REMARK is not None:
            log.warning(REMARK)
        if self.policy is not SchedulingPolicy.FCFS:
            # Its heap would undo the order. A request's priority still counts: it is the one of its lane.
            self.policy = SchedulingPolicy.FCFS
            for name in ("waiting", *ASIDE):
                if hasattr(self, name):
                    setattr(self, name, create_request_queue(SchedulingPolicy.FCFS))
        log.info("Headgate chooses the steps: %d tokens at most", self.max_num_scheduled_tokens)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        return self.headgate.schedule(self, lambda: super(Scheduler, self).schedule(*args, **kwargs))

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self.headgate.back(self, scheduler_output)
        return outputs
