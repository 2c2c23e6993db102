"""Computes the usual times of a lane's requests. A request is slow if it took clearly more."""

from collections.abc import Iterable

import msgspec

from headgate.model.outcome import Outcome
from headgate.model.record import Record

LEAST = 8
"""Minimum requests from which usual times are computed."""
CLEARLY = 1.5
"""Multiple of the usual time above which slowness needs a cause other than the request's own size."""
IMMATERIAL_S = 0.02
"""Seconds added to that bound: a few milliseconds need no cause."""


class UsualTimes(msgspec.Struct, frozen=True, gc=False):
    """Medians over completed requests. Waiting, retries and stalls are left out: they are never usual, however often
    they happen."""

    accept_s: float
    first_s: float
    tokens: int
    """Prompt tokens prefilled, without cached ones."""
    decode_s: float
    """Seconds from the first token to the last, without those in which the client was behind."""
    tpot_s: float
    gap_s: float
    """Longest gap of a request."""
    output_tokens: int

    @property
    def token_s(self) -> float:
        """Seconds of first-token time per prefilled token: an upper bound, since not all of that time is prefill."""
        return self.first_s / max(1, self.tokens)

    def first_for(self, tokens: int) -> float:
        """Usual first-token time of a prompt of this length: a longer one takes longer, a shorter one is not much
        quicker."""
        return self.first_s * max(1.0, tokens / max(1, self.tokens))


def usual(records: Iterable[Record], *, stream: bool, whole: bool = False) -> UsualTimes | None:
    """The usual times of one lane's records; None: too few records. Streamed and unstreamed requests are judged apart,
    and so are those whose first token's time is unknown (`whole`), whose `first_s` is all of their time at the
    replica."""
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
