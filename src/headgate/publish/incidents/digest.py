"""Sums up a Flight in a few values: what `headgate incident ls` and `show` tell, without opening the trace."""

from collections import Counter
from typing import Any, Final

from headgate import __version__
from headgate.model.record import Record
from headgate.publish.incidents.flight import Flight

SLOWEST: Final = 10
MOST_REPLICAS: Final = 64


def digest(flight: Flight) -> dict[str, Any]:
    """An object that encodes to JSON."""
    ended = [record for record in flight.records if record.at + record.e2e_s >= flight.began]
    outcomes = Counter(record.outcome.value for record in ended)
    return {
        "id": flight.id,
        "headgate": __version__,
        "at": flight.wall,
        "seconds": round(flight.ended - flight.began, 3),
        "reason": flight.reason,
        "alerts": list(flight.alerts),
        "requests": {"ended": len(ended), "running": len(flight.running), "outcomes": dict(outcomes.most_common())},
        "lanes": _lanes(flight),
        "replicas": _replicas(flight),
        "conditions": dict(flight.fleet[-1].conditions) if flight.fleet else {},
        "slowest": [
            {**_request(told.record), "headline": told.headline} for told in flight.slowest[:SLOWEST]
        ],
        "longest_running": [_request(record) for record in flight.running[:SLOWEST]],
        "pauses": {"count": len(flight.pauses), "longest_s": max((one.took_s for one in flight.pauses), default=0.0)},
        "steps": {replica: len(steps) for replica, steps in flight.steps},
    }  # fmt: skip


def _lanes(flight: Flight) -> list[dict[str, Any]]:
    """Each lane's requests that wait and run, at the end and at most."""
    told: dict[str, dict[str, Any]] = {}
    for moment in flight.lanes:
        for name, waiting, running in moment.counts:
            lane = told.setdefault(name, {"name": name, "waiting_most": 0, "running_most": 0})
            lane["waiting"], lane["running"] = waiting, running
            lane["waiting_most"] = max(lane["waiting_most"], waiting)
            lane["running_most"] = max(lane["running_most"], running)
    return list(told.values())


def _replicas(flight: Flight) -> list[dict[str, Any]]:
    """Each replica that was sampled: as it was last seen, and the states before that one."""
    told: dict[str, dict[str, Any]] = {}
    for fleet in flight.fleet:
        for moment in fleet.replicas:
            known = told.setdefault(moment.id, {"id": moment.id, "states": []})
            known |= {
                "kind": moment.kind, "condition": moment.condition, "state": moment.state, "why": moment.why,
                "requests": moment.requests, "limit": moment.limit, "kv_ratio": moment.kv_ratio,
                "batch_size": moment.batch_size,
            }  # fmt: skip
            states = known["states"]
            if not states or states[-1]["state"] != moment.state:
                states.append({"state": moment.state, "ago_s": round(flight.ended - fleet.at, 3)})
    worst_first = sorted(told.values(), key=lambda one: (one["condition"] == "up", one["id"]))
    return worst_first[:MOST_REPLICAS]


def _request(record: Record) -> dict[str, Any]:
    return {
        "id": record.id,
        "lane": record.lane,
        "tenant": record.tenant,
        "replica": record.replica,
        "outcome": record.outcome.value,
        "ttft_s": record.ttft_s,
        "e2e_s": record.e2e_s,
        "queue_s": record.queue_s,
    }
