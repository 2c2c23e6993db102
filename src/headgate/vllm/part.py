"""Headgate's part of a step of vLLM: sees what vLLM's scheduler holds, asks the policies, and says what to set.

Nothing here changes vLLM's objects; `hooks.py` does. A step is planned while another may still run, which
`policy/batching/ahead.py` accounts for.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate.config.engine import BatchConfig
from headgate.model.sequence import Sequence
from headgate.policy.batching.ahead import StepsAhead
from headgate.policy.batching.chunks import Streams
from headgate.policy.batching.estimate import StepShape, StepTime
from headgate.policy.batching.step_choice import StepChoice, StepChooser, kept_gap_s
from headgate.policy.batching.urgency import least_urgent, treat_as_computed
from headgate.vllm.step_lines import StepLines
from headgate.vllm.wishes import Mirror

REFUSED_FOR = 16
"""Steps for which no prompt is left out for a waiting request that vLLM did not let in, for lack of KV memory or an
adapter's place."""
FULL = 0.95
"""Share of KV memory in use above which no prompt is left out: vLLM would not see it when it looks for one to preempt,
and take a more urgent request instead."""
PLAIN = frozenset({"WAITING", "PREEMPTED"})
"""Statuses of waiting requests that can be scheduled. Others wait for a grammar, for KV of a connector or for input:
they keep their place, and no prompt is left out for them."""
ASIDE = ("kv_holding_waiting", "skipped_waiting")
"""Further queues of some versions, for requests that hold KV for a connector or were passed over. vLLM looks at them
only while a step has tokens left, so the step counts on them, but their order is vLLM's."""


class Counts(Protocol):
    """What is told of the steps."""

    def planned(self, chunk: int, gap_s: float, left_out: int) -> None: ...
    def back(self, took_s: float, predicted_s: float) -> None: ...
    def relegated(self) -> None: ...
    def failed(self) -> None: ...


RECENT = 0.02
"""Weight of the latest step without prompts in the mean of their ratios."""
MOST_RATIO = 5.0


@dataclass(slots=True, eq=False)
class StepPlan:
    """What to set for one step."""

    budget: int
    running: list[Any]
    left_out: list[Any]
    waiting: list[Any] | None
    """The whole queue in its new order; None: it stays as it is."""
    decodes: dict[str, Sequence]
    prefills: dict[str, Sequence]
    """The running prompts that have a part in the step, the most urgent first."""
    entering: dict[str, Sequence]
    chunk: int = 0
    gap_s: float = 0.0


@dataclass(slots=True)
class _Seen:
    """What vLLM's scheduler holds as a step is planned."""

    decodes: list[tuple[Sequence, Any]] = field(default_factory=list)
    prefills: list[Sequence] = field(default_factory=list)
    waiting: list[Sequence] = field(default_factory=list)
    requests: dict[int, Any] = field(default_factory=dict)
    """vLLM's request of each prefilling and waiting Sequence."""
    fixed: set[int] = field(default_factory=set)
    """Waiting Sequences whose place is vLLM's."""
    tokens: int = 0
    """Tokens of the streams, with those that they guessed."""
    context: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """What is kept of a step while it is under way."""

    output: Any
    line: tuple[list[tuple[int, int]], int, int, int] | None
    usual: bool
    """Whether only the model runs in it; images and sound take time that the model of a step does not know."""


