"""Decides how many replicas a pool should have.

The scaler sees a pool every second or so, and answers how many replicas should serve, how many should be parked, what
to do about it now, and why. The need is expressed in replicas at their target, 65 % full; the target is a little higher
where requests come evenly and a little lower where they come in bursts, since the remaining room is for bursts:

    queue       more than `queue_per_replica` requests wait per serving replica for five seconds, or at once where a
                replica is parked or none serves: as many replicas as all present requests would fill
    occupancy   requests and outstanding tokens at the replicas and waiting, over a minute or so; or whichever of
                prefill, KV memory and tokens is scarcer (utilisation.py)
    velocity    tokens of the arriving requests: it leads occupancy, and is the only signal that sees refused requests
    p95         one more replica, if first tokens are late and the replicas are not idle
    forecast    the demand expected by the time that a start would be over: a floor

Growing and shrinking differ. More replicas are started as soon as they are needed, then none for a minute: a replica
counts from the moment it is asked for, or every look during a cold start would ask again. Replicas are stopped only if
fewer would have sufficed for five minutes, the forecast agrees, and nothing has changed for as long. Between the two is
a band in which nothing happens, so that noise moves nothing.

The minute does not hold back the warm pool: routing to a parked replica takes milliseconds, and so does the reverse. It
happens when the serving replicas are nearly full, before any request waits. So parked replicas count as room, as long
as the serving ones stay below 80 %. A burst borrows from the warm pool: only lasting demand makes the scaler start
replacements.
"""

from dataclasses import dataclass
from math import ceil, inf

from headgate.config.scale import ScaleConfig
from headgate.policy.replicas.utilisation import words
from headgate.policy.scaling.demand import SMOOTH_S, PoolDemand, Signals
from headgate.policy.scaling.forecast import ExpectedDemand, Forecast
from headgate.policy.scaling.levels import LARGE, Levels
from headgate.policy.scaling.lifecycle import Lifecycle
from headgate.policy.scaling.pace import Pace
from headgate.policy.scaling.placement import (
    Action,
    Activate,
    Drain,
    Park,
    PoolMember,
    PoolView,
    Sorted,
    Start,
    rest,
    settle,
)

__all__ = [
    "FULL",
    "Action",
    "Activate",
    "Decision",
    "Drain",
    "Lifecycle",
    "Park",
    "PoolMember",
    "PoolView",
    "Scaler",
    "Start",
]  # fmt: skip

SPREAD = 2.4
"""Standard deviations of the present requests for which room is kept."""
MOVES = 0.05
"""Maximum by which burstiness moves the target, up or down."""
BAND = 0.1
"""Share of the target by which the need must exceed it before the pool grows. Fewer replicas suffice only below the
target."""
HOT = 0.8
"""Share of their room above which the serving replicas are too full, whatever is parked."""
HARDLY = 0.05
"""Need, in replicas, below which a scale-to-zero pool stays at zero."""
QUEUE_S = 5.0
"""Seconds that a queue must last before a replica is started for it."""
LAST = 1
"""Parked replicas that are replaced at once when a burst borrows them."""
FULL = 0.9
"""Share of the serving replicas' room from which on a parked one is taken into use."""
NOT_IDLE = 0.8
"""Share of the target below which late first tokens are not for want of replicas, so that p95 never asks for many."""
SUPPORT = 0.9
"""Weight of velocity while no queue is reported: occupancy comes first, and the larger of two noisy figures is
noisier."""
LEAD = 0.25
"""Share, plus one replica, by which velocity may exceed occupancy: if it was learned from other requests than these, it
is wrong."""


@dataclass(frozen=True, slots=True)
class Decision:
    serving: int
    """Replicas that should serve."""
    parked: int
    """Replicas that should be parked."""
    actions: tuple[Action, ...] = ()
    """What to do now; empty: everything is as it should be, or under way."""
    reasons: tuple[str, ...] = ()
    """Sentences that say why, the most important first."""


@dataclass(frozen=True, slots=True)
class Need:
    """A need in replicas at their target, and the sentence that explains it."""

    replicas: float
    why: str


