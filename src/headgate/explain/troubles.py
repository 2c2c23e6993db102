"""Joins alerts and findings into one list of what is wrong, in which each fact is said once, with its cause.

An alert says that something is wrong and since when; a finding says why, and what to change. Those about the same fact
become one trouble. Its severity is the alert's, which is judged with hysteresis: a finding of what alerts judge is a
note where none is raised, and one of what none judges is a warning at most, for no promise is broken by it.

Where a lane refuses or fails many requests, that its percentiles fall on those, and that its error budget goes, is the
same fact.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from headgate.explain.diagnose import Finding

SUBJECTS = {
    "ttft": "first_token", "tpot": "tokens", "gap": "tokens", "answer": "tokens", "e2e": "whole",
    "refused_share": "refusals", "refusals": "refusals", "failed_share": "errors", "errors": "errors",
    "no_usable_replica": "replicas", "replica_down": "replicas", "replicas": "replicas",
    "queue_per_replica": "queue", "queue_depth": "queue",
}  # fmt: skip
"""What an alert or a finding is about, by its name or by its figure. Others are about themselves."""
JUDGED = {*SUBJECTS.values(), "utilisation", "cold_starts"}
"""What alerts are about."""
UNANSWERED = ("failed_share", "refused_share")
FIRST = ("replicas", "errors", "refusals")
"""Subjects that are told before others of their severity, in this order."""
SEVERITIES = ("critical", "warning", "note")
MOST_EVIDENCE = 6


class Trouble(msgspec.Struct, frozen=True, gc=False):
    severity: str
    """critical, warning, or note: nothing promised is in danger."""
    lane: str
    """The lane; empty: all lanes."""
    subject: str
    text: str
    """What is wrong, in one sentence."""
    cause: str
    """Why; empty: that is not known."""
    knob: str
    """What to change, or where to look."""
    since_s: float | None
    """For how long; None: it is no alert."""
    alerts: tuple[str, ...]
    """Names of the alerts; empty: it is a finding alone."""
    evidence: dict[str, float | str]


def troubles(alerts: Sequence[Mapping[str, Any]], findings: Sequence[Finding]) -> list[Trouble]:
    """`alerts`: as in /admin/slo, worst first. Returns the worst first."""
    unanswered = {alert["lane"]: _subject(alert["name"]) for alert in alerts if alert["name"] in UNANSWERED}
    raised: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for alert in sorted(alerts, key=lambda alert: alert["name"] not in UNANSWERED):
        lane, subject = alert["lane"], _subject(alert["name"])
        if lane in unanswered and (alert["missed"] or alert["name"] == "error_budget"):
            subject = unanswered[lane]
        raised.setdefault((lane, subject), []).append(alert)
    why: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        why.setdefault((finding.lane, _subject(finding.figure)), []).append(finding)
    told = [_raised(same, why.pop(about, [])) for about, same in raised.items()]
    told += [_found(finding) for same in why.values() for finding in same]
    return sorted(told, key=lambda trouble: (SEVERITIES.index(trouble.severity), _place(trouble.subject)))


def _raised(alerts: Sequence[Mapping[str, Any]], findings: Sequence[Finding]) -> Trouble:
    """One or more alerts about the same fact: the first one's words, for it is the worst."""
    first, subject = alerts[0], _subject(alerts[0]["name"])
    text, _, advice = first["message"].partition(". ")
    names = tuple(alert["name"] for alert in alerts)
    since = [alert["since_s"] for alert in alerts if alert["since_s"] is not None]
    # Each of several causes has its own figures, of which none would agree with the alert's.
    evidence = findings[0].evidence if len(findings) == 1 else {}
    knobs = dict.fromkeys(one for finding in findings for one in finding.knob.split("; "))
    # An alert about replicas has said why by itself.
    cause = "" if subject == "replicas" else "; ".join(dict.fromkeys(finding.cause for finding in findings))
    return Trouble(
        severity=min((alert["severity"] for alert in alerts), key=SEVERITIES.index),
        lane=first["lane"],
        subject=subject,
        text=text.removesuffix("."),
        cause=cause,
        knob="; ".join(knobs) or advice,
        since_s=max(since, default=None),
        alerts=names,
        evidence=_few({name: value for name, value in evidence.items() if subject != "replicas" or name != "why"}),
    )


def _found(finding: Finding) -> Trouble:
    subject = _subject(finding.figure)
    return Trouble(
        severity="note" if subject in JUDGED or finding.severity == "note" else "warning",
        lane=finding.lane,
        subject=subject,
        text=finding.cause,
        cause="",
        knob=finding.knob,
        since_s=None,
        alerts=(),
        evidence=_few(finding.evidence),
    )


def _subject(name: str) -> str:
    figure = name.removesuffix("_over_60s").removesuffix("_over_usual").partition("_p")[0]
    return SUBJECTS.get(name) or SUBJECTS.get(figure) or name


def _place(subject: str) -> int:
    return FIRST.index(subject) if subject in FIRST else len(FIRST)


def _few(evidence: Mapping[str, float | str]) -> dict[str, float | str]:
    items: Iterable[tuple[str, float | str]] = evidence.items()
    return dict(list(items)[:MOST_EVIDENCE])
