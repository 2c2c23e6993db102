"""Describes what the gateway is doing right now, for the page's feed; surface/live.py lists the content."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any, Protocol

import msgspec

from headgate import __version__
from headgate.config.gateway import ObserveConfig
from headgate.explain.diagnose import Finding, View, findings
from headgate.explain.troubles import troubles
from headgate.gateway.gateway import Gateway
from headgate.machine.profile import Profile
from headgate.measure.conditions import Conditions, ReplicaStanding
from headgate.measure.evidence import Evidence, Told
from headgate.measure.figures import Figures
from headgate.measure.pulse import Pulse
from headgate.measure.timeline import BANDS, RANGES
from headgate.measure.windows import PART_S, WindowCounts
from headgate.model.clock import Clock, monotonic, wall
from headgate.model.replica import ReplicaId
from headgate.policy.dispatch.view import LaneCounts
from headgate.policy.promises.promise import FleetReading
from headgate.policy.promises.slo import promises
from headgate.publish.fleet_metrics import cost_per_1000_tokens
from headgate.publish.request_metrics import hit_rate
from headgate.surface.drift import Drift
from headgate.surface.view import view
from headgate.upkeep.prober import Prober
from headgate.upkeep.replica_set import FleetView

WINDOW_S = 60
SHOWN = ("ttft", "tpot", "gap", "e2e", "queue", "ttft_cold", "ttft_warm")
SLOWEST = 8
SLOWEST_S = 300.0
FINDINGS_EVERY_S = 2.0
"""Seconds for which a diagnosis is reused for all readers, unless the fleet's reading has changed."""
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


class AlarmState(Protocol):
    def state(self, now: float | None = None, /) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Sources:
    """The objects that a snapshot is read from."""

    gateway: Gateway
    figures: Figures
    alarms: AlarmState
    pulse: Pulse
    observe: ObserveConfig
    conditions: Conditions | None = None
    """Says which replicas are up, parked, starting or down; None: made from the other sources."""
    watches: Mapping[ReplicaId, Prober] = field(default_factory=dict)
    """The prober of each replica, which has what the replica reports of itself."""
    fleet: Callable[[], FleetView | None] = lambda: None
    """Returns the fleet that starts and stops replicas; None: there is none."""
    rollouts: Callable[[], list[dict[str, Any]]] = list
    """Returns the versions of models, and which of them is being tried out."""
    batches: Callable[[], dict[str, Any]] = dict
    """Returns the batches that are not over; nothing: they are off."""
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    """Machine profiles of the replicas by their tag gpu_type; `any`: of all others."""
    clock: Clock = monotonic
    wall: Clock = wall
    refresh: Callable[[], None] = lambda: None
    """Hands the records that have just closed to every consumer; called before anything is read."""


