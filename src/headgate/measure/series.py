"""What is counted of a request when it is over? Every line of `take` and `see` is paid for by each of them.

Records come some hundreds at a time. What a batch has in common is added up once, by `settle`.
"""

from collections import Counter, defaultdict
from math import inf
from typing import Final

from headgate.measure.histogram import Edges, Histogram
from headgate.measure.little import AT_ONCE_S, TURNED_AWAY, Law
from headgate.measure.timeline import Timeline
from headgate.measure.windows import ANSWER, COLD, E2E, GAP, KEPT, LONG, QUEUE, TPOT, TTFT, Window, WindowCounts
from headgate.model.outcome import KINDS, Outcome
from headgate.model.quantile import GRID
from headgate.model.record import Record
from headgate.policy.promises.promise import per_token_s

Labels = tuple[str, str, str, str, str, str]
"""lane, model, version, tier, quantization, gpu_type"""

COMPLETED: Final = Outcome.COMPLETED
KIND_OF: Final[dict[str, str]] = {outcome.value: kind for outcome, kind in KINDS.items()}
"""By value: an Outcome is hashed by code, a string is not."""
NEVER_QUEUED: Final = frozenset({"invalid", "too_long", "unknown_model", "unauthorized"})
"""Their wait says nothing: they were sent away for what they asked."""
OVER_LIMIT: Final = Outcome.OVER_LIMIT.value
LEFT: Final = frozenset({"cancelled", "slow_client"})
TYPE_OF: Final[dict[str, str]] = {
    "no_replica": "no_replica",
    "replica_failed": "engine",
    "replica_stalled": "timeout",
    "out_of_time": "timeout",
    "engine_failed": "engine",
}
"""Errors by type: these; for the rest, `refused` or `client`."""
OUT_OF_MEMORY: Final = "out of memory"
"""What every engine says somewhere in its message when it is."""


class Tokens:
    """By lane and model: versions and tiers of one model come and go, and a sum over them must never fall."""

    __slots__ = ("cached", "output", "prompt")

    def __init__(self) -> None:
        self.prompt = 0
        self.cached = 0
        """Of the prompts', found in replicas' prefix caches."""
        self.output = 0


class LaneFigures:
    """All of a lane. Lanes are from config, so these never expire."""

    __slots__ = (
        "cold_requests", "cold_ttft", "decode", "errors", "first_counts", "late_after_s", "late_token_s", "law",
        "long_answers", "longest", "name", "prefill", "refusals", "retries", "timeline", "window",
    )  # fmt: skip

    def __init__(self, name: str, now: float, phase_s: float, edges: list[Edges]) -> None:
        self.name = name
        self.late_after_s = inf
        """First tokens after this are late."""
        self.first_counts = 0.0
        """Tokens that the first one of an answer counts for, by what is promised."""
        self.late_token_s = inf
        """Answers in one piece that took longer for each token are late."""
        self.longest = 1_000_000_000
        """Tokens of an answer beyond which no time is promised for all of it."""
        self.cold_ttft = Histogram(edges[TTFT])
        self.long_answers = Histogram(edges[E2E])
        self.prefill = Histogram(edges[TTFT])
        self.decode = Histogram(edges[E2E])
        self.window = Window(now, phase_s, totals=True)
        self.timeline = Timeline()
        self.law = Law()
        self.refusals: dict[str, int] = {}
        """By outcome."""
        self.errors: dict[str, int] = {}
        """By type."""
        self.cold_requests = 0
        self.retries = 0

    def roll(self, now: float) -> None:
        window = self.window
        if now - window.ends > 3600:
            self.timeline.forget()
            window.roll(now)
        while now >= window.ends:
            window.close()
            self.timeline.closed(window)

    def trouble(self, outcome: str, record: Record, whole: WindowCounts, own: WindowCounts) -> None:
        """It did not complete."""
        kind = KIND_OF[outcome]
        type_ = kind
        if kind == "ok":
            return  # it was ended by its lane's time limit, and answered all the same
        if kind == "refused":
            self.refusals[outcome] = self.refusals.get(outcome, 0) + 1
            whole.refused += 1
            own.refused += 1
            if outcome == OVER_LIMIT:
                whole.over_limit += 1
                own.over_limit += 1
        elif kind == "failed":
            type_ = "out_of_memory" if OUT_OF_MEMORY in record.message.lower() else TYPE_OF[outcome]
            whole.failed += 1
            own.failed += 1
            if record.ttft_s is not None:
                whole.broken += 1
                own.broken += 1
        elif outcome in LEFT:
            whole.cancelled += 1
            own.cancelled += 1
            if record.stream and record.ttft_s is None and record.e2e_s > self.late_after_s:
                whole.gave_up += 1
                own.gave_up += 1
        else:
            whole.invalid += 1
            own.invalid += 1
        self.errors[type_] = self.errors.get(type_, 0) + 1


