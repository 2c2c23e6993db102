"""Is this replica worse than its peers?

Latency is judged only against replicas that are alike, because what is slow for one model and GPU is quick for another;
errors by themselves, unless the others have as many. And only against the same of theirs: first tokens against first
tokens, and answers in one piece, whose first token nobody saw, against such answers. One that has more requests than
its peers may be slower for that, in proportion: a fleet of two is seldom evenly full.
"""

from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Final

from headgate.model.replica import ReplicaId

RECENT = 32
"""Requests over which the error rate is taken."""
OVERHEAD_TOKENS = 100
"""What a request costs before its first prompt token, in prompt tokens: makes short and long prompts comparable."""
PACE = 0.1
"""How quickly latency averages follow."""
TTFT_MARGIN_S, TPOT_MARGIN_S = 0.1, 0.02
"""How much slower than its peers an outlier is at least: between one millisecond and four there is only chance."""
FULLEST: Final = 2.0
"""Times as many requests as its peers have that are an excuse; with more it is so full because it is slow."""
PEERS: Final = 32
"""Replicas whose errors are compared; of more, the first to join."""
SUSPECTS: Final = 8
"""Requests that failed in a row, of those told apart."""
SLOW_FOR_S: Final = 5.0
"""How long it has been slower than its peers whenever it was looked at, before that puts it out."""
LOOK_S = 1.0
"""How old the peers' median may be: taking it looks at all of them."""
LEAST_OUTPUT: Final = 16
"""Tokens of an answer in one piece without which its time says more about its prompt than about its tokens."""
PROMPT_WEIGHT: Final = 100.0
"""Prompt tokens that cost about as much as one of the answer: 20 on two cores, some hundreds on a GPU."""


def answer_token_s(took_s: float, prompt_tokens: int, output_tokens: int) -> float | None:
    """Seconds per token of an answer in one piece of which nobody knows when its first token was there; its prompt
    counts for as many tokens as it costs. None: it is too short to tell."""
    if output_tokens < LEAST_OUTPUT:
        return None
    return took_s / (output_tokens + (prompt_tokens + OVERHEAD_TOKENS) / PROMPT_WEIGHT)


About = tuple[str, str | bytes]
"""Tells what was asked apart: a tenant's prompt. A client that sends the same again asks the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierConfig:
    error_rate: float = 0.3
    """Failed out of the last 32: more makes it an outlier, unless its peers fail as often."""
    slower: float = 3.0
    """This many times the median of its peers, to the first token or between tokens, makes it an outlier."""
    samples: int = 20
    """Requests before it is judged at all."""
    ramp_samples: int = 5
    """The same while its share still grows: it has little traffic then, and should do little harm."""
    ramp_slow: float = 0.25
    """Share of its requests that may be that much slower than its peers' while its share grows: its p95 is far off with
    fewer, but of five requests one is chance."""


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
    """What most are like: each moves it by a tenth of itself at most, so that the few that are far off do not decide.
    Some first tokens of a busy replica take a hundred times as long by chance: somebody's long prompt came before."""

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
    """What was seen of a replica in use. One that comes back starts with a clean record."""

    failed: int = 0
    """In a row."""
    probes_failed: int = 0
    """In a row."""
    suspects: tuple[About, ...] = ()
    """What was asked in requests that it answered with an error, none twice, since it last answered one well."""
    recent: int = 0
    """The last requests as bits, 1: failed."""
    requests: int = 0
    judged: int = 0
    """Requests during its ramp that say how quick it is."""
    slow: int = 0
    """Of these, those that were as slow as an outlier's."""
    token_s: Typical = field(default_factory=Typical)
    """Time to first token, for each token of the prompt."""
    tokens: Mean = field(default_factory=Mean)
    tpot_s: Typical = field(default_factory=Typical)
    answer_s: Typical = field(default_factory=Typical)
    """For each token of an answer in one piece whose first token's time is unknown."""
    busy: Mean = field(default_factory=Mean)
    """Requests that it had when one of them ended."""
    looked_at: float = -inf
    """The last look at its peers by which it was judged."""
    slow_since: float = inf
    """Since when it was slower than its peers whenever it was looked at; inf: it was not the last time."""

    def another(self, about: About) -> bool:
        """Whether it has answered another request with an error too. One alone may be at fault itself."""
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
        """Of a prompt of its usual length."""
        return self.token_s.value * self.tokens.value


@dataclass(slots=True, eq=False)
class Kin:
    """Replicas alike enough for their latencies to be compared: same model, lanes, quantization and kind of GPU."""

    config: OutlierConfig
    members: dict[ReplicaId, ReplicaRecord] = field(default_factory=dict)
    """Those in use."""
    looked_at: float = -inf
    ttft_per_token_s: float = inf
    tpot_s: float = inf
    answer_s: float = inf
    """Medians; inf: too few to tell."""
    busy: float = inf
    """Requests that those have, the median; inf: too few to tell."""
    known_ttft_per_token_s: float = inf
    known_answer_s: float = inf
    """The same where one is enough: for one that ramps up, the only other is its peer."""

    def look(self, now: float) -> None:
        if now - self.looked_at >= LOOK_S:
            self.looked_at = now
            enough, seen = self.config.samples, self.members.values()
            ttfts = [one.token_s.value for one in seen if one.token_s.count >= enough]
            self.ttft_per_token_s = _median(ttfts)
            self.known_ttft_per_token_s = _median(ttfts, least=1)
            self.tpot_s = _median([one.tpot_s.value for one in seen if one.tpot_s.count >= enough])
            self.busy = _median([one.busy.value for one in seen if one.busy.count >= enough])
            answers = [one.answer_s.value for one in seen if one.answer_s.count >= enough]
            self.answer_s = _median(answers)
            self.known_answer_s = _median(answers, least=1)

    def is_slow(self, ttft_s: float | None, prompt_tokens: int, token_s: float | None = None) -> bool | None:
        """One request, against what its peers usually need for it. None: it does not say how quick it was."""
        if ttft_s is not None:
            usual_s = self.known_ttft_per_token_s * (prompt_tokens + OVERHEAD_TOKENS)
            return ttft_s > max(self.config.slower * usual_s, usual_s + TTFT_MARGIN_S)
        if token_s is not None:
            usual_s = self.known_answer_s
            return token_s > max(self.config.slower * usual_s, usual_s + TPOT_MARGIN_S)
        return None

    def _usual_errors(self) -> float:
        """Taken anew, since it may have risen for all at once: then it is what they are asked."""
        some = islice(self.members.values(), PEERS)
        rates = [one.error_rate for one in some if one.requests >= self.config.samples]
        return _median(rates) if len(rates) > 1 else 0.0

    def outlying(self, record: ReplicaRecord, *, ramping: bool = False) -> str:
        """Why it is an outlier; empty: it is not."""
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
        # What is slow stays slow; what had a bad moment, such as a few long prompts at once, does not.
        return why if ramping or self.looked_at - record.slow_since >= SLOW_FOR_S else ""

    def _slower(self, record: ReplicaRecord, enough: int) -> str:
        """What it is slower at than its peers; empty: nothing."""
        slower = self.config.slower
        fuller = 1.0 if self.busy <= 0.0 else min(FULLEST, max(1.0, record.busy.value / self.busy))
        # First tokens wait for more of them, and for longer steps.
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
    """The lower one of two, so that of two replicas the slow one stands out."""
    return sorted(values)[(len(values) - 1) // 2] if len(values) >= least else inf
