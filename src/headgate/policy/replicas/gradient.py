"""Finds how many requests at once a replica can take, by watching its latency.

Time to first token per prompt token and time per output token are each compared with their normal values; so is, by
itself, the time per token of unstreamed answers, whose first token the gateway did not see. While all are near normal
and the limit is in use, the limit grows; when they are not, it is cut; while nothing is known of any, it stays as it
is. A cut is also an experiment: if latency falls with it, requests were queueing; if not, the replica itself has become
slower, so the cut is taken back and normal is learned anew. Without this, as in Netflix's gradient2 whose norm is the
long-term average, a queue that stands long enough becomes the norm.

The line between the two is half: latency falls by half as much, in proportion, as concurrency did. That is where
throughput over latency is best (Kleinrock), so a replica that slows down smoothly has a place to settle too.
"""

from dataclasses import dataclass
from math import log
from typing import Final

TOLERANCE = 1.35
"""Multiple of normal latency beyond which requests are taken to queue."""
CUTS = (0.8, 0.8, 0.65, 0.5)
"""Share of the limit that is left after the first, second, … cut in a row."""
GROWTH = 0.05
"""Share by which the limit grows per window, up to where it was last cut; beyond, twice, three times, … as much:
nothing is known there."""
FASTEST = 0.5
WINDOW = 32
"""Fewest samples that are judged together. Their mid-mean is known to 6 % where single ones scatter by 30 %."""
PATIENT = 6
"""Windows after which half as many do, of a kind of which there are few."""
STALE_S = 60.0
"""A window not full after this is begun again: its samples tell of different times."""
PROBE = 40
"""Maximum windows until a cut is made only to see whether it helps. At first it is a few: whether `start` is more than
the replica can take is the first thing to find out."""
LOWER = 0.95
"""Share of normal that is left when a cut has helped …"""
ACCEPT = 0.3
"""… and the share of the way that normal moves towards the latency seen when a cut has not. Were normal to move up
only, chance would move it there."""
OVERHEAD = 128
"""Fixed cost of a request, in prompt tokens."""
ROOM = 2.0
"""Multiple of the requests in flight: a limit above this is not in use."""
FADES_TO, FADES = 2.2, 0.1
"""A limit above this multiple of the requests in flight comes down by this share of the difference with each window."""
WAITS = 12
"""Maximum windows for which a cut is not judged, until all latencies that were known before it are known again."""
SAME = 0.9
"""Ratio of two limits above which they are still about the same."""
SHORTEST_S = 1e-6

UNKNOWN_SIZE: Final = (64, 8)
"""Requests that a replica of unknown size may have at first, and the minimum: fewer would starve any batch."""


