"""A dispatcher's settings, and a dispatcher driven in virtual time, before replicas that do as a function says."""

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count

from headgate.config.gateway import RoutingConfig
from headgate.model.event import Arrived, Command, Dispatch, Ended, Event, Hedge, Refuse, Tick
from headgate.model.lane import LANES, Lane
from headgate.model.outcome import Outcome
from headgate.model.request import Request
from headgate.model.tier import TIERS, Tier
from headgate.policy.dispatch.dispatcher import Dispatcher, DispatchSettings
from headgate.policy.tenants.limits import TenantLimits
from headgate.policy.tenants.standing_room import NO_TENANTS, NamedTenants

Behave = Callable[[Request, str, float], list[tuple[float, Event]]]
"""What a replica makes of a request that it gets now: events, each with the seconds until then."""


def refusing(lanes: dict[str, Lane]) -> dict[str, Lane]:
    return {name: replace(lane, when_late="refuse") for name, lane in lanes.items()}


def settings_of(
    lanes: dict[str, Lane] | None = None,
    tenants: dict[str, TenantLimits] | None = None,
    routing: RoutingConfig | None = None,
    tiers: dict[str, Tier] | None = None,
    expected: NamedTenants = NO_TENANTS,
) -> DispatchSettings:
    """None: as they are without a config. But no lane relegates, which has tests of its own: what would be late is
    refused."""
    return DispatchSettings(
        lanes=refusing(LANES if lanes is None else lanes),
        tenants=tenants or {},
        routing=routing or RoutingConfig(),
        tiers=tiers or TIERS,
        expected=expected,
    )


class Driven:
    def __init__(self, made: Dispatcher, behave: Behave) -> None:
        self.made = made
        self.behave = behave
        self.now = 0.0
        self.sent: list[tuple[float, str, str]] = []
        """When, which request, where."""
        self.over: dict[str, tuple[float, Refuse | Outcome]] = {}
        """How each ended, and when."""
        self.requests: dict[str, Request] = {}
        self._due: list[tuple[float, int, Event]] = []
        self._numbers = count()

    def at(self, when: float, event: Event) -> None:
        heappush(self._due, (when, next(self._numbers), event))

    def arrive(self, *requests: Request) -> None:
        for one in requests:
            self.requests[one.id] = one
            self.at(one.arrived, Arrived(one))

    def run(self, until: float) -> None:
        """Every event that is due by then, and every tick that the dispatcher asks for."""
        for _ in range(200_000):
            wake_at = max(self.made.wake_at, self.now)
            due = self._due[0][0] if self._due else until
            if min(wake_at, due) >= until:
                self.now = until
                return
            if wake_at < due:
                self.now = wake_at
                self._hear(Tick())
            else:
                self.now, _, event = heappop(self._due)
                self._hear(event)
        raise AssertionError(f"it spins: {len(self.sent)} attempts by {self.now:.3f} s")

    def places(self, name: str) -> list[str]:
        return [where for _, one, where in self.sent if one == name]

    def _hear(self, event: Event) -> None:
        if isinstance(event, Ended):
            assert event.request_id not in self.over, "it has ended before"
            self.over[event.request_id] = (self.now, event.outcome)
        for command in self.made.on(event, self.now):
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        name = command.request_id
        if isinstance(command, Refuse):
            assert name not in self.over, "it has been refused before"
            self.over[name] = (self.now, command)
        else:
            assert isinstance(command, Dispatch | Hedge)
            self.sent.append((self.now, name, command.replica_id))
            for after_s, event in self.behave(self.requests[name], command.replica_id, self.now):
                self.at(self.now + after_s, event)
