"""Runs a workload on a number of replicas, judges the SLOs, and finds the fewest replicas that keep them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import Profile
from headgate.report.arrivals import missed
from headgate.report.results import Target
from headgate.sim.fleet import Failure, SimFleet, SimGroup, batch_from
from headgate.sim.run import Level, Simulated, run
from headgate.sim.slo import Judged, judge_all, worst
from headgate.workload.arrival import Arrival

MOST_REPLICAS = 1024
NO_BETTER = 0.98
"""More replicas do not help if, with twice as many, an SLO is still missed by this share of what it was."""
Say = Callable[[str], None]
Workload = Sequence[Arrival]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run, judged."""

    replicas: int
    judged: tuple[Judged, ...]
    turned_away: float
    """Share of the requests that were refused or failed; those that failed by their client's fault are not counted."""
    simulated: Simulated

    @property
    def missed(self) -> list[Judged]:
        return [one for one in self.judged if not one.kept]

    @property
    def kept(self) -> bool:
        return not self.missed

    @property
    def strain(self) -> tuple[float, float]:
        """How near the run is to missing an SLO, or how far beyond, and the share turned away."""
        first = worst(self.judged)
        return (0.0 if first is None else first.use, self.turned_away)


@dataclass(frozen=True, slots=True)
class ReplicaSplit:
    """The number of replicas, and those of them that serve only one lane."""

    shared: int
    lane: str = ""
    own: int = 0

    @property
    def replicas(self) -> int:
        return self.own + self.shared

    def __str__(self) -> str:
        if not self.own:
            return f"{self.shared} shared by all lanes"
        return f"{self.own} for {self.lane} alone, {self.shared} shared"


@dataclass(slots=True)
class Trials:
    config: GatewayConfig
    profile: Profile
    slots: int | None
    level: Level
    say: Say
    _done: dict[tuple[str, ReplicaSplit], Trial] = field(default_factory=dict)

    def fleet(self, split: ReplicaSplit, failures: tuple[Failure, ...] = ()) -> SimFleet:
        batch = batch_from(self.config, self.profile.batch_config())
        plain = SimGroup(profile=self.profile, count=split.shared, slots=self.slots, batch=batch)
        own = replace(plain, count=split.own, lanes=frozenset((split.lane,)))
        return SimFleet(members=tuple(member for member in (own, plain) if member.count), failures=failures)

    def case(
        self,
        workload: Workload,
        split: ReplicaSplit,
        targets: Sequence[Target],
        seed: int,
        failures: tuple[Failure, ...] = (),
        since_s: float = 0.0,
    ) -> Trial:
        """Runs a workload on these replicas and judges the arrivals from `since_s` on."""
        simulated = run(self.config, workload, self.fleet(split, failures), seed, self.level)
        results = simulated.results
        late = results.at_s >= since_s
        away = missed(results, own_limits=True) & late
        asked = away | (results.ok & late)
        return Trial(
            replicas=split.replicas,
            judged=judge_all(results, targets, since_s),
            turned_away=float(away.sum() / asked.sum()) if asked.any() else 0.0,
            simulated=simulated,
        )

    def worst(self, workloads: Sequence[Workload], split: ReplicaSplit, targets: Sequence[Target], about: str) -> Trial:
        """Returns the trial of the workload that strains the replicas most, or the first that misses an SLO. No trial
        is run twice."""
        known = self._done.get((about, split))
        if known is not None:
            return known
        found: Trial | None = None
        for number, workload in enumerate(workloads):
            case = self.case(workload, split, targets, seed=number + 1)
            if found is None or case.strain > found.strain:
                found = case
            if not case.kept:
                break
        assert found is not None, "there is at least one workload"
        self._done[about, split] = found
        first = worst(found.judged)
        self.say(f"{about}: {split}: {'kept' if found.kept else 'missed'}" + (f"; {first}" if first else ""))
        return found

    def fewest(self, workloads: Sequence[Workload], targets: Sequence[Target], guess: int, about: str) -> int | Trial:
        """Returns the fewest shared replicas that keep the SLOs; or the last trial, if no number does."""
        missed, count = 0, max(1, guess)
        before: Trial | None = None
        while True:
            case = self.worst(workloads, ReplicaSplit(count), targets, about)
            if case.kept:
                break
            if count >= MOST_REPLICAS or (before is not None and _no_better(before, case)):
                return case
            before, missed, count = case, count, min(MOST_REPLICAS, 2 * count)
        kept = count
        while kept - missed > 1:
            middle = (kept + missed) // 2
            if self.worst(workloads, ReplicaSplit(middle), targets, about).kept:
                kept = middle
            else:
                missed = middle
        return kept


def _no_better(before: Trial, after: Trial) -> bool:
    """True if an SLO is missed by nearly as much as with half the replicas."""
    (use, away), (was_use, was_away) = after.strain, before.strain
    if use == was_use == float("inf"):
        return away >= NO_BETTER * was_away
    return use >= NO_BETTER * was_use
