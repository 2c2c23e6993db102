"""Where did one request's milliseconds go, and because of what?

A request's stages follow each other, so its parts add up to all of its time. What happened in a part is read from its
own record; whose doing it was, from those who were at the same replica then, and from the pauses of this process.

    accept → queue → failed attempts → route → engine queue → prefill → decode, its longest gaps, client stalled → end

A cause is named only if it can have been one: it covers a good part of that time, and the part took clearly longer than
is usual in its lane, where that is known.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from headgate.model.outcome import Outcome
from headgate.model.record import Attempt, Gap, Record
from headgate.policy.neighbours import Neighbour, neighbours
from headgate.policy.usual import Usual, clearly_more, usual

__all__ = ["Because", "Explanation", "Kind", "Neighbour", "Part", "Pause", "Stage", "Usual", "explain", "headline",
           "main_cause", "main_part", "neighbours", "usual"]  # fmt: skip

Stage = Literal[
    "accept", "queue", "retry", "route", "engine_queue", "prefill", "answer", "decode", "gap", "stalled", "end", "unknown"
]  # fmt: skip
"""answer: prefill and decode of what was not streamed, where nobody says which was which."""
Kind = Literal[
    "own_prompt", "flood", "queue", "long_prefill", "killed_replica", "refused_replica", "cold_replica", "eviction",
    "gc_pause", "loop_lag", "slow_client", "retry", "generation", "ordinary", "unknown",
]  # fmt: skip
"""ordinary: nothing held it up, and it is not the model's own work either."""

MATERIAL_S = 0.001
"""Less is not called waiting."""
SLOW_UPLOAD_S = 0.1
"""A request that took longer to arrive was sent slowly."""
FLOOD = 3
"""Fewer requests ahead are no flood, whoever sent them."""
LONG_LEAST = 64
"""Prompt tokens below which a prefill holds nobody up."""
BLAME = 0.25
"""Of a first token's time, the share that others' prefills must cover to be its cause."""
GAP_BLAME = 0.5
"""The same of a gap, and of whatever a pause of this process is to explain."""
COLD_S = 0.2
"""What a first token at a cold replica may take without being blamed on that, where the usual is not known."""
GAP_LEAST_S = 0.05
"""A shorter gap does not stand out, unless it is known to be unusual."""
STANDS_OUT = 3.0
"""Times the ordinary, and a gap is told by itself."""


class Pause(Protocol):
    """A pause of the gateway itself, in which nobody was served."""

    @property
    def kind(self) -> str:
        """gc or loop."""

    @property
    def at(self) -> float:
        """When it began, on the records' clock."""

    @property
    def took_s(self) -> float: ...


class Because(msgspec.Struct, frozen=True, gc=False):
    kind: Kind
    who: str = ""
    """The request, tenant or replica whose doing it was; empty: nobody's."""
    figures: dict[str, float | str] = {}


class Part(msgspec.Struct, frozen=True, gc=False):
    stage: Stage
    at_s: float
    """When it began, from the request's arrival. Gaps lie within the time of decode; all else follows each other."""
    took_s: float
    cause: str
    because: Because
    excess_s: float
    """How much of it was beyond what is usual. All of it, where it is waiting."""


class Explanation(msgspec.Struct, frozen=True, gc=False):
    id: str
    lane: str
    tenant: str
    replica: str | None
    outcome: Outcome
    message: str
    e2e_s: float
    ttft_s: float | None
    parts: tuple[Part, ...]
    """They add up to `e2e_s`."""


def explain(
    record: Record, neighbours: Sequence[Neighbour], pauses: Sequence[Pause], usual: Usual | None = None
) -> Explanation:
    parts = _Story(record, neighbours, pauses, usual).tell()
    return Explanation(
        record.id, record.lane, record.tenant, record.replica, record.outcome, record.message,
        record.e2e_s, record.ttft_s, tuple(parts),
    )  # fmt: skip


