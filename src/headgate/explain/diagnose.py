"""Diagnoses why requests are slow right now, along the tree that an operator would walk over live figures.

    TTFT high   ─ waiting ─── one tenant floods: limit it
    │                      ├─ the lane's own cap, and room beside it: raise the cap
    │                      └─ else: add replicas
    │           ├ long prefills beside it: smaller chunks, or a pool of their own
    │           └ cold or failing replicas, the gateway itself, slow uploads, or its own long prompts
    TPOT high   ─ long context in the batch: cap it, or a pool of its own
    │           ├ evictions: KV headroom
    │           └ prefills, slow readers, the gateway itself, or a batch that is too large
    e2e high    ─ ballooning generation: caps, stops, a time limit
                ├ evicted requests: KV headroom
                └ else whatever is found above

The slowest requests themselves decide between the branches: `why.py` says where each lost its time, and a View holds
those seconds by cause. An empty list means that nothing is wrong.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headgate.config.gateway import ObserveConfig
from headgate.explain.explanation import Kind
from headgate.explain.remedies import ANSWERS, GROUPS, KV_HEADROOM, READERS, REFUSALS, WARM_UP, Severity
from headgate.model.lane import Lane
from headgate.model.outcome import ASIDE, Outcome
from headgate.policy.promises.availability import bounds
from headgate.policy.promises.promise import Promise, promises
from headgate.policy.replicas.utilisation import words

SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "note")

FIRST = ("ttft",)
TOKENS = ("gap", "tpot", "answer")
"""Figures of promises about the first token and about the tokens after it; all other figures are of the whole
answer."""
LEAST_REQUESTS = 20
"""Minimum requests of a lane before its tail is judged."""
WARN_AT = 0.8
"""Share of a promise above which a figure becomes a warning."""
LONG_BESIDE = 0.3
"""Share of slow decoding beside a long context from which on that context is the cause."""
BALLOONING = 4.0
"""Multiple of the median answer's length from which on the p99 length counts as ballooning."""
HEAVY = 0.7
"""Share of the waiting requests from which on one tenant is too heavy for the others."""
PREEMPTED = 0.001
"""Share of requests that are preempted above which preemption becomes a finding. Healthy lanes stay below."""
UNUSUAL = 0.01
"""Share of requests above which cold starts, slow readers or refusals become a finding."""
LAG_S = (0.02, 0.1)
"""Seconds of p99 loop lag that cause a warning, and that make all other figures here doubtful."""
DRIFTED = 1.3
"""Ratio to what the profile says, or its inverse, from which on a replica has drifted from it."""
BENDS = 0.95
"""Utilisation near which waiting has no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneView:
    """One lane's figures over the window. None: too few requests were seen."""

    lane: Lane
    requests: int = 0
    asked: int = 0
    """Requests that asked for an answer: without clients' own errors and tenants over their own limits."""
    turned_away: int = 0
    """Requests among them that were refused for now, to be retried later."""
    measured_s: Mapping[str, float | None] = field(default_factory=dict)
    """By promise of the lane, such as `ttft_p95`: the percentile as it is."""
    e2e_p999_s: float | None = None
    queue_p99_s: float | None = None
    first_lost: Mapping[Kind, float] = field(default_factory=dict)
    """Seconds that the slowest requests lost before their first token, by cause."""
    token_lost: Mapping[Kind, float] = field(default_factory=dict)
    """Seconds that the slowest requests lost after their first token, by cause."""
    long_beside: float = 0.0
    """Share of the time lost on slow tokens that had a long context in the same batch."""
    prompt_p99: int = 0
    output_p50: int = 0
    output_p99: int = 0
    waited: int = 0
    heaviest: str = ""
    """The tenant with most of the requests that waited, or were refused because of the wait."""
    heaviest_share: float = 0.0
    preempted: int = 0
    cold: int = 0
    stalled: int = 0
    """Requests whose clients were behind for long, or were given up."""
    refused: Mapping[Outcome, int] = field(default_factory=dict)
    failed: int = 0


