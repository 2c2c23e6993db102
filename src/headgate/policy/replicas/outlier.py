"""Judges whether a replica is worse than its peers.

Latency is compared only between replicas that are alike, because what is slow for one model and GPU is quick for
another; error rates count by themselves, unless those of the peers are high too. And only like is compared with like:
first tokens with first tokens, and unstreamed answers, whose first token the gateway did not see, with such answers. A
replica that has more requests than its peers may be slower for that, in proportion: a fleet of two is seldom evenly
full.
"""

from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Final

RECENT = 32
"""Requests over which the error rate is computed, the latest."""
OVERHEAD_TOKENS = 100
"""Fixed cost of a request, in prompt tokens: makes short and long prompts comparable."""
PACE = 0.1
"""Weight of a new sample in an average."""
TTFT_MARGIN_S, TPOT_MARGIN_S = 0.1, 0.02
"""Minimum seconds by which an outlier is slower than its peers: between one millisecond and four there is only
chance."""
FULLEST: Final = 2.0
"""Maximum multiple of its peers' requests that excuses a slow replica; with more, the replica is that full because it
is slow."""
PEERS: Final = 32
"""Maximum replicas whose errors are compared: the first to join."""
SUSPECTS: Final = 8
"""Maximum different prompts remembered that failed in a row."""
SLOW_FOR_S: Final = 5.0
"""Seconds for which a replica must be slower than its peers, at every check, before it is ejected."""
LOOK_S = 1.0
"""Maximum age of the peers' median in seconds: computing it examines all of them."""
LEAST_OUTPUT: Final = 16
"""Minimum output tokens of an unstreamed answer: with fewer, its time says more about its prompt than about its
tokens."""
PROMPT_WEIGHT: Final = 100.0
"""Prompt tokens that cost about as much as one output token: 20 on two cores, some hundreds on a GPU."""


def answer_token_s(took_s: float, prompt_tokens: int, output_tokens: int) -> float | None:
    """Seconds per token of an unstreamed answer whose first-token time is unknown; the prompt counts for as many output
    tokens as it costs. None: the answer is too short to tell."""
    if output_tokens < LEAST_OUTPUT:
        return None
    return took_s / (output_tokens + (prompt_tokens + OVERHEAD_TOKENS) / PROMPT_WEIGHT)


About = tuple[str, str | bytes]
"""Identifies what was asked: a tenant and its prompt. A client that sends the same again asks the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierConfig:
    error_rate: float = 0.3
    """Share of the last 32 requests that failed, above which a replica is an outlier, unless its rate is within
    `slower` times that of its peers."""
    slower: float = 3.0
    """Multiple of its peers' median above which a replica is an outlier: time to first token, between tokens, or per
    token of unstreamed answers."""
    samples: int = 20
    """Requests before a replica is judged at all."""
    ramp_samples: int = 5
    """The same while the replica's share of traffic ramps up: it has little traffic then, and should do little harm."""
    ramp_slow: float = 0.25
    """Share of a replica's requests during its ramp that may be `slower` times as slow as its peers': its p95 is far
    off with fewer, but of five requests one is chance."""


@dataclass(slots=True)
class Mean:
    """A moving average that starts as a plain one."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += max(PACE, 1.0 / self.count) * (value - self.value)


@dataclass(slots=True)
class Typical:
    """A typical value: each sample moves it by at most a tenth of itself (the first ten by more), so that the few that
    are far off do not decide. Some first tokens of a busy replica take a hundred times as long by chance: another
    request's long prompt came before."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        if not self.value:
            self.value = value
            return
        most = max(PACE, 1.0 / self.count) * self.value
        self.value += max(-most, min(value - self.value, most))


@dataclass(slots=True, eq=False)
class ReplicaRecord:
    """What was seen of a replica in use. A replica that comes back starts with a clean record."""

    failed: int = 0
    """Requests that failed in a row."""
    probes_failed: int = 0
    """Probes that failed in a row."""
    suspects: tuple[About, ...] = ()
    """Prompts that the replica answered with an error, none twice, since it last answered one well."""
    recent: int = 0
    """The last RECENT requests as bits, 1: failed."""
    requests: int = 0
    judged: int = 0
    """Requests during the replica's ramp that tell how quick it is."""
    slow: int = 0
    """Judged requests that were as slow as an outlier's."""
    token_s: Typical = field(default_factory=Typical)
    """Seconds to first token, per token of the prompt."""
    tokens: Mean = field(default_factory=Mean)
    tpot_s: Typical = field(default_factory=Typical)
    answer_s: Typical = field(default_factory=Typical)
    """Seconds per token of unstreamed answers whose first-token time is unknown."""
    busy: Mean = field(default_factory=Mean)
    """Requests that the replica had when one of them ended."""
    looked_at: float = -inf
    """When the peers' medians were computed by which the replica was last judged."""
    slow_since: float = inf
    """Since when the replica was slower than its peers at every check. inf: it was not at the last check."""

    def another(self, about: About) -> bool:
        """Notes an error answer to this prompt. Returns whether it is new and another prompt failed before: one alone
        may be at fault itself."""
        if about in self.suspects:
            return False
        if len(self.suspects) < SUSPECTS:
            self.suspects += (about,)
        return len(self.suspects) > 1

    def ended(self, *, failed: bool) -> None:
        self.requests += 1
        self.recent = (self.recent << 1 | failed) & ((1 << RECENT) - 1)

    def took(
        self,
        ttft_s: float | None,
        prompt_tokens: int,
        tpot_s: float | None,
        token_s: float | None = None,
        in_flight: int = 1,
    ) -> None:
        self.busy.add(in_flight)
        if ttft_s is not None:
            tokens = prompt_tokens + OVERHEAD_TOKENS
            self.token_s.add(ttft_s / tokens)
            self.tokens.add(tokens)
        if tpot_s is not None:
            self.tpot_s.add(tpot_s)
        if token_s is not None:
            self.answer_s.add(token_s)

    @property
    def error_rate(self) -> float:
        return self.recent.bit_count() / max(1, min(self.requests, RECENT))

    @property
    def ttft_s(self) -> float:
        """Seconds to first token for a prompt of the replica's usual length."""
        return self.token_s.value * self.tokens.value


