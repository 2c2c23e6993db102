"""What is offered, and to which fleet. Four kinds of traffic at multiples of what the fleet can do."""

from collections.abc import Iterable
from dataclasses import dataclass

from headgate.workload.arrival import Arrival
from headgate.workload.load import Workload

INTERACTIVE = "fast"
LANES = ("fast", "slow", "long", "batch")
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A fleet, a mix of traffic, and how much of that mix the fleet can do."""

    name: str
    engine: tuple[str, ...]
    """What each of its engines is told."""
    says: str
    """The same for people …"""
    briefly: str
    """… and where there is little room."""
    replicas: int
    slots: int
    """Sequences that an engine runs at once. Only Headgate is told: no other gateway has a limit to be set."""
    mix: str
    capacity_per_s: float
    """Requests a second of this mix that it just keeps up with."""
    good: tuple[tuple[str, float, float | None], ...]
    """For each lane, within how many seconds the first token is good, and how many each further one may take."""
    slo_s: float
    """The interactive lane's promise for the first token, at p99 …"""
    target_s: float
    """… and at p95."""
    spare_least: float | None = 0.25
    """The least spare share of the machine's CPU: where engines only wait for their modelled time, with less of it
    the machine may be what is measured. None where they compute: it is what they have."""
    seconds: float = 120.0
    """Seconds of arrivals, for each point."""
    stretched: float = 1.0
    """How many times as slow engines are as those that lanes are made for; Headgate's lanes promise that much less."""

    def workload(self, load: float, seconds: float) -> Workload:
        return Workload(self.mix, rate=load * self.capacity_per_s, duration_s=seconds)


CHAT = "chat=poisson:rate={},prompt=100-400,output=8-40,lane=fast,unstreamed=0.35"
CODE = "code=azure-code:rate={},time_scale=4,start=1800,max_prompt=7000,max_output=400,lane=slow,unstreamed=0.35"
DOCS = "docs=poisson:rate={},prompt=4000-12000,output=100-300,lane=long,unstreamed=0.35"
BATCH = "batch=poisson:rate={},prompt=500-2500,output=80-240,lane=batch,unstreamed=0.5"
"""A third and more of all requests want their answer in one piece."""

EMULATED = Setup(
    name="emulated",
    engine=("--emulate", "h100-llama3-8b", "--dilate", "2", "--slots", "32", "--in-order"),
    says="emulated H100 with Llama 3 8B, at half its speed, 32 sequences at once, first come, first served",
    briefly="emulated H100 with Llama 3 8B",
    replicas=4,
    slots=32,
    mix="; ".join((CHAT.format(20), CODE.format(4.1), DOCS.format(0.9), BATCH.format(6.4))),
    capacity_per_s=45.0,
    good=(("fast", 0.5, 0.08), ("slow", 2.0, 0.08), ("long", 10.0, None), ("batch", 300.0, None)),
    slo_s=2.0,
    target_s=0.5,
)
"""Code is the Azure trace at four times its speed, with its own lengths: half of the seconds it is silent, in others it
has nine times its mean rate."""

REAL = Setup(
    name="real",
    engine=("--slots", "32", "--in-order"),
    says="the embedded engine with SmolLM2 135M on the same two cores as everything else, 32 sequences at once, "
    "first come, first served",
    briefly="embedded engine, SmolLM2 135M",
    replicas=1,
    slots=32,
    mix=(
        "chat=poisson:rate=12,prompt=16-60,output=8-24,lane=fast,unstreamed=0.35; "
        "code=azure-code:rate=4,time_scale=4,start=1800,length_scale=0.12,max_prompt=800,max_output=24,lane=slow"
        ",unstreamed=0.35; "
        "docs=poisson:rate=0.9,prompt=600-1400,output=16-48,lane=long,unstreamed=0.35; "
        "batch=poisson:rate=6,prompt=60-240,output=24-72,lane=batch,unstreamed=0.5"
    ),
    capacity_per_s=0.8,
    good=(("fast", 4.0, 0.64), ("slow", 16.0, 0.64), ("long", 80.0, None), ("batch", 2400.0, None)),
    slo_s=16.0,
    target_s=4.0,
    spare_least=None,
    seconds=240.0,
    stretched=8.0,
)
"""The same shares as above. In two minutes there would be 50 chats at 0.8 times its capacity, so that the slowest is
their p99, and a fifth of what it computes would not be done when time is up."""
SETUPS = {setup.name: setup for setup in (EMULATED, REAL)}


def shares(arrivals: Iterable[Arrival]) -> dict[str, float]:
    """Each lane's part of all tokens, prompts and answers."""
    tokens: dict[str, int] = dict.fromkeys(LANES, 0)
    for arrival in arrivals:
        tokens[arrival.label] += arrival.tokens
    return {lane: count / max(1, sum(tokens.values())) for lane, count in tokens.items()}
