"""Which prompts do replicas have that are not prefilled yet? Of an answer in one piece nobody hears when it is."""

from heapq import heappop, heappush
from math import inf
from typing import Final

from headgate.model.replica import Load
from headgate.policy.dispatch.passage import Passage

TOKEN_S: Final = 0.0001
"""From a prompt's sending to its first token, for each of its tokens, while no first token was heard from its replica:
as on many a GPU."""


class Prefills:
    """The dispatcher tells it what is sent and heard; each lane has the sums. Of an answer in one piece nothing is
    heard before its end: its prompt counts for as long as its replica's first tokens usually take (model/pace.py), with
    what it had to do before. A mean of seconds for each token would not do: a short prompt behind a long one would say
    that a long one takes minutes, and every lane that is prefilled in turn would wait for those."""

    def __init__(self) -> None:
        self.wake_at = inf
        """When one that is not heard of stops counting."""
        self._unheard: list[tuple[float, int, float, Passage]] = []
        """A heap: until when each counts, and which sending of it that is about. Those over by now are in it, too."""
        self._number = 0

    def sent(self, passage: Passage, load: Load, now: float) -> None:
        """Its prompt is one of those, and it is at this replica now."""
        self._count(passage, 1)
        if not passage.request.stream:
            self._number += 1
            tokens = passage.request.prompt_tokens
            first_s = load.pace.first_s(tokens, passage.before)
            due = now + (TOKEN_S * tokens if first_s is None else first_s)
            heappush(self._unheard, (due, self._number, passage.sent_at, passage))
            self.wake_at = self._unheard[0][0]

    def sent_twice(self, passage: Passage) -> None:
        """It is at a second replica, too."""
        if passage.prefilling:
            self._count(passage, 1)

    def one_less(self, passage: Passage) -> None:
        """It was at two replicas, and is at one of them."""
        if passage.prefilling:
            self._count(passage, -1)

    def over(self, passage: Passage) -> bool:
        """Its first token is there, or it is at no replica any more. Whether it had been counted."""
        counted = passage.prefilling
        if counted:
            self._count(passage, -counted)
        return counted > 0

    def pass_time(self, now: float) -> bool:
        """Whether somebody stopped counting."""
        unheard, some = self._unheard, False
        while unheard and unheard[0][0] <= now:
            _, _, sent_at, passage = heappop(unheard)
            if passage.sent_at == sent_at and self.over(passage):
                some = True
        self.wake_at = unheard[0][0] if unheard else inf
        return some

    def _count(self, passage: Passage, times: int) -> None:
        """Of those that replicas are given in turn."""
        passage.prefilling += times
        passage.state.prefills += times
        passage.state.prefill_tokens += times * passage.request.prompt_tokens


class Unheard:
    """Answers in one piece, each until its prompt is taken to be prefilled: after as long as its replica usually needs
    for it and for those before it. From then on it counts as decoding, like a stream whose first token was heard."""

    def __init__(self) -> None:
        self.wake_at = inf
        """When the first of them is."""
        self._due: list[tuple[float, int, float, Passage]] = []
        """A heap: when, and which sending of it that is about. Those over by now are in it, too."""
        self._number = 0

    def sent(self, passage: Passage, load: Load, now: float) -> None:
        """It is at this replica now, and counted there."""
        self._number += 1
        first_s = load.pace.first_s(passage.request.prompt_tokens, passage.before)
        due = now + (load.prefill_token_s * load.prefill_tokens if first_s is None else first_s)
        heappush(self._due, (due, self._number, passage.sent_at, passage))
        self.wake_at = self._due[0][0]

    def prefilled(self, now: float) -> list[Passage]:
        """Those whose time has come and that are still there, each once."""
        due, found = self._due, []
        while due and due[0][0] <= now:
            _, _, sent_at, passage = heappop(due)
            there = passage.sent_at == sent_at == passage.state.pool.sent.get(passage.request.id)
            if there and passage.race is None and passage.first_token_at is None and not passage.decodes:
                found.append(passage)
        self.wake_at = due[0][0] if due else inf
        return found
