"""When is a sequence ended early, with what there is?

By the time it may take, counted from its first token; or because it only repeats itself. Here more is known than the
text: how likely each token was. Where nothing but the next word of the same sentence is left to choose from, that is
evidence too.
"""

from dataclasses import dataclass
from typing import Final

from headgate.config.output import Runaway
from headgate.policy.answers.runaway import Detector

CERTAIN: Final = 0.95
"""A mean chance of the tokens drawn at which the model chooses no more: each word only follows from the one before."""
COLLAPSED: Final = 0.85
"""Of the evidence in the text, what is enough then."""
_SMOOTHING: Final = 0.1
REPETITION: Final = "repetition"
TIME: Final = "time"


@dataclass(frozen=True, slots=True)
class Bounds:
    runaway: Runaway = "off"
    limit_s: float | None = None
    """Most seconds from the first token on; None: any."""


class Bound:
    """What is known of one sequence."""

    def __init__(self, bounds: Bounds) -> None:
        self._limit_s = bounds.limit_s
        self._detector = None if bounds.runaway == "off" else Detector(bounds.runaway)
        self._share = 1.0 if self._detector is None else self._detector.share
        self._chance = 0.0

    @property
    def doubts(self) -> bool:
        """It has said something twice: from now on it is worth knowing how sure the model is of what it says."""
        return self._detector is not None and 0 < self._detector.period <= self._detector.matched

    def judge(self, text: str, chances: tuple[float, ...], first_token_at: float | None, now: float) -> str:
        """Why it ends now, after saying this too, with tokens that had these chances, if that is known; empty: it
        goes on."""
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
