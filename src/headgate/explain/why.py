"""Explains where one request's time went, and what caused it.

A request's stages follow each other, so its parts add up to its whole time. What happened in a part comes from the
request's own record; what caused it, from the requests at the same replica then and from the gateway's own pauses.

    accept → queue → failed attempts → route → engine queue → prefill → decode, its longest gaps, client stalled → end

Other requests are blamed only where a part took clearly longer than is usual in its lane, as far as that is known.
"""

from collections.abc import Sequence
from math import inf

from headgate.explain.blame import BLAME, GAP_BLAME, LONG_CONTEXT, Blame, GatewayPause, Suspects, failure
from headgate.explain.explanation import (
    Because,
    Explanation,
    Figures,
    Kind,
    Part,
    Stage,
    headline,
    main_part,
    many,
    seconds,
)
from headgate.explain.neighbours import Neighbour, neighbours
from headgate.explain.usual import UsualTimes, clearly_more, usual
from headgate.model.outcome import Outcome
from headgate.model.record import Gap, Record

__all__ = [
    "Because",
    "Explanation",
    "GatewayPause",
    "Kind",
    "Neighbour",
    "Part",
    "Stage",
    "UsualTimes",
    "explain",
    "headline",
    "main_part",
    "neighbours",
    "usual",
]

HEDGED = {
    "won": "was first",
    "lost": "was not first",
    "took_over": "had it when the first failed",
    "failed": "failed",
    "cancelled": "was cancelled with it",
}
"""What became of the hedge's second replica."""
MATERIAL_S = 0.001
"""Seconds below which a delay is not called waiting."""
SLOW_UPLOAD_S = 0.1
"""Seconds above which the client counts as a slow sender."""
COLD_S = 0.2
"""Seconds that a first token at a cold replica may take without being blamed on the cold, where the usual time is
unknown."""
GAP_LEAST_S = 0.05
"""Seconds below which a gap does not stand out, where the usual gap is unknown."""
STANDS_OUT = 3.0
"""Multiple of the ordinary gap from which on a gap is a part of its own."""


def explain(
    record: Record, neighbours: Sequence[Neighbour], pauses: Sequence[GatewayPause], usual: UsualTimes | None = None
) -> Explanation:
    suspects = Suspects(record, neighbours, pauses, inf if usual is None else usual.token_s)
    parts = _Story(record, suspects, usual).tell()
    return Explanation(
        record.id, record.lane, record.tenant, record.replica, record.outcome, record.message,
        record.e2e_s, record.ttft_s, tuple(parts),
    )  # fmt: skip


