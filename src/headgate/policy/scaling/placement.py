"""Who serves, who is parked, who goes? From how many there should be to what is done with each.

What is warm is taken into use before anything is started: those just ready, those about to be stopped, then the parked.
Whoever goes is whoever has least to lose: what it is doing has to be waited for, what it remembers is computed again
elsewhere. If the warm pool is short, one that goes is parked instead of stopped.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.model.replica import ReplicaId
from headgate.policy.scaling.lifecycle import COMING, OVER, ROUTED, Lifecycle


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMember:
    """One replica of the pool, as its driver sees it now."""

    id: ReplicaId
    state: Lifecycle
    since: float
    """When it came into this state, on the clock that `now` is of."""
    requests: int = 0
    """That it has."""
    outstanding_tokens: int = 0
    """Of those: prompt tokens without a first token yet, and output tokens still to come."""
    cached_tokens: int = 0
    """Prompt tokens that only it knows: what would have to be computed again without it."""
    slots: int = 1
    """Requests that it may have at once."""
    use: float = 0.0
    """Share of its scarcest resource beside slots that is taken, 0 to 1: prefill, KV memory, tokens."""
    binding: str = ""
    """Which that is; see policy/replicas/utilisation.py."""

    @property
    def to_lose(self) -> int:
        """Tokens that are waited for, or computed again, if it goes."""
        return self.outstanding_tokens + self.cached_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """A pool at one moment. It must show what was asked for before: a replica that was to be started is a member from
    the moment it is asked for, or it would be asked for again."""

    members: tuple[PoolMember, ...]
    waiting: int = 0
    """Requests without a replica."""
    waiting_tokens: int = 0
    """Theirs: prompt and expected output."""
    tokens_per_s: float = 0.0
    """Token velocity: prompt and expected output of the requests that arrived over the last 10 to 60 s, a second.
    What comes, not what is served, and so with those that were refused: it is what would be needed."""
    p95_ratio: float | None = None
    """TTFT's 95th percentile over the last minute or so, as a share of what is promised; None: unknown."""
    start_s: float = 90.0
    """How long one takes from its start until it can serve, as measured or guessed."""


@dataclass(frozen=True, slots=True)
class Start:
    """So many more. Each becomes READY when it is warm, and a later decision then says Activate or Park."""

    count: int


@dataclass(frozen=True, slots=True)
class Activate:
    """Route to it: it is READY, PARKED or DRAINING, and so warm."""

    id: ReplicaId


@dataclass(frozen=True, slots=True)
class Park:
    """Into the warm pool: it is READY, or it serves and is drained first."""

    id: ReplicaId


@dataclass(frozen=True, slots=True)
class Drain:
    """Let it finish what it has, then stop it. One that is parked has nothing."""

    id: ReplicaId


Action = Start | Activate | Park | Drain


@dataclass(slots=True)
class Sorted:
    """The members by what can be done with them."""

    routed: list[PoolMember]
    ready: list[PoolMember]
    parked: list[PoolMember]
    draining: list[PoolMember]
    coming: int
    total: int
    """All but those that are over."""

    @classmethod
    def of(cls, members: Iterable[PoolMember]) -> "Sorted":
        found = cls([], [], [], [], 0, 0)
        for member in members:
            found.total += member.state not in OVER
            if member.state in ROUTED:
                found.routed.append(member)
            elif member.state in COMING:
                found.coming += 1
            elif member.state is Lifecycle.READY:
                found.ready.append(member)
            elif member.state is Lifecycle.PARKED:
                found.parked.append(member)
            elif member.state is Lifecycle.DRAINING:
                found.draining.append(member)
        return found


@dataclass(slots=True)
class Placement:
    """Remembers only which of those that drain are on their way to be parked."""

    parking: set[ReplicaId] = field(default_factory=set)

    def settle(
        self, there: Sorted, *, serving: int, parked: int, most: int, keep_s: float, now: float
    ) -> tuple[tuple[Action, ...], tuple[str, ...]]:
        """What to do so that so many serve and so many are parked, and why. A replica parked beyond what is asked for
        is kept for `keep_s`: whoever has just been let go may be wanted again."""
        self.parking &= {member.id for member in there.draining}
        actions: list[Action] = []
        reasons: list[str] = []
        spare = self._spare(there)
        short = serving - len(there.routed)
        for member in spare[: max(0, short)]:
            actions.append(Activate(member.id))
            reasons.append(f"{member.id} is {_WARM[member.state]}: it is taken into use at once.")
            self.parking.discard(member.id)
        used = {action.id for action in actions if isinstance(action, Activate)}
        pool = [member for member in spare if member.id not in used and self._pooled(member)]
        actions += [Park(member.id) for member in pool if member.state is Lifecycle.READY]
        kept = self._let_go(there.routed, -short, parked - len(pool), actions, reasons) if short < 0 else 0
        serve = min(serving, len(there.routed) + len(used))
        missing = serving + parked - serve - len(pool) - kept - there.coming
        self._trim(pool, parked, keep_s, now, actions, reasons)
        count = min(missing, most - there.total)
        if count > 0:
            actions.append(Start(count))
            reasons.append(f"{_some(count)} started: {serving} serve and {parked} are parked in the end.")
        elif missing > 0:
            reasons.append(f"{_some(missing)} wanted, but max is {most}, and so many are there.")
        return tuple(actions), tuple(reasons)

    def _pooled(self, member: PoolMember) -> bool:
        return member.state is not Lifecycle.DRAINING or member.id in self.parking

    def _spare(self, there: Sorted) -> list[PoolMember]:
        """Those that are warm and get nothing, whom to take first."""
        stopping = [member for member in there.draining if member.id not in self.parking]
        parking = [member for member in there.draining if member.id in self.parking]
        order = (there.ready, stopping, there.parked, parking)
        return [member for group in order for member in sorted(group, key=_known_most)]

    def _let_go(
        self, routed: list[PoolMember], count: int, short: int, actions: list[Action], reasons: list[str]
    ) -> int:
        """Of so many, as many are parked as the warm pool is short of. Gives how many."""
        going = sorted(routed, key=_loses_least)[:count]
        kept = going[max(0, len(going) - max(0, short)) :]
        for member in going:
            lost = f"{member.outstanding_tokens} tokens under way, {member.cached_tokens} remembered"
            if member in kept:
                actions.append(Park(member.id))
                self.parking.add(member.id)
                reasons.append(f"{member.id} is drained and parked ({lost}): the warm pool is short.")
            else:
                actions.append(Drain(member.id))
                reasons.append(f"{member.id} is drained and stopped: it has least to lose ({lost}).")
        return len(kept)

    def _trim(
        self, pool: list[PoolMember], parked: int, keep_s: float, now: float, actions: list[Action], reasons: list[str]
    ) -> None:
        idle = [member for member in pool if member.state is Lifecycle.PARKED and now - member.since >= keep_s]
        for member in sorted(idle, key=_loses_least)[: max(0, len(pool) - parked)]:
            actions.append(Drain(member.id))
            reasons.append(f"{member.id} is parked and stopped: more are parked than the {parked} asked for.")


_WARM = {Lifecycle.READY: "warm", Lifecycle.PARKED: "parked", Lifecycle.DRAINING: "still there"}


def _known_most(member: PoolMember) -> tuple[int, str]:
    return -member.cached_tokens, member.id


def _loses_least(member: PoolMember) -> tuple[int, int, float, str]:
    """Of those that are alike the youngest goes: the oldest have been proven longest."""
    return member.to_lose, member.requests, -member.since, member.id


def _some(count: int) -> str:
    return "1 is" if count == 1 else f"{count} are"
