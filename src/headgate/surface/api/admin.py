"""Describes the API that operators use, route by route: the gateway's inside, and changes while it runs."""

from typing import Any

from headgate.surface.api.operation import Operation, Operations, Parameter, Schema, ref
from headgate.surface.api.schemas import ANY_OBJECT, array, of

INSIDE, FLEET, ROLLOUT = "Inside", "Fleet and config", "Rollouts"
OBJECT: Schema = {"type": "object"}


def _number(name: str, about: str, default: float) -> Parameter:
    return Parameter(name=name, about=about, schema=of("number", default=default))


def _named(name: str, about: str) -> Parameter:
    return Parameter(name=name, about=about, where="path")


def _look(name: str, summary: str, about: str = "", **more: Any) -> Operation:
    answer = more.pop("answer", OBJECT)
    return Operation(tag=INSIDE, name=name, summary=summary, about=about, who="admin", answer=answer, **more)


def _change(name: str, summary: str, about: str = "", tag: str = FLEET, **more: Any) -> Operation:
    answer = more.pop("answer", ref("Done"))
    errors = more.pop("errors", (400, 401, 403, 413, 415))
    return Operation(
        tag=tag, name=name, summary=summary, about=about, who="admin", answer=answer, errors=errors, **more
    )


LAST = _number("last", "How far back to look, in seconds.", 300.0)

