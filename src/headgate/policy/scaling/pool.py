"""Decides what becomes of each replica of a fleet, from its start to its end.

The pool knows no clock, no process and no socket. A driver reports what happens (a replica appeared, answered, is warm,
vanished), lets the pool look when `due` says so, and carries out the commands that `flush` returns. The live driver is
`fleet/controller.py`, the simulated one `sim/scaling/autoscale.py`.

The pool looks once a second, and at once when a replica is ready or lost, or when capacity gets scarce while warm
replicas are parked. At each look it follows every replica, asks `policy/scaling/scale.Scaler`, and turns its actions
into commands. A replica's states and transitions are the table in `policy/scaling/lifecycle.py`.
"""

from collections import deque
from math import inf

from headgate.config.fleet import LauncherConfig
from headgate.model.labels import plain
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.scaling.lifecycle import COMING, OVER, ROUTED, SLEEPING, Lifecycle, LifecycleEvent
from headgate.policy.scaling.member import Member, Work
from headgate.policy.scaling.orders import (
    JoinReplica,
    LeaveReplica,
    PoolCommand,
    PoolNote,
    PoolReader,
    RouteReplica,
    ScalingPolicy,
    SleepReplica,
    StartReplica,
    StopReplica,
    WakeReplica,
)
from headgate.policy.scaling.placement import Action, Activate, Park, PoolMember, PoolView, Sleep, Start, Wake
from headgate.policy.scaling.scale import Decision

LOOK_EVERY_S = 1.0
GLANCE_EVERY_S = 0.05
"""Seconds between checks, beside the looks, whether capacity is scarce while a warm replica is parked. A burst must not
wait for the next look."""
OUT_FOR_S = 60.0
"""Seconds after which a replica that health keeps out is replaced."""
ASK_AGAIN_S = (1.0, 60.0)
"""Seconds until the next try after a failed start: the first pause, which doubles up to the second."""
STOP_GRACE_S = 5.0
"""Seconds that a drained replica gets to stop."""
RECENT_STARTS = 5
"""Starts, and wake-ups, of which the longest is what the next is expected to take."""
SLEEP_AGAIN_S = 600.0
"""Seconds after which a replica that did not fall asleep is told to again."""


