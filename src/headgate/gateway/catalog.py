"""Keeps the list of models and which replicas serve each of them.

A name that no replica has is refused with a list of the known names; until a replica has listed its models, any name is
accepted. `default` stands for any served model: as long as all replicas list the same models, a request may go to any
replica, under a name that the replica lists. Once the lists differ, `default` is the first public name, or the name of
the first replica. An adapter is a name like any other: a request for it goes to a replica that has it loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol
from urllib.parse import unquote

import msgspec

from headgate.gateway.intake.models import Models
from headgate.model.errors import UnknownModel
from headgate.model.event import ReplicaJoined
from headgate.model.replica import Replica, ReplicaId
from headgate.replica.detect import GATEWAY, Card
from headgate.replica.dialects import dialect_of
from headgate.wire.exchange import Exchange

ANY = ("", "default")
"""Names that stand for any served model."""
MOST_TOLD = 16
MOST_NAMES = 256
"""Maximum names kept per replica: adapters are models too, and a replica may have thousands."""


LATEST: Final = 1 << 40
"""Seconds since 1970 above which a date is nonsense."""
LONGEST_OWNER: Final = 128


class ModelFacts(NamedTuple):
    """What a replica says of a model that it lists."""

    created: int = 0
    """Seconds since 1970; 0: not stated."""
    owner: str = ""
    context: int | None = None
    """The longest sequence in tokens; None: not stated."""

    @classmethod
    def of(cls, card: Card) -> "ModelFacts":
        created = card.created if type(card.created) is int and 0 < card.created < LATEST else 0
        owner = card.owned_by[:LONGEST_OWNER] if isinstance(card.owned_by, str) else ""
        return cls(created, owner, card.context)


UNKNOWN: Final = ModelFacts()


class Listing:
    """The model names of one replica."""

    __slots__ = ("adapters", "facts", "given", "said")

    def __init__(self, replica: Replica) -> None:
        self.given = replica.names
        """Names from the config; a replica's list never removes one."""
        self.said: tuple[str, ...] = ()
        """Names that the replica lists."""
        self.adapters: frozenset[str] = frozenset()
        """Listed names that are adapters."""
        self.facts: dict[str, ModelFacts] = {}
        """What the replica says of each listed name."""


@dataclass(frozen=True, slots=True)
class NamesTold:
    """The catalog at one moment, for a process that does not watch replicas itself."""

    known: frozenset[str] | None
    """All names that requests may use; None: any."""
    default: str
    """The name that `default` stands for; empty: `default` is passed on."""
    shown: tuple[str, ...]
    """The names that a client is told of."""
    adapters: frozenset[str]


class ListedReplica(Protocol):
    """The part of an endpoint (gateway/placing.py) that is used here."""

    @property
    def replica(self) -> Replica: ...
    @property
    def listing(self) -> Listing: ...


