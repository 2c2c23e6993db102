"""Applies a new config to a running gateway: from its file, on a signal, when the file changes, or through the admin
API.

Everything that can change without a restart is applied, the rest is named; a wrong config changes nothing.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from headgate.config import file as config_file
from headgate.config.contradictions import contradictions, did_you_mean
from headgate.config.fleet import FleetConfig
from headgate.config.gateway import GatewayConfig
from headgate.config.listen import check_exposure
from headgate.config.scale import ScaleConfig
from headgate.gateway.gateway import Gateway
from headgate.gateway.intake.asks import Identities
from headgate.gateway.websocket import Sockets
from headgate.model.clock import Clock
from headgate.model.errors import StartupError
from headgate.model.lane import LANES
from headgate.model.replica import ReplicaId
from headgate.policy.compose import capped, classifier, output_of, reconfigure
from headgate.replay.event_log import EventLog
from headgate.replica.credentials import Credentials
from headgate.surface.access import AdminAccess
from headgate.upkeep.replica_set import ReplicaSet
from headgate.wire.origin import Door

log = logging.getLogger(__name__)

Reload = Callable[[], GatewayConfig]
LOOK_EVERY_S = 1.0
FIXED = (
    "listen", "epp", "limits", "timeouts", "relay", "health", "warm", "retry", "hedge", "embedded", "shared", "observe",
    "record", "batches",
)  # fmt: skip


class ConfigChange:
    def __init__(
        self,
        config: GatewayConfig,
        gateway: Gateway,
        roster: ReplicaSet,
        access: AdminAccess,
        events: EventLog | None,
        clock: Clock,
        *,
        reload: Reload | None,
        rescale: Callable[[FleetConfig], None] | None = None,
    ) -> None:
        self.config = config
        """The config in force."""
        self._events = events
        self._clock = clock
        self._gateway = gateway
        self._roster = roster
        self._access = access
        self._reload = reload
        self._rescale = rescale
        self.versions: Callable[[GatewayConfig], None] | None = None
        """Takes the models and versions that names stand for; None: not wired yet."""
        self.door: Door | None = None
        """Is told which origins' web pages may send requests; None: nothing listens yet."""
        self.sockets: Sockets | None = None
        self._told: Callable[[GatewayConfig], None] | None = None
        """Hears of each config that is taken; None: no other process follows it."""

    def tell(self, told: Callable[[GatewayConfig], None]) -> None:
        """Tells the workers of each config that is taken, from now on."""
        self._told = told

    def reach(self, versions: Callable[[GatewayConfig], None], door: Door, sockets: Sockets) -> None:
        """Tells these of a changed config as well: they are made after this object, whose routes they serve."""
        self.versions, self.door, self.sockets = versions, door, sockets

    def take_file(self) -> str:
        """Reads the file again. Returns what came of it; raises StartupError, and then nothing has changed."""
        if self._reload is None:
            raise StartupError("there is no file to read again: start with --config FILE")
        try:
            new = self._reload()
        except StartupError as error:
            log.error("config not taken, the old one stays: %s", str(error).replace("\n", "; "))
            raise
        return self.take(new)

    def on_signal(self) -> None:
        try:
            self.take_file()
        except StartupError as error:
            log.debug("not reloaded: %s", error)  # it has been reported already

    def take(self, new: GatewayConfig) -> str:
        try:
            self._apply(new)
        except (StartupError, ValueError) as error:
            log.error("config not taken, the old one stays: %s", error)
            raise StartupError(str(error)) from error
        old, self.config = self.config, new
        if self._told is not None:
            self._told(new)
        kept = [name for name in FIXED if getattr(old, name) != getattr(new, name)]
        if old.fleet != new.fleet and (self._rescale is None or _beyond_scale(old) != _beyond_scale(new)):
            kept.append("fleet")
        said = "config taken" + (f"; {', '.join(kept)} only with a restart" if kept else "")
        if new.asks_for_keys and not old.asks_for_keys and not new.admin_keys:
            said += "; /admin now asks for a key as well, and admin_keys has none"
        log.info("%s", said)
        return said

    async def watch(self, path: Path) -> None:
        """Takes the file whenever it has changed, until cancelled. Editors write in pieces or move a new file into
        place: the file is read once it has been the same for two looks."""
        taken = seen = _stamp(path)
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            before, seen = seen, _stamp(path)
            if seen is not None and seen == before and seen != taken:
                taken = seen
                self.on_signal()

    # -- piece by piece, through the admin API; in force until the file is read again ---------------------------

    def add_replica(self, text: str) -> str:
        (replica,) = _section("replicas", [_object(text)]).replicas
        if replica.id in self._roster.watches:
            raise StartupError(f"replica {replica.id} is here already; give the new one another id")
        if replica.api_key_file is not None or replica.ca is not None:
            # Otherwise a client that may change the gateway could make it read any file, and send it anywhere.
            raise StartupError("api_key_file and ca are for the config file alone; a key may be given in headers here")
        self._roster.join(replica)
        return f"{replica.id} is watched, and used once it has answered"

    def remove_replica(self, replica_id: ReplicaId) -> str:
        self._roster.leave(replica_id)
        left = tuple(replica for replica in self.config.replicas if replica.id != replica_id)
        self.config = replace(self.config, replicas=left)
        return f"{replica_id} gets no more requests; what it is doing may finish"

    def route(self, replica_id: ReplicaId, on: bool) -> str:
        self._roster.route(replica_id, on)
        return f"{replica_id} gets requests" if on else f"{replica_id} gets no more requests, and stays known"

    def set_tenants(self, text: str) -> str:
        lanes = {lane.name: msgspec.to_builtins(lane) for lane in self.config.lanes}
        for lane in lanes.values():
            del lane["name"]
        given = {tenant.name: tenant for tenant in _section("tenants", _object(text), lanes=lanes).tenants}
        kept = {tenant.name: tenant for tenant in self.config.tenants}
        return self._take_checked(replace(self.config, tenants=tuple((kept | given).values())))

    def drop_tenant(self, name: str) -> str:
        left = tuple(tenant for tenant in self.config.tenants if tenant.name != name)
        if len(left) == len(self.config.tenants):
            known = [tenant.name for tenant in self.config.tenants]
            raise StartupError(f"no tenant is called {name[:64]!r}; {did_you_mean(name, known)}")
        return self._take_checked(replace(self.config, tenants=left))

    def set_lanes(self, text: str) -> str:
        named = _object(text)
        given = {lane.name: lane for lane in _section("lanes", named).lanes if lane.name in named}
        kept = {lane.name: lane for lane in self.config.lanes}
        return self._take_checked(replace(self.config, lanes=tuple((kept | given).values())))

    def drop_lane(self, name: str) -> str:
        if name in LANES:
            raise StartupError(f"lane {name} is always there; change its settings instead")
        left = tuple(lane for lane in self.config.lanes if lane.name != name)
        if len(left) == len(self.config.lanes):
            known = [lane.name for lane in self.config.lanes]
            raise StartupError(f"no lane is called {name[:64]!r}; {did_you_mean(name, known)}")
        return self._take_checked(replace(self.config, lanes=left))

    def _take_checked(self, new: GatewayConfig) -> str:
        """Takes a config after the checks that the file's reader makes of a whole config."""
        problems = [f"{path}: {problem}" for path, problem in contradictions(new)]
        if problems:
            raise StartupError("; ".join(problems))
        if new.anonymous.allowed and new.has_keys and not self.config.has_keys:
            new = replace(new, anonymous=replace(new.anonymous, allowed=False))  # as the file's default is
        check_exposure(new.listen, new.has_keys, insecure=not self.config.has_keys)
        return self.take(new)

    def _apply(self, new: GatewayConfig) -> None:
        if bool(new.replicas) != bool(self.config.replicas) and not new.fleet.every:
            raise StartupError("replicas: from running engines to the embedded one, or back, needs a restart")
        if new.fleet.kind != self.config.fleet.kind:
            raise StartupError(f"fleet.kind: from {self.config.fleet.kind} to {new.fleet.kind} needs a restart")
        if bool(new.fleet.pools) != bool(self.config.fleet.pools):
            raise StartupError("fleet.pools: from one pool to several, or back, needs a restart")
        if self._told is not None and new.models:
            raise StartupError("models: versions are drawn in one process; start with workers 1, or leave them out")
        if _named(new) != _named(self.config):
            # Otherwise versions of a model would be served by pools that do not run.
            raise StartupError("fleet.pools: another pool, or another model of one, needs a restart")
        before = {replica.id: replica for replica in self.config.replicas}
        after = {replica.id: replica for replica in new.replicas}
        taken = [name for name in after if name not in before and name in self._roster.watches]
        if taken:
            raise StartupError(f"replicas: {taken[0]} is here already; give the new one another id")
        for replica in after.values():
            Credentials(replica)  # an unusable file is found before anything has changed
        reconfigure(self._gateway.dispatcher, new)
        self._gateway.acceptor.reconfigure(classifier(new), identities(new), output_of(new), new.promises)
        if self._events is not None:
            self._events.reconfigured(new, self._clock())
        self._access.change(new.admin_keys, tenants_have_keys=new.asks_for_keys)
        if self.door is not None:
            open_door(self.door, new, self._access)
            if self.sockets is not None:
                self.sockets.show_out(self.door.still_lets_in)
        if self.versions is not None and new.models != self.config.models:
            self.versions(new)
        if self._rescale is not None:
            self._rescale(new.fleet)
        for replica_id in [name for name in before if after.get(name) != before[name]]:
            if replica_id in self._roster.watches:
                self._roster.leave(replica_id)
        for replica in after.values():
            if before.get(replica.id) != replica:
                self._roster.join(replica)
            elif (watch := self._roster.watches.get(replica.id)) is not None:
                watch.connections.read_key_again()