class StepPart:
    def __init__(
        self,
        config: BatchConfig,
        step_time: StepTime,
        mirror: Mirror,
        counts: Counts,
        graph_sizes: tuple[int, ...] = (),
        lines: StepLines | None = None,
        chunked: bool = True,
    ) -> None:
        """`chunked`: prompts may be cut; otherwise only the order is chosen, and the budget stays vLLM's."""
        self.config = config
        self.step_time = step_time
        self.ahead = StepsAhead(step_time)
        self.counts = counts
        self._mirror = mirror
        self._chooser = StepChooser(config, step_time, graph_sizes)
        self._lines = lines
        self._chunked = chunked
        self._steps = 0
        self._ratio = 1.0
        """Mean duration of late of a step without prompts, over the predicted one. On a machine that is shared with
        others steps last twice as long as predicted, since the fit goes by relative error."""
        self._sent: dict[int, _Sent] = {}
        """By the identity of vLLM's own object, which it holds."""
        self._refused: dict[int, int] = {}
        """The step until which a waiting sequence counts as refused."""
        self._stuck = False
        """Whether the first prompt got nothing in the step before: vLLM could not cut it as small as that, so the next
        step has the whole budget."""

    # -- before a step ------------------------------------------------------------------------------------

    def plan(self, scheduler: Any, now: float, wall: float) -> StepPlan:
        self._steps += 1
        seen = self._look(scheduler, now, wall)
        at = self.ahead.free_at(now)
        streams, gap_s = self._streams(seen, now, at)
        seats = _seats(scheduler)
        refused = frozenset(self._refused) | seen.fixed
        if seen.prefills and seen.waiting and scheduler.kv_cache_manager.usage > FULL:
            refused |= {sequence.id for sequence in seen.waiting}
        choice = self._chooser.choose(streams, seen.prefills, seen.waiting, seats, at, refused)
        left_out = choice.left_out
        budget = min(self.config.step_tokens, max(1, seen.tokens + choice.chunk))
        if self._stuck or not self._chunked:
            budget, left_out = self.config.step_tokens, []
            self._stuck = False
        decodes = seen.decodes
        if len(decodes) > 1:
            decodes.sort(key=lambda pair: least_urgent(pair[0]))
        requests = seen.requests
        prefills = choice.prefills if left_out else choice.prefills + choice.left_out
        return StepPlan(
            budget=budget,
            running=[request for _, request in decodes] + [requests[one.id] for one in prefills],
            left_out=[requests[one.id] for one in left_out],
            waiting=_in_order(scheduler.waiting, choice, seen),
            decodes={request.request_id: sequence for sequence, request in decodes},
            prefills={requests[one.id].request_id: one for one in prefills},
            entering={requests[one.id].request_id: one for one in choice.entering},
            chunk=budget - seen.tokens,
            gap_s=gap_s,
        )

    def _look(self, scheduler: Any, now: float, wall: float) -> _Seen:
        seen, of = _Seen(), self._mirror.of
        verified = 1 + scheduler.num_spec_tokens
        for request in scheduler.running:
            sequence, computed = of(request, now, wall), request.num_computed_tokens
            sequence.computed = computed
            width = request.num_tokens_with_spec + request.num_output_placeholders - computed
            if width <= verified and computed >= request.num_prompt_tokens:
                width = max(1, width)
                seen.decodes.append((sequence, request))
                seen.tokens += width
                seen.context += width * (computed + width)
            else:
                seen.prefills.append(sequence)
                seen.requests[sequence.id] = request
        self._look_at_waiting(seen, scheduler, now, wall)
        return seen

    def _look_at_waiting(self, seen: _Seen, scheduler: Any, now: float, wall: float) -> None:
        queues = [scheduler.waiting, *[getattr(scheduler, name) for name in ASIDE if hasattr(scheduler, name)]]
        for aside, queue in enumerate(queues):
            for request in queue:
                sequence = self._mirror.of(request, now, wall)
                if sequence.admitted_at is not None or request.num_computed_tokens:
                    sequence.computed = request.num_computed_tokens
                seen.waiting.append(sequence)
                seen.requests[sequence.id] = request
                if aside or request.status.name not in PLAIN:
                    seen.fixed.add(sequence.id)

    def _streams(self, seen: _Seen, now: float, at: float) -> tuple[Streams, float]:
        """Returns what the streams take of a step that begins at `at`, and the shortest gap that it is to keep."""
        if not seen.decodes:
            return Streams(0, 0, float("inf")), 0.0
        count, ahead = len(seen.decodes), self.ahead
        drafted = seen.tokens - count
        alone_s = max(1.0, self._ratio) * self.step_time.predict(StepShape(drafted, count, seen.context))
        due, gap_s = float("inf"), float("inf")
        for sequence, request in seen.decodes:
            last = sequence.last_token_at
            if len(ahead) or last is None:
                last = ahead.last_token_at(request.request_id, at if last is None else last, now)
            kept_s = kept_gap_s(sequence.gap_target_s, alone_s)
            if kept_s < gap_s:
                gap_s = kept_s
            if last + kept_s < due:
                due = last + kept_s
        return Streams(count, seen.context, due - at, drafted), gap_s

    # -- after it -----------------------------------------------------------------------------------------

    def sent(self, scheduler: Any, plan: StepPlan, output: Any, now: float) -> None:
        """Takes in what vLLM made of the plan."""
        given = output.num_scheduled_tokens
        self.counts.planned(
            max(0, output.total_num_scheduled_tokens - len(plan.decodes)), plan.gap_s, len(plan.left_out)
        )
        self._note_entered(scheduler, plan, given, now)
        if not output.total_num_scheduled_tokens:
            return
        prefill = drafts = decodes = context = width_context = 0
        rows: list[tuple[int, int]] = []
        gives = []
        for request_id, count in given.items():
            request = scheduler.requests[request_id]
            end = request.num_computed_tokens  # vLLM has moved it on
            if request_id in plan.decodes:
                decodes += 1
                drafts += count - 1
                context += end
            else:
                prefill += count
                rows.append((end - count, count))
            width_context += count * end
            if end >= len(request._all_token_ids):
                gives.append(request_id)
        shape = StepShape(prefill + drafts, decodes, width_context)
        line = (rows, drafts, decodes, context) if self._lines is not None else None
        usual = not output.scheduled_encoder_inputs
        if not len(self.ahead):
            self._sent.clear()
        self._sent[id(output)] = _Sent(output, line, usual)
        self.ahead.sent(output, shape, now, frozenset(gives))

    def _note_entered(self, scheduler: Any, plan: StepPlan, given: dict[str, int], now: float) -> None:
        first = next(iter(plan.prefills), None)
        self._stuck = first is not None and first not in given and plan.budget < self.config.step_tokens
        if self._refused:
            self._refused = {number: until for number, until in self._refused.items() if until > self._steps}
        for request_id, sequence in plan.entering.items():
            request = scheduler.requests.get(request_id)
            if request_id not in given:
                if request is not None and request.status.name in PLAIN:
                    self._refused[sequence.id] = self._steps + REFUSED_FOR
                if request is not None and request.has_encoder_inputs and not plan.prefills:
                    self._stuck = plan.budget < self.config.step_tokens
        if len(given) > len(plan.decodes):
            for request_id, count in given.items():
                if request_id not in plan.decodes and request_id not in plan.prefills:
                    self._entered(request_id, scheduler.requests[request_id], count, now)

    def _entered(self, request_id: str, request: Any, count: int, now: float) -> None:
        sequence = self._mirror.known(request_id)
        if sequence is None or sequence.admitted_at is not None:
            return
        sequence.admitted_at = now
        sequence.cached = request.num_computed_tokens - count
        priority = sequence.priority
        if sequence.expected:
            treat_as_computed(sequence)
        if sequence.priority != priority:
            self.counts.relegated()

    def back(self, scheduler: Any, output: Any, now: float) -> None:
        """Takes in a step that is back, and whose tokens vLLM has taken."""
        found, sent = self.ahead.back(output, now), self._sent.pop(id(output), None)
        if found is not None and sent is not None:
            if sent.usual:
                self.step_time.learn(found.shape, found.took_s)
                if not found.shape.prefill:
                    ratio = min(MOST_RATIO, found.took_s / found.predicted_s)
                    self._ratio += RECENT * (ratio - self._ratio)
            self.counts.back(found.took_s, found.predicted_s)
            if self._lines is not None and sent.line is not None:
                self._lines.take(found.began, found.took_s, *sent.line)
            for request_id in found.gives:
                sequence = self._mirror.known(request_id)
                if sequence is not None:
                    sequence.last_token_at = now
                    if sequence.first_token_at is None:
                        sequence.first_token_at = now
        self._mirror.keep_only(scheduler.requests)


def _seats(scheduler: Any) -> int:
    """Returns how many requests may still enter."""
    most = scheduler.max_num_running_reqs
    active = getattr(scheduler, "max_num_active_reqs", None)
    paused = getattr(scheduler, "num_waiting_for_streaming_input", 0)
    return max(0, int(min(most, active) if active is not None else most) - len(scheduler.running) - paused)


def _in_order(queue: Any, choice: StepChoice, seen: _Seen) -> list[Any] | None:
    """Returns the queue with what can be scheduled in the chosen order; all else stays in its place. None: nothing
    changes."""
    fixed, requests = seen.fixed, seen.requests
    ordered = [requests[sequence.id] for sequence in choice.waiting if sequence.id not in fixed]
    if len(ordered) < 2:
        return None
    if len(ordered) == len(queue):
        whole = ordered
    else:
        turns = iter(ordered)
        whole = [next(turns) if request.status.name in PLAIN else request for request in queue]
    return None if all(one is other for one, other in zip(whole, queue, strict=True)) else whole
