"""Which replicas are simulated, and what becomes of them?"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.config.engine import BatchConfig
from headgate.config.gateway import EmbeddedConfig, GatewayConfig
from headgate.machine.profile import Profile
from headgate.model.replica import Replica, ReplicaId


@dataclass(frozen=True, slots=True, kw_only=True)
class SimGroup:
    """Some replicas that are alike."""

    profile: Profile
    count: int = 1
    slots: int | None = None
    """Requests that the gateway gives each of them at once; None: as many as the profile has slots."""
    find_slots: bool = False
    """The gateway is not told how many: it has to find out."""
    lanes: frozenset[str] = frozenset()
    """Lanes they serve; empty: all."""
    batch: BatchConfig | None = None
    """How its engine batches; None: as the profile says."""
    cold_start_s: float = 0.0
    """From its start until it answers."""
    starts_s: float | None = None
    """When it is started; None: it was there before anybody came."""
    tells: float = 1.0
    """Share of the answers in one piece of which its engine says when the first token was there: ours says it of all,
    most others of none."""
    step_overhead_s: float = 0.0
    """What an engine takes between two steps for choosing and telling, which is not in the profile."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A replica dies, with all that it was doing."""

    replica: int
    """Which, in the order of the fleet, from 0."""
    at_s: float
    back_s: float | None = None
    """When it is started again; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """What lies between client, gateway and engine, one way each: sockets, parsing, event loops. Measured on two cores
    with everything on one machine; a network comes on top."""

    accept_s: float = 0.0003
    send_s: float = 0.0003
    back_s: float = 0.0003


@dataclass(frozen=True, slots=True)
class SimSeat:
    """One replica of the fleet."""

    replica: Replica
    member: SimGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class SimFleet:
    members: tuple[SimGroup, ...]
    failures: tuple[Failure, ...] = ()
    delays: Delays = field(default_factory=Delays)

    @property
    def seats(self) -> list[SimSeat]:
        found: list[SimSeat] = []
        for member in self.members:
            slots = None if member.find_slots else member.slots or member.profile.slots
            for _ in range(member.count):
                name = ReplicaId(f"{member.profile.name}-{len(found)}")
                made = Replica(id=name, url=f"http://{name}", kind="headgate", slots=slots, lanes=member.lanes)
                found.append(SimSeat(made, member))
        return found

    @property
    def replicas(self) -> int:
        return sum(member.count for member in self.members)


def dilated(profile: Profile, times: float) -> SimGroup:
    """One replica as `engine --emulate --dilation` makes it: so many seconds pass for one of the profile's. What the
    gateway promises is not stretched."""

    def slower(bytes_per_s: float | None) -> float | None:
        return None if bytes_per_s is None else bytes_per_s / times

    cost = profile.cost
    stretched = replace(
        cost,
        fixed=cost.fixed * times,
        per_token_beyond=cost.per_token_beyond * times,
        per_prefill=cost.per_prefill * times,
        per_decode=cost.per_decode * times,
        per_context=cost.per_context * times,
        per_pair=cost.per_pair * times,
    )
    made = replace(
        profile,
        cost=stretched,
        load_bytes_per_s=slower(profile.load_bytes_per_s),
        save_bytes_per_s=slower(profile.save_bytes_per_s),
        copy_bytes_per_s=slower(profile.copy_bytes_per_s),
    )
    return SimGroup(profile=made, batch=profile.batch_config(times))


def fleet_of(profile: Profile, count: int, slots: int | None = None) -> SimFleet:
    """So many of the same, for any lane."""
    return SimFleet(members=(SimGroup(profile=profile, count=count, slots=slots),))


def fleet_from(config: GatewayConfig, profile: Profile, failures: Sequence[Failure] = ()) -> SimFleet:
    """The replicas that a config names, each as this profile would be. What is said of slots and lanes is kept."""
    members = [
        SimGroup(
            profile=profile,
            slots=replica.slots,
            find_slots=replica.slots is None,
            lanes=replica.lanes,
            tells=float(replica.kind == "headgate"),
        )
        for replica in config.replicas
    ]
    own = SimGroup(profile=profile, batch=batch_from(config, profile.batch_config()))
    return SimFleet(members=tuple(members or [own]), failures=tuple(failures))


def batch_from(config: GatewayConfig, usual: BatchConfig) -> BatchConfig | None:
    """As the config has its own engines batch; None: it says nothing about that."""
    said, default = config.embedded, EmbeddedConfig()
    if said is None or config.replicas:
        return None
    changed: dict[str, Any] = {
        name: getattr(said, name)
        for name in ("step_limit_s", "longest_shared")
        if getattr(said, name) != getattr(default, name)
    }
    return replace(usual, **changed) if changed else None
