"""Names the cause of a delay: what can be blamed on others for a stretch of one request's time.

A cause is named only if it is possible: it must cover a good part of that time. Each answer is a sentence and the
structured reason; None: nothing supports this cause.
"""

from collections.abc import Sequence
from itertools import takewhile
from math import inf
from typing import Protocol

from headgate.explain.explanation import Because, Figures, Kind, many, seconds
from headgate.explain.neighbours import Neighbour
from headgate.model.record import Ahead, Attempt, Record

FLOOD = 3
"""Minimum requests of one tenant ahead that count as a flood."""
LONG_LEAST = 64
"""Prompt tokens up to which a prefill delays no other request."""
LONG_CONTEXT = 8192
"""Context tokens from which on a neighbour makes the steps of all longer."""
BLAME = 0.25
"""Share of a first token's time that other prefills must cover to be its cause."""
GAP_BLAME = 0.5
"""Share of a gap that other prefills must cover to be its cause; also of any time that a pause of the gateway
explains."""
PLAUSIBLE = 3.0
"""Multiple of the usual time for its tokens up to which a prefill counts as work. For the rest it was itself
delayed."""

Blame = tuple[str, Because]


class GatewayPause(Protocol):
    """A pause of the gateway itself, in which no request was served."""

    @property
    def kind(self) -> str:
        """`gc` or `loop`."""

    @property
    def at(self) -> float:
        """When the pause began, on the records' clock."""

    @property
    def took_s(self) -> float: ...