class Series:
    """Requests that have all labels in common. Those that differ only in quantization or gpu_type share a window."""

    __slots__ = ("histograms", "labels", "lane", "outcomes", "pending", "settled", "tokens", "used_at", "window")

    def __init__(self, labels: Labels, lane: LaneFigures, window: Window, edges: list[Edges], tokens: Tokens) -> None:
        self.labels = labels
        self.lane = lane
        self.window = window
        self.histograms = [Histogram(each) for each in edges]
        self.tokens = tokens
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.used_at = 0.0
        self.settled = True
        self.pending: list[list[int]] = [[] for _ in range(KEPT)]
        """By figure, the buckets of GRID that a batch has met so far."""

    def take(self, record: Record) -> None:
        lane = self.lane
        whole, own = lane.window.current.counts, self.window.current.counts
        whole.requests += 1
        own.requests += 1
        tokens = self.tokens
        number = record.prompt_tokens
        if number:
            whole.prompt_tokens += number
            own.prompt_tokens += number
            tokens.prompt += number
            number = record.cached_tokens
            if number:
                whole.cached_tokens += number
                own.cached_tokens += number
                tokens.cached += number
        number = record.output_tokens
        if number:
            whole.output_tokens += number
            own.output_tokens += number
            tokens.output += number

        how = record.outcome
        outcome: str = how._value_  # `value` is a property, and not a quick one
        self.outcomes[outcome] += 1
        e2e_s = record.e2e_s
        index = GRID.index(e2e_s)
        if how is COMPLETED:
            self.see(E2E, e2e_s, index)
            if number > lane.longest and number // record.choices > lane.longest:
                self.keep(LONG, index)
                lane.long_answers.add(e2e_s)
        else:
            lane.trouble(outcome, record, whole, own)
        if outcome not in NEVER_QUEUED:
            queue_s = record.queue_s
            self.see(QUEUE, queue_s, GRID.index(queue_s))
        if outcome not in TURNED_AWAY or record.queue_s > AT_ONCE_S:
            law = lane.law
            law.left += 1
            law.stayed_s += e2e_s

        ttft_s = record.ttft_s
        if ttft_s is not None:
            self.see(TTFT, ttft_s, GRID.index(ttft_s))
            if ttft_s > lane.late_after_s:
                whole.late += 1
                own.late += 1
            if record.cold:
                self.keep(COLD, GRID.index(ttft_s))
                lane.cold_ttft.add(ttft_s)
        elif how is COMPLETED and not record.stream:
            # Nobody knows when its first token was there: it is judged by all of its time.
            token_s = per_token_s(e2e_s, number // record.choices, lane.first_counts)
            self.see(ANSWER, token_s, GRID.index(token_s))
            if token_s > lane.late_token_s:
                whole.late += 1
                own.late += 1
        tpot_s = record.tpot_s
        if tpot_s is not None:
            self.see(TPOT, tpot_s, GRID.index(tpot_s))
            self.see_gaps(record)
        engine = record.engine
        if engine is not None and engine.prefill_ms > 0.0:
            lane.prefill.add(engine.prefill_ms / 1e3)
            lane.decode.add(engine.decode_ms / 1e3)
        elif record.stream and ttft_s is not None:
            lane.prefill.add(record.first_s)
            lane.decode.add(record.stream_s)
        if record.cold:
            whole.cold += 1
            own.cold += 1
            lane.cold_requests += 1
        if record.attempts > 1:
            whole.retried += 1
            own.retried += 1
            lane.retries += record.attempts - 1

    def see(self, figure: int, value: float, index: int) -> None:
        """`index` is its bucket of GRID."""
        self.pending[figure].append(index)
        self.histograms[figure].see(value, index)

    def keep(self, figure: int, index: int) -> None:
        """One of the few that are told apart: in the windows at once."""
        self.lane.window.current.buckets[figure][index] += 1
        self.window.current.buckets[figure][index] += 1

    def see_gaps(self, record: Record) -> None:
        """Every gap between two of its tokens: the longest, of which there are one in a hundred, as they were, and the
        others at their mean. So the 99th percentile over all gaps is as good as if each had been noted."""
        of_lane, of_own = self.lane.window.current.buckets[GAP], self.window.current.buckets[GAP]
        histogram, left_s = self.histograms[GAP], record.stream_s - record.stalled_s
        number = record.output_tokens // record.choices - 1
        for gap in record.gaps:
            if number <= 0:
                break
            took_s = gap.took_s
            index = GRID.index(took_s)
            of_lane[index] += 1
            of_own[index] += 1
            histogram.see_many(took_s, index, 1)
            left_s -= took_s
            number -= 1
        if number > 0:
            each_s = max(0.0, left_s / number)
            index = GRID.index(each_s)
            of_lane[index] += number
            of_own[index] += number
            histogram.see_many(each_s, index, number)

    def settle(self) -> None:
        """The batch is over, in the part in which it began."""
        self.settled = True
        whole, own = self.lane.window.current.buckets, self.window.current.buckets
        for figure in range(KEPT):
            met = self.pending[figure]
            if not met:
                continue
            of_lane, of_own, histogram = whole[figure], own[figure], self.histograms[figure]
            for index, number in Counter(met).items():
                of_lane[index] += number
                of_own[index] += number
                histogram.count(index, number)
            met.clear()
