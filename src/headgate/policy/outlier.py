"""Is this replica worse than its peers?

Errors are judged by themselves; latency only against replicas that are alike, because what is slow for one model and
GPU is quick for another.
"""

from dataclasses import dataclass, field
from math import inf

from headgate.model.replica import ReplicaId

RECENT = 32
"""Requests over which the error rate is taken."""
OVERHEAD_TOKENS = 100
"""What a request costs before its first prompt token, in prompt tokens: makes short and long prompts comparable."""
PACE = 0.1
"""How quickly latency averages follow."""
TTFT_MARGIN_S, TPOT_MARGIN_S = 0.1, 0.02
"""How much slower than its peers an outlier is at least: between one millisecond and four there is only chance."""
LOOK_S = 1.0
"""How old the peers' median may be: taking it looks at all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierConfig:
    error_rate: float = 0.3
    """Failed out of the last 32: more makes it an outlier."""
    slower: float = 3.0
    """This many times the median of its peers, to the first token or between tokens, makes it an outlier."""
    samples: int = 20
    """Requests before it is judged at all."""


@dataclass(slots=True)
class Mean:
    """A moving average that starts as a plain one."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += max(PACE, 1.0 / self.count) * (value - self.value)


@dataclass(slots=True, eq=False)
class Record:
    """What was seen of a replica in use. One that comes back starts with a clean record."""

    failed: int = 0
    """In a row."""
    probes_failed: int = 0
    """In a row."""
    recent: int = 0
    """The last requests as bits, 1: failed."""
    requests: int = 0
    ttft_s: Mean = field(default_factory=Mean)
    tokens: Mean = field(default_factory=Mean)
    tpot_s: Mean = field(default_factory=Mean)

    def ended(self, *, failed: bool) -> None:
        self.requests += 1
        self.recent = (self.recent << 1 | failed) & ((1 << RECENT) - 1)

    def took(self, ttft_s: float, prompt_tokens: int, tpot_s: float | None) -> None:
        self.ttft_s.add(ttft_s)
        self.tokens.add(prompt_tokens + OVERHEAD_TOKENS)
        if tpot_s is not None:
            self.tpot_s.add(tpot_s)

    @property
    def error_rate(self) -> float:
        return self.recent.bit_count() / max(1, min(self.requests, RECENT))

    @property
    def ttft_per_token_s(self) -> float:
        """Of sums, not the mean of ratios, which the shortest prompts would decide."""
        return self.ttft_s.value / max(1.0, self.tokens.value)


@dataclass(slots=True, eq=False)
class Kin:
    """Replicas alike enough for their latencies to be compared: same model, lanes, quantization and kind of GPU."""

    config: OutlierConfig
    members: dict[ReplicaId, Record] = field(default_factory=dict)
    """Those in use."""
    looked_at: float = -inf
    ttft_per_token_s: float = inf
    tpot_s: float = inf
    """Medians; inf: too few to tell."""

    def look(self, now: float) -> None:
        if now - self.looked_at >= LOOK_S:
            self.looked_at = now
            enough, seen = self.config.samples, self.members.values()
            self.ttft_per_token_s = _median([one.ttft_per_token_s for one in seen if one.ttft_s.count >= enough])
            self.tpot_s = _median([one.tpot_s.value for one in seen if one.tpot_s.count >= enough])

    def outlying(self, record: Record) -> str:
        """Why it is an outlier; empty: it is not."""
        enough, slower = self.config.samples, self.config.slower
        if record.requests >= enough and record.error_rate > self.config.error_rate:
            return "error rate"
        usual_s = self.ttft_per_token_s * record.tokens.value
        if record.ttft_s.count >= enough and record.ttft_s.value > max(slower * usual_s, usual_s + TTFT_MARGIN_S):
            return "slow first tokens"
        if record.tpot_s.count >= enough and record.tpot_s.value > max(
            slower * self.tpot_s, self.tpot_s + TPOT_MARGIN_S
        ):
            return "slow tokens"
        return ""


def _median(values: list[float]) -> float:
    """The lower one of two, so that of two replicas the slow one stands out."""
    return sorted(values)[(len(values) - 1) // 2] if len(values) >= 2 else inf
