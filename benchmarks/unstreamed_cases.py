"""Healthy fleets and their loads, for benchmarks/unstreamed.py: with all streamed none of them raises an alert."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headgate.machine.profile import PROFILES
from headgate.sim.fleet import SimGroup, dilated
from headgate.workload.arrival import Arrival
from headgate.workload.load import load

HOUR_S = 3600.0
SHARES = (0.0, 0.3, 0.6, 0.9, 0.95, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Replicas of one kind."""

    profile: str = "h100-llama3-8b"
    count: int = 4
    tells: float = 0.0
    """Share of unstreamed answers of which the engine says when the first token was there."""
    slower: float = 1.0
    """Times as slow as the profile."""

    @property
    def member(self) -> SimGroup:
        made = dilated(PROFILES[self.profile], self.slower)
        return replace(made, count=self.count, find_slots=True, tells=self.tells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    workload: str
    """Without the share of unstreamed requests, which each of its streams then has. Or with {share}, {other} for
    1 - share, or {all}, where one stream has another share than the next. At share 0 all are streamed."""
    fleet: tuple[Kind, ...] = (Kind(),)
    seeds: tuple[int, ...] = (1,)
    """Limits are compared by their median over these."""
    idle: tuple[float, float] | None = None
    """From and to which second no request comes."""
    for_s: float = HOUR_S
    shares: tuple[float, ...] = SHARES

    @property
    def about(self) -> str:
        """Its fleet, in words."""
        kinds = [
            f"{kind.count} × {kind.profile}"
            + (f", {kind.slower:g} times as slow" if kind.slower != 1 else "")
            + (f", which tells of {kind.tells:.0%}" if kind.tells else "")
            for kind in self.fleet
        ]
        return " and ".join(kinds)

    def arrivals(self, share: float, seed: int) -> Iterator[Arrival]:
        shares = {"share": share, "other": 1 - share if share else 0.0, "all": 1.0 if share else 0.0}
        streams = [
            stream.format_map(shares) if "{" in stream else f"{stream},unstreamed={share:g}"
            for stream in self.workload.split(";")
        ]
        made = load(";".join(streams), seed=seed, duration_s=self.for_s)
        if self.idle is None:
            return made
        since, until = self.idle
        return (one for one in made if not since <= one.at_s < until)


TEN_MINUTES_S = 600.0
TWO = (Kind(count=2),)
CASES = (
    Case(name="answers of 300 tokens", workload="poisson:rate=20,prompt=50-800,output=300"),
    Case(name="answers of 1 to 300 tokens", workload="poisson:rate=20,prompt=20-2000,output=1-300", seeds=(2,)),
    Case(name="two replicas, sessions", workload="poisson:rate=8,prompt=100-3000,output=20-300,sessions=8", fleet=TWO),
    Case(name="short answers", workload="poisson:rate=30,prompt=100-1500,output=1-12", seeds=(3,)),
    Case(
        name="the engine tells",
        workload="poisson:rate=20,prompt=50-800,output=300",
        fleet=(Kind(tells=1.0),),
        seeds=(5,),
    ),
    Case(
        name="busy",
        workload="poisson:rate=45,prompt=50-800,output=300",
        seeds=(4, 5, 6, 7, 8),
        for_s=900.0,
        shares=(0.0, 0.3, 0.6, 0.95),
    ),
    Case(
        name="busy, for an hour",
        workload="poisson:rate=45,prompt=50-800,output=300",
        seeds=(9,),
        shares=(0.0, 0.3, 0.6, 0.95),
    ),
    Case(
        name="busy, two replicas, sessions",
        workload="poisson:rate=20,prompt=100-2500,output=100-250,sessions=12,shared=1024",
        fleet=TWO,
        seeds=(1, 2, 3, 4, 5),
        for_s=TEN_MINUTES_S,
        shares=(0.0, 0.3, 0.6, 0.95),
    ),
    Case(name="bursts", workload="gamma:rate=12,cv=3,prompt=50-800,output=50-300", for_s=TEN_MINUTES_S),
    Case(
        name="bursts, two replicas",
        workload="gamma:rate=6,cv=5,prompt=50-2000,output=50-300",
        fleet=TWO,
        for_s=TEN_MINUTES_S,
    ),
    Case(
        name="three times as slow",
        workload="poisson:rate=5,prompt=50-800,output=30-120",
        fleet=(Kind(slower=3.0),),
        for_s=TEN_MINUTES_S,
    ),
    Case(
        name="A100 beside H100",
        workload="poisson:rate=8,prompt=50-3000,output=30-200",
        fleet=(Kind(count=1), Kind(profile="a100-llama3-8b", count=1)),
        for_s=TEN_MINUTES_S,
    ),
    Case(
        name="tells of half",
        workload="poisson:rate=20,prompt=50-800,output=30-300",
        fleet=(Kind(tells=0.5),),
        for_s=TEN_MINUTES_S,
    ),
    Case(
        name="one of two tells",
        workload="poisson:rate=10,prompt=50-3000,output=30-300",
        fleet=(Kind(count=1, tells=1.0), Kind(count=1)),
        for_s=TEN_MINUTES_S,
    ),
    Case(
        name="lanes with opposite shares",
        workload="short=poisson:rate=10,prompt=50-400,output=30-300,unstreamed={share};"
        "middling=poisson:rate=5,prompt=600-4000,output=30-300,unstreamed={other}",
        for_s=TEN_MINUTES_S,
    ),
    Case(
        name="4000 tokens unstreamed beside short ones",
        workload="short=poisson:rate=10,prompt=50-400,output=20-100;"
        "long=poisson:rate=0.3,prompt=50-400,output=3000-4000,unstreamed={all}",
        for_s=TEN_MINUTES_S,
    ),
    Case(name="six a minute", workload="poisson:rate=0.1,prompt=50-3000,output=20-300"),
    Case(
        name="half an hour idle",
        workload="poisson:rate=10,prompt=50-3000,output=20-300",
        fleet=TWO,
        idle=(600.0, 2400.0),
        for_s=3000.0,
    ),
    Case(name="long prompts", workload="poisson:rate=3,prompt=2000-12000,output=1-20", for_s=TEN_MINUTES_S),
    Case(name="lengths of azure-conv", workload="poisson:rate=8,lengths=azure-conv", for_s=TEN_MINUTES_S),
    Case(name="lengths of azure-code", workload="poisson:rate=6,lengths=azure-code", for_s=TEN_MINUTES_S),
)
