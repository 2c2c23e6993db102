"""Averages what is seen of a pool over the last minutes: its demand."""

from dataclasses import dataclass
from math import exp, inf, sqrt

from headgate.policy.scaling.placement import PoolView, Sorted

STARTS = 2.0
SMOOTH_S = (30.0, 300.0)
"""Occupancy and velocity are averaged over STARTS starts, within these bounds in seconds: a shorter peak would be over
before a started replica could help."""
SPREAD_S = 900.0
"""Seconds over which the deviation of the present requests is measured."""


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """The pool's demand over the last minutes."""

    present: float
    """Requests at replicas and waiting."""
    spread: float | None
    """Standard deviation of the present requests; None: not known yet, or no request is present."""
    tokens: float
    velocity: float
    carried: float
    """The part of the velocity that its members are sent."""
    use: float
    """Share of the serving replicas' room in use."""
    slots: float
    """Mean slots of a serving replica."""
    passed_s: float
    scarce: float
    """Share in use of the serving replicas' scarcest resource beside slots."""
    binding: str


class Signals:
    """Averages of the pool's signals, each moment weighted by how long it lasted."""

    def __init__(self) -> None:
        self._at = -inf
        self._slots = 1.0
        self._present = self._tokens = self._velocity = self._carried = self._use = self._scarce = 0.0
        self._variance = self._watched_s = 0.0

    def see(self, view: PoolView, there: Sorted, now: float) -> PoolDemand:
        passed_s = now - self._at if self._at > -inf else 0.0
        smooth_s = max(SMOOTH_S[0], min(STARTS * view.start_s, SMOOTH_S[1]))
        share = 1.0 if self._at == -inf else 1.0 - exp(-max(0.0, passed_s) / smooth_s)
        self._at = now
        slots = [member.slots for member in there.routed]
        if slots:
            self._slots = max(1.0, sum(slots) / len(slots))
        here = [*there.routed, *there.draining]
        at_work = sum(member.requests for member in there.routed)
        present = view.present
        if present is None:
            present = view.waiting + sum(member.requests for member in here)
        tokens = view.waiting_tokens + sum(member.outstanding_tokens for member in here)
        use = (at_work + view.waiting) / sum(slots) if slots else 0.0
        self._vary(present - self._present, passed_s)
        self._present += share * (present - self._present)
        self._tokens += share * (tokens - self._tokens)
        self._velocity += share * (view.tokens_per_s - self._velocity)
        carried = view.tokens_per_s if view.carried_tokens_per_s is None else view.carried_tokens_per_s
        self._carried += share * (carried - self._carried)
        self._use += share * (use - self._use)
        scarce = sum(member.use for member in there.routed) / len(slots) if slots else 0.0
        self._scarce += share * (scarce - self._scarce)
        most = max(there.routed, key=lambda member: member.use, default=None)
        spread = sqrt(self._variance) if self._watched_s >= SPREAD_S and self._present > 0 else None
        return PoolDemand(
            self._present,
            spread,
            self._tokens,
            self._velocity,
            self._carried,
            self._use,
            self._slots,
            max(0.0, passed_s),
            self._scarce,
            "" if most is None else most.binding,
        )

    def _vary(self, off: float, passed_s: float) -> None:
        self._watched_s += max(0.0, passed_s)
        over_s = min(SPREAD_S, max(1.0, self._watched_s))
        self._variance += (1.0 - exp(-max(0.0, passed_s) / over_s)) * (off * off - self._variance)