class Suspects:
    def __init__(
        self, record: Record, neighbours: Sequence[Neighbour], pauses: Sequence[GatewayPause], token_s: float = inf
    ) -> None:
        """`pauses`: in the order in which they ended. `token_s`: usual prefill seconds per token."""
        self._record = record
        self._replica = record.replica or ""
        self._neighbours = neighbours
        self._token_s = token_s
        ended_at = record.at + record.e2e_s
        lately = takewhile(lambda pause: pause.at + pause.took_s > record.at, reversed(pauses))
        self._pauses = [pause for pause in lately if pause.at < ended_at]
        self._tokens = max(0, record.prompt_tokens - record.cached_tokens)

    def there(self, since: float, until: float) -> int:
        return sum(neighbour.there_in(since, until) for neighbour in self._neighbours)

    def decoding(self, since: float, until: float) -> tuple[int, int]:
        """Number of others that decoded in this interval, and the longest context among them, in tokens."""
        found = [n for n in self._neighbours if n.first_at < until and n.ended_at > since]
        return len(found), max((neighbour.context for neighbour in found), default=0)

    def pause(self, since: float, until: float) -> Blame | None:
        """Blames a pause of the gateway that covers at least half of the interval. Garbage collection holds up the
        event loop as well, and is then the better answer."""
        found = [(p.kind == "gc", min(until, p.at + p.took_s) - max(since, p.at), p.took_s) for p in self._pauses]
        collected, overlap_s, took_s = max(
            (item for item in found if item[1] > 0 and item[1] >= GAP_BLAME * (until - since)),
            default=(False, 0.0, 0.0),
        )
        if not took_s:
            return None
        figures: Figures = {"took_s": took_s, "overlapped_s": round(overlap_s, 6)}
        if collected:
            return f"the gateway collected garbage for {seconds(took_s)}", Because("gc_pause", "", figures)
        return f"the gateway's event loop was held up for {seconds(took_s)}", Because("loop_lag", "", figures)

    def cold(self) -> Blame | None:
        if not self._record.cold:
            return None
        cause = f"replica {self._replica} was cold: it had not answered anything yet"
        return cause, Because("cold_replica", self._replica)

    def eviction(self, rank: int = 0) -> Blame | None:
        """Blames a preemption. Each one makes one long gap; `rank` is the gap's rank by length."""
        engine = self._record.engine
        if engine is None or rank >= engine.preemptions:
            return None
        if 2 * engine.yields >= engine.preemptions:
            cause = f"its slot went to more urgent requests {many(engine.yields, 'time')} at {self._replica}"
            return cause, Because("gave_way", self._replica, {"yields": engine.yields})
        cause = f"its KV was evicted: preempted {many(engine.preemptions, 'time')} at {self._replica}"
        return cause, Because("eviction", self._replica, {"preemptions": engine.preemptions})

    def long_prefills(self, since: float, until: float, share: float, above: int = LONG_LEAST) -> Blame | None:
        """Blames prefills of more than `above` tokens at the same replica that cover at least `share` of the interval
        and are long enough to have taken that: a request delayed by the same cause as this one was in prefill all the
        while, too."""
        worst, worst_s, worked_s = None, 0.0, 0.0
        spans: list[tuple[float, float]] = []
        for neighbour in self._neighbours:
            overlap_s = neighbour.prefilled_in(since, until)
            if overlap_s <= 0 or neighbour.tokens <= max(above, LONG_LEAST):
                continue
            spans.append((max(since, neighbour.sent_at), min(until, neighbour.first_at)))
            worked_s += min(overlap_s, PLAUSIBLE * self._token_s * neighbour.tokens)
            if worst is None or overlap_s * neighbour.tokens > worst_s * worst.tokens:
                worst, worst_s = neighbour, overlap_s
        if worst is None or min(_covered(spans), worked_s) < share * (until - since):
            return None
        others = len(spans) - 1
        figures: Figures = {
            "tokens": worst.tokens, "overlapped_s": round(worst_s, 6), "others": others, "tenant": worst.tenant,
            "lane": worst.lane,
        }  # fmt: skip
        more = f" and {many(others, 'other')}" if others else ""
        cause = f"long prefill of request {worst.id} ({many(worst.tokens, 'token')}){more} beside it"
        return f"{cause} for {seconds(worst_s)}", Because("long_prefill", worst.id, figures)

    def crowd(self, since: float, until: float) -> Blame | None:
        """Blames many small prefills at once, where none was longer than the request's own."""
        beside = [n for n in self._neighbours if n.prefilled_in(since, until) > BLAME * (until - since)]
        tokens = sum(neighbour.tokens for neighbour in beside)
        if len(beside) < FLOOD or tokens <= 2 * self._tokens:
            return None
        cause = f"{many(len(beside), 'other prompt')} ({many(tokens, 'token')}) were prefilled beside it"
        return cause, Because("queue", self._replica, {"prompts": len(beside), "tokens": tokens})

    def ahead(self, ahead: Ahead) -> Blame:
        """Blames the requests ahead in its lane; among several tenants, the one with most of them."""
        figures: Figures = {
            "requests": ahead.requests, "tokens": ahead.tokens, "tenant": ahead.tenant,
            "tenant_requests": ahead.tenant_requests, "tenant_tokens": ahead.tenant_tokens,
        }  # fmt: skip
        most = 2 * ahead.tenant_tokens > ahead.tokens or 2 * ahead.tenant_requests > ahead.requests
        theirs = f"{many(ahead.tenant_requests, 'request')} ({many(ahead.tenant_tokens, 'token')})"
        if most and ahead.tenant != self._record.tenant and ahead.tenant_requests >= FLOOD:
            return f"behind {theirs} of tenant {ahead.tenant}", Because("flood", ahead.tenant, figures)
        cause = f"behind {many(ahead.requests, 'request')} ({many(ahead.tokens, 'token')}) in lane {self._record.lane}"
        if most and ahead.tenant == self._record.tenant:
            cause += f", {theirs} of them its own tenant's"
        return cause, Because("queue", ahead.tenant, figures)

    def no_room(self, since: float, until: float) -> Blame:
        """Blames the requests at the replicas, which had all the room, where no request was ahead in the queue."""
        tenants: dict[str, int] = {}
        for neighbour in self._neighbours:
            if neighbour.there_in(since, until):
                tenants[neighbour.tenant] = tenants.get(neighbour.tenant, 0) + 1
        if not tenants:
            return "for a replica that could take it", Because("queue")
        total, tenant = sum(tenants.values()), max(tenants, key=lambda name: tenants[name])
        theirs = tenants[tenant]
        figures: Figures = {"running": total, "tenant": tenant, "tenant_requests": theirs}
        if tenant != self._record.tenant and 2 * theirs > total and theirs >= FLOOD:
            cause = f"while {many(theirs, 'request')} of tenant {tenant} had the room"
            return cause, Because("flood", tenant, figures)
        return f"while {many(total, 'other')} had the room", Because("queue", tenant, figures)


def _covered(spans: list[tuple[float, float]]) -> float:
    """The total length of the spans; overlaps count once."""
    total, reached = 0.0, -inf
    for since, until in sorted(spans):
        total += max(0.0, until - max(since, reached))
        reached = max(reached, until)
    return total


def failure(attempt: Attempt) -> Blame:
    kind: Kind = "refused_replica" if attempt.refused else "killed_replica"
    verb = "refused it" if attempt.refused else "failed"
    said = f": {attempt.message}" if attempt.message else ""
    figures: Figures = {"outcome": attempt.outcome.value, "took_s": round(attempt.took_s, 6)}
    return f"replica {attempt.replica} {verb}{said}", Because(kind, attempt.replica, figures)