class ManagedPool:
    def __init__(self, scaler: ScalingPolicy, config: LauncherConfig, reader: PoolReader) -> None:
        self.members: dict[ReplicaId, Member] = {}
        self.decision = Decision(0, 0)
        self.held = False
        """Scaled to zero on purpose, until a request waits."""
        self.was_ready = False
        """Any replica has been ready, or none is meant to serve."""
        self._scaler = scaler
        self._config = config
        self._reader = reader
        self._commands: list[PoolCommand] = []
        self._took_s, self._woke_s = (deque[float](maxlen=RECENT_STARTS) for _ in range(2))
        """Seconds that the last starts and the last wake-ups took."""
        self._asked_for = 0
        """Starts that are not answered yet."""
        self._start_after = -inf
        self._pause_s = ASK_AGAIN_S[0]
        self._look_at = -inf
        self._nudged = False
        """Something happened that the next look can't wait for."""

    def flush(self) -> list[PoolCommand]:
        """The commands since the last call, in order."""
        commands, self._commands = self._commands, []
        return commands

    # -- when ------------------------------------------------------------------------------------------------

    def due(self, now: float) -> bool:
        """Whether to look now."""
        return self._nudged or now >= self._look_at or (self._glances and self._burst())

    def wake_at(self, now: float) -> float:
        """When to ask `due` again, unless something is reported before."""
        if self._nudged:
            return now
        return min(self._look_at, now + GLANCE_EVERY_S) if self._glances else self._look_at

    @property
    def _glances(self) -> bool:
        return self.held or any(
            member.state is Lifecycle.PARKED or member.state in SLEEPING for member in self.members.values()
        )

    def _burst(self) -> bool:
        return self._reader.waiting() > 0 if self.held else self._reader.strained()

    def look(self, now: float, wall: float) -> bool:
        """Follows every replica and decides. Returns whether anything was done or decided anew."""
        self._look_at, self._nudged = now + LOOK_EVERY_S, False
        for member in tuple(self.members.values()):
            self._follow(member, self._reader.work(member.id, now), now)
        if self.held and not self._reader.waiting():
            return False
        if self.held:
            self.held = False
            self._note("decision", "no longer held at zero", ("a request has come",))
        before, decision = self.decision, self._scaler.decide(self.view(now), now, wall)
        self.decision = decision
        if not decision.serving:
            self.was_ready = True  # zero serving is intended: a request waits for a start
        done = [text for action in decision.actions if (text := self._act(action, now))]
        if not done and (decision.serving, decision.parked) == (before.serving, before.parked):
            return False
        doing = f": {', '.join(done)}" if done else ""
        self._note("decision", f"{decision.serving} to serve, {decision.parked} parked{doing}", decision.reasons)
        return True

    def view(self, now: float) -> PoolView:
        """The pool as the Scaler sees it."""
        demand = self._reader.demand(now)
        coming = [
            PoolMember(id=f"(asked for: {number})", state=Lifecycle.STARTING, since=now)
            for number in range(self._asked_for)
        ]
        seen = [
            member.seen(self._reader.work(member.id, now), self.wake_s, now)
            for member in self.members.values()
            if not member.gone
        ]
        return PoolView(
            members=(*seen, *coming),
            waiting=demand.waiting,
            waiting_tokens=demand.waiting_tokens,
            tokens_per_s=demand.tokens_per_s,
            p95_ratio=demand.p95_ratio,
            held=demand.held,
            start_s=self.start_s,
            woken_in_s=self.wake_s,
            present=demand.present,
            carried_tokens_per_s=demand.carried_tokens_per_s,
            may_start=demand.may_start,
        )

    @property
    def start_s(self) -> float:
        """Seconds to expect of a start: the longest of the last few, since it is waited for; without any, the
        config's guess."""
        return max(self._took_s, default=self._config.start_s)

    @property
    def wake_s(self) -> float:
        """Seconds to expect of a wake-up, likewise."""
        return max(self._woke_s, default=self._config.wake_s)

    @property
    def paid_for(self) -> int:
        """Replicas that are paid for: from the request for a start until they are gone, whatever they do."""
        return self._asked_for + sum(not member.gone for member in self.members.values())

    @property
    def stuck(self) -> bool:
        """Whether the last start failed: where another pool serves the same, that one grows instead."""
        return self._pause_s > ASK_AGAIN_S[0]

    # -- what is reported --------------------------------------------------------------------------------------

    def appeared(self, replica: Replica, now: float) -> None:
        """The replica has an address: for the first time, again after its end, or another one than before."""
        member = self.members.get(replica.id)
        if member is None:
            member = self.members[replica.id] = Member(replica, now, now)
        elif member.state in OVER:
            member.happened(LifecycleEvent.STARTED, "started again", now)
            member.asked_at, member.comes_back, member.cold_start = now, False, {}
            member.then_serve, member.sleepless_until = False, -inf
        else:
            self._commands.append(LeaveReplica(replica.id))
        member.replica = replica
        self._note("replica", f"{replica.id} is starting", replica=replica.id)
        self._commands.append(JoinReplica(replica))
        self._nudged = True

    def vanished(self, replica_id: ReplicaId, why: str, comes_back: bool, now: float) -> None:
        self._nudged = True
        member = self.members.get(replica_id)
        if member is None:
            return
        if member.state is not Lifecycle.STOPPED:
            self._commands.append(LeaveReplica(member.id))
            self._note("trouble", f"{member.id} is lost", (why,), member.id)
        member.happened(LifecycleEvent.LOST, why, now)
        member.comes_back = comes_back
        if not comes_back:
            del self.members[member.id]

    def answered(self, replica_id: ReplicaId, now: float) -> None:
        """A server answers at the replica's address."""
        member = self.members.get(replica_id)
        if member is not None:
            member.happened(LifecycleEvent.ANSWERED, "it answers", now)

    def warmed(self, replica_id: ReplicaId, now: float) -> float | None:
        """The replica is warm. Returns the seconds that its start took; None: it was not starting."""
        member = self.members.get(replica_id)
        if member is None or not member.happened(LifecycleEvent.WARMED, "warm", now):
            return None
        took_s = now - member.asked_at
        self._took_s.append(took_s)
        self.was_ready = self._nudged = True
        return took_s

    def start_answered(self, problem: str | None, now: float) -> None:
        """A start was accepted, or failed because of a problem."""
        self._asked_for -= 1
        if problem is None:
            self._pause_s = ASK_AGAIN_S[0]
            return
        self._start_after = now + self._pause_s
        self._pause_s = min(ASK_AGAIN_S[1], 2.0 * self._pause_s)
        self._note("trouble", "a replica could not be started", (problem,))

    def stopped(self, replica_id: ReplicaId, problem: str | None = None) -> None:
        """The replica has ended on command, or could not be ended because of a problem."""
        if problem is not None:
            self._note("trouble", f"{replica_id} could not be stopped", (problem,), replica_id)
        member = self.members.get(replica_id)
        if member is not None and member.state is Lifecycle.STOPPED:
            del self.members[replica_id]

    # -- sleep -------------------------------------------------------------------------------------------------

    def slept(self, replica_id: ReplicaId, now: float) -> None:
        """The replica has fallen asleep, as it was told."""
        member = self.members.get(replica_id)
        if member is not None and member.happened(LifecycleEvent.SLEPT, "asleep", now):
            self._note("replica", f"{member.id} is asleep", replica=member.id)

    def stays_awake(self, replica_id: ReplicaId, why: str, now: float) -> None:
        """The replica did not fall asleep, and is as it was. It is not told to again for a while."""
        member = self.members.get(replica_id)
        if member is None or member.state not in SLEEPING:
            return
        member.sleepless_until = now + SLEEP_AGAIN_S
        self._note("trouble", f"{member.id} does not sleep", (why,), member.id)
        self._awake(member, why, now)

    def woken(self, replica_id: ReplicaId, problem: str | None, now: float) -> None:
        """The replica is awake, or did not wake up because of a problem: then it is stopped."""
        member = self.members.get(replica_id)
        if member is None or member.state is not Lifecycle.WAKING:
            return
        if problem is not None:
            self._note("trouble", f"{member.id} did not wake up", (problem,), member.id)
            self._stop(member, problem, now)
        else:
            self._woke_s.append(now - member.since)
            self._note("replica", f"{member.id} woke up in {now - member.since:.2f} s", replica=member.id)
            self._awake(member, "awake", now)
        self._nudged = True

    def _awake(self, member: Member, why: str, now: float) -> None:
        member.happened(LifecycleEvent.WOKEN, why, now)
        if not member.then_serve:
            self._commands.append(RouteReplica(member.id, False))
            return
        member.then_serve = False
        self.activate(member.id, "it is awake", now)

    def sleep(self, replica_id: ReplicaId, why: str, now: float) -> str:
        """Lets a parked replica sleep. Returns what was done, in words; empty: nothing."""
        member = self.members.get(replica_id)
        if member is None or not member.happened(LifecycleEvent.SLEEP, why, now):
            return ""
        member.then_serve = False
        self._commands.append(SleepReplica(replica_id, self.wake_s))
        return f"sleep {replica_id}"

    def wake(self, replica_id: ReplicaId, why: str, now: float) -> str:
        """Wakes a replica that stays parked. Returns what was done, in words; empty: nothing."""
        member = self.members.get(replica_id)
        if member is None or not member.happened(LifecycleEvent.WAKE, why, now):
            return ""
        self._commands.append(WakeReplica(replica_id, self.wake_s))
        return f"wake {replica_id}"

    # -- what time changes ---------------------------------------------------------------------------------------

    def _follow(self, member: Member, work: Work, now: float) -> None:
        if member.state is Lifecycle.RAMPING and work.share >= 1.0:
            member.happened(LifecycleEvent.RAMPED, "ramp over", now)
        elif member.state is Lifecycle.DRAINING:
            self._follow_drain(member, work, now)
        elif member.state in COMING and now - member.since > self._config.start_limit_s:
            self.drain(member.id, f"not ready after {plain(self._config.start_limit_s, 6)} s", now)
        elif member.state is Lifecycle.WAKING and now - member.since > self._config.wake_limit_s:
            self.woken(member.id, f"not awake after {plain(self._config.wake_limit_s, 6)} s", now)
        well = work.share > 0.0 or member.state not in (*ROUTED, Lifecycle.PARKED, Lifecycle.ASLEEP)
        member.out_since = None if well else now if member.out_since is None else member.out_since
        if member.out_since is not None and now - member.out_since >= OUT_FOR_S:
            self.drain(member.id, f"out for {plain(OUT_FOR_S, 6)} s: it is replaced", now)

    def _follow_drain(self, member: Member, work: Work, now: float) -> None:
        if member.then_park:
            if not work.requests:
                member.happened(LifecycleEvent.PARK, "empty", now)
        elif not work.requests or now >= member.drained_by:
            self._stop(member, f"cut off with {work.requests} running" if work.requests else "drained", now)

    # -- what is decided -------------------------------------------------------------------------------------------

    def _act(self, action: Action, now: float) -> str:
        """What was done, in words; empty: nothing, because it was done already or is not possible yet."""
        if isinstance(action, Start):
            return self._start(action.count, now)
        if isinstance(action, Activate):
            return self.activate(action.id, "needed", now)
        if isinstance(action, Park):
            return self.park(action.id, "kept warm", now)
        if isinstance(action, Sleep):
            return self.sleep(action.id, "nobody has needed it", now)
        if isinstance(action, Wake):
            return self.wake(action.id, "it is expected to be needed", now)
        return self.drain(action.id, "not needed", now)

    def _start(self, count: int, now: float) -> str:
        if now < self._start_after:
            return ""
        self._asked_for += count
        self._commands += [StartReplica() for _ in range(count)]
        return f"start {count}"

    def activate(self, replica_id: ReplicaId, why: str, now: float) -> str:
        """Gives a warm replica requests. Returns what was done, in words; empty: nothing."""
        member = self.members.get(replica_id)
        if member is None:
            return ""
        meant, happened = member.then_serve, member.happened(LifecycleEvent.ACTIVATED, why, now)
        if member.state is Lifecycle.WAKING:
            member.then_serve = True
            if happened:
                self._commands.append(WakeReplica(replica_id, self.wake_s))
            return "" if meant else f"wake {replica_id}"
        if not happened:
            return ""
        before = any(other.state in ROUTED and other.since < now for other in self.members.values())
        ramp = member.state is Lifecycle.RAMPING and before  # alone, a ramp would only make requests wait
        self._commands.append(RouteReplica(replica_id, True, ramp))
        return f"activate {replica_id}"

    def park(self, replica_id: ReplicaId, why: str, now: float) -> str:
        """Moves a replica into the warm pool, drained first if it serves. Returns what was done; empty: nothing."""
        member = self.members.get(replica_id)
        if member is None:
            return ""
        if member.state is Lifecycle.READY and member.happened(LifecycleEvent.PARK, why, now):
            return f"park {replica_id}"
        if member.state in ROUTED and member.happened(LifecycleEvent.DRAIN, why, now):
            member.then_park = True
            self._commands.append(RouteReplica(replica_id, False))
            return f"park {replica_id}"
        return ""

    def drain(self, replica_id: ReplicaId, why: str, now: float) -> str:
        """Stops a replica once its requests are over. Returns what was done, in words; empty: nothing."""
        member = self.members.get(replica_id)
        if member is None or member.gone:
            return ""
        if member.state in COMING or member.state in OVER or member.state in SLEEPING:
            self._stop(member, why, now)
            return f"stop {replica_id}"
        again = member.state is Lifecycle.DRAINING and member.then_park
        if not member.happened(LifecycleEvent.DRAIN, why, now) and not again:
            return ""
        member.then_park, member.drained_by = False, now + self._config.drain_s
        self._commands.append(RouteReplica(replica_id, False))
        return f"drain {replica_id}"

    def to_zero(self, why: str, now: float) -> int:
        """Stops all replicas until the next request. Returns how many there are."""
        self.held = True
        stopping = [member for member in tuple(self.members.values()) if member.state not in OVER]
        self._note("decision", f"to zero: {len(stopping)} to stop", (why,))
        for member in stopping:
            self.drain(member.id, "scaled to zero on purpose", now)
        return len(stopping)

    def _stop(self, member: Member, why: str, now: float) -> None:
        joined = member.state is not Lifecycle.FAILED
        member.happened(LifecycleEvent.STOPPED, why, now)
        if joined:
            self._commands.append(LeaveReplica(member.id))
        self._note("replica", f"{member.id} is stopped", (why,), member.id)
        self._commands.append(StopReplica(member.id))

    def _note(self, kind: str, text: str, reasons: tuple[str, ...] = (), replica: ReplicaId | None = None) -> None:
        self._commands.append(PoolNote(kind, text, reasons, replica))
