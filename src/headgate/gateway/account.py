"""Makes and keeps the records of requests: one for each, written exactly once, with totals over all of them.

A record is made from a request's timeline, and from the Summary of its answer if it got one: of a request that has
ended, of one that still runs, and of one that was never understood.
"""

from collections import deque
from typing import Final

from headgate.config.gateway import ObserveConfig
from headgate.gateway.intake.abilities import RESPONSES
from headgate.gateway.intake.accept import Accepted
from headgate.gateway.trace_context import Hop
from headgate.model.errors import ServeError
from headgate.model.outcome import Outcome
from headgate.model.record import (
    Ahead,
    Attempt,
    ConsideredReplica,
    EngineTimings,
    Gap,
    Hedged,
    QuoteTold,
    Record,
    kept,
    own_promise,
)
from headgate.model.replica import Replica
from headgate.policy.promises.quotes import judged
from headgate.wire.errors import STATUS
from headgate.wire.exchange import Exchange

NO_LANE: Final = "none"
"""The lane of requests that were refused before they were parsed."""
FULL: Final = 503
NO_TAGS: dict[str, str] = {}
OPERATIONS: Final = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}
OBSERVE: Final = ObserveConfig()
TEMPLATE_TOKENS: Final = 4096
"""Maximum tokens that a chat template is assumed to add to a prompt."""


class RequestTimeline:
    """What has happened to an accepted request so far, in the gateway and at replicas.

    Stages follow each other without a gap: the end of one is the beginning of the next."""

    __slots__ = (
        "accepted",
        "ahead",
        "attempts",
        "cold",
        "failed",
        "failures",
        "hedge",
        "hop",
        "queue_s",
        "quote",
        "reason",
        "replica",
        "retry_s",
        "seen",
        "since",
        "woke_s",
    )

    def __init__(self, accepted: Accepted, now: float) -> None:
        self.accepted = accepted
        self.since = now
        """When the request began to wait or, while it has a relay, when it was sent."""
        self.queue_s = 0.0
        self.retry_s = 0.0
        self.replica: Replica | None = None
        """The replica that has the request, or had it last; None: it has been sent to none."""
        self.attempts = 0
        self.reason = ""
        self.seen: tuple[ConsideredReplica, ...] = ()
        self.cold = False
        self.woke_s = 0.0
        self.ahead: Ahead | None = None
        self.failed: tuple[Attempt, ...] = ()
        self.failures = 0
        self.hedge: Hedged | None = None
        self.quote: QuoteTold | None = None
        """When the first token was expected; None: it was not told yet."""
        self.hop: Hop | None = None
        """The place of the request in a trace; None: traces are not collected."""

    def send(self, replica: Replica, now: float) -> None:
        """The request is sent: it has waited until now."""
        self.replica = replica
        self.queue_s += now - self.since
        self.since = now

    def fail(self, error: ServeError, refused: bool, now: float) -> None:
        """The attempt failed, and the request waits again."""
        self.note(error, refused, now)
        self.retry_s += now - self.since
        self.since = now

    def note(self, error: ServeError, refused: bool, now: float) -> None:
        """Counts and keeps a failed attempt at the replica that has the request."""
        assert self.replica is not None
        at_s, took_s = self.since - self.accepted.request.arrived, now - self.since
        self.failures += 1
        self.failed = kept(self.failed, Attempt(self.replica.id, at_s, took_s, error.outcome, refused, error.message))

    def move(self, replica: Replica, at: float, reason: str, seen: tuple[ConsideredReplica, ...]) -> None:
        """Another replica, which was asked at `at`, has the request instead: the time before was lost."""
        self.replica, self.reason, self.seen = replica, reason, seen
        self.retry_s += at - self.since
        self.since = at


class Summary:
    """How an exchange ended that its relay answered, or how it stands. Times are on the relay's clock."""

    # Written out, not a dataclass, whose constructor would stay interpreted where this is compiled.
    __slots__ = (
        "cached_tokens",
        "error",
        "events",
        "first_at",
        "gaps",
        "last_at",
        "outcome",
        "sent_at",
        "stalled_s",
        "status",
        "stop",
        "timings",
        "usage",
    )

    def __init__(
        self,
        *,
        outcome: Outcome,
        status: int,
        error: ServeError | None,
        usage: tuple[int, int] | None,
        cached_tokens: int | None,
        timings: EngineTimings | None,
        events: int,
        sent_at: float | None,
        first_at: float | None,
        last_at: float | None,
        gaps: tuple[tuple[float, float], ...],
        stalled_s: float,
        stop: str = "",
    ) -> None:
        self.stop: Final = stop
        """Why the answer was ended early, with the text so far; empty: it was not."""
        self.outcome: Final = outcome
        self.status: Final = status
        """The HTTP status that the client got; 499 if it left before it got one."""
        self.error: Final = error
        self.usage: Final = usage
        """Prompt and output tokens as the replica counted them; None: it reported none."""
        self.cached_tokens: Final = cached_tokens
        """Prompt tokens found in the replica's cache; None: it does not say."""
        self.timings: Final = timings
        """The replica's own account of where its time went; None: it gave none."""
        self.events: Final = events
        """Events passed on to the client. Usually one is a token, so the number stands in for usage that was not
        reported."""
        self.sent_at: Final = sent_at
        self.first_at: Final = first_at
        """When the first token came; for an unstreamed answer, when the engine says that it was there. None: there was
        no token, or the time is unknown."""
        self.last_at: Final = last_at
        self.gaps: Final = gaps
        """The replica's longest silences between two reads with events, longest first: seconds, and since when. Time
        while the client was behind does not count."""
        self.stalled_s: Final = stalled_s
        """Seconds that the client was behind."""


