"""A scheduler that hands out a step as vLLM's does, with as much of it as Headgate's part sees, and a driver in virtual
time. With `ahead` it plans a step while the one before it runs, as vLLM does on a GPU.

vLLM's own scheduler is driven by the same steps in tests/vllm/real_scheduler.py.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from headgate.config.engine import BatchConfig
from headgate.policy.batching.estimate import StepTime
from headgate.vllm.hooks import StepHooks
from headgate.vllm.part import StepPart
from headgate.vllm.wishes import Mirror

BLOCK = 16


class Status(Enum):
    WAITING = 1
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 2
    RUNNING = 5
    PREEMPTED = 6
    FINISHED = 7


@dataclass(eq=False)
class Asked:
    """A request as vLLM's scheduler knows it."""

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    arrival_time: float
    sampling_params: Any = None
    priority: int = 0
    status: Status = Status.WAITING
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    spec_token_ids: list[int] = field(default_factory=list)
    has_encoder_inputs: bool = False
    cached: int = 0
    """Prompt tokens that are found in the prefix cache."""
    least: int = 1
    """Tokens below which a chunk of its prompt is refused, as for an image that may not be cut."""
    _all_token_ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._all_token_ids = [0] * self.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        return len(self._all_token_ids)

    @property
    def num_tokens_with_spec(self) -> int:
        return len(self._all_token_ids) + len(self.spec_token_ids)

    def say(self, tokens: int) -> None:
        self._all_token_ids.extend([1] * tokens)


class Counted:
    """Counts what StepCounters would."""

    def __init__(self) -> None:
        self.steps = self.out = self.lowered = self.failures = 0
        self.chunks: list[int] = []
        self.gaps: list[float] = []
        self.errors: list[float] = []

    def planned(self, chunk: int, gap_s: float, left_out: int) -> None:
        self.steps += 1
        self.out += left_out
        self.gaps.append(gap_s)
        self.chunks.append(chunk)

    def back(self, took_s: float, predicted_s: float) -> None:
        self.errors.append(took_s / predicted_s)

    def relegated(self) -> None:
        self.lowered += 1

    def failed(self) -> None:
        self.failures += 1


