"""Lets a fallback model answer for a version of a model that has no usable replica left."""

from typing import Final

from headgate.policy.dispatch.passage import Passage
from headgate.policy.dispatch.queues import Queues
from headgate.policy.replicas.index import RouteIndex


class Versions:
    """Requests in progress that name a fallback model, or are pinned to a version."""

    def __init__(self, queues: Queues, index: RouteIndex) -> None:
        self.asked: Final[dict[str, dict[str, Passage]]] = {}
        """Requests by id, by the model that they ask for."""
        self._queues = queues
        self._index = index

    def add(self, passage: Passage) -> bool:
        """Notes a request that has arrived. Returns whether a fallback model is to answer it."""
        self.asked.setdefault(passage.request.model, {})[passage.request.id] = passage
        return self.stand_in(passage, False)

    def forget(self, passage: Passage) -> None:
        request = passage.request
        if request.fallback or request.pinned:
            those = self.asked[request.model]
            del those[request.id]
            if not those:
                del self.asked[request.model]

    def stand_in(self, passage: Passage, unreached: bool) -> bool:
        """Lets a fallback model answer, if no replica of the requested model is usable, or the last one can't be
        reached. Not once the client has received output: two models would say one sentence. The caller moves a request
        that is queued."""
        request = passage.request
        if passage.begun or (self._index.usable(request.model, request.lane) and not unreached):
            return False
        for model in request.fallback:
            if self._index.usable(model, request.lane):
                self.forget(passage)
                passage.request = request.but(model=model, fallback=())
                passage.lane_queue = self._queues.of(passage.request)
                passage.stands_in = model
                passage.tried = request.unfit
                return True
        return False

    def stranded(self) -> list[Passage]:
        """Requests that wait for a version without usable replicas."""
        found: list[Passage] = []
        for model, those in self.asked.items():
            if not self._index.usable(model):
                found += [passage for passage in those.values() if passage.load is None]
        return found
