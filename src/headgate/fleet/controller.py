"""Drives the fleet: carries out the Scaler's decisions, and follows each replica's lifecycle.

Once a second, and at once when a replica is ready or lost or capacity gets scarce while warm replicas are parked, the
controller shows the pool to `policy/scaling/scale.Scaler` and carries out its actions: starts and stops through the
fleet, routing through the gateway. A replica's states and transitions are the table in `policy/scaling/lifecycle`.
Every decision is noted with its reasons.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from headgate.config.fleet import FleetConfig
from headgate.fleet import shown
from headgate.fleet.member import Book, Hands, Member, Work
from headgate.fleet.port import Appeared, Change, FleetError, Launcher, Spec
from headgate.fleet.shown import is_gone
from headgate.model.clock import Clock
from headgate.model.errors import StartupError
from headgate.model.plain import plain
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.scaling.lifecycle import COMING, OVER, ROUTED, Lifecycle, LifecycleEvent
from headgate.policy.scaling.scale import Action, Activate, Decision, Park, PoolView, Start

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
GLANCE_EVERY_S = 0.05
"""Seconds between checks, beside the looks, whether capacity is scarce while a warm replica is parked. A burst must not
wait for the next look."""
OUT_FOR_S = 60.0
"""Seconds after which a replica that health keeps out is replaced."""
ASK_AGAIN_S = (1.0, 60.0)
"""Seconds until the next try after a failed start: the first pause, which doubles up to the second."""
STOP_GRACE_S = 5.0
"""Seconds that a drained process gets to stop."""


def _nobody(change: Change) -> None:
    """Ignores changes once the controller is closed."""


class ScalingPolicy(Protocol):
    def decide(self, view: PoolView, now: float, wall: float) -> Decision: ...


class Controller:
    def __init__(
        self,
        fleet: Launcher,
        scaler: ScalingPolicy,
        spec: Spec,
        hands: Hands,
        config: FleetConfig,
        clock: Clock,
        wall: Clock,
    ) -> None:
        self.book = Book(wall)
        self.members: dict[ReplicaId, Member] = {}
        self.decision = Decision(0, 0)
        self.scaler = scaler
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails if no replica can be started at all: then the gateway has no reason to run."""
        self.held = False
        """Scaled to zero on purpose, until a request waits."""
        self.was_ready = asyncio.Event()
        """Set once any replica has been ready, or none is meant to serve."""
        self._fleet = fleet
        self._spec = spec
        self._hands = hands
        self._config = config
        self._clock = clock
        self._wall = wall
        self._asked_for = 0
        """Starts that the fleet has not answered yet."""
        self._start_after = 0.0
        self._pause_s = ASK_AGAIN_S[0]
        self._nudged = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Runs until cancelled. Raises FleetError if there is nothing to start replicas on."""
        await self._fleet.open()
        self._fleet.watch(self.on_change)
        look_at = self._clock()
        while True:
            now = self._clock()
            if now >= look_at or self._nudged.is_set() or self._burst():
                self._nudged.clear()
                self.look(now)
                look_at = now + LOOK_EVERY_S
            try:
                async with asyncio.timeout(GLANCE_EVERY_S):
                    await self._nudged.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """Stops every replica that this fleet started."""
        self._fleet.watch(_nobody)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._fleet.close()
        self.broken.cancel()

    def look(self, now: float) -> None:
        for member in tuple(self.members.values()):
            self._follow(member, self._hands.work(member.id, now), now)
        if self.held and not self._hands.waiting():
            return
        if self.held:
            self.held = False
            self.book.note("decision", "no longer held at zero", ("a request has come",))
        decision = self.scaler.decide(self.view(now), now, self._wall())
        if not decision.serving:
            self.was_ready.set()  # zero serving is intended: a request waits for a start
        carried_out = [text for action in decision.actions if (text := self._carry_out(action, now))]
        wanted = (decision.serving, decision.parked)
        if carried_out or wanted != (self.decision.serving, self.decision.parked):
            doing = f": {', '.join(carried_out)}" if carried_out else ""
            text = f"{decision.serving} to serve, {decision.parked} parked{doing}"
            note = self.book.note("decision", text, decision.reasons)
            log.info("%s (%s)", note.text, "; ".join(note.reasons))
        self.decision = decision

    def view(self, now: float) -> PoolView:
        """The pool as the Scaler sees it."""
        start_s = self.book.start_s(self._config.start_s)
        return shown.pool_view(self.members.values(), self._asked_for, self._hands, start_s, now)

    # -- what people ask for -----------------------------------------------------------------------------------

    def drain(self, replica_id: ReplicaId, why: str) -> bool:
        """Returns whether there was anything to drain."""
        return bool(self._drain(replica_id, why, self._clock()))

    def park(self, replica_id: ReplicaId, why: str) -> bool:
        return bool(self._park(replica_id, why, self._clock()))

    def activate(self, replica_id: ReplicaId, why: str) -> bool:
        return bool(self._activate(replica_id, why, self._clock()))

    def to_zero(self) -> int:
        """Stops all replicas until the next request. Returns how many there are."""
        self.held = True
        now = self._clock()
        stopping = [member for member in tuple(self.members.values()) if member.state not in OVER]
        self.book.note("decision", f"to zero: {len(stopping)} to stop", ("somebody asked for it",))
        for member in stopping:
            self._drain(member.id, "scaled to zero on purpose", now)
        return len(stopping)

    def state(self) -> dict[str, Any]:
        found = shown.whole(self.members.values(), self.decision, self.book, self._hands, self._clock())
        start_s = self.book.start_s(self._config.start_s)
        return {"kind": self._config.kind, "held_at_zero": self.held, "start_s": start_s, **found}

    def news(self) -> dict[str, Any]:
        """The part of the state that the page shows."""
        return shown.news(self.decision, self.book)

    def paid_for(self) -> int:
        """Replicas that are paid for: from the request for a start until they are gone, whatever they do."""
        return self._asked_for + sum(not is_gone(member) for member in self.members.values())

    def owns(self, replica_id: ReplicaId) -> bool:
        """Whether the replica is one of this fleet."""
        return replica_id in self.members

    def lifecycle(self, replica_id: ReplicaId) -> str | None:
        """The state's name; None: the replica is not of this fleet."""
        member = self.members.get(replica_id)
        return None if member is None else member.state.name.lower()

    # -- what the fleet says -----------------------------------------------------------------------------------

    def on_change(self, change: Change) -> None:
        now = self._clock()
        if isinstance(change, Appeared):
            self._appeared(change.replica, now)
        elif (member := self.members.get(change.id)) is not None:
            self._vanished(member, change.why, change.comes_back, now)
        self._nudged.set()

    def _appeared(self, replica: Replica, now: float) -> None:
        member = self.members.get(replica.id)
        if member is None:
            member = self.members[replica.id] = Member(replica, now, now)
        elif member.state in OVER:
            member.happened(LifecycleEvent.STARTED, "started again", now)
            member.asked_at, member.comes_back, member.cold_start = now, False, {}
        else:
            self._hands.leave(replica.id)  # the same replica at another address
        member.replica = replica
        self.book.note("replica", f"{replica.id} is starting", replica=replica.id)
        self._hands.join(replica, lambda: self._ready(member))
        self._do(self._wait_for_answer(member))

    def _vanished(self, member: Member, why: str, comes_back: bool, now: float) -> None:
        if member.state is not Lifecycle.STOPPED:
            self._hands.leave(member.id)
            self.book.note("trouble", f"{member.id} is lost", (why,), member.id)
            log.warning("%s: %s", member.id, why)
        member.happened(LifecycleEvent.LOST, why, now)
        member.comes_back = comes_back
        if not comes_back:
            del self.members[member.id]
        here = self._config.kind == "processes"  # in a cluster the operator may be about to mend it
        if here and member.state is Lifecycle.FAILED and not self.was_ready.is_set() and not self.broken.done():
            # The next start would not get ready either.
            self.broken.set_exception(StartupError(f"no replica gets ready: {member.id}: {why}"))

    async def _wait_for_answer(self, member: Member) -> None:
        while member.state is Lifecycle.STARTING:
            if await self._hands.answers(member.id):
                member.happened(LifecycleEvent.ANSWERED, "it answers", self._clock())
            else:
                await asyncio.sleep(GLANCE_EVERY_S)

    def _ready(self, member: Member) -> None:
        now = self._clock()
        if member.happened(LifecycleEvent.WARMED, "warm", now):
            self.was_ready.set()
            self._do(self._note_start(member, now - member.asked_at))
            self._nudged.set()

    async def _note_start(self, member: Member, took_s: float) -> None:
        member.cold_start = phases = await self._hands.cold_start(member.id)
        self.book.started(member.id, took_s, phases)
        parts = ", ".join(f"{name} {part_s:.2f} s" for name, part_s in phases.items())
        self.book.note("replica", f"{member.id} is ready after {took_s:.2f} s", (parts,) if parts else (), member.id)

    # -- what time changes -------------------------------------------------------------------------------------

    def _follow(self, member: Member, work: Work, now: float) -> None:
        if member.state is Lifecycle.RAMPING and work.share >= 1.0:
            member.happened(LifecycleEvent.RAMPED, "ramp over", now)
        elif member.state is Lifecycle.DRAINING:
            self._follow_drain(member, work, now)
        elif member.state in COMING and now - member.since > self._config.start_limit_s:
            self._drain(member.id, f"not ready after {plain(self._config.start_limit_s, 6)} s", now)
        well = work.share > 0.0 or member.state not in (*ROUTED, Lifecycle.PARKED)
        member.out_since = None if well else now if member.out_since is None else member.out_since
        if member.out_since is not None and now - member.out_since >= OUT_FOR_S:
            self._drain(member.id, f"out for {plain(OUT_FOR_S, 6)} s: it is replaced", now)

    def _follow_drain(self, member: Member, work: Work, now: float) -> None:
        if member.then_park:
            if not work.requests:
                member.happened(LifecycleEvent.PARK, "empty", now)
        elif not work.requests or now >= member.drained_by:
            self._stop(member, f"cut off with {work.requests} running" if work.requests else "drained", now)

    def _burst(self) -> bool:
        if self.held:
            return self._hands.waiting() > 0
        return any(member.state is Lifecycle.PARKED for member in self.members.values()) and self._hands.strained()

    # -- what is decided -----------------------------------------------------------------------------------------

    def _carry_out(self, action: Action, now: float) -> str:
        """What was done, in words; empty: nothing, because it was done already or is not possible yet."""
        if isinstance(action, Start):
            return self._start(action.count, now)
        if isinstance(action, Activate):
            return self._activate(action.id, "needed", now)
        if isinstance(action, Park):
            return self._park(action.id, "kept warm", now)
        return self._drain(action.id, "not needed", now)

    def _start(self, count: int, now: float) -> str:
        if now < self._start_after:
            return ""
        for _ in range(count):
            self._asked_for += 1
            self._do(self._start_one())
        return f"start {count}"

    async def _start_one(self) -> None:
        try:
            await self._fleet.start(self._spec)
        except FleetError as error:
            self._start_after = self._clock() + self._pause_s
            self.book.note("trouble", "a replica could not be started", (str(error),))
            log.warning("a replica could not be started: %s", error)
            self._pause_s = min(ASK_AGAIN_S[1], 2.0 * self._pause_s)
        else:
            self._pause_s = ASK_AGAIN_S[0]
        finally:
            self._asked_for -= 1

    def _activate(self, replica_id: ReplicaId, why: str, now: float) -> str:
        member = self.members.get(replica_id)
        if member is None or not member.happened(LifecycleEvent.ACTIVATED, why, now):
            return ""
        before = any(other.state in ROUTED and other.since < now for other in self.members.values())
        ramp = member.state is Lifecycle.RAMPING and before  # alone, a ramp would only make requests wait
        self._hands.route(replica_id, True, ramp)
        return f"activate {replica_id}"

    def _park(self, replica_id: ReplicaId, why: str, now: float) -> str:
        member = self.members.get(replica_id)
        if member is None:
            return ""
        if member.state is Lifecycle.READY and member.happened(LifecycleEvent.PARK, why, now):
            return f"park {replica_id}"
        if member.state in ROUTED and member.happened(LifecycleEvent.DRAIN, why, now):
            member.then_park = True
            self._hands.route(replica_id, False)
            return f"park {replica_id}"
        return ""

    def _drain(self, replica_id: ReplicaId, why: str, now: float) -> str:
        member = self.members.get(replica_id)
        if member is None or is_gone(member):
            return ""
        if member.state in COMING or member.state in OVER:
            self._stop(member, why, now)
            return f"stop {replica_id}"
        again = member.state is Lifecycle.DRAINING and member.then_park
        if not member.happened(LifecycleEvent.DRAIN, why, now) and not again:
            return ""
        member.then_park, member.drained_by = False, now + self._config.drain_s
        self._hands.route(replica_id, False)
        return f"drain {replica_id}"

    def _stop(self, member: Member, why: str, now: float) -> None:
        joined = member.state is not Lifecycle.FAILED
        member.happened(LifecycleEvent.STOPPED, why, now)
        if joined:
            self._hands.leave(member.id)
        self.book.note("replica", f"{member.id} is stopped", (why,), member.id)
        self._do(self._stop_it(member))

    async def _stop_it(self, member: Member) -> None:
        try:
            await self._fleet.stop(member.id, STOP_GRACE_S)
        except FleetError as error:
            self.book.note("trouble", f"{member.id} could not be stopped", (str(error),), member.id)
            log.warning("%s could not be stopped: %s", member.id, error)
        if self.members.get(member.id) is member and member.state is Lifecycle.STOPPED:
            del self.members[member.id]

    # ------------------------------------------------------------------------------------------------------------

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.broken.done():
            self.broken.set_exception(error)
