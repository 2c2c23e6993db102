"""Predicts when a request's first token comes, and the time that 99 of 100 such requests keep.

A request is told this once: when it is sent, if it is sent at once; otherwise when it begins to wait. What came of it
teaches the next quotes of its lane:

- A `QuoteCell` keeps how long alike requests really took. Requests that are sent at once are alike by the prompt tokens
  that they compute and by those that wait at their replica, in seconds of that replica. Requests that wait are alike by
  their predicted wait as a share of their lane's bound; kept is how many times as long as predicted they took.
- The quantile that is read from a cell is 0.99 as long as 99 % of the lane's quotes are kept. Each quote that is missed
  raises it, each that is kept lowers it a little (adaptive conformal inference: Gibbs and Candès, 2021). So a lane's
  share of kept quotes comes back to 99 % whatever the load does, and whatever the cells can't tell apart.

A request that is refused or fails after it was told has missed, and so has one that reaches its wait bound and is
relegated then: it is not in time in the lane where it was told. Where that happens to more than one in a hundred there
is no such time, and none is told. Nor is a time told that is beyond the wait bound.
"""

from math import ceil, exp, inf, log
from typing import Final

from headgate.model.outcome import MISSED, Outcome
from headgate.model.record import LEFT, QuoteTold
from headgate.model.replica import Load

MISSES: Final = 0.01
"""Share of quotes that may be missed."""
LEAST_MISSES: Final = 0.0001
MOST_MISSES: Final = 0.03
"""Bounds of the share that is read from a cell."""
STEER: Final = 0.2
"""How much one quote too many that was missed lowers that share, as a change of its logarithm. 0.1 leaves a lane with
long waits at 98.6 % after an hour (benchmarks/quote.py, seeds 1 to 6)."""
MOST_LOST: Final = 0.008
"""Share of alike requests that may get no first token, above which they are told no p99."""
MOST_OWED: Final = 150.0
"""Most quotes that a lane may be ahead or behind: what is beyond is forgotten, so that one bad hour does not make all
further quotes useless."""
ENOUGH: Final = 100
"""Requests seen in a cell before its quantile is believed."""
WINDOW: Final = 2000
"""Requests after which all counts of a cell are halved: what is older counts less and less."""
TAIL: Final = 0.5
"""Exponent of the tail that is assumed beyond the slowest request that was seen."""
COLD: Final = 6.0
"""Times the predicted time that is told before anything was seen."""
EPISODES: Final = 10.0
"""Requests that wait together are late together: a lane must have been seen to make requests wait for this many times
as long as a predicted wait before the cell of that wait is believed as it is."""

GROWTH: Final = 1.1
"""Each bucket of a cell ends at this many times the end of the one before."""
LEAST_S: Final = 0.001
LOST: Final = 146
"""The bucket of requests that got no first token. The bucket before it begins at about a thousand seconds, or times as
long as predicted."""
PER_BUCKET: Final = 1.0 / log(GROWTH)

OWN_S: Final = 0.004
AHEAD_S: Final = 0.05
"""Seconds of prefill, of a request's own prompt and of those at its replica, from which requests sent at once are told
apart, in steps of four."""
WAITS: Final = 16.0
"""Waits are told apart from this part of their lane's bound on, in steps of two."""
AT_ONCE: Final = 30
"""Cells of requests that are sent at once: six by their own prompt, times five by what is ahead."""
CELLS: Final = AT_ONCE + 8
MOST_LANES: Final = 64
"""Lanes that are kept; beyond it the oldest is forgotten. A config has a handful, and may be changed any number of
times."""


