"""What happened in the last minute, five minutes and hour?

Time is cut into parts of five seconds. A record is added to the open part and to nothing else; when a part closes, it
is added up into the open minute and, where answers must be quick, into running totals, from which it is taken out again
when it is too old. So writing costs the same for all windows, and none is ever walked record by record.
"""

from array import array
from collections import defaultdict, deque
from math import floor
from typing import Final

from headgate.model.quantile import Sketch
from headgate.policy.promises.promise import beyond

TTFT: Final = 0
TPOT: Final = 1
E2E: Final = 2
QUEUE: Final = 3
GAP: Final = 4
ANSWER: Final = 5
COLD: Final = 6
LONG: Final = 7
"""Places in every list that has one thing for each figure. COLD: first tokens of cold replicas; LONG: all of answers
that are longer than is promised for. Both are few, and also counted under TTFT and E2E."""
KEPT: Final = 8
SKETCHES: Final[dict[str, tuple[int, int | None]]] = {
    "ttft": (TTFT, None),
    "tpot": (TPOT, None),
    "e2e": (E2E, None),
    "queue": (QUEUE, None),
    "gap": (GAP, None),
    "answer": (ANSWER, None),
    "ttft_cold": (COLD, None),
    "ttft_warm": (TTFT, COLD),
    "e2e_short": (E2E, LONG),
}
"""What can be asked for: what is kept, or that without another that is part of it."""
FIGURES = tuple(SKETCHES)
OF_ALL = ("e2e", "e2e_short", "answer")
"""What is of a whole answer: nothing that broke off has it."""
WINDOWS = (60, 300, 3600)
"""Seconds."""
PART_S: Final = 5.0
PARTS: Final = 60
"""Parts in five minutes, and minutes in an hour; the open one is among them."""
MINUTE: Final = 12
"""Parts in a minute."""

Buckets = defaultdict[int, int]
"""How many, by bucket of quantile.GRID."""


