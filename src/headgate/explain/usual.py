"""What does a request of this lane usually take? Slow is what is clearly more than that."""

from collections.abc import Iterable

import msgspec

from headgate.model.outcome import Outcome
from headgate.model.record import Record

LEAST = 8
"""Of fewer requests nothing is usual."""
CLEARLY = 1.5
"""Times the usual, and slow begins to need a cause other than the request's own size."""
IMMATERIAL_S = 0.02
"""On top of it: a few milliseconds are nobody's doing."""


class UsualTimes(msgspec.Struct, frozen=True, gc=False):
    """Medians over what was answered in full. Waiting, retries and stalls are not here: they are never usual, however
    often they happen."""

    accept_s: float
    first_s: float
    tokens: int
    """Prompt tokens prefilled, cached ones not counted."""
    decode_s: float
    """First token to last, as far as the client kept up."""
    tpot_s: float
    gap_s: float
    """Longest gap."""
    output_tokens: int

    @property
    def token_s(self) -> float:
        """Of its first-token time, what comes to each token: an upper bound, since not all of it is prefill."""
        return self.first_s / max(1, self.tokens)

    def first_for(self, tokens: int) -> float:
        """First-token time of a prompt of this length: a longer one takes longer, a shorter one is not much quicker."""
        return self.first_s * max(1.0, tokens / max(1, self.tokens))


def usual(records: Iterable[Record], *, stream: bool, whole: bool = False) -> UsualTimes | None:
    """None: there are too few. Give it one lane's; those streamed and those not are different things, and so are those
    whose first token's time is unknown (`whole`), which count all of their time until then."""
    answered = [r for r in records if r.outcome is Outcome.COMPLETED and r.stream is stream and r.whole is whole]
    if len(answered) < LEAST:
        return None
    return UsualTimes(
        accept_s=_median([r.accept_s for r in answered]),
        first_s=_median([r.first_s for r in answered]),
        tokens=int(_median([float(max(0, r.prompt_tokens - r.cached_tokens)) for r in answered])),
        decode_s=_median([max(0.0, r.stream_s - r.stalled_s) for r in answered]),
        tpot_s=_median([r.tpot_s for r in answered if r.tpot_s is not None]),
        gap_s=_median([r.max_gap_s for r in answered]),
        output_tokens=int(_median([float(r.output_tokens) for r in answered])),
    )


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def clearly_more(took_s: float, usual_s: float) -> bool:
    return took_s > CLEARLY * usual_s + IMMATERIAL_S