@dataclass(frozen=True, slots=True)
class DriftView:
    """A replica beside its machine profile."""

    replica: str
    profile: str
    ratio: float
    """Time of its tokens, over what the profile says."""
    answers: int
    """Answers from which that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    lanes: tuple[LaneView, ...] = ()
    replicas_up: int = 1
    replicas_out: tuple[str, ...] = ()
    """Replicas that are down; parked and starting ones are not among them."""
    replicas_starting: int = 0
    replicas_parked: int = 0
    outage: bool = False
    """No replica is up, and that is not intended."""
    asleep: bool = False
    """No replica is up, and that is intended."""
    unserved: tuple[str, ...] = ()
    """Lanes and models whose replicas are all down."""
    why_out: str = ""
    """What is known of the first replica in `replicas_out`."""
    utilisation: float = 0.0
    """Share of the fullest resource in use."""
    use: Mapping[str, float] = field(default_factory=dict)
    """Share in use by resource; see policy/replicas/utilisation.py."""
    binding: str = ""
    """The resource that is fullest."""
    waiting_per_replica: float = 0.0
    loop_lag_p99_s: float = 0.0
    drifts: tuple[DriftView, ...] = ()
    """Replicas whose profile is configured, beside it."""
    promised: ObserveConfig = field(default_factory=ObserveConfig)
    """The config's targets for utilisation, queue and availability."""


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    figure: str
    """The figure that is off: `ttft_p99`, `replicas`, …"""
    evidence: dict[str, float | str]
    cause: str
    knob: str
    """What to change: a config key, an engine's flag, or an action of the operator."""
    lane: str = ""
    """The lane; empty: all lanes."""


def findings(view: View) -> list[Finding]:
    """Returns all findings, worst first."""
    found = [*_fleet(view), *(finding for lane in view.lanes for finding in _lane(lane, view))]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


# -- the whole ---------------------------------------------------------------------------------------------------


def _fleet(view: View) -> Iterator[Finding]:
    yield from _replicas(view)
    yield from _drifts(view)
    if view.utilisation > view.promised.utilisation_target:
        yield Finding(
            "critical" if view.utilisation > BENDS else "warning",
            "utilisation",
            {"utilisation": view.utilisation, "target": view.promised.utilisation_target, **view.use},
            f"more of {words(view.binding)} is taken than the target: latency bends from here on",
            "add replicas; observe.utilisation_target is where this begins",
        )
    if view.waiting_per_replica > view.promised.queue_per_replica:
        yield Finding(
            "warning",
            "queue_depth",
            {"waiting_per_replica": view.waiting_per_replica, "target": view.promised.queue_per_replica},
            "more requests wait than the replicas can take in good time",
            "add replicas; lanes.*.wait_bound_s sheds load earlier",
        )
    warn_s, critical_s = LAG_S
    if view.loop_lag_p99_s > warn_s:
        yield Finding(
            "critical" if view.loop_lag_p99_s > critical_s else "warning",
            "loop_lag",
            {"loop_lag_p99_s": view.loop_lag_p99_s},
            "this gateway itself is too busy: everything it measures is late by that much",
            "give it a core of its own, or run several gateways",
        )


def _drifts(view: View) -> Iterator[Finding]:
    far = [one for one in view.drifts if not 1 / DRIFTED <= one.ratio <= DRIFTED]
    if not far:
        return
    worst = max(far, key=lambda one: max(one.ratio, 1 / max(one.ratio, 1e-9)))
    named = ", ".join(one.replica for one in far[:8])
    slower = worst.ratio > 1
    yield Finding(
        "warning" if slower else "note",
        "profile",
        {"which": named, "profile": worst.profile, "ratio": worst.ratio, "answers": worst.answers},
        f"tokens of {worst.replica} take {worst.ratio:.2f} times as long as its profile {worst.profile} says",
        "look for throttling, other users of the machine and changed engine settings; if it is meant to be so, measure "
        "it again with headgate fit URL: plans are made with this profile",
    )