class WindowCounts:
    """How many ended, and how."""

    __slots__ = (
        "broken", "cached_tokens", "cancelled", "cold", "failed", "gave_up", "invalid", "late", "output_tokens",
        "over_limit", "prompt_tokens", "refused", "requests", "retried",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requests = 0
        """All that ended."""
        self.failed = 0
        """Through our fault."""
        self.broken = 0
        """Of those, after their first token."""
        self.refused = 0
        """Told to come back later."""
        self.over_limit = 0
        """Of those, because the tenant was over its own limit."""
        self.cancelled = 0
        """The client left, or did not read."""
        self.gave_up = 0
        """Of those, left without a first token after longer than that is promised at p95: of a stream that never began
        its client's patience is all that is seen."""
        self.invalid = 0
        """The client asked for what can't be had."""
        self.cold = 0
        """Met a replica that had not served before."""
        self.retried = 0
        """Had to be sent to more than one replica."""
        self.late = 0
        """Got their first token later than the lane promises at p95."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        """Of the prompts', found in replicas' prefix caches."""
        self.output_tokens = 0

    @property
    def missed(self) -> int:
        """Asked for an answer and got none, or not all of it, through no fault of their own."""
        return self.failed + self.refused - self.over_limit

    @property
    def answered(self) -> int:
        return self.requests - self.failed - self.refused - self.cancelled - self.invalid

    @property
    def asked(self) -> int:
        """For an answer: what availability is a share of."""
        return self.answered + self.missed

    def beyond(self, figure: str, having: int) -> float:
        """Arrivals that have no such figure because they were refused or failed, where so many others have it. What
        broke off after its first token had that in time, or late."""
        broken = 0 if figure in OF_ALL else self.broken
        found = beyond(max(0, having - broken), self.answered, self.missed - broken)
        return found + self.gave_up if figure == "ttft" else found

    def add(self, other: "WindowCounts") -> None:
        self.requests += other.requests
        self.failed += other.failed
        self.broken += other.broken
        self.refused += other.refused
        self.over_limit += other.over_limit
        self.cancelled += other.cancelled
        self.gave_up += other.gave_up
        self.invalid += other.invalid
        self.cold += other.cold
        self.retried += other.retried
        self.late += other.late
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.output_tokens += other.output_tokens


class OpenWindow:
    """A stretch of time that is not over: for each figure its buckets."""

    __slots__ = ("buckets", "counts")

    def __init__(self) -> None:
        self.buckets = empty()
        self.counts = WindowCounts()


_NO_INDEXES: Final = array("H")
_NO_NUMBERS: Final = array("I")


class Past:
    """One that is over, in a tenth of the memory: there are a hundred of them for each series."""

    __slots__ = ("counts", "indexes", "numbers")

    def __init__(self, part: OpenWindow) -> None:
        self.counts = part.counts
        self.indexes = [array("H", list(buckets)) if buckets else _NO_INDEXES for buckets in part.buckets]
        self.numbers = [array("I", list(buckets.values())) if buckets else _NO_NUMBERS for buckets in part.buckets]

    def add_to(self, buckets: list[Buckets]) -> None:
        for figure in range(KEPT):
            self.add_one_to(buckets[figure], figure)

    def add_one_to(self, buckets: Buckets, figure: int) -> None:
        for index, number in zip(self.indexes[figure], self.numbers[figure], strict=True):
            buckets[index] += number

    def take_from(self, buckets: list[Buckets]) -> None:
        """It was added to them before."""
        for figure in range(KEPT):
            left = buckets[figure]
            for index, number in zip(self.indexes[figure], self.numbers[figure], strict=True):
                left[index] -= number
                if not left[index]:
                    del left[index]


def empty() -> list[Buckets]:
    return [defaultdict(int) for _ in range(KEPT)]


NOTHING: Final = Past(OpenWindow())
"""Stands for every part in which nothing happened."""


class Window:
    """The three windows of one series of records."""

    __slots__ = ("_phase_s", "_tick", "_totals", "current", "ends", "minute", "minutes", "parts")

    def __init__(self, now: float, phase_s: float = 0.0, totals: bool = False) -> None:
        """The phase shifts when parts close: hundreds of series that close at once would be felt."""
        self._phase_s = phase_s
        self._totals: dict[int, list[Buckets]] | None = {} if totals else None
        """Of everything that is over, by window and figure."""
        self._start(now)

    def _start(self, now: float) -> None:
        self._tick = floor((now - self._phase_s) / PART_S)
        self.ends = (self._tick + 1) * PART_S + self._phase_s
        self.current = OpenWindow()
        self.parts: deque[Past] = deque(maxlen=PARTS - 1)
        self.minute = OpenWindow()
        self.minutes: deque[Past] = deque(maxlen=PARTS - 1)
        if self._totals is not None:
            self._totals = {window_s: empty() for window_s in WINDOWS}

    @property
    def number(self) -> int:
        """Of the open part, counted on the clock."""
        return self._tick

    def span_s(self, window_s: int, now: float) -> float:
        """How much time it covers: the first of its parts is whole, the last is not."""
        unit = MINUTE if window_s == 3600 else 1
        begins = (self._tick // unit + 1) * unit * PART_S + self._phase_s - window_s
        return now - begins

    # -- time ------------------------------------------------------------------------------------------------

    def roll(self, now: float) -> None:
        """Close what is over."""
        if now - self.ends > WINDOWS[-1]:
            self._start(now)
        while now >= self.ends:
            self.close()

    def close(self) -> None:
        """The open part is over; the next begins."""
        past = NOTHING
        if self.current.counts.requests:
            past = Past(self.current)
            self.current = OpenWindow()
            past.add_to(self.minute.buckets)
            self.minute.counts.add(past.counts)
        if self._totals is not None:
            self._add(past, self._totals)
        self.parts.append(past)
        if self._tick % MINUTE == MINUTE - 1:
            self._close_minute()
        self._tick += 1
        self.ends = (self._tick + 1) * PART_S + self._phase_s

    def _close_minute(self) -> None:
        if self._totals is not None:
            if len(self.minutes) == PARTS - 1:
                self.minutes[0].take_from(self._totals[3600])
            for of_window in self._totals.values():
                # Whoever reads sorts them, which takes a third of the time where nearly all are in order.
                of_window[:] = [defaultdict(int, sorted(buckets.items())) for buckets in of_window]
        if self.minute.counts.requests:
            self.minutes.append(Past(self.minute))
            self.minute = OpenWindow()
        else:
            self.minutes.append(NOTHING)

    def _add(self, past: Past, totals: dict[int, list[Buckets]]) -> None:
        for window_s in WINDOWS:
            past.add_to(totals[window_s])
        if len(self.parts) >= MINUTE - 1:
            self.parts[1 - MINUTE].take_from(totals[60])
        if len(self.parts) == PARTS - 1:
            self.parts[0].take_from(totals[300])

    # -- reading ---------------------------------------------------------------------------------------------

    def sketch(self, figure: int, window_s: int, without: int | None = None) -> Sketch:
        """`without`: a figure that is part of it, and is left out."""
        whole = self._buckets(figure, window_s)
        if without is not None:
            for index, number in self._buckets(without, window_s).items():
                whole[index] -= number
                if whole[index] <= 0:
                    del whole[index]
        return Sketch.of(whole)

    def _buckets(self, figure: int, window_s: int) -> Buckets:
        if self._totals is not None:
            whole = self._totals[window_s][figure].copy()
        else:
            whole = defaultdict(int)
            for past in self._over(window_s):
                past.add_one_to(whole, figure)
            if window_s == 3600:
                _add_up(whole, self.minute.buckets[figure])
        _add_up(whole, self.current.buckets[figure])
        return whole

    def counts(self, window_s: int) -> WindowCounts:
        counts = WindowCounts()
        for past in self._over(window_s):
            counts.add(past.counts)
        if window_s == 3600:
            counts.add(self.minute.counts)
        counts.add(self.current.counts)
        return counts

    def _over(self, window_s: int) -> list[Past]:
        if window_s == 60:
            pasts = [self.parts[-back] for back in range(1, min(MINUTE, len(self.parts) + 1))]
        else:
            pasts = list(self.parts if window_s == 300 else self.minutes)
        return [past for past in pasts if past is not NOTHING]


def _add_up(buckets: Buckets, more: Buckets) -> None:
    for index, number in more.items():
        buckets[index] += number
