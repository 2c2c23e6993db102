"""Keeps the replicas of the fleet, and how much of each may be used.

All that becomes known of a replica (that it joined, answers, is parked, failed, was quick, is shared with other
gateways) ends here in two numbers: the share of it that may be used, and the requests that it may have at once.
"""

from typing import Final

from headgate.model.replica import Load, Replica, ReplicaId
from headgate.policy.replicas.affinity import Affinity
from headgate.policy.replicas.allowance import room_of
from headgate.policy.replicas.full import Full
from headgate.policy.replicas.gradient import GradientLimit
from headgate.policy.replicas.health import Health, HealthState, HealthVerdict, Saw
from headgate.policy.replicas.index import RouteIndex
from headgate.policy.replicas.outlier import About

UNKNOWN_SIZE: Final = (64, 8)
"""Requests that a replica of unknown size may have at first, and the minimum: fewer would starve any batch."""
IMMATERIAL_S: Final = 0.05
IMMATERIAL_TOKEN_S: Final = 0.01
"""Seconds added to the observed TTFT and TPOT, so that a few milliseconds more are not taken for a queue."""


class Members:
    def __init__(self, fleet: RouteIndex, health: Health, affinity: Affinity) -> None:
        self._fleet = fleet
        self._health = health
        self._affinity = affinity
        self.full = Full(fleet)
        self.part = (0.0, 1.0)
        """Range of each replica's slots that this gateway may use, 0 to 1: all, unless other gateways share them."""
        self._found: dict[ReplicaId, GradientLimit] = {}
        self._unseen: set[ReplicaId] = set()
        """Replicas that have joined and not answered yet."""
        self._parked: set[ReplicaId] = set()
        """Replicas that are known and watched, and sent nothing."""

    # -- which replicas are there -------------------------------------------------------------------------------

    def join(self, replica: Replica, now: float) -> None:
        known = self._fleet.get(replica.id)
        if known is not None and known.replica.slots == replica.slots:
            self._describe(known, replica, now)
            return
        if known is not None:
            self.full.forget(known)
        if replica.slots is not None:
            limit = self._own_part(replica.slots)
        else:
            self._found[replica.id] = GradientLimit(*UNKNOWN_SIZE)
            limit = self._found[replica.id].limit
        load = Load(replica, limit, usable=0.0 if replica.id in self._parked else 1.0)
        self._fleet.add(load)
        self._share_tokens(load)
        self._unseen.add(replica.id)
        self._apply(self._health.add(replica, now, HealthState.PROBATION, replica.id in self._parked))

    def _describe(self, load: Load, replica: Replica, now: float) -> None:
        """Updates a replica whose names or kind have changed. Its running requests stay counted."""
        standing = self._health.standing(replica.id)
        in_use = standing is not None and standing.state in (HealthState.UP, HealthState.RAMPING)
        load.replica = replica
        self._fleet.add(load)
        self._share_tokens(load)
        state = standing.state if standing and in_use else HealthState.PROBATION
        self._apply(self._health.add(replica, now, state, replica.id in self._parked))

    def is_parked(self, replica_id: ReplicaId) -> bool:
        return replica_id in self._parked

    def park(self, replica_id: ReplicaId, parked: bool, ramp: bool, now: float) -> None:
        """Parks a replica or takes it back. What the replica has cached is not forgotten: it is as warm when it comes
        back."""
        load = self._fleet.get(replica_id)
        if parked:
            self._parked.add(replica_id)
            self._health.park(replica_id, True)
            share = 0.0
        else:
            self._parked.discard(replica_id)
            self._health.park(replica_id, False)
            if ramp and load is not None:
                self._health.add(load.replica, now, HealthState.RAMPING)
            share = self._health.share(replica_id, now)
        if load is not None and load.usable != share:
            load.usable = share
            self._fleet.changed(load)

    def leave(self, replica_id: ReplicaId) -> None:
        load = self._fleet.get(replica_id)
        if load is not None:
            self.full.forget(load)
        self._fleet.remove(replica_id)
        self._affinity.forget(replica_id)
        self._health.remove(replica_id)
        self._unseen.discard(replica_id)
        self._parked.discard(replica_id)
        self._found.pop(replica_id, None)

    def share(self, low: float, high: float) -> None:
        """Sets the range of each replica's slots that this gateway may use. Replicas whose size is found by watching
        them are not divided: what other gateways send there is part of what is watched."""
        if self.part == (low, high):
            return
        self.part = (low, high)
        for load in self._fleet.loads.values():
            if load.replica.slots is not None:
                load.limit = self._own_part(load.replica.slots)
            self._share_tokens(load)

    def _own_part(self, limit: int) -> float:
        low, high = self.part
        return float(room_of(limit, low, high))

    def _share_tokens(self, load: Load) -> None:
        limit = load.replica.token_limit
        if limit is not None:
            self._fleet.seats[load.id].token_limit = int(self._own_part(limit))
        self._fleet.changed(load)

    # -- how they are -------------------------------------------------------------------------------------------

    def probed(self, replica_id: ReplicaId, ok: bool, deep: bool, now: float) -> bool:
        """Takes in a probe's result. Returns whether anything changed. A replica that answers for the first time is in
        use at once: it may have been running for weeks, and only the gateway is new."""
        load = self._fleet.get(replica_id)
        if ok and load is not None and (deep or load.replica.kind == "headgate"):
            load.cold = False  # Headgate's own engine says that it is ready only after its warm-up
        if ok and load is not None and replica_id in self._unseen:
            self._unseen.discard(replica_id)
            return self._apply(self._health.add(load.replica, now, parked=replica_id in self._parked))
        saw = (Saw.DEEP_OK if ok else Saw.DEEP_FAILED) if deep else Saw.PROBE_OK if ok else Saw.PROBE_FAILED
        opened = ok and self.full.answered(replica_id)
        return self._apply(self._health.on(replica_id, saw, now)) or opened

    def saw(self, replica_id: ReplicaId, what: Saw, now: float) -> None:
        self._apply(self._health.on(replica_id, what, now))

    def errs(self, replica_id: ReplicaId, about: About, now: float) -> bool:
        """Takes in an error answer to this prompt. Returns whether the replica is blamed: not if only this prompt
        failed there."""
        if not self._health.another(replica_id, about):
            return False
        self.saw(replica_id, Saw.FAILURE, now)
        return True

    def succeeded(
        self,
        load: Load,
        prompt_tokens: int,
        ttft_s: float | None,
        tpot_s: float | None,
        now: float,
        token_s: float | None = None,
    ) -> None:
        """Takes in what a good answer says of its replica: its health, its pace, and how much it can take at once.
        `ttft_s` None: the time of its first token is unknown, and `token_s` is the seconds per token, if the answer had
        enough tokens."""
        verdict = self._health.success(load.id, ttft_s, prompt_tokens, tpot_s, now, token_s, load.requests)
        if verdict is not None:
            self._apply(verdict)
        if ttft_s is not None:
            load.prefill_token_s += 0.1 * (ttft_s / max(1, prompt_tokens) - load.prefill_token_s)
        pace_s = tpot_s if tpot_s is not None else token_s
        if pace_s is not None:
            load.tpot_s += 0.1 * (pace_s - load.tpot_s)
        found = self._found.get(load.id)
        if found is not None:
            ttft_s = None if ttft_s is None else ttft_s + IMMATERIAL_S
            tpot_s = None if tpot_s is None else tpot_s + IMMATERIAL_TOKEN_S
            token_s = None if token_s is None else token_s + IMMATERIAL_TOKEN_S
            found.observe(ttft_s, prompt_tokens, tpot_s, load.requests, now, token_s)
            if load.limit != found.limit:
                load.limit = found.limit
                self._fleet.changed(load)

    def tick(self, now: float) -> None:
        for verdict in self._health.tick(now):
            self._apply(verdict)

    def _apply(self, verdict: HealthVerdict) -> bool:
        """Applies a verdict. Returns whether the usable share of the replica changed."""
        load = self._fleet.get(verdict.replica_id)
        if load is None or verdict.usable == load.usable or verdict.replica_id in self._parked:
            return False
        if verdict.usable == 0.0:
            self._affinity.forget(verdict.replica_id)  # when the replica is back its cache is empty
            load.cold = True
            self.full.forget(load)
        load.usable = verdict.usable
        self._fleet.changed(load)
        return True