class Catalog:
    def __init__(self, places: Mapping[ReplicaId, ListedReplica], tell: Callable[[ReplicaJoined], object]) -> None:
        """`places`: the replicas that requests can be sent to. `tell` is told of each replica whose names or kind were
        found out, and describes it anew there."""
        self._places = places
        self._tell = tell
        self._known: frozenset[str] | None = None
        """All names that requests may use; None: any."""
        self._any_serves_all = True
        """Some replica has no model name, and so serves all names."""
        self.models: Models | None = None
        """Names that stand for other models; None: each name stands for itself."""

    def refuse_unknown(self, model: str) -> None:
        """Raises UnknownModel for a name that no replica has."""
        known = self._known  # read once: long bodies are parsed in another thread
        if known is not None and model not in known and model not in ANY:
            raise UnknownModel(self._unknown(model), param="model")

    def meant_by_default(self) -> str:
        """The name that `default` stands for; empty: `default` is passed on, since some replica serves any name or
        there is no replica."""
        if self._any_serves_all or not self._places:
            return ""
        if self.models is not None and (public := self.models.names):
            return public[0]
        for place in self._places.values():
            if place.replica.names:
                return place.replica.model or min(place.replica.names)
        return ""

    def _unknown(self, model: str) -> str:
        return unknown_model(model, self.names)

    def told(self) -> "NamesTold":
        """What is known of names now."""
        return NamesTold(self._known, self.meant_by_default(), tuple(self.names), self.adapters)

    def look_again(self) -> None:
        """Recomputes the known names, after a replica has joined or left. A replica that lists MOST_NAMES may have
        more, so then any name is accepted."""
        self._any_serves_all = any(not place.replica.names for place in self._places.values())
        known: set[str] = set()
        for place in self._places.values():
            replica, listing = place.replica, place.listing
            known.update(replica.names, listing.given, listing.said)
            if dialect_of(replica).any_model or len(listing.said) >= MOST_NAMES:
                self._known = None
                return
        self._known = frozenset(known) if known else None

    def found(self, replica_id: ReplicaId, kind: str | None) -> None:
        """The prober has found which engine the replica runs."""
        place = self._places[replica_id]
        self._change(place, replace(place.replica, kind=kind))
        self.look_again()

    def serve_models(self, models: Models | None) -> None:
        """Lists other public names from now on; None: each name stands for itself."""
        self.models = models

    def said(
        self,
        replica_id: ReplicaId,
        models: list[str],
        adapters: frozenset[str] = frozenset(),
        facts: Mapping[str, ModelFacts] = {},
    ) -> None:
        """Takes the models that a replica lists, which of them are adapters, and what it says of each."""
        replica, listing = self._places[replica_id].replica, self._places[replica_id].listing
        listing.said = tuple(models[:MOST_NAMES])
        listing.adapters = adapters & frozenset(listing.said)
        listing.facts = {
            name: _earliest(facts[name], listing.facts.get(name)) for name in listing.said if name in facts
        }
        if listing.given:
            loaded = (listing.given | listing.adapters) - {replica.model}
            self._change(self._places[replica_id], replace(replica, models=loaded))
        silent = [place for place in self._places.values() if not place.listing.given and place.listing.said]
        differ = len({frozenset(place.listing.said) for place in silent}) > 1
        for place in silent:
            names = frozenset(place.listing.said) if differ else frozenset()
            self._change(place, replace(place.replica, models=names))
        self.look_again()

    def _change(self, place: ListedReplica, replica: Replica) -> None:
        if replica != place.replica:
            self._tell(ReplicaJoined(replica))

    @property
    def adapters(self) -> frozenset[str]:
        """Names that are adapters of another model, over all replicas."""
        return frozenset().union(*(place.listing.adapters for place in self._places.values()))

    @property
    def names(self) -> list[str]:
        found: dict[str, None] = {}
        for place in self._places.values():
            replica, listing = place.replica, place.listing
            own = [] if replica.model is None else [replica.model]
            rest = sorted(replica.models) if listing.given else listing.said
            found.update(dict.fromkeys([*own, *rest]))
        if self.models is None:
            return list(found)
        hidden = self.models.hidden
        return list(dict.fromkeys([*self.models.names, *(name for name in found if name not in hidden)]))

    def serve_list(self, exchange: Exchange) -> None:
        facts = self._facts()
        cards = [_card(name, facts.get(name, UNKNOWN)) for name in self.names]
        exchange.respond(200, msgspec.json.encode({"object": "list", "data": cards}))

    def serve_one(self, exchange: Exchange) -> None:
        name = unquote(exchange.path.removeprefix("/v1/models/"))
        if name not in self.names:
            raise UnknownModel(self._unknown(name))
        exchange.respond(200, msgspec.json.encode(_card(name, self._facts().get(name, UNKNOWN))))

    def _facts(self) -> dict[str, ModelFacts]:
        """What is known of each name: the first owner and the earliest date that a replica states, and the shortest
        context, which any replica of the name takes. A public name has what its models have in common."""
        found: dict[str, ModelFacts] = {}
        for place in self._places.values():
            replica = place.replica
            for listed, one in place.listing.facts.items():
                names = {listed, replica.model or listed} if listed == replica.served_as else {listed}
                if len(place.listing.facts) == 1 and replica.served_as is None and replica.model is not None:
                    names.add(replica.model)
                for name in names:
                    found[name] = _joined(found.get(name), one)
        if self.models is not None:
            told = {
                public: _common([found.get(name, UNKNOWN) for name in self.models.reach(public)])
                for public in self.models.names
            }
            found.update(told)
        return found


def unknown_model(model: str, names: Sequence[str]) -> str:
    """The message for a name that no replica has, with some of the known names."""
    more = f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else ""
    return f"no model {model[:256]!r} here; there is {', '.join(names[:MOST_TOLD]) or 'none yet'}{more}"


def _common(facts: list[ModelFacts]) -> ModelFacts:
    """What models have in common that one public name stands for."""
    lengths = [one.context for one in facts]
    context = None if None in lengths else min((length for length in lengths if length is not None), default=None)
    return ModelFacts(max((one.created for one in facts), default=0), GATEWAY, context)


def _earliest(new: ModelFacts, old: ModelFacts | None) -> ModelFacts:
    """Some engines state the time at which they were asked: the first such time is kept."""
    return new if old is None or not old.created or new.created < old.created else new._replace(created=old.created)


def _joined(known: ModelFacts | None, more: ModelFacts) -> ModelFacts:
    if known is None:
        return more
    lengths = [length for length in (known.context, more.context) if length is not None]
    dates = [created for created in (known.created, more.created) if created]
    return ModelFacts(min(dates, default=0), known.owner or more.owner, min(lengths, default=None))


def _card(name: str, facts: ModelFacts) -> dict[str, object]:
    card: dict[str, object] = {
        "id": name,
        "object": "model",
        "created": facts.created,
        "owned_by": facts.owner or GATEWAY,
        "served_by": GATEWAY,
    }
    if facts.context is not None:
        card["max_model_len"] = facts.context
    return card