ADMIN: Operations = {
    ("GET", "/admin/requests/*"): _look(
        "request",
        "One request, and where its time went",
        "Also of one that is still running.",
        path="/admin/requests/{id}",
        parameters=(_named("id", "As in its x-request-id."),),
        answer=ref("Explained"),
        errors=(401, 404, 503),
    ),
    ("GET", "/admin/slow"): _look(
        "slow",
        "The slowest requests, with reasons",
        parameters=(
            Parameter(name="lane", about="Only of this lane."),
            LAST,
            _number("limit", "How many at most.", 20),
            Parameter(name="by", about="What was slow.", schema=of("string", enum=["e2e", "ttft", "gap"])),
        ),
        answer=ref("Slow"),
        errors=(400, 401, 503),
    ),
    ("GET", "/admin/blame"): _look(
        "blame",
        "Which tenant cost which how much of its p99",
        "The requests around each tenant's p99 are explained, and what others' requests took is charged to them. "
        "`costs` is ranked by seconds; for each tenant `own_s`, `others_s` and `none_s` (replicas, the gateway, or "
        "unknown) add up to `p99_s`.",
        parameters=(
            Parameter(name="lane", about="Only of this lane."),
            LAST,
            Parameter(name="by", about="Whose p99.", schema=of("string", enum=["ttft", "e2e"])),
        ),
        answer=ref("Blame"),
        errors=(400, 401, 503),
    ),
    ("GET", "/admin/slo"): _look(
        "slo",
        "Promises, availability and alerts",
        "Percentiles are over all arrivals (`arrivals_s`; null with `missed` where it is of a request that got no "
        "answer) and over the served (`served_s`). Availability is by lane and by tenant; null: no request came.",
        errors=(401,),
    ),
    ("GET", "/admin/doctor"): _look("doctor", "What is wrong, and the figures that say so", errors=(401,)),
    ("GET", "/admin/records"): _look(
        "records",
        "Records, one to a line, the newest last",
        parameters=(LAST, _number("limit", "How many at most.", 1000)),
        answer=ref("Record"),
        content_type="application/x-ndjson",
        errors=(400, 401, 503),
    ),
    ("GET", "/admin/usage"): _look(
        "usage",
        "Tokens and requests by hour, tenant and model",
        parameters=(
            _number("last", "How far back to look, in seconds.", 86400.0),
            Parameter(name="format", about="How.", schema=of("string", enum=["jsonl", "csv"])),
        ),
        answer=ref("UsageRow"),
        content_type="application/x-ndjson",
        errors=(400, 401),
    ),
    ("GET", "/admin/ledger"): _look(
        "ledger",
        "What requests hold at this moment",
        "Tickets, queue places, replicas' room, reserved tokens, connections: all zero when no request is under way.",
        answer=of("object", "Counts by name.", additionalProperties={"type": "integer"}),
        errors=(401,),
    ),
    ("GET", "/admin/incidents"): _look(
        "incidents",
        "Incidents that are kept, the newest first",
        "The last minute is kept when an alert turns critical (`observe.incidents`).",
        errors=(401, 503),
    ),
    ("POST", "/admin/incidents"): _change(
        "incident_record",
        "Record the last minute now",
        tag=INSIDE,
        body=of("object", "Why.", properties={"reason": of("string")}),
        body_needed=False,
        example={"reason": "before the restart"},
        answer=OBJECT,
        errors=(400, 401, 415, 503),
    ),
    ("GET", "/admin/incidents/*"): _look(
        "incident",
        "One incident: alerts, queues, replicas, the slowest requests",
        "With `/trace` behind the id: Chrome trace events, which https://ui.perfetto.dev opens.",
        path="/admin/incidents/{id}",
        parameters=(_named("id", "As in the list."),),
        errors=(401, 404, 503),
    ),
    ("GET", "/admin/state"): _look("state", "All that the page shows", errors=(401,)),
    ("GET", "/admin/history"): _look(
        "history",
        "Each lane's last ten minutes, hour or day, in slices",
        "10m: slices of ten seconds. 1h: of a minute. 24h: of a quarter of an hour. Kept in memory since the start.",
        parameters=(Parameter(name="range", about="How far back.", schema=of("string", enum=["10m", "1h", "24h"])),),
        errors=(400, 401),
    ),
    ("GET", "/admin/live"): _look(
        "watch",
        "The same every second, as server-sent events",
        answer=None,
        content_type="text/event-stream",
        streams='`{"history": …}` and `{"snapshot": …}`',
        errors=(401, 503),
    ),
    ("GET", "/admin/fleet"): _look("fleet", "Replicas, decisions with reasons, cold starts", errors=(401,)),
    ("POST", "/admin/fleet/zero"): _change(
        "fleet_zero", "Stop every replica of the fleet until the next request comes",
        answer={"type": "object", "properties": {"stopping": of("integer")}},
    ),
    ("POST", "/admin/fleet/baseline"): _change(
        "fleet_baseline",
        "Keep a measured start from zero, for the record",
        body=of("object", "Numbers and words by name.", additionalProperties={"type": ["number", "string"]}),
        answer=OBJECT,
    ),
    ("POST", "/admin/replicas"): _change(
        "replica_add",
        "One more replica",
        "Watched at once, and used once it has answered.",
        body=ref("ReplicaSettings"),
        example={"url": "http://10.0.0.7:8000"},
    ),
    ("POST", "/admin/replicas/*"): _change(
        "replica_act",
        "Drain, park, activate, wake or warm up a replica",
        "drain: nothing new for it; one of the fleet's is stopped once it is empty. park: nothing new for it, and kept "
        "warm. activate: requests for it again. sleep: a parked one of the fleet gives its GPU's memory back. wake: it "
        "takes it again. warmup: now, and answered when it is over.",
        path="/admin/replicas/{id}/{action}",
        parameters=(
            _named("id", "Which one."),
            Parameter(
                name="action", about="What.", where="path",
                schema=of("string", enum=["drain", "park", "activate", "sleep", "wake", "warmup"]),
            ),
        ),
        errors=(400, 401, 415, 502, 503),
    ),
    ("DELETE", "/admin/replicas/*"): _change(
        "replica_remove",
        "Do without a replica",
        "What it is doing may finish.",
        path="/admin/replicas/{id}",
        parameters=(_named("id", "Which one."),),
        errors=(400, 401),
    ),
    ("POST", "/admin/reload"): _change("reload", "Read the config file again", "If it is wrong, nothing has changed."),
    ("POST", "/admin/tenants"): _change(
        "tenants_set",
        "Set tenants",
        "In force until the file is read again.",
        body=ref("ByName"),
        example={"team-a": {"tokens_per_min": 100000}},
    ),
    ("DELETE", "/admin/tenants/*"): _change(
        "tenant_remove", "Drop a tenant", path="/admin/tenants/{name}", parameters=(_named("name", "Which one."),),
        errors=(400, 401),
    ),
    ("POST", "/admin/lanes"): _change(
        "lanes_set",
        "Set lanes",
        "In force until the file is read again.",
        body=ref("ByName"),
        example={"fast": {"wait_bound_s": 2}},
    ),
    ("DELETE", "/admin/lanes/*"): _change(
        "lane_remove", "Drop a lane", path="/admin/lanes/{name}", parameters=(_named("name", "Which one."),),
        errors=(400, 401),
    ),
    ("GET", "/admin/rollout"): Operation(
        tag=ROLLOUT,
        name="rollouts",
        summary="Versions of every public name: shares, stage, verdict",
        who="admin",
        answer={"type": "object", "properties": {"models": array(ANY_OBJECT)}},
        errors=(401,),
    ),
    ("POST", "/admin/rollout/*"): _change(
        "rollout_act",
        "Start, promote or roll back; score answers",
        "A start has this body. scores have one of their own: "
        '`{"scores": [{"request": "ID", "score": 0.8}, {"version": "v2", "score": 1}]}`, from 0 to 1, at most 1000, '
        "where models[].canary.quality asks for them. rollback: none of the requests from the next one on.",
        tag=ROLLOUT,
        path="/admin/rollout/{name}/{verb}",
        parameters=(
            _named("name", "The public name."),
            Parameter(
                name="verb", about="What.", where="path",
                schema=of("string", enum=["start", "promote", "rollback", "scores"]),
            ),
        ),
        body=ref("RolloutStart"),
        body_needed=False,
        example={"version": "v2", "mode": "canary"},
        answer=OBJECT,
        errors=(400, 401, 404, 415),
    ),
}  # fmt: skip