def identities(config: GatewayConfig) -> Identities:
    known = tuple(capped(tenant, config) for tenant in config.tenants)
    return Identities(known, capped(config.anonymous, config))


def open_door(door: Door, config: GatewayConfig, access: AdminAccess) -> None:
    """Tells the door which clients need a key, and which origins' web pages may send requests."""
    door.change(
        config.cors.origins,
        clients_have_keys=config.asks_for_keys,
        admins_have_keys=not access.is_open,
        anonymous=config.anonymous.allowed,
    )


def _object(text: str) -> dict[str, Any]:
    try:
        made = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise StartupError(f"the body is not JSON: {error}") from None
    if not isinstance(made, dict):
        raise StartupError('expected an object, such as {"NAME": {…}}')
    return made


def _section(name: str, body: object, **context: object) -> GatewayConfig:
    """Parses a part of a config, by the rules for the file. JSON is YAML."""
    return config_file.parse(msgspec.json.encode({**context, name: body}).decode(), "body")


def _named(config: GatewayConfig) -> set[tuple[str, str | None]]:
    """The pools by name, each with its model."""
    return {(pool.name, pool.model) for pool in config.fleet.pools}


def _beyond_scale(config: GatewayConfig) -> FleetConfig:
    """The fleet's settings that only a restart changes."""
    pools = tuple(replace(pool, scale=ScaleConfig(), price=None) for pool in config.fleet.pools)
    return replace(config.fleet, scale=ScaleConfig(), pools=pools)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when the file does; None: the file does not exist right now."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
