"""Decides which replicas serve, which are parked and which stop, given how many of each there should be.

Warm replicas are taken into use before any is started: first those just ready, then those about to be stopped, then the
parked, of these first the ones that are awake. The replica with least to lose stops: its running requests have to be
waited for, its cached prefixes are computed again elsewhere. If the warm pool is short, a leaving replica is parked
instead of stopped.

Parked replicas may sleep: they are told to after a while, and told to wake when they are to serve, or when the forecast
wants them awake.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headgate.model.replica import ReplicaId
from headgate.policy.scaling.lifecycle import COMING, OVER, ROUTED, SLEEPING, Lifecycle


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMember:
    """One replica of the pool, as its driver sees it now."""

    id: ReplicaId
    state: Lifecycle
    since: float
    """When the replica entered this state, on the clock of `now`."""
    then_park: bool = False
    """While it drains: it is parked afterwards, not stopped."""
    then_serve: bool = False
    """While it wakes up: it serves afterwards, and does not stay parked."""
    overdue: bool = False
    """It should have woken up by now: others are woken in its place."""
    sleepless: bool = False
    """It was told to sleep, and did not, or can't."""
    requests: int = 0
    """Requests at the replica."""
    outstanding_tokens: int = 0
    """Tokens of those requests: prompt tokens without a first token yet, and output tokens still to come."""
    cached_tokens: int = 0
    """Prompt tokens that only this replica has cached, and that would have to be computed again without it."""
    slots: int = 1
    """Maximum requests at once."""
    use: float = 0.0
    """Share in use of the scarcest resource beside slots, 0 to 1: prefill, KV memory, tokens."""
    binding: str = ""
    """The name of that resource; see policy/replicas/utilisation.py."""

    @property
    def to_lose(self) -> int:
        """Tokens that are waited for, or computed again, if the replica stops."""
        return self.outstanding_tokens + self.cached_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """A pool at one moment. It must show earlier commands: a replica is a member from the moment its start is asked
    for, or it would be asked for again."""

    members: tuple[PoolMember, ...]
    waiting: int = 0
    """Requests that wait for a replica."""
    waiting_tokens: int = 0
    """Tokens of the waiting requests, prompt and expected output."""
    held: bool = False
    """Requests wait that would have been refused if no replica could be woken for them."""
    tokens_per_s: float = 0.0
    """Token velocity: prompt and expected output tokens per second of the requests that arrived over the last 10 to
    60 s. It counts arrivals, not answers, and so includes refused requests: it is the demand."""
    p95_ratio: float | None = None
    """p95 of TTFT over the last minute or so, as a share of the promise; None: unknown."""
    start_s: float = 90.0
    """Seconds from a replica's start until it can serve, measured or guessed."""
    present: float | None = None
    """Requests that this pool should have room for, wherever they are now; None: those at its members and waiting. It
    differs where several pools serve the same: the cheapest should hold what others hold for it."""
    carried_tokens_per_s: float | None = None
    """The part of the arriving tokens that its members are sent, from which their pace is learned; None: all."""
    may_start: bool = True
    """False: a cheaper pool that serves the same can still grow. Only replicas that are warm are taken into use."""
    woken_in_s: float = 3.0
    """Seconds that waking up takes, measured or guessed."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start `count` more replicas. Each becomes READY when it is warm, and a later decision then says Activate or
    Park."""

    count: int


@dataclass(frozen=True, slots=True)
class Activate:
    """Route to the replica: it is READY, PARKED or DRAINING, and so warm; one that sleeps is woken first."""

    id: ReplicaId


@dataclass(frozen=True, slots=True)
class Park:
    """Move the replica into the warm pool: it is READY, or it serves and is drained first."""

    id: ReplicaId


@dataclass(frozen=True, slots=True)
class Drain:
    """Let the replica finish its requests, then stop it. A parked replica has none."""

    id: ReplicaId


@dataclass(frozen=True, slots=True)
class Sleep:
    """Let the parked replica sleep."""

    id: ReplicaId


@dataclass(frozen=True, slots=True)
class Wake:
    """Wake the replica, which stays parked."""

    id: ReplicaId


Action = Start | Activate | Park | Drain | Sleep | Wake


@dataclass(slots=True)
class Sorted:
    """The members by what can be done with them."""

    routed: list[PoolMember]
    ready: list[PoolMember]
    parked: list[PoolMember]
    """Asleep or awake, and those that wake up to stay parked."""
    waking: list[PoolMember]
    """Those that wake up to serve, and should be awake soon."""
    draining: list[PoolMember]
    coming: int
    total: int
    """All members but those that are over."""

    @classmethod
    def of(cls, members: Iterable[PoolMember]) -> "Sorted":
        found = cls([], [], [], [], [], 0, 0)
        for member in members:
            found.total += member.state not in OVER
            if member.state in ROUTED:
                found.routed.append(member)
            elif member.state in COMING or member.overdue:
                found.coming += 1
            elif member.state is Lifecycle.READY:
                found.ready.append(member)
            elif member.state is Lifecycle.WAKING and member.then_serve:
                found.waking.append(member)
            elif member.state is Lifecycle.PARKED or member.state in SLEEPING:
                found.parked.append(member)
            elif member.state is Lifecycle.DRAINING:
                found.draining.append(member)
        return found