def main_part(explanation: Explanation) -> Part:
    """What made it slower than its lane usually is; if nothing did, what took longest. What failed, was refused or was
    given up is explained by that."""
    parts, outcome = explanation.parts, explanation.outcome
    telling: tuple[Kind, ...] = ()
    if outcome.kind == "failed":
        telling = ("killed_replica", "refused_replica")
    elif outcome is Outcome.SLOW_CLIENT:
        telling = ("slow_client",)
    elif outcome.kind == "refused":
        return next((part for part in parts if part.stage == "queue"), parts[0])
    for part in reversed(parts):
        if part.because.kind in telling:
            return part
    worst = max(parts, key=lambda part: part.excess_s)
    return worst if worst.excess_s > 0.05 * explanation.e2e_s else max(parts, key=lambda part: part.took_s)


def main_cause(explanation: Explanation) -> Kind:
    return main_part(explanation).because.kind


_WHERE: dict[Stage, str] = {
    "accept": "to arrive: ",
    "queue": "in the queue ",
    "retry": "lost: ",
    "route": "to choose a replica: ",
    "engine_queue": "in the replica's queue: ",
    "prefill": "to the first token: ",
    "answer": "at the replica: ",
    "decode": "for tokens: ",
    "gap": "in one gap: ",
    "stalled": "stalled: ",
    "end": "at the end: ",
    "unknown": "",
}


def headline(explanation: Explanation) -> str:
    """One line for a list: so much of it, where, because of what."""
    part = main_part(explanation)
    line = f"{seconds(part.took_s)} of {seconds(explanation.e2e_s)} {_WHERE[part.stage]}{part.cause}"
    return line if explanation.outcome.kind == "ok" else f"{explanation.outcome.value}; {line}"


def seconds(value: float) -> str:
    """As people say it."""
    return f"{value * 1e3:.0f} ms" if value < 0.9995 else f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}".replace(",", " ")