def _replicas(view: View) -> Iterator[Finding]:
    evidence: dict[str, float | str] = {"up": view.replicas_up, "out": len(view.replicas_out)}
    evidence |= {"starting": view.replicas_starting} if view.replicas_starting else {}
    evidence |= {"parked": view.replicas_parked} if view.replicas_parked else {}
    evidence |= {"which": ", ".join(view.replicas_out[:8])} if view.replicas_out else {}
    evidence |= {"why": view.why_out} if view.why_out else {}
    again = "start them again, or look at their logs; health.failures and .cooldown_s say when they are out and back"
    if view.outage or (view.replicas_out and not view.replicas_up):
        yield Finding("critical", "replicas", evidence, "no replica is usable: nothing can be answered", again)
    elif view.unserved:
        named = ", ".join(view.unserved[:8])
        yield Finding(
            "critical", "replicas", evidence, f"no replica is usable for {named}: all of theirs are out", again
        )
    elif view.replicas_out:
        cause = "replicas are out: they failed, or do not answer their health checks"
        yield Finding("warning", "replicas", evidence, cause, again)
    elif not view.replicas_up and view.replicas_starting:
        cause = "no replica is usable yet: requests wait for the first of those that are starting"
        yield Finding("note", "replicas", evidence, cause, "wait for it; headgate fleet says how far it is")
    elif not view.replicas_up and view.asleep:
        cause = "no replica is in use, and none is asked for"
        yield Finding(
            "note", "replicas", evidence, cause, "send a request, or activate one: headgate fleet activate ID"
        )
    elif not view.replicas_up:
        knob = "name one: replicas: in the config, --replica, or headgate fleet add URL"
        yield Finding("critical", "replicas", evidence, "no replica is known: nothing can be answered", knob)


# -- one lane ----------------------------------------------------------------------------------------------------------


def _lane(view: LaneView, whole: View) -> Iterator[Finding]:
    lane, requests = view.lane, view.requests
    asked = view.asked or requests  # clients' own errors must not hide what the others get
    if requests >= LEAST_REQUESTS:
        yield from _latency(view, whole)
    away = view.turned_away / view.asked if view.asked else 0.0
    grave = away >= bounds(1 - whole.promised.availability)[1]
    if view.failed and view.failed > max(1, round((1 - whole.promised.availability) * asked)):
        evidence: dict[str, float | str] = {"failed": view.failed, "requests": asked}
        evidence["availability_promised"] = whole.promised.availability
        cause = "more requests fail than the error budget allows"
        yield Finding(
            "critical", "errors", evidence, cause, "see /admin/slow and the replicas' logs; retry.attempts", lane.name
        )
    for outcome, count in view.refused.items():
        among = requests if outcome in ASIDE else asked
        if outcome in REFUSALS and count >= max(5, UNUSUAL * among):
            severity, cause, knob = REFUSALS[outcome]
            evidence = {"refused": count, "requests": among, "reason": outcome.value}
            if outcome not in ASIDE:
                severity = "critical" if grave else severity
                evidence["refused_share"] = away
            yield Finding(severity, "refusals", evidence, cause, knob.format(lane=lane.name), lane.name)
    if view.waited >= LEAST_REQUESTS and view.heaviest_share >= HEAVY and not _flooded(view):
        evidence = {"tenant": view.heaviest, "share": view.heaviest_share, "waited": view.waited}
        cause = f"tenant {view.heaviest} sends most of what has to wait"
        yield Finding("note", "fairness", evidence, cause, _limit(view.heaviest), lane.name)
    for figure, count, least, severity, cause, knob in (
        ("preemptions", view.preempted, PREEMPTED, "warning", "running requests lose their KV to others", KV_HEADROOM),
        ("cold_starts", view.cold, UNUSUAL, "warning", "requests meet replicas that have not been warmed up", WARM_UP),
        ("slow_clients", view.stalled, UNUSUAL, "note", "clients read more slowly than their answers come", READERS),
    ):
        if count >= 3 and count > least * requests:
            evidence = {figure: count, "requests": requests}
            yield Finding(severity, figure, evidence, cause, knob.format(lane=lane.name), lane.name)


