"""What the league is played with: traces and workloads, each with the SLO that its requests are judged by.

The SLO is the workload's, never that of a lane that a gateway chose, and each request says it, as a client of a trusted
key does with `x-headgate-ttft-ms`; none of the rivals' rules in the league takes an SLO. A streamed request is good if
its first token and its mean time per further token are in time, an unstreamed one if it ends within both together.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.league_world import Answered
from benchmarks.tail_mix import EMULATED
from msgspec import structs

from headgate.workload.arrival import BLOCK_TOKENS, Arrival
from headgate.workload.catalog import CATALOG
from headgate.workload.load import Workload

TENANTS = (0.5, 0.2, 0.1, 0.1, 0.05, 0.05)
"""Shares of the tenants: a few clients are most of the load, as in ServeGen's data."""


@dataclass(frozen=True, slots=True)
class Slo:
    ttft_s: float | None
    """None: only the end counts."""
    tpot_s: float | None = None
    e2e_s: float | None = None

    def good(self, answer: Answered) -> bool:
        if answer.e2e_s is None:
            return False
        if self.ttft_s is None:
            return self.e2e_s is None or answer.e2e_s <= self.e2e_s
        if answer.ttft_s is None:
            return answer.e2e_s <= self.ttft_s + (self.tpot_s or 0.2) * answer.arrival.output_tokens
        in_time = answer.ttft_s <= self.ttft_s
        return in_time and (answer.tpot_s is None or self.tpot_s is None or answer.tpot_s <= self.tpot_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    name: str
    says: str
    slo: Callable[[Arrival], Slo]
    arrivals: Callable[[float, float, int], Iterator[Arrival]]
    """For a rate, seconds and a seed."""
    capacity_per_s: float
    """The rate that is called 1×: about where Headgate begins to miss (seeds 1 and 2)."""
    replicas: int = 8
    seconds: float = 120.0
    catalog: bool = False
    """Whether it is of the catalog: played at more loads, without rivals."""
    label: Callable[[Arrival], str] = lambda arrival: arrival.label
    grace_s: float = 30.0
    """Seconds after the last arrival in which requests may still end."""

    def play(self, load: float, seed: int, seconds: float | None = None) -> list[Arrival]:
        seconds = seconds or self.seconds
        found = self.arrivals(load * self.capacity_per_s, seconds, seed)
        made = tenanted((arrival for arrival in found if arrival.at_s <= seconds), seed)
        return [self._told(arrival) for arrival in made]

    def _told(self, arrival: Arrival) -> Arrival:
        """The same request, which says what it is judged by."""
        slo = self.slo(arrival)
        return structs.replace(arrival, ttft_s=slo.ttft_s, tpot_s=slo.tpot_s)


def tenanted(arrivals: Iterator[Arrival], seed: int) -> list[Arrival]:
    """Gives each session, or each request without one, to a tenant."""
    rng, known, found = random.Random(f"tenants/{seed}"), dict[str, str](), []
    for arrival in arrivals:
        tenant = f"tenant-{rng.choices(range(len(TENANTS)), TENANTS)[0]}"
        if arrival.session is not None:
            tenant = known.setdefault(arrival.session, tenant)
        found.append(structs.replace(arrival, tenant=tenant, session=None))
    return found


# -- workloads ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Sessions of several turns, each with all that was said before it. Nothing names the session."""

    turns: tuple[int, int]
    begins: tuple[int, int]
    """Tokens that all sessions of one kind begin with …"""
    kinds: int
    """… and how many kinds there are."""
    adds: tuple[int, int]
    """Tokens that each turn adds, beside the answer before it."""
    output: tuple[int, int]
    pause_s: float
    """Mean seconds from one turn to the next."""

    def __call__(self, rate: float, seconds: float, seed: int) -> Iterator[Arrival]:
        rng = random.Random(f"turns/{seed}")
        mean = (self.turns[0] + self.turns[1]) / 2
        begins = [rng.randint(*self.begins) for _ in range(self.kinds)]
        found: list[Arrival] = []
        # Sessions that have begun before the first second are under way in it.
        at, session = -mean * self.pause_s, 0
        while at < seconds:
            at += rng.expovariate(rate / mean)
            session += 1
            kind = rng.randrange(self.kinds)
            length, now = begins[kind], at
            for _ in range(rng.randint(*self.turns)):
                length += rng.randint(*self.adds)
                output = rng.randint(*self.output)
                if 0.0 <= now <= seconds:
                    found.append(
                        Arrival(
                            at_s=now,
                            prompt_tokens=length,
                            output_tokens=output,
                            prefix=_blocks(kind, begins[kind], session, length),
                            session=f"{session}",
                        )
                    )
                length += output
                now += rng.expovariate(1.0 / self.pause_s)
        return iter(sorted(found, key=lambda arrival: arrival.at_s))


def _blocks(kind: int, begins: int, session: int, length: int) -> tuple[int, ...]:
    """The first blocks are those of the kind, the others the session's; the last, unfinished one is the request's."""
    shared = begins // BLOCK_TOKENS
    return (
        *(-(kind * 10_000 + place) - 1 for place in range(shared)),
        *(session * 10_000 + place for place in range(shared, length // BLOCK_TOKENS)),
    )


def shared_prefix(rate: float, seconds: float, seed: int) -> Iterator[Arrival]:
    """150 beginnings of 6 144 tokens, prompts of 7 200, answers of 100."""
    rng, at = random.Random(f"shared/{seed}"), 0.0
    while (at := at + rng.expovariate(rate)) <= seconds:
        group = rng.randrange(150)
        yield Arrival(at, 7200, 100, prefix=tuple(1000 * group + place for place in range(6144 // BLOCK_TOKENS)))


def of(text: str) -> Callable[[float, float, int], Iterator[Arrival]]:
    def made(rate: float, seconds: float, seed: int) -> Iterator[Arrival]:
        return Workload(text, rate=rate, duration_s=seconds).arrivals(seed)

    return made


def same(ttft_s: float, tpot_s: float | None = None) -> Callable[[Arrival], Slo]:
    return lambda arrival: Slo(ttft_s, tpot_s)


def by_length(arrival: Arrival) -> Slo:
    return Slo(2.0) if arrival.prompt_tokens <= 16_384 else Slo(10.0)


def of_catalog(name: str, capacity_per_s: float, seconds: float, grace_s: float) -> Mix:
    """A workload of the catalog, on two replicas. Agents and chats begin sessions at that rate, and a turn comes when
    the one before it has been answered."""
    entry = CATALOG[name]
    bounds = {kind: float(value) / 1000.0 for kind, _, value in (one.partition(":") for one in entry.goodput)}
    slo = Slo(bounds.get("ttft"), bounds.get("tpot"), bounds.get("e2e"))
    return Mix(
        name=f"catalog:{name}",
        says=f"{entry.about}; good: {', '.join(entry.goodput)}; two replicas",
        slo=lambda arrival: slo,
        arrivals=of(f"catalog:{name}"),
        capacity_per_s=capacity_per_s,
        replicas=2,
        seconds=seconds,
        label=lambda arrival: name,
        grace_s=grace_s,
        catalog=True,
    )


TAIL = {lane: Slo(ttft_s, tpot_s) for lane, ttft_s, tpot_s in EMULATED.good}
MIXES = {
    mix.name: mix
    for mix in (
        Mix(
            name="code",
            says="64 repositories of 3 to 9 thousand tokens, prompts of 500 to 3 000 more, answers of 150 to 600",
            slo=same(30.0, 0.1),
            arrivals=Turns(
                turns=(1, 1), begins=(3000, 9000), kinds=64, adds=(500, 3000), output=(150, 600), pause_s=1.0
            ),
            capacity_per_s=35.0,
            seconds=40.0,
            grace_s=90.0,
        ),
        Mix(
            name="agent",
            says="agents of 8 to 30 turns that begin with 4 to 8 thousand tokens and add 300 to 2 500 each, 4 s apart",
            slo=same(2.0, 0.1),
            arrivals=Turns(
                turns=(8, 30), begins=(4000, 8000), kinds=6, adds=(300, 2500), output=(40, 200), pause_s=4.0
            ),
            capacity_per_s=22.0,
            seconds=40.0,
        ),
        Mix(
            name="shared prefix",
            says="150 beginnings of 6 144 tokens, prompts of 7 200, answers of 100",
            slo=same(2.0),
            arrivals=shared_prefix,
            capacity_per_s=65.0,
            seconds=40.0,
        ),
        Mix(
            name="mooncake",
            says="Mooncake's conversations, first token within 2 s up to 16 384 prompt tokens, else within 10 s",
            slo=by_length,
            arrivals=of("mooncake"),
            capacity_per_s=8.0,
            seconds=90.0,
            label=lambda arrival: "short" if arrival.prompt_tokens <= 16_384 else "long",
        ),
        Mix(
            name="tail mix",
            says="benchmarks/tail.py's: chats, bursts of code, documents, batch; a third unstreamed",
            slo=lambda arrival: TAIL[arrival.label],
            arrivals=of(EMULATED.mix),
            capacity_per_s=180.0,
            seconds=30.0,
        ),
        of_catalog("interactive-chat", 4.0, 90.0, 60.0),
        of_catalog("code-generation", 0.3, 120.0, 120.0),
        of_catalog("reasoning", 3.5, 60.0, 360.0),
        of_catalog("agent", 0.4, 120.0, 120.0),
        of_catalog("shared-prefix", 16.0, 60.0, 30.0),
        of_catalog("batch", 5.5, 60.0, 630.0),
    )
}
