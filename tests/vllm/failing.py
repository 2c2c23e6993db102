"""Headgate's scheduler, whose part breaks in two of three steps: before vLLM's own, after it, and as tokens come back.

vLLM loads it: `--scheduler-cls failing.Scheduler`.
"""

from typing import Any

from headgate.vllm import scheduler


class Breaks:
    """Breaks at every third call."""

    def __init__(self, whole: Any, first: int) -> None:
        self.whole = whole
        self.calls = first

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self.calls % 3 == 0:
            raise RuntimeError("broken on purpose")
        return self.whole(*args)


class Scheduler(scheduler.Scheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        part: Any = self.headgate.part
        part.plan = Breaks(part.plan, 0)
        part.sent = Breaks(part.sent, 1)
        part.back = Breaks(part.back, 2)
