"""Defines the Record that is kept of each finished request, written exactly once on every path.

Times named `at` are on the monotonic clock of the process that wrote them; those named `at_s` are seconds since the
request's first byte arrived; `wall` is for people. Labels are as the request had them: the exporter of a figure caps
their number.
"""

import msgspec

from headgate.model.outcome import MISSED, Outcome
from headgate.model.tier import DEFAULT_TIER


class Ahead(msgspec.Struct, frozen=True, gc=False):
    """The requests and tokens that waited ahead of a request when it began to wait in the gateway."""

    requests: int
    tokens: int
    tenant: str
    """The tenant with most of that work waiting, in the same lane."""
    tenant_requests: int
    tenant_tokens: int


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """An attempt at one replica that failed: another was tried or continued the stream, or the request was refused."""

    replica: str
    at_s: float
    took_s: float
    outcome: Outcome
    refused: bool
    """The replica said that it was full, which is no fault."""
    message: str


LEFT = frozenset((Outcome.CANCELLED, Outcome.SLOW_CLIENT))
"""Outcomes of requests whose client did not wait for the end."""
FIRST_KEPT, LAST_KEPT = 4, 4
"""Failed attempts kept in a Record: the first and the last. Without a bound, a request that is refused for minutes
would keep all of them."""


def kept(failed: tuple[Attempt, ...], attempt: Attempt) -> tuple[Attempt, ...]:
    """Returns `failed` with one more attempt, reduced to the first few and the last few."""
    if len(failed) < FIRST_KEPT + LAST_KEPT:
        return (*failed, attempt)
    return (*failed[:FIRST_KEPT], *failed[FIRST_KEPT + 1 :], attempt)


class Hedged(msgspec.Struct, frozen=True, gc=False):
    """A hedge: the request was sent to a second replica as well, because the first had not answered."""

    first: str
    second: str
    at_s: float
    """When the request was sent to the second replica."""
    result: str
    """won: the second replica answered first. lost: the first did. took_over: the first failed and the second took the
    request over. failed: the second failed. cancelled: the request ended before either answered."""


class Gap(msgspec.Struct, frozen=True, gc=False):
    """A replica's silence between two reads with tokens. Time in which the client was behind does not count."""

    at_s: float
    """When the silence began."""
    took_s: float


class ConsideredReplica(msgspec.Struct, frozen=True, gc=False):
    """One of the replicas that were scored for the request."""

    replica_id: str
    score: float
    """0 to 1, affinity included."""
    load: float
    """The value that orders the load index: seconds of work, requests, or turns."""
    match: float
    """Share of the prompt that this replica is expected to have in its cache, 0 to 1."""
    home: bool
    """The replica is the session's home, or the next one near the least load."""