class QuoteCell:
    """Counts of alike requests by how long they took, with two places in them that move as they are read: that of the
    median and that of the quantile."""

    __slots__ = ("_above", "_at", "_counts", "_half_above", "_half_at", "count")

    def __init__(self) -> None:
        self.count = 0
        self._counts = [0] * (LOST + 1)
        self._at = 0
        """The bucket of the quantile, …"""
        self._above = 0
        """… and the requests in those above it."""
        self._half_at = 0
        self._half_above = 0
        """The same for the median."""

    def add(self, took: float) -> None:
        """Takes a request in. inf: it got no first token."""
        if took <= LEAST_S:
            at = 0
        elif took == inf:
            at = LOST
        else:
            at = min(LOST - 1, ceil(log(took / LEAST_S) * PER_BUCKET))
        self._counts[at] += 1
        self._above += self._at < at < LOST
        self._half_above += at > self._half_at
        self.count += 1
        if self.count >= WINDOW:
            self._counts = counts = [count >> 1 for count in self._counts]
            self.count = sum(counts)
            self._above, self._half_above = sum(counts[self._at + 1 : LOST]), sum(counts[self._half_at + 1 :])

    def quantile(self, beyond: float) -> float:
        """What all but this share of the requests kept to. inf: too many got no first token. With too few requests to
        tell, a tail beyond the slowest is assumed."""
        counts, at, above = self._counts, self._at, self._above
        if counts[LOST] > MOST_LOST * self.count:
            return inf
        # What is lost is missed whatever is told. No less than LEAST_MISSES is left to the others: a lane that
        # owes much would be told nothing any more, and could never pay it back.
        most = max(beyond * self.count - counts[LOST], LEAST_MISSES * self.count)
        while above > most:
            at += 1
            above -= counts[at]
        while at and above + counts[at] <= most:
            above += counts[at]
            at -= 1
        self._at, self._above = at, above
        kept = LEAST_S * GROWTH**at
        return kept if most >= 1.0 else float(kept * (1.0 / max(most, LEAST_MISSES)) ** TAIL)

    def median(self) -> float:
        """What half of the requests kept to; the longest that is counted where half got no first token."""
        counts, at, above, most = self._counts, self._half_at, self._half_above, 0.5 * self.count
        while above > most:
            at += 1
            above -= counts[at]
        while at and above + counts[at] <= most:
            above += counts[at]
            at -= 1
        self._half_at, self._half_above = at, above
        return float(LEAST_S * GROWTH ** (at - 0.5))


class LaneQuotes:
    """What was told to requests of one lane, and what came of it."""

    __slots__ = ("cells", "last", "owed", "sent", "waited", "waiting_since")

    def __init__(self) -> None:
        self.cells: list[QuoteCell | None] = [None] * CELLS
        """None: no such request was seen yet."""
        self.sent = QuoteCell()
        self.waited = QuoteCell()
        """All cells of requests that were sent at once, and of those that waited, together."""
        self.owed = 0.0
        """Quotes that were missed, less one for every hundred that were told."""
        self.waiting_since = inf
        """When what came of a request that waited was first known. inf: never."""
        self.last: Load | None = None
        """The replica that the last request was sent to. None: none was sent."""

    @property
    def beyond(self) -> float:
        """The share of alike requests that may be later than what is told now."""
        return min(MOST_MISSES, max(LEAST_MISSES, MISSES * exp(-STEER * self.owed)))

    def cell(self, number: int) -> QuoteCell:
        cell = self.cells[number]
        if cell is None:
            cell = self.cells[number] = QuoteCell()
        return cell


class OpenQuote:
    """What a request was told. Times are from its arrival."""

    __slots__ = ("expected_s", "lane", "number", "open", "p99_s", "passed_s", "scale")

    def __init__(self, lane: str, number: int, passed_s: float, scale: float, expected_s: float, p99_s: float) -> None:
        self.lane: Final = lane
        """The lane in which it was told."""
        self.expected_s: Final = expected_s
        """Half of such requests have their first token sooner."""
        self.p99_s: Final = p99_s
        """99 of 100 such requests have their first token by then. inf: there is no such time, or none is known yet."""
        self.open = True
        """Whether it is not judged yet."""
        self.number: Final = number
        """The number of its cell."""
        self.passed_s: Final = passed_s
        """Seconds that had passed when it was told."""
        self.scale: Final = scale
        """Seconds that count as 1 in its cell."""