class _Story:
    """One explanation in the making: the known facts, and the current position in the request's time."""

    def __init__(self, record: Record, suspects: Suspects, usual: UsualTimes | None) -> None:
        self.record = record
        self.suspects = suspects
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

    def _when(self, took_s: float) -> tuple[float, float]:
        """The interval of `took_s` from the current position, on the records' clock."""
        since = self.record.at + self.at_s
        return since, since + took_s

    # -- before it is sent ---------------------------------------------------------------------------------

    def _accept(self, took_s: float) -> None:
        usual_s = self.usual.accept_s if self.usual is not None else 0.0
        paused = self.suspects.pause(*self._when(took_s))
        if took_s >= MATERIAL_S and paused is not None:
            self._add("accept", took_s, *paused, usual_s)
        elif took_s >= SLOW_UPLOAD_S:
            cause = f"the client took {seconds(took_s)} to send it"
            self._add("accept", took_s, cause, Because("slow_client", self.record.tenant), usual_s)
        else:
            self._add("accept", took_s, "read and understood", Because("ordinary"))

    def _wait_and_retry(self) -> None:
        """Adds the waits and failed attempts. A request may wait, fail at a replica, and wait again: the second wait is
        that replica's doing."""
        record, failed = self.record, self.record.failed
        waited_s = record.queue_s
        if failed:
            waited_s = min(max(0.0, failed[0].at_s - self.at_s), record.queue_s)
        again_s, lost_s = record.queue_s - waited_s, record.retry_s
        if again_s < MATERIAL_S:
            waited_s, again_s = record.queue_s, 0.0
        self._queue(waited_s)
        for attempt in failed:
            took_s = lost_s if attempt is failed[-1] else min(attempt.took_s, lost_s)
            lost_s -= took_s
            cause, because = failure(attempt)
            if attempt is failed[-1] and record.failures > len(failed):
                cause += f"; {record.failures} attempts failed in all"
            self._add("retry", took_s, cause, because)
        if not failed and lost_s > 0 and record.hedge is not None:
            first, second = record.hedge.first, record.hedge.second
            cause = f"replica {first} had not answered when {second} was asked as well, which did"
            self._add("retry", lost_s, cause, Because("retry", first))
        elif not failed and lost_s > 0:
            self._add("retry", lost_s, "lost on replicas that failed", Because("retry"))
        if again_s > 0:
            _, because = failure(failed[-1])
            self._add("queue", again_s, f"for another replica after {failed[-1].replica} failed", because)

    def _queue(self, took_s: float) -> None:
        record = self.record
        refused = record.outcome.kind == "refused"
        if took_s < MATERIAL_S and not (refused and record.ahead is not None):
            why = record.message if refused and record.message else "not at all"
            self._add("queue", took_s, why, Because("queue" if refused else "ordinary"))
        elif record.woke_s >= MATERIAL_S:
            woke_s, replica = min(took_s, record.woke_s), record.replica or ""
            cause = f"for sleeping replica {replica} to wake up, which took {seconds(woke_s)} of it"
            self._add("queue", took_s, cause, Because("asleep", replica, {"woke_s": round(woke_s, 3)}))
        elif record.ahead is not None:
            self._add("queue", took_s, *self.suspects.ahead(record.ahead))
        else:
            self._add("queue", took_s, *self.suspects.no_room(*self._when(took_s)))

    def _route(self) -> None:
        record = self.record
        figures: Figures = {seen.replica_id: round(seen.score, 3) for seen in record.seen}
        said = f"{record.replica}: {record.reason}"
        if record.hedge is not None:
            hedge, what = record.hedge, HEDGED.get(record.hedge.result, record.hedge.result)
            said += f"; hedged on {hedge.second} after {seconds(hedge.at_s)}, which {what}"
        self._add("route", 0.0, said, Because("ordinary", record.replica or "", figures))

    # -- until the first token -------------------------------------------------------------------------------

    def _first(self) -> None:
        record, engine = self.record, self.record.engine
        left_s = record.first_s
        if engine is not None and engine.queue_ms >= 1e3 * MATERIAL_S:
            waited_s = min(left_s, engine.queue_ms / 1e3)
            left_s -= waited_s
            self._engine_queue(waited_s)
        self._prefill("answer" if record.whole else "prefill", left_s)

    def _engine_queue(self, took_s: float) -> None:
        when, replica = self._when(took_s), self.record.replica or ""
        blamed = self.suspects.long_prefills(*when, BLAME, self.tokens) or self.suspects.cold()
        if blamed is None:
            there = self.suspects.there(*when)
            beside = f", which had {many(there, 'other')}" if there else ""
            blamed = f"for a place at {replica}{beside}", Because("queue", replica, {"beside": there})
        self._add("engine_queue", took_s, *blamed)

    def _prefill(self, stage: Stage, took_s: float) -> None:
        usual, replica = self.usual, self.record.replica or ""
        usual_s = 0.0 if usual is None else usual.first_for(self.tokens)
        expected_s = usual_s
        if usual is not None and stage == "answer":
            expected_s *= max(1.0, self.record.output_tokens / max(1, usual.output_tokens))
        blamed: Blame | None = None
        if clearly_more(took_s, expected_s):
            when = self._when(took_s)
            # The cold is only a guess beside a neighbour that was seen in the way most of the time.
            blamed = self.suspects.pause(*when) or self.suspects.long_prefills(*when, GAP_BLAME, self.tokens)
            if blamed is None and took_s > 2 * (expected_s or COLD_S / 2):
                blamed = self.suspects.cold()
            if blamed is None:
                blamed = self.suspects.long_prefills(*when, BLAME, self.tokens)
            if blamed is None and stage == "prefill":  # an unstreamed answer is mostly decoding
                blamed = self.suspects.crowd(*when)
            if blamed is None and usual is not None and clearly_more(took_s, 2 * expected_s):
                cause = f"replica {replica} was slow: such a prompt usually takes {seconds(expected_s)}"
                blamed = cause, Because("unknown", replica, {"usual_s": round(expected_s, 6)})
        self._add(stage, took_s, *(blamed or self._own_work(stage, took_s)), usual_s)

    def _own_work(self, stage: Stage, took_s: float) -> Blame:
        record, engine = self.record, self.record.engine
        cached = f" (of {record.prompt_tokens}; the rest was cached)" if record.cached_tokens else ""
        figures: Figures = {"tokens": self.tokens, "cached_tokens": record.cached_tokens}
        if took_s > 0:
            figures["tokens_per_s"] = round(self.tokens / took_s, 1)
        prefill = f"prefill of its own {many(self.tokens, 'token')}{cached}"
        if stage == "answer" and record.output_tokens:
            figures["output_tokens"] = record.output_tokens
            return f"{prefill}, and {many(record.output_tokens, 'token')} said", Because("generation", "", figures)
        if engine is not None and engine.prefill_chunks:
            figures["chunks"] = engine.prefill_chunks
            prefill += f" in {many(engine.prefill_chunks, 'chunk')}"
        rate = f" at {self.tokens / took_s:.0f} per s" if took_s > 0 else ""
        return prefill + rate, Because("own_prompt", "", figures)

    # -- after it ------------------------------------------------------------------------------------------------

    def _stream(self) -> None:
        record = self.record
        stalled_s, stalled_at_end_s = self._stalled()
        gaps, decode_s = self._gaps(record.stream_s - stalled_s)
        first_at_s = self.at_s
        if record.stream_s > 0:
            self._decode(decode_s, record.stream_s)
        for rank, gap in gaps:
            self._gap(gap, rank)
        self.at_s = first_at_s + record.stream_s - stalled_s
        took_s = stalled_s + stalled_at_end_s
        if took_s > 0:
            cause = f"the client was behind with reading for {seconds(took_s)}"
            self._add("stalled", took_s, cause, Because("slow_client", record.tenant, {"stalled_s": record.stalled_s}))

    def _stalled(self) -> tuple[float, float]:
        """Seconds in which the client was behind, during the stream and at the end. A client that was given up was
        behind at the end."""
        record = self.record
        if record.outcome is Outcome.COMPLETED:
            in_stream_s = min(record.stalled_s, record.stream_s)
            return in_stream_s, min(record.stalled_s - in_stream_s, record.end_s)
        at_end_s = min(record.stalled_s, record.end_s)
        return min(record.stalled_s - at_end_s, record.stream_s), at_end_s

    def _gaps(self, left_s: float) -> tuple[list[tuple[int, Gap]], float]:
        """The gaps that stand out, in order of time and with their rank by length; and the remaining seconds without
        them."""
        gaps, usual = self.record.gaps, self.usual
        others = self.record.output_tokens - 1 - len(gaps)
        ordinary_s = (left_s - sum(gap.took_s for gap in gaps)) / others if others > 0 else 0.0
        least_s = GAP_LEAST_S
        if usual is not None:
            ordinary_s = max(ordinary_s, usual.tpot_s)
            least_s = max(2 * usual.gap_s, 0.02)
        told: list[tuple[int, Gap]] = []
        for rank, gap in enumerate(gaps):
            if max(STANDS_OUT * ordinary_s, least_s) <= gap.took_s <= left_s:
                told.append((rank, gap))
                left_s -= gap.took_s
        return sorted(told, key=lambda item: item[1].at_s), left_s

    def _decode(self, took_s: float, stream_s: float) -> None:
        record, usual = self.record, self.usual
        when = self._when(stream_s)
        tokens = max(1, record.output_tokens - 1)
        beside, longest = self.suspects.decoding(*when)
        figures: Figures = {
            "tokens": record.output_tokens, "each_s": round(took_s / tokens, 6), "beside": beside,
            "longest_beside": longest,
        }  # fmt: skip
        blamed: Blame | None = None
        slow = usual is not None and usual.tpot_s > 0 and clearly_more(took_s, usual.tpot_s * tokens)
        if slow:  # per token, so a long answer alone is not slow
            blamed = self.suspects.eviction() or self.suspects.long_prefills(*when, BLAME) or self.suspects.cold()
        if blamed is None:
            company = f", beside {many(beside, 'other')}" if beside else ""
            if slow and longest >= LONG_CONTEXT:
                company += f", one of them with {many(longest, 'token')} of context"
            cause = f"{many(record.output_tokens, 'token')}, {1e3 * took_s / tokens:.1f} ms each{company}"
            blamed = cause, Because("generation", "", figures)
        self._add("decode", took_s, *blamed, 0.0 if usual is None else usual.decode_s)

    def _gap(self, gap: Gap, rank: int) -> None:
        self.at_s, replica = gap.at_s, self.record.replica or ""
        when, suspects = self._when(gap.took_s), self.suspects
        blamed = (
            suspects.pause(*when)
            or suspects.eviction(rank)
            or suspects.long_prefills(*when, GAP_BLAME)
            or suspects.cold()
            or (f"replica {replica} was silent", Because("unknown", replica))
        )
        self._add("gap", gap.took_s, *blamed, 0.0 if self.usual is None else self.usual.tpot_s)

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
        elif record.outcome is Outcome.CANCELLED:
            self._add("end", took_s, "the client left", Because("ordinary"))
        elif took_s > 0:
            self._add("end", took_s, "last token to the end", Because("ordinary"))
