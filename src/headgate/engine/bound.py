"""Ends a sequence early, keeping its output so far.

There are two reasons: a time limit, counted from the first token, and repetition. The engine knows more than the text:
the probability of each token. A model that is nearly certain of every token of a repeated passage is further evidence
of a runaway.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headgate.config.output import Runaway
from headgate.policy.answers.asked import times_asked
from headgate.policy.answers.runaway import Detector

CERTAIN: Final = 0.95
"""Smoothed probability of the drawn tokens at which the model no longer chooses: each word only follows from the one
before."""
COLLAPSED: Final = 0.85
"""Share of the usual textual evidence that suffices at such certainty."""
_SMOOTHING: Final = 0.1
REPETITION: Final = "repetition"
TIME: Final = "time"


@dataclass(frozen=True, slots=True)
class Bounds:
    runaway: Runaway = "off"
    limit_s: float | None = None
    """Maximum seconds from the first token on; None: unlimited."""
    asked: int = 0
    """Times that the prompt asks for something to be said; 0: it does not say."""

    def times_asked(self) -> int:
        return self.asked


def bounds_for(body: Mapping[str, Any], runaway: Runaway, limit_ms: float | None) -> Bounds | None:
    """The bounds of a request with this body, which has its messages or its prompt; None: it has none."""
    if runaway == "off" and limit_ms is None:
        return None
    limit_s = None if limit_ms is None else max(0.0, limit_ms / 1e3)
    return Bounds(runaway, limit_s, 0 if runaway == "off" else times_asked(body))


class Bound:
    """The runaway evidence and the time limit of one sequence."""

    def __init__(self, bounds: Bounds) -> None:
        self._limit_s = bounds.limit_s
        self._detector = None if bounds.runaway == "off" else Detector(bounds.runaway, bounds.times_asked)
        self._share = 1.0 if self._detector is None else self._detector.share
        self._chance = 0.0

    @property
    def doubts(self) -> bool:
        """True once a passage has been repeated in full: from then on the probabilities of the tokens are worth
        computing."""
        return self._detector is not None and 0 < self._detector.period <= self._detector.matched

    def judge(self, text: str, chances: tuple[float, ...], first_token_at: float | None, now: float) -> str:
        """Returns why the sequence ends after this text, or "" if it continues. `chances`: the probabilities of the
        text's tokens; empty: unknown."""
        detector = self._detector
        if detector is not None:
            for chance in chances:
                self._chance += (chance - self._chance) * _SMOOTHING
            detector.share = self._share * (COLLAPSED if self._chance >= CERTAIN else 1.0)
            if text and detector.hear(text.encode()):
                return REPETITION
        if self._limit_s is not None and first_token_at is not None and now - first_token_at >= self._limit_s:
            return TIME
        return ""
