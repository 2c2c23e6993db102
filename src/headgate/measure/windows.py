"""Keeps counts and latency sketches of the last minute, five minutes and hour.

Time is cut into parts of five seconds. A record is added to the open part only. When a part closes, it is added to the
open minute and, where reading must be fast, to running totals, from which it is subtracted again once it is too old. So
one write serves all windows, and no window is ever read record by record.
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
"""Indexes of the figures in every list with one item per figure. COLD: first tokens of cold replicas; LONG: whole
answers with more tokens than the E2E promise covers. Both are few, and also counted under TTFT and E2E."""
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
"""Figures that can be read, by name: the kept figure, and the part of it that is left out; None: nothing is."""
FIGURES = tuple(SKETCHES)
OF_ALL = ("e2e", "e2e_short", "answer")
"""Figures of a whole answer; an answer that broke off has none of them."""
WINDOWS = (60, 300, 3600)
"""Seconds."""
PART_S: Final = 5.0
PARTS: Final = 60
"""Parts in five minutes, and minutes in an hour; the open one is among them."""
MINUTE: Final = 12
"""Parts in a minute."""

Buckets = defaultdict[int, int]
"""Number of values by bucket of quantile.GRID."""


class WindowCounts:
    """Requests that ended, by how they ended, and their tokens."""

    __slots__ = (
        "broken", "cached_tokens", "cancelled", "cold", "failed", "gave_up", "invalid", "late", "output_tokens",
        "over_limit", "prompt_tokens", "refused", "requests", "retried",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requests = 0
        """All requests that ended."""
        self.failed = 0
        """Requests that failed through a fault of the gateway or a replica."""
        self.broken = 0
        """Failed requests that broke off after their first token."""
        self.refused = 0
        """Requests refused, to be retried later."""
        self.over_limit = 0
        """Refused requests whose tenant was over its own limit."""
        self.cancelled = 0
        """Requests whose client left, or did not read."""
        self.gave_up = 0
        """Cancelled streams without a first token that lasted longer than the TTFT promised at p95: how long the client
        waited is all that is known of a stream that never began."""
        self.invalid = 0
        """Requests that were the client's own error: malformed, too long, unknown model, unauthorized."""
        self.cold = 0
        """Requests whose replica had not finished a request since it came into use."""
        self.retried = 0
        """Requests that took more than one attempt."""
        self.late = 0
        """Requests whose first token came later than the lane promises at p95; for an unstreamed answer, whose time per
        token was longer than the promised gap."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        """Prompt tokens found in replicas' prefix caches."""
        self.output_tokens = 0

    @property
    def missed(self) -> int:
        """Requests that got no answer or only part of one, through no fault of the client or its tenant."""
        return self.failed + self.refused - self.over_limit

    @property
    def answered(self) -> int:
        return self.requests - self.failed - self.refused - self.cancelled - self.invalid

    @property
    def asked(self) -> int:
        """Requests for an answer: the denominator of availability."""
        return self.answered + self.missed

    def beyond(self, figure: str, having: int) -> float:
        """Refused and failed requests that count as missing a figure which `having` requests have. An answer that broke
        off after its first token has a first token, in time or late, so it is not among them."""
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
    """A stretch of time that is not over: its counts, and for each figure its buckets."""

    __slots__ = ("buckets", "counts")

    def __init__(self) -> None:
        self.buckets = empty()
        self.counts = WindowCounts()


_NO_INDEXES: Final = array("H")
_NO_NUMBERS: Final = array("I")


class Past:
    """A stretch of time that is over, in a tenth of an OpenWindow's memory: a Window keeps over a hundred of them."""

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
        """Subtracts this stretch from buckets to which it was added before."""
        for figure in range(KEPT):
            left = buckets[figure]
            for index, number in zip(self.indexes[figure], self.numbers[figure], strict=True):
                left[index] -= number
                if not left[index]:
                    del left[index]


def empty() -> list[Buckets]:
    return [defaultdict(int) for _ in range(KEPT)]


NOTHING: Final = Past(OpenWindow())
"""Shared by all parts and minutes in which no request ended."""


class Window:
    """The three windows of one series of records."""

    __slots__ = ("_phase_s", "_tick", "_totals", "current", "ends", "minute", "minutes", "parts")

    def __init__(self, now: float, phase_s: float = 0.0, totals: bool = False) -> None:
        """`phase_s` shifts the times at which parts close: hundreds of series closing at once would delay requests.
        `totals`: keeps running totals, for fast reading."""
        self._phase_s = phase_s
        self._totals: dict[int, list[Buckets]] | None = {} if totals else None
        """Buckets of all closed parts, by window and figure; None: they are added up on reading."""
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
        """The open part's number on the clock."""
        return self._tick

    def span_s(self, window_s: int, now: float) -> float:
        """Seconds that a window covers by now: all its parts are whole but the last, which is still open."""
        unit = MINUTE if window_s == 3600 else 1
        begins = (self._tick // unit + 1) * unit * PART_S + self._phase_s - window_s
        return now - begins

    # -- time ------------------------------------------------------------------------------------------------

    def roll(self, now: float) -> None:
        """Closes every part that is over."""
        if now - self.ends > WINDOWS[-1]:
            self._start(now)
        while now >= self.ends:
            self.close()

    def close(self) -> None:
        """Closes the open part and begins the next."""
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
                # Every reader sorts these buckets, which takes a third of the time where nearly all are in order.
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
        """`without`: a figure that is part of this one and is left out; None: nothing is."""
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
