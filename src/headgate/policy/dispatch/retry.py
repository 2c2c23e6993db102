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
from typing import Final

from headgate.config.gateway import RetryConfig
from headgate.model.event import AttemptFailed, Command
from headgate.model.outcome import Outcome
from headgate.model.replica import Load
from headgate.model.request import Request
from headgate.policy.dispatch.admit import PINNED, Refusals
from headgate.policy.dispatch.passage import Passage
from headgate.policy.dispatch.queues import Queues
from headgate.policy.dispatch.sending import Sending
from headgate.policy.dispatch.versions import Versions
from headgate.policy.replicas.book import ReplicaBook
from headgate.policy.replicas.outlier import About
from headgate.policy.replicas.signs import SAW

REFILL_S = 60.0
"""Seconds in which time pays off one floor: a death a minute is absorbed even at very low traffic."""
DEATH_S = 5.0
"""Seconds for which a floor holds. The requests that a dying replica has in flight shrink with each failure that is
reported, while all of them belong to the same death."""
LEAST_FLOOR = 3
"""Floor where replicas have fewer requests in flight."""
GENTLE = 4
"""Replica deaths per minute that streams survive which have begun."""
MOST_REFUSALS: Final = 32
"""Refusals by full replicas after which a request is refused for good and its client told so: a proxy in front of a
replica may say that it is full whenever it breaks off, and this request may be why."""
STEADY_S: Final = 10.0
"""Seconds of streaming after which a failure is taken to be the replica's: the request's attempts count anew."""


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


class Failover:
    """Finds another replica for a request whose attempt failed, and judges the replica that failed."""

    def __init__(
        self,
        queues: Queues,
        book: ReplicaBook,
        sending: Sending,
        refusals: Refusals,
        versions: Versions,
        retries: RetryBudget,
    ) -> None:
        self._queues: Final = queues
        self._book: Final = book
        self._index: Final = book.index
        self._sending: Final = sending
        self._refusals: Final = refusals
        self._versions: Final = versions
        self._retries: Final = retries

    def failed(self, passage: Passage, load: Load, failed: AttemptFailed, now: float, commands: list[Command]) -> None:
        """Takes in a failed attempt: the request goes to another replica, waits, or is refused."""
        in_flight = self._sending.release(passage, load, passage.lane_queue)
        passage.load = None
        if not failed.refused:
            passage.lost_s += now - passage.sent_at
        self._book.unremember(passage.request, load.id, passage.remembered_at)
        self.judge(passage, load, passage.sent_at, failed, now)
        passage.tried |= {failed.replica_id}
        self._try_again(passage, failed, in_flight, now, commands)

    def judge(self, passage: Passage, load: Load, sent_at: float, failed: AttemptFailed, now: float) -> None:
        """Judges a failed attempt, whose slots are released already: its replica is full, is not reachable, or fails;
        or the request itself may be at fault."""
        passage.attempts += failed.twice
        if failed.refused or failed.unsent:
            passage.spared += 1
            again = passage.refusals > 0
            self._book.refused(load, sent_at, failed.retry_after_s, now, again=again, unreached=failed.unsent)
        elif passage.first_token_at is not None and now - passage.first_token_at >= STEADY_S:
            passage.spared = passage.attempts - 1
        if failed.refused:
            return
        passage.broke_at = now
        if failed.answered and not self._book.errs(load.id, _about(passage.request), now):
            passage.suspects += (load.id,)
        elif not failed.answered:
            self._book.saw(load.id, SAW[failed.outcome], now)

    def _try_again(
        self, passage: Passage, failed: AttemptFailed, in_flight: int, now: float, commands: list[Command]
    ) -> None:
        refuse = self._refusals.refuse
        if not failed.refused:
            # One replica's death fails all of its requests at once: that many retries are always absorbed.
            gentle = passage.begun or failed.unsent
            again = self._retries.spend(now, in_flight, passage.attempts - passage.spared, gentle)
            if not again:
                refuse(passage, failed.outcome, f"{failed.message or 'it failed'}; {again.value}", now, commands)
                return
        elsewhere = self._untried(passage)
        if not elsewhere and not failed.refused and self._versions.stand_in(passage, failed.unsent):
            elsewhere = self._untried(passage)
        if elsewhere and self._sending.place(passage, passage.lane_queue, now, commands):
            return
        if failed.refused:
            passage.refusals += 1
            if passage.refusals >= MOST_REFUSALS:
                message = f"{failed.message or 'it was refused'}; it was tried {passage.refusals} times"
                refuse(passage, Outcome.WAITED_TOO_LONG, message, now, commands)
                return
        # Other replicas are full, or there are none: the request waits like any other, also for replicas that failed
        # it.
        request = passage.request
        passage.tried = request.unfit
        gone = not self._index.usable(request.model, request.lane)
        if request.pinned and (gone or (failed.unsent and not elsewhere)):
            refuse(passage, Outcome.NO_REPLICA, PINNED, now, commands)
            return
        patience_s = passage.lane_queue.lane.wait_bound_of(request.ttft_s)
        if passage.begun or gone:
            patience_s = max(self._refusals.no_replica_wait_s, patience_s)
        # A stream that has begun is no new work that could be refused. Any other request has waited since its arrival,
        # except for the time that it was at replicas.
        since = passage.broke_at if passage.begun else request.arrived + passage.lost_s
        until = since + patience_s
        if request.relegated and failed.refused and not passage.begun:
            # Where replicas are full a client is told soon, and this replica may refuse this request alone.
            until = min(request.wait_until, now + passage.own_bound_s) if passage.refusals == 1 else request.wait_until
            passage.request = request.but(wait_until=until)
        self._queues.wait_until(passage, until, now)
        if failed.refused:
            self._queues.remove(request.id, passage.lane_queue, now)
            self._queues.set_aside.add(passage, now)

    def _untried(self, passage: Passage) -> int:
        """Number of usable replicas that the request has not been at."""
        request, tried = passage.request, passage.tried
        return self._index.left(self._index.groups(request.model, request.lane, tried), tried)


def _about(request: Request) -> About:
    """Identifies a prompt: by the end of its prefix, or, where nothing is known of its text, by model and length."""
    return request.tenant, request.prefix[-1] if request.prefix else f"{request.model} {request.prompt_tokens}"