class MiniVllm:
    """vLLM's scheduler, without its memory manager: blocks are counted only."""

    def __init__(self, tokens: int = 512, seats: int = 8, blocks: int = 10_000, ahead: bool = False) -> None:
        self.running: list[Asked] = []
        self.waiting: deque[Asked] = deque()
        self.requests: dict[str, Asked] = {}
        self.max_num_scheduled_tokens = tokens
        self.max_num_running_reqs = seats
        self.max_num_active_reqs = seats
        self.num_spec_tokens = 0
        self.blocks = blocks
        self.ahead = ahead
        self.whole = False
        """Whether a prompt is let in only if there are blocks for all of it."""
        self.preemptions = 0
        self.kv_cache_manager = self

    def held(self, without: Asked | None = None) -> int:
        return sum(-(-one.num_computed_tokens // BLOCK) for one in self.requests.values() if one is not without)

    @property
    def usage(self) -> float:
        """Share of all blocks; the memory manager, which this is too, has it."""
        return self.held() / self.blocks

    def fits(self, request: Asked, count: int) -> bool:
        return self.held(without=request) - (-(request.num_computed_tokens + count) // BLOCK) <= self.blocks

    def schedule(self) -> Any:
        given: dict[str, int] = {}
        budget, preempted = self.max_num_scheduled_tokens, False
        place = 0
        while place < len(self.running) and budget > 0:
            request = self.running[place]
            count = min(self._wants(request), budget)
            if count < min(request.least, request.num_prompt_tokens - request.num_computed_tokens):
                count = 0
            while count and not self.fits(request, count):
                victim = self.running.pop()
                self._preempt(victim)
                preempted = True
                if victim is request:
                    count = 0
                    break
            if count and request in self.running:
                given[request.request_id] = count
                budget -= count
            if request in self.running:
                place += 1
        aside: list[Asked] = []
        while budget > 0 and self.waiting and not preempted and len(self.running) < self.max_num_active_reqs:
            request = self.waiting[0]
            if request.status is Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
                aside.append(self.waiting.popleft())
                continue
            start = request.cached if request.num_tokens == request.num_prompt_tokens else 0
            count = min(request.num_tokens - start, budget)
            needs = request.num_tokens if self.whole else start + count
            if count < request.least or self.held() - (-needs // BLOCK) > self.blocks:
                break
            self.waiting.popleft()
            request.num_computed_tokens, request.status = start, Status.RUNNING
            self.running.append(request)
            given[request.request_id] = count
            budget -= count
        self.waiting.extendleft(reversed(aside))
        assert sum(given.values()) <= self.max_num_scheduled_tokens
        assert len(self.running) <= self.max_num_running_reqs
        for number, count in given.items():
            request = self.requests[number]
            request.num_computed_tokens += count
            if self.ahead and request.num_computed_tokens >= request.num_tokens:
                request.num_output_placeholders += 1
        return SimpleNamespace(
            num_scheduled_tokens=given, total_num_scheduled_tokens=sum(given.values()), scheduled_encoder_inputs={}
        )

    def _wants(self, request: Asked) -> int:
        if request.num_output_placeholders and (
            request.num_computed_tokens + 2 - request.num_output_placeholders
            >= request.num_prompt_tokens + request.max_tokens
        ):
            return 0  # all that it may say is under way
        return request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens

    def _preempt(self, request: Asked) -> None:
        self.preemptions += 1
        request.status = Status.PREEMPTED
        request.num_computed_tokens = request.num_output_placeholders = 0
        self.waiting.appendleft(request)

    def update_from_output(self, output: Any) -> list[Asked]:
        """Returns the requests that got a token."""
        spoke = []
        for number in output.num_scheduled_tokens:
            request = self.requests.get(number)
            if request is None or request.status is not Status.RUNNING:
                continue
            if request.num_computed_tokens >= request.num_tokens:
                request.say(1)
                spoke.append(request)
                if self.ahead:
                    request.num_output_placeholders -= 1
                if request.num_tokens - request.num_prompt_tokens >= request.max_tokens:
                    self.finish(number)
        return spoke

    def finish(self, number: str) -> None:
        request = self.requests.pop(number)
        request.status = Status.FINISHED
        self.running = [one for one in self.running if one is not request]
        if request in self.waiting:
            self.waiting.remove(request)

    def add(self, request: Asked) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)


class WithHeadgate(MiniVllm):
    def __init__(self, clock: Callable[[], float], config: BatchConfig | None = None, **more: Any) -> None:
        super().__init__(**more)
        tokens = self.max_num_scheduled_tokens
        self.counts = Counted()
        self.mirror = Mirror(None)
        config = config or BatchConfig(step_tokens=tokens, chunk_limit=tokens)
        self.part = StepPart(config, StepTime(), self.mirror, self.counts)
        self.hooks = StepHooks(self.part, clock, clock)

    def schedule(self) -> Any:
        return self.hooks.schedule(self, super().schedule)

    def update_from_output(self, output: Any) -> list[Asked]:
        spoke = super().update_from_output(output)
        self.hooks.back(self, output)
        return spoke


class Driver:
    """Runs the steps of a scheduler in virtual time."""

    def __init__(self, step_s: Callable[[int, int], float]) -> None:
        """`step_s`: seconds of a step, from its prompt tokens and its streams."""
        self.now = 100.0
        self.told: dict[str, list[float]] = {}
        self._step_s = step_s
        self._busy_until = 0.0
        self._flying: deque[tuple[float, Any]] = deque()

    def run(self, scheduler: MiniVllm, comes: list[tuple[float, Asked]], until: float = 1e9) -> None:
        due = deque(sorted(comes, key=lambda one: one[0]))
        depth = 2 if scheduler.ahead else 1
        while (due or scheduler.requests or self._flying) and self.now < until:
            while due and due[0][0] <= self.now:
                scheduler.add(due.popleft()[1])
            if scheduler.requests and len(self._flying) < depth:
                output = scheduler.schedule()
                if output.total_num_scheduled_tokens or not self._flying:
                    self._begin(scheduler, output)
                    if len(self._flying) < depth:
                        continue
            if not self._flying:
                self.now = due[0][0]
                continue
            at, output = self._flying.popleft()
            self.now = max(self.now, at)
            while due and due[0][0] <= self.now:  # what came while it ran is in the queue before the next step
                scheduler.add(due.popleft()[1])
            for request in scheduler.update_from_output(output):
                self.told.setdefault(request.request_id, []).append(self.now)

    def _begin(self, scheduler: MiniVllm, output: Any) -> None:
        streams = prompts = 0
        for number, count in output.num_scheduled_tokens.items():
            request = scheduler.requests[number]
            if request.num_computed_tokens - count >= request.num_prompt_tokens:
                streams += 1
            else:
                prompts += count
        self._busy_until = max(self.now, self._busy_until) + (
            self._step_s(prompts, streams) if prompts + streams else 1e-3
        )
        self._flying.append((self._busy_until, output))

    def gaps(self, number: str) -> list[float]:
        told = self.told[number]
        return [later - earlier for earlier, later in pairwise(told)]
