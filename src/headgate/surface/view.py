"""Collects what the diagnosis reads: the last five minutes of figures, and what the slowest requests lost time on."""

from typing import Protocol

from headgate.config.gateway import ObserveConfig
from headgate.explain.diagnose import LaneView, View
from headgate.measure.evidence import Evidence
from headgate.measure.windows import WindowCounts
from headgate.model.lane import Lane
from headgate.model.quantile import Sketch
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.promises.promise import FleetReading, promises
from headgate.surface.drift import Drift

WINDOW_S = 300


class RecentFigures(Protocol):
    """The part of measure/figures.py that is used here."""

    def sketch(self, figure: str, window_s: int, now: float, *, lane: str | None = None) -> Sketch: ...
    def counts(self, window_s: int, now: float, *, lane: str | None = None) -> WindowCounts: ...


def view(
    dispatcher: Dispatcher,
    figures: RecentFigures,
    evidence: Evidence,
    observe: ObserveConfig,
    fleet: FleetReading,
    lag_p99_s: float,
    now: float,
    drift: Drift | None = None,
) -> View:
    seen = dispatcher.view(now)
    use, up = seen.use, fleet.up
    return View(
        lanes=tuple(_lane(counts.lane, figures, evidence, now) for counts in seen.lanes.values()),
        replicas_up=up,
        replicas_out=fleet.down,
        why_out=fleet.why,
        replicas_starting=fleet.starting,
        replicas_parked=fleet.parked,
        outage=fleet.outage,
        asleep=fleet.asleep,
        unserved=fleet.unserved,
        utilisation=use.largest or 0.0,
        use=use.known,
        binding=use.binding,
        waiting_per_replica=seen.waiting / max(1, up),
        loop_lag_p99_s=lag_p99_s,
        drifts=() if drift is None else drift.look([one.replica for one in seen.replicas.values()], now),
        promised=observe,
    )


def _lane(lane: Lane, figures: RecentFigures, evidence: Evidence, now: float) -> LaneView:
    name = lane.name
    made = promises(lane)
    shown = dict.fromkeys((*(promise.of for promise in made), "e2e", "queue"))
    sketches = {figure: figures.sketch(figure, WINDOW_S, now, lane=name) for figure in shown}
    counted = evidence.lane(name, now, WINDOW_S)
    losses = evidence.losses(name, now, WINDOW_S)
    prompt_p99, output_p50, output_p99 = evidence.lengths(name)
    heaviest = counted.tenants.most_common(1)
    tenant, waited = heaviest[0] if heaviest else ("", 0)
    counts = figures.counts(WINDOW_S, now, lane=name)
    return LaneView(
        lane=lane,
        requests=counts.requests,
        asked=counts.asked,
        turned_away=counts.missed - counts.failed,
        measured_s={promise.name: sketches[promise.of].quantile(promise.percentile / 100) for promise in made},
        e2e_p999_s=sketches["e2e"].quantile(0.999),
        queue_p99_s=sketches["queue"].quantile(0.99),
        first_lost=losses.first,
        token_lost=losses.tokens,
        long_beside=losses.long_beside,
        prompt_p99=prompt_p99,
        output_p50=output_p50,
        output_p99=output_p99,
        waited=counted.waited,
        heaviest=tenant,
        # A tenant that only waits for itself delays no other.
        heaviest_share=waited / counted.waited if len(counted.tenants) > 1 else 0.0,
        preempted=counted.preempted,
        cold=counted.cold,
        stalled=counted.stalled,
        refused=dict(counted.refused),
        failed=counted.failed,
    )