def _latency(view: LaneView, whole: View) -> Iterator[Finding]:
    lane = view.lane
    told: set[str] = set()
    made = promises(lane)
    first = _worst(_measured(view, [promise for promise in made if promise.figure in FIRST]))
    if first is not None:
        group = _first_group(view)
        told.add(group)
        cause, knob = _answer(group, view, whole)
        yield _finding(view, first, view.first_lost, cause, knob)
    tokens = _worst(_measured(view, [promise for promise in made if promise.figure in TOKENS]))
    if tokens is not None:
        group = _token_group(view)
        told.add(group)
        cause, knob = _answer(group, view, whole)
        yield _finding(view, tokens, view.token_lost, cause, knob, long_beside=view.long_beside)
    whole_s = _measured(view, [promise for promise in made if promise.figure not in (*FIRST, *TOKENS)])
    if lane.e2e_p99_s is not None and view.e2e_p999_s is not None:
        whole_s.append(("e2e_p99.9", view.e2e_p999_s, 2 * lane.e2e_p99_s))
    total = _worst(whole_s)
    if total is not None:
        lost = {kind: view.first_lost.get(kind, 0.0) + view.token_lost.get(kind, 0.0) for kind in GROUPS}
        group = "ballooning" if _balloons(view) and _largest(lost) in ("batch", "unknown") else _largest(lost)
        if group not in told:
            cause, knob = _answer(group, view, whole)
            yield _finding(view, total, lost, cause, knob, output_p50=view.output_p50, output_p99=view.output_p99)


Off = tuple[str, float, float]
"""A figure's name, its value, and the promised value."""


def _measured(view: LaneView, made: Iterable[Promise]) -> list[Off]:
    """The promises whose percentile is known."""
    return [(one.name, s, one.within_s) for one in made if (s := view.measured_s.get(one.name)) is not None]


def _worst(figures: Iterable[Off]) -> Off | None:
    """The figure furthest beyond its promise; None: none is near its promise."""
    near = [item for item in figures if item[1] > WARN_AT * item[2]]
    return max(near, key=lambda item: item[1] / item[2], default=None)


def _finding(view: LaneView, off: Off, lost: Mapping[Kind, float], cause: str, knob: str, **more: float) -> Finding:
    figure, value, promised = off
    evidence: dict[str, float | str] = {f"{figure}_s": value, "promised_s": promised, "requests": view.requests, **more}
    evidence |= {f"lost_{kind}_s": round(s, 3) for kind, s in sorted(lost.items(), key=lambda item: -item[1]) if s > 0}
    severity: Severity = "critical" if value > promised else "warning"
    return Finding(severity, figure, evidence, cause, knob, view.lane.name)


# -- the branches --------------------------------------------------------------------------------------------------


def _largest(lost: Mapping[Kind, float]) -> str:
    seconds: dict[str, float] = {}
    for kind, value in lost.items():
        if kind in GROUPS and value > 0:
            seconds[GROUPS[kind]] = seconds.get(GROUPS[kind], 0.0) + value
    return max(seconds, key=lambda group: seconds[group], default="unknown")


def _flooded(view: LaneView) -> bool:
    """Whether most of the time lost in the queue was spent behind one tenant."""
    return view.first_lost.get("flood", 0.0) > view.first_lost.get("queue", 0.0) and bool(view.heaviest)


def _first_group(view: LaneView) -> str:
    group = _largest(view.first_lost)
    return "flood" if group == "queue" and _flooded(view) else group


def _token_group(view: LaneView) -> str:
    group = _largest(view.token_lost)
    return "long_context" if group == "batch" and view.long_beside >= LONG_BESIDE else group


def _balloons(view: LaneView) -> bool:
    return view.output_p99 >= BALLOONING * max(1, view.output_p50)


def _answer(group: str, view: LaneView, whole: View) -> tuple[str, str]:
    lane = view.lane
    if group == "queue" and lane.concurrency is not None and whole.utilisation <= whole.promised.utilisation_target:
        return "requests wait for the lane's own cap while replicas have room", f"lanes.{lane.name}.concurrency"
    if group == "flood":
        return f"requests wait behind a flood of tenant {view.heaviest}", _limit(view.heaviest)
    cause, knob = ANSWERS[group]
    return cause, knob.format(lane=lane.name)


def _limit(tenant: str) -> str:
    where = "anonymous" if tenant == "anonymous" else f"tenants.{tenant}"
    return f"{where}.requests_per_min or .tokens_per_min; a lower {where}.weight"
