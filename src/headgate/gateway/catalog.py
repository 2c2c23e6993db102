"""Which models are there, and who has to be asked for which?

As long as all replicas say the same, a request may go to any of them, whatever it calls the model: local servers take
any name. Once they differ, names count, and one that nobody has is refused with those there are.
"""

from collections.abc import Callable
from dataclasses import replace
from urllib.parse import unquote

import msgspec

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

    def add(self, replica: Replica) -> None:
        self._replicas[replica.id] = replica

    def remove(self, replica_id: ReplicaId) -> None:
        self._replicas.pop(replica_id, None)
        self._said.pop(replica_id, None)

    def said(self, replica_id: ReplicaId, models: list[str]) -> None:
        """A replica has listed its models."""
        self._said[replica_id] = tuple(models[:MOST_NAMES])
        silent = [one for one in self._replicas.values() if one.model is None and self._said.get(one.id)]
        differ = len({frozenset(self._said[one.id]) for one in silent}) > 1
        for replica in silent:
            names = frozenset(self._said[replica.id]) if differ else frozenset()
            if names != replica.models:
                self._replicas[replica.id] = found = replace(replica, models=names)
                self._tell(ReplicaJoined(found))

    @property
    def names(self) -> list[str]:
        found: dict[str, None] = {}
        for replica in self._replicas.values():
            found.update(dict.fromkeys([replica.model] if replica.model else self._said.get(replica.id, ())))
        return list(found)

    def serve_list(self, exchange: Exchange) -> None:
        exchange.respond(200, msgspec.json.encode({"object": "list", "data": [_card(name) for name in self.names]}))

    def serve_one(self, exchange: Exchange) -> None:
        name = unquote(exchange.path.removeprefix("/v1/models/"))
        if name not in self.names:
            raise UnknownModel(f"no model {name[:256]!r} here; there is {', '.join(self.names[:16]) or 'none yet'}")
        exchange.respond(200, msgspec.json.encode(_card(name)))


def _card(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "headgate"}
