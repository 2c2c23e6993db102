"""Judges a new version against the old one beside it: worse, fine, or undecided.

    worse       proven to be slower than `acceptable` times the old one at p90, p95 or p99 of TTFT, TPOT or end to end,
                or at p95 of the queue wait; to fail more often; to answer at another length; or to have a lower score
    fine        proven to be faster than `unacceptable` times the old one at every percentile of TTFT, TPOT and end to
                end, to fail at most `error_margin` more often, and, where scores are asked for, to be no worse by them
    undecided   neither, so far

The proofs are in contest.py, and in quality.py for scores. For "worse" all tests together are wrong in at most
FALSE_ALARM of rollouts, however long they last: the mean of their likelihood ratios is a likelihood ratio too. For
"fine" each test is wrong in at most FALSE_PROMISE of rollouts, and since all must agree, so is the verdict.
"""

from math import erf, exp, log, sqrt
from statistics import NormalDist
from typing import Final, Literal

import msgspec

from headgate.config.models import CanaryConfig
from headgate.model.labels import plain
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.policy.rollout.contest import Contest, Failures, Harm, log_mean
from headgate.policy.rollout.quality import QualityBet, QualityContest

FALSE_ALARM: Final = 0.02
"""Maximum share of rollouts of an equal version that are rolled back by mistake."""
FALSE_PROMISE: Final = 0.04
"""Maximum share of rollouts of an unacceptable version that are promoted."""
LINE: Final = NormalDist().inv_cdf(1 - FALSE_PROMISE / 2)
"""Standard deviations that prove a figure fine. A sum without drift ends beyond it in half the cases in which it ever
passes it."""
ERROR_Z: Final = 2.58
SELDOM: Final = 0.2
"""Share of the requests below which a figure is not waited for."""
PERCENTILES: Final = (90, 95, 99)
FLOORS: Final = {"ttft": 0.01, "tpot": 0.001, "e2e": 0.02, "queue": 0.05}
"""Durations in seconds that no client notices: below them versions are alike."""
MORE_FAILURES: Final = 1.5
"""Multiple of the old version's failure rate that may be chance of the mix; more, proven, is harm."""
FAILURE_BLOCK: Final = 40
"""Requests in a block of failures. Few, because a version that only fails must be noticed at once."""

State = Literal["worse", "fine", "undecided"]

NOT_ITS_DOING: Final = frozenset(
    (Outcome.OVER_LIMIT, Outcome.UNAUTHORIZED, Outcome.SLOW_CLIENT, Outcome.CANCELLED)
)  # fmt: skip
"""Outcomes in which a version has no part. An invalid request counts, because the engine decides whether it is one."""


class VersionSample(msgspec.Struct, frozen=True, gc=False):
    """What one request says about the version that served it. None: nothing about that figure."""

    canary: bool
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    queue_s: float | None = None
    output_tokens: int | None = None
    failed: bool | None = None
    """Whether the request failed; None: unknown, since the client left."""


def sample_of(record: Record, canary: bool) -> VersionSample | None:
    """The sample of a finished request; None: it says nothing about any version."""
    outcome = record.outcome
    if outcome is Outcome.COMPLETED:
        return VersionSample(
            canary, record.ttft_s, record.tpot_s, record.e2e_s, record.queue_s, record.output_tokens or None, False
        )
    if outcome is Outcome.CANCELLED:
        # A client that lost patience waited at least this long: without such samples, the slower version would look
        # better.
        if not record.stream:
            return VersionSample(canary, e2e_s=record.e2e_s, queue_s=record.queue_s)
        return None if record.ttft_s is not None else VersionSample(canary, ttft_s=record.e2e_s, queue_s=record.queue_s)
    return None if outcome in NOT_ITS_DOING else VersionSample(canary, failed=True)


class VerdictRow(msgspec.Struct, frozen=True):
    """One figure at one percentile, for people."""

    figure: str
    percentile: int
    baseline: float | None
    canary: float | None
    worse: float
    """Confidence that the canary is worse than acceptable, 0 to 1. Reading it often does not raise it."""
    fine: float | None
    """Confidence that the canary is better than unacceptable, 0 to 1; None: not tested."""


