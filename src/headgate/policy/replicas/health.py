"""Decides which replicas may be used.

What is seen of a replica, a request's end or a probe, is counted until it is a `Sign`; what follows from a sign in each
state is the table `NEXT` (policy/replicas/signs.py).

A replica that is out is judged by probes alone: any other result is of a request sent before the replica went out, and
a late success must not bring it back. Once its cooldown is over, probes in a row do, and its share of traffic then
grows from a tenth to the whole; during that ramp few requests are enough to judge it by. The cooldown doubles with each
relapse, but probes that see the replica down cut it short: they will see it come back too.

Requests that fail are signs too, but the requests may be at fault. So they alone never eject the last replica that can
be used, nor more than half of those that can stand in for each other, as long as its probes succeed; and an error
answer counts only if another request fails there too, or the same succeeds elsewhere.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from headgate.config.gateway import HealthConfig
from headgate.model.replica import Replica, ReplicaId
from headgate.policy.replicas.outlier import LOOK_S, Kin, OutlierConfig, ReplicaRecord
from headgate.policy.replicas.signs import EJECTED, NEXT, PROBATION, RAMPING, UP, HealthState, Saw, Sign

RAMP_STEPS = 10
FIRST_SHARE = 0.1
COOLDOWN_LIMIT_S = 60.0
"""Maximum seconds that the cooldown may double up to."""
FORGIVE_S = 60.0
"""Seconds in use after which the next cooldown is as short as the first."""


class HealthVerdict(NamedTuple):
    replica_id: ReplicaId
    changed: bool
    """Whether the replica's state or share changed."""
    usable: float
    """Share of the replica's slots that may be used. 0: none."""
    state: HealthState
    why: str
    """What put the replica into its state."""


class Standing(NamedTuple):
    """A replica's state, for people."""

    state: HealthState
    since: float
    why: str


@dataclass(slots=True, eq=False)
class HealthEntry:
    """One replica under watch."""

    id: ReplicaId
    number: int
    """Order of joining, for alarms that are due at the same moment."""
    group: "Group"
    kin: Kin
    record: ReplicaRecord
    deep_failed: int = 0
    """Deep probes that failed in a row. Survives an ejection: a probe that generates nothing can't disprove it."""
    state: HealthState = UP
    usable: float = 1.0
    """Share of the replica's slots that may be used, as in the last verdict."""
    why: str = "joined"
    since: float = 0.0
    out_until: float = 0.0
    ejections: int = 0
    back_at: float = -inf
    """When the replica was last taken into use after being out."""
    probes_ok: int = 0
    parked: bool = False
    """Whether the replica is sent nothing, whatever its state."""
    due: float = inf
    """When time alone changes something. inf: never."""


@dataclass(slots=True, eq=False)
class Group:
    """Replicas of the same models and lanes, which can stand in for each other."""

    names: frozenset[str]
    lanes: frozenset[str]
    size: int = 0
    out: int = 0
    """Replicas of the group that are not in use, or parked."""

    def covers(self, other: "Group") -> bool:
        """Whether these replicas can serve all that the other group serves; without names or lanes they serve any."""
        models = not self.names or (bool(other.names) and other.names <= self.names)
        return models and (not self.lanes or (bool(other.lanes) and other.lanes <= self.lanes))


