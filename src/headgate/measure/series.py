"""Counts a request when it is over, by lane and by series. Every request pays for every line of `take` and `see`.

Records come some hundreds at a time. `settle` adds equal values of a batch once.
"""

from collections import Counter, defaultdict
from math import inf
from typing import Final

from headgate.measure.little import AT_ONCE_S, TURNED_AWAY, Law
from headgate.measure.timeline import Timeline
from headgate.measure.windows import ANSWER, COLD, E2E, GAP, KEPT, LONG, QUEUE, TPOT, TTFT, Window, WindowCounts
from headgate.metrics.histogram import Edges, Histogram
from headgate.model.outcome import KINDS, Outcome
from headgate.model.quantile import GRID
from headgate.model.record import Record
from headgate.policy.promises.promise import per_token_s

Labels = tuple[str, str, str, str, str, str]
"""lane, model, version, tier, quantization, gpu_type"""

COMPLETED: Final = Outcome.COMPLETED
KIND_OF: Final[dict[str, str]] = {outcome.value: kind for outcome, kind in KINDS.items()}
"""Kinds by the outcome's value: an Outcome is hashed by Python code, a string is not."""
NEVER_QUEUED: Final = frozenset({"invalid", "too_long", "unknown_model", "unauthorized"})
"""Outcomes without a queue time: these requests were rejected for their content."""
OVER_LIMIT: Final = Outcome.OVER_LIMIT.value
LEFT: Final = frozenset({"cancelled", "slow_client"})
TYPE_OF: Final[dict[str, str]] = {
    "no_replica": "no_replica",
    "replica_failed": "engine",
    "replica_stalled": "timeout",
    "out_of_time": "timeout",
    "engine_failed": "engine",
}
"""Error types of failed outcomes; all other outcomes have the type `refused` or `client`."""
OUT_OF_MEMORY: Final = "out of memory"
"""Text that every engine's message contains when the engine is out of memory."""


class Tokens:
    """Token counters of one lane and model: versions and tiers of a model come and go, and a sum must never fall."""

    __slots__ = ("cached", "output", "prompt")

    def __init__(self) -> None:
        self.prompt = 0
        self.cached = 0
        """Prompt tokens found in replicas' prefix caches."""
        self.output = 0


class LaneFigures:
    """The figures of a whole lane. Lanes come from the config, so these never expire."""

    __slots__ = (
        "cold_requests", "cold_ttft", "decode", "errors", "first_counts", "late_after_s", "late_token_s", "law",
        "long_answers", "longest", "name", "prefill", "refusals", "relegated", "retries", "timeline", "window",
    )  # fmt: skip

    def __init__(self, name: str, now: float, phase_s: float, edges: list[Edges]) -> None:
        self.name = name
        self.late_after_s = inf
        """Seconds to the first token beyond which a request is late."""
        self.first_counts = 0.0
        """Tokens that an answer's first token counts for: the TTFT target divided by the gap target."""
        self.late_token_s = inf
        """Seconds per token beyond which an unstreamed answer is late."""
        self.longest = 1_000_000_000
        """Maximum tokens of an answer for which an end-to-end time is promised."""
        self.cold_ttft = Histogram(edges[TTFT])
        self.long_answers = Histogram(edges[E2E])
        self.prefill = Histogram(edges[TTFT])
        self.decode = Histogram(edges[E2E])
        self.window = Window(now, phase_s, totals=True)
        self.timeline = Timeline()
        self.law = Law()
        self.refusals: dict[str, int] = {}
        """Refused requests by outcome."""
        self.errors: dict[str, int] = {}
        """Requests that did not get a whole answer, by error type."""
        self.cold_requests = 0
        self.relegated: dict[str, int] = {}
        """Requests that came here from a lane above, by that lane."""
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
        """Counts a request that did not complete."""
        kind = KIND_OF[outcome]
        type_ = kind
        if kind == "ok":
            return  # ended by its lane's time limit, and still an answer
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
    """Requests that have all labels in common. Series that differ only in quantization or gpu_type share a window."""

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
        """The buckets of GRID that the batch has hit so far, by figure."""

    def take(self, record: Record) -> None:
        lane = self.lane
        whole, own = lane.window.current.counts, self.window.current.counts
        whole.requests += 1
        own.requests += 1
        self.take_tokens(record, whole, own)
        how = record.outcome
        outcome: str = how._value_  # `value` is a property, and not a quick one
        self.outcomes[outcome] += 1
        e2e_s = record.e2e_s
        index = GRID.index(e2e_s)
        if how is COMPLETED:
            self.see(E2E, e2e_s, index)
            if record.output_tokens > lane.longest and record.output_tokens // record.choices > lane.longest:
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

        self.take_first_token(record, whole, own)
        tpot_s = record.tpot_s
        if tpot_s is not None:
            self.see(TPOT, tpot_s, GRID.index(tpot_s))
            self.see_gaps(record)
        engine = record.engine
        if engine is not None and engine.prefill_ms > 0.0:
            lane.prefill.add(engine.prefill_ms / 1e3)
            lane.decode.add(engine.decode_ms / 1e3)
        elif record.stream and record.ttft_s is not None:
            lane.prefill.add(record.first_s)
            lane.decode.add(record.stream_s)
        if record.cold:
            whole.cold += 1
            own.cold += 1
            lane.cold_requests += 1
        if record.relegated_from:
            lane.relegated[record.relegated_from] = lane.relegated.get(record.relegated_from, 0) + 1
        if record.attempts > 1:
            whole.retried += 1
            own.retried += 1
            lane.retries += record.attempts - 1

    def take_tokens(self, record: Record, whole: WindowCounts, own: WindowCounts) -> None:
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

    def take_first_token(self, record: Record, whole: WindowCounts, own: WindowCounts) -> None:
        lane, ttft_s = self.lane, record.ttft_s
        late = False
        if ttft_s is not None:
            self.see(TTFT, ttft_s, GRID.index(ttft_s))
            late = ttft_s > lane.late_after_s
            if record.cold:
                self.keep(COLD, GRID.index(ttft_s))
                lane.cold_ttft.add(ttft_s)
        elif record.outcome is COMPLETED and not record.stream:
            # The first token's time is unknown: the answer is judged by its whole time.
            token_s = per_token_s(record.e2e_s, record.output_tokens // record.choices, lane.first_counts)
            self.see(ANSWER, token_s, GRID.index(token_s))
            late = token_s > lane.late_token_s
        if late:
            whole.late += 1
            own.late += 1

    def see(self, figure: int, value: float, index: int) -> None:
        """Counts a value; `index` is its bucket of GRID."""
        self.pending[figure].append(index)
        self.histograms[figure].see(value, index)

    def keep(self, figure: int, index: int) -> None:
        """Counts one of the few COLD and LONG values, in the windows at once."""
        self.lane.window.current.buckets[figure][index] += 1
        self.window.current.buckets[figure][index] += 1

    def see_gaps(self, record: Record) -> None:
        """Counts every gap between two tokens: the longest, about one in a hundred, at their length, and all others at
        their mean. So the 99th percentile over all gaps is as good as if each had been noted."""
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
        """Ends the batch: adds its pending values to the windows' open part and to the histograms."""
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