class Verdict(msgspec.Struct, frozen=True):
    state: State
    reason: str
    confidence: float
    """Confidence in the state, 0 to 1; for undecided, in how far "fine" is proven."""


class Judge:
    """The judge of one rollout. Its memory is bounded: one block of each figure, and sums."""

    def __init__(self, config: CanaryConfig) -> None:
        self._config = config
        good, bad = config.acceptable, config.unacceptable
        latency = {name: Contest(PERCENTILES, good, bad, floor=FLOORS[name]) for name in ("ttft", "tpot", "e2e")}
        self._contests = latency | {
            "queue": Contest((95,), good, None, floor=FLOORS["queue"]),
            "output": Contest((50, 90), config.longer, None),
        }
        self._shorter = Contest((50,), config.longer, None)
        """The reverse test: the baseline's answers are longer."""
        self._failures = Failures(MORE_FAILURES, FAILURE_BLOCK)
        asked = config.quality
        self._quality = None if asked is None else QualityContest(asked.acceptable, asked.unacceptable)
        """None: no scores are asked for."""
        self.requests = 0
        self.canary_requests = 0
        self._news = False
        self._share = 0.0
        self._exposure = 0.0
        self._in_all: float | None = None
        """Value of `_exposure` at the request limit; None: the last step has not begun."""

    def take(self, sample: VersionSample) -> None:
        canary = sample.canary
        self.requests += 1
        self.canary_requests += canary
        self._exposure += self._share * (1.0 - self._share)
        contests = self._contests
        news = False
        if sample.failed is not None:
            news = self._failures.take(canary, sample.failed)
        if sample.ttft_s is not None:
            news |= contests["ttft"].take(canary, sample.ttft_s)
        if sample.tpot_s is not None:
            news |= contests["tpot"].take(canary, sample.tpot_s)
        if sample.e2e_s is not None:
            news |= contests["e2e"].take(canary, sample.e2e_s)
        if sample.queue_s is not None:
            news |= contests["queue"].take(canary, sample.queue_s)
        if sample.output_tokens is not None:
            news |= contests["output"].take(canary, float(sample.output_tokens))
            news |= self._shorter.take(not canary, float(sample.output_tokens))
        self._news |= news

    def score(self, canary: bool, score: float) -> None:
        """Takes the score of one answer, from 0 to 1. Scores are not counted as requests."""
        if self._quality is not None:
            self._news |= self._quality.take(canary, score)

    @property
    def scores(self) -> tuple[int, int] | None:
        """Scores of the canary, and of the baseline; None: none are asked for."""
        quality = self._quality
        return None if quality is None else (quality.counts[True], quality.counts[False])

    @property
    def news(self) -> bool:
        """Whether the evidence changed since the last call."""
        news, self._news = self._news, False
        return news

    def step(self, share: float, requests_left: int | None) -> None:
        """Gives the canary another share from now on. `requests_left`: requests left to prove it fine; None: not the
        last step."""
        for contest in (*self._contests.values(), self._shorter):
            contest.close()
        self._failures.close()
        if self._quality is not None:
            self._quality.close()
        self._share = share
        self._in_all = None if requests_left is None else self._exposure + requests_left * share * (1.0 - share)

    def verdict(self) -> Verdict:
        harms = self._harms()
        evidence = log_mean([harm.log_evidence for _, _, harm in harms])
        if evidence >= log(1 / FALSE_ALARM):
            figure, percentile, _ = max(harms, key=lambda one: one[2].log_evidence)
            return Verdict("worse", self._worse(figure, percentile), 1.0 - exp(-evidence))
        slowest = min(self._fines(), key=lambda one: one[2], default=None)
        bound, extra = self._config.unacceptable, self._failures.worst_difference(ERROR_Z)
        if slowest is None:
            return Verdict("undecided", "too few requests have ended so far", 0.0)
        if self._in_all is None:
            return Verdict("undecided", "no harm so far; whether it is fine is judged at a canary's last step", 0.0)
        if slowest[2] < LINE:
            figure, percentile, z = slowest
            return Verdict(
                "undecided", f"{_words(figure, percentile)} may still be {plain(bound, 6)} times as slow", _sure(z)
            )
        if extra > self._config.error_margin:
            return Verdict("undecided", f"up to {extra:.1%} more of its requests may fail", 0.0)
        if self._quality is not None and not self._quality.proven_fine(FALSE_PROMISE):
            return Verdict("undecided", self._unproven(self._quality), _proven(self._quality.fine))
        return Verdict("fine", f"less than {plain(bound, 6)} times as slow at every percentile", _sure(slowest[2]))

    def rows(self) -> list[VerdictRow]:
        """The comparisons and their confidence, for people."""
        proven = {(figure, percentile): _sure(z) for figure, percentile, z in self._fines()}
        rows = []
        for figure, percentile, harm in self._harms():
            sides: list[float | None] = [_rate(self._failures.counts[side]) for side in (False, True)]
            if figure in self._contests:
                contest = self._contests[figure]
                sides = [contest.sketch(side).quantile(percentile / 100) for side in (False, True)]
            elif figure != "error":
                continue
            worse = _proven(harm)
            rows.append(VerdictRow(figure, percentile, sides[0], sides[1], worse, proven.get((figure, percentile))))
        quality = self._quality
        if quality is not None:
            means = quality.mean(False), quality.mean(True)
            rows.append(VerdictRow("quality", 0, *means, _proven(quality.harm), _proven(quality.fine)))
        return rows

    def _harms(self) -> list[tuple[str, int, Harm | QualityBet]]:
        found: list[tuple[str, int, Harm | QualityBet]] = [("error", 0, self._failures.harm)]
        if self._quality is not None:
            found.append(("quality", 0, self._quality.harm))
        for name, contest in (*self._contests.items(), ("shorter", self._shorter)):
            found += [(name, percentile, harm) for percentile, harm in contest.harms.items()]
        return found

    def _fines(self) -> list[tuple[str, int, float]]:
        """How far each figure has come towards being proven fine, in standard deviations; 0 before the last step."""
        part = self._exposure / self._in_all if self._in_all else 0.0
        return [
            (name, percentile, fine.z(part))
            for name, contest in self._contests.items()
            for percentile, fine in contest.fines.items()
            if contest.exposure and contest.exposure >= SELDOM * self._exposure
        ]

    def _worse(self, figure: str, percentile: int) -> str:
        if figure == "error":
            (n, failed), (m, others) = self._failures.counts[True], self._failures.counts[False]
            return f"{failed} of {n} of its requests failed, {others} of {m} of the baseline's"
        if figure == "quality" and self._quality is not None:
            (n, m), mean = (self._quality.counts[True], self._quality.counts[False]), self._quality.mean
            return f"its mean score is {mean(True):.3f} of {n} scores, the baseline's {mean(False):.3f} of {m}"
        if figure in ("output", "shorter"):
            how = "long" if figure == "output" else "short"
            return f"its answers are more than {plain(self._config.longer, 6)} times as {how}"
        return f"{_words(figure, percentile)} is more than {plain(self._config.acceptable, 6)} times the baseline's"

    def _unproven(self, quality: QualityContest) -> str:
        margin = self._config.quality
        assert margin is not None
        if not quality.counts[True] or not quality.counts[False]:
            whose = "its" if not quality.counts[True] else "the baseline's"
            return f"no score of {whose} answers has come; post them to /admin/rollout/NAME/scores"
        return (
            f"its mean score may still be {plain(margin.unacceptable, 6)} lower"
            f" ({quality.counts[True]} of its scores, {quality.counts[False]} of the baseline's)"
        )


def _proven(evidence: Harm | QualityBet) -> float:
    return 1.0 - exp(-max(0.0, evidence.log_evidence))


def _sure(z: float) -> float:
    return max(0.0, erf(z / sqrt(2.0)))


def _rate(counts: list[int]) -> float | None:
    requests, failed = counts
    return failed / requests if requests else None


def _words(figure: str, percentile: int) -> str:
    known = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end-to-end", "queue": "queue wait"}
    return f"{known[figure]} p{percentile}"