class _Story:
    """One telling: what is known, and where in the request's time we are."""

    def __init__(
        self, record: Record, neighbours: Sequence[Neighbour], pauses: Sequence[Pause], usual: Usual | None
    ) -> None:
        self.record = record
        self.neighbours = neighbours
        self.pauses = pauses
        self.usual = usual
        self.at_s = 0.0
        self.parts: list[Part] = []
        self.tokens = max(0, record.prompt_tokens - record.cached_tokens)

    def tell(self) -> list[Part]:
        record = self.record
        rest_s = record.e2e_s - (
            record.accept_s + record.queue_s + record.retry_s + record.first_s + record.stream_s + record.end_s
        )
        lost = abs(rest_s) > max(1e-6, 0.01 * record.e2e_s)  # else it is only rounding
        self._accept(record.accept_s + (0.0 if lost else rest_s))
        self._wait_and_retry()
        if record.replica is not None and record.reason:
            self._route()
        if record.first_s > 0:
            self._first()
        if record.ttft_s is not None:
            self._stream()
        self._end()
        if lost:
            self._add("unknown", rest_s, "the record does not say", Because("unknown"))
        return self.parts

    def _add(self, stage: Stage, took_s: float, cause: str, because: Because, usual_s: float = 0.0) -> None:
        excess_s = 0.0 if because.kind == "ordinary" else max(0.0, took_s - usual_s)
        self.parts.append(Part(stage, self.at_s, took_s, cause, because, excess_s))
        self.at_s += took_s

    # -- before it is sent ---------------------------------------------------------------------------------

    def _accept(self, took_s: float) -> None:
        usual_s = self.usual.accept_s if self.usual is not None else 0.0
        paused = self._paused(self.record.at, self.record.at + took_s)
        if took_s >= MATERIAL_S and paused is not None:
            self._add("accept", took_s, *paused, usual_s)
        elif took_s >= SLOW_UPLOAD_S:
            cause = f"the client took {seconds(took_s)} to send it"
            self._add("accept", took_s, cause, Because("slow_client", self.record.tenant), usual_s)
        else:
            self._add("accept", took_s, "read and understood", Because("ordinary"))

    def _wait_and_retry(self) -> None:
        """It may wait, fail at a replica, and wait again: what comes after a failure is that replica's doing."""
        record = self.record
        failed = record.failed
        waited_s = record.queue_s
        if failed:
            waited_s = min(max(0.0, failed[0].at_s - self.at_s), record.queue_s)
        self._queue(waited_s)
        lost_s = record.retry_s
        for attempt in failed:
            took_s = lost_s if attempt is failed[-1] else min(attempt.took_s, lost_s)
            lost_s -= took_s
            self._add("retry", took_s, *_failure(attempt))
        if not failed and lost_s > 0:
            self._add("retry", lost_s, "lost on replicas that failed", Because("retry"))
        again_s = record.queue_s - waited_s
        if failed and again_s >= MATERIAL_S:
            _, because = _failure(failed[-1])
            self._add("queue", again_s, f"for another replica after {failed[-1].replica} failed", because)
        else:
            self._stretch(again_s)

    def _stretch(self, more_s: float) -> None:
        """Add what is too little to be told to what came before."""
        last = self.parts.pop()
        self.parts.append(msgspec.structs.replace(last, took_s=last.took_s + more_s))
        self.at_s += more_s

    def _queue(self, took_s: float) -> None:
        record, ahead = self.record, self.record.ahead
        refused = record.outcome.kind == "refused"
        if took_s < MATERIAL_S and not (refused and ahead is not None):
            why = record.message if refused and record.message else "it did not have to wait"
            self._add("queue", took_s, why, Because("queue" if refused else "ordinary"))
            return
        if ahead is None:
            since = record.at + self.at_s
            self._add("queue", took_s, *self._no_room(since, since + took_s))
            return
        figures: dict[str, float | str] = {
            "requests": ahead.requests, "tokens": ahead.tokens, "tenant": ahead.tenant,
            "tenant_requests": ahead.tenant_requests, "tenant_tokens": ahead.tenant_tokens,
        }  # fmt: skip
        most = 2 * ahead.tenant_tokens > ahead.tokens or 2 * ahead.tenant_requests > ahead.requests
        theirs = f"{many(ahead.tenant_requests, 'request')} ({many(ahead.tenant_tokens, 'token')})"
        if ahead.tenant != record.tenant and most and ahead.tenant_requests >= FLOOD:
            cause = f"behind {theirs} of tenant {ahead.tenant}"
            self._add("queue", took_s, cause, Because("flood", ahead.tenant, figures))
        else:
            cause = f"behind {many(ahead.requests, 'request')} ({many(ahead.tokens, 'token')}) in lane {record.lane}"
            if most and ahead.tenant == record.tenant:
                cause += f", {theirs} of them its own tenant's"
            self._add("queue", took_s, cause, Because("queue", ahead.tenant, figures))

    def _no_room(self, since: float, until: float) -> tuple[str, Because]:
        """Nobody was ahead of it, so those at the replicas had all the room."""
        tenants: dict[str, int] = {}
        for neighbour in self.neighbours:
            if neighbour.there_in(since, until):
                tenants[neighbour.tenant] = tenants.get(neighbour.tenant, 0) + 1
        total = sum(tenants.values())
        if not total:
            return "for a replica that could take it", Because("queue")
        tenant = max(tenants, key=lambda name: tenants[name])
        figures: dict[str, float | str] = {"running": total, "tenant": tenant, "tenant_requests": tenants[tenant]}
        if tenant != self.record.tenant and 2 * tenants[tenant] > total and tenants[tenant] >= FLOOD:
            return (
                f"while {many(tenants[tenant], 'request')} of tenant {tenant} had the room",
                Because("flood", tenant, figures),
            )
        return f"while {many(total, 'other')} had the room", Because("queue", tenant, figures)

    def _route(self) -> None:
        record = self.record
        figures: dict[str, float | str] = {seen.replica_id: round(seen.score, 3) for seen in record.seen}
        self._add("route", 0.0, record.reason, Because("ordinary", record.replica or "", figures))

    # -- until the first token -------------------------------------------------------------------------------

    def _first(self) -> None:
        record, engine = self.record, self.record.engine
        left_s = record.first_s
        if engine is not None:
            waited_s = min(left_s, engine.queue_ms / 1e3)
            if waited_s >= MATERIAL_S:
                left_s -= waited_s
                self._engine_queue(waited_s)
        whole = not record.stream and record.ttft_s is not None
        if whole and engine is not None and engine.decode_ms > 0:
            decode_s = min(left_s, max(0.0, left_s - (engine.tokenize_ms + engine.prefill_ms) / 1e3))
            self._prefill("prefill", left_s - decode_s)
            self._decode(decode_s)
        else:
            self._prefill("answer" if whole else "prefill", left_s)

    def _engine_queue(self, took_s: float) -> None:
        since = self.record.at + self.at_s
        blamed = self._long_prefills(since, since + took_s, BLAME, self.tokens)
        if blamed is None and self.record.cold:
            blamed = self._cold()
        if blamed is None:
            there = sum(neighbour.there_in(since, since + took_s) for neighbour in self.neighbours)
            beside = f", which had {many(there, 'other')}" if there else ""
            blamed = f"for a place at {self.record.replica}{beside}", Because("queue", self.record.replica or "")
        self._add("engine_queue", took_s, *blamed)

    def _prefill(self, stage: Stage, took_s: float) -> None:
        record, usual = self.record, self.usual
        since, until = record.at + self.at_s, record.at + self.at_s + took_s
        usual_s = 0.0 if usual is None else usual.first_for(self.tokens)
        blamed = None
        if clearly_more(took_s, usual_s):
            blamed = self._paused(since, until)
            if blamed is None and record.cold and took_s > 2 * (usual_s or COLD_S / 2):
                blamed = self._cold()
            if blamed is None:
                blamed = self._long_prefills(since, until, BLAME, self.tokens) or self._crowd(since, until)
        if blamed is None:
            blamed = self._own_work(stage, took_s)
        self._add(stage, took_s, *blamed, usual_s)

    def _own_work(self, stage: Stage, took_s: float) -> tuple[str, Because]:
        record, engine = self.record, self.record.engine
        cached = f" (of {record.prompt_tokens:,}; the rest was cached)" if record.cached_tokens else ""
        figures: dict[str, float | str] = {"tokens": self.tokens, "cached_tokens": record.cached_tokens}
        if took_s > 0:
            figures["tokens_per_s"] = round(self.tokens / took_s, 1)
        if stage == "answer" and record.output_tokens:
            figures["output_tokens"] = record.output_tokens
            cause = (
                f"prefill of {many(self.tokens, 'token')}{cached} and {many(record.output_tokens, 'token')} of answer"
            )
            return cause, Because("generation", "", figures)
        if engine is not None and engine.prefill_chunks:
            figures["chunks"] = engine.prefill_chunks
        rate = f" at {self.tokens / took_s:,.0f} per s".replace(",", " ") if took_s > 0 else ""
        return f"prefill of its own {many(self.tokens, 'token')}{cached}{rate}", Because("own_prompt", "", figures)

    # -- after it ------------------------------------------------------------------------------------------------

    def _stream(self) -> None:
        record = self.record
        stalled_s, stalled_at_end_s = self._stalled()
        left_s = record.stream_s - stalled_s
        gaps, decode_s = self._gaps(left_s)
        first_at_s = self.at_s
        if record.stream_s > 0:
            self._decode(decode_s)
        for rank, gap in gaps:
            self._gap(gap, rank)
        if stalled_s + stalled_at_end_s > 0:
            took_s = stalled_s + stalled_at_end_s
            cause = f"the client was behind with reading for {seconds(took_s)}"
            self._add("stalled", took_s, cause, Because("slow_client", record.tenant, {"stalled_s": record.stalled_s}))
        self.at_s = first_at_s + record.stream_s + stalled_at_end_s

    def _stalled(self) -> tuple[float, float]:
        """How much of the stream and of the end the client was behind. One that was given up was behind at the end."""
        record = self.record
        if record.outcome is Outcome.COMPLETED:
            in_stream_s = min(record.stalled_s, record.stream_s)
            return in_stream_s, min(record.stalled_s - in_stream_s, record.end_s)
        at_end_s = min(record.stalled_s, record.end_s)
        return min(record.stalled_s - at_end_s, record.stream_s), at_end_s

    def _gaps(self, left_s: float) -> tuple[list[tuple[int, Gap]], float]:
        """Those that stand out, in the order of time, with their rank by length; and what is left for ordinary tokens."""
        record, usual = self.record, self.usual
        gaps, others = record.gaps, record.output_tokens - 1 - len(record.gaps)
        ordinary_s = (left_s - sum(gap.took_s for gap in gaps)) / others if others > 0 else 0.0
        if usual is not None:
            ordinary_s = max(ordinary_s, usual.tpot_s)
            least_s = max(2 * usual.gap_s, 0.02)
        else:
            least_s = GAP_LEAST_S
        told: list[tuple[int, Gap]] = []
        for rank, gap in enumerate(gaps):
            if gap.took_s >= max(STANDS_OUT * ordinary_s, least_s) and gap.took_s <= left_s:
                told.append((rank, gap))
                left_s -= gap.took_s
        return sorted(told, key=lambda item: item[1].at_s), left_s

    def _decode(self, took_s: float) -> None:
        record, usual = self.record, self.usual
        since, until = record.at + self.at_s, record.at + self.at_s + record.stream_s
        tokens = max(1, record.output_tokens - record.stream)
        each_s = took_s / tokens
        usual_s = 0.0 if usual is None else usual.decode_s
        figures: dict[str, float | str] = {"tokens": record.output_tokens, "each_s": round(each_s, 6)}
        blamed = None
        if usual is not None and usual.tpot_s > 0 and clearly_more(took_s, usual.tpot_s * tokens):
            # Not for how much it said: each token took longer.
            blamed = self._evicted(0) or self._long_prefills(since, until, BLAME, LONG_LEAST)
            if blamed is None and record.cold:
                blamed = self._cold()
        if blamed is None:
            beside = sum(neighbour.first_at < until and neighbour.ended_at > since for neighbour in self.neighbours)
            figures["beside"] = beside
            company = f", beside {many(beside, 'other')}" if beside else ""
            cause = f"{many(record.output_tokens, 'token')}, {each_s * 1e3:.1f} ms each{company}"
            blamed = cause, Because("generation", "", figures)
        self._add("decode", took_s, *blamed, usual_s)

    def _gap(self, gap: Gap, rank: int) -> None:
        since, until = self.record.at + gap.at_s, self.record.at + gap.at_s + gap.took_s
        blamed = self._paused(since, until) or self._evicted(rank)
        if blamed is None:
            blamed = self._long_prefills(since, until, GAP_BLAME, LONG_LEAST)
        if blamed is None and self.record.cold:
            blamed = self._cold()
        if blamed is None:
            blamed = f"replica {self.record.replica} was silent", Because("unknown", self.record.replica or "")
        usual_s = 0.0 if self.usual is None else self.usual.tpot_s
        self.at_s = gap.at_s
        self._add("gap", gap.took_s, *blamed, usual_s)

    def _end(self) -> None:
        record = self.record
        took_s = record.end_s if record.ttft_s is None else max(0.0, record.end_s - self._stalled()[1])
        replica = record.replica or ""
        if record.outcome in (Outcome.REPLICA_FAILED, Outcome.REPLICA_STALLED) and record.ttft_s is not None:
            said = f": {record.message}" if record.message else ""
            because = Because("killed_replica", replica, {"outcome": record.outcome.value})
            self._add("end", took_s, f"replica {replica} broke off{said}", because)
        elif record.outcome is Outcome.SLOW_CLIENT:
            self._add("end", took_s, "given up: the client did not read", Because("slow_client", record.tenant))
        elif took_s > 0 or record.outcome is Outcome.CANCELLED:
            cause = "the client left" if record.outcome is Outcome.CANCELLED else "last token to the end"
            self._add("end", took_s, cause, Because("ordinary"))

    # -- whose doing ----------------------------------------------------------------------------------------------

    def _paused(self, since: float, until: float) -> tuple[str, Because] | None:
        """This process itself stood still for at least half of it."""
        best, best_s = None, GAP_BLAME * (until - since)
        for pause in self.pauses:
            overlap_s = min(until, pause.at + pause.took_s) - max(since, pause.at)
            if overlap_s >= best_s and overlap_s > 0:
                best, best_s = pause, overlap_s
        if best is None:
            return None
        figures: dict[str, float | str] = {"took_s": best.took_s, "overlapped_s": round(best_s, 6)}
        if best.kind == "gc":
            return f"the gateway collected garbage for {seconds(best.took_s)}", Because("gc_pause", "", figures)
        return f"the gateway's event loop was held up for {seconds(best.took_s)}", Because("loop_lag", "", figures)

    def _cold(self) -> tuple[str, Because]:
        replica = self.record.replica or ""
        return f"replica {replica} was cold: it had not answered anything yet", Because("cold_replica", replica)

    def _evicted(self, rank: int) -> tuple[str, Because] | None:
        """Each preemption makes one long gap."""
        engine = self.record.engine
        if engine is None or rank >= engine.preemptions:
            return None
        cause = f"its KV was evicted: preempted {many(engine.preemptions, 'time')} at {self.record.replica}"
        return cause, Because("eviction", self.record.replica or "", {"preemptions": engine.preemptions})

    def _long_prefills(self, since: float, until: float, share: float, above: int) -> tuple[str, Because] | None:
        """Others' longer prefills at its replica, which together cover at least `share` of it."""
        worst, worst_s, total_s, count = None, 0.0, 0.0, 0
        for neighbour in self.neighbours:
            if neighbour.tokens <= above or neighbour.tokens < LONG_LEAST:
                continue
            overlap_s = neighbour.prefilled_in(since, until)
            if overlap_s > 0:
                total_s, count = total_s + overlap_s, count + 1
                if worst is None or overlap_s * neighbour.tokens > worst_s * worst.tokens:
                    worst, worst_s = neighbour, overlap_s
        if worst is None or total_s < share * (until - since):
            return None
        figures: dict[str, float | str] = {
            "tokens": worst.tokens, "overlapped_s": round(worst_s, 6), "others": count - 1, "tenant": worst.tenant,
            "lane": worst.lane,
        }  # fmt: skip
        more = f" and {many(count - 1, 'other')}" if count > 1 else ""
        cause = f"long prefill of request {worst.id} ({many(worst.tokens, 'token')}){more} beside it"
        return f"{cause} for {seconds(worst_s)}", Because("long_prefill", worst.id, figures)

    def _crowd(self, since: float, until: float) -> tuple[str, Because] | None:
        """Nobody's was longer, but there were many."""
        beside = [n for n in self.neighbours if n.prefilled_in(since, until) > BLAME * (until - since)]
        tokens = sum(neighbour.tokens for neighbour in beside)
        if len(beside) < FLOOD or tokens <= 2 * self.tokens:
            return None
        cause = f"{many(len(beside), 'other prompt')} ({many(tokens, 'token')}) were prefilled beside it"
        replica = self.record.replica or ""
        return cause, Because("queue", replica, {"prompts": len(beside), "tokens": tokens})


def _failure(attempt: Attempt) -> tuple[str, Because]:
    kind: Kind = "refused_replica" if attempt.refused else "killed_replica"
    verb = "refused it" if attempt.refused else "failed"
    said = f": {attempt.message}" if attempt.message else ""
    figures: dict[str, float | str] = {"outcome": attempt.outcome.value, "took_s": round(attempt.took_s, 6)}
    return f"replica {attempt.replica} {verb}{said}", Because(kind, attempt.replica, figures)
