"""Explains where the slowest requests lost their time, while their neighbours are still known; keeps five minutes.

Per lane and ten seconds, the few requests that strained their promises most are explained as they end. The page lists
them, and the diagnosis adds up their losses by cause: only the tail's own time says what the tail is made of.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappush, heapreplace, nlargest
from itertools import count
from operator import attrgetter
from typing import Final, NamedTuple

from headgate.explain.blame import LONG_CONTEXT, GatewayPause
from headgate.explain.explanation import Explanation, Kind, Stage, headline
from headgate.explain.neighbours import Neighbour, keep, neighbours
from headgate.explain.usual import UsualTimes, usual
from headgate.explain.why import explain
from headgate.model.lane import Lane
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.model.replica import ReplicaId
from headgate.policy.promises.promise import first_counts, per_token_s

COMPLETED: Final = Outcome.COMPLETED
SLOW_CLIENT: Final = Outcome.SLOW_CLIENT
SLICE_S = 10.0
SLICES = 31
"""Five minutes, and the slice that has begun."""
WORST = 8
"""Maximum explained requests per lane and slice."""
TAIL = 32
"""Maximum explained requests of a window whose losses are added up, worst first."""
RECENT = 256
"""Latest requests remembered per replica: possible neighbours of a request that ends now."""
REPLICAS = 1024
"""Maximum replicas remembered; beyond it, the one remembered for longest is forgotten."""
SAMPLE = 512
"""Latest answers from which the usual times of a lane are computed."""
USUAL_EVERY_S = 5.0
TENANTS = 64
"""Maximum tenants counted by name in one slice; further tenants are counted as `other`."""
WAITED_S = 0.01
STALLED_S = 1.0
"""Seconds: a client that stalls its answer for at least this long reads slowly."""
_FIRST: frozenset[Stage] = frozenset(("accept", "queue", "retry", "engine_queue", "prefill"))
"""Stages up to the first token. Not `answer`: an unstreamed answer's first token has no known time, and most of that
stage is decoding."""
_TURNED_AWAY = (Outcome.LANE_FULL, Outcome.WOULD_WAIT_TOO_LONG, Outcome.WAITED_TOO_LONG)

Running = Callable[[set[str], float], dict[str, list[Neighbour]]]
"""Returns the requests that are at these replicas now, by replica."""


class Told(NamedTuple):
    """A slow request and the explanation. Compared by strain, then by the order of explaining."""

    strain: float
    """The request's time as a multiple of its lane's promise, for the promise it strained most; see `strain_of`."""
    number: int
    record: Record
    explanation: Explanation
    headline: str


class EvidenceSlice:
    """Counts and slowest requests of one lane in ten seconds."""

    __slots__ = ("at", "cold", "failed", "preempted", "refused", "requests", "stalled", "tenants", "waited", "worst")

    def __init__(self, at: float) -> None:
        self.at = at
        self.requests = self.waited = self.preempted = self.cold = self.stalled = self.failed = 0
        self.refused: Counter[Outcome] = Counter()
        self.tenants: Counter[str] = Counter()
        """Requests that waited or were turned away because of the queue, by tenant."""
        self.worst: list[Told] = []
        """The slowest requests, a heap with the least slow first."""


class Losses(NamedTuple):
    """Seconds that a lane's slowest requests lost, by cause: up to the first token, and after it."""

    first: dict[Kind, float]
    tokens: dict[Kind, float]
    long_beside: float
    """Share of the time lost on slow tokens that was lost beside a long context."""


