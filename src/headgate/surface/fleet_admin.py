"""Changes a running gateway over HTTP: its replicas, tenants and lanes, and its config file read again.

    GET    /admin/fleet                       replicas and their states, decisions with reasons, cold starts
    POST   /admin/fleet/zero                  stop every replica of the fleet until the next request comes
    POST   /admin/fleet/baseline              keep a measured start from zero, for the record
    POST   /admin/replicas                    add a replica, such as {"url": "http://10.0.0.7:8000"}
    POST   /admin/replicas/ID/drain           no new requests for it; a replica of the fleet is stopped once it is empty
    POST   /admin/replicas/ID/park            no new requests for it; it stays warm
    POST   /admin/replicas/ID/activate        new requests for it again; one that sleeps is woken first
    POST   /admin/replicas/ID/sleep           a parked replica of the fleet gives its GPU's memory back
    POST   /admin/replicas/ID/wake            it wakes up, and stays parked
    POST   /admin/replicas/ID/warmup          warm it up now; answered when that is over
    DELETE /admin/replicas/ID                 remove it; its requests under way may finish
    POST   /admin/reload                      read the config file again
    POST   /admin/tenants, /admin/lanes       as in the file: {"NAME": {…}}; in force until the file is read again
    DELETE /admin/tenants/NAME, /admin/lanes/NAME

No change loses a request in flight. A wrong change is refused with its reason, and changes nothing.
"""

from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import unquote

import msgspec

from headgate.measure.conditions import ReplicaStanding
from headgate.model.errors import InvalidRequest, StartupError
from headgate.model.replica import ReplicaId
from headgate.surface.access import AdminAccess
from headgate.wire.errors import refusal_body
from headgate.wire.exchange import Exchange, Handler
from headgate.wire.router import Routes

_encode = msgspec.json.Encoder().encode
MOST_FIGURES = 32
"""Maximum figures in a baseline."""


class Changes(Protocol):
    """Changes to a running gateway; each returns what came of it, or raises StartupError and has changed nothing."""

    def take_file(self) -> str: ...
    def add_replica(self, text: str) -> str: ...
    def remove_replica(self, replica_id: ReplicaId) -> str: ...
    def route(self, replica_id: ReplicaId, on: bool) -> str: ...
    def set_tenants(self, text: str) -> str: ...
    def drop_tenant(self, name: str) -> str: ...
    def set_lanes(self, text: str) -> str: ...
    def drop_lane(self, name: str) -> str: ...


class FleetControl(Protocol):
    """The controller of a gateway that starts its own replicas."""

    def state(self) -> dict[str, Any]: ...
    def owns(self, replica_id: ReplicaId) -> bool: ...
    def drain(self, replica_id: ReplicaId, why: str) -> bool: ...
    def park(self, replica_id: ReplicaId, why: str) -> bool: ...
    def activate(self, replica_id: ReplicaId, why: str) -> bool: ...
    def sleep(self, replica_id: ReplicaId, why: str) -> bool: ...
    def wake(self, replica_id: ReplicaId, why: str) -> bool: ...
    def to_zero(self) -> int: ...


