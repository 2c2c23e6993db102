"""Counts the prompts that replicas have not prefilled yet.

For unstreamed answers the gateway never sees when the prompt is prefilled, so that is estimated.
"""

from heapq import heappop, heappush
from math import inf
from typing import Final

from headgate.model.replica import Load
from headgate.policy.dispatch.passage import Passage

TOKEN_S: Final = 0.0001
"""Seconds per prompt token from sending a prompt to its first token, before any first token came from its replica:
typical of many GPUs."""


class Prefills:
    """Counts prompts in prefill for each lane queue, for Turns, which sends low lanes' and long prompts only while few
    are (Unheard is for the replicas' load). An unstreamed answer reports nothing before its end: its prompt counts for
    as long as the replica's first tokens usually take (model/pace.py), given the prompt tokens outstanding there. A
    mean of seconds per token would be far too long: a short prompt behind a long one would make every long prompt count
    for minutes."""

    def __init__(self) -> None:
        self.wake_at = inf
        """When the next unstreamed prompt stops counting. inf: none is counted."""
        self._unheard: list[tuple[float, int, float, Passage]] = []
        """A heap of unstreamed requests: when each stops counting, and the send time that identifies the attempt.
        Attempts that are over stay in the heap until they are due."""
        self._number = 0

    def sent(self, passage: Passage, load: Load, now: float) -> None:
        """The request, whose prompt is prefilled in turn, is at this replica now."""
        passage.prefill_tokens = passage.uncached
        self._count(passage, 1)
        if not passage.request.stream:
            self._number += 1
            tokens = passage.uncached
            first_s = load.pace.first_s(tokens, passage.before)
            due = now + (TOKEN_S * tokens if first_s is None else first_s)
            heappush(self._unheard, (due, self._number, passage.sent_at, passage))
            self.wake_at = self._unheard[0][0]

    def sent_twice(self, passage: Passage) -> None:
        """The request was hedged: a second replica has its prompt, too."""
        if passage.prefilling:
            self._count(passage, 1)

    def one_less(self, passage: Passage) -> None:
        """The request was at two replicas, and is at one of them now."""
        if passage.prefilling:
            self._count(passage, -1)

    def over(self, passage: Passage) -> bool:
        """The request's first token has come, or it is at no replica any more. Returns whether its prompt was
        counted."""
        counted = passage.prefilling
        if counted:
            self._count(passage, -counted)
        return counted > 0

    def pass_time(self, now: float) -> bool:
        """Stops counting prompts whose estimated prefill is over. Returns whether there were any."""
        unheard, some = self._unheard, False
        while unheard and unheard[0][0] <= now:
            _, _, sent_at, passage = heappop(unheard)
            if passage.sent_at == sent_at and self.over(passage):
                some = True
        self.wake_at = unheard[0][0] if unheard else inf
        return some

    def _count(self, passage: Passage, times: int) -> None:
        """Counts the prompt this many times more; negative: less."""
        passage.prefilling += times
        passage.lane_queue.prefills += times
        passage.lane_queue.prefill_tokens += times * passage.prefill_tokens


class Unheard:
    """Tells when the prompt of an unstreamed request moves from prefill to decoding in its replica's load, as a
    stream's does with its first token: after the time that the replica usually needs for the prompt and those before
    it. All unstreamed requests are here; Prefills has only those of low lanes and with long prompts, and counts by lane
    queue."""

    def __init__(self) -> None:
        self.wake_at = inf
        """When the next prompt is due. inf: none is."""
        self._due: list[tuple[float, int, float, Passage]] = []
        """A heap: when each prompt is due, and the send time that identifies the attempt. Attempts that are over stay
        in the heap until they are due."""
        self._number = 0

    def sent(self, passage: Passage, load: Load, now: float) -> None:
        """The request is at this replica now, and its prompt is counted there."""
        self._number += 1
        first_s = load.pace.first_s(passage.uncached, passage.before)
        due = now + (load.prefill_token_s * load.prefill_tokens if first_s is None else first_s)
        heappush(self._due, (due, self._number, passage.sent_at, passage))
        self.wake_at = self._due[0][0]

    def prefilled(self, now: float) -> list[Passage]:
        """Requests whose prompt is due and that are still at their replica, each once."""
        due, found = self._due, []
        while due and due[0][0] <= now:
            _, _, sent_at, passage = heappop(due)
            there = passage.sent_at == sent_at == passage.lane_queue.model_queue.sent.get(passage.request.id)
            if there and passage.race is None and passage.first_token_at is None and not passage.decodes:
                found.append(passage)
        self.wake_at = due[0][0] if due else inf
        return found