class Quotes:
    """The quotes of all lanes."""

    def __init__(self) -> None:
        self.lanes: dict[str, LaneQuotes] = {}

    def of(self, lane: str) -> LaneQuotes:
        found = self.lanes.get(lane)
        if found is None:
            if len(self.lanes) >= MOST_LANES:
                del self.lanes[next(iter(self.lanes))]
            found = self.lanes[lane] = LaneQuotes()
        return found

    def sent(self, lane: str, passed_s: float, uncached: int, before: int, load: Load, target_s: float) -> OpenQuote:
        """Quotes for a request that is sent now, `passed_s` after its arrival, to this replica: it has to compute
        `uncached` prompt tokens there, with `before` tokens of others ahead. `target_s`: what its lane promises; before
        the lane was seen at work, no less is told."""
        lane_quotes, each_s = self.of(lane), load.prefill_token_s
        number = 5 * _step(uncached * each_s / OWN_S, 5)
        if before:
            number += 1 + _step(before * each_s / AHEAD_S, 3)
        cell, all_sent, beyond = lane_quotes.cell(number), lane_quotes.sent, lane_quotes.beyond
        first_s = (uncached + before) * each_s
        if cell.count >= ENOUGH:
            p99_s = cell.quantile(beyond)
        else:
            p99_s = max(COLD * first_s, all_sent.quantile(beyond))
            if cell.count:
                p99_s = max(p99_s, cell.quantile(beyond))
            if all_sent.count < ENOUGH:
                p99_s = max(p99_s, target_s)
        expected_s = cell.median() if cell.count >= 8 else first_s
        return OpenQuote(lane, number, passed_s, 1.0, passed_s + min(expected_s, p99_s), passed_s + p99_s)

    def waits(
        self, lane: str, passed_s: float, wait_s: float, bound_s: float, left_s: float, uncached: int, now: float
    ) -> OpenQuote:
        """Quotes for a request that begins to wait, for `wait_s` by the forecast of its queue. `bound_s`: the most that
        its lane lets requests wait. `left_s`: what is left of its own bound, at which it is refused or relegated."""
        lane_quotes = self.of(lane)
        number = AT_ONCE + min(7, int(WAITS * wait_s / max(bound_s, LEAST_S)).bit_length())
        cell, load = lane_quotes.cell(number), lane_quotes.last
        first_s = None if load is None else load.pace.first_s(uncached, load.prefill_tokens)
        if first_s is None:
            first_s = uncached * (0.0005 if load is None else load.prefill_token_s)
        scale = max(2 * LEAST_S, wait_s + first_s)
        known = cell if cell.count >= ENOUGH else lane_quotes.waited
        p99_s = inf
        if known.count >= ENOUGH:
            seen_s = max(LEAST_S, now - lane_quotes.waiting_since)
            p99_s = known.quantile(lane_quotes.beyond) * scale * max(1.0, EPISODES * scale / seen_s) ** 0.5
        if p99_s > left_s + first_s:
            p99_s = inf
        expected_s = scale * (cell.median() if cell.count >= 8 else 1.0)
        return OpenQuote(lane, number, passed_s, scale, passed_s + min(expected_s, p99_s), passed_s + p99_s)

    def placed(self, lane: str, load: Load) -> None:
        """Notes where the last request of this lane was sent."""
        self.of(lane).last = load

    def judge(self, quote: OpenQuote, ttft_s: float, now: float) -> None:
        """Takes in when the first token of a request came that was told this, once. inf: it got none."""
        if not quote.open:
            return
        quote.open = False
        lane_quotes, number = self.of(quote.lane), quote.number
        took = (ttft_s - quote.passed_s) / quote.scale
        lane_quotes.cell(number).add(took)
        if number < AT_ONCE:
            lane_quotes.sent.add(took)
        else:
            lane_quotes.waited.add(took)
            lane_quotes.waiting_since = min(lane_quotes.waiting_since, now)
        if quote.p99_s < inf:
            owed = lane_quotes.owed + (1.0 - MISSES if ttft_s > quote.p99_s else -MISSES)
            lane_quotes.owed = max(-MOST_OWED, min(MOST_OWED, owed))


def told(quote: OpenQuote) -> QuoteTold:
    """The quote as drivers hear of it."""
    return QuoteTold(quote.lane, quote.expected_s, quote.p99_s if quote.p99_s < inf else None)


def judged(quote: QuoteTold | None, ttft_s: float | None, e2e_s: float, outcome: Outcome) -> QuoteTold | None:
    """Returns the quote, if there is one, with whether it was kept by a request that ended so."""
    if quote is None or quote.p99_s is None:
        return quote
    p99_s = quote.p99_s
    kept: bool | None = None
    if ttft_s is not None:
        kept = ttft_s <= p99_s
    elif outcome in MISSED:
        kept = False
    elif outcome in LEFT:
        kept = False if e2e_s > p99_s else None
    return QuoteTold(quote.lane, quote.expected_s, p99_s, kept)


def _step(times: float, most: int) -> int:
    """In which step of four a number is: 0 below 4, 1 below 16, …; `most` for all above."""
    return min(most, max(0, int(times).bit_length() - 1) >> 1)
