"""Measures availability by lane and tenant, over five minutes and an hour.

A lane that is well as a whole may refuse one tenant most of the time. Names of tenants come from the config, and from
the many clients that bring their own key: a capped number is told apart, and the rest are counted as `other`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headgate.model.labels import OTHER, Cap
from headgate.model.lane import Lane
from headgate.model.outcome import ASIDE, Outcome
from headgate.model.record import Record
from headgate.policy.promises.availability import MOST
from headgate.policy.promises.burn import FIVE_MIN_S, HOUR_S, LEAST_FAILED, Availability, Burn, Meter
from headgate.policy.promises.promise import TenantReading

RESULTS = ("answered", "refused", "failed", "over_limit", "client")
UNUSED_S = 2.0 * HOUR_S
"""Seconds without a request after which a tenant in a lane is forgotten, to make room for another."""
LOOK_S = 60.0
MOST_TOLD = 200
"""Maximum tenants listed in one answer, those with most requests in the last hour first; and maximum tenants examined
by `worst`."""


class TenantAnswers:
    """The results of one tenant in one lane."""

    __slots__ = ("burn", "results", "used_at")

    def __init__(self, budget: float, now: float) -> None:
        self.burn = Burn(budget, Meter(3, slice_s=60, reach_s=HOUR_S))
        self.results = dict.fromkeys(RESULTS, 0)
        """Requests by result, since the first one."""
        self.used_at = now


class TenantAvailability:
    """A consumer of records: `take` is called a few times a second with the records that closed."""

    def __init__(self, names: int, budget: float, lanes: Mapping[str, Lane]) -> None:
        """`names`: maximum tenants told apart. `lanes`: the dispatcher's own, which change with the config."""
        self.of: dict[tuple[str, str], TenantAnswers] = {}
        """Results by lane and tenant."""
        self._cap = Cap(names)
        self._budget = budget
        self._lanes = lanes
        self._look_at = 0.0
        self._missed: dict[tuple[str, str], float] = {}
        """When each lane and tenant last missed an answer, in the last five minutes, the latest last."""

    def take(self, records: Sequence[Record], now: float) -> None:
        # Records come some hundreds at a time, most of them alike: equal ones are looked up once.
        alike = Counter(
            [(record.lane, record.tenant, record.outcome._value_) for record in records]
        )  # enums hash slowly
        for (lane, tenant, outcome), number in alike.items():
            if tenant:  # empty: the request was not understood, and its tenant is unknown
                self._add(lane, tenant, Outcome(outcome), number, now)
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._forget(now)

    def _add(self, lane: str, tenant: str, outcome: Outcome, number: int, now: float) -> None:
        named = self._cap.known(tenant) if outcome is Outcome.UNAUTHORIZED else self._cap.of(tenant)
        key = (lane if lane in self._lanes else OTHER, named)
        found = self.of.get(key)
        if found is None:
            found = self.of[key] = TenantAnswers(self._budget, now)
        found.used_at = now
        result = result_of(outcome)
        found.results[result] += number
        if outcome not in ASIDE:
            found.burn.add(number, number * (result == "failed"), now, number * (result == "refused"))
            if result != "answered":
                self._missed.pop(key, None)
                self._missed[key] = now

    def told(self, now: float) -> list[dict[str, Any]]:
        """The tenants of the last hour for /admin/slo, as objects that encode to JSON."""
        told = [
            {
                "lane": lane,
                "tenant": tenant,
                "availability": {"5m": availability(found.burn.counts(FIVE_MIN_S, now)), "1h": availability(hour)},
                "burn": {"5m": found.burn.rate(FIVE_MIN_S, now), "1h": found.burn.rate(HOUR_S, now)},
                "over_limit": found.results["over_limit"],
            }
            for (lane, tenant), found, hour in self._of_the_hour(now)
        ]
        return told[:MOST_TOLD]

    def shares(self, now: float) -> Iterator[tuple[str, str, float]]:
        """(lane, tenant, share answered in the last five minutes), for tenants that asked in that time."""
        for (lane, tenant), found in self.of.items():
            share = found.burn.counts(FIVE_MIN_S, now).share
            if share is not None:
                yield lane, tenant, share

    def worst(self, now: float) -> TenantReading | None:
        """The tenant with the largest share of missed answers over five minutes; None: none missed enough to tell.
        Called once a second: only tenants with a recent miss are examined, and at most MOST_TOLD of them, the
        latest."""
        for key in [key for key, at in self._missed.items() if now - at > FIVE_MIN_S or key not in self.of]:
            del self._missed[key]
        found: list[tuple[float, str, str, Availability]] = []
        for lane, tenant in list(self._missed)[-MOST_TOLD:]:
            counts = self.of[lane, tenant].burn.counts(FIVE_MIN_S, now)
            if counts.missed >= LEAST_FAILED:
                found.append((counts.missed / counts.asked, lane, tenant, counts))
        if not found:
            return None
        share, lane, tenant, counts = max(found, key=lambda one: one[0])
        others = sum(one[0] >= MOST for one in found) - (share >= MOST)
        return TenantReading(lane, tenant, counts.asked, counts.missed, others)

    def _of_the_hour(self, now: float) -> list[tuple[tuple[str, str], TenantAnswers, Availability]]:
        hours = [(key, found, found.burn.counts(HOUR_S, now)) for key, found in self.of.items()]
        return sorted((one for one in hours if one[2].asked), key=lambda one: -one[2].asked)

    def _forget(self, now: float) -> None:
        unused = [key for key, found in self.of.items() if now - found.used_at > UNUSED_S]
        for key in unused:
            del self.of[key]
        if unused:
            self._cap.keep({tenant for _, tenant in self.of})


def result_of(outcome: Outcome) -> str:
    """The outcome's name in RESULTS."""
    if outcome is Outcome.OVER_LIMIT:
        return "over_limit"
    kind = outcome.kind
    return "answered" if kind == "ok" else kind


def availability(found: Availability) -> dict[str, float | int | None]:
    """Availability as an object for JSON; `share` is None without requests: that is neither 0 nor 100 %."""
    return {
        "share": found.share,
        "asked": found.asked,
        "answered": found.answered,
        "refused": found.refused,
        "failed": found.failed,
    }
