"""What is kept of a request when it is over: one Record, closed exactly once, on every path.

Times named `at` are on the monotonic clock of the process that wrote them; those named `at_s` count from the arrival of
the request's first byte; `wall` is for people. Labels are as the request had them: whoever exports figures caps them.
"""

import msgspec

from headgate.model.outcome import Outcome


class Ahead(msgspec.Struct, frozen=True, gc=False):
    """What stood before a request when it began to wait in the gateway."""

    requests: int
    tokens: int
    tenant: str
    """Who had most of it waiting, in the same lane."""
    tenant_requests: int
    tenant_tokens: int


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """A replica that was asked and failed before the first byte: another was asked, or the request was refused."""

    replica: str
    at_s: float
    took_s: float
    outcome: Outcome
    refused: bool
    """It said that it was busy, which is no fault."""
    message: str


FIRST_KEPT, LAST_KEPT = 4, 4
"""Of a request's failed attempts. Without a bound, one that is refused for minutes would keep them all."""


def kept(failed: tuple[Attempt, ...], attempt: Attempt) -> tuple[Attempt, ...]:
    """With one more: the first few, and the last few."""
    if len(failed) < FIRST_KEPT + LAST_KEPT:
        return (*failed, attempt)
    return (*failed[:FIRST_KEPT], *failed[FIRST_KEPT + 1 :], attempt)


class Hedged(msgspec.Struct, frozen=True, gc=False):
    """It was sent to a second replica as well, because the first had not answered."""

    first: str
    second: str
    at_s: float
    """When the second was asked."""
    result: str
    """won: the second answered first. lost: the first did. took_over: the first failed, and the second was the request.
    failed: the second did. cancelled: it ended before either had answered."""


class Gap(msgspec.Struct, frozen=True, gc=False):
    """A silence of the replica between two reads with tokens; while the client was behind does not count."""

    at_s: float
    """When it began."""
    took_s: float


class ConsideredReplica(msgspec.Struct, frozen=True, gc=False):
    """One of the replicas that were looked at for it."""

    replica_id: str
    score: float
    """0 to 1, affinity included."""
    load: float
    """What the index is ordered by: seconds of work, requests, or turns."""
    match: float
    """Share of the prefix it has seen, 0 to 1; counted only if it is near the least load."""
    home: bool
    """The session's own, or the next one near the least load."""


CLOCKS_S = 0.05
"""An engine may say that it took this much longer than was measured here: clocks are read at different moments."""


class EngineTimings(msgspec.Struct, frozen=True, gc=False):
    """What the engine itself says about where its time went. Only our own says all of it."""

    queue_ms: float = 0.0
    tokenize_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    detokenize_ms: float = 0.0
    prefill_chunks: int = 0
    preemptions: int = 0
    yields: int = 0
    """Of these, those in which its slot went to a more urgent request, and not for lack of KV memory."""
    stop: str = ""
    """Why it ended the answer early, if it did."""

    def first_s(self, took_s: float, output_tokens: int) -> float | None:
        """Seconds from sending a request to its first token, where its whole answer was there after `took_s`: all of
        it but the decoding. None: the engine does not say, or what it says can't be."""
        before_s, after_s = (self.queue_ms + self.tokenize_ms + self.prefill_ms) / 1e3, self.decode_ms / 1e3
        if not (0.0 <= after_s <= took_s + CLOCKS_S and 0.0 <= before_s <= took_s + self.tokenize_ms / 1e3 + CLOCKS_S):
            return None  # also where one of them is no number
        if after_s > 0.0:
            return max(0.0, took_s - after_s)
        if before_s <= 0.0:
            return None
        return took_s if output_tokens <= 1 else min(before_s, took_s)


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    id: str
    at: float
    """When its first byte was read."""
    wall: float = 0.0
    """The same in seconds since 1970."""
    lane: str
    tenant: str
    tier: str = "free"
    task: str = ""
    model: str
    """As the client named it."""
    version: str = ""
    drawn_from: str = ""
    """The public name among whose versions its own was drawn; empty: it has none, or the client named it."""
    fell_back: str = ""
    """The version that was drawn for it, where another answered because no replica of that one was usable; empty: its
    own answered."""
    choice: str = ""
    """Why that model and version, where a name stands for others."""
    adapter: str = ""
    replica: str | None = None
    """The one that answered, or was asked last; None: it never got to one."""
    quantization: str = ""
    gpu_type: str = ""
    stream: bool = False
    operation: str = "chat"
    """OpenTelemetry's word for what was asked: chat, text_completion or embeddings."""

    outcome: Outcome
    status: int = 200
    """What the client got; 499 if it left before it got any."""
    message: str = ""
    """What went wrong, if anything did."""
    cap: int = 0
    """Most output tokens it was allowed, where that was not the client's own value; 0: it was."""
    stop: str = ""
    """Why its answer was ended early, `repetition` or `time`; empty: it was not."""
    unsaid: int = 0
    """Of one that was ended early: output tokens that it was allowed and did not say; 0: nobody set a limit."""
    attempts: int = 0
    failed: tuple[Attempt, ...] = ()
    """The first and the last few that failed."""
    failures: int = 0
    """How many did, refusals included."""
    hedge: Hedged | None = None
    """None: it was at one replica at a time."""
    cold: bool = False
    """Its replica had not finished a request since it came into use."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    """Of all its choices together."""
    choices: int = 1
    """Answers that it asked for: n for each of its prompts."""

    # Stages, one after the other: together they are e2e_s.
    accept_s: float = 0.0
    """First byte to the whole request understood."""
    queue_s: float = 0.0
    """Waiting in the gateway for a replica with room."""
    retry_s: float = 0.0
    """Lost on replicas that failed before the first byte, or had not answered when another was asked that then did."""
    first_s: float = 0.0
    """At its replica until the first token: the engine's own queue and prefill. Of an answer whose first token's time
    is unknown, all of it."""
    stream_s: float = 0.0
    """First token to last."""
    end_s: float = 0.0
    """Last token, or the end of waiting, to the end of the exchange."""

    ttft_s: float | None = None
    """Arrival to first token: as it was streamed to us, or as the engine says of an answer in one piece. None: there
    was none, or nobody knows when. Never the time of the whole answer."""
    tpot_s: float | None = None
    """Mean time between tokens after the first; None: there were fewer than two, or the first one's time is unknown."""
    e2e_s: float = 0.0
    max_gap_s: float = 0.0
    gaps: tuple[Gap, ...] = ()
    """The longest, about one percent and three of them at least, longest first."""
    stalled_s: float = 0.0
    """How long the client was behind."""

    engine: EngineTimings | None = None
    ahead: Ahead | None = None
    """None: it did not have to wait, or nobody else was waiting in its lane."""
    reason: str = ""
    """Why that replica, or why not at all."""
    seen: tuple[ConsideredReplica, ...] = ()

    trace: str = ""
    """The W3C traceparent its replica got: the trace, our own span in it, and whether it was sampled from the start."""
    parent: str = ""
    """Whose child our span is, in hex; empty: the trace begins here."""

    @property
    def answered(self) -> bool:
        """Whether its client got some of an answer, or its replica made some."""
        return self.ttft_s is not None or self.outcome is Outcome.COMPLETED

    @property
    def whole(self) -> bool:
        """Whether it is an answer in one piece of which nobody knows when its first token was there."""
        return self.ttft_s is None and not self.stream and self.outcome is Outcome.COMPLETED
