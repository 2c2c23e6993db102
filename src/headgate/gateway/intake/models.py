"""Resolves the model name of a request to a model and version, by the live table of public names.

Called for each request that is accepted, sometimes from the parsing thread: the table is never changed, only replaced
as a whole. A rollback is another table.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from headgate.config.gateway import Tenant
from headgate.config.models import ModelConfig
from headgate.model.errors import InvalidRequest, Refused
from headgate.model.labels import plain
from headgate.model.outcome import Outcome
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.rollout.capability import Room, ask_of, choose
from headgate.policy.rollout.rollout import TrafficSplit, digest_of

PIN: Final = "x-headgate-version"
"""The header by which trusted clients choose a version."""
COME_BACK_S: Final = 2.0
"""Retry-After in seconds for a pinned version without a usable replica: about as long as a probe takes to notice
one."""


class Chosen:
    """The model and version that were chosen for a request."""

    # Written out, not a dataclass: one is made per request.
    __slots__ = ("drawn_from", "fell_back", "model", "name", "others", "reason", "shadow", "version")

    def __init__(
        self,
        name: str,
        model: str,
        version: str,
        reason: str,
        drawn_from: str,
        shadow: tuple[str, str] | None,
        others: tuple[tuple[str, str], ...] = (),
        fell_back: str = "",
    ) -> None:
        self.name = name
        """The name that the client asked for."""
        self.model = model
        """The model whose replicas get the request."""
        self.version = version
        self.reason = reason
        self.drawn_from = drawn_from
        """The name whose versions the version was drawn from; empty: the name has none, or the version was pinned."""
        self.shadow = shadow
        """(version, model) that gets a copy; None: no copy is made."""
        self.others = others
        """(version, model) of the versions to fall back to, in this order, while no replica of `version` is usable."""
        self.fell_back = fell_back
        """The version that was drawn, if `version` stands in for it; empty: `version` itself was drawn."""

    @property
    def pinned(self) -> bool:
        """Whether the client named the version."""
        return bool(self.version) and not self.drawn_from

    def instead(self, model: str) -> "Chosen":
        """The same choice, with the version of `model` instead."""
        version = next((version for version, other in self.others if other == model), "")
        reason = f"version {version}: no replica of {self.version} is usable; {self.reason}"
        return Chosen(self.name, model, version, reason, self.drawn_from, self.shadow, (), self.version)


class Entry(msgspec.Struct, frozen=True):
    """One public name and what it currently stands for."""

    config: ModelConfig
    split: TrafficSplit | None = None
    """The shares of its versions; None: the name has rules instead of versions."""
    targets: Mapping[str, str] = {}
    """Model by version."""
    shadow: tuple[str, float] | None = None
    """The shadowed version, and the share of requests copied to it; None: no copies."""


Table = Mapping[str, Entry]


class Models:
    def __init__(self, table: Table, room: Callable[[str], Room]) -> None:
        self._table = table
        self._room = room

    def swap(self, table: Table) -> None:
        """Replaces the table, from the next request on."""
        self._table = table

    def knows(self, name: str) -> bool:
        return name in self._table

    def reach(self, name: str) -> tuple[str, ...]:
        """Models that a request for this name may go to."""
        entry = self._table.get(name)
        if entry is None:
            return (name,)
        if entry.split is not None:
            return tuple(entry.targets.values())
        rules = entry.config.rules
        used = [entry.config.use, entry.config.when_full, *[rule.use for rule in rules], *[r.when_full for r in rules]]
        return tuple({model for one in used if one and one != name for model in self.reach(one)})

    @property
    def names(self) -> list[str]:
        return list(self._table)

    @property
    def hidden(self) -> set[str]:
        """Models behind versions: /v1/models lists the public name, not these."""
        return {model for entry in self._table.values() for model in entry.targets.values()}

    def choose(
        self,
        name: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        tenant: Tenant,
        task: str,
        prompt_tokens: int,
        request_id: str,
        session: str | None,
    ) -> Chosen | None:
        """The model and version for a name; None: it is not a public name, and stands for itself. Raises InvalidRequest
        for a pin that is not allowed or unknown, and Refused for one without a usable replica."""
        table = self._table
        entry = table.get(name)
        if entry is None:
            return None
        reason, target = "", name
        if entry.split is None:
            choice = choose(entry.config, ask_of(body, headers, task, prompt_tokens), lambda model: self.room(model))
            target, reason = choice.model, choice.reason
            entry = table.get(target)
            if entry is None or entry.split is None:
                return Chosen(name, target, "", reason, "", None)
        pinned = headers.get(PIN)
        if pinned is not None:
            return self._pinned(name, target, entry, pinned, tenant, reason)
        config, split = entry.config, entry.split
        assert split is not None
        key = tenant.name if config.sticky == "tenant" else session if config.sticky == "session" else None
        digest = digest_of(config.name, request_id if key is None else key)
        version, share = split.pick(digest)
        because = f"version {version}: {plain(share)} of {config.name}"
        shadow = None
        if entry.shadow is not None:
            copied, of = entry.shadow
            if int.from_bytes(digest_of(f"{config.name} shadow", request_id)[:8]) < of * 2**64:
                shadow = (copied, entry.targets[copied])
        reason = f"{reason}; {because}" if reason else because
        others = tuple([(other, entry.targets[other]) for other in split.others(version, digest)])
        return Chosen(name, entry.targets[version], version, reason, config.name, shadow, others)

    def _pinned(self, name: str, target: str, entry: Entry, pinned: str, tenant: Tenant, reason: str) -> Chosen:
        # Refused, not ignored: a client that asks for a version and measures another would believe the wrong thing.
        if not tenant.trusted:
            raise InvalidRequest(f"{PIN} counts only for trusted keys: tenant {tenant.name!r} is not one", param=PIN)
        model = entry.targets.get(pinned)
        if model is None:
            known = ", ".join(entry.targets)
            raise InvalidRequest(f"{target} has no version {pinned[:64]!r}; there is {known}", param=PIN)
        if not self._room(model).limit:
            # Refused at once, without a fallback: a client that pins a version wants that one, and no wait.
            wrong = f"no replica of version {pinned} of {target} is usable now: come back, or ask without {PIN}"
            raise Refused(wrong, Outcome.NO_REPLICA, COME_BACK_S)
        because = f"version {pinned}: pinned"
        return Chosen(name, model, pinned, f"{reason}; {because}" if reason else because, "", None)

    def room(self, name: str) -> Room:
        """Capacity of a model, or of all versions with traffic behind a public name."""
        entry = self._table.get(name)
        if entry is None or entry.split is None:
            return self._room(name)
        used = [version for version, weight in entry.split.weights if weight > 0]
        used += [entry.split.candidate] if entry.split.candidate is not None else []
        rooms = [self._room(entry.targets[version]) for version in used]
        return Room(sum(r.limit for r in rooms), sum(r.used for r in rooms), sum(r.waiting for r in rooms))


def room_in(dispatcher: Dispatcher) -> Callable[[str], Room]:
    def room(model: str) -> Room:
        return Room(*dispatcher.room(model))

    return room
