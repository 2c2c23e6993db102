"""Forecasts demand by time of day and week, learned from past demand.

A week has 1 008 slots of ten minutes. For each slot the forecast keeps the mean demand on the days it was last seen,
with the day's number. The expected demand of a slot is a quantile over those: the same slot of the week counts most,
the same time on other days less, working days and weekends least for each other, and older values less than newer ones.
So one day of history says something, a week says more, and an odd day, busy or dead, moves the quantile little. If the
last hours were above or below the forecast, the next hours are moved in proportion, by a factor of e^0.4 at most.

Hours are UTC. Where clocks change for summer time, peaks move by one hour, and the forecast follows within days; until
then the queue signal decides, as it always may.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from math import exp, isfinite, log
from typing import Any

from headgate.policy.scaling.pace import Pace

VERSION = 1
SLOT_S = 600
DAY_SLOTS = 144
WEEK_SLOTS = 7 * DAY_SLOTS
WEEKS = 6
"""Maximum values kept of a slot: one a week. 6 048 numbers in all."""
HALF_LIFE_DAYS = 14.0
OTHER_DAY, OTHER_KIND = 0.5, 0.25
"""Weight of another day's value, and of a weekend's value for a working day or the reverse."""
LEAST_SHARE = 0.5
"""Share of a slot that must have been watched for it to count."""
LEVEL_SLOTS = 6.0
LEVEL_MOST = 0.4
"""The last hours' deviation is forgotten over LEVEL_SLOTS slots, and moves the forecast by at most a factor of
e^LEVEL_MOST."""
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True, slots=True)
class ExpectedDemand:
    demand: float
    wall: float
    """The beginning of the slot with the highest expected demand, or now if that slot has begun."""
    days: int
    """Days of history behind the value."""

    def __str__(self) -> str:
        known = "1 day is" if self.days == 1 else f"{self.days} days are"
        return f"{self.demand:.0f} tokens/s by {clock(self.wall)} ({known} known)"


class Forecast:
    def __init__(self, quantile: float = 0.5) -> None:
        if not 0 < quantile <= 1:
            raise ValueError(f"expected a quantile above 0, at most 1, got {quantile!r}")
        self.quantile = quantile
        self.pace = Pace()
        """What a replica carries, needed to express demand in replicas."""
        self.level = 0.0
        """Logarithm of the ratio of the last hours' demand to the forecast for them."""
        self._seen: dict[int, list[tuple[int, float]]] = {}
        """By slot of the week: (day, demand), the latest last."""
        self._slot = -1
        """The current slot, counted from 1970."""
        self._first = self._last = 0.0
        self._sum = 0.0
        self._known: dict[int, ExpectedDemand] = {}
        """Computed forecasts by slot, until a slot is learned."""

    @property
    def slots(self) -> int:
        """Number of slots of the week with history."""
        return len(self._seen)

    # -- learning ---------------------------------------------------------------------------------------------

    def observe(self, wall: float, demand: float) -> None:
        """Records the demand since the last call. A pause longer than half a slot is not filled in."""
        if not (isfinite(wall) and isfinite(demand)) or wall < 0 or demand < 0:
            return
        slot = int(wall // SLOT_S)
        if slot != self._slot:
            if slot == self._slot + 1:
                self._add((self._slot + 1) * SLOT_S, demand)
            self._finish()
            self._slot, self._first, self._last, self._sum = slot, wall, wall, 0.0
        elif wall < self._last:
            self._first, self._last, self._sum = wall, wall, 0.0  # the clock was set back
        else:
            self._add(wall, demand)

    def _add(self, wall: float, demand: float) -> None:
        passed_s = wall - self._last
        if passed_s > SLOT_S * LEAST_SHARE:
            self._first += passed_s
        else:
            self._sum += passed_s * demand
        self._last = wall

    def _finish(self) -> None:
        watched_s = self._last - self._first
        if self._slot < 0 or watched_s < SLOT_S * LEAST_SHARE:
            return
        demand = self._sum / watched_s
        expected = self._quantile(self._slot, 0.5)
        self.level *= 1 - 1 / LEVEL_SLOTS
        if expected is not None and expected.demand > 0 and demand > 0:
            surprise = max(-LEVEL_MOST, min(LEVEL_MOST, log(demand / expected.demand)))
            self.level += surprise / LEVEL_SLOTS
        kept = self._seen.setdefault(self._slot % WEEK_SLOTS, [])
        kept.append((self._slot // DAY_SLOTS, demand))
        del kept[:-WEEKS]
        self._known.clear()

    # -- expecting --------------------------------------------------------------------------------------------

    def floor(self, wall_from: float, wall_to: float) -> float:
        """Demand to be ready for at any time between the two; 0: nothing is known."""
        expected = self.expect(wall_from, wall_to)
        return 0.0 if expected is None else expected.demand

    def expect(self, wall_from: float, wall_to: float) -> ExpectedDemand | None:
        """The highest expected demand between the two, at most a week ahead; None: nothing is known of that time."""
        first = int(wall_from // SLOT_S)
        last = min(int(wall_to // SLOT_S), first + WEEK_SLOTS)
        most: ExpectedDemand | None = None
        for slot in range(first, last + 1):
            expected = self._expected(slot)
            if expected is not None and (most is None or expected.demand > most.demand):
                most = expected
        if most is None:
            return None
        return ExpectedDemand(most.demand * exp(self.level), max(most.wall, wall_from), most.days)

    def _expected(self, slot: int) -> ExpectedDemand | None:
        known = self._known.get(slot)
        if known is None:
            known = self._quantile(slot, self.quantile)
            if known is not None:
                if len(self._known) > WEEK_SLOTS:
                    self._known.clear()
                self._known[slot] = known
        return known

    def _quantile(self, slot: int, level: float) -> ExpectedDemand | None:
        day, time = divmod(slot, DAY_SLOTS)
        # Day 0 was a Thursday; only which days are the weekend matters here.
        values: list[tuple[float, float]] = []
        days = set()
        for other in range(7):
            for then, demand in self._seen.get(other * DAY_SLOTS + time, ()):
                ago = day - then
                if ago <= 0:
                    continue  # the clock was set back
                weight = 1.0 if ago % 7 == 0 else OTHER_DAY if _weekend(then) == _weekend(day) else OTHER_KIND
                values.append((demand, weight * 0.5 ** (ago / HALF_LIFE_DAYS)))
                days.add(then)
        if not values:
            return None
        return ExpectedDemand(_weighted(values, level), slot * float(SLOT_S), len(days))

    # -- keeping ----------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The forecast as plain data for a file; about 100 kB at most."""
        seen = {str(slot): [[day, _round(demand)] for day, demand in kept] for slot, kept in self._seen.items()}
        under_way = [self._slot, self._first, self._last, self._sum]
        return {
            "version": VERSION,
            "slot_s": SLOT_S,
            "level": self.level,
            "pace": self.pace.to_list(),
            "under_way": under_way,
            "seen": seen,
        }

    @classmethod
    def from_dict(cls, data: Any, quantile: float = 0.5) -> "Forecast":
        """Reads a forecast from plain data. Raises ValueError for data that this version cannot read."""
        made = cls(quantile)
        if not isinstance(data, dict) or data.get("version") != VERSION or data.get("slot_s") != SLOT_S:
            raise ValueError(f"not a forecast of version {VERSION}")
        try:
            made.level = max(-LEVEL_MOST, min(LEVEL_MOST, _number(data["level"])))
            made.pace = Pace.from_list(data["pace"])
            slot, first, last, total = data["under_way"]
            made._slot, made._first, made._last, made._sum = int(slot), _number(first), _number(last), _number(total)
            for name, kept in data["seen"].items():
                if not 0 <= int(name) < WEEK_SLOTS:
                    raise ValueError(f"there is no slot {name!r}")
                made._seen[int(name)] = [(int(day), abs(_number(demand))) for day, demand in kept[-WEEKS:]]
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"a forecast that is damaged: {error!r}") from None
        return made


def clock(wall: float) -> str:
    """Formats a time such as Tue 09:10 UTC."""
    minutes = int(wall // 60)
    return f"{DAYS[(minutes // 1440 + 3) % 7]} {minutes // 60 % 24:02d}:{minutes % 60:02d} UTC"


def _weekend(day: int) -> bool:
    return (day + 3) % 7 >= 5


def _weighted(values: list[tuple[float, float]], level: float) -> float:
    """The smallest value at which the summed weights reach `level` of all weight."""
    values.sort()
    sums = list(accumulate(weight for _, weight in values))
    return values[bisect_left(sums, level * sums[-1] - 1e-12)][0]


def _number(value: Any) -> float:
    number = float(value)
    if not isfinite(number):
        raise ValueError(f"{value!r} is no number")
    return number


def _round(value: float) -> float:
    return float(f"{value:.4g}")