class Snapshot:
    def __init__(self, sources: Sources, evidence: Evidence) -> None:
        self._sources = sources
        self._evidence = evidence
        self._drift = Drift(sources.profiles, evidence.recent)
        self._conditions = sources.conditions or Conditions(sources.gateway.dispatcher, sources.watches, sources.fleet)
        self._found: tuple[float, View, list[Finding]] | None = None
        self._fleet: FleetReading | None = None
        """The fleet's reading from which `_found` was made; None: not made yet."""

    def now(self, now: float) -> dict[str, Any]:
        sources = self._sources
        state, fleet = sources.alarms.state(now), sources.fleet()
        found = self.diagnosis(now)[1]
        standings, seen = self._conditions.standings(now), sources.gateway.dispatcher.view(now)
        return {
            "verdict": state["verdict"],
            "now": sources.wall(),
            "version": __version__,
            "uptime_s": now - sources.figures.started,
            "keyed": sources.gateway.acceptor.keyed,
            "lanes": [self._lane(counts, state, now) for counts in seen.lanes.values()],
            "replicas": [self._replica(standing) for standing in standings.values()],
            "outage": self._conditions.outage(now),
            "fleet": None if fleet is None else fleet.news(),
            "rollouts": sources.rollouts(),
            "batches": sources.batches(),
            "shared": None if seen.shared is None else msgspec.to_builtins(seen.shared),
            "alerts": state["alerts"],
            "findings": [asdict(finding) for finding in found],
            "troubles": troubles(state["alerts"], found),
            "slowest": [_slow(told, now) for told in self._evidence.slowest(now, SLOWEST_S, SLOWEST)],
            "totals": self._totals(now),
        }

    def history(self, now: float, span: str = "10m") -> dict[str, Any]:
        """The last ten minutes, hour or day of every lane; `span` is one of timeline.RANGES."""
        offset = self._sources.wall() - now
        lanes = {
            name: [asdict(part) | {"at": part.at + offset} for part in self._sources.figures.timeline(name, now, span)]
            for name in self._sources.gateway.dispatcher.lanes
        }
        slices, parts = RANGES[span]
        return {"lanes": lanes, "bands": BANDS, "range": span, "step_s": parts * PART_S, "slices": slices}

    def diagnosis(self, now: float) -> tuple[View, list[Finding]]:
        """The figures and the findings made from them."""
        fleet = self._conditions.read(now)
        if self._found is None or not 0 <= now - self._found[0] < FINDINGS_EVERY_S or fleet != self._fleet:
            sources, self._fleet = self._sources, fleet
            lag_s = sources.pulse.lag.quantile(0.99) or 0.0
            dispatcher, observe = sources.gateway.dispatcher, sources.observe
            seen = view(dispatcher, sources.figures, self._evidence, observe, fleet, lag_s, now, self._drift)
            self._found = (now, seen, findings(seen))
        return self._found[1:]

    def _lane(self, counts: LaneCounts, state: dict[str, Any], now: float) -> dict[str, Any]:
        figures, lane, name = self._sources.figures, counts.lane, counts.lane.name
        rates = figures.rates(WINDOW_S, now, lane=name)
        law, judged = figures.little(name), state.get("lanes", {}).get(name, {})
        states = {(p["lane"], p["figure"], p["percentile"]): p["state"] for p in state["promises"]}
        return {
            "name": name,
            "waiting": counts.waiting,
            "running": counts.running,
            "requests_per_s": rates.requests,
            "refused_per_s": rates.refused,
            "failed_per_s": rates.failed,
            "cache_hit_rate": hit_rate(figures.counts(WINDOW_S, now, lane=name)),
            **_answered(figures.counts(WINDOW_S, now, lane=name)),
            "state": judged.get("state", "ok"),
            "badge": judged.get("badge", ""),
            "figures": {figure: self._percentiles(figure, name, now) for figure in SHOWN},
            "arrivals": self._arrivals(name, now),
            "promises": [
                asdict(promise) | {"state": states.get((name, promise.figure, promise.percentile), "ok")}
                for promise in promises(lane)
            ],
            "little": {
                "l": None if law is None else law.l,
                "lambda": None if law is None else law.lambda_,
                "w": None if law is None else law.w,
                "residual": None if law is None else law.residual,
            },
        }

    def _percentiles(self, figure: str, lane: str, now: float) -> dict[str, float | None]:
        sketch = self._sources.figures.sketch(figure, WINDOW_S, now, lane=lane)
        return dict(zip(_PERCENTILES, sketch.quantiles(tuple(_PERCENTILES.values())), strict=True))

    def _arrivals(self, lane: str, now: float) -> dict[str, dict[str, float | str | None]]:
        """Percentiles over all arrivals; `missed`: the percentile falls on a request that was refused or failed."""
        figures, told = self._sources.figures, {}
        counts = figures.counts(WINDOW_S, now, lane=lane)
        for figure in ("ttft", "tpot", "e2e"):
            sketch = figures.sketch(figure, WINDOW_S, now, lane=lane)
            values = sketch.quantiles(tuple(_PERCENTILES.values()), counts.beyond(figure, sketch.count))
            told[figure] = {
                name: "missed" if value == inf else value for name, value in zip(_PERCENTILES, values, strict=True)
            }
        return told

    def _replica(self, standing: ReplicaStanding) -> dict[str, Any]:
        seen = standing.seen
        replica, watch = seen.replica, self._sources.watches.get(seen.id)
        said = watch.load if watch is not None else {}
        return {
            "id": seen.id,
            "state": standing.state,
            "condition": standing.condition,
            "kind": replica.kind if watch is None else watch.replica.kind,
            "lifecycle": standing.lifecycle,
            "usable": seen.usable,
            "requests": seen.requests,
            "limit": seen.limit,
            "tokens": seen.tokens,
            "kv_ratio": said.get("kv_ratio"),
            "batch_size": said.get("batch_size"),
            "emulated": bool(said.get("emulated")),
            "version": replica.tags.get("version", ""),
            "model": replica.model or ", ".join(sorted(replica.models) or ([] if watch is None else watch.models)),
            "gpu_type": replica.tags.get("gpu_type", ""),
            "since_s": None if standing.since is None else self._sources.clock() - standing.since,
            "why": standing.why,
        }

    def _totals(self, now: float) -> dict[str, Any]:
        sources = self._sources
        rates = sources.figures.rates(WINDOW_S, now)
        use = sources.gateway.dispatcher.view(now).use
        cost = cost_per_1000_tokens(sources.observe, sources.figures)
        return {
            "requests": sources.gateway.account.opened,
            "requests_per_s": rates.requests,
            "failed_per_s": rates.failed,
            "refused_per_s": rates.refused,
            "tokens_per_s": rates.output_tokens,
            "utilisation": use.largest,
            "utilisation_by": use.known,
            "loop_lag_p99_s": sources.pulse.lag.quantile(0.99),
            "cost_per_million_tokens": None if cost is None else 1000 * cost,
            "currency": sources.observe.currency,
            "ended_early": sources.figures.ended.told(),
            **_answered(sources.figures.counts(WINDOW_S, now)),
        }


def _answered(counts: WindowCounts) -> dict[str, Any]:
    """The requests that asked, and the share answered; `availability` None: no request asked."""
    return {"asked": counts.asked, "availability": counts.answered / counts.asked if counts.asked else None}


def _slow(told: Told, now: float) -> dict[str, Any]:
    record = told.record
    return {
        "id": record.id,
        "lane": record.lane,
        "tenant": record.tenant,
        "ttft_s": record.ttft_s,
        "e2e_s": record.e2e_s,
        "outcome": record.outcome.value,
        "headline": told.headline,
        "strain": told.strain,
        "ago_s": max(0.0, now - record.at - record.e2e_s),
    }
