"""Counts closed records by lane and by the other labels they share, and answers for windows of up to an hour.

One call takes the records closed since the last; nothing here is on the path of a request. Names come from clients, so
the values per label and the series in total are capped, and what exceeds a cap is counted as `other`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from headgate.config.gateway import ObserveConfig
from headgate.measure.edges import edges
from headgate.measure.ended import EndedEarly
from headgate.measure.little import Little
from headgate.measure.promised import PromisedEach
from headgate.measure.series import COMPLETED, NEVER_QUEUED, Labels, LaneFigures, Series, Tokens
from headgate.measure.tenants import Tenants
from headgate.measure.timeline import TimelineSlice
from headgate.measure.windows import (
    E2E,
    FIGURES,
    GAP,
    PART_S,
    QUEUE,
    SKETCHES,
    TPOT,
    TTFT,
    WINDOWS,
    Window,
    WindowCounts,
)
from headgate.model.labels import OTHER, Cap
from headgate.model.lane import Lane
from headgate.model.outcome import Outcome
from headgate.model.quantile import Sketch
from headgate.model.record import Record
from headgate.policy.promises.promise import first_counts, promises
from headgate.policy.scaling.cost import ReplicaHours

MOST_SERIES = 512
"""Maximum series, beside one `other` for each lane. A series adds about two hundred lines to a scrape."""
UNUSED_S = 3600.0
"""Seconds after which an unused series is in no window any more; it is forgotten a minute later."""
LOOK_FOR_UNUSED_S = 60.0
MOST_REPLICAS = 4096
NOT_VOUCHED_FOR = frozenset({Outcome.INVALID, Outcome.UNKNOWN_MODEL, Outcome.UNAUTHORIZED, Outcome.OVER_LIMIT})
"""Outcomes of requests whose model's name is unverified: a client that invents a hundred names would take the labels
of real models."""
APART = 0.618034
"""Step from one series' phase to the next, as a share of a part. It is the golden section, whose multiples spread any
number of phases evenly: so the parts of all series do not close in the same moment."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A promise, and the share of requests that were within its bound."""

    figure: str
    percentile: int
    """50, 95 or 99"""
    within_s: float
    share: float
    """Share over all arrivals; refused and failed requests count as missed."""
    served: float | None
    """Share over the served requests alone; None: none was served."""

    @property
    def kept(self) -> bool:
        return self.share >= self.percentile / 100


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests and tokens per second."""

    requests: float
    prompt_tokens: float
    output_tokens: float
    failed: float
    refused: float


class Figures:
    def __init__(self, lanes: dict[str, Lane], observe: ObserveConfig, started: float) -> None:
        self.started = started
        self.series: dict[Labels, Series] = {}
        self.tokens: dict[tuple[str, str], Tokens] = {}
        """Token counters by lane and model."""
        self.lanes: dict[str, LaneFigures] = {}
        self.held = ReplicaHours(started)
        """Replica-hours; the caller that knows the number of replicas reports it here."""
        self.cold_starts = 0
        """Starts of replicas that made at least one request cold."""
        self.ended = EndedEarly()
        self.promised = PromisedEach()
        self._promised = lanes
        """The dispatcher's own lanes: a new config changes their content."""
        self._edges = edges(lanes.values())
        self.tenants = Tenants(observe.labels, self._edges[TTFT])
        self._caps = [Cap(observe.labels) for _ in range(5)]
        """Caps for the labels model, version, tier, quantization and gpu_type."""
        self._windows: dict[tuple[str, str, str, str], Window] = {}
        """Windows by lane, model, version and tier."""
        self._made = 0
        self._roll_at = started
        self._look_at = started + LOOK_FOR_UNUSED_S
        self._warm_at: dict[str, float] = {}
        """When each replica's first request completed, for replicas that were cold; infinite: none has yet."""
        self._follow(started)

    # -- writing ---------------------------------------------------------------------------------------------

    def take(self, records: Sequence[Record], now: float) -> None:
        """Takes records that have been closed. Also called with none, so that windows close in time."""
        self._roll(now)
        known, tenants = self.series, self.tenants
        touched: list[Series] = []
        for record in records:
            series = known.get(
                (record.lane, record.model, record.version, record.tier, record.quantization, record.gpu_type)
            )
            if series is None:
                series = self._series_of(record, now)
            if series.settled:
                series.settled = False
                series.used_at = now
                touched.append(series)
            series.take(record)
            tenants.take(record)
            if record.cold:
                self._met_cold(record)
            if record.cap or record.stop:
                self.ended.take(record)
            if record.promise is not None:
                self.promised.take(record, series.labels[0])
            if record.quote is not None:
                told_in = record.quote.lane
                self.promised.take_quote(record.quote, told_in if told_in in self._promised else OTHER)
        for series in touched:
            series.settle()

    def exemplify(self, record: Record, trace: str) -> None:
        """Takes the trace of a record that was taken, as an exemplar of its histogram buckets."""
        histograms = self._series_of(record, record.at + record.e2e_s).histograms
        wall = record.wall + record.e2e_s
        if record.outcome is COMPLETED:
            histograms[E2E].exemplify(record.e2e_s, trace, wall)
        if record.outcome.value not in NEVER_QUEUED:
            histograms[QUEUE].exemplify(record.queue_s, trace, wall)
        if record.ttft_s is not None:
            histograms[TTFT].exemplify(record.ttft_s, trace, wall)
        if record.tpot_s is not None:
            histograms[TPOT].exemplify(record.tpot_s, trace, wall)
        if record.gaps and record.tpot_s is not None:
            histograms[GAP].exemplify(record.gaps[0].took_s, trace, wall)

    def sample(self, lane: str, in_system: int, now: float) -> None:
        """Takes the number of a lane's requests, waiting or running, for Little's law; called a few times a second."""
        if lane in self.lanes:
            self.lanes[lane].law.sample(in_system, now)

    def _series_of(self, record: Record, now: float) -> Series:
        lane = record.lane if record.lane in self._promised else OTHER
        model, version, tier, quantization, gpu_type = self._caps
        name = model.known(record.model) if record.outcome in NOT_VOUCHED_FOR else model.of(record.model)
        labels = (
            lane, name, version.of(record.version), tier.of(record.tier), quantization.of(record.quantization),
            gpu_type.of(record.gpu_type),
        )  # fmt: skip
        series = self.series.get(labels)
        if series is None and len(self.series) >= MOST_SERIES:
            labels = (lane, OTHER, OTHER, OTHER, OTHER, OTHER)
            series = self.series.get(labels)
        if series is None:
            series = self.series[labels] = self._new(labels, now)
        return series

    def _new(self, labels: Labels, now: float) -> Series:
        name = labels[0]
        lane = self.lanes.get(name) or self._open(name, now)
        window = self._windows.get(labels[:4])
        if window is None:
            window = self._windows[labels[:4]] = Window(now, self._next_phase_s())
            self._roll_at = min(self._roll_at, window.ends)
        tokens = self.tokens.get(labels[:2])
        if tokens is None:
            tokens = self.tokens[labels[:2]] = Tokens()
        return Series(labels, lane, window, self._edges, tokens)

    def _open(self, name: str, now: float) -> LaneFigures:
        lane = self.lanes[name] = LaneFigures(name, now, self._next_phase_s(), self._edges)
        self._roll_at = min(self._roll_at, lane.window.ends)
        return lane

    def _next_phase_s(self) -> float:
        self._made += 1
        return self._made * APART % 1 * PART_S

    def _met_cold(self, record: Record) -> None:
        """Counts cold starts. One start makes several requests cold: all sent before the first of them completed."""
        replica = record.replica or ""
        sent = record.at + record.accept_s + record.queue_s + record.retry_s
        warm_at = self._warm_at.get(replica)
        if warm_at is None or sent >= warm_at:
            self.cold_starts += 1
            warm_at = inf
            if len(self._warm_at) >= MOST_REPLICAS:
                self._warm_at.clear()
        done = record.at + record.e2e_s if record.outcome is COMPLETED else inf
        self._warm_at[replica] = min(warm_at, done)

    # -- time ------------------------------------------------------------------------------------------------

    def _roll(self, now: float) -> None:
        if now < self._roll_at:
            return
        if now >= self._look_at:
            self._look_at = now + LOOK_FOR_UNUSED_S
            self._forget_unused(now)
        self._follow(now)
        for lane in self.lanes.values():
            lane.roll(now)
        for window in self._windows.values():
            if now >= window.ends:
                window.roll(now)
        ends = [lane.window.ends for lane in self.lanes.values()]
        ends += [window.ends for window in self._windows.values()]
        self._roll_at = min(ends, default=now)

    def _follow(self, now: float) -> None:
        """Takes over the promises, which a new config may have changed."""
        for name, promised in self._promised.items():
            lane = self.lanes.get(name) or self._open(name, now)
            lane.late_after_s, lane.late_token_s = promised.ttft_target_s, promised.gap_target_s
            lane.first_counts = first_counts(promised)
            lane.longest = promised.e2e_p99_tokens

    def _forget_unused(self, now: float) -> None:
        """Forgets unused series and their counters. A scraper takes a counter that comes back for one that was reset,
        which is true."""
        unused = [labels for labels, series in self.series.items() if now - series.used_at > UNUSED_S + 60]
        if not unused:
            return
        for labels in unused:
            del self.series[labels]
        self._windows = {labels[:4]: series.window for labels, series in self.series.items()}
        self.tokens = {labels[:2]: series.tokens for labels, series in self.series.items()}
        for place, cap in enumerate(self._caps, start=1):
            cap.keep({labels[place] for labels in self.series})

    # -- reading ---------------------------------------------------------------------------------------------

    def sketch(
        self,
        figure: str,
        window_s: int,
        now: float,
        *,
        lane: str | None = None,
        model: str | None = None,
        version: str | None = None,
        tier: str | None = None,
    ) -> Sketch:
        """The sketch of a figure over a window; a label that is None matches all values. A lane, or all lanes, is
        quick; with other labels the parts are added up on reading."""
        if figure not in FIGURES or window_s not in WINDOWS:
            raise ValueError(f"expected one of {FIGURES} and of {WINDOWS}, got {figure!r} and {window_s!r}")
        self._roll(now)
        place, without = SKETCHES[figure]
        windows = self._matching(lane, model, version, tier)
        if len(windows) == 1:
            return windows[0].sketch(place, window_s, without)
        sketch = Sketch()
        for window in windows:
            sketch.merge(window.sketch(place, window_s, without))
        return sketch

    def counts(
        self,
        window_s: int,
        now: float,
        *,
        lane: str | None = None,
        model: str | None = None,
        version: str | None = None,
        tier: str | None = None,
    ) -> WindowCounts:
        if window_s not in WINDOWS:
            raise ValueError(f"expected one of {WINDOWS}, got {window_s!r}")
        self._roll(now)
        counts = WindowCounts()
        for window in self._matching(lane, model, version, tier):
            counts.add(window.counts(window_s))
        return counts

    def _matching(self, lane: str | None, model: str | None, version: str | None, tier: str | None) -> list[Window]:
        if model is None and version is None and tier is None:
            return [figures.window for name, figures in self.lanes.items() if lane is None or name == lane]
        asked = (lane, model, version, tier)
        return [
            window
            for labels, window in self._windows.items()
            if all(want is None or want == has for want, has in zip(asked, labels, strict=True))
        ]

    def span_s(self, window_s: int, now: float, *, lane: str | None = None) -> float:
        """Seconds that a lane's window covers, at least 1: a window begins with a whole part, and is not full at first.
        `lane` None: the mean over all lanes."""
        self._roll(now)
        spans = [window.span_s(window_s, now) for window in self._matching(lane, None, None, None)]
        return max(1.0, min(now - self.started, sum(spans) / len(spans) if spans else window_s))

    def rates(self, window_s: int, now: float, *, lane: str | None = None) -> Rates:
        """`counts` per second; `lane` None: the sum over all lanes."""
        requests = prompt = output = failed = refused = 0.0
        for name in self.lanes if lane is None else (lane,):
            counts, span_s = self.counts(window_s, now, lane=name), self.span_s(window_s, now, lane=name)
            requests += counts.requests / span_s
            prompt += counts.prompt_tokens / span_s
            output += counts.output_tokens / span_s
            failed += counts.failed / span_s
            refused += counts.refused / span_s
        return Rates(requests, prompt, output, failed, refused)

    def timeline(self, lane: str, now: float, name: str = "10m") -> list[TimelineSlice]:
        """The slices of a range of timeline.RANGES, oldest first; the last is not over yet."""
        self._roll(now)
        figures = self.lanes.get(lane)
        return figures.timeline.slices(figures.window, name) if figures is not None else []

    def little(self, lane: str) -> Little | None:
        """Little's law for a lane; None: the lane is unknown, or too little has been measured."""
        return self.lanes[lane].law.read() if lane in self.lanes else None

    def kept(self, lane: str, sketches: Mapping[str, Sketch], counts: WindowCounts) -> list[Kept]:
        """Every promise of the lane that applied to a request in `sketches`, which are by figure, or in `counts`."""
        found = []
        for promise in promises(self._promised[lane]) if lane in self._promised else ():
            sketch = sketches[promise.of]
            of = sketches["tpot"].count if promise.figure == "gap" else sketch.count
            missed = counts.beyond(promise.figure, of) * max(1.0, sketch.count / max(1, of))
            share = sketch.share(promise.within_s, missed)
            if share is not None:
                served = sketch.share(promise.within_s)
                found.append(Kept(promise.figure, promise.percentile, promise.within_s, share, served))
        return found