class Evidence:
    def __init__(
        self, lanes: Callable[[], Mapping[str, Lane]], running: Running, pauses: Callable[[], Sequence[GatewayPause]]
    ) -> None:
        """All three return the current state at every call."""
        self._lanes = lanes
        self._running = running
        self._pauses = pauses
        self._slices: dict[str, deque[EvidenceSlice]] = {}
        self._recent: dict[str, deque[Record]] = {}
        self._answers: dict[tuple[str, bool, bool], deque[Record]] = {}
        """Latest answers by lane, whether streamed, and whether the first token's time is unknown."""
        self._usual: dict[tuple[str, bool, bool], tuple[float, UsualTimes | None]] = {}
        self._numbers = count()

    # -- writing ------------------------------------------------------------------------------------------

    def take(self, records: Sequence[Record], now: float) -> None:
        candidates: list[tuple[float, Record, EvidenceSlice]] = []
        lanes = {name: (lane, self._slice(name, now)) for name, lane in self._lanes().items()}
        for record in records:
            found = lanes.get(record.lane)
            if found is None:
                continue
            lane, here = found
            self._count(record, here)
            self._remember(record)
            strain = strain_of(record, lane)
            if len(here.worst) < WORST or strain > here.worst[0].strain:
                candidates.append((strain, record, here))
        if candidates:
            self._tell(candidates, now)

    def _slice(self, lane: str, now: float) -> EvidenceSlice:
        slices = self._slices.get(lane)
        if slices is None:
            slices = self._slices[lane] = deque(maxlen=SLICES)
        at = now // SLICE_S * SLICE_S
        if not slices or slices[-1].at != at:
            slices.append(EvidenceSlice(at))
        return slices[-1]

    def _count(self, record: Record, here: EvidenceSlice) -> None:
        here.requests += 1
        outcome = record.outcome
        if record.cold:
            here.cold += 1
        if record.stalled_s >= STALLED_S or outcome is SLOW_CLIENT:
            here.stalled += 1
        engine = record.engine
        if engine is not None and engine.preemptions > engine.yields:
            here.preempted += 1
        waited = record.queue_s >= WAITED_S
        if outcome is not COMPLETED:  # checked first: most are completed, and skip the rest
            waited = waited or outcome in _TURNED_AWAY
            if outcome.kind == "refused":
                here.refused[outcome] += 1
            elif outcome.kind == "failed":
                here.failed += 1
        if waited:
            here.waited += 1
            known = record.tenant in here.tenants or len(here.tenants) < TENANTS
            here.tenants[record.tenant if known else "other"] += 1

    def _remember(self, record: Record) -> None:
        if record.outcome is COMPLETED:
            key = (record.lane, record.stream, _whole(record))
            answers = self._answers.get(key)
            if answers is None:
                answers = self._answers[key] = deque(maxlen=SAMPLE)
            answers.append(record)
        replica = record.replica
        if replica is not None:
            recent = self._recent.get(replica)
            if recent is None:
                if len(self._recent) >= REPLICAS:
                    del self._recent[next(iter(self._recent))]
                recent = self._recent[replica] = deque(maxlen=RECENT)
            recent.append(record)

    def recent(self, replica: ReplicaId) -> Sequence[Record]:
        """The replica's latest records."""
        return self._recent.get(replica, ())

    def _tell(self, candidates: list[tuple[float, Record, EvidenceSlice]], now: float) -> None:
        """Explains candidates, worst first, so that none is explained that a worse one would push out again."""
        running = self._running({record.replica for _, record, _ in candidates if record.replica is not None}, now)
        for strain, record, here in sorted(candidates, key=lambda item: -item[0]):
            full = len(here.worst) >= WORST
            if full and strain <= here.worst[0].strain:
                continue
            told = self._explained(strain, record, running.get(record.replica or "", []), now)
            if full:
                heapreplace(here.worst, told)
            else:
                heappush(here.worst, told)

    def _explained(self, strain: float, record: Record, running: list[Neighbour], now: float) -> Told:
        since, until = record.at, record.at + record.e2e_s
        recent = neighbours(record, self._recent.get(record.replica or "", ()))
        near = recent + [n for n in running if n.there_in(since, until) and n.id != record.id]
        explanation = explain(record, keep(near), self._pauses(), self.usual(record, now))
        return Told(strain, next(self._numbers), record, explanation, headline(explanation))

    # -- reading -------------------------------------------------------------------------------------------

    def usual(self, record: Record, now: float) -> UsualTimes | None:
        """The usual times of a request of this kind, computed again every USUAL_EVERY_S; None: too few answers."""
        key = (record.lane, record.stream, record.whole)
        made_at, known = self._usual.get(key, (-USUAL_EVERY_S, None))
        if now - made_at >= USUAL_EVERY_S or known is None:
            known = usual(self._answers.get(key, ()), stream=record.stream, whole=record.whole)
            self._usual[key] = (now, known)
        return known

    def slowest(self, now: float, last_s: float, limit: int, lane: str | None = None) -> list[Told]:
        """The explained requests that strained their promises most, worst first; `lane` None: of all lanes."""
        told = (told for name in self._slices if lane in (None, name) for told in self._worst(name, now, last_s))
        return nlargest(limit, told)

    def lane(self, name: str, now: float, last_s: float) -> EvidenceSlice:
        """The sum of a lane's counts over the last `last_s` seconds; its `worst` is empty."""
        total = EvidenceSlice(now - last_s)
        for part in self._window(name, now, last_s):
            total.requests += part.requests
            total.waited += part.waited
            total.preempted += part.preempted
            total.cold += part.cold
            total.stalled += part.stalled
            total.failed += part.failed
            total.refused.update(part.refused)
            total.tenants.update(part.tenants)
        return total

    def losses(self, name: str, now: float, last_s: float) -> Losses:
        first: dict[Kind, float] = {}
        tokens: dict[Kind, float] = {}
        slow_s = beside_long_s = 0.0
        for told in nlargest(TAIL, self._worst(name, now, last_s)):
            for part in told.explanation.parts:
                because = part.because
                if because.kind == "ordinary" or part.excess_s <= 0:
                    continue
                lost = first if part.stage in _FIRST else tokens
                lost[because.kind] = lost.get(because.kind, 0.0) + part.excess_s
                if part.stage == "decode" and because.kind == "generation":
                    slow_s += part.excess_s
                    if float(because.figures.get("longest_beside", 0)) >= LONG_CONTEXT:
                        beside_long_s += part.excess_s
        return Losses(first, tokens, beside_long_s / slow_s if slow_s else 0.0)

    def lengths(self, name: str) -> tuple[int, int, int]:
        """A lane's latest answers in tokens: prompt p99, output p50, output p99; all 0 without answers."""
        kinds = ((name, True, False), (name, False, False), (name, False, True))
        answers = [answer for kind in kinds for answer in self._answers.get(kind, ())]
        if not answers:
            return 0, 0, 0
        prompts = sorted(map(attrgetter("prompt_tokens"), answers))
        outputs = sorted(map(attrgetter("output_tokens"), answers))
        last = len(answers) - 1
        return prompts[round(0.99 * last)], outputs[last // 2], outputs[round(0.99 * last)]

    def _window(self, name: str, now: float, last_s: float) -> Iterable[EvidenceSlice]:
        return [part for part in self._slices.get(name, ()) if part.at + SLICE_S > now - last_s]

    def _worst(self, name: str, now: float, last_s: float) -> Iterable[Told]:
        return (told for part in self._window(name, now, last_s) for told in part.worst)


def _whole(record: Record) -> bool:
    """`Record.whole`, compiled here because every record needs the answer."""
    return record.ttft_s is None and not record.stream and record.outcome is COMPLETED


def strain_of(record: Record, lane: Lane) -> float:
    """The largest ratio of a request's times to its lane's promises, and of its stall to STALLED_S. A failed request
    has at least 1; a request refused at once has almost 0."""
    ttft_s, e2e_s = record.ttft_s, record.e2e_s
    strain = (e2e_s if ttft_s is None else ttft_s) / lane.ttft_target_s
    if ttft_s is None and _whole(record):  # judged by the time per token, the first one included
        strain = per_token_s(e2e_s, record.output_tokens // record.choices, first_counts(lane)) / lane.gap_target_s
    whole_s = lane.e2e_p95_s or lane.e2e_p99_s
    if whole_s is not None and e2e_s / whole_s > strain:
        strain = e2e_s / whole_s
    max_gap_s, stalled_s = record.max_gap_s, record.stalled_s
    if max_gap_s / lane.gap_target_s > strain:
        strain = max_gap_s / lane.gap_target_s
    if stalled_s / STALLED_S > strain:
        strain = stalled_s / STALLED_S
    if strain < 1.0 and record.outcome is not COMPLETED and record.outcome.kind == "failed":
        return 1.0
    return strain