class Health:
    def __init__(self, config: HealthConfig | None = None, outlier: OutlierConfig | None = None) -> None:
        self.config = config or HealthConfig()
        self.outlier = outlier or OutlierConfig()
        self._groups: dict[tuple[frozenset[str], frozenset[str]], Group] = {}
        self._kins: dict[tuple[frozenset[str], tuple[str, ...], str, str], Kin] = {}
        self._alarms: list[tuple[float, ReplicaId, int, HealthEntry]] = []
        self._added = 0
        self.ejections = 0
        """Ejections of replicas in use since the start."""

    # -- replicas come and go -------------------------------------------------------------------------------

    def add(self, replica: Replica, now: float, state: HealthState = UP, parked: bool = False) -> HealthEntry:
        """Begins to watch a replica. UP: known to work. PROBATION: probes decide when it is first used, and it ramps up
        from there. The entry that it had before has to be removed first."""
        group = self._groups.setdefault((replica.names, replica.lanes), Group(replica.names, replica.lanes))
        lanes, tags = tuple(sorted(replica.lanes)), replica.tags
        alike = (replica.names, lanes, tags.get("gpu_type", ""), tags.get("quantization", ""))
        kin = self._kins.setdefault(alike, Kin(self.outlier))
        group.size += 1
        self._added += 1
        watch = HealthEntry(replica.id, self._added, group, kin, ReplicaRecord(), since=now)
        if parked:
            watch.parked = True
            group.out += 1
        if state is UP:
            kin.members.append(watch.record)
        else:
            self._enter(watch, state, "joined", now)
        watch.usable = self.share(watch, now)
        return watch

    def remove(self, watch: HealthEntry) -> None:
        watch.group.size -= 1
        watch.group.out -= not _serves(watch)
        if not watch.group.size:
            del self._groups[watch.group.names, watch.group.lanes]
        if _in_use(watch):
            watch.kin.members.remove(watch.record)
        watch.due = inf

    def park(self, watch: HealthEntry, parked: bool) -> None:
        """Parks a replica or takes it back. A parked replica stands in for no other."""
        before = _serves(watch)
        watch.parked = parked
        watch.group.out += before - _serves(watch)

    # -- what is seen -----------------------------------------------------------------------------------------

    def served(
        self,
        watch: HealthEntry,
        ttft_s: float | None,
        prompt_tokens: int,
        tpot_s: float | None,
        now: float,
        token_s: float | None = None,
        in_flight: int = 1,
    ) -> None:
        """Takes in how quick a request was that ended well; `on` judges it. `ttft_s` None: the time of its first token
        is unknown, and `token_s` is the seconds per token in all. `tpot_s` and `token_s` None: unknown, or the answer
        had too few tokens to tell. `in_flight`: requests that the replica had, this one included."""
        if not _in_use(watch):
            return
        watch.record.took(ttft_s, prompt_tokens, tpot_s, token_s, in_flight)
        watch.kin.look(now)
        if watch.state is RAMPING:
            slow = watch.kin.is_slow(ttft_s, prompt_tokens, token_s)
            if slow is not None:
                watch.record.judged += 1
                watch.record.slow += slow

    def success(
        self,
        watch: HealthEntry,
        ttft_s: float | None,
        prompt_tokens: int,
        tpot_s: float | None,
        now: float,
        token_s: float | None = None,
        in_flight: int = 1,
    ) -> HealthVerdict | None:
        """`served` and `on` in one, for the end that is seen most. None: nothing about the replica has changed. Whether
        the replica is slower than its peers is asked once for each computation of their medians, and not at every
        request."""
        record, looked_at = watch.record, watch.kin.looked_at
        fresh = now - looked_at < LOOK_S and record.looked_at == looked_at
        if watch.state is UP and fresh and not record.failed and not record.suspects:
            watch.deep_failed = 0
            record.ended(failed=False)
            record.took(ttft_s, prompt_tokens, tpot_s, token_s, in_flight)
            return None
        self.served(watch, ttft_s, prompt_tokens, tpot_s, now, token_s, in_flight)
        return self.on(watch, Saw.SUCCESS, now)

    def on(self, watch: HealthEntry, saw: Saw, now: float) -> HealthVerdict:
        was = watch.state
        self._pass_time(watch, now)
        sign, why = self._judge_in_use(watch, saw) if _in_use(watch) else self._judge_out(watch, saw, now)
        after = NEXT[sign][watch.state]
        if after is not watch.state:
            self._enter(watch, after, why, now)
        return self._verdict(watch, now, changed=watch.state is not was)

    def _judge_in_use(self, watch: HealthEntry, saw: Saw) -> tuple[Sign, str]:
        record = watch.record
        if saw is Saw.SUCCESS:
            record.failed = watch.deep_failed = 0
            record.suspects = ()
            record.ended(failed=False)
        elif saw is Saw.FAILURE or saw is Saw.STALL:
            record.failed += 2 if saw is Saw.STALL else 1
            record.ended(failed=True)
        elif saw is Saw.PROBE_OK:
            record.probes_failed = 0
        elif saw is Saw.PROBE_FAILED:
            record.probes_failed += 1
        elif saw is Saw.DEEP_OK:
            record.failed = record.probes_failed = watch.deep_failed = 0
            record.suspects = ()
        elif saw is Saw.DEEP_FAILED:
            watch.deep_failed += 1
        else:
            return Sign.NOTHING, ""
        probed = record.probes_failed + watch.deep_failed
        # A probe that went well tells nothing new: it must not be what puts a replica out.
        well = saw is Saw.PROBE_OK or saw is Saw.DEEP_OK
        if not well and record.failed + probed >= self.config.failures and (probed or self._replaceable(watch)):
            return Sign.FAILURES, f"{saw.value}, the last of {self.config.failures}"
        ended = saw is Saw.SUCCESS or saw is Saw.FAILURE or saw is Saw.STALL
        why = watch.kin.outlying(record, ramping=watch.state is RAMPING) if ended else ""
        if why and self._replaceable(watch):
            return Sign.OUTLIER, why
        return Sign.NOTHING, ""

    def _replaceable(self, watch: HealthEntry) -> bool:
        """Whether requests alone may eject this replica. Never the last, nor more than half of those that can stand in
        for it: a replica that is slow or fails now and then is better than none."""
        size = out = 0
        for group in self._groups.values():
            if group.covers(watch.group):
                size += group.size
                out += group.out
        return out < size // 2

    def _judge_out(self, watch: HealthEntry, saw: Saw, now: float) -> tuple[Sign, str]:
        if saw is Saw.PROBE_FAILED or saw is Saw.DEEP_FAILED:
            watch.probes_ok = 0
            if watch.state is EJECTED:
                watch.out_until = min(watch.out_until, now + self.config.cooldown_s)
                self._set_alarm(watch, watch.out_until)
            return Sign.DOWN, saw.value
        if saw is Saw.DEEP_OK:
            watch.deep_failed = 0
        if watch.state is PROBATION and (saw is Saw.PROBE_OK or saw is Saw.DEEP_OK):
            watch.probes_ok += 1
            if watch.probes_ok >= self.config.successes:
                return Sign.RECOVERED, f"{saw.value}, {watch.probes_ok} in a row"
        return Sign.NOTHING, ""

    # -- time ---------------------------------------------------------------------------------------------------

    def share(self, watch: HealthEntry, now: float) -> float:
        """Share of the replica's slots that may be used now."""
        if watch.state is RAMPING:
            done = (now - watch.since) / self.config.ramp_s if self.config.ramp_s > 0 else 1.0
            return FIRST_SHARE + (1.0 - FIRST_SHARE) * min(1.0, max(0.0, done))
        return 1.0 if watch.state is UP else 0.0

    def wake_at(self) -> float:
        """When to call `tick`. inf: not until something is seen."""
        alarms = self._alarms
        while alarms and alarms[0][3].due != alarms[0][0]:
            heappop(alarms)
        return alarms[0][0] if alarms else inf

    def tick(self, now: float) -> list[HealthVerdict]:
        """The verdicts on all replicas that time alone has changed."""
        verdicts = []
        while self.wake_at() <= now:
            watch = heappop(self._alarms)[3]
            watch.due = inf
            was = watch.state
            self._pass_time(watch, now)
            if watch.state is RAMPING:
                self._set_alarm(watch, self._next_step(watch, now))
            verdicts.append(self._verdict(watch, now, changed=watch.state is not was))
        return verdicts

    def _pass_time(self, watch: HealthEntry, now: float) -> None:
        if watch.state is EJECTED and now >= watch.out_until:
            self._enter(watch, NEXT[Sign.COOLDOWN_OVER][EJECTED], watch.why, now)
        elif watch.state is RAMPING and now >= watch.since + self.config.ramp_s:
            self._enter(watch, NEXT[Sign.RAMP_OVER][RAMPING], watch.why, now)

    def _next_step(self, watch: HealthEntry, now: float) -> float:
        return min(now + self.config.ramp_s / RAMP_STEPS, watch.since + self.config.ramp_s)

    def _set_alarm(self, watch: HealthEntry, due: float) -> None:
        if due != watch.due:
            watch.due = due
            if due < inf:
                heappush(self._alarms, (due, watch.id, watch.number, watch))

    # -- states -----------------------------------------------------------------------------------------------

    def _enter(self, watch: HealthEntry, state: HealthState, why: str, now: float) -> None:
        relapse, served = _in_use(watch), _serves(watch)
        watch.state, watch.since, watch.why = state, now, why
        watch.group.out += served - _serves(watch)
        due = inf
        if state is EJECTED:
            self.ejections += relapse
            if relapse:
                watch.kin.members.remove(watch.record)
            due = watch.out_until = now + (self._relapse_s(watch, now) if relapse else self.config.cooldown_s)
        elif state is PROBATION:
            watch.probes_ok = 0
        elif state is RAMPING:
            watch.record = ReplicaRecord()
            watch.kin.members.append(watch.record)
            # One more deep failure is then enough: coming back on shallow probes has not disproved the earlier ones.
            watch.deep_failed = min(watch.deep_failed, self.config.failures - 1)
            watch.back_at = now
            due = self._next_step(watch, now)
        self._set_alarm(watch, due)

    def _relapse_s(self, watch: HealthEntry, now: float) -> float:
        watch.ejections = watch.ejections + 1 if now - watch.back_at < FORGIVE_S else 1
        return min(COOLDOWN_LIMIT_S, self.config.cooldown_s * 2.0 ** min(watch.ejections - 1, 32))

    def _verdict(self, watch: HealthEntry, now: float, *, changed: bool) -> HealthVerdict:
        usable = self.share(watch, now)
        changed = changed or usable != watch.usable
        watch.usable = usable
        return HealthVerdict(watch.id, changed, usable, watch.state, watch.why)


def _in_use(watch: HealthEntry) -> bool:
    return watch.state is UP or watch.state is RAMPING


def _serves(watch: HealthEntry) -> bool:
    return _in_use(watch) and not watch.parked