class FleetAdmin:
    def __init__(
        self,
        access: AdminAccess,
        changes: Changes,
        known: Callable[[], list[dict[str, Any]]],
        outage: Callable[[], str],
        fleet: FleetControl | None,
        baseline: Callable[[dict[str, Any] | None], dict[str, Any] | None],
    ) -> None:
        """`known` returns every replica of the gateway, for people. `outage` returns why nothing can be answered;
        empty: something can. `fleet` None: the gateway starts no replicas. `baseline` keeps a baseline if given one,
        and returns the kept one."""
        self._guard = access.guard
        self._changes = changes
        self._known = known
        self._outage = outage
        self._fleet = fleet
        self._baseline = baseline
        self.more: dict[str, Callable[[Exchange, ReplicaId], None]] = {}
        """Further actions on a replica, by name."""

    def routes(self) -> Routes:
        handlers: dict[tuple[str, str], Handler] = {
            ("GET", "/admin/fleet"): self._show,
            ("POST", "/admin/fleet/zero"): self._zero,
            ("POST", "/admin/fleet/baseline"): self._keep_baseline,
            ("POST", "/admin/replicas"): lambda exchange: self._do(
                exchange, self._changes.add_replica, _text(exchange)
            ),
            ("POST", "/admin/replicas/*"): self._act,
            ("DELETE", "/admin/replicas/*"): self._remove,
            ("POST", "/admin/reload"): self._reload,
            ("POST", "/admin/tenants"): lambda exchange: self._do(exchange, self._changes.set_tenants, _text(exchange)),
            ("DELETE", "/admin/tenants/*"): lambda exchange: self._do(
                exchange, self._changes.drop_tenant, _last(exchange, "/admin/tenants/")
            ),
            ("POST", "/admin/lanes"): lambda exchange: self._do(exchange, self._changes.set_lanes, _text(exchange)),
            ("DELETE", "/admin/lanes/*"): lambda exchange: self._do(
                exchange, self._changes.drop_lane, _last(exchange, "/admin/lanes/")
            ),
        }
        return {route: self._guard(handler) for route, handler in handlers.items()}

    # -- the fleet -------------------------------------------------------------------------------------------------

    def _show(self, exchange: Exchange) -> None:
        state = self._fleet.state() if self._fleet is not None else {"kind": "fixed"}
        told = {"known": self._known(), "outage": self._outage(), "baseline": self._baseline(None)}
        exchange.respond(200, _encode({**state, **told}))

    def _zero(self, exchange: Exchange) -> None:
        if self._fleet is None:
            raise InvalidRequest(
                "this gateway starts no replicas of its own: give its config a fleet, or stop them there"
            )
        exchange.respond(200, _encode({"stopping": self._fleet.to_zero()}))

    def _keep_baseline(self, exchange: Exchange) -> None:
        try:
            figures = msgspec.json.decode(exchange.body, type=dict[str, float | str])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"a baseline is an object of numbers and words: {error}") from None
        if len(figures) > MOST_FIGURES or any(len(str(part)) > 256 for pair in figures.items() for part in pair):
            raise InvalidRequest(f"a baseline has at most {MOST_FIGURES} figures with names of at most 256 characters")
        exchange.respond(200, _encode({"baseline": self._baseline(figures)}))

    # -- replicas --------------------------------------------------------------------------------------------------

    def _act(self, exchange: Exchange) -> None:
        path, _, action = exchange.path.removeprefix("/admin/replicas/").rpartition("/")
        replica_id = unquote(path)
        self._must_know(replica_id)
        fleet, why = self._fleet, "somebody asked for it"
        if action in self.more:
            self.more[action](exchange, replica_id)
            return
        owned = fleet is not None and fleet.owns(replica_id)
        actions = ("drain", "park", "activate", *(("sleep", "wake") if owned else ()))
        if action not in actions:
            known = ", ".join((*actions, *self.more))
            raise InvalidRequest(f"{action[:64]!r} is not known here; there is {known}")
        if fleet is not None and owned:
            does = {"drain": fleet.drain, "park": fleet.park, "activate": fleet.activate}
            does |= {"sleep": fleet.sleep, "wake": fleet.wake}
            done = does[action](replica_id, why)
            exchange.respond(200, _encode({"done": done, "said": f"{action}: {'begun' if done else 'nothing to do'}"}))
        else:
            self._do(exchange, lambda one: self._changes.route(one, action == "activate"), replica_id)

    def _remove(self, exchange: Exchange) -> None:
        replica_id = _last(exchange, "/admin/replicas/")
        self._must_know(replica_id)
        if self._fleet is not None and self._fleet.owns(replica_id):
            done = self._fleet.drain(replica_id, "somebody asked for it")
            exchange.respond(200, _encode({"done": done, "said": "it is drained, then stopped"}))
        else:
            self._do(exchange, self._changes.remove_replica, replica_id)

    def _must_know(self, replica_id: ReplicaId) -> None:
        known = [replica["id"] for replica in self._known()]
        if replica_id not in known:
            raise InvalidRequest(f"no replica {replica_id[:128]!r}; there is {', '.join(known[:16]) or 'none'}")

    # --------------------------------------------------------------------------------------------------------------

    def _reload(self, exchange: Exchange) -> None:
        self._do(exchange, lambda _: self._changes.take_file(), "")

    def _do(self, exchange: Exchange, change: Callable[[str], str], what: str) -> None:
        try:
            said = change(what)
        except StartupError as error:
            exchange.respond(400, refusal_body(400, str(error)))
        else:
            exchange.respond(200, _encode({"done": True, "said": said}))


def _text(exchange: Exchange) -> str:
    try:
        return exchange.body.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not UTF-8 text") from None


def _last(exchange: Exchange, before: str) -> str:
    return unquote(exchange.path.removeprefix(before))


def as_told(standing: ReplicaStanding, url: str, now: float) -> dict[str, Any]:
    """A replica as the admin API tells it."""
    seen = standing.seen
    return {
        "id": seen.id,
        "url": url,
        "state": standing.state,
        "condition": standing.condition,
        "since_s": None if standing.since is None else now - standing.since,
        "usable": seen.usable,
        "requests": seen.requests,
        "limit": seen.limit,
        "why": standing.why,
    }