def settle(
    there: Sorted, *, serving: int, parked: int, most: int, keep_s: float, now: float
) -> tuple[tuple[Action, ...], tuple[str, ...]]:
    """The actions after which `serving` replicas serve and `parked` are parked, and the reasons. A replica parked
    beyond that is kept for `keep_s`: one that has just been let go may be needed again."""
    actions: list[Action] = []
    reasons: list[str] = []
    spare = _spare(there)
    short = serving - len(there.routed) - len(there.waking)
    for member in spare[: max(0, short)]:
        actions.append(Activate(member.id))
        at_once = "it is woken" if member.state in SLEEPING else "it is taken into use at once"
        reasons.append(f"{member.id} is {_WARM[member.state]}: {at_once}.")
    used = {action.id for action in actions if isinstance(action, Activate)}
    pool = [member for member in spare if member.id not in used and _pooled(member)]
    actions += [Park(member.id) for member in pool if member.state is Lifecycle.READY]
    kept = _let_go(there.routed, -short, parked - len(pool), actions, reasons) if short < 0 else 0
    serve = min(serving, len(there.routed) + len(there.waking) + len(used))
    missing = serving + parked - serve - len(pool) - kept - there.coming
    _trim(pool, parked, keep_s, now, actions, reasons)
    count = min(missing, most - there.total)
    if count > 0:
        actions.append(Start(count))
        reasons.append(f"{_some(count)} started: {serving} serve and {parked} are parked in the end.")
    elif missing > 0:
        reasons.append(f"{_some(missing)} wanted, but max is {most}, and so many are there.")
    return tuple(actions), tuple(reasons)


def rest(parked: Iterable[PoolMember], *, awake: int, after_s: float | None, now: float) -> tuple[Action, ...]:
    """Which of the parked replicas are told to sleep, or to wake, so that `awake` of them are. `after_s`: seconds after
    which a parked replica may sleep; None: none does by itself."""
    there = list(parked)
    up = [member for member in there if member.state in (Lifecycle.PARKED, Lifecycle.WAKING)]
    down = [member for member in there if member.state is Lifecycle.ASLEEP]
    if len(up) < awake:
        return tuple(Wake(member.id) for member in sorted(down, key=_soonest)[: awake - len(up)])
    if after_s is None:
        return ()
    tired = [
        member
        for member in up
        if member.state is Lifecycle.PARKED and not member.sleepless and now - member.since >= after_s
    ]
    return tuple(Sleep(member.id) for member in sorted(tired, key=_loses_least)[: len(up) - awake])


def _pooled(member: PoolMember) -> bool:
    return member.state is not Lifecycle.DRAINING or member.then_park


def _spare(there: Sorted) -> list[PoolMember]:
    """Replicas that are warm and get no requests, in the order in which they are taken into use."""
    stopping = [member for member in there.draining if not member.then_park]
    parking = [member for member in there.draining if member.then_park]
    order = (there.ready, stopping, there.parked, parking)
    return [member for group in order for member in sorted(group, key=_soonest)]


def _let_go(routed: list[PoolMember], count: int, short: int, actions: list[Action], reasons: list[str]) -> int:
    """Lets `count` replicas go, and parks as many of them as the warm pool is short of. Returns how many are
    parked."""
    going = sorted(routed, key=_loses_least)[:count]
    kept = going[max(0, len(going) - max(0, short)) :]
    for member in going:
        lost = f"{member.outstanding_tokens} tokens under way, {member.cached_tokens} remembered"
        if member in kept:
            actions.append(Park(member.id))
            reasons.append(f"{member.id} is drained and parked ({lost}): the warm pool is short.")
        else:
            actions.append(Drain(member.id))
            reasons.append(f"{member.id} is drained and stopped: it has least to lose ({lost}).")
    return len(kept)


def _trim(
    pool: list[PoolMember], parked: int, keep_s: float, now: float, actions: list[Action], reasons: list[str]
) -> None:
    still = (Lifecycle.PARKED, Lifecycle.ASLEEP)
    idle = [member for member in pool if member.state in still and now - member.since >= keep_s]
    for member in sorted(idle, key=_loses_least)[: max(0, len(pool) - parked)]:
        actions.append(Drain(member.id))
        reasons.append(f"{member.id} is parked and stopped: more are parked than the {parked} asked for.")


_WARM = {
    Lifecycle.READY: "warm",
    Lifecycle.PARKED: "parked",
    Lifecycle.WAKING: "about to be awake",
    Lifecycle.DOZING: "falling asleep",
    Lifecycle.ASLEEP: "asleep",
    Lifecycle.DRAINING: "still there",
}
_SOON = {Lifecycle.WAKING: 1, Lifecycle.ASLEEP: 2, Lifecycle.DOZING: 3}


def _soonest(member: PoolMember) -> tuple[int, int, str]:
    """Sort key for the replica to take into use: awake before asleep, then the one with most in its cache."""
    return _SOON.get(member.state, 0), -member.cached_tokens, member.id


def _loses_least(member: PoolMember) -> tuple[int, int, float, str]:
    """Sort key for the replica to let go. Among equals the youngest goes: the oldest have been proven longest."""
    return member.to_lose, member.requests, -member.since, member.id


def _some(count: int) -> str:
    return "1 is" if count == 1 else f"{count} are"
