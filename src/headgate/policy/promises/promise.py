"""What is promised to a lane, and what is read to see whether it is kept?"""

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.model.lane import Lane
from headgate.policy.promises.burn import FIVE_MIN_S, Availability

MINUTE_S = 60
LEAST, LEAST_IN_TAIL = 20, 1
"""Requests in a window before it says anything, and how many of them are slower than the percentile: p99 needs 100."""
USUAL_PERCENTILE = 50
"""Of TTFT, for what is usual. The median, because it moves only if most requests do: of 50 requests that differ as
prompts do (σ of the logarithm 1), p95 is twice its usual by chance once or twice a day, the median every few months.
The tail has promises of its own."""


@dataclass(frozen=True, slots=True)
class TenantReading:
    """The tenant that gets fewest answers, of those that miss as many as count."""

    lane: str
    tenant: str
    asked: int
    missed: int
    others: int = 0
    """Tenants that get hardly any either."""


@dataclass(frozen=True, slots=True)
class Promise:
    figure: str
    """ttft, tpot, gap or e2e; or answer: for each token of an unstreamed answer whose first token's time is unknown"""
    percentile: int
    """50, 95 or 99"""
    within_s: float

    @property
    def of(self) -> str:
        """What is read to judge it: for the p99 of e2e, answers up to the length that it is promised for."""
        return "e2e_short" if (self.figure, self.percentile) == ("e2e", 99) else self.figure

    @property
    def name(self) -> str:
        return f"{self.figure}_p{self.percentile}"

    @property
    def least(self) -> int:
        """Requests without which it can't be judged."""
        return max(LEAST, round(LEAST_IN_TAIL / (1 - self.percentile / 100)))


def promises(lane: Lane) -> tuple[Promise, ...]:
    """What this lane is promised, in the order in which people read it."""
    bounds = (
        ("ttft", 50, lane.ttft_p50_s),
        ("ttft", 95, lane.ttft_target_s),
        ("ttft", 99, lane.ttft_p99_s),
        ("tpot", 50, lane.tpot_p50_s),
        ("gap", 99, lane.gap_target_s),
        ("answer", 95, lane.gap_target_s),
        ("e2e", 95, lane.e2e_p95_s),
        ("e2e", 99, lane.e2e_p99_s),
    )
    return tuple(Promise(figure, percentile, within) for figure, percentile, within in bounds if within is not None)


def first_counts(lane: Lane) -> float:
    """How many tokens the first one of an answer counts for: as many as could be said in the time promised for it."""
    return lane.ttft_target_s / lane.gap_target_s


def per_token_s(e2e_s: float, output_tokens: int, counts: float) -> float:
    """Seconds for each token of an answer in one piece of which nobody knows when its first token was there; the first
    counts for `counts`. It is above the promised time between tokens if, and only if, all of it took longer than first
    token and tokens together may."""
    return e2e_s / (max(0, output_tokens) + counts)


# -- what is read -----------------------------------------------------------------------------------------

Asked = tuple[str, int, int]
"""(figure, percentile, window in seconds)"""


def asks(lane: Lane) -> tuple[Asked, ...]:
    """The percentiles that a LaneReading of this lane should have."""
    wanted = {("ttft", USUAL_PERCENTILE, FIVE_MIN_S): None}
    for promise in promises(lane):
        wanted[promise.of, promise.percentile, FIVE_MIN_S] = None
        if promise.percentile == 99:
            wanted[promise.of, promise.percentile, MINUTE_S] = None
    return tuple(wanted)


@dataclass(frozen=True, slots=True)
class Tail:
    """A percentile, and how many requests it is of."""

    value_s: float | None
    """Over all arrivals; inf: it is one that was refused or failed. None: nobody had that figure."""
    count: int
    """Arrivals."""
    missed: int = 0
    """Of those, refused or failed: they missed whatever was promised."""
    of_served_s: float | None = None
    """The percentile over the others, where any were missed."""

    @property
    def served_s(self) -> float | None:
        """The percentile over those that were served."""
        return self.of_served_s if self.missed else self.value_s


NOTHING = Tail(None, 0)


def beyond(having: int, answered: int, missed: int) -> float:
    """Of so many that were refused or failed, those that count as arrivals for a figure. Not every answer has each: one
    in a single piece has no first token of its own. So as many as of the answered; all where none was answered."""
    return float(missed) if answered <= 0 else missed * min(1.0, having / answered)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneReading:
    tails: Mapping[Asked, Tail]
    requests: int
    """Since this lane was last read: all that asked for an answer, without clients' own errors and tenants over their
    own limits."""
    failed: int
    """Of those, the ones that failed through our fault."""
    refused: int = 0
    """Of those, the ones told to come back later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReading:
    """The replicas, by what is to be thought of them."""

    up: int = 1
    down: tuple[str, ...] = ()
    """In use before, or expected to be by now, and neither usable nor parked."""
    why: str = ""
    """What is known of the first of them."""
    starting: int = 0
    parked: int = 0
    """Given nothing because that is wanted: parked, draining."""
    outage: bool = False
    """None is up, and nobody wanted that."""
    asleep: bool = False
    """None is up, and that is wanted: all are parked, or there is nothing to do."""
    unserved: tuple[str, ...] = ()
    """Lanes and models whose replicas are all down, while others are up: `lane long`, `model x`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    lanes: Mapping[str, LaneReading]
    """Any of them: what is not in here is not judged this time."""
    waiting_per_replica: float
    utilisation: float | None
    """Share of the usable replicas' scarcest resource that is taken; None: there is none usable."""
    cold: int
    """Requests of the last five minutes that met a cold replica."""
    cold_of: int
    """All of the last five minutes."""
    binding: str = ""
    """Which resource that is; see policy/replicas/utilisation.py."""
    fleet: FleetReading = FleetReading()
    unknown: Availability | None = None
    """Since the last reading: of requests that were refused before anybody knew their lane; None: not read."""
    tenant: TenantReading | None = None
    """None: no tenant asked in vain."""
    joined: tuple[str, ...] = ()
    """Replicas that came into use since the last reading, as people know them. Those there at the start are none."""
