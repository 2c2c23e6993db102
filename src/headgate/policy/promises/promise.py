"""Defines a lane's promises, and the figures that are read to judge them."""

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.model.lane import PROMISES, Lane
from headgate.policy.promises.burn import FIVE_MIN_S, Availability

MINUTE_S = 60
LEAST, LEAST_IN_TAIL = 20, 1
"""Minimum requests in a window before it is judged, and minimum number of them slower than the percentile: p99 needs
100."""
USUAL_PERCENTILE = 50
"""Percentile of TTFT that stands for the usual. The median, because it moves only if most requests do: with 50 requests
that differ as prompts do (σ of the logarithm 1), p95 is twice its usual value by chance once or twice a day, the median
every few months. The tail has promises of its own."""


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
    """ttft, tpot, gap or e2e; or answer: the time per token of an unstreamed answer whose first token's time is
    unknown."""
    percentile: int
    """50, 95 or 99."""
    within_s: float

    @property
    def of(self) -> str:
        """The figure that is read to judge the promise: for the p99 of e2e, only answers up to the promised length."""
        return "e2e_short" if (self.figure, self.percentile) == ("e2e", 99) else self.figure

    @property
    def name(self) -> str:
        return f"{self.figure}_p{self.percentile}"

    @property
    def least(self) -> int:
        """Minimum requests for a judgement."""
        return max(LEAST, round(LEAST_IN_TAIL / (1 - self.percentile / 100)))


def promises(lane: Lane) -> tuple[Promise, ...]:
    """The lane's promises, in the order in which people read them."""
    bounds = ((figure, percentile, getattr(lane, field)) for field, figure, percentile in PROMISES)
    return tuple(Promise(figure, percentile, within) for figure, percentile, within in bounds if within is not None)


def first_counts(lane: Lane) -> float:
    """Tokens that an answer's first token counts for: as many as the lane allows in the time promised for it."""
    return lane.ttft_target_s / lane.gap_target_s


def per_token_s(e2e_s: float, output_tokens: int, counts: float) -> float:
    """Seconds per token of an unstreamed answer whose first token's time is unknown; the first token counts as `counts`
    tokens. The result exceeds the promised gap exactly if the whole answer took longer than first token and tokens
    together may."""
    return e2e_s / (max(0, output_tokens) + counts)


# -- what is read -----------------------------------------------------------------------------------------

Asked = tuple[str, int, int]
"""(figure, percentile, window in seconds)"""


def asks(lane: Lane) -> tuple[Asked, ...]:
    """The percentiles that a LaneReading of this lane needs."""
    wanted = {("ttft", USUAL_PERCENTILE, FIVE_MIN_S): None}
    for promise in promises(lane):
        wanted[promise.of, promise.percentile, FIVE_MIN_S] = None
        if promise.percentile == 99:
            wanted[promise.of, promise.percentile, MINUTE_S] = None
    return tuple(wanted)


@dataclass(frozen=True, slots=True)
class Tail:
    """A percentile, and the number of requests behind it."""

    value_s: float | None
    """The percentile over all arrivals; inf: it falls on a refused or failed request. None: no request had that
    figure."""
    count: int
    """All arrivals."""
    missed: int = 0
    """Arrivals that were refused or failed, and so missed every promise."""
    of_served_s: float | None = None
    """The percentile over the served requests, where any were missed; None: none was missed, or none was served."""

    @property
    def served_s(self) -> float | None:
        """The percentile over the served requests."""
        return self.of_served_s if self.missed else self.value_s


NOTHING = Tail(None, 0)


def beyond(having: int, answered: int, missed: int) -> float:
    """The refused and failed requests that count as arrivals for a figure. Not every answer has each figure: an
    unstreamed one has no first token of its own. So the same share counts as among the answered; all count where none
    was answered."""
    return float(missed) if answered <= 0 else missed * min(1.0, having / answered)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneReading:
    tails: Mapping[Asked, Tail]
    requests: int
    """Requests for an answer since the lane was last read, without clients' own errors and tenants over their own
    limits."""
    failed: int
    """Requests among them that failed through a fault of the gateway or a replica."""
    refused: int = 0
    """Requests among them that were refused, to be retried later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReading:
    """The replicas, by their condition."""

    up: int = 1
    down: tuple[str, ...] = ()
    """Replicas that were in use before, or should be by now, and are neither usable nor parked."""
    why: str = ""
    """Why the first replica in `down` is down, as far as known, or the first starting one not ready where none is down;
    empty: unknown."""
    starting: int = 0
    parked: int = 0
    """Replicas that intentionally get no requests: parked or draining."""
    waking: int = 0
    """Those of `starting` that wake up from sleep."""
    sleeping: int = 0
    """Those of `parked` that sleep."""
    outage: bool = False
    """No replica is up, and that is not intended."""
    asleep: bool = False
    """No replica is up, and that is intended: all are parked, or there is nothing to do."""
    unserved: tuple[str, ...] = ()
    """Lanes and models whose replicas are all down, while others are up: `lane long`, `model x`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    lanes: Mapping[str, LaneReading]
    """Readings by lane; a lane that is missing is not judged this time."""
    waiting_per_replica: float
    utilisation: float | None
    """Share in use of the usable replicas' scarcest resource; None: no replica is usable."""
    cold: int
    """Requests of the last five minutes that met a cold replica."""
    cold_of: int
    """All requests of the last five minutes."""
    binding: str = ""
    """The name of that resource; see policy/replicas/utilisation.py."""
    fleet: FleetReading = FleetReading()
    unknown: Availability | None = None
    """Availability, since the last reading, of requests refused before their lane was known; None: not read."""
    tenant: TenantReading | None = None
    """None: no tenant asked in vain."""
    joined: tuple[str, ...] = ()
    """Replicas that came into use since the last reading, by the names that people know. Those there at the start are
    left out."""
