"""Which models are there, and who has to be asked for which?

As long as all replicas say the same, a request may go to any of them, whatever it calls the model: local servers take
any name. Once they differ, names count, and one that nobody has is refused with those there are. An adapter is a name
like any other: whoever asks for it gets to a replica that has it loaded.
"""

from collections.abc import Callable
from dataclasses import replace
from urllib.parse import unquote

import msgspec

from headgate.gateway.models import Models
from headgate.model.errors import UnknownModel
from headgate.model.event import Event, ReplicaJoined
from headgate.model.replica import Replica, ReplicaId
from headgate.wire.exchange import Exchange

MOST_NAMES = 256
"""Of one replica: adapters are models too, and somebody may have thousands."""


class Catalog:
    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._replicas: dict[ReplicaId, Replica] = {}
        self._said: dict[ReplicaId, tuple[str, ...]] = {}
        """What each says it serves."""
        self._given: dict[ReplicaId, frozenset[str]] = {}
        """Names from the config: nothing that a replica says takes one away."""
        self.models: Models | None = None
        """Names that stand for others; None: each stands for itself."""

    def add(self, replica: Replica) -> None:
        self._replicas[replica.id] = replica
        self._given[replica.id] = replica.names

    def remove(self, replica_id: ReplicaId) -> None:
        self._replicas.pop(replica_id, None)
        self._said.pop(replica_id, None)
        self._given.pop(replica_id, None)

    def found(self, replica_id: ReplicaId, kind: str | None) -> None:
        """Which engine it is."""
        self._change(replace(self._replicas[replica_id], kind=kind))

    def said(self, replica_id: ReplicaId, models: list[str], adapters: frozenset[str] = frozenset()) -> None:
        """A replica has listed its models, and which of them are adapters."""
        self._said[replica_id] = tuple(models[:MOST_NAMES])
        given = self._given[replica_id]
        if given:
            loaded = (given | (adapters & frozenset(self._said[replica_id]))) - {self._replicas[replica_id].model}
            self._change(replace(self._replicas[replica_id], models=loaded))
        silent = [one for one in self._replicas.values() if not self._given[one.id] and self._said.get(one.id)]
        differ = len({frozenset(self._said[one.id]) for one in silent}) > 1
        for replica in silent:
            names = frozenset(self._said[replica.id]) if differ else frozenset()
            self._change(replace(replica, models=names))

    def _change(self, replica: Replica) -> None:
        if replica != self._replicas[replica.id]:
            self._replicas[replica.id] = replica
            self._tell(ReplicaJoined(replica))

    @property
    def names(self) -> list[str]:
        found: dict[str, None] = {}
        for replica in self._replicas.values():
            own = [] if replica.model is None else [replica.model]
            rest = sorted(replica.models) if self._given[replica.id] else self._said.get(replica.id, ())
            found.update(dict.fromkeys([*own, *rest]))
        if self.models is None:
            return list(found)
        hidden = self.models.hidden
        return list(dict.fromkeys([*self.models.names, *(name for name in found if name not in hidden)]))

    def serve_list(self, exchange: Exchange) -> None:
        exchange.respond(200, msgspec.json.encode({"object": "list", "data": [_card(name) for name in self.names]}))

    def serve_one(self, exchange: Exchange) -> None:
        name = unquote(exchange.path.removeprefix("/v1/models/"))
        if name not in self.names:
            raise UnknownModel(f"no model {name[:256]!r} here; there is {', '.join(self.names[:16]) or 'none yet'}")
        exchange.respond(200, msgspec.json.encode(_card(name)))


def _card(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "headgate"}