class _Signal:
    """One kind of latency: the samples of this window, and what is normal."""

    __slots__ = ("normal", "now", "samples", "unheard")

    def __init__(self) -> None:
        self.samples: list[float] = []
        self.unheard = 0
        """Windows that had too few of them."""
        self.now: float | None = None
        self.normal: float | None = None

    def close(self, enough: int) -> None:
        """The window's mid-mean. None where there are too few samples for one: they are kept until there are enough, or
        for PATIENT windows and there are some, so that the few that are streamed are heard, too."""
        if len(self.samples) < (enough if self.unheard < PATIENT else WINDOW // 2):
            self.now = None
            self.unheard += 1
            return
        self.unheard = 0
        ordered = sorted(self.samples)
        middle = ordered[len(ordered) // 4 : len(ordered) - len(ordered) // 4]
        self.now = sum(middle) / len(middle)
        self.samples.clear()

    @property
    def ratio(self) -> float:
        return 1.0 if self.now is None or self.normal is None else self.now / self.normal

    def learn(self) -> None:
        """Moves normal down towards a lower latency: lower is always nearer to normal."""
        if self.now is not None:
            normal = self.normal or self.now
            self.normal = normal + 0.3 * min(0.0, self.now - normal)

    def fell_by(self, least: float, before: float | None) -> bool:
        """Whether the latency fell by at least `least`, as a logarithm. Then requests were queueing, and normal is
        rather lower than assumed."""
        if self.now is None or before is None or self.normal is None or log(before / self.now) < least:
            return False
        self.normal *= LOWER if self.now > self.normal else 1.0
        return True

    def accept(self) -> None:
        """Moves normal towards the current latency, which is taken to be more or less normal."""
        if self.now is not None and self.normal is not None:
            self.normal += ACCEPT * (self.now - self.normal)


@dataclass(frozen=True, slots=True)
class _Cut:
    """How things were before a cut."""

    limit: float
    use: float
    probe: bool
    """Whether the cut was made to see whether it helps, not because latency was too high."""
    latencies: tuple[float | None, ...]


class GradientLimit:
    def __init__(self, start: float = 8, least: float = 1, most: float = 1024) -> None:
        self.limit = self._start = float(start)
        self._least = least
        self._most = most
        self._signals = (_Signal(), _Signal(), _Signal())
        """Latencies of first tokens, of tokens after them, and of tokens of unstreamed answers whose first-token time
        is unknown."""
        self._use = 0
        self._count = 0
        self._skip = int(start)  # the first requests find an empty replica, whatever the limit
        self._began = float("-inf")
        self._cut: _Cut | None = None
        self._waited = 0
        """Windows in which it was not known whether the cut has helped."""
        self._cuts = 0
        self._last_cut_at = 0.0
        self._growths = 0
        self._since_probe = 0
        self._probe_after = 0

    def observe(
        self,
        ttft_s: float | None,
        prompt_tokens: int,
        tpot_s: float | None,
        in_flight: int,
        now: float,
        token_s: float | None = None,
    ) -> None:
        """Takes in a request that ended with `in_flight` requests at its replica, itself included. Requests that were
        under way when the limit changed tell of the old limit, and are skipped. `ttft_s` None: unknown, and `token_s`
        is the seconds per token in all."""
        if self._skip > 0:
            self._skip -= 1
            return
        if ttft_s is None and token_s is None:
            return
        if self._count and now > self._began + STALE_S:
            self._start_window()
        if not self._count:
            self._began = now
        first, gap, whole = self._signals
        if ttft_s is not None:
            first.samples.append(max(ttft_s, SHORTEST_S) / (prompt_tokens + OVERHEAD))
        if tpot_s is not None:
            gap.samples.append(max(tpot_s, SHORTEST_S))
        if token_s is not None:
            whole.samples.append(max(token_s, SHORTEST_S))
        self._count += 1
        self._use += max(1, in_flight)
        # Of one kind, not of all together: of half as many of each less is known than where all are streamed, and what
        # is chance would more often pass for a cut that has helped. Some may have been kept from the window before.
        enough = int(min(max(WINDOW, self.limit), 4 * WINDOW))
        if self._count >= WINDOW and max(len(first.samples), len(whole.samples)) >= enough:
            self._end_window(enough, in_flight)

    def _end_window(self, enough: int, in_flight: int) -> None:
        before, use = self.limit, self._use / self._count
        for signal in self._signals:
            signal.close(enough)
        self._adjust(use)
        self._use = self._count = 0
        if self.limit != before:
            self._skip = in_flight
        if not SAME * before <= self.limit <= before / SAME:
            self._start_window()  # the few samples that were kept are of another limit

    def _start_window(self) -> None:
        self._use = self._count = 0
        for signal in self._signals:
            signal.samples.clear()
            signal.unheard = 0

    def _adjust(self, use: float) -> None:
        if self._cut is not None and self._waited < WAITS and self._unheard(self._cut):
            self._waited += 1
            return
        cut, self._cut = self._cut, None
        self._waited = 0
        if cut is not None and not self._helped(cut, use):
            self._take_back(cut)
            return
        over = max(signal.ratio for signal in self._signals) > TOLERANCE
        for signal in self._signals:
            signal.learn()
        self._since_probe += 1
        used = ROOM * use >= self.limit
        probe = used and not over and (self._since_probe > self._probe_after or (cut is not None and cut.probe))
        # A limit that is not in use can't be what makes requests queue, and cutting it would show nothing.
        if ((over and used) or probe) and self.limit > self._least:
            self._shrink(use, probe)
        elif over:
            for signal in self._signals:
                signal.accept()
        elif used:
            self._grow(use)
        else:
            self._fade(use)

    def _unheard(self, cut: _Cut) -> bool:
        """Whether a kind of latency that was known before the cut has too few samples since."""
        return any(
            before is not None and signal.now is None
            for signal, before in zip(self._signals, cut.latencies, strict=True)
        )

    def _helped(self, cut: _Cut, use: float) -> bool:
        """Whether latency fell by at least half as much as concurrency did."""
        less = log(cut.use / use)
        if less < 0.05:
            return False
        fell = [signal.fell_by(0.5 * less, before) for signal, before in zip(self._signals, cut.latencies, strict=True)]
        return any(fell)

    def _take_back(self, cut: _Cut) -> None:
        self.limit = cut.limit
        self._cuts = self._growths = 0
        if cut.probe:
            self._probe_after = min(PROBE, 2 * self._probe_after + 2)
        for signal in self._signals:
            signal.accept()

    def _shrink(self, use: float, probe: bool) -> None:
        if not self._cuts:
            self._last_cut_at = self.limit
        self._cut = _Cut(self.limit, use, probe, tuple(signal.now for signal in self._signals))
        self.limit = max(self._least, self.limit * CUTS[min(self._cuts, len(CUTS) - 1)])
        self._cuts += 1
        self._growths = 0
        if probe:
            self._since_probe = 0

    def _fade(self, use: float) -> None:
        """Lowers the limit towards what is in use, and never below where it began: what was found out in a burst is
        long ago."""
        beyond = self.limit - max(self._start, FADES_TO * use)
        if beyond > 1.0:
            self.limit -= FADES * beyond

    def _grow(self, use: float) -> None:
        """Raises the limit to no more than twice what is in use: that is room for bursts, and nothing is known of what
        lies beyond."""
        self._cuts = 0
        self._growths = self._growths + 1 if self.limit >= self._last_cut_at else 0
        step = min(FASTEST, GROWTH * (1 + self._growths)) * self.limit
        grown = min(self._most, self.limit + max(1.0 if self._growths > 1 else 0.25, step))
        self.limit = max(self.limit, min(grown, ROOM * use))


def limit_to_find(batch: int | None) -> GradientLimit:
    """A limit that is found by watching. `batch`: what the engine says it computes at once. More would wait in the
    engine's queue, in its order; fewer may be all that keep the promises, so that what it says is only the maximum."""
    if batch is None:
        return GradientLimit(*UNKNOWN_SIZE)
    start, least = UNKNOWN_SIZE
    return GradientLimit(min(start, batch), min(least, batch), batch)
