"""Holds the races of hedged requests: two replicas have the request, and the first to answer keeps it.

policy/dispatch/hedge.py decides which requests are late and may be hedged.
"""

from typing import Final

from headgate.model.event import AttemptFailed, Command, Hedge
from headgate.model.outcome import Outcome
from headgate.model.replica import Load, ReplicaId
from headgate.policy.dispatch.hedge import CANCELLED, FAILED, LOST, TOOK_OVER, WON, Hedger
from headgate.policy.dispatch.passage import Passage, Race
from headgate.policy.dispatch.queues import Queues
from headgate.policy.dispatch.retry import Failover
from headgate.policy.dispatch.sending import Sending
from headgate.policy.dispatch.turns import Turns
from headgate.policy.replicas.book import ReplicaBook


class Races:
    def __init__(
        self, queues: Queues, book: ReplicaBook, sending: Sending, failover: Failover, turns: Turns, hedger: Hedger
    ) -> None:
        self._queues: Final = queues
        self._book: Final = book
        self._sending: Final = sending
        self._failover: Final = failover
        self._turns: Final = turns
        self._hedger: Final = hedger

    def start(self, now: float, commands: list[Command]) -> None:
        """Sends late requests to a second replica, as far as there are free slots and the budget covers it."""
        for passage in self._hedger.late(now):
            if not self._hedge(passage, now, commands):
                self._hedger.look_again(passage, now)

    def _hedge(self, passage: Passage, now: float, commands: list[Command]) -> bool:
        """Asks a second replica as well, if that takes nothing from other requests. The request takes a slot and counts
        as work there, too."""
        request, load, hedger, index = passage.request, passage.load, self._hedger, self._book.index
        for model_queue in self._queues.model_queues.values():
            if model_queue.waiting:
                return False
        room, used = index.capacity(request.model, request.lane)
        if load is None or not hedger.quiet(room, used) or not self._turns.may_go(passage.lane_queue, request, now):
            return False
        choice = self._sending.second_choice(passage, load, now)
        other = None if choice is None else index.get(choice.replica_id)
        if choice is None or other is None or other.cold or not hedger.spend(request.lane):
            return False
        self._sending.place_second(passage, other, choice, now)
        commands.append(Hedge(request.id, choice.replica_id, choice.reason, choice.scores))
        return True

    def won(self, passage: Passage, race: Race, load: Load, replica_id: ReplicaId) -> None:
        """One of the two replicas has answered first, and the request is at that one alone."""
        loser, lost = race.load, race.uncached
        if replica_id == race.load.id:
            loser, lost = load, passage.uncached
            _move(passage, race)
            passage.remembered_at = self._book.remember(passage.request, race.load.id, race.uncached)
            self._book.fell_silent(loser, lost)
        self._hedger.over(passage, LOST if loser is race.load else WON)
        passage.race = None
        self._sending.drop(passage, loser, lost)

    def one_failed(self, passage: Passage, race: Race, load: Load, failed: AttemptFailed, now: float) -> bool:
        """One of the request's two replicas failed: the other simply has the request. Returns False if it was neither
        of the two."""
        if failed.replica_id not in (load.id, race.load.id):
            return False
        gone, sent_at, uncached = race.load, race.sent_at, race.uncached
        if failed.replica_id == load.id:
            gone, sent_at, uncached = load, passage.sent_at, passage.uncached
            self._book.unremember(passage.request, load.id, passage.remembered_at)
            _move(passage, race)
            passage.remembered_at = self._book.remember(passage.request, race.load.id, race.uncached)
            passage.since = race.sent_at
            passage.lost_s += race.sent_at - sent_at
        passage.attempts += 1
        self._hedger.over(passage, FAILED if gone is race.load else TOOK_OVER)
        passage.race = None
        passage.tried |= {gone.id}
        self._sending.drop(passage, gone, uncached)
        self._failover.judge(passage, gone, sent_at, failed, now)
        return True

    def end(self, passage: Passage, outcome: Outcome, now: float) -> None:
        """Ends the race of a request that is over, if it has one: what follows is about one replica only."""
        race = passage.race
        if race is not None:
            passage.race = None
            self._hedger.over(passage, CANCELLED)
            self._sending.drop(passage, race.load, race.uncached)
        if outcome is Outcome.COMPLETED and not passage.request.stream and not passage.begun:
            self._hedger.heard(passage, now)
        passage.hedged = True  # the hedger need not look at it any more


def _move(passage: Passage, race: Race) -> None:
    passage.load, passage.sent_at, passage.before = race.load, race.sent_at, 0
    passage.uncached, passage.cached = race.uncached, race.cached
