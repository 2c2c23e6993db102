"""Logs refusals and failures as summaries: the first at once, then at most one line each ten seconds, however many
requests are refused."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

from headgate.model.outcome import Outcome
from headgate.model.record import Record

log = logging.getLogger(__name__)

EVERY_S = 10.0
MOST_TOLD = 4
"""Outcomes, and tenants of each, that a line names."""


class RefusalLog:
    def __init__(self) -> None:
        self._counted: Counter[tuple[Outcome, str]] = Counter()
        """Requests since the last line, by outcome and tenant. Tenants come from the config, so the keys are
        bounded."""
        self._messages: dict[Outcome, str] = {}
        self._seen: dict[Outcome, int] = {}
        self._since = -inf

    def take(self, records: Sequence[Record], now: float) -> None:
        """Takes in requests that have ended; called a few times a second."""
        for record in records:
            self._add(record.outcome, record.tenant, record.message)
        self.look(now)

    def compare(self, totals: Mapping[Outcome, int], now: float) -> None:
        """Takes in what was counted since the last call, where only totals are kept, as in an engine."""
        for outcome, total in totals.items():
            more = total - self._seen.get(outcome, 0)
            self._seen[outcome] = total
            self._add(outcome, "", "", more)
        self.look(now)

    def _add(self, outcome: Outcome, tenant: str, message: str, number: int = 1) -> None:
        if number and outcome.kind in ("refused", "failed"):
            self._counted[outcome, tenant] += number
            if message:
                self._messages[outcome] = message

    def look(self, now: float) -> None:
        """Writes the line if there is something to say and the last one is long enough ago."""
        if not self._counted or now - self._since < EVERY_S:
            return
        took_s, self._since = now - self._since, now
        outcomes: Counter[Outcome] = Counter()
        for (outcome, _), number in self._counted.items():
            outcomes[outcome] += number
        told = "; ".join(self._told(outcome, number) for outcome, number in outcomes.most_common(MOST_TOLD))
        total = sum(outcomes.values())
        when = f" in the last {took_s:.0f} s" if took_s < 6 * EVERY_S else ""
        requests = "1 request was" if total == 1 else f"{total} requests were"
        log.warning(
            "%s not answered%s: %s", requests, when, told,
            extra={"number": total, **{outcome.value: number for outcome, number in outcomes.items()}},
        )  # fmt: skip
        self._counted.clear()
        self._messages.clear()

    def _told(self, outcome: Outcome, number: int) -> str:
        by = Counter({tenant: count for (one, tenant), count in self._counted.items() if one is outcome and tenant})
        who = ", ".join(f"{tenant} {count}" for tenant, count in by.most_common(MOST_TOLD))
        last = self._messages.get(outcome, "")
        return f"{number} {outcome.value}{f' ({who})' if who else ''}{f', last: {last}' if last else ''}"
