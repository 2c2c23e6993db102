"""Describes the simulated replicas, and when they start and fail."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headgate.config.engine import BatchConfig
from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import Profile
from headgate.model.replica import Replica, ReplicaId


@dataclass(frozen=True, slots=True, kw_only=True)
class SimGroup:
    """A group of equal replicas."""

    profile: Profile
    count: int = 1
    slots: int | None = None
    """Maximum requests that the gateway sends to each replica at once; None: the profile's slots."""
    find_slots: bool = False
    """The gateway is not told the replicas' slots: it has to find the limit."""
    lanes: frozenset[str] = frozenset()
    """Lanes that the replicas serve; empty: all."""
    batch: BatchConfig | None = None
    """How the replicas' engines batch; None: as the profile says."""
    cold_start_s: float = 0.0
    """Seconds from a replica's start until it answers."""
    wake_s: float = 0.0
    """Seconds that waking up takes, where the replicas of a scaled pool may sleep."""
    starts_s: float | None = None
    """When the replicas are started, in virtual seconds; None: before the first arrival."""
    tells: float = 1.0
    """Share of unstreamed answers whose first-token time the engine reports: Headgate's own reports all, most others
    none."""
    step_overhead_s: float = 0.0
    """Seconds that an engine takes between two steps for choosing and reporting, which are not in the profile."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The death of a replica, with all its requests."""

    replica: int
    """The replica's index in the fleet, from 0."""
    at_s: float
    back_s: float | None = None
    """When the replica is started again; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Delays between client, gateway and engine, one way each: sockets, parsing, event loops. Measured on two cores
    with everything on one machine; a network comes on top."""

    accept_s: float = 0.0003
    send_s: float = 0.0003
    back_s: float = 0.0003


@dataclass(frozen=True, slots=True)
class SimSeat:
    """One replica of the fleet, and its group."""

    replica: Replica
    member: SimGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class SimFleet:
    members: tuple[SimGroup, ...]
    failures: tuple[Failure, ...] = ()
    delays: Delays = field(default_factory=Delays)
    named: tuple[SimSeat, ...] = ()
    """Where the replicas of `members` have names of their own, those of pools; empty: they are numbered."""

    @property
    def seats(self) -> list[SimSeat]:
        found: list[SimSeat] = list(self.named)
        if found:
            return found
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
    """Returns one replica as `engine --emulate --dilation` makes it: `times` seconds pass for each second of the
    profile. The gateway's targets are not stretched."""

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
    """Returns a fleet of `count` equal replicas, for any lane."""
    return SimFleet(members=(SimGroup(profile=profile, count=count, slots=slots),))


def fleet_from(config: GatewayConfig, profile: Profile, failures: Sequence[Failure] = ()) -> SimFleet:
    """Returns the replicas that a config names, each with this profile. Their configured slots and lanes are kept."""
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
    """Returns how the config's embedded engines batch; None: the config changes nothing."""
    said = config.embedded
    if said is None or config.replicas:
        return None
    made = replace(said.batch(usual), draft_batch=usual.draft_batch)  # there is no text in which a draft could be right
    return None if made == usual else made