class Account:
    def __init__(self, keep: int = OBSERVE.keep, wall_offset: float = 0.0) -> None:
        """`wall_offset`: seconds to add to the clock to get the time of day."""
        self.records: deque[Record] = deque(maxlen=keep)
        self._fresh: deque[Record] = deque(maxlen=keep)
        self._wall_offset = wall_offset
        self._adapters: frozenset[str] = frozenset()
        self.ended: dict[tuple[str, Outcome], int] = {}
        """Ended requests by lane and outcome; both are closed sets, so the dict is bounded."""
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.opened = 0
        self.unseen: dict[int, int] = {}
        """Requests that the wire refused, by status; the wire uses a handful of statuses."""

    def open(self) -> None:
        self.opened += 1

    def know_adapters(self, names: frozenset[str]) -> None:
        """Takes the model names that are adapters of another model, as replicas list them."""
        self._adapters = names

    def end(
        self,
        timeline: RequestTimeline,
        outcome: Outcome,
        summary: Summary | None,
        usage: tuple[int, int] | None,
        error: ServeError | None,
        now: float,
        status: int,
    ) -> None:
        """Writes the record of an accepted request. `summary` is None if no relay answered the client, as while it
        waited. `usage`: prompt and output tokens; None: no replica has worked on it. `status`: the HTTP status that the
        client got."""
        self.close(self._record(timeline, outcome, summary, usage, error, now, status))

    def turn_away(self, exchange: Exchange, error: ServeError, tenant: str, now: float) -> None:
        """Writes the record of a request that never entered the queue, because it is invalid or was refused early."""
        at = exchange.received_at
        self.opened += 1
        self.close(
            Record(
                id=exchange.request_id,
                at=at,
                wall=at + self._wall_offset,
                lane=NO_LANE,
                tenant=tenant,
                model="",
                outcome=error.outcome,
                status=STATUS[error.outcome],
                message=error.message,
                accept_s=now - at,
                e2e_s=now - at,
            )
        )

    def so_far(self, timeline: RequestTimeline, summary: Summary | None, now: float) -> Record:
        """The record of a request that still runs, as if it ended now; it is not kept. `summary`: Relay.so_far; None:
        the request waits."""
        usage = (timeline.accepted.request.prompt_tokens, 0 if summary is None else summary.events)
        return self._record(timeline, Outcome.COMPLETED, summary, usage, None, now, 200)

    def close(self, record: Record) -> None:
        """Keeps a record and counts it. Call `open` before."""
        self.records.append(record)
        self._fresh.append(record)
        key = (record.lane, record.outcome)
        self.ended[key] = self.ended.get(key, 0) + 1
        self.prompt_tokens += record.prompt_tokens
        self.output_tokens += record.output_tokens

    def refuse(self, status: int, path: str) -> None:
        """Counts a request that the wire refused before the gateway saw it. It leaves no record: clients could send any
        number of them and so push out the records of parsed requests. A 503 is the gateway's own limit, so one on /v1/,
        or with an unknown path, also counts as refused with QUEUE_FULL; malformed and late requests are the client's
        fault."""
        self.unseen[status] = self.unseen.get(status, 0) + 1
        if status == FULL and (not path or path.startswith("/v1/")):
            self.opened += 1
            key = (NO_LANE, Outcome.QUEUE_FULL)
            self.ended[key] = self.ended.get(key, 0) + 1

    def fresh(self, most: int | None = None) -> list[Record]:
        """Records closed since the last call, at most `most` of them (None: all). Figures and traces are made from them
        off the request path."""
        if most is not None and len(self._fresh) > most:
            return [self._fresh.popleft() for _ in range(most)]
        records = list(self._fresh)
        self._fresh.clear()
        return records

    @property
    def open_now(self) -> int:
        return self.opened - sum(self.ended.values())

    def _record(
        self, timeline: RequestTimeline, outcome: Outcome, summary: Summary | None, usage: tuple[int, int] | None,
        error: ServeError | None, now: float, status: int,
    ) -> Record:  # fmt: skip
        accepted, replica = timeline.accepted, timeline.replica
        request, chosen, allowance = accepted.request, accepted.chosen, accepted.allowance
        arrived = request.arrived
        prompt, output = usage or (request.prompt_tokens, 0)
        queue_s, first_s, stream_s, end_s, ttft_s, tpot_s = timeline.queue_s, 0.0, 0.0, 0.0, None, None
        gaps: tuple[Gap, ...] = ()
        if summary is None:
            queue_s += now - timeline.since
        else:
            first = summary.first_at
            last = now if first is None and request.stream else summary.last_at or first or now
            first_s = (last if first is None else first) - timeline.since
            end_s = now - last
            if first is not None:
                ttft_s, stream_s = first - arrived, last - first
                each = output // request.choices
                tpot_s = stream_s / (each - 1) if each > 1 else None
            if summary.gaps:
                gaps = tuple([Gap(since - arrived, took_s) for took_s, since in summary.gaps])
        tags = NO_TAGS if replica is None else replica.tags
        return Record(
            id=request.id, at=arrived, wall=arrived + self._wall_offset, lane=request.lane, tenant=request.tenant,
            relegated_from=accepted.relegated_from, tier=request.tier, stream=request.stream, choices=request.choices,
            operation=OPERATIONS.get(accepted.path, "chat"),
            model=request.model if chosen is None else chosen.name,
            version=tags.get("version", "") if chosen is None or not chosen.version else chosen.version,
            drawn_from="" if chosen is None else chosen.drawn_from,
            fell_back="" if chosen is None else chosen.fell_back,
            choice="" if chosen is None else chosen.reason,
            adapter=request.model if self._adapters and request.model in self._adapters else "",
            replica=None if replica is None else replica.id,
            quantization=tags.get("quantization", ""), gpu_type=tags.get("gpu_type", ""),
            outcome=outcome, status=status, message="" if error is None else error.message,
            task="" if allowance is None else allowance.task,
            cap=(allowance.tokens or 0) if allowance is not None and allowance.why else 0,
            stop="" if summary is None else summary.stop,
            unsaid=0 if summary is None or not summary.stop else _unsaid(accepted, output),
            attempts=timeline.attempts, failed=timeline.failed, failures=timeline.failures,
            hedge=timeline.hedge, cold=timeline.cold, ahead=timeline.ahead, reason=timeline.reason, seen=timeline.seen,
            prompt_tokens=prompt, output_tokens=output,
            cached_tokens=0 if summary is None else min(prompt, summary.cached_tokens or 0),
            accept_s=now - arrived - queue_s - timeline.retry_s - first_s - stream_s - end_s,
            queue_s=queue_s, retry_s=timeline.retry_s, first_s=first_s, stream_s=stream_s, end_s=end_s,
            woke_s=timeline.woke_s, ttft_s=ttft_s, tpot_s=tpot_s, e2e_s=now - arrived,
            max_gap_s=gaps[0].took_s if gaps else 0.0, gaps=gaps,
            stalled_s=0.0 if summary is None else summary.stalled_s,
            engine=None if summary is None else summary.timings,
            promise=None
            if accepted.own_ttft_s is None and request.tpot_s is None
            else own_promise(
                (accepted.own_ttft_s, request.tpot_s), request.stream, ttft_s, tpot_s, now - arrived, outcome
            ),
            quote=judged(None if allowance is None else timeline.quote, ttft_s, now - arrived, outcome),
            trace="" if timeline.hop is None else timeline.hop.traceparent,
            parent="" if timeline.hop is None else timeline.hop.parent_id,
        )  # fmt: skip


def _unsaid(accepted: Accepted, output: int) -> int:
    """Output tokens that the request was allowed but did not use; 0 if it had no limit."""
    allowance = accepted.allowance
    if allowance is None or allowance.tokens is None:
        return 0
    return max(0, allowance.tokens * accepted.request.choices - output)


def believed(usage: tuple[int, int], accepted: Accepted) -> tuple[int, int]:
    """The engine's token counts, capped at what is possible, because the tenant's limits are charged for them. A token
    has at least one byte, apart from what a template adds. The prompt of a /v1/responses request is not capped: the
    engine may add stored turns to it. Nor is one with tools."""
    prompt, output = usage
    allowance, size = accepted.allowance, accepted.prompt.text_bytes
    if allowance is not None and allowance.tokens is not None:
        output = min(output, allowance.tokens * accepted.request.choices)
    if size and accepted.path != RESPONSES and "tools" not in accepted.body:
        prompt = min(prompt, size + TEMPLATE_TOKENS)
    return prompt, output