class Scaler:
    def __init__(self, config: ScaleConfig, forecast: Forecast | None = None) -> None:
        """`forecast`: None: there is no floor but `min`, and what a replica carries is learned anew."""
        self.config = config
        self.forecast = forecast
        self.serving = -1
        """Replicas that should serve, as last decided; -1: not decided yet."""
        self._pace = forecast.pace if forecast is not None else Pace()
        self._signals = Signals()
        self._target = config.utilisation_target
        """The utilisation target as moved by burstiness."""
        self._levels = Levels()
        """How many replicas would have sufficed, and when."""
        self._grown_at = self._changed_at = -inf
        self._borrowed = 0
        """Replicas of the warm pool that serve a burst, which may not last."""
        self._here_at = -inf
        """When a request was last present."""
        self._queued_at = inf
        """Since when too many requests wait; inf: they do not."""
        self._most = config.max
        """Replicas that may serve: `max`, or those there are while a cheaper pool can grow instead."""

    def reconfigure(self, config: ScaleConfig) -> None:
        """Decides by another config from now on. What was learned stays."""
        self.config = config

    def decide(self, view: PoolView, now: float, wall: float) -> Decision:
        config, there = self.config, Sorted.of(view.members)
        self._most = config.max if view.may_start else min(config.max, max(config.least, there.total, self.serving))
        if self.serving < 0:
            self.serving = self._clamp(len(there.routed) + len(there.ready) + there.coming)
            self._changed_at = self._here_at = now  # the first look at a pool stops nothing
        seen = self._signals.see(view, there, now)
        if view.waiting or any(member.requests for member in view.members):
            self._here_at = now
        self._aim(seen)
        self._learn(view, there, seen, now, wall)
        queue = self._queue(view, there, seen, now)
        needs = self._needs(view, there, seen, queue)
        if self._idle(now):
            needs = [Need(0.0, f"Nobody has been here for {now - self._here_at:.0f} s.")]
        soon = self._floor(wall, view.start_s + config.ahead_s)
        near = self._near(view, there, seen)
        reasons = self._level(there, needs, soon, self._later(view, soon, wall), near, queue is not None, now)
        parked = self._to_park([need for need in needs if need is not queue], soon, queue is not None)
        actions, done = settle(
            there, serving=self.serving, parked=parked, most=config.max, keep_s=config.down_cooldown_s, now=now
        )
        used = {action.id for action in actions if not isinstance(action, Start)}
        idle = [member for member in there.parked if member.id not in used]
        awake = min(parked, self._awake(view, wall))
        naps = rest(idle, awake=awake, after_s=config.sleep_after_s, now=now)
        return Decision(self.serving, parked, (*actions, *naps), (*reasons, *done))

    def _awake(self, view: PoolView, wall: float) -> int:
        """Parked replicas that should be awake, because the forecast will want them before long."""
        if self.config.sleep_after_s is None:
            return 0
        expected, carried = self._foreseen(wall, view.woken_in_s + self.config.ahead_s), self._carried()
        if expected is None or carried is None:
            return 0
        return max(0, _past(expected.demand / carried) - self.serving)

    # -- what is needed ---------------------------------------------------------------------------------------

    def _queue(self, view: PoolView, there: Sorted, seen: PoolDemand, now: float) -> Need | None:
        """The need of the queue; None: too few requests wait, or not for long enough, and those parked are not needed
        yet."""
        serve = len(there.routed)
        here = view.waiting + sum(member.requests for member in there.routed)
        if not view.waiting or (serve and view.waiting <= self.config.queue_per_replica * serve):
            self._queued_at = inf
        else:
            self._queued_at = min(self._queued_at, now)
            if there.parked or not serve or now - self._queued_at >= QUEUE_S:
                more = max(_one_more(serve), here / (seen.slots * self._target))
                return Need(more, f"{_requests(view.waiting)} for {serve} that serve: that needs {more:.1f}.")
        if view.held and there.parked:
            return Need(_one_more(serve), "Requests are held until a sleeping replica is awake.")
        if there.parked and here >= FULL * sum(member.slots for member in there.routed):
            return Need(_one_more(serve), f"The {serve} that serve are nearly full, and others are parked.")
        return None

    def _needs(self, view: PoolView, there: Sorted, seen: PoolDemand, queue: Need | None) -> list[Need]:
        config, target = self.config, self._target
        taken = seen.present / (seen.slots * target)
        share = f"{seen.use:.0%} of the room is taken" if there.routed else f"{seen.present:.1f} requests are here"
        needs = [Need(taken, f"{share}; at {target:.0%} that needs {taken:.1f}.")]
        if seen.scarce > 0:
            scarce = seen.scarce * len(there.routed) / target
            of = words(seen.binding)
            needs.append(Need(scarce, f"{seen.scarce:.0%} of {of} is taken; at {target:.0%} that needs {scarce:.1f}."))
        if config.tokens_per_replica is not None:
            tokens = seen.tokens / (config.tokens_per_replica * target)
            needs.append(Need(tokens, f"{seen.tokens:.0f} tokens are outstanding: that needs {tokens:.1f}."))
        carried = self._carried()
        if carried is not None:
            velocity = seen.velocity / carried * (1.0 if queue is not None else SUPPORT)
            if queue is None:
                velocity = min(velocity, max(need.replicas for need in needs) * (1 + LEAD) + 1)
            what = f"{seen.velocity:.0f} tokens/s arrive, {carried:.0f} for each replica"
            needs.append(Need(velocity, f"{what}: that needs {velocity:.1f}."))
        needs = [self._beside_parked(need) for need in needs]
        ratio, busy = view.p95_ratio, max(taken, seen.scarce * len(there.routed) / target)
        idle = self._beside_parked(Need(busy, ".")).replicas <= NOT_IDLE * len(there.routed)
        if ratio is not None and ratio > 1 and not there.coming and not idle:
            more = _one_more(len(there.routed))
            needs.append(Need(more, f"TTFT p95 is {ratio:.1f} times what is promised, and nobody is idle."))
        if queue is not None:
            needs.append(queue)
        return sorted(needs, key=lambda need: -need.replicas)

    def _near(self, view: PoolView, there: Sorted, seen: PoolDemand) -> int:
        """Serving replicas below which a parked one would be taken into use at this moment: giving one up would mean
        taking it back with the next burst. At most those that serve; 0: there is no warm pool, the pool is large, or no
        request is present."""
        if not self.config.warm or self.serving >= LARGE:
            return 0
        here = view.waiting + sum(member.requests for member in there.routed)
        return min(self.serving, int(here / (FULL * seen.slots)) + 1) if here else 0

    def _floor(self, wall: float, ahead_s: float) -> Need:
        if self.forecast is None or not self.config.forecast:
            return Need(0.0, "")
        expected, carried = self._foreseen(wall, ahead_s), self._carried()
        if expected is None:
            return Need(0.0, "There is no forecast: nothing is known of this time of day yet.")
        if carried is None:
            return Need(0.0, f"There is no floor: {expected}, but not yet what a replica carries.")
        return self._beside_parked(Need(expected.demand / carried, _foreseen(expected, carried)))

    def _foreseen(self, wall: float, ahead_s: float) -> ExpectedDemand | None:
        """The demand expected within `ahead_s`; None: nothing is known, or the forecast is off."""
        if self.forecast is None or not self.config.forecast:
            return None
        return self.forecast.expect(wall, wall + ahead_s)

    def _beside_parked(self, need: Need) -> Need:
        """Reduces a need by the warm pool, which is part of the room."""
        hot = need.replicas * self._target / max(HOT, self._target)
        serve = max(need.replicas - self.config.warm, hot)
        if self.config.to_zero and serve < HARDLY:
            return Need(0.0, need.why)
        return need if serve >= need.replicas else Need(serve, f"{need.why[:-1]}, {serve:.1f} beside the parked.")

    def _later(self, view: PoolView, soon: Need, wall: float) -> Need:
        """The forecast floor as far ahead as matters for stopping a replica, which should not have to be started again
        right after."""
        later = self._floor(wall, view.start_s + self.config.ahead_s + self.config.down_cooldown_s)
        return later if later.replicas > soon.replicas else soon

    def _carried(self) -> float | None:
        """Tokens per second that a replica carries at its target; None: not known yet."""
        moved = self._target / self.config.utilisation_target
        if self.config.tokens_per_s is not None:
            return self.config.tokens_per_s * moved
        return self._pace.tokens_per_s * moved if self._pace.known else None

    def _aim(self, seen: PoolDemand) -> None:
        usual = self.config.utilisation_target
        if seen.spread is not None:
            even = seen.present / (seen.present + SPREAD * seen.spread)
            self._target = max(usual - MOVES, usual / 2, min(even, usual + MOVES, 1.0))

    def _learn(self, view: PoolView, there: Sorted, seen: PoolDemand, now: float, wall: float) -> None:
        if self.forecast is not None:
            self.forecast.observe(wall, view.tokens_per_s)
        if not view.waiting:
            use = max(seen.use, seen.scarce) / self.config.utilisation_target
            self._pace.observe(seen.carried, len(there.routed), use, min(seen.passed_s, SMOOTH_S[0]))

    # -- how many ---------------------------------------------------------------------------------------------

    def _level(
        self, there: Sorted, needs: list[Need], soon: Need, later: Need, near: int, queue: bool, now: float
    ) -> list[str]:
        """Sets `serving` and returns the reasons."""
        before, most = self.serving, needs[0]
        first = soon if soon.replicas > most.replicas else most
        up = self._clamp(_past(first.replicas))
        needed = max(up, near, self._clamp(_within(max(later.replicas, *(need.replicas for need in needs)))))
        enough = self._remember(needed, now)
        if up > before:
            held = self._grow(up, there, queue, now)
        elif enough < before:
            held = self._shrink(enough, now)
        else:
            held = self._patience(needed, before)
        self._levels.changed(before, self.serving, now, self.config.down_cooldown_s)
        reasons = [self._headline(before), first.why]
        reasons += [need.why for need in (*needs[:2], soon) if need is not first and need.why]
        return [*reasons, held] if held else reasons

    def _to_park(self, lasting: list[Need], soon: Need, queue: bool) -> int:
        """Replicas that should be parked: the warm pool less what a burst has borrowed. The borrowed replicas are
        replaced once the averages show that the demand lasts; all but the last one, which the next burst may need
        sooner than it could be started."""
        config = self.config
        stays = self._clamp(_past(max(soon.replicas, *(need.replicas for need in lasting))))
        beyond = max(0, self.serving - stays)
        self._borrowed = beyond if queue else min(self._borrowed, beyond)
        return min(max(min(config.warm, LAST), config.warm - self._borrowed), config.max - self.serving)

    def _grow(self, up: int, there: Sorted, queue: bool, now: float) -> str:
        wait_s = self._grown_at + self.config.up_cooldown_s - now
        # Replicas that have just become ready may have been asked for already.
        warm = len(there.parked) + len(there.ready) - max(0, self.serving - len(there.routed) - len(there.waking))
        if wait_s > 0 and self.serving >= self.config.least:
            if not queue or warm <= 0:
                return f"{up} would be better; what was added is given {wait_s:.0f} s more to show."
            up = min(up, self.serving + warm)
        self.serving = up
        self._grown_at = self._changed_at = now
        return ""

    def _shrink(self, enough: int, now: float) -> str:
        wait_s = self._changed_at + self.config.down_cooldown_s - now
        if wait_s > 0:
            return f"{enough} would do; nothing is stopped for {wait_s:.0f} s more."
        step = max(1, int(self.serving * self.config.down_share))
        self.serving = max(enough, self.serving - step)
        self._changed_at = now
        return ""

    def _patience(self, needed: int, serving: int) -> str:
        times = self._levels.patience(serving)
        if needed >= serving or times <= 1.0:
            return ""
        kept_s = times * self.config.down_cooldown_s
        return f"{needed} would do; {serving} were given up before and missed, and are kept for {kept_s:.0f} s."

    def _headline(self, before: int) -> str:
        if self.serving == before:
            return f"{_replicas(before)}, as before."
        return f"{_replicas(self.serving)} instead of {before}."

    def _remember(self, enough: int, now: float) -> int:
        """The maximum need over the time for which fewer replicas must have sufficed."""
        idle = self._idle(now)
        if not idle:
            enough = max(enough, self.config.least)
        self._levels.need(enough, now)
        return self._levels.kept(now, self.config.down_cooldown_s, patient=not idle)

    def _clamp(self, count: int) -> int:
        least = 0 if self.config.to_zero else self.config.least
        return max(least, min(count, self._most))

    def _idle(self, now: float) -> bool:
        return self.config.to_zero and now - self._here_at >= self.config.idle_s


def _one_more(count: int) -> float:
    """The need for which one more replica is just enough."""
    return (count + 1) * (1 + BAND)


def _past(need: float) -> int:
    """Replicas for this need, if the target may be exceeded by the band."""
    return ceil(need / (1 + BAND) - 1e-9)


def _within(need: float) -> int:
    """Replicas for this need, if the target may not be exceeded."""
    return ceil(need - 1e-9)


def _foreseen(expected: ExpectedDemand, carried: float) -> str:
    return f"The forecast is {expected}, {carried:.0f} for each replica: that needs {expected.demand / carried:.1f}."


def _replicas(count: int) -> str:
    return "1 replica serves" if count == 1 else f"{count} replicas serve"


def _requests(count: int) -> str:
    return "1 request waits" if count == 1 else f"{count} requests wait"
