"""Decides whether a failed request is sent again: a budget that absorbs one replica's death and never becomes a retry
storm.

Retries put the budget in debt; requests pay the debt off at `ratio` each, and time pays off a whole floor per
`REFILL_S`. A retry is allowed while the debt stays within the floor: the requests that one replica has in flight, since
all of them fail at once when that replica dies. So over any window of w seconds

    retries ≤ ratio · requests + floor · (1 + w / REFILL_S)

with the largest floor told in the window or in the `DEATH_S` before it. Nothing is saved up beyond that, however long
all went well.

Two kinds of retry are cheaper than they look, and have a budget of their own, `GENTLE` times as large: a stream that
has begun is continued (a client whose stream is cut asks for all of it again), and a request that could not be sent
costs no replica anything.
"""

from enum import Enum

from headgate.config.gateway import RetryConfig

REFILL_S = 60.0
"""Seconds in which time pays off one floor: a death a minute is absorbed even at very low traffic."""
DEATH_S = 5.0
"""Seconds for which a floor holds. The requests that a dying replica has in flight shrink with each failure that is
reported, while all of them belong to the same death."""
LEAST_FLOOR = 3
"""Floor where replicas have fewer requests in flight."""
GENTLE = 4
"""Replica deaths per minute that streams survive which have begun."""


class RetryVerdict(Enum):
    """Whether to send a request again; only AGAIN is true in a condition."""

    AGAIN = "again"
    TOO_MANY_ATTEMPTS = "too many attempts"
    BUDGET_SPENT = "retry budget spent"

    def __bool__(self) -> bool:
        return self is RetryVerdict.AGAIN


class RetryBudget:
    def __init__(self, config: RetryConfig | None = None, floor: int = LEAST_FLOOR) -> None:
        config = config or RetryConfig()
        self.ratio = config.ratio
        self.attempts = config.attempts
        """Maximum times one request is sent, the first included."""
        self.debt = 0.0
        self.gentle_debt = 0.0
        """Debt for streams that had begun and requests that could not be sent."""
        self._least_floor = floor
        self._floor = floor
        self._floor_at = float("-inf")
        self._paid_at = float("-inf")

    def earn(self, now: float) -> None:
        """Pays off debt for a request that arrived."""
        self.debt = max(0.0, self.debt - self.ratio)
        if self.gentle_debt:
            self.gentle_debt = max(0.0, self.gentle_debt - GENTLE * self.ratio)

    def spend(self, now: float, floor: int, attempts: int = 1, gentle: bool = False) -> RetryVerdict:
        """Whether a request that was sent `attempts` times may be sent once more; a yes is charged. `floor`: requests
        that the failed replica had in flight. `gentle`: the stream had begun, or the request could not be sent."""
        if attempts >= self.attempts:
            return RetryVerdict.TOO_MANY_ATTEMPTS
        if floor >= self._floor or now > self._floor_at + DEATH_S:
            self._floor, self._floor_at = max(floor, self._least_floor), now
        paid = self._floor * (now - self._paid_at) / REFILL_S
        self.debt, self.gentle_debt = max(0.0, self.debt - paid), max(0.0, self.gentle_debt - GENTLE * paid)
        self._paid_at = now
        debt, most = (self.gentle_debt, GENTLE * self._floor) if gentle else (self.debt, self._floor)
        if debt + 1.0 > most + 1e-9:
            return RetryVerdict.BUDGET_SPENT
        if gentle:
            self.gentle_debt += 1.0
        else:
            self.debt += 1.0
        return RetryVerdict.AGAIN
