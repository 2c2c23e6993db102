"""Says in one sentence what came of a load, before any table; and which command made a report."""

import re
import shlex
from collections.abc import Sequence
from math import inf
from pathlib import PurePath

from headgate.report.results import FIGURES, Results
from headgate.report.summary import LaneSummary
from headgate.report.words import count, ms, percent, rate

SECRETS = ("--key", "--api-key")
"""Options whose values are never shown, but for env:NAME, which names no secret."""
HIDDEN = "…"


def answered(results: Results, summaries: dict[str, LaneSummary]) -> str:
    """How many requests were answered, how many of them well, and the tail of the time to the first token."""
    whole = summaries[""]
    load = f"{_requests(whole.requests)} at {rate(whole.offered_per_s)}/s"
    if not whole.requests:
        return "No request was sent."
    if not whole.completed:
        reason = next(iter(whole.reasons), "")
        return f"None of {load} was answered" + (f", mostly because of {reason}." if reason else ".")
    parts = [f"All {load} were answered" if whole.completed == whole.requests else _share(whole, load)]
    if whole.good is not None:
        bounds = ", ".join(
            f"{f'{one.lane} ' if one.lane else ''}{FIGURES[one.figure]} ≤ {ms(one.within_s)} ms"
            for one in results.goodput
        )
        parts[0] += f", {percent(whole.good.value)} within the bounds ({bounds})"
    figure = next((name for name in ("ttft", "e2e") if name in whole.arrivals), "")
    if figure:
        p99 = whole.arrivals[figure][0.99]
        tail = "more than 1 % got none" if p99 == inf else f"{FIGURES[figure]} p99 is {ms(p99)} ms"
        parts.append(tail)
    return "; ".join(parts) + "."


def _share(whole: LaneSummary, load: str) -> str:
    said = [f"{percent(whole.completed / whole.requests)} of {load} were answered"]
    said += [f"{count(n)} {what}" for n, what in ((whole.refused, "refused"), (whole.failed, "failed")) if n]
    return ", ".join(said)


def _requests(number: int) -> str:
    return f"{count(number)} request{'' if number == 1 else 's'}"


def command_line(arguments: Sequence[str]) -> str:
    """The command as it would be typed, without keys and passwords. `arguments`: as sys.argv, the program first."""
    if not arguments:
        return ""
    program = PurePath(arguments[0]).name
    shown = ["headgate" if program in ("__main__.py", "-m", "-c") else program]
    hides = False
    for word in arguments[1:]:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            hides = name in SECRETS
            shown.append(f"{name}={_hidden(value)}" if hides and equals else _without_password(word))
        else:
            shown.append(_hidden(word) if hides else _without_password(word))
    return shlex.join(shown)


def _hidden(value: str) -> str:
    """A key, or TENANT=KEY, without the key."""
    tenant, equals, key = value.rpartition("=")
    if value.startswith("env:") or (equals and key.startswith("env:")):
        return value
    return f"{tenant}={HIDDEN}" if equals else HIDDEN


def _without_password(word: str) -> str:
    return re.sub(r"(?<=://)[^/@\s]+(?=@)", HIDDEN, word)