@dataclass(slots=True, eq=False)
class Kin:
    """Replicas alike enough for their latencies to be compared: same model, lanes, quantization and kind of GPU."""

    config: OutlierConfig
    members: list[ReplicaRecord] = field(default_factory=list)
    """Records of the replicas in use, in the order in which they came into use."""
    looked_at: float = -inf
    ttft_per_token_s: float = inf
    tpot_s: float = inf
    answer_s: float = inf
    """Medians, in seconds per token. inf: too few replicas to tell."""
    busy: float = inf
    """Median of the requests that these replicas have. inf: too few replicas to tell."""
    known_ttft_per_token_s: float = inf
    known_answer_s: float = inf
    """The same medians where one replica is enough: for a replica that ramps up, the only other is its peer."""

    def look(self, now: float) -> None:
        if now - self.looked_at >= LOOK_S:
            self.looked_at = now
            enough, seen = self.config.samples, self.members
            ttfts = [one.token_s.value for one in seen if one.token_s.count >= enough]
            self.ttft_per_token_s = _median(ttfts)
            self.known_ttft_per_token_s = _median(ttfts, least=1)
            self.tpot_s = _median([one.tpot_s.value for one in seen if one.tpot_s.count >= enough])
            self.busy = _median([one.busy.value for one in seen if one.busy.count >= enough])
            answers = [one.answer_s.value for one in seen if one.answer_s.count >= enough]
            self.answer_s = _median(answers)
            self.known_answer_s = _median(answers, least=1)

    def is_slow(self, ttft_s: float | None, prompt_tokens: int, token_s: float | None = None) -> bool | None:
        """Whether one request was slow, compared with what its peers usually need for it. None: the request does not
        tell."""
        if ttft_s is not None:
            usual_s = self.known_ttft_per_token_s * (prompt_tokens + OVERHEAD_TOKENS)
            return ttft_s > max(self.config.slower * usual_s, usual_s + TTFT_MARGIN_S)
        if token_s is not None:
            usual_s = self.known_answer_s
            return token_s > max(self.config.slower * usual_s, usual_s + TPOT_MARGIN_S)
        return None

    def _usual_errors(self) -> float:
        """Median error rate of the peers, 0 to 1. It is computed anew each time, since it may have risen for all at
        once: then the requests are the cause."""
        some = islice(self.members, PEERS)
        rates = [one.error_rate for one in some if one.requests >= self.config.samples]
        return _median(rates) if len(rates) > 1 else 0.0

    def outlying(self, record: ReplicaRecord, *, ramping: bool = False) -> str:
        """Why the replica is an outlier. Empty: it is not."""
        enough, slower = self.config.ramp_samples if ramping else self.config.samples, self.config.slower
        if ramping and record.judged >= enough and record.slow > self.config.ramp_slow * record.judged:
            return "slow during its ramp"
        rate = record.error_rate
        if record.requests >= enough and rate > self.config.error_rate and rate > slower * self._usual_errors():
            return "error rate"
        record.looked_at = self.looked_at
        why = self._slower(record, enough)
        if not why:
            record.slow_since = inf
        elif record.slow_since == inf:
            record.slow_since = self.looked_at
        # A slow replica stays slow; one that had a bad moment, such as a few long prompts at once, does not.
        return why if ramping or self.looked_at - record.slow_since >= SLOW_FOR_S else ""

    def _slower(self, record: ReplicaRecord, enough: int) -> str:
        """What the replica is slower at than its peers. Empty: nothing."""
        slower = self.config.slower
        fuller = 1.0 if self.busy <= 0.0 else min(FULLEST, max(1.0, record.busy.value / self.busy))
        # First tokens wait for more prompts, and for longer steps.
        usual_s = fuller * fuller * self.ttft_per_token_s * record.tokens.value
        if record.token_s.count >= enough and record.ttft_s > max(slower * usual_s, usual_s + TTFT_MARGIN_S):
            return "slow first tokens"
        for seen, peers_s, why in (
            (record.tpot_s, self.tpot_s, "slow tokens"),
            (record.answer_s, self.answer_s, "slow answers"),
        ):
            usual_s = fuller * peers_s
            if seen.count >= enough and seen.value > max(slower * usual_s, usual_s + TPOT_MARGIN_S):
                return why
        return ""


def _median(values: list[float], least: int = 2) -> float:
    """The median, and the lower of two middle values, so that of two replicas the slow one stands out. inf: fewer than
    `least` values."""
    return sorted(values)[(len(values) - 1) // 2] if len(values) >= least else inf