class QuoteTold(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """When the first token of a request was expected. It is told once: when the request is sent, if that is done at
    once; otherwise when it begins to wait. While no replica is usable, or its tenant has as many requests at work as it
    may, nothing is told before the request is sent. Seconds are from its arrival."""

    lane: str
    """The lane in which it was told: the request may be relegated later."""
    expected_s: float
    """Half of such requests have their first token sooner."""
    p99_s: float | None = None
    """99 of 100 such requests have their first token by then. None: too few were seen to tell, or more than one in a
    hundred leaves its lane without one: relegated, refused or failed."""
    kept: bool | None = None
    """Whether the first token came by `p99_s`; not, if the request was refused or failed before it. None: none was
    told, or it can't be told: an unstreamed answer whose first token's time is unknown, a client that left before, a
    tenant over its own limit."""


class OwnPromise(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a request promised for itself, as far as the config allowed, and what came of it."""

    ttft_s: float | None = None
    """Time to first token; None: not promised."""
    tpot_s: float | None = None
    """Mean time per token after the first; None: not promised."""
    ttft_kept: bool | None = None
    """None: not promised, or it can't be told. A refused or failed request has not kept it."""
    tpot_kept: bool | None = None
    """None: not promised, or there were fewer than two tokens, or the first one's time is unknown."""


def own_promise(
    promised: tuple[float | None, float | None],
    stream: bool,
    ttft_s: float | None,
    tpot_s: float | None,
    e2e_s: float,
    outcome: Outcome,
) -> OwnPromise:
    """Judges what a request that has ended promised: TTFT and TPOT. Where the time of its first token is unknown: a
    whole answer within the promised time has kept it; that a client left before the time was over says nothing."""
    first_s, each_s = promised
    first_kept: bool | None = None
    if first_s is not None:
        if ttft_s is not None:
            first_kept = ttft_s <= first_s
        elif outcome in MISSED:
            first_kept = False
        elif outcome.kind == "ok":
            first_kept = True if e2e_s <= first_s and not stream else None
        elif outcome in LEFT:
            first_kept = False if e2e_s > first_s else None
    return OwnPromise(first_s, each_s, first_kept, None if each_s is None or tpot_s is None else tpot_s <= each_s)


CLOCKS_S = 0.05
"""Seconds by which an engine's own timings may exceed what the gateway measured: their clocks are read at different
moments."""


class EngineTimings(msgspec.Struct, frozen=True, gc=False):
    """The engine's own account of where its time went. Only our own engine reports every field."""

    queue_ms: float = 0.0
    tokenize_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    detokenize_ms: float = 0.0
    prefill_chunks: int = 0
    preemptions: int = 0
    yields: int = 0
    """Preemptions in which the sequence's slot went to a more urgent request, not for lack of KV memory."""
    stop: str = ""
    """Why the engine ended the answer early; empty: it did not."""

    def first_s(self, took_s: float, output_tokens: int) -> float | None:
        """Seconds from sending an unstreamed request to its first token, where the whole answer took `took_s`: all of
        `took_s` but the decoding. None: the engine does not say, or its figures are impossible."""
        before_s, after_s = (self.queue_ms + self.tokenize_ms + self.prefill_ms) / 1e3, self.decode_ms / 1e3
        if not (0.0 <= after_s <= took_s + CLOCKS_S and 0.0 <= before_s <= took_s + self.tokenize_ms / 1e3 + CLOCKS_S):
            return None  # NaN fails the test as well
        if after_s > 0.0:
            return max(0.0, took_s - after_s)
        if before_s <= 0.0:
            return None
        return took_s if output_tokens <= 1 else min(before_s, took_s)


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    id: str
    at: float
    """When the request's first byte was read."""
    wall: float = 0.0
    """The same moment in seconds since 1970."""
    lane: str
    relegated_from: str = ""
    """The lane in which the request could not be in time, and that it left for `lane`; empty: it stayed in its own."""
    tenant: str
    tier: str = DEFAULT_TIER
    task: str = ""
    model: str
    """The model as the client named it."""
    version: str = ""
    drawn_from: str = ""
    """The public model name among whose versions this request's version was drawn; empty: no draw, or the client named
    the version."""
    fell_back: str = ""
    """The version that was drawn, where another answered because no replica of the drawn one was usable; empty: the
    drawn version answered."""
    choice: str = ""
    """Why this model and version, where the client's name stands for several."""
    adapter: str = ""
    replica: str | None = None
    """The replica that answered, or was tried last; None: the request reached none."""
    quantization: str = ""
    gpu_type: str = ""
    stream: bool = False
    operation: str = "chat"
    """OpenTelemetry's operation name: chat, text_completion or embeddings."""

    outcome: Outcome
    status: int = 200
    """HTTP status that the client got; 499 if the client left before it got any."""
    message: str = ""
    """What went wrong; empty: nothing."""
    cap: int = 0
    """Maximum output tokens, where the gateway set it; 0: the client's own value held."""
    stop: str = ""
    """Why the answer was ended early, `repetition` or `time`; empty: it was not."""
    unsaid: int = 0
    """Output tokens that an answer which was ended early was still allowed; 0: not ended early, or no limit was set."""
    attempts: int = 0
    failed: tuple[Attempt, ...] = ()
    """The first and the last few failed attempts."""
    failures: int = 0
    """Number of failed attempts, refusals included."""
    hedge: Hedged | None = None
    """The request's hedge; None: it had one replica at a time."""
    cold: bool = False
    """The replica had not finished a request since it came into use."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    """Output tokens of all choices together."""
    choices: int = 1
    """Answers that the request asked for: n for each of its prompts."""

    # Stages, one after the other: their sum is e2e_s.
    accept_s: float = 0.0
    """From the first byte until the whole request is parsed."""
    queue_s: float = 0.0
    """Wait in the gateway for a replica with room."""
    woke_s: float = 0.0
    """Part of `queue_s` in which the replica woke up from sleep for this request; 0: it was awake."""
    retry_s: float = 0.0
    """Time lost on replicas that failed before the first byte, or on a first replica before the hedge that won was
    sent."""
    first_s: float = 0.0
    """Time at the replica until the first token: the engine's own queue and prefill. For an answer whose first token's
    time is unknown, the whole time at the replica."""
    stream_s: float = 0.0
    """From the first token to the last."""
    end_s: float = 0.0
    """From the last token, or the end of waiting, to the end of the exchange."""

    ttft_s: float | None = None
    """Time to first token, from arrival: as streamed to the gateway, or as the engine reports it for an unstreamed
    answer. None: there was no token, or its time is unknown. Never the time of the whole answer."""
    tpot_s: float | None = None
    """Mean time between tokens after the first; None: fewer than two tokens, or the first one's time is unknown."""
    e2e_s: float = 0.0
    max_gap_s: float = 0.0
    gaps: tuple[Gap, ...] = ()
    """The longest gaps, longest first: about one percent of them, three at least."""
    stalled_s: float = 0.0
    """How long the client was behind in reading."""

    engine: EngineTimings | None = None
    ahead: Ahead | None = None
    """The queue ahead of the request; None: it did not wait, or no other request waited in its lane."""
    reason: str = ""
    """Why this replica, or why none."""
    seen: tuple[ConsideredReplica, ...] = ()

    promise: OwnPromise | None = None
    """What the request promised for itself; None: nothing, it had its lane's promises."""
    quote: QuoteTold | None = None
    """When its first token was expected; None: it was refused before that was told, or it is for embeddings."""

    trace: str = ""
    """The W3C traceparent that the replica got: the trace, the gateway's span in it, and whether it was sampled from
    the start."""
    parent: str = ""
    """The parent of the gateway's span, in hex; empty: the trace begins here."""

    @property
    def answered(self) -> bool:
        """Whether the client got part of an answer, or the replica completed one."""
        return self.ttft_s is not None or self.outcome is Outcome.COMPLETED

    @property
    def whole(self) -> bool:
        """Whether this is a completed unstreamed answer whose first token's time is unknown."""
        return self.ttft_s is None and not self.stream and self.outcome is Outcome.COMPLETED
